"""Gradients through reductions over groups of columns, against references by hand, and their kernels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from normgen import verify
from normgen.choice.first import default_schedule
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.errors import SpecError
from normgen.pipeline import emit
from normgen.program.source import problem_for, written_program
from normgen.spec.reader import parse
from normgen.spec.spec import Spec
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor, GpuExecutor, new_workspace
from tests.codegen.matrix import report, wrong, wrong_backward
from tests.program.evaluate import evaluate

Array = npt.NDArray[np.float64]
H200 = target("h200")
GROUP = 16


def spec(name: str, *formulas: str) -> Spec:
    lines = "\n".join('{} = "{}"'.format(*formula.split(" = ")) for formula in formulas)
    weight = 'weight = "parameter"\n' if "weight" in lines else ""
    return parse(f'name = "{name}"\n[tensors]\nx = "input"\n{weight}y = "output"\n[formulas]\n{lines}\n')


def over_groups(reduce: Callable[..., Array], value: Array) -> Array:
    """Each element has what its group has."""
    grouped = value.reshape(-1, GROUP)
    return np.broadcast_to(reduce(grouped, axis=1, keepdims=True), grouped.shape).reshape(value.shape)


def scaled(x: Array, dy: Array, _: Array) -> tuple[Array, Array | None]:
    """y = x * sum(x²): dx = dy * sum(x²) + 2 x * sum(dy * x)."""
    return dy * over_groups(np.sum, x * x) + 2 * x * over_groups(np.sum, dy * x), None


def group_norm(x: Array, dy: Array, weight: Array) -> tuple[Array, Array | None]:
    """Wu and He 2018: LayerNorm's gradient in each group."""
    centred = x - over_groups(np.mean, x)
    rstd = 1 / np.sqrt(over_groups(np.mean, centred**2) + 1e-5)
    xhat, dxhat = centred * rstd, dy * weight
    dx = rstd * (dxhat - over_groups(np.mean, dxhat) - xhat * over_groups(np.mean, dxhat * xhat))
    return dx, (dy * xhat).sum(axis=0)


def softmax(x: Array, dy: Array, weight: Array) -> tuple[Array, Array | None]:
    e = np.exp(x - over_groups(np.max, x))
    p = e / over_groups(np.sum, e)
    return p * (dy * weight - over_groups(np.sum, dy * weight * p)), (dy * p).sum(axis=0)


def normalised(x: Array, dy: Array, _: Array) -> tuple[Array, Array | None]:
    """y = x / s where s = 1 + max |x|: the elements of that magnitude share its gradient, -sum(dy * x) / s²."""
    top = over_groups(np.max, np.abs(x))
    s, is_top = 1 + top, np.abs(x) == top
    share = is_top * np.sign(x) / over_groups(np.sum, is_top.astype(np.float64))
    return dy / s - share * over_groups(np.sum, dy * x) / s**2, None


def ranged(x: Array, dy: Array, _: Array) -> tuple[Array, Array | None]:
    """y = x * (max - min)."""
    top, low = over_groups(np.max, x), over_groups(np.min, x)
    shares = [(x == end) / over_groups(np.sum, (x == end).astype(np.float64)) for end in (top, low)]
    return dy * (top - low) + (shares[0] - shares[1]) * over_groups(np.sum, dy * x), None


def straight_through(_x: Array, dy: Array, _weight: Array) -> tuple[Array, Array | None]:
    """y = cast(x / s) * s with a constant s: dy goes through."""
    return dy, None


CASES: tuple[tuple[Spec, Callable[[Array, Array, Array], tuple[Array, Array | None]]], ...] = (
    (spec("scaled", "y = x * sum(x * x, 16)"), scaled),
    (
        spec("group_norm", "m = mean(x, 16)", "v = mean((x - m)**2, 16)", "y = (x - m) * rsqrt(v + 1e-5) * weight"),
        group_norm,
    ),
    (spec("group_softmax", "e = exp(x - max(x, 16))", "y = e / sum(e, 16) * weight"), softmax),
    (spec("normalised", "y = x / (absmax(x, 16) + 1)"), normalised),
    (spec("ranged", "y = x * (max(x, 16) - min(x, 16))"), ranged),
    (spec("quantised", "s = constant(absmax(x, 16)) / 448 + 1", "y = cast(x / s, f8e4m3) * s"), straight_through),
)
OF_ROWS = spec(  # values of groups and of rows that are made of each other
    "of_rows",
    "m = mean(x, 16)",
    "r = rsqrt(mean((x - m)**2) + 1e-5)",
    "s = absmax(x, 16) * r + 1",
    "y = (x - m) * r * weight / s",
)


OF_PRODUCTS = spec(  # extrema of what has a rounding of its own for each order of its factors
    "of_products",
    "y = x / (absmax(weight * (x * 1.7) * 0.3, 16) + absmax((x - weight) * weight * x, 16) + 1)",
)


@pytest.mark.parametrize(("spec", "by_hand"), CASES, ids=lambda value: getattr(value, "name", ""))
def test_gradients_match_those_by_hand(spec: Spec, by_hand: Callable[..., tuple[Array, Array | None]]) -> None:
    """Numbers that are often equal: in most groups several elements are the extremum."""
    rng = np.random.default_rng(7)
    x, dy, weight = np.round(2 * rng.standard_normal((5, 64))), rng.standard_normal((5, 64)), rng.standard_normal(64)
    problem = problem_for(spec, shape="5x64", direction="backward")
    got = evaluate(written_program(problem), {"x": x, "dy": dy, "weight": weight})
    dx, dweight = by_hand(x, dy, weight)
    np.testing.assert_allclose(got["dx"], dx, rtol=1e-12, atol=1e-12)
    if dweight is not None:
        np.testing.assert_allclose(got["dweight"], dweight, rtol=1e-12, atol=1e-12)


def test_a_mean_that_is_subtracted_costs_no_sum_of_what_is_left() -> None:
    program = written_program(problem_for(CASES[1][0], shape="4x64", direction="backward"))
    assert len([r for r in program.reduces if r.group]) == 4  # mean, variance, and two of dy


@pytest.mark.parametrize("spec", [OF_ROWS, OF_PRODUCTS, *(spec for spec, _ in CASES)], ids=lambda spec: spec.name)
def test_a_kernel_has_the_numbers_of_its_program(spec: Spec) -> None:
    """Without a bound, which has room for any number where float32 may find another element to be the extremum."""
    problem = problem_for(spec, shape="16x128", direction="backward")
    (kernel,) = CpuExecutor().build([emit(problem, default_schedule(problem, H200))])
    inputs, outputs = verify.make_inputs(problem, families=("normal",)), verify.make_outputs(problem)
    assert not kernel.run(inputs, outputs, workspace=new_workspace(kernel.module, problem.rows))
    want = evaluate(written_program(problem), {name: a.astype(np.float64) for name, a in inputs.arrays.items()})
    for name, array in outputs.arrays.items():
        np.testing.assert_allclose(array, want[name], rtol=2e-3, atol=2e-4, err_msg=name)


def test_groups_of_what_is_a_parameter_in_some_rows_have_a_bound() -> None:
    masked = spec("masked", "v = where(col <= row % cols, weight, 1.5)", "y = x + sum(maximum(v, 1e-30), 16)")
    problem = problem_for(masked, shape="7x64", direction="backward")
    assert all(slope.ok for slope in verify.prove(problem, written_program(problem)))


def test_the_gradient_of_a_group_statistic_is_not_lost_silently() -> None:
    text = 'name = "q"\n[tensors]\nx = "input"\ns = "group_statistic"\ny = "output"\n[formulas]\n'
    stored = parse(text + 's = "absmax(x, 16)"\ny = "x / (s + 1)"', file="q.toml")
    with pytest.raises(SpecError, match=r"q\.toml:4: .*gradient of a statistic, here of 's'"):
        problem_for(stored, shape="4x64", direction="backward")
    with pytest.raises(SpecError, match="unknown name in 'saved'"):
        parse(text + 's = "absmax(x, 16)"\ny = "x / (s + 1)"\n[backward]\nsaved = ["s"]')


def cases(direction: str) -> list[Case]:
    """Each in one shape; the forward kernels of those whose groups nest."""
    specs = [spec for spec, _ in CASES] if direction == "backward" else [CASES[1][0], CASES[2][0]]
    shapes = (("9x192", "bf16"), ("7x1024", "f32"))
    asked = [(spec, *shapes[number % 2]) for number, spec in enumerate((*specs, OF_ROWS, OF_PRODUCTS))]
    problems = [problem_for(s, shape=shape, dtype=dtype, direction=direction) for s, shape, dtype in asked]
    return [(problem, default_schedule(problem, H200)) for problem in problems]


def test_kernels_are_right_on_the_cpu() -> None:
    forward, backward = cases("forward"), cases("backward")
    found = [*wrong(forward, CpuExecutor(), seed=0), *wrong_backward(backward, CpuExecutor(), seed=0)]
    assert not found, report(found, [*forward, *backward])


@pytest.mark.gpu
def test_kernels_are_right_on_the_gpu() -> None:
    forward, backward = cases("forward"), cases("backward")
    found = [*wrong(forward, GpuExecutor(), seed=0), *wrong_backward(backward, GpuExecutor(), seed=0)]
    assert not found, report(found, [*forward, *backward])


def test_the_texts_compile_for_a_gpu() -> None:
    for case in (cases("forward")[-1], cases("backward")[-1]):
        compile_module(emit(*case), H200.arch)
