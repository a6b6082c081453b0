"""Formulas that each use the one before twice: what is derived and emitted grows with their number, not as 2 to it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from normgen.choice.first import default_schedule
from normgen.device import target
from normgen.knobs import VarianceMethod
from normgen.pipeline import emit
from normgen.problem.question import Direction
from normgen.program.lower import lower
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import parse
from normgen.spec.spec import Spec
from tests.program.gradient.backward_cases import data_for, finite_differences, run_backward

H200 = target("h200")
MEAN = "0.1 * mean(x**2)"
NORM = "x * rsqrt(f0)"
# The innermost formula; each of the others, {i}, of the one before, {j}, or of the two before; the result.
CHAINS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "a square and itself": (MEAN, ('f{i} = "f{j}*f{j} + f{j}"',), "x * rsqrt(f0 + 1)"),
    "a quotient": (MEAN, ('f{i} = "f{j} / (f{j} + 1) + f{j}"',), "x * rsqrt(f0 + 1)"),
    "a branch": (MEAN, ('f{i} = "where(f{j} > 1, f{j}*f{j}, f{j}) * 0.5 + f{j}"',), "x * rsqrt(f0 + 1)"),
    "the two before": (f"{MEAN} + 1", ('f{i} = "f{j} * f{k}"',), NORM),
    "two functions": (f"{MEAN} + 1", ('g{i} = "tanh(f{j})"', 'h{i} = "sqrt(f{j})"', 'f{i} = "g{i}*h{i}"'), NORM),
    "two multiples": (f"{MEAN} + 1", ('g{i} = "f{j} * 0.5"', 'h{i} = "f{j} * 1.5"', 'f{i} = "g{i}*h{i}"'), NORM),
    "elements in branches": (
        "x + 1",
        ('g{i} = "where(f{j} > 0, sqrt(f{j}), 0)"', 'h{i} = "where(f{j} > 0, log(f{j}), 0)"', 'f{i} = "g{i} + h{i}"'),
        "f0 * 2",
    ),
    "parameters": ("0.1 * w", ('f{i} = "f{j}*f{j} + f{j}"',), "x * f0"),
    "one number": ("0.1 * s", ('f{i} = "f{j}*f{j} + f{j}"',), "x * f0"),
    "groups": ("0.1 * mean(x**2, 4)", ('f{i} = "f{j}*f{j} + f{j}"',), "x * rsqrt(f0 + 1)"),
}


def nested(name: str, depth: int) -> Spec:
    base, steps, result = CHAINS[name]
    formulas = [f'f{depth + 1} = "{base}"'] * ("{k}" in steps[0]) + [f'f{depth} = "{base}"']
    for i in reversed(range(depth)):
        formulas += [step.format(i=i, j=i + 1, k=i + 2) for step in steps]
    roles = {"x": "input", "w": "parameter", "s": "scalar_parameter", "y": "output"}
    read = " ".join([base, result]).split()
    tensors = [f'{t} = "{role}"' for t, role in roles.items() if t in ("x", "y") or t in read]
    lines = [f'name = "nested_{depth}"', 'summary = "made up"', "[tensors]", *tensors, "[formulas]", *formulas]
    return parse("\n".join([*lines, f'y = "{result}"', ""]))


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fails after so many seconds of the CPU's time: what grows as 2 to the depth would take days."""

    def fail(*_: object) -> None:
        raise TimeoutError(f"not done in {seconds} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, fail)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("name", "depth"), [*((name, 24) for name in CHAINS), ("a square and itself", 40)])
def test_a_kernel_is_emitted_in_a_time_that_does_not_double_with_each_formula(
    name: str, depth: int, direction: Direction
) -> None:
    with within(6):
        problem = problem_for(nested(name, depth), shape="6x32", direction=direction)
        source = emit(problem, default_schedule(problem, H200)).source
    assert len(source) < 120_000


@pytest.mark.parametrize("name", CHAINS)
def test_gradients_through_many_formulas_match_differences(name: str) -> None:
    """At a depth whose cotangents, written out, have more terms than are kept without a name."""
    program = lower(nested(name, 8))
    inputs = {n: np.asarray(np.abs(v) + 0.1) for n, v in data_for(program, cols=8).items()}
    dys = {"y": np.random.default_rng(1).normal(size=(3, 8))}
    got = run_backward(program, inputs, dys)
    for tensor in inputs:
        want = finite_differences(program, inputs, dys, tensor)
        np.testing.assert_allclose(got[f"d{tensor}"], want, rtol=1e-6, atol=1e-6 * np.abs(want).max(), err_msg=tensor)


def test_a_pivot_of_nested_formulas_is_computed_formula_by_formula() -> None:
    formulas = ['f18 = "x"']
    for i in reversed(range(18)):
        formulas += [f'g{i} = "tanh(f{i + 1})"', f'f{i} = "g{i} * f{i + 1} + g{i}"']
    formulas += ['m = "mean(f0)"', 'v = "mean((f0 - m)**2)"', 'y = "(f0 - m) * rsqrt(v + 1)"']
    head = ['name = "nested"', 'summary = "made up"', "[tensors]", 'x = "input"', 'y = "output"', "[formulas]"]
    with within(6):
        problem = problem_for(parse("\n".join([*head, *formulas])), shape="6x32")
        source = emit(problem, Schedule(variance=VarianceMethod.SHIFTED)).source
    assert "const float row_f0_first = row_f1_first * row_g0_first + row_g0_first;" in source
