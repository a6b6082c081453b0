"""Eager calls that are repeated by the launcher: the emitted text on the CPU, above a driver of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import normgen.torch as ng  # noqa: E402
from normgen.dtypes import DType  # noqa: E402
from normgen.errors import UsageError  # noqa: E402
from normgen.operators import launch  # noqa: E402
from normgen.python import any_rows, handle, kernels, repeat  # noqa: E402
from normgen.spec.reader import load  # noqa: E402
from normgen.torch import calls, functional  # noqa: E402
from normgen.torch.eager import EagerCall  # noqa: E402
from tests.python.devices import NEEDS_COMPILER  # noqa: E402
from tests.python.launching import (  # noqa: E402
    HERE,
    INCLUDE,
    LAUNCHER,
    NEEDS_BUILD,
    LauncherCpu,
    compiled,
    loaded,
)
from tests.torch.cases import readies  # noqa: E402

pytestmark = [NEEDS_BUILD, NEEDS_COMPILER]


class TorchCpu(LauncherCpu):
    """Its new arrays are torch's."""

    def new_like(self, array: Any, shape: tuple[int, ...], dtype: DType, strides: Any = None) -> Any:
        assert strides is None
        return array.new_empty(shape, dtype=getattr(torch, dtype.torch))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("launcher")
    module = loaded(compiled(LAUNCHER, folder / "_launcher.so", f"-I{INCLUDE}"))
    return module, compiled([HERE / "driver.c"], folder / "libdriver.so")


@pytest.fixture
def device(libraries: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> TorchCpu:
    launcher, driver = libraries
    monkeypatch.setattr(repeat, "_launcher", launcher)
    monkeypatch.setattr(repeat, "IS_BUILT", True)
    monkeypatch.setattr(repeat, "_admitted", {})
    made = TorchCpu(driver)
    for module in (handle, kernels):
        monkeypatch.setattr(module, "executor_for", lambda _: made)
    make = launch.kernel
    monkeypatch.setattr(launch, "kernel", lambda *args, **named: make(*args, **{**named, "device": "cpu"}))
    monkeypatch.setattr(calls, "takes_a_kernel", lambda _, here: all(t.dtype != torch.float64 for t in here))
    return made


def own(op: str, **options: Any) -> ng.Operator:
    """An operator that no other test has called: of the same spec by another name."""
    text = load(op).text
    own.count += 1  # type: ignore[attr-defined]
    return ng.operator(text.replace(f'name = "{op}"', f'name = "own{own.count}_{op}"', 1), **options)  # type: ignore[attr-defined]


own.count = 0  # type: ignore[attr-defined]


def gradients(call: Any, leaves: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    y = call(*leaves)
    needed = [leaf for leaf in leaves if leaf.requires_grad]
    return (y.detach(), *torch.autograd.grad((y * y).sum(), needed))


def inputs(rows: int, cols: int, needed: tuple[bool, ...] = (True, True, True)) -> tuple[torch.Tensor, ...]:
    sizes = ((rows, cols), (cols,), (cols,))
    return tuple(torch.randn(size, requires_grad=n) for size, n in zip(sizes, needed, strict=True))


def test_calls_alike_are_repeated_and_others_are_not_mistaken_for_them(device: TorchCpu) -> None:
    norm = own("layernorm")
    shapes = [(3, 64), (5, 64), (3, 96), (3, 64), (5, 64)]
    for needed in ((True, True, True), (False, True, False), (True, False, False)):
        for rows, cols in shapes:
            leaves = inputs(rows, cols, needed)
            got, want = gradients(norm, leaves), gradients(norm.decomposition, leaves)
            for one, other in zip(got, want, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    before = len(device.seen)
    checked: list[Any] = []
    steps = {id(step): step for step in norm._calls.known.values() if isinstance(step, EagerCall)}.values()
    assert steps
    for step in steps:
        step.ready._made.checked = lambda *args: checked.append(args)
    leaves = inputs(3, 64, (False, True, False))
    torch.testing.assert_close(norm(*leaves), norm.decomposition(*leaves), rtol=1e-4, atol=1e-4)
    assert checked == []
    assert len(device.seen) == before + 1


@pytest.mark.parametrize(
    "given",
    [
        lambda: (torch.randn(3, 64).bfloat16(), torch.randn(64), None),
        lambda: (torch.randn(3, 64), None, torch.randn(64)),
        lambda: (torch.randn(6, 64)[::2], torch.randn(64), torch.randn(64)),
        lambda: (torch.randn(64, 3).T, torch.randn(64), torch.randn(64)),
        lambda: (torch.randn(3, 64), torch.randn(128)[::2], torch.randn(64)),
        lambda: (torch.randn(3, 64).double(), torch.randn(64).double(), None),
    ],
    ids=["bf16", "no weight", "rows apart", "columns apart", "a weight with gaps", "float64"],
)
def test_a_call_of_the_same_shape_in_another_layout_or_dtype_is_its_own(device: TorchCpu, given: Any) -> None:
    assert device is not None
    norm = own("layernorm")
    plain = inputs(3, 64, (False, False, False))
    for _ in range(3):
        torch.testing.assert_close(norm(*plain), norm.decomposition(*plain), rtol=1e-4, atol=1e-4)
        other = given()
        got, want = norm(*other), norm.decomposition(*other)
        assert got.dtype == want.dtype == other[0].dtype
        torch.testing.assert_close(got, want, rtol=1e-2 if got.dtype == torch.bfloat16 else 1e-4, atol=1e-2)


def test_another_scalar_is_another_result(device: TorchCpu) -> None:
    assert device is not None
    norm = own("rmsnorm")
    x, weight, _ = inputs(3, 64, (False, False, False))
    for eps in (1e-5, 1.0, 1e-5):
        torch.testing.assert_close(norm(x, weight, eps), norm.decomposition(x, weight, eps), rtol=1e-4, atol=1e-5)


def test_any_number_of_rows_is_one_handle_whose_schedule_follows_them(device: TorchCpu) -> None:
    assert device is not None
    norm = own("rmsnorm", rows="any")
    for rows in (1, 3, 700, 3, 0):
        x, weight, _ = inputs(rows, 64)
        got, want = gradients(norm, (x, weight)), gradients(norm.decomposition, (x, weight))
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    made = [ready._made for ready in readies(norm._calls.known) if ready.is_kernel]
    assert len(made) == 2  # forward and backward
    assert all(isinstance(kernel, any_rows.AnyRows) for kernel in made)
    assert all(len(kernel._by_band) == 3 for kernel in made)


def test_rows_are_any_or_those_of_the_calls() -> None:
    with pytest.raises(UsageError, match="rows are those of each call"):
        ng.operator(load("rmsnorm"), rows="all")


@pytest.mark.parametrize("is_wanted", [False, True])
def test_a_mean_of_losses_is_a_kernel_its_finish_and_a_division(
    device: TorchCpu, is_wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = own("cross_entropy_total", returns=("total_loss", "counted"))
    monkeypatch.setattr(functional, "_reduced_by", lambda _: loss)
    logits, labels = torch.randn(5, 64, requires_grad=is_wanted), torch.tensor([1, -100, 63, 0, -100])
    first = ng.cross_entropy(logits, labels)  # that call teaches the launcher
    if is_wanted:
        first.backward()
    before = len(device.seen)
    mean = ng.cross_entropy(logits, labels)
    assert len(device.seen) == before + 2
    want = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(mean, want)
    if is_wanted:
        (node,) = [function for function, _ in mean.grad_fn.next_functions if function is not None]
        assert type(node).__name__ == "AccumulateGrad"  # nothing of torch's stands between the mean and its logits
        torch.testing.assert_close(*(torch.autograd.grad(y, logits)[0] for y in (mean, want)))
        assert len(device.seen) == before + 3


def test_a_total_is_added_in_one_order_once_torch_asks_for_it(
    device: TorchCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device is not None
    make, asked = launch.kernel, []
    monkeypatch.setattr(
        launch, "kernel", lambda *args, **named: asked.append(named["deterministic"]) or make(*args, **named)
    )  # type: ignore[func-returns-value]
    total, x = own("full_sum"), torch.randn(6, 64)
    try:
        for is_ordered in (False, True, False, True):
            torch.use_deterministic_algorithms(is_ordered)
            for run in (total, total.operators.plain):
                given = (x,) if run is total else (x, torch.float32)
                torch.testing.assert_close(run(*given), x.sum())
    finally:
        torch.use_deterministic_algorithms(False)
    assert asked == [False, True]
