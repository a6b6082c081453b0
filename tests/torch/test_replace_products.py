"""Gated MLPs and heads with their losses, found by what they compute and replaced."""

from __future__ import annotations

import copy
import inspect
import pickle
import threading
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import normgen.torch as ng  # noqa: E402
from normgen.errors import UsageError  # noqa: E402
from normgen.torch import choosing, gated, linear_loss  # noqa: E402
from normgen.torch.replacing import gating, heads  # noqa: E402
from normgen.torch.replacing.heads import Logits  # noqa: E402

F = torch.nn.functional
WIDTH, HIDDEN, CLASSES = 64, 128, 192
ACTS = {"swiglu": F.silu, "geglu": F.gelu, "geglu_tanh": lambda x: F.gelu(x, approximate="tanh")}
STORED, NOT_STORED = "cross_entropy", "linear_cross_entropy"
EXACT = {torch.float64: 1e-6, torch.float32: 2e-5}  # losses and statistics are float32


class Mlp(torch.nn.Module):
    """Its layers are named against the order in which it uses them."""

    def __init__(self, act: Any = F.silu, bias: bool = False, width: int = WIDTH, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.c = torch.nn.Linear(hidden, width, bias=bias)
        self.a = torch.nn.Linear(width, hidden, bias=bias)
        self.b = torch.nn.Linear(width, hidden, bias=bias)
        self.act = act

    def forward(self, x: Any) -> Any:
        return self.c(self.a(x) * self.act(self.b(x)))


class Block(torch.nn.Module):
    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.norm, self.mlp = torch.nn.RMSNorm(WIDTH, eps=1e-5), mlp

    def forward(self, x: Any) -> Any:
        return x + self.mlp(self.norm(x))


class Body(torch.nn.Module):
    def __init__(self, mlp: Any, layers: int = 2) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(CLASSES, WIDTH)
        torch.nn.init.normal_(self.words.weight, std=0.1)
        self.blocks = torch.nn.ModuleList([Block(mlp()) for _ in range(layers)])

    def forward(self, ids: Any) -> tuple[Any, ...]:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return (x,)


class LlamaLike(torch.nn.Module):
    """Shifts labels itself, and counts them itself where it is told their number."""

    cap: float | None = None

    def __init__(self, mlp: Any = Mlp, tied: bool = False) -> None:
        super().__init__()
        self.body, self.out = Body(mlp), torch.nn.Linear(WIDTH, CLASSES, bias=False)
        if tied:
            self.out.weight = self.body.words.weight

    def forward(self, ids: Any, labels: Any = None, items: Any = None) -> dict[str, Any]:
        logits = self.out(self.body(ids)[0])
        if self.cap is not None:
            logits = self.cap * torch.tanh(logits / self.cap)
        found = {} if labels is None else {"loss": self.loss(logits, labels, items)}
        return found | {"logits": logits}

    def loss(self, logits: Any, labels: Any, items: Any) -> Any:
        rows = logits[..., :-1, :].contiguous().float().view(-1, CLASSES)
        how = "mean" if items is None else "sum"
        loss = F.cross_entropy(rows, labels[..., 1:].reshape(-1).to(rows.device), ignore_index=-7, reduction=how)
        return loss if items is None else loss / items


class GptLike(LlamaLike):
    """With a plain MLP, a head that is tied, and labels that are the next words already."""

    def __init__(self) -> None:
        class PlainMlp(torch.nn.Sequential):
            def __init__(self) -> None:
                up, down = torch.nn.Linear(WIDTH, HIDDEN), torch.nn.Linear(HIDDEN, WIDTH)
                super().__init__(up, torch.nn.GELU(), down)

        super().__init__(PlainMlp, tied=True)

    def forward(self, idx: Any, targets: Any = None) -> tuple[Any, Any]:
        logits = self.out(self.body(idx)[0])
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


def drawn(seed: int = 0) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    ids = torch.randint(0, CLASSES, (2, 9))
    labels = ids.clone()
    labels[0, 3] = labels[1, 5] = -7
    return ids, labels


def trained(model: Any, *given: Any, **named: Any) -> tuple[Any, dict[str, Any]]:
    """The loss and all gradients of a step."""
    model.zero_grad(set_to_none=True)
    out = model(*given, **named)
    loss = out["loss"] if isinstance(out, dict) else out[1]
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same_step(got: tuple[Any, dict[str, Any]], want: tuple[Any, dict[str, Any]], tolerance: float) -> None:
    torch.testing.assert_close(got[0], want[0], rtol=tolerance, atol=0)
    assert got[1].keys() == want[1].keys()
    for name, gradient in want[1].items():
        atol = tolerance * float(gradient.abs().max())
        torch.testing.assert_close(got[1][name], gradient, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ran in the place of modules: the names of gates and losses."""
    ran: list[str] = []
    of_gate = gated.GatedProducts.__call__

    def products(self: Any, *args: Any) -> Any:
        ran.append(self.name.removesuffix("_of_products"))
        return of_gate(self, *args)

    def told(name: str) -> Any:
        run = getattr(heads, name)

        def loss(*args: Any, **named: Any) -> Any:
            ran.append(name)
            return run(*args, **named)

        return loss

    monkeypatch.setattr(gated.GatedProducts, "__call__", products)
    for name in (STORED, NOT_STORED):
        monkeypatch.setattr(heads, name, told(name))
    return ran


@pytest.mark.parametrize("stores", [True, False])
@pytest.mark.parametrize(
    ("act", "dtype", "tied"),
    [(act, torch.float64, act == "swiglu") for act in ACTS] + [("swiglu", torch.float32, False)],
    ids=str,
)
def test_a_models_loss_and_gradients_are_what_they_were(
    act: str, dtype: Any, tied: bool, stores: bool, calls: list[str]
) -> None:
    ids, labels = drawn()
    model = LlamaLike(lambda: Mlp(ACTS[act]), tied=tied).to(dtype)
    state = {name: (t.data_ptr(), t.clone()) for name, t in model.state_dict().items()}
    want, counted = trained(model, ids, labels), trained(model, ids, labels=labels, items=11)
    logits = model(ids)["logits"]

    report = ng.replace(model, products=True, stored_logits=stores)
    assert {name: str(what) for name, what in report.replaced.items()} == {
        "out": "cross_entropy(out(x), labels)"
        if stores
        else "linear_cross_entropy(x, out.weight, labels), in training",
        **{f"body.blocks.{i}.mlp": f"c({act}(b(x), a(x)))" for i in (0, 1)},
        **{f"body.blocks.{i}.norm": "rms_norm(x, weight, eps=1e-05)" for i in (0, 1)},
        **{f"body.blocks.{i}": "of few rows in inference: mlp.(a, b) of norm(x), x + mlp.c" for i in (0, 1)},
    }
    assert report.left == {}
    calls.clear()
    assert_same_step(trained(model, ids, labels), want, EXACT[dtype])
    assert calls == [act, act, STORED if stores else NOT_STORED]
    assert_same_step(trained(model, ids, labels=labels, items=11), counted, EXACT[dtype])
    torch.testing.assert_close(model(ids)["logits"], logits, rtol=EXACT[dtype], atol=EXACT[dtype])
    assert {name: (t.data_ptr(), t) for name, t in model.state_dict().items()}.keys() == state.keys()
    assert all(t.data_ptr() == state[name][0] for name, t in model.state_dict().items())

    assert ng.replace(model, products=True).replaced == {}  # not twice
    assert ng.restore(model) == 6 + 2 * (1 + 3)
    assert_same_step(trained(model, ids, labels), want, 0)


def test_without_products_norms_alone_are_replaced(calls: list[str]) -> None:
    model = LlamaLike()
    report = ng.replace(model)
    assert [*report.replaced] == ["body.blocks.0.norm", "body.blocks.1.norm"]
    assert report.left == {}
    trained(model, *drawn())
    assert calls == []


def test_logits_are_there_for_who_asks_and_no_tensor_before(calls: list[str]) -> None:
    ids, labels = drawn()
    model = LlamaLike().double()
    want = model(ids)["logits"]
    ng.replace(model, products=True)
    for out in (model(ids, labels), model.eval()(ids, labels)):
        assert type(out["logits"]) is torch.Tensor
        torch.testing.assert_close(out["logits"], want)
    assert calls[-1] == STORED
    ng.restore(model)
    ng.replace(model, products=True, stored_logits=False)
    calls.clear()
    for out in (model(ids), model.eval()(ids, labels)):
        assert type(out["logits"]) is torch.Tensor
        torch.testing.assert_close(out["logits"], want)
    assert NOT_STORED not in calls
    logits = model.train()(ids, labels)["logits"]
    assert isinstance(logits, Logits)
    assert logits.made is None
    assert (logits.shape, logits.ndim, logits.dim(), logits.size(1)) == (want.shape, 3, 3, 9)
    assert (logits.device, logits.dtype, logits.requires_grad) == (want.device, want.dtype, True)
    for read in (
        lambda z: z[:, -1],
        lambda z: z[..., 3],
        lambda z: z[:, :4],
        lambda z: z[0:1, 2:, :],
        lambda z: z[..., 2:],
        lambda z: z[labels >= 0],
        lambda z: 2 / (1 + z.exp()),
        lambda z: torch.softmax(z, dim=-1),
        lambda z: torch.stack((z, z)),
        lambda z: z - z * 2,
        lambda z: z.float().double().argmax(-1).double(),
        lambda z: z.view(-1),
        lambda z: z.flatten(0, 1),
        lambda z: z.to(torch.float32),
        lambda z: z[:, 1:].float().contiguous().view(-1, CLASSES)[2:],
        lambda z: F.cross_entropy(z.movedim(-1, 1), ids),
        lambda z: F.cross_entropy(z.flatten(0, 1), ids.flatten(), weight=torch.ones(CLASSES).double() / 2),
    ):
        found = read(model(ids, labels)["logits"])
        found = found.formed() if isinstance(found, Logits) else found
        torch.testing.assert_close(found, read(want), rtol=1e-6, atol=1e-6)


CHANGES = {
    "in place": lambda z: z.mul_(3),
    "a cast in place": lambda z: (z := z.float()).mul_(3),
    "a view in place": lambda z: (z.view(-1, CLASSES).mul_(3), z)[1],
    "an element": lambda z: (z.__setitem__((..., 3), 2.0), z)[1],
}


@pytest.mark.parametrize("stores", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_logits_that_a_model_begins_to_change_are_those_of_its_loss(change: str, stores: bool) -> None:
    class Changing(LlamaLike):
        begun = False

        def loss(self, logits: Any, *others: Any) -> Any:
            return super().loss(CHANGES[change](logits) if self.begun else logits, *others)

    ids, labels = drawn()
    model = Changing().double()
    ng.replace(model, products=True, stored_logits=stores)
    model.begun = True
    found = trained(model, ids, labels)
    ng.restore(model)
    assert_same_step(found, trained(model, ids, labels), 1e-6)


def test_logits_in_what_a_model_returns_are_tensors_however_deep() -> None:
    class Deep(LlamaLike):
        def forward(self, ids: Any, labels: Any = None) -> Any:
            found = super().forward(ids, labels)
            return found | {"more": [(found["logits"], {"last": found["logits"][:, -1:]})]}

    ids, labels = drawn()
    model = Deep().double()
    want = model(ids, labels)
    ng.replace(model, products=True)
    found = model(ids, labels)
    torch.testing.assert_close(found["more"], want["more"])


def test_logits_are_of_the_weight_that_they_were_to_be_of() -> None:
    ids, labels = drawn()
    model = LlamaLike().double()
    ng.replace(model, products=True, stored_logits=False)
    other = {name: p.detach() * 2 for name, p in model.named_parameters()}
    found = torch.func.functional_call(model, other, (ids, labels))["logits"]
    want = torch.func.functional_call(model, other, (ids,))["logits"]
    torch.testing.assert_close(found.formed(), want, rtol=1e-6, atol=1e-6)
    late = model(ids, labels)["logits"]
    model.out.weight.data = model.out.weight.data * 2
    with pytest.raises(UsageError, match="changed in place since"):
        late.sum()


class Checkpointed(LlamaLike):
    """Parts that a backward pass runs again: of the head, or of the loss."""

    def __init__(self, part: str, reentrant: bool) -> None:
        super().__init__()
        self.how = {"use_reentrant": reentrant}
        self.part = part

    def forward(self, ids: Any, labels: Any = None, items: Any = None) -> Any:
        run, again = checkpoint, self.part
        x = self.body(ids)[0]
        logits = run(self.out, x, **self.how) if again == "head" else self.out(x)
        if labels is None:
            return {"logits": logits}
        given = (logits, labels, items)
        return {"loss": run(self.loss, *given, **self.how) if again == "loss" else self.loss(*given), "logits": logits}


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any) -> Any:
        ctx.given = logits, labels
        return F.cross_entropy(logits, labels, ignore_index=-7)

    @staticmethod
    def backward(ctx: Any, dloss: Any) -> Any:
        logits, labels = ctx.given
        with torch.enable_grad():
            z = logits.detach().requires_grad_()
            (found,) = torch.autograd.grad(F.cross_entropy(z, labels, ignore_index=-7), z)
        return dloss * found, None


class OwnFunction(LlamaLike):
    def loss(self, logits: Any, labels: Any, items: Any) -> Any:
        assert items is None
        return Own.apply(logits.view(-1, CLASSES), labels.view(-1))


OTHERS = {
    "head, reentrant": (lambda: Checkpointed("head", True), True),
    "head": (lambda: Checkpointed("head", False), True),
    "loss, reentrant": (lambda: Checkpointed("loss", True), False),
    "loss": (lambda: Checkpointed("loss", False), True),
    "a function": (OwnFunction, False),
}


@pytest.mark.parametrize("stores", [True, False])
@pytest.mark.parametrize("name", OTHERS)
def test_a_loss_whose_gradient_logits_would_lose_is_left(name: str, stores: bool) -> None:
    made, is_ours = OTHERS[name]
    ids, labels = drawn()
    model = made().double()
    want = trained(model, ids, labels)
    report = ng.replace(model, products=True, stored_logits=stores)
    assert ("out" in report.replaced) == is_ours
    assert "other gradients" in report.left.get("its loss", "its loss has other gradients" if is_ours else "")
    assert_same_step(trained(model, ids, labels), want, 1e-6)


def test_what_is_examined_leaves_a_model_and_random_numbers_as_they_were() -> None:
    class Counting(LlamaLike):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(()))
            self.seen, self.drop = [], torch.nn.Dropout(0.2)

        def forward(self, ids: Any, labels: Any = None) -> Any:
            self.steps += 1
            self.seen.append(1)
            logits = self.out(self.drop(self.body(ids)[0]))
            return {"logits": logits} | ({} if labels is None else {"loss": self.loss(logits, labels, None)})

    ids, labels = drawn()
    model = Counting().double()
    torch.manual_seed(7)
    want = trained(model, ids, labels)
    torch.manual_seed(7)
    report = ng.replace(model, products=True)
    assert (int(model.steps), len(model.seen)) == (1, 1)
    assert "out" in report.replaced
    assert_same_step(trained(model, ids, labels), want, 1e-6)


def test_a_module_that_cannot_be_copied_is_left_and_the_others_are_not() -> None:
    locked, normed, plain = Mlp(), Mlp(), Mlp()
    locked.lock = threading.Lock()
    with warnings.catch_warnings(action="ignore"):
        torch.nn.utils.weight_norm(normed.a)
    norm, head = torch.nn.RMSNorm(WIDTH), LlamaLike()
    norm.lock = head.lock = locked.lock
    report = ng.replace(torch.nn.ModuleList([locked, normed, plain, norm, head]), products=True)
    assert [name for name, why in report.left.items() if "it cannot be copied" in why] == ["0", "1", "3"]
    assert {"2", "4.out"} <= report.replaced.keys()  # of a head's model the lock itself


class Uncopied(LlamaLike):
    """As a class of a library that shards models has it."""

    def __deepcopy__(self, _: Any) -> Any:
        raise AssertionError


def test_a_model_that_refuses_copies_of_itself_has_a_loss_of_ours() -> None:
    assert "out" in ng.replace(Uncopied(), products=True).replaced


@pytest.mark.parametrize("stores", [True, False])
def test_labels_of_another_dtype_are_those_of_torch(stores: bool) -> None:
    """Which takes bytes, and refuses the others."""
    ids, labels = drawn()
    model = LlamaLike().double()
    want = trained(model, ids, labels.clamp(min=0).to(torch.uint8))
    ng.replace(model, products=True, stored_logits=stores)
    assert_same_step(trained(model, ids, labels.clamp(min=0).to(torch.uint8)), want, 1e-6)
    with pytest.raises(RuntimeError, match="Long"):
        model(ids, labels.to(torch.int32))


def test_labels_that_float32_does_not_hold_are_left_to_torch() -> None:
    class Far(LlamaLike):
        ignored = -100

        def loss(self, logits: Any, labels: Any, _: Any) -> Any:
            labels = labels.where(labels >= 0, self.ignored).view(-1)
            return F.cross_entropy(logits.view(-1, CLASSES), labels, ignore_index=self.ignored)

    ids, labels = drawn()
    model = Far().double()
    ng.replace(model, products=True)
    model.ignored = (1 << 31) - 1
    found = trained(model, ids, labels)
    ng.restore(model)
    assert_same_step(found, trained(model, ids, labels), 1e-6)


def test_logits_that_are_asked_for_behind_a_step_of_the_optimizer_are_refused() -> None:
    ids, labels = drawn()
    model = LlamaLike()
    ng.replace(model, products=True, stored_logits=False)
    read, late = (model(ids, labels)["logits"] for _ in range(2))
    read.formed()
    with torch.no_grad():
        model.out.weight.mul_(2)
    assert read.sum().isfinite()
    with pytest.raises(UsageError, match="changed in place since"):
        late.sum()


@pytest.mark.parametrize("stores", [True, False])
def test_a_plain_mlp_is_left_and_a_tied_head_has_the_gradients_of_both(stores: bool, calls: list[str]) -> None:
    ids, labels = drawn()
    model, targets = GptLike().double(), labels.where(labels >= 0, -1).roll(1, -1)
    want = trained(model, ids, targets)
    report = ng.replace(model, products=True, stored_logits=stores)
    assert report.left == {
        f"body.blocks.{i}.mlp": "PlainMlp: it is no gated MLP of three torch.nn.Linear" for i in (0, 1)
    }
    blocks = [f"body.blocks.{i}" for i in (0, 1)]
    assert [*report.replaced] == ["out", *(f"{block}.norm" for block in blocks), *blocks]
    calls.clear()
    assert_same_step(trained(model, ids, targets), want, 1e-6)
    assert calls == [STORED if stores else NOT_STORED]
    assert type(model(ids, targets)[0]) is (torch.Tensor if stores else Logits)


@pytest.mark.parametrize("stores", [True, False])
def test_a_replaced_model_compiles_whole(stores: bool) -> None:
    ids, labels = drawn()
    model = LlamaLike().double()
    want, logits = trained(model, ids, labels), model(ids)["logits"].detach()
    ng.replace(model, products=True, stored_logits=stores)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert_same_step(trained(compiled, ids, labels), (want[0], {f"_orig_mod.{n}": g for n, g in want[1].items()}), 1e-6)
    found = compiled(ids, labels)["logits"]
    torch.testing.assert_close(found if stores else found.formed(), logits, rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids)["logits"], logits, rtol=1e-6, atol=1e-6)
    sites = {site.where: (site.function, site.kernel) for site in ng.sites()}
    assert sites["body.blocks.1.mlp"] == ("swiglu_of_products", True)


def test_copies_pickles_and_dtypes_keep_it(calls: list[str]) -> None:
    ids, labels = drawn()
    model = LlamaLike().double()
    want = trained(model, ids, labels)
    ng.replace(model, products=True)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert again.body.blocks[0].mlp.forward.module is again.body.blocks[0].mlp
        with torch.no_grad():  # of the copy alone
            model.out.weight.zero_()
            model.body.blocks[0].mlp.a.weight.zero_()
        calls.clear()
        assert_same_step(trained(again, ids, labels), want, 1e-6)
        assert calls == ["swiglu", "swiglu", STORED]
        model.load_state_dict(again.state_dict())
        assert ng.restore(again) == 6 + 2 * (1 + 3)
        assert_same_step(trained(again, ids, labels), want, 0)
    calls.clear()
    trained(model.float(), ids, labels)
    assert calls == ["swiglu", "swiglu", STORED]
    calls.clear()
    trained(model.bfloat16(), ids, labels)
    assert calls == []  # of 16 bits on the CPU: no formula of ours is as fast as torch's product


def test_a_forward_says_what_it_takes() -> None:
    """By which a trainer of transformers decides what columns of a data set to keep."""
    model = LlamaLike()
    want = inspect.signature(model.forward)
    ng.replace(model, products=True)
    assert inspect.signature(model.forward) == want


class Halved(Mlp):
    def forward(self, x: Any) -> Any:
        return super().forward(x) / 2


class Noisy(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.drop(super().forward(x))


class Configured(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.config = {"parts": 1}

    def forward(self, x: Any) -> Any:
        return super().forward(x) if self.config["parts"] == 1 else x


class Limited(Mlp):
    limit = 1000.0

    def forward(self, x: Any) -> Any:
        return self.c(self.a(x).clamp(-self.limit, self.limit) * self.act(self.b(x)))


class Masked(Mlp):
    def forward(self, x: Any, mask: Any = 1) -> Any:
        return super().forward(x) * mask


NO_MLPS = [
    (lambda: Mlp(torch.relu), "its forward is none of down(swiglu(gate(x), up(x)))"),
    (lambda: Mlp(bias=True), "its linear layers have biases"),
    (lambda: Mlp(hidden=100), "its weight [64, 100] is not of whole tiles of 64"),
    (Halved, "its forward is none of"),
    (Limited, "its forward is none of"),
    (Noisy, "its forward does in training what it does not outside of it"),
    (Configured, "its forward reads what may change: config"),
    (Masked, "its forward takes more than one tensor"),
]


@pytest.mark.parametrize(("made", "why"), NO_MLPS)
def test_what_is_no_gated_mlp_of_ours_is_left_with_its_reason(made: Any, why: str) -> None:
    mlp = made()
    report = ng.replace(torch.nn.Sequential(mlp), products=True)
    assert report.replaced == {}
    assert report.left["0"].startswith(f"{type(mlp).__name__}: {why}")
    assert "forward" not in vars(mlp)


class Capped(LlamaLike):
    cap = 30.0


class Penalized(LlamaLike):
    def loss(self, logits: Any, labels: Any, items: Any) -> Any:
        return 2 * super().loss(logits, labels, items)


class ByHand(LlamaLike):
    def loss(self, logits: Any, labels: Any, items: Any) -> Any:
        assert items is None
        return F.nll_loss(logits.log_softmax(-1).view(-1, CLASSES), labels.view(-1), ignore_index=-7)


class Biased(LlamaLike):
    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(WIDTH, CLASSES)


class Odd(LlamaLike):
    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(WIDTH, CLASSES - 1, bias=False)


class Listed(LlamaLike):
    def forward(self, ids: Any, labels: Any = None) -> Any:
        return list(super().forward(ids, labels).values())


class TwoHeads(LlamaLike):
    def __init__(self) -> None:
        super().__init__()
        self.other = torch.nn.Linear(WIDTH, 1, bias=False)


CHANGED = "its logits are changed on the way to its loss, or that is not torch's cross_entropy"
NO_LOSSES = [
    (Capped, CHANGED),
    (ByHand, CHANGED),
    (Listed, "its forward returns a list with 0 losses"),
    (Biased, "its head out has a bias"),
    (Odd, "its weight [191, 64] is not of whole tiles of 64"),
    (TwoHeads, "it has 2 linear layers of its own, and a head is one"),
]


@pytest.mark.parametrize(("made", "why"), NO_LOSSES)
def test_a_loss_that_is_not_ours_is_left_with_its_reason(made: Any, why: str) -> None:
    model = made()
    report = ng.replace(model, products=True)
    assert report.left == {"its loss": f"{made.__name__}: {why}"}
    assert "forward" not in vars(model)
    assert "forward" not in vars(model.out)


def test_what_a_model_makes_of_the_loss_is_its_own(calls: list[str]) -> None:
    ids, labels = drawn()
    model = Penalized().double()
    want = trained(model, ids, labels)
    ng.replace(model, products=True)
    assert_same_step(trained(model, ids, labels), want, 1e-6)
    assert calls[-1] == STORED


class Doubled(torch.nn.Linear):
    def forward(self, x: Any) -> Any:
        return 2 * super().forward(x)


LATER = {
    "a hook of the gate": lambda m: m.b.register_forward_hook(lambda _m, _x, y: 2 * y),
    "a bias": lambda m: setattr(m.a, "bias", torch.nn.Parameter(torch.ones(HIDDEN, dtype=torch.float64))),
    "another activation": lambda m: setattr(m, "act", torch.relu),
    "an adapter": lambda m: setattr(m, "a", Doubled(WIDTH, HIDDEN, bias=False).double()),
    "a forward of a layer": lambda m: setattr(m.a, "forward", lambda x: 2 * F.linear(x, m.a.weight)),
    "a parametrization": lambda m: torch.nn.utils.parametrizations.weight_norm(m.a),
}


@pytest.mark.parametrize("change", LATER)
def test_an_mlp_that_is_changed_later_computes_what_it_did_without_us(change: str, calls: list[str]) -> None:
    plain = Mlp().double()
    module, x = copy.deepcopy(plain), torch.randn(3, WIDTH, dtype=torch.float64)
    ng.replace(torch.nn.Sequential(module), products=True)
    calls.clear()
    torch.testing.assert_close(module(x), plain(x))
    assert calls == ["swiglu"]
    for one in (plain, module):
        torch.manual_seed(5)
        LATER[change](one)
    assert torch.equal(module(x), plain(x))
    assert calls == ["swiglu"]


def test_down_may_be_any_layer_and_its_hooks_run(calls: list[str]) -> None:
    plain = Mlp().double()
    module, x = copy.deepcopy(plain), torch.randn(3, WIDTH, dtype=torch.float64)
    ng.replace(torch.nn.Sequential(module), products=True)
    for one in (plain, module):
        torch.manual_seed(5)
        one.c = Doubled(HIDDEN, WIDTH).double()
        one.c.register_forward_hook(lambda _m, _x, y: y + 1)
    calls.clear()
    torch.testing.assert_close(module(x), plain(x))
    assert calls == ["swiglu"]


def test_who_looks_on_sees_the_modules_own_operations(calls: list[str]) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    module, x = Mlp(), torch.randn(3, WIDTH)
    with FlopCounterMode(display=False) as before:
        module(x)
    ng.replace(torch.nn.Sequential(module), products=True)
    calls.clear()
    with FlopCounterMode(display=False) as behind:
        want = module(x)
    assert behind.get_total_flops() == before.get_total_flops()
    torch.testing.assert_close(torch.vmap(module)(x), want)
    torch.testing.assert_close(torch.func.jvp(module, (x,), (x,))[0], want)
    assert copy.deepcopy(module).to("meta")(x.to("meta")).shape == want.shape
    exported = torch.export.export(torch.nn.Sequential(module), (x,)).module()
    torch.testing.assert_close(exported(x), want)
    assert calls == []
    with warnings.catch_warnings(action="ignore"):
        torch.testing.assert_close(torch.jit.trace(module, x)(x), want)


def test_a_mode_of_functions_sees_the_modules_own_operations(calls: list[str]) -> None:
    class Watch(torch.overrides.TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

        def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(func)
            return func(*args, **(kwargs or {}))

    module, x = Mlp(), torch.randn(3, WIDTH)
    with Watch() as before:
        module(x)
    ng.replace(torch.nn.Sequential(module), products=True)
    calls.clear()
    with Watch() as behind:
        module(x)
    assert calls == []
    assert [f for f in behind.seen if f is F.linear] == [f for f in before.seen if f is F.linear] == [F.linear] * 3
    with torch.device("cpu"):  # a mode of functions, too, that changes none that takes tensors
        module(x)
    assert calls == ["swiglu"]


def test_hooks_of_gradients_are_not_called_by_the_examination() -> None:
    module = Mlp()
    seen: list[str] = []
    module.c.register_full_backward_hook(lambda *_: seen.append("after"))
    module.c.register_full_backward_pre_hook(lambda *_: seen.append("before"))
    assert list(ng.replace(torch.nn.Sequential(module), products=True).replaced) == ["0"]
    assert seen == []
    module(torch.randn(3, WIDTH, requires_grad=True)).sum().backward()
    assert seen == ["before", "after"]


def test_an_mlp_that_cuts_gradients_is_left() -> None:
    class Cut(Mlp):
        def forward(self, x: Any) -> Any:
            return super().forward(x.detach())

    class CutOutsideOfTraining(Mlp):
        def forward(self, x: Any) -> Any:
            return super().forward(x if self.training else x.detach())

    for module in (Cut(), CutOutsideOfTraining()):
        report = ng.replace(torch.nn.Sequential(module), products=True)
        assert report.left["0"] == f"{type(module).__name__}: its gradients are not those of what its forward computes"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_mlp_is_found_under_autocast(dtype: Any) -> None:
    with torch.autocast("cpu", dtype):
        assert list(ng.replace(torch.nn.Sequential(Mlp()), products=True).replaced) == ["0"]


def test_under_autocast_products_are_those_of_its_dtype() -> None:
    """Of float32 weights; on the CPU in bf16, which is left to torch: the operator itself is asked."""
    torch.manual_seed(1)
    x, w_gate, w_up = (torch.randn(n, WIDTH, requires_grad=True) for n in (5, 24, 24))
    with torch.autocast("cpu", torch.bfloat16):
        y = gated.gated_products("swiglu")(x, w_gate, w_up)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    low = [t.detach().bfloat16().double().requires_grad_() for t in (x, w_gate, w_up)]
    want = F.silu(low[0] @ low[1].T) * (low[0] @ low[2].T)
    want.sum().backward()
    torch.testing.assert_close(y.double(), want, rtol=1e-2, atol=1e-2)
    for own, exact in zip((x, w_gate, w_up), low, strict=True):
        assert own.grad.dtype == torch.float32
        torch.testing.assert_close(own.grad.double(), exact.grad, rtol=0, atol=0.02 * float(exact.grad.abs().max()))


@pytest.mark.parametrize("gate", gated.GATES)
def test_each_gradient_of_gated_products_is_found_alone(gate: str) -> None:
    torch.manual_seed(1)
    made = gated.gated_products(gate)
    for leading in ((2, 3), ()):
        given = [torch.randn(*n, 12, dtype=torch.float64) for n in (leading, (8,), (8,))]
        for asked in range(1, 8):
            args = [t.clone().requires_grad_(bool(asked >> i & 1)) for i, t in enumerate(given)]
            assert torch.autograd.gradcheck(made, args)
    args = [t.clone().requires_grad_() for t in given]
    with pytest.raises(UsageError, match="a first derivative and no second one"):
        torch.autograd.gradgradcheck(made, args)


def test_what_is_worth_a_kernel_is_decided_by_device_dtype_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cuda:
        """What is asked of a tensor on a GPU."""

        is_cuda = True

        def __init__(self, *shape: int, dtype: Any = torch.bfloat16) -> None:
            self.shape, self.dtype, self.device = torch.Size(shape), dtype, torch.device("cuda", 0)

        def numel(self) -> int:
            return self.shape.numel()

    weight = Cuda(HIDDEN, WIDTH)
    for major, is_ours in (((9, 0), True), ((8, 0), False), ((10, 0), False)):
        monkeypatch.setattr(choosing, "_hopper", {})
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=major: found)
        found = [
            rows for rows in (1, 16, 17, 256, 1023, 1024, 9000) if choosing.is_worth_products(Cuda(rows, WIDTH), weight)
        ]
        assert found == ([1, 16, 1024, 9000] if is_ours else [])
    monkeypatch.setattr(choosing, "_hopper", {0: True})
    assert not choosing.is_worth_products(Cuda(4, WIDTH), weight, of_few=False)
    assert choosing.is_worth_products(Cuda(4, WIDTH), weight, of_many=False)
    assert not choosing.is_worth_products(Cuda(1024, WIDTH), weight, of_many=False)
    assert not choosing.is_worth_products(Cuda(4, WIDTH, dtype=torch.float32), Cuda(64, WIDTH, dtype=torch.float32))
    assert not choosing.is_worth_products(Cuda(4, WIDTH, dtype=torch.float32), weight)
    assert not choosing.is_worth_products(Cuda(4, HIDDEN), weight)
    assert not choosing.is_worth_products(torch.randn(4, WIDTH), weight)


def test_the_products_of_a_training_step_are_one_kernel_and_those_of_an_other_one_too(made: list[Any]) -> None:
    """By the executor of the CPU."""
    torch.manual_seed(2)
    x, w_gate, w_up = (torch.randn(n, WIDTH) for n in (6, HIDDEN, HIDDEN))
    own = gated.gated_products("swiglu")
    want = F.silu(x @ w_gate.T) * (x @ w_up.T)
    torch.testing.assert_close(own(x, w_gate, w_up), want, rtol=1e-4, atol=1e-4)
    assert [sorted(kernel.problem.results) for kernel in made] == [["y"]]
    y = own(x, w_gate.requires_grad_(), w_up)
    torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)
    y.sum().backward()
    of_formula = torch.func.grad(lambda w: (F.silu(x @ w.T) * (x @ w_up.T)).sum())(w_gate)
    torch.testing.assert_close(w_gate.grad, of_formula, rtol=1e-4, atol=1e-4)
    forward, gate = made[1:]
    assert sorted(forward.problem.results) == ["gate", "up", "y"]
    assert {use.of for use in gate.problem.tensors if use.of} >= {"gate", "up"}


MODELS = {
    "Llama": ({"num_key_value_heads": 2}, "swiglu", None),
    "Mistral": ({"num_key_value_heads": 2}, "swiglu", None),
    "Qwen3": ({"num_key_value_heads": 2, "head_dim": 16}, "swiglu", None),
    "Gemma": ({"num_key_value_heads": 2, "head_dim": 16}, "geglu_tanh", None),
    "Gemma2": ({"num_key_value_heads": 2, "head_dim": 16}, "geglu_tanh", CHANGED),
    "GPT2": ({"bos_token_id": 1, "eos_token_id": 1, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}, "", None),
}


@pytest.mark.parametrize("family", MODELS)
def test_models_of_transformers_keep_losses_gradients_and_tokens(family: str, calls: list[str]) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    options, gate, why = MODELS[family]
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128}
    sizes |= {} if family == "GPT2" else {"intermediate_size": 128}
    model = getattr(transformers, f"{family}{'LMHeadModel' if family == 'GPT2' else 'ForCausalLM'}")(
        getattr(transformers, f"{family}Config")(**sizes, **options)
    )
    model = model.double().train()
    torch.manual_seed(3)
    ids = torch.randint(2, 128, (2, 9))
    labels = ids.where(ids > 40, -100)
    given = {"input_ids": ids, "labels": labels, "use_cache": False}
    want, counted = trained(model, **given), trained(model, **given, num_items_in_batch=torch.tensor(7))
    with torch.no_grad():
        evaluated = model.eval()(**given)
        tokens = model.generate(ids, max_new_tokens=4, do_sample=False)
    report = ng.replace(model, products=True)
    mlps = [what.function for what in report.replaced.values() if isinstance(what, gating.GatedMlp)]
    assert mlps == ([gate, gate] if gate else [])
    mine = {} if gate else {f"transformer.h.{i}.mlp" for i in (0, 1)}
    assert report.left.keys() == {*mine, *(["its loss"] if why else [])}
    calls.clear()
    assert_same_step(trained(model.train(), **given), want, 1e-5)
    assert calls == [*mlps, *([] if why else [STORED])]
    assert_same_step(trained(model, **given, num_items_in_batch=torch.tensor(7)), counted, 1e-5)
    with torch.no_grad():
        again = model.eval()(**given)
        torch.testing.assert_close(again.logits, evaluated.logits, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(again.loss, evaluated.loss, rtol=1e-5, atol=1e-5)
        assert torch.equal(model.generate(ids, max_new_tokens=4, do_sample=False), tokens)
    ng.restore(model)
    assert_same_step(trained(model.train(), **given), want, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("stores", [True, False])
def test_on_a_gpu_a_models_step_is_as_near_to_float64_as_it_was(stores: bool, calls: list[str]) -> None:
    torch.manual_seed(4)
    ids = torch.randint(0, CLASSES, (4, 512), device="cuda")
    model = LlamaLike(lambda: Mlp(hidden=HIDDEN)).cuda().bfloat16()
    exact = copy.deepcopy(model).double()
    truth = trained(exact, ids, ids)
    plain = trained(model, ids, ids)
    ng.replace(model, products=True, stored_logits=stores)
    calls.clear()
    found = trained(model, ids, ids)
    ours = ["swiglu", "swiglu", STORED if stores else NOT_STORED]
    assert calls == (ours if torch.cuda.get_device_capability() == (9, 0) else [])

    def off(step: Any) -> float:
        total = sum(float((g.double() - truth[1][name]).square().sum()) for name, g in step[1].items())
        return (total / sum(float(g.square().sum()) for g in truth[1].values())) ** 0.5

    assert off(found) <= 1.1 * off(plain)
    assert float((found[0] - truth[0]).abs()) <= max(1.1 * float((plain[0] - truth[0]).abs()), 1e-3)
    with torch.no_grad():
        few = model.eval()(ids[:1, :3])["logits"]
        assert (few.double() - exact(ids[:1, :3])["logits"]).abs().max() <= 0.05 * few.abs().max()


def test_slices_of_the_loss_hold_for_the_classes_here() -> None:
    assert linear_loss.slice_of(CLASSES) >= CLASSES  # so that the tests above run one


def test_another_thread_sees_logits_that_are_a_tensor_while_a_loss_is_computed() -> None:
    inside, done = threading.Event(), threading.Event()

    class Waiting(LlamaLike):
        def loss(self, *args: Any) -> Any:
            if threading.current_thread().name == "first":
                inside.set()
                assert done.wait(60)
            return super().loss(*args)

    ids, labels = drawn()
    model = Waiting().double()
    assert "out" in ng.replace(model, products=True).replaced
    first = threading.Thread(target=lambda: model(ids, labels), name="first")
    first.start()
    try:
        assert inside.wait(60)
        assert type(model(ids)["logits"]) is torch.Tensor
        assert type(model.out(torch.randn(2, WIDTH, dtype=torch.float64))) is torch.Tensor
    finally:
        done.set()
        first.join()


def test_modules_that_change_what_they_are_given_are_left() -> None:
    class Zeroing(Mlp):
        def forward(self, x: Any) -> Any:
            found = super().forward(x)
            x.zero_()
            return found

    class InPlace(torch.nn.RMSNorm):
        def forward(self, x: Any) -> Any:
            return x.copy_(super().forward(x))

    why = "its forward changes what it is given"
    model = torch.nn.Sequential(InPlace(WIDTH, eps=1e-5), Zeroing())
    assert ng.replace(model, products=True).left == {"0": f"InPlace: {why}", "1": f"Zeroing: {why}"}


def _of_other_class(one: Any, name: str, of: Any) -> None:
    one.__class__ = type("Other", (type(one),), {name: property(of)})


HIDDEN_BY: dict[str, Any] = {
    "an attribute for a product": lambda one: one.__dict__.update(a=one.b),
    "an attribute for the activation": lambda one: one.__dict__.update(act=torch.tanh),
    "a property for a product": lambda one: _of_other_class(one, "a", lambda it: it.b),
    "a property for the activation": lambda one: _of_other_class(one, "act", lambda _: torch.tanh),
}


@pytest.mark.parametrize("what", HIDDEN_BY)
def test_what_hides_a_child_is_what_runs(what: str) -> None:
    torch.manual_seed(4)
    mlp, x = Mlp(act=torch.nn.SiLU()), torch.randn(5, WIDTH)
    plain, before = copy.deepcopy(mlp), mlp(x)
    assert ng.replace(mlp, products=True).replaced
    for one in (mlp, plain):
        HIDDEN_BY[what](one)
    assert not torch.allclose(plain(x), before)
    torch.testing.assert_close(mlp(x), plain(x))
