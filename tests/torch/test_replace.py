"""Norms of a model, found by what they compute."""

from __future__ import annotations

import copy
import pickle
import types
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import normgen.torch as ng  # noqa: E402


class Scale(torch.nn.Module):
    """A module with one parameter [cols] and an eps, of which each class below makes something else."""

    def __init__(self, cols: int, small: float = 1e-6) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.randn(cols))
        self.small = small

    def unit(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float() if x.dtype != torch.float64 else x
        return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.small)


class RoundedFirst(Scale):
    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.scale * self.unit(states).to(states.dtype)


class RoundedLast(Scale):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.unit(x) * self.scale.float()).type_as(x)


class OneMore(Scale):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.unit(x) * (1 + self.scale.float())).type_as(x)


class TwiceRounded(Scale):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.unit(x).to(x.dtype) * self.scale.to(x.dtype) * 3).to(x.dtype) / 3


class Level(Scale):
    """By the mean of the magnitudes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x.abs().mean(-1, keepdim=True) + self.small) * self.scale


class OverColumns(Scale):
    """As wide as the rows of the test are many."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.unit(x.transpose(-1, -2)).transpose(-1, -2) * self.scale


class GatedNorm(Scale):
    def forward(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        return self.unit(x if gate is None else x * gate) * self.scale


FOUND = [
    (RoundedFirst(48), "llama_rms_norm(x, scale, eps=1e-06)"),
    (RoundedFirst(48, 1e-5), "llama_rms_norm(x, scale, eps=1e-05)"),
    (RoundedLast(48), "rms_norm(x, scale, eps=1e-06)"),
    (OneMore(48), "gemma_rms_norm(x, scale, eps=1e-06)"),
    (torch.nn.LayerNorm(48, eps=1e-3), "layer_norm(x, weight, bias, eps=0.001)"),
    (torch.nn.LayerNorm(48, bias=False), "layer_norm(x, weight, eps=1e-05)"),
    (torch.nn.LayerNorm(48, elementwise_affine=False), "layer_norm(x, eps=1e-05)"),
    (torch.nn.RMSNorm(48), "rms_norm(x, weight, eps=1.19209e-07)"),
]
NOT_FOUND = [
    (TwiceRounded(48), "TwiceRounded: its forward rounds elsewhere than our"),
    (Level(48), "Level: its forward computes none of our norms"),
    (OverColumns(48), "OverColumns: its forward computes none of our norms"),
    (GatedNorm(48), "GatedNorm: its forward takes more than one tensor"),
    (torch.nn.BatchNorm1d(48), "BatchNorm1d: it has buffers"),
    (torch.nn.GroupNorm(4, 48), "GroupNorm: its forward"),
    (torch.nn.LayerNorm((4, 12)), "LayerNorm: its parameters are not [cols]"),
    (torch.nn.PReLU(48), "PReLU: its forward"),
]


@pytest.mark.parametrize(("module", "what"), FOUND, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_is_found_by_what_it_computes_and_computes_it_still(
    module: Any, what: str, dtype: torch.dtype, device: str
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(48, 48), copy.deepcopy(module)).to(device, dtype)
    x = torch.randn(3, 5, 48, device=device, dtype=dtype, requires_grad=True)
    leaves = [x, *model.parameters()]
    want = model(x)
    by = torch.randn_like(want)
    exact = torch.autograd.grad(want, leaves, by)
    state = copy.deepcopy(model.state_dict())

    report = ng.replace(model)
    assert {name: str(norm) for name, norm in report.replaced.items()} == {"1": what}
    assert report.left == {}
    assert str(report) == f"1 x replaced: {what}"
    got = model(x)
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
    for one, other in zip(torch.autograd.grad(got, leaves, by), exact, strict=True):
        torch.testing.assert_close(one, other, rtol=8 * tolerance, atol=tolerance * float(other.abs().max()))

    assert ng.replace(model).replaced == {}  # not twice
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert again[1].forward.module is again[1]
        assert again[1].forward.operator is model[1].forward.operator  # which remembers what no process can copy
        torch.testing.assert_close(again(x), got, rtol=0, atol=0)
    assert {k: v.tolist() for k, v in model.state_dict().items()} == {k: v.tolist() for k, v in state.items()}
    assert ng.restore(model) == 1
    assert torch.equal(model(x), want)


@pytest.mark.parametrize(("module", "why"), NOT_FOUND, ids=lambda value: type(value).__name__)
def test_what_computes_something_else_is_left_with_its_reason(module: Any, why: str) -> None:
    model = torch.nn.Sequential(module)
    report = ng.replace(model)
    assert report.replaced == {}
    assert report.left["0"].startswith(why)
    assert "forward" not in vars(module)


class Frozen(RoundedLast):
    """Some of what it is made of has no gradient."""

    def __init__(self, cols: int, frozen: str) -> None:
        super().__init__(cols)
        self.frozen = frozen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide, scale = x if x.dtype == torch.float64 else x.float(), self.scale.float()
        unit = self.unit(x)
        if self.frozen == "rows":
            unit = unit.detach()
        elif self.frozen == "statistic":
            unit = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.small).detach()
        elif self.frozen == "scale":
            scale = scale.detach()
        return (unit * scale).type_as(x)


class WithoutGrad(RoundedLast):
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class OfInference(RoundedLast):
    @torch.inference_mode()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


CUT = [*(Frozen(48, what) for what in ("rows", "statistic", "scale")), WithoutGrad(48), OfInference(48)]


@pytest.mark.parametrize("module", CUT, ids=lambda m: getattr(m, "frozen", type(m).__name__))
def test_a_forward_that_cuts_gradients_is_left(module: Any) -> None:
    report = ng.replace(torch.nn.Sequential(module))
    assert report.left == {"0": f"{type(module).__name__}: its gradients are not those of what its forward computes"}


class InPlace(Scale):
    """For inference: autograd refuses a result that was changed behind what it saved."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32, copy=True)
        wide.mul_(torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.small))
        return (wide * self.scale).type_as(x)


class OtherWithGrad(RoundedLast):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + float(torch.is_grad_enabled())


def test_what_has_no_backward_pass_contradicts_none_and_what_computes_more_with_gradients_is_left() -> None:
    report = ng.replace(torch.nn.Sequential(InPlace(48), OtherWithGrad(48)))
    assert list(report.replaced) == ["0"]
    assert list(report.left) == ["1"]


def test_rows_made_for_inference_have_gradients_of_parameters_outside_of_it_as_the_modules_own(device: str) -> None:
    model, own = (torch.nn.Sequential(RoundedLast(48).to(device)) for _ in range(2))
    own.load_state_dict(model.state_dict())
    ng.replace(model)
    with torch.inference_mode():
        x = torch.randn(3, 48, device=device)
    got, want = model(x), own(x)
    torch.testing.assert_close(got, want)
    both = [torch.autograd.grad(y.sum(), m[0].scale) for y, m in ((got, model), (want, own))]
    torch.testing.assert_close(*both)


class CutInTraining(RoundedLast):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y.detach() + x if torch.is_grad_enabled() and self.training else y


class ShiftedInTraining(RoundedLast):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + 0.1 if x.requires_grad and self.training else x)


class CutLater(RoundedLast):
    cut = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y.detach() + x if torch.is_grad_enabled() and self.cut else y


class OtherOutsideOfTraining(RoundedLast):
    more = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if self.training else super().forward(x) * self.more


def test_what_a_forward_asks_in_the_other_mode_alone_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = OtherOutsideOfTraining(48).train(), torch.randn(3, 48)
    ng.replace(torch.nn.Sequential(module))
    want = module.eval()(x)
    monkeypatch.setattr(OtherOutsideOfTraining, "more", 3.0)
    torch.testing.assert_close(module(x), 3 * want)


@pytest.mark.parametrize("kind", [CutInTraining, ShiftedInTraining, CutLater])
def test_what_a_forward_asks_for_a_backward_pass_alone_is_seen(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    module = kind(48).eval()
    ng.replace(torch.nn.Sequential(module))
    module.train()
    monkeypatch.setattr(CutLater, "cut", True)
    x, own = torch.randn(3, 48, requires_grad=True), kind(48)
    own.load_state_dict(module.state_dict())
    got, want = module(x), own(x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), x), torch.autograd.grad(want.sum(), x))


def test_parameters_that_a_first_call_makes_are_left() -> None:
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.LazyBatchNorm1d(), torch.nn.LayerNorm(48))
    report = ng.replace(torch.nn.Sequential(lazy), products=True)
    assert list(report.replaced) == ["0.2"]
    assert report.left == {"0.1": "LazyBatchNorm1d: its first call makes its parameters"}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_norm_is_found_in_any_mode_of_gradients(mode: Any) -> None:
    model = torch.nn.Sequential(RoundedLast(48))
    with mode():
        assert list(ng.replace(model).replaced) == ["0"]
    x = torch.randn(3, 48, requires_grad=True)
    (got,) = torch.autograd.grad(model(x).sum(), x)
    ng.restore(model)
    torch.testing.assert_close(got, *torch.autograd.grad(model(x).sum(), x))


def test_a_forward_that_a_class_is_given_later_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = torch.nn.LayerNorm(48), torch.randn(3, 48)
    ng.replace(torch.nn.Sequential(module))
    want = module(x)
    plain = torch.nn.LayerNorm.forward
    compiled = torch.compile(module, backend="eager")
    torch.testing.assert_close(compiled(x), want)
    monkeypatch.setattr(torch.nn.LayerNorm, "forward", lambda self, x: 2 * plain(self, x))
    torch.testing.assert_close(module(x), 2 * want)
    torch.testing.assert_close(compiled(x), 2 * want)


class InFloat32(torch.nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight.float(), self.bias.float()
        return torch.nn.functional.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps).type_as(x)


@pytest.mark.parametrize(  # of two columns with an eps of 1e-12 float64 has no digits either
    ("kind", "cols", "eps"),
    [*((InFloat32, cols, eps) for cols in (3, 48) for eps in (1e-12, 1e-6)), (torch.nn.LayerNorm, 2, 1e-6)],
)
def test_gradients_that_float32_has_few_digits_of_are_no_other_ones(kind: Any, cols: int, eps: float) -> None:
    """Of level rows with a small eps, and of two columns, whose gradient is what eps leaves of it."""
    assert list(ng.replace(torch.nn.Sequential(kind(cols, eps=eps))).replaced) == ["0"]


class CutOutsideOfTraining(RoundedLast):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if self.training else x.detach())


@pytest.mark.parametrize("is_training", [True, False])
def test_gradients_that_a_norm_has_in_training_alone(is_training: bool) -> None:
    model = torch.nn.Sequential(CutOutsideOfTraining(48)).train(is_training)
    report = ng.replace(model)
    assert list(report.replaced) == (["0"] if is_training else [])
    x = torch.randn(3, 48, requires_grad=True)
    for mode in (True, False):
        model.train(mode)
        (got,) = torch.autograd.grad(model(x).sum(), x, allow_unused=True)
        assert (got is not None) is mode


def test_a_pickle_of_a_class_that_has_another_forward_where_it_is_loaded_runs_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, x = RoundedLast(48), torch.randn(3, 48)
    ng.replace(torch.nn.Sequential(module))
    pickled, want = pickle.dumps(module), module(x)
    assert torch.equal(pickle.loads(pickled)(x), want)
    assert pickle.loads(pickled).forward.is_as_its_class()
    plain = RoundedLast.forward
    monkeypatch.setattr(RoundedLast, "forward", lambda self, x: 2 * plain(self, x))
    torch.testing.assert_close(pickle.loads(pickled)(x), 2 * want)


def test_a_norm_of_a_class_with_a_closure_for_a_forward_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.nn.LayerNorm.forward
    monkeypatch.setattr(torch.nn.LayerNorm, "forward", lambda self, x: plain(self, x))
    module, x = torch.nn.LayerNorm(48), torch.randn(3, 48)
    ng.replace(torch.nn.Sequential(module))
    assert torch.equal(pickle.loads(pickle.dumps(module))(x), module(x))
    monkeypatch.setattr(torch.nn.LayerNorm, "forward", lambda self, x: 2 * plain(self, x))
    assert torch.equal(copy.deepcopy(module)(x), 2 * plain(module, x))


def test_a_trace_of_a_replaced_norm_is_the_modules_own(device: str) -> None:
    model = torch.nn.Sequential(torch.nn.LayerNorm(48), RoundedLast(48)).to(device)
    ng.replace(model)
    traced = torch.jit.trace(model, torch.randn(4, 48, device=device))
    assert "normgen" not in str(traced.inlined_graph)
    for shape in ((9, 48), (1, 48)):
        x = torch.randn(shape, device=device)
        torch.testing.assert_close(traced(x), model(x))


def test_dtypes_in_which_a_module_rounds_otherwise_are_left_to_it() -> None:
    """Rows in bf16 with a scale in float32: its result is float32, of a row rounded to bf16; T5's is not rounded."""

    class NotRounded(Scale):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            unit = x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.small)
            return self.scale * (unit.to(self.scale.dtype) if self.scale.dtype != torch.float32 else unit)

    x = torch.randn(4, 48).bfloat16()
    for module, is_ours in ((RoundedFirst(48), True), (NotRounded(48), False)):
        want = module(x)
        ng.replace(torch.nn.Sequential(module))
        got = module(x)
        assert got.dtype == torch.float32
        assert ((x.dtype, torch.float32) in module.forward.norm.dtypes) is is_ours
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_modules_that_are_alike_are_examined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from normgen.torch.replacing import patching

    examined: list[Any] = []
    examine = patching._examine
    monkeypatch.setattr(patching, "_examine", lambda module, told: examined.append(module) or examine(module, told))
    model = torch.nn.Sequential(*(RoundedLast(48, eps) for eps in (1e-6, 1e-5, 1e-6, 1e-5)))
    report = ng.replace(model)
    assert len(examined) == 2
    assert [norm.eps for norm in report.replaced.values()] == [1e-6, 1e-5, 1e-6, 1e-5]


def test_a_replaced_model_compiles_whole(device: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(48, 48), RoundedFirst(48), torch.nn.LayerNorm(48)).to(device)
    ng.replace(model)
    x = torch.randn(5, 48, device=device)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


WITH_EPS = [
    (torch.nn.LayerNorm(48), "eps"),
    (torch.nn.LayerNorm(48, elementwise_affine=False), "eps"),
    (torch.nn.RMSNorm(48), "eps"),
    (torch.nn.RMSNorm(48, eps=1e-6), "eps"),
    (RoundedFirst(48), "small"),
    (OneMore(48), "small"),
]


@pytest.mark.parametrize(("plain", "name"), WITH_EPS, ids=lambda value: value if isinstance(value, str) else str(value))
@pytest.mark.parametrize("is_compiled", [False, True])
def test_an_eps_that_is_set_later_is_that_of_the_next_call(
    plain: Any, name: str, is_compiled: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By our function still; and of this module alone, not of its copies."""
    plain = copy.deepcopy(plain).to(device)
    module, before = copy.deepcopy(plain), getattr(plain, name)
    ng.replace(torch.nn.Sequential(module))
    monkeypatch.setattr(module.forward, "original", None)
    x = torch.randn(5, 48, device=device)
    torch.compiler.reset()
    run = torch.compile(module, backend="aot_eager", fullgraph=True) if is_compiled else module
    others = [copy.deepcopy(module), pickle.loads(pickle.dumps(module))]
    want_of_others = plain(x)
    for eps in (100.0, 0.5, 2, before, 1e-3):
        setattr(module, name, eps)
        setattr(plain, name, eps)
        torch.testing.assert_close(run(x), plain(x), rtol=1e-6, atol=1e-6)
    for other in others:
        torch.testing.assert_close(other(x), want_of_others, rtol=1e-6, atol=1e-6)
        setattr(other, name, 1e-3)
        torch.testing.assert_close(other(x), plain(x), rtol=1e-6, atol=1e-6)
    assert module.state_dict().keys() == plain.state_dict().keys()


class Shifted(Scale):
    """What it computes depends on attributes of its own and of its class, a number, a function and a tensor."""

    power = 1

    def __init__(self, cols: int, factor: float = 1.0) -> None:
        super().__init__(cols)
        self.offset, self.last, self.factor = 0, torch.clone, torch.tensor(factor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.unit(x) * (self.offset + self.scale.float()) ** self.power
        return self.last((wide * self.factor.to(x.device)).to(x.dtype))


CHANGES = {
    "a number": lambda m: setattr(m, "offset", 1),
    "a number of the class": lambda m: setattr(m, "power", 2),
    "a function": lambda m: setattr(m, "last", torch.abs),
    "a tensor": lambda m: setattr(m, "factor", torch.tensor(3.0)),
    "eps, to a tensor": lambda m: setattr(m, "small", torch.tensor(0.5)),
    "the weight's shape": lambda m: setattr(
        m, "scale", torch.nn.Parameter(torch.full((1,), 2.0, device=m.scale.device))
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_module_whose_other_attributes_change_computes_what_it_did_without_us(
    change: str, is_compiled: bool, device: str
) -> None:
    plain = Shifted(48).to(device)
    module = copy.deepcopy(plain)
    assert list(ng.replace(torch.nn.Sequential(module)).replaced) == ["0"]
    x = torch.randn(5, 48, device=device)
    torch.compiler.reset()
    run = torch.compile(module, backend="aot_eager") if is_compiled else module
    copied = copy.deepcopy(module)
    want = plain(x)
    torch.testing.assert_close(run(x), want, rtol=1e-6, atol=1e-6)
    CHANGES[change](module)
    CHANGES[change](plain)
    assert not torch.allclose(plain(x), want)
    torch.testing.assert_close(run(x), plain(x), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(copied(x), want, rtol=1e-6, atol=1e-6)


class Tunable(Scale):
    """Its forward asks for what it does not have, and branches by dtype and shape."""

    def __init__(self, cols: int) -> None:
        super().__init__(cols)
        self.half, self.many = 1.0, 1.0

    def last(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.scale * self.unit(x)
        if (by := getattr(self, "by", None)) is not None:
            found = found * by
        if hasattr(self, "more"):
            found = found + self.more
        if "late" in self.__dict__:
            found = -found
        if x.dtype == torch.float16:
            found = found * self.half
        if x.shape[0] > 4:
            found = found * self.many
        return self.last(found.to(x.dtype))


class Holding(Scale):
    """Its forward reads objects that may change in place."""

    def __init__(self, cols: int) -> None:
        super().__init__(cols)
        self.config, self.named, self.listed = types.SimpleNamespace(by=1.0), {"by": 1.0}, [1.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scale * self.unit(x) * self.config.by * self.named["by"] * self.listed[0]).to(x.dtype)


LATER: dict[str, Callable[[Any], Any]] = {
    "asked for": lambda m: setattr(m, "by", 2.0),
    "asked whether it is there": lambda m: setattr(m, "more", 1.0),
    "in its dict": lambda m: setattr(m, "late", True),
    "of a dtype": lambda m: setattr(m, "half", 2.0),
    "of a shape": lambda m: setattr(m, "many", 2.0),
    "an object in place": lambda m: setattr(m.config, "by", 2.0),
    "a dict in place": lambda m: m.named.update(by=2.0),
    "a list in place": lambda m: m.listed.__setitem__(0, 2.0),
    "a method": lambda m: setattr(m, "last", lambda x: 2 * x),
}


@pytest.mark.parametrize(
    ("change", "is_compiled"),  # a compiler does not see that a name was put into a module's dict
    [
        (change, is_compiled)
        for change in LATER
        for is_compiled in (False, True)
        if change != "in its dict" or not is_compiled
    ],
)
def test_whatever_is_set_later_sends_a_call_to_the_module_itself(change: str, is_compiled: bool, device: str) -> None:
    plain = (Holding if "in place" in change else Tunable)(48).to(device)
    module = copy.deepcopy(plain)
    assert list(ng.replace(torch.nn.Sequential(module)).replaced) == ["0"]
    x = torch.randn(5, 48, device=device).to(torch.float16 if change == "of a dtype" else torch.float32)
    torch.compiler.reset()
    run = torch.compile(module, backend="aot_eager") if is_compiled else module
    want = plain(x)
    torch.testing.assert_close(run(x), want)
    LATER[change](module)
    LATER[change](plain)
    assert not torch.allclose(plain(x), want)
    torch.testing.assert_close(run(x), plain(x))


class Bounded(Scale):
    """Its eps is no other than within limits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        eps = max(min(self.small, 0.1), 1e-6)
        return (self.scale * wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


@pytest.mark.parametrize("eps", [0.5, 1e-12])
def test_an_eps_is_trusted_for_tiny_and_large_values_only_where_they_were_tried(eps: float) -> None:
    plain = Bounded(48)
    module = copy.deepcopy(plain)
    assert list(ng.replace(torch.nn.Sequential(module)).replaced) == ["0"]
    x = 1e-5 * torch.randn(5, 48)
    for one in (plain, module):
        one.small = eps
    torch.testing.assert_close(module(x), plain(x))


def test_an_eps_beyond_float32_is_left_to_the_module() -> None:
    plain, x = torch.nn.LayerNorm(48), torch.randn(5, 48)
    module = copy.deepcopy(plain)
    ng.replace(torch.nn.Sequential(module))
    plain.eps = module.eps = 1e39
    torch.testing.assert_close(module(x), plain(x))


def test_a_parameter_that_is_taken_away_is_left_out() -> None:
    plain, x = torch.nn.LayerNorm(48), torch.randn(5, 48)
    module = copy.deepcopy(plain)
    ng.replace(torch.nn.Sequential(module))
    for name in ("bias", "weight"):
        for one in (module, plain):
            setattr(one, name, None)
        torch.testing.assert_close(module(x), plain(x))


def test_modules_that_differ_in_a_tensor_are_not_taken_for_alike() -> None:
    report = ng.replace(torch.nn.Sequential(Shifted(48), Shifted(48, 3.0)))
    assert list(report.replaced) == ["0"]
    assert report.left == {"1": "Shifted: its forward computes none of our norms"}


MODELS = {
    "Llama": ({"num_key_value_heads": 2}, "llama_rms_norm", 5),
    "Qwen3": ({"num_key_value_heads": 2, "head_dim": 16}, "llama_rms_norm", 9),
    "Gemma": ({"num_key_value_heads": 2, "head_dim": 16}, "gemma_rms_norm", 5),
    "GPT2": ({"bos_token_id": 1, "eos_token_id": 1}, "layer_norm", 5),
    "ViT": ({"image_size": 32, "patch_size": 8}, "layer_norm", 5),
}


@pytest.mark.parametrize("family", MODELS)
def test_models_of_transformers_keep_their_results(family: str, device: str) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    options, norm, count = MODELS[family]
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {} if family == "GPT2" else {"intermediate_size": 128}
    sizes |= {} if family == "ViT" else {"vocab_size": 100}
    config = getattr(transformers, f"{family}Config")(**sizes, **options)
    model = getattr(transformers, f"{family}Model")(config).to(device).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.3)
    given = {"pixel_values": torch.randn(2, 3, 32, 32, device=device)}
    if family != "ViT":
        given = {"input_ids": torch.randint(0, 100, (2, 7), device=device)}
    with torch.no_grad():
        want = model(**given)[0]
        report = ng.replace(model)
        assert [n.function for n in report.replaced.values()] == [norm] * count
        assert report.left == {}
        torch.testing.assert_close(model(**given)[0], want, rtol=1e-4, atol=1e-4)
        ng.restore(model)
        assert torch.equal(model(**given)[0], want)
