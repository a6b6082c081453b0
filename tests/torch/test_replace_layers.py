"""Layers whose norms and residuals go into their products where rows are few and nothing has a gradient."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils._pytree import tree_leaves  # noqa: E402

import normgen.torch as ng  # noqa: E402
from normgen.choice.first import default_schedule  # noqa: E402
from normgen.device import target  # noqa: E402
from normgen.errors import UsageError  # noqa: E402
from normgen.measure.cpu_check import check_on_cpu, has_compiler  # noqa: E402
from normgen.pipeline import emit  # noqa: E402
from normgen.program.source import problem_for  # noqa: E402
from normgen.schedule.legality import refusal  # noqa: E402
from normgen.torch.functional import function  # noqa: E402
from normgen.torch.replacing import pending  # noqa: E402
from normgen.torch.replacing.gating import GATES  # noqa: E402
from normgen.torch.replacing.normed import NORMS, products_behind  # noqa: E402
from normgen.torch.replacing.patched import is_patched  # noqa: E402
from normgen.torch.replacing.pending import Normed, Pending, Product  # noqa: E402
from tests.torch.test_products import by_kernels_of_the_cpu  # noqa: E402

F = torch.nn.functional
WIDTH, HEADS, HIDDEN = 64, 2, 192
WHOLE = [
    "att.(a) of one(x)",
    "att.(b, c) of one(x)",
    "mlp.(gate, up) of two(x)",
    "x + att.d",
    "x + mlp.down",
]
RAN = ["rms_norm_1", "rms_norm_2", "linear_add", "rms_norm_swiglu", "linear_add"]


def linear(inner: int, cols: int, bias: bool = False) -> Any:
    return torch.nn.Linear(inner, cols, bias=bias)


class Attention(torch.nn.Module):
    """Queries of two heads, keys and values of one; what it is given beside rows has no stand-in."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.d = linear(HEADS * WIDTH, WIDTH)
        self.a, self.b, self.c = linear(WIDTH, HEADS * WIDTH, bias), linear(WIDTH, WIDTH, bias), linear(WIDTH, WIDTH)

    def forward(self, x: Any, turn: Any, scale: float = 0.125) -> Any:
        q, k, v = (one(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for one in (self.a, self.b, self.c))
        q, k = q * turn, k * turn
        weights = torch.softmax(scale * (q @ k.transpose(-1, -2)), -1)
        return self.d((weights @ v).transpose(1, 2).flatten(2)), weights


class Mlp(torch.nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.gate, self.up, self.down = linear(WIDTH, HIDDEN), linear(WIDTH, HIDDEN), linear(HIDDEN, WIDTH, bias)

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(torch.nn.Module):
    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.one, self.two = (torch.nn.RMSNorm(WIDTH, eps=1e-5) for _ in range(2))
        self.att, self.mlp = Attention(bias), Mlp()

    def forward(self, x: Any, turn: Any = None) -> Any:
        y, _ = self.att(x=self.one(x), turn=turn)
        x = x + y
        return x + self.mlp(self.two(x))


class Model(torch.nn.Module):
    def __init__(self, made: Callable[[], Any] = Layer, count: int = 1) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([made() for _ in range(count)])

    def forward(self, x: Any, turn: Any) -> Any:
        for layer in self.layers:
            x = layer(x, turn)
        return x


def drawn(made: Callable[[], Any] = Layer, count: int = 1, dtype: Any = None) -> tuple[Any, Any, Any]:
    """A model whose norms have weights, and what it is given."""
    torch.manual_seed(3)
    model = Model(made, count)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and "bias" not in name:
                parameter.copy_(torch.rand(WIDTH) + 0.5)
    given = 3 * torch.randn(2, 5, WIDTH), torch.randn(WIDTH)
    return model.to(dtype), *(t.to(dtype) for t in given)


def assert_as_exact(got: Any, model: Any, *given: Any, factor: float = 1.5) -> None:
    """No further from the float64 model than the model itself, but for a few roundings."""
    with torch.no_grad():
        want, exact = model(*given), copy.deepcopy(model).double()(*(t.double() for t in given))
    slack = 4 * torch.finfo(got.dtype).eps * exact.abs().max()
    assert got.dtype == want.dtype
    assert (got - exact).abs().max() <= factor * (want - exact).abs().max() + slack


_ran: list[str] = []


def replaced(model: Any) -> Any:
    report = ng.replace(model, products=True)
    _ran.clear()  # of what was examined
    return report


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels of layers that ran, and what was formed after all."""
    names = _ran
    names.clear()
    call, form = pending.called, Pending.formed

    def called(of: Any, *args: Any) -> Any:
        names.append(of.spec.name.removesuffix("_of_products"))
        return call(of, *args)

    def formed(self: Any, **named: Any) -> Any:
        if self.made is None:
            names.append(f"formed {type(self).__name__}")
        return form(self, **named)

    monkeypatch.setattr(pending, "called", called)
    monkeypatch.setattr(Pending, "formed", formed)
    return names


def of_layer(report: Any, name: str = "layers.0") -> list[str]:
    said = str(report.replaced[name])
    assert said.startswith("of few rows in inference: ")
    return (
        said.removeprefix("of few rows in inference: ")
        .replace("(b, c)", "(b; c)")
        .replace("(gate, up)", "(gate; up)")
        .split(", ")
    )


def parts(*said: str) -> list[str]:
    return [one.replace(", ", "; ") for one in said]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("bias", [False, True])
def test_norms_and_residuals_of_few_rows_go_into_their_products(bias: bool, mode: Any, ran: list[str]) -> None:
    model, *given = drawn(lambda: Layer(bias), count=2)
    plain = copy.deepcopy(model)
    state = {name: t.data_ptr() for name, t in model.state_dict().items()}
    report = replaced(model)
    assert of_layer(report) == of_layer(report, "layers.1") == parts(*WHOLE)
    assert report.left == {}
    with mode():
        got = model(*given)
    assert type(got) is torch.Tensor
    assert ran == 2 * RAN
    assert_as_exact(got, plain, *given)
    assert {name: t.data_ptr() for name, t in model.state_dict().items()} == state
    assert all(m.forward.opened is None for m in model.modules() if is_patched(m))

    assert replaced(model).replaced == {}  # not twice
    assert ng.restore(model) == 2 * (2 + 1 + 1 + 7)
    assert not any("forward" in vars(m) for m in model.modules())
    with mode():
        assert torch.equal(model(*given), plain(*given))


def test_a_step_with_gradients_is_that_of_the_modules(ran: list[str]) -> None:
    model, *given = drawn()
    plain = copy.deepcopy(model)
    replaced(model)
    for one in (model, plain):
        one(*given).square().mean().backward()
    assert ran == []
    for got, want in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=0, atol=1e-5 * float(want.grad.abs().max()))
    frozen = model.requires_grad_(False)  # nothing has a gradient, but somebody records
    assert_as_exact(frozen(*given), plain, *given)
    assert ran == []
    with torch.no_grad():
        frozen(*given)
    assert ran == RAN


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler builds the executor")
def test_kernels_of_a_layer_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows, turn = drawn(lambda: Layer(bias=True))
    given = rows[:1, :3], turn  # sizes that no other test has: formulas are remembered
    plain = copy.deepcopy(model)
    replaced(model)
    made = by_kernels_of_the_cpu(monkeypatch)
    with torch.no_grad():
        got = model(*given)
    assert [problem.spec.name.removesuffix("_of_products") for problem in made] == RAN
    assert_as_exact(got, plain, *given)


def test_a_replaced_layer_compiles_whole() -> None:
    model, *given = drawn(count=2)
    plain = copy.deepcopy(model)
    replaced(model)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert_as_exact(compiled(*given), plain, *given)
    sites = {site.where: site.function for site in ng.sites()}
    found = [
        sites[f"layers.1.{name}"].removesuffix("_of_products")
        for name in ("att.a", "att.b", "att.d", "mlp", "mlp.down")
    ]
    assert found == RAN
    compiled(*given).sum().backward()
    assert model.layers[0].att.b.weight.grad is not None


def test_copies_and_pickles_keep_it(ran: list[str]) -> None:
    model, *given = drawn()
    plain = copy.deepcopy(model)
    replaced(model)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():  # of the copy alone
            model.layers[0].att.c.weight.zero_()
            ran.clear()
            got = again(*given)
        assert ran == RAN
        assert_as_exact(got, plain, *given)
        assert ng.restore(again) == 11


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float16_keeps_its_norms(dtype: Any, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not hold a large row times a weight; a norm divides the row first."""
    monkeypatch.setattr(pending, "is_worth_products", lambda _x, _w, *, of_many=True: not of_many)
    model, *given = drawn(dtype=dtype)
    plain = copy.deepcopy(model)
    replaced(model)
    with torch.no_grad():
        got = model(*given)
    assert ran == (RAN if dtype == torch.bfloat16 else 2 * ["linear_add"])
    assert_as_exact(got, plain, *given)


def test_autocast_and_who_looks_on_see_the_modules_own_operations(ran: list[str]) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model, *given = drawn()
    replaced(model)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            model(*given)
        with FlopCounterMode(display=False):
            model(*given)
        torch.vmap(model, in_dims=(0, None))(given[0][:, None], given[1])
        assert model.to("meta")(*(t.to("meta") for t in given)).shape == given[0].shape
    assert ran == []


class Adapter(torch.nn.Module):
    """As LoRA's: a layer, and what is added to it."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base, self.low = base, torch.nn.Parameter(torch.randn(2, base.in_features))
        self.high = torch.nn.Parameter(torch.randn(base.out_features, 2))

    @property
    def weight(self) -> Any:
        return self.base.weight

    def forward(self, x: Any) -> Any:
        found = self.base(x)
        return found + F.linear(F.linear(x.to(self.low.dtype), self.low), self.high)


class Twice(torch.nn.Parameter):
    """A weight of another type, as one that is quantised."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_function__(func, types, args, kwargs or {})
        return 2 * found if func is F.linear else found


class Doubled(torch.nn.Linear):
    def forward(self, x: Any) -> Any:
        return 2 * super().forward(x)


class Other(torch.nn.Module):
    def forward(self, x: Any, turn: Any) -> Any:
        return 2 * x * turn, None


class Twofold(Layer):
    def forward(self, x: Any, turn: Any = None) -> Any:
        return 2 * super().forward(x, turn)


class Ungated(Mlp):
    def forward(self, x: Any) -> Any:
        return self.down(self.up(x))


def other(layer: Any, *, double: bool = True) -> None:
    layer.weight = torch.nn.Parameter(2 * layer.weight.detach() if double else layer.weight.detach())


def in_place(module: Any) -> None:
    with torch.no_grad():
        module.weight.mul_(2)


ALL, NO_FIRST, NO_SECOND = RAN, RAN[2:], [*RAN[:3], "linear_add"]
LATER: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "a hook of the norm": (lambda m: m.one.register_forward_hook(lambda _m, _x, y: 2 * y), NO_FIRST),
    "a hook in front of attention": (
        lambda m: m.att.register_forward_pre_hook(lambda _, x: x, with_kwargs=False),
        ["rms_norm_swiglu", "linear_add"],
    ),
    "a hook of attention": (
        lambda m: m.att.register_forward_hook(lambda _m, _x, y: (2 * y[0], None)),
        ["rms_norm_swiglu", "linear_add"],
    ),
    "a hook of queries": (lambda m: m.att.a.register_forward_hook(lambda _m, _x, y: 2 * y), NO_FIRST),
    "a hook of keys": (
        lambda m: m.att.b.register_forward_hook(lambda _m, _x, y: 2 * y),
        NO_FIRST,
    ),
    "a hook of values": (
        lambda m: m.att.c.register_forward_hook(lambda _m, _x, y: 2 * y),
        NO_FIRST,
    ),
    "a hook of the last": (lambda m: m.att.d.register_forward_hook(lambda _m, _x, y: 2 * y), [*RAN[:2], *RAN[3:]]),
    "a hook of the gate": (lambda m: m.mlp.gate.register_forward_hook(lambda _m, _x, y: 2 * y), NO_SECOND),
    "a hook of down": (lambda m: m.mlp.down.register_forward_hook(lambda _m, _x, y: 2 * y), RAN[:4]),
    "an adapter of queries": (lambda m: setattr(m.att, "a", Adapter(m.att.a)), NO_FIRST),
    "an adapter of values": (
        lambda m: setattr(m.att, "c", Adapter(m.att.c)),
        ["rms_norm_1", "rms_norm_2", "formed Normed", *RAN[2:]],
    ),
    "a bias of one number": (
        lambda m: setattr(m.att.b, "bias", torch.nn.Parameter(torch.ones(1))),
        ["rms_norm_1", "formed Normed", *RAN[2:]],
    ),
    "a bias of keys": (lambda m: setattr(m.att.b, "bias", torch.nn.Parameter(torch.ones(WIDTH))), ALL),
    "a bias of the last": (
        lambda m: setattr(m.att.d, "bias", torch.nn.Parameter(torch.ones(WIDTH))),
        [*RAN[:2], *RAN[3:]],
    ),
    "other weights": (lambda m: (other(m.att.a), other(m.att.c), other(m.mlp.down)), ALL),
    "other data": (lambda m: setattr(m.att.c.weight, "data", torch.ones(WIDTH, WIDTH)), ALL),
    "weights in place": (lambda m: (in_place(m.att.b), in_place(m.one)), ALL),
    "weights that are tied": (lambda m: setattr(m.att.c, "weight", m.att.b.weight), ALL),
    "another type of weights": (
        lambda m: setattr(m.att.c, "weight", Twice(m.att.c.weight.detach())),
        ["rms_norm_1", "rms_norm_1", "formed Normed", *RAN[2:]],
    ),
    "a parametrization": (
        lambda m: torch.nn.utils.parametrizations.weight_norm(m.att.b),
        ["rms_norm_1", "formed Normed", *RAN[2:]],
    ),
    "another eps": (lambda m: setattr(m.one, "eps", 0.5), ALL),
    "another norm": (lambda m: setattr(m, "one", torch.nn.LayerNorm(WIDTH)), NO_FIRST),
    "another attention": (lambda m: setattr(m, "att", Other()), ["rms_norm_swiglu", "linear_add"]),
    "another activation": (
        lambda m: setattr(m.mlp, "forward", types.MethodType(lambda mlp, x: mlp.down(mlp.up(x)), m.mlp)),
        [*RAN[:3], "rms_norm_2", "linear_add"],
    ),
    "a forward of attention": (
        lambda m: setattr(m.att, "forward", lambda x, turn: (2 * x * turn, 0)),
        ["rms_norm_swiglu", "linear_add"],
    ),
    "a forward of values": (
        lambda m: setattr(m.att.c, "forward", lambda x: 2 * x),
        ["rms_norm_1", "rms_norm_1", "formed Normed", *RAN[2:]],
    ),
    "another width of values": (
        lambda m: setattr(m.att, "c", torch.nn.Linear(WIDTH, HEADS * WIDTH)),
        ["rms_norm_1", "rms_norm_2", "formed Normed", *RAN[2:]],
    ),
    "another shape of values": (
        lambda m: setattr(m.att.c, "weight", torch.nn.Parameter(torch.randn(HEADS * WIDTH, WIDTH) / 8)),
        ["rms_norm_1", *RAN[:1], "rms_norm_1", *RAN[2:]],
    ),
    "another class": (lambda m: setattr(m, "__class__", Twofold), ALL),
    "another class of the last": (lambda m: setattr(m.att.d, "__class__", Doubled), [*RAN[:2], *RAN[3:]]),
    "another class of values": (
        lambda m: setattr(m.att.c, "__class__", Doubled),
        ["rms_norm_1", "rms_norm_1", "formed Normed", *RAN[2:]],
    ),
    "another class of the MLP": (
        lambda m: setattr(m.mlp, "__class__", Ungated),
        [*RAN[:3], "rms_norm_2", "linear_add"],
    ),
    "nothing": (lambda _: None, ALL),
}


@pytest.mark.parametrize("change", LATER)
def test_a_layer_that_is_changed_later_computes_what_it_did_without_us(change: str, ran: list[str]) -> None:
    model, *given = drawn()
    plain = copy.deepcopy(model)
    replaced(model)
    later, kernels = LATER[change]
    for one in (model, plain):
        torch.manual_seed(5)
        later(one.layers[0])
    with torch.no_grad():
        got = model(*given)
    assert type(got) is torch.Tensor
    assert ran == kernels
    assert_as_exact(got, plain, *given)


def test_an_attribute_in_the_place_of_the_mlp_is_what_runs_and_its_hook_sees_a_tensor(ran: list[str]) -> None:
    model, *given = drawn()
    plain = copy.deepcopy(model)
    replaced(model)
    seen = []
    for one in (model, plain):
        torch.manual_seed(5)
        one.layers[0].__dict__["mlp"] = other = Mlp()
        other.register_forward_pre_hook(lambda _module, args: seen.append(type(args[0])))
    with torch.no_grad():
        torch.testing.assert_close(model(*given), plain(*given))
    assert ran == RAN[:3]
    assert seen == [torch.Tensor, torch.Tensor]


def test_an_attribute_that_hides_a_bias_is_the_bias(ran: list[str]) -> None:
    model, *given = drawn(lambda: Layer(True))
    plain = copy.deepcopy(model)
    replaced(model)
    for one in (model, plain):
        one.layers[0].att.a.__dict__["bias"] = None
    with torch.no_grad():
        got = model(*given)
    assert ran == RAN[2:]
    assert_as_exact(got, plain, *given)


def test_a_part_that_is_restored_is_its_own_again(ran: list[str]) -> None:
    for name, kernels in (
        ("one", NO_FIRST),
        ("att", ["formed Normed", "rms_norm_swiglu", "linear_add"]),
        ("mlp", [*RAN[:3], "formed Normed"]),
    ):
        model, *given = drawn()
        plain = copy.deepcopy(model)
        replaced(model)
        ng.restore(getattr(model.layers[0], name))
        ran.clear()
        with torch.no_grad():
            got = model(*given)
        assert ran == kernels
        assert_as_exact(got, plain, *given)


class Parallel(Layer):
    """Attention and MLP of one norm."""

    def forward(self, x: Any, turn: Any = None) -> Any:
        y = self.one(x)
        return x + self.att(y, turn)[0] + self.mlp(y)


class After(Layer):
    """A norm behind each product, as Gemma 2's."""

    def forward(self, x: Any, turn: Any = None) -> Any:
        x = x + self.one(self.att(x, turn)[0])
        return x + self.two(self.mlp(x))


class InPlace(Layer):
    def forward(self, x: Any, turn: Any = None) -> Any:
        x = x.clone()
        x += self.att(self.one(x), turn)[0]
        x += self.mlp(self.two(x))
        return x


class Overwritten(Layer):
    """Rows are other ones before the norm of them is read."""

    def forward(self, x: Any, turn: Any = None) -> Any:
        x = x.clone()
        y = self.one(x)
        x.add_(1)
        x = x + self.att(y, turn)[0]
        return x + self.mlp(self.two(x))


class AsksForType(Layer):
    def forward(self, x: Any, turn: Any = None) -> Any:
        x = x + self.att(self.one(x), turn)[0]
        y = self.mlp(self.two(x))
        return x + y if isinstance(y, torch.Tensor) else x + y[0]


class Scaled(Layer):
    def forward(self, x: Any, turn: Any = None) -> Any:
        x = x + 2 * self.att(2 * self.one(x), turn)[0]
        return x - self.mlp(-self.two(x))


class Named(Layer):
    def forward(self, x: Any, turn: Any = None) -> Any:
        return {"x": super().forward(x, turn)}


class Last(Layer):
    """It adds no residual to what it gives."""

    def forward(self, x: Any, turn: Any = None) -> Any:
        return self.mlp(self.two(x + self.att(self.one(x), turn)[0]))


class Kept(Layer):
    """A norm's result that is read again."""

    def forward(self, x: Any, turn: Any = None) -> Any:
        y = self.one(x)
        return y + self.att(y, turn)[0] + self.mlp(self.two(x))


class Alone(Layer):
    """Attention returns rows alone, in front of what has parameters of its own."""

    class Rows(Attention):
        def forward(self, x: Any, turn: Any) -> Any:
            return super().forward(x, turn)[0]

    def __init__(self) -> None:
        super().__init__()
        self.att, self.plain = self.Rows(), torch.nn.LayerNorm(WIDTH)

    def forward(self, x: Any, turn: Any = None) -> Any:
        x = self.plain(x) + self.att(self.one(x), turn)
        return x + self.mlp(self.two(x))


class Flat(Layer):
    def forward(self, x: Any, turn: Any = None) -> Any:
        return super().forward(x, turn).flatten()


def first(found: Any) -> Any:
    return found["x"] if isinstance(found, dict) else found


class First(torch.nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *given: Any) -> Any:
        return first(self.layer(*given))


FORMS: dict[str, tuple[type, list[str], list[str]]] = {
    "parallel": (
        Parallel,
        ["att.(a) of one(x)", "att.(b, c) of one(x)", "mlp.(gate, up) of one(x)", "x + att.d", "x + mlp.down"],
        RAN,
    ),
    "in place": (InPlace, WHOLE[:3], ["rms_norm_1", "rms_norm_2", "rms_norm_swiglu"]),
    "last": (Last, WHOLE[:4], RAN[:4]),
    "kept": (Kept, [*WHOLE[2:3], *WHOLE[3:]], RAN[2:]),
    "alone": (Alone, WHOLE, RAN),
    "flat": (Flat, WHOLE, RAN),
    "named": (Named, WHOLE, RAN),
}


@pytest.mark.parametrize("form", FORMS)
def test_what_a_layer_does_between_its_modules_decides(form: str, ran: list[str]) -> None:
    made, said, kernels = FORMS[form]
    model, *given = drawn(made)
    plain = copy.deepcopy(model)
    report = replaced(model)
    assert of_layer(report) == parts(*said)
    with torch.no_grad():
        got = first(model.layers[0](*given))
    assert ran == kernels
    assert_as_exact(got, First(plain.layers[0]), *given)


class Asking(Layer):
    def forward(self, x: Any, turn: Any = None) -> Any:
        if turn is None:
            raise ValueError("a turn")
        return super().forward(x, turn)


OTHERWISE = "it computes something else where a part gives what is no tensor yet"
BETWEEN = "no product reads a norm or is added to a residual with nothing between them"
LEFT: dict[str, tuple[type, str]] = {
    "after": (After, BETWEEN),
    "scaled": (Scaled, BETWEEN),
    "overwritten": (Overwritten, OTHERWISE),
    "asks for a type": (AsksForType, OTHERWISE),
    "asking": (Asking, "its forward does not run on stand-ins: ValueError: a turn"),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_layer_that_is_left_says_why(name: str, ran: list[str]) -> None:
    made, why = LEFT[name]
    model, *given = drawn(made)
    plain = copy.deepcopy(model)
    report = replaced(model)
    assert report.left["layers.0"].startswith(f"{made.__name__}: {why}")
    assert {"layers.0.one", "layers.0.two", "layers.0.mlp"} == report.replaced.keys()
    assert "forward" not in vars(model.layers[0])
    with torch.no_grad():
        got, want = model.layers[0](*given), plain.layers[0](*given)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert ran == []


def test_a_layer_that_cannot_be_copied_is_left() -> None:
    model, *_ = drawn()
    model.layers[0].lock = threading.Lock()
    report = replaced(model)
    assert report.left["layers.0"].startswith("Layer: it cannot be copied: TypeError")


def test_modules_of_many_parts_are_no_layers() -> None:
    class Many(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.RMSNorm(WIDTH)
            for i in range(5):
                setattr(self, f"part{i}", torch.nn.Sequential(linear(WIDTH, WIDTH)))

        def forward(self, x: Any) -> Any:
            return self.part0(self.norm(x))

    found = replaced(torch.nn.Sequential(Many()))
    assert found.left == {"0": "Many: 5 of its modules have parameters, a layer has up to 4 beside norms"}
    listed = torch.nn.ModuleList([torch.nn.RMSNorm(WIDTH), torch.nn.Sequential(linear(WIDTH, WIDTH))])
    assert replaced(listed).left == {}


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2"])
def test_layers_of_transformers_are_found(family: str, ran: list[str]) -> None:
    """Qwen 2 has biases, Qwen 3 norms of heads, Gemma 2 norms behind its products, too."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": 1, "vocab_size": 64}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": WIDTH, "max_position_embeddings": 32}
    torch.manual_seed(2)
    config = getattr(transformers, f"{family}Config")(**sizes, **heads)
    model = getattr(transformers, f"{family}Model")(config).eval()
    plain, ids = copy.deepcopy(model), torch.arange(10).reshape(2, 5)
    report = replaced(model)
    assert report.left == {}
    attention = ["self_attn.(q_proj) of input_layernorm(x)", "self_attn.(k_proj, v_proj) of input_layernorm(x)"]
    of_mlp = "pre_feedforward" if family == "Gemma2" else "post_attention"
    mlp = f"mlp.(gate_proj, up_proj) of {of_mlp}_layernorm(x)"
    added = [] if family == "Gemma2" else ["x + self_attn.o_proj", "x + mlp.down_proj"]
    assert str(report.replaced["layers.0"]) == f"of few rows in inference: {', '.join([*attention, mlp, *added])}"
    with torch.no_grad():
        got, want = model(ids).last_hidden_state, plain(ids).last_hidden_state
        exact = plain.double()(ids).last_hidden_state
    kernels = [name.split("norm_")[-1] for name in ran]
    products = ["1", "2", "linear_add", "geglu_tanh" if "Gemma" in family else "swiglu", "linear_add"]
    assert kernels == [name for name in products if added or name != "linear_add"]
    assert (got - exact).abs().max() <= 1.5 * (want - exact).abs().max() + 1e-6 * exact.abs().max()


def test_a_forward_that_is_another_one_is_left() -> None:
    model, *_ = drawn()
    layer = model.layers[0]
    layer.forward, layer.att.forward = layer.forward, layer.att.forward
    report = replaced(model)
    why = "its forward is already another one than that of its class"
    assert report.left == {"layers.0": f"Layer: {why}", "layers.0.att": f"Attention: {why}"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            lambda a: [setattr(a, n, torch.nn.Linear(WIDTH, 72)) for n in "abcd"],
            "its weight [72, 64] is not of whole tiles",
        ),
        (lambda a: [setattr(a, n, Adapter(getattr(a, n))) for n in "abcd"], ""),
        (
            lambda a: [getattr(a, n).register_forward_hook(print) for n in "abcd"],
            "its linear layers are others, or read something else",
        ),
    ],
)
def test_what_reads_no_norm_is_left_with_its_reason(change: Any, why: str) -> None:
    model, *_ = drawn()
    change(model.layers[0].att)
    report = replaced(model)
    assert of_layer(report) == parts(WHOLE[2], WHOLE[4])
    assert report.left.get("layers.0.att", "").startswith(f"Attention: {why}" if why else "")
    assert ("layers.0.att" in report.left) == bool(why)


@pytest.mark.parametrize("odd", [lambda: linear(WIDTH, 72), lambda: Doubled(WIDTH, WIDTH, bias=False)])
def test_a_norm_that_one_linear_layer_would_form_is_none_of_the_others(odd: Any, ran: list[str]) -> None:
    class Beside(Attention):
        def __init__(self) -> None:
            super().__init__()
            self.e = odd()

        def forward(self, x: Any, turn: Any) -> Any:
            e = self.e(x).mean()
            y, weights = super().forward(x, turn)
            return y + e, weights

    class Own(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.att = Beside()

    model, *given = drawn(Own)
    plain = copy.deepcopy(model)
    assert of_layer(replaced(model)) == parts(*WHOLE[2:])
    with torch.no_grad():
        got = model(*given)
    assert ran == ["formed Product", "rms_norm_swiglu", "linear_add"]
    assert_as_exact(got, plain, *given)


def test_a_probe_changes_nothing() -> None:
    class Counting(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(()))
            self.seen: list[int] = []
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, x: Any, turn: Any = None) -> Any:
            self.steps += 1
            self.seen.append(1)
            return self.drop(super().forward(x, turn))

    model, *given = drawn(Counting)
    plain = copy.deepcopy(model)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    report = replaced(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert of_layer(report) == parts(*WHOLE)
    assert (int(model.layers[0].steps), model.layers[0].seen) == (0, [])
    assert all(m.training for m in model.modules())
    torch.manual_seed(8)
    with torch.no_grad():
        got = model(*given)
        torch.manual_seed(8)
        want = plain(*given)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


# What is pending.

ROWS = torch.randn(3, 8)


def product() -> tuple[Any, Any]:
    weight = torch.randn(4, 8)
    return Product(ROWS, weight, ""), F.linear(ROWS, weight)


ADDED: dict[str, Callable[[Any, Any], Any]] = {
    "r + p": lambda r, p: r + p,
    "p + r": lambda r, p: p + r,
    "add(r, p)": lambda r, p: torch.add(r, p),
    "add(p, r)": lambda r, p: torch.add(p, r),
    "r.add(p)": lambda r, p: r.add(p),
}
FORMED: dict[str, Callable[[Any, Any], Any]] = {
    "p + p": lambda _, p: p + p,
    "p + 1": lambda _, p: p + 1,
    "1 + p": lambda _, p: 1 + p,
    "an alpha": lambda r, p: torch.add(r, p, alpha=2),
    "another shape": lambda r, p: r[0] + p,
    "more rows": lambda r, p: r.expand(2, 3, 4) + p,
    "another dtype": lambda r, p: r.double() + p,
    "p - r": lambda r, p: p - r,
    "r - p": lambda r, p: r - p,
    "2 * p": lambda _, p: 2 * p,
    "softmax": lambda _, p: torch.softmax(p, -1),
    "in place": lambda r, p: r.clone().add_(p),
    "r += p": lambda r, p: (r := r.clone()).__iadd__(p),
    "stack": lambda r, p: torch.stack([r, p]),
    "a method": lambda _, p: p.flatten(),
    "an element": lambda _, p: p[1:, 2],
    "a list": lambda _, p: torch.tensor(p.tolist()),
    "a Parameter": lambda r, p: torch.nn.Parameter(r) + p,
    "formed before": lambda r, p: (p.sum(), r + p)[1],
}


@pytest.mark.parametrize("how", [*ADDED, *FORMED])
def test_a_pending_product_is_what_it_stands_for(how: str, ran: list[str]) -> None:
    p, want = product()
    r = torch.randn(3, 4)
    assert (p.shape, p.ndim, p.dim(), p.size(), p.size(-1), p.dtype, p.device) == (
        want.shape,
        2,
        2,
        want.size(),
        4,
        want.dtype,
        want.device,
    )
    assert ran == []
    with torch.no_grad():
        found = (ADDED | FORMED)[how](r, p)
        torch.testing.assert_close(found, (ADDED | FORMED)[how](r, want))
    assert not isinstance(found, Pending)
    assert ran == (
        ["linear_add"] if how in ADDED else ["formed Product"] * (2 if how == "p + p" and len(ran) > 1 else 1)
    )


def test_what_is_pending_becomes_a_tensor_wherever_a_layer_returns_it() -> None:
    p, want = product()
    made = pending.with_tensors({"x": [p], "y": (p, 1), "z": want})
    assert all(type(t) is torch.Tensor for t in (made["x"][0], made["y"][0], made["z"]))
    torch.testing.assert_close(made["y"][0], want)


def test_a_layer_may_return_what_is_pending() -> None:
    class Returning(Layer):
        def forward(self, x: Any, turn: Any = None) -> Any:
            return super().forward(x, turn), {"norm": self.two(x), "mlp": [self.mlp(x)]}

    model, x, turn = drawn(Returning)
    layer, plain = model.layers[0], copy.deepcopy(model.layers[0])
    assert of_layer(replaced(model)) == parts(*WHOLE[:2], WHOLE[3])
    with torch.no_grad():
        (got, beside), (want, by) = layer(x, turn), plain(x, turn)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close([beside["norm"], *beside["mlp"]], [by["norm"], *by["mlp"]], rtol=1e-5, atol=1e-5)
    assert not any(isinstance(t, Pending) for t in (got, beside["norm"], *beside["mlp"]))


class Ending(Layer):
    ends: str = ""

    def forward(self, x: Any, turn: Any = None) -> Any:
        if not self.ends:
            return super().forward(x, turn)
        y = self.two(x)
        if self.ends == "changed":
            y.mul_(2)
        if self.ends == "normed":
            return self.one(self.mlp(y))
        return y if self.ends == "norm" else {"y": (self.mlp(y),)}


ENDS = {
    "norm": ["formed Normed"],
    "mlp": ["rms_norm_swiglu", "formed Product"],
    "changed": ["formed Normed", "formed Product"],
    "normed": ["rms_norm_swiglu", "formed Product", "formed Normed"],
}


@pytest.mark.parametrize("ends", ENDS)
def test_a_layer_that_begins_to_do_otherwise_returns_its_own_tensors(ends: str, ran: list[str]) -> None:
    model, *given = drawn(Ending)
    layer, plain = model.layers[0], copy.deepcopy(model.layers[0])
    assert of_layer(replaced(model)) == parts(*WHOLE)
    layer.ends = plain.ends = ends
    torch.compiler.reset()
    with torch.no_grad():
        got, want = layer(*given), plain(*given)
        assert ran == ENDS[ends]
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)(*given)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(compiled, want, rtol=1e-5, atol=1e-5)


def test_nothing_is_pending_where_gradients_are_recorded_or_autocast_casts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "is_worth_products", lambda *_, **__: True)
    x, weight = torch.randn(3, 8), torch.randn(4, 8)
    assert not pending.may_pend(x, weight)
    with torch.no_grad():
        assert pending.may_pend(x, weight)
        assert not pending.may_pend(torch.nn.Parameter(x), weight)
        with torch.autocast("cpu", torch.bfloat16):
            assert not pending.may_pend(x, weight)


def test_a_layer_that_adds_to_its_input_is_examined_on_rows_of_its_own() -> None:
    class OnInput(InPlace):
        def forward(self, x: Any, turn: Any = None) -> Any:
            x += self.att(self.one(x), turn)[0]
            return x + self.mlp(self.two(x))

    assert of_layer(replaced(drawn(OnInput)[0])) == parts(*WHOLE[:3], WHOLE[4])


def test_a_last_layer_with_a_bias_adds_no_residual(ran: list[str]) -> None:
    class Biased(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = Mlp(bias=True)

    model, *given = drawn(Biased)
    plain = copy.deepcopy(model)
    assert of_layer(replaced(model)) == parts(*WHOLE[:4])
    with torch.no_grad():
        got = model(*given)
    assert ran == [*RAN[:3], "rms_norm_2"]
    assert_as_exact(got, plain, *given)


def test_a_pending_norm_is_what_it_stands_for() -> None:
    norm, x = torch.nn.RMSNorm(8), torch.randn(2, 3, 8)
    pended = Normed("rms_norm", (x, norm.weight), 1e-6, norm.forward)
    assert (pended.shape, pended.made) == (x.shape, None)
    torch.testing.assert_close(pended.view(-1, 4), norm(x).view(-1, 4))
    assert pended.made is not None


# Kernels.

BY_TORCH = {"swiglu": F.silu, "geglu": F.gelu, "geglu_tanh": lambda x: F.gelu(x, approximate="tanh")}


@pytest.mark.parametrize("gate", ["", *GATES])
@pytest.mark.parametrize("norm", sorted(NORMS))
def test_products_behind_a_norm_are_those_of_torch(norm: str, gate: str) -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(2, 3, 36, dtype=torch.float64), torch.randn(36, dtype=torch.float64)
    weights = [torch.randn(24, 36, dtype=torch.float64) for _ in range(2)]
    bias = torch.randn(24, dtype=torch.float64)
    normed = function(norm)(x, weight, eps=1e-3)
    for biases in ((None, None), (bias, None), (bias, -bias)):
        with torch.no_grad():
            found = products_behind(norm, 2, gate).function(x, weight, *weights, *biases, 1e-3)
        first, second = (F.linear(normed, w, b) for w, b in zip(weights, biases, strict=True))
        torch.testing.assert_close(
            found, BY_TORCH[gate](first) * second if gate else (first, second), rtol=1e-6, atol=1e-6
        )


FEW: list[tuple[str, int, str, str, tuple[str, int]]] = [
    ("llama_rms_norm", 1, "", "1x4096", ("1x104", 264)),
    ("llama_rms_norm", 2, "", "1x1024", ("1x104", 264)),
    ("gemma_rms_norm", 3, "", "16x4096", ("16x104", 264)),
    ("llama_rms_norm", 2, "swiglu", "1x14336", ("1x104", 264)),
    ("rms_norm", 2, "geglu_tanh", "16x14336", ("16x104", 264)),
]


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler builds the executor")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("norm", "count", "gate", "large", "small"), FEW)
def test_a_first_choice_of_few_rows_is_right_and_reads_each_weight_once(
    norm: str, count: int, gate: str, large: str, small: tuple[str, int], bias: bool
) -> None:
    """In bf16, by a schedule of decoding's sizes: lanes make the norm's factor of the lines that they read."""
    spec, h200 = products_behind(norm, count, gate).spec, target("h200")
    without = [] if bias else [t.name for t in spec.tensors if t.optional]
    of_large, of_small = (
        problem_for(spec, shape=shape, inner=inner, dtype="bf16", without=without)
        for shape, inner in ((large, 4096), small)
    )
    schedule = default_schedule(of_large, h200)
    assert schedule.fragment.value == "mma"
    assert refusal(of_small, schedule, h200) is None
    check = check_on_cpu(of_small, emit(of_small, schedule))
    assert check.ok, check.summary


# What a layer's parts may do with what is pending.


def of_attention(forward: Callable[..., Any]) -> type:
    """A layer whose attention computes `forward(attention, x, turn)`."""

    class Own(Attention):
        def forward(self, x: Any, turn: Any) -> Any:
            return forward(self, x, turn)

    class Given(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.att = Own()

    return Given


def plainly(att: Any, x: Any, turn: Any) -> Any:
    return Attention.forward(att, x, turn)


def masked(att: Any, x: Any, _turn: Any, change: Callable[[Any], Any]) -> Any:
    """Keys are made beside values, whose rows are other ones."""
    q, k = att.a(x), att.b(x)
    change(x)
    return att.d(torch.cat([q[..., :WIDTH] * k, att.c(x)], -1)), None


def doubled(att: Any, x: Any, turn: Any) -> Any:
    y = x
    x *= 2
    z, weights = plainly(att, y, turn)
    y = z
    y += turn
    return z, weights


def recording(att: Any, x: Any, turn: Any) -> Any:
    with torch.enable_grad():
        assert not (1 * x).requires_grad
    return plainly(att, x, turn)


def each(att: Any, x: Any, _turn: Any) -> Any:
    q = att.a(x)
    return torch.vmap(att.d)(torch.cat([q[..., :WIDTH] * torch.vmap(att.b)(x), att.c(x)], -1)), None


def asserting(att: Any, x: Any, turn: Any) -> Any:
    assert isinstance(x, torch.Tensor)
    return plainly(att, x, turn)


def keeping(att: Any, x: Any, turn: Any) -> Any:
    att.kept = x
    return plainly(att, x, turn)


PARTS: dict[str, Callable[..., Any]] = {
    "rows are masked": lambda att, x, turn: masked(att, x, turn, lambda x: x.masked_fill_(x > 0.5, 0)),
    "rows are set": lambda att, x, turn: masked(att, x, turn, lambda x: x.__setitem__((slice(None), 0), 0)),
    "another name of what is changed": doubled,
    "gradients are recorded": recording,
    "a transform": each,
    "an assertion": asserting,
    "what is given is kept": keeping,
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_a_part_does_with_what_it_is_given_stays_its_own(part: str, mode: Any) -> None:
    model, *given = drawn(of_attention(PARTS[part]))
    plain = copy.deepcopy(model)
    replaced(model)
    with mode():
        got = model(*given)
        assert not got.requires_grad
        assert type(getattr(model.layers[0].att, "kept", got)) is torch.Tensor
    assert_as_exact(got, plain, *given)


def test_autocast_within_a_layer_is_of_what_stands_in_it() -> None:
    class Casting(Layer):
        def forward(self, x: Any, turn: Any = None) -> Any:
            y, _ = self.att(self.one(x), turn)
            with torch.autocast("cpu", torch.bfloat16):
                x = x + y
            return x + self.mlp(self.two(x))

    model, *given = drawn(Casting)
    plain = copy.deepcopy(model)
    replaced(model)
    with torch.no_grad():
        torch.testing.assert_close(model(*given), plain(*given), rtol=1e-5, atol=1e-5)


def test_a_copy_of_a_linear_layer_in_its_place_multiplies_by_its_own_weight() -> None:
    model, *given = drawn()
    plain = copy.deepcopy(model)
    replaced(model)
    for one in (model, plain):
        att = one.layers[0].att
        att.c = copy.deepcopy(att.c)
        in_place(att.c)
    with torch.no_grad():
        assert_as_exact(model(*given), plain, *given)


@dataclasses.dataclass(frozen=True)
class Record:
    x: Any
    kept: Any


def test_records_and_attributes_hold_tensors(ran: list[str]) -> None:
    class Recording(Layer):
        def forward(self, x: Any, turn: Any = None) -> Any:
            self.kept = self.one(x)
            x = x + self.att(self.kept, turn)[0]
            return Record(self.mlp(self.two(x)), [self.kept])

    model, *given = drawn(Recording)
    plain = copy.deepcopy(model)
    assert of_layer(replaced(model)) == parts(*WHOLE[2:4])
    with torch.no_grad():
        got, want = model.layers[0](*given), plain.layers[0](*given)
    assert ran == ["linear_add", "rms_norm_swiglu"]
    assert all(type(t) is torch.Tensor for t in (got.x, *got.kept, model.layers[0].kept))
    torch.testing.assert_close([got.x, *got.kept], [want.x, *want.kept], rtol=1e-5, atol=1e-5)


def test_a_record_may_hold_itself(ran: list[str]) -> None:
    class Cyclic(Layer):
        def forward(self, x: Any, turn: Any = None) -> Any:
            found = Record(super().forward(x, turn), [])
            found.kept.append(found)
            return found

    model, *given = drawn(Cyclic)
    plain = copy.deepcopy(model)
    assert of_layer(replaced(model)) == parts(*WHOLE)
    with torch.no_grad():
        torch.testing.assert_close(model.layers[0](*given).x, plain.layers[0](*given).x, rtol=1e-5, atol=1e-5)
    assert ran == RAN


def test_a_layer_whose_result_says_nothing_is_left() -> None:
    class Silent(Layer):
        def forward(self, x: Any, turn: Any = None) -> Any:
            return types.SimpleNamespace(x=super().forward(x, turn))

    model, *_ = drawn(Silent)
    report = replaced(model)
    assert report.left.keys() == {"layers.0"}
    assert "layers.0" not in report.replaced


@pytest.mark.parametrize("made", [Layer, Parallel])
@pytest.mark.parametrize("where", ["att", "mlp", "one", "two", *(f"att.{n}" for n in "abcd"), "mlp.gate", "mlp.up"])
def test_hooks_see_tensors(made: Any, where: str) -> None:
    model, *given = drawn(made)
    replaced(model)
    seen: list[Any] = []
    module = model.layers[0].get_submodule(where)
    module.register_forward_pre_hook(lambda _, args, named: seen.append((args, named)), with_kwargs=True)
    module.register_forward_hook(lambda _m, args, result: seen.append((args, result)))
    with torch.no_grad():
        model(*given)
    assert seen or (made is Parallel and where == "two")
    assert {type(t) for t in tree_leaves(seen)} <= {torch.Tensor, type(None)}


def test_another_thread_sees_tensors_while_a_layer_runs() -> None:
    inside, done = threading.Event(), threading.Event()

    def waiting(att: Any, x: Any, turn: Any) -> Any:
        if threading.current_thread().name == "first":
            inside.set()
            assert done.wait(60)
        return plainly(att, x, turn)

    model, *given = drawn(of_attention(waiting))
    plain = copy.deepcopy(model)
    replaced(model)
    got: list[Any] = []

    def run() -> None:
        with torch.no_grad():
            got.append(model(*given))

    first = threading.Thread(target=run, name="first")
    first.start()
    try:
        assert inside.wait(60)
        layer = model.layers[0]
        with torch.no_grad():
            alone = layer.one(given[0]), layer.att.d(torch.randn(2, HEADS * WIDTH)), layer.mlp(given[0])
            got.append(model(*given))
    finally:
        done.set()
        first.join()
    assert {type(t) for t in (*alone, *got)} == {torch.Tensor}
    for one in got:
        assert_as_exact(one, plain, *given)


def test_rows_that_are_changed_before_they_are_read_are_no_silent_matter() -> None:
    class Branching(Overwritten):
        def forward(self, x: Any, turn: Any = None) -> Any:
            return Layer.forward(self, x) if turn is None else super().forward(x, turn)

    model, *given = drawn(Branching)
    layer, plain = model.layers[0], copy.deepcopy(model)
    assert of_layer(replaced(model)) == parts(*WHOLE)
    with torch.no_grad():
        with pytest.raises(UsageError, match="rows that were changed in place"):
            model(*given)
        assert ng.restore(layer) == 11
        assert torch.equal(model(*given), plain(*given))


def test_a_module_that_is_gone_is_none_of_the_layer(ran: list[str]) -> None:
    class Short(Layer):
        def forward(self, x: Any, turn: Any = None) -> Any:
            x = x + self.att(self.one(x), turn)[0]
            return x + self.mlp(self.two(x)) if hasattr(self, "mlp") else x

    model, *given = drawn(Short)
    plain = copy.deepcopy(model)
    replaced(model)
    del model.layers[0].mlp, plain.layers[0].mlp
    with torch.no_grad():
        got = model(*given)
    assert ran == RAN[:3]
    assert_as_exact(got, plain, *given)


def test_what_is_pending_is_copied_pickled_and_printed_as_a_tensor() -> None:
    with torch.no_grad():
        p, want = product()
        for again in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
            assert type(again) is torch.Tensor
            torch.testing.assert_close(again, want)
        assert repr(p) == repr(want)
        assert torch.equal(torch.zeros(3, 4).index_put_((torch.arange(3),), p), want)
        q = p
        q -= 1
        q[0] = 0
        assert p.formed() is q
        p, want = product()
        whole = torch.zeros(3, 4)
        whole[:] = p
        assert torch.equal(whole, want)
