"""`fused` of functions with a value for each channel of images: it is read as it is, no table of columns is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402

import normgen.torch as ng  # noqa: E402
from normgen.choice.first import default_schedule  # noqa: E402
from normgen.errors import VerificationError  # noqa: E402
from normgen.measure.cpu_check import check_on_cpu  # noqa: E402
from normgen.pipeline import emit  # noqa: E402
from normgen.program.source import problem_for  # noqa: E402
from normgen.spec.reader import parse  # noqa: E402
from normgen.torch.tracing import fusing  # noqa: E402
from normgen.torch.tracing.cuts import cutting  # noqa: E402
from tests.codegen.layouts import DEVICE  # noqa: E402

Tensor = Any
Function = Callable[..., Tensor]


def group_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.group_norm(x, 4, w, b, 1e-5)


def scale_shift(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """AdaGN of diffusion models: a norm with weights, then a scale and a shift for each sample and channel."""
    return F.silu(F.group_norm(x, 4, w, b, 1e-5) * (1 + scale[..., None, None]) + shift[..., None, None])


def of_images(x: Tensor, w: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[1:]) * w[:, None, None]


def of_samples(x: Tensor, w: Tensor) -> Tensor:
    """Rows of [samples, parts], a weight for each sample and channel."""
    return x / (x.square().mean((-2, -1), keepdim=True) + 1e-3).sqrt() * w[:, None, :, None]


def of_parts_between(x: Tensor, w: Tensor) -> Tensor:
    """A weight of a part in the middle of the rows, which are [samples, parts, halves]."""
    return (x - x.mean((-2, -1), keepdim=True)) * w[:, None, :, None]


def beside_a_table(x: Tensor, w: Tensor, table: Tensor) -> Tensor:
    """A weight for each row and channel beside a table that samples share: the former is laid out."""
    return (x - x.mean((-2, -1), keepdim=True)) * w[..., None] + table


C, CASES = 12, {}
CASES["group_norm"] = (group_norm, [(3, C, 4, 6), (C,), (C,)], {1: ("head", 24), 2: ("head", 24)})
CASES["scale_shift"] = (
    scale_shift,
    [(3, C, 4, 6), (C,), (C,), (3, C), (3, C)],
    dict.fromkeys(range(1, 5), ("batch", 24)),
)
CASES["of_images"] = (of_images, [(3, C, 4, 6), (C,)], {1: ("", 24)})
CASES["of_samples"] = (of_samples, [(3, 5, C, 8), (3, C)], {1: ("batch", 8)})
CASES["of_parts_between"] = (of_parts_between, [(3, 5, 2, C, 8), (5, C)], {1: ("batch", 8)})
CASES["beside_a_table"] = (beside_a_table, [(3, 5, C, 8), (3, 5, C), (5, C, 8)], {1: ("", 0), 2: ("head", 0)})


def _given(name: str, dtype: Any) -> tuple[Function, list[Tensor]]:
    function, shapes, _ = CASES[name]
    generator = torch.Generator().manual_seed(len(name))
    return function, [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


@pytest.fixture
def by_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU the operator runs too, by the formulas, where the function itself would."""
    monkeypatch.setattr(fusing, "takes_a_kernel", lambda tensors: tensors[0].dtype != torch.float64)


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_torch(name: str, dtype: Any) -> None:
    function, given = _given(name, dtype)
    wide = [t.detach().double().requires_grad_() for t in given]
    ours, theirs = ng.fused(function)(*given), function(*wide)
    by = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    gradients = torch.autograd.grad(ours, given, by)
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(ours.double(), theirs, **close)
    for one, other in zip(gradients, torch.autograd.grad(theirs, wide, by.double()), strict=True):
        torch.testing.assert_close(one.double() / other.abs().max(), other / other.abs().max(), **close)


@pytest.mark.usefixtures("by_operator")
@pytest.mark.parametrize("name", CASES)
def test_a_value_of_neighbouring_columns_is_read_as_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, given = _given(name, torch.float32)
    made = ng.fused(function)
    tensors = {t.name: t for t in parse(made.spec(*given)).tensors}
    names = function.__code__.co_varnames[: len(given)]
    expected = {names[place]: wanted for place, wanted in CASES[name][2].items()}
    for tensor, (role, group) in expected.items():
        assert tensors[tensor].group == group
        assert not role or tensors[tensor].role.value == f"{role}_parameter"
    taken: list[Tensor] = []
    run = fusing.FusedPlan.__call__

    def noted(plan: Any, tensors: list[Tensor]) -> Any:
        taken.extend(plan.given(tensors))
        return run(plan, tensors)

    monkeypatch.setattr(fusing.FusedPlan, "__call__", noted)
    made(*given)
    rows = max(t.numel() for t in given)
    sizes = dict(zip((read.name for read in made._plan(given, {}).traced.reads), taken, strict=True))
    for tensor, (_, group) in expected.items():
        assert not group or sizes[tensor].numel() * group <= rows  # not more than one for each row and group


@pytest.mark.usefixtures("by_operator")
def test_a_weight_of_channels_is_not_copied_in_front_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    function, given = _given("group_norm", torch.float32)
    seen: list[Tensor] = []
    run = fusing.FusedPlan.__call__
    monkeypatch.setattr(fusing.FusedPlan, "__call__", lambda plan, tensors: seen.extend(tensors) or run(plan, tensors))
    ng.fused(function)(*given)
    assert [tuple(t.shape) for t in seen] == [(3, 4, 72), (1, 4, 3), (1, 4, 3)]
    storages = [t.untyped_storage().data_ptr() for t in given]
    assert [t.untyped_storage().data_ptr() for t in seen] == storages


def test_a_value_of_columns_that_is_laid_out_in_another_order_is_never_run(monkeypatch: pytest.MonkeyPatch) -> None:
    right = cutting.Cut.laid

    def wrong(cut: cutting.Cut, step: Any, tensor: Tensor, group: int = 0) -> Tensor:
        found = right(cut, step, tensor, group)
        return found.flip(-1) if group else found

    monkeypatch.setattr(cutting.Cut, "laid", wrong)
    function, given = _given("group_norm", torch.float32)
    with pytest.raises(VerificationError, match=r"the parts that .* was cut into differ from it"):
        ng.fused(function).spec(*given)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", ["group_norm", "scale_shift", "of_images"])
def test_the_kernel_of_the_traced_spec_passes_the_check(name: str, direction: str) -> None:
    function, given = _given(name, torch.float32)
    spec = parse(ng.fused(function).spec(*given))
    samples = {"batches": 12} if name == "scale_shift" else {}
    shape = (3, 288) if name == "of_images" else (3, 4, 72)
    problem = problem_for(spec, shape=shape, direction=direction, **samples)
    found = check_on_cpu(problem, emit(problem, default_schedule(problem, DEVICE)), most_elements=1 << 14)
    assert found.ok, found.summary


@pytest.mark.usefixtures("by_operator")
def test_what_was_compared_for_a_table_does_not_stand_for_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    check = cutting.Cut.check
    monkeypatch.setattr(cutting.Cut, "check", lambda cut, title: seen.append(title) or check(cut, title))
    made, x = ng.fused(lambda x, w: F.layer_norm(x, x.shape[1:]) * w), torch.randn(3, C, 4, 6)
    for w in (torch.randn(C, 4, 6), torch.randn(C, 1, 1), torch.randn(C, 4, 1), torch.randn(C, 4, 6)):
        torch.testing.assert_close(made(x, w), F.layer_norm(x, x.shape[1:]) * w)
    assert len(seen) == 2


@pytest.mark.usefixtures("by_operator")
def test_other_sizes_share_a_comparison_and_have_groups_of_their_own() -> None:
    made = ng.fused(group_norm)
    for size in (2, 5, 5, 9):
        x, w, b = torch.randn(2, C, size, 3), torch.randn(C), torch.randn(C)
        torch.testing.assert_close(made(x, w, b), group_norm(x, w, b), rtol=1e-5, atol=1e-5)
        assert f"group = {3 * size}" in made.spec(x, w, b)
