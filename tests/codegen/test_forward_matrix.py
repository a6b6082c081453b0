"""Every spec x every knob x awkward layouts and formats: no fault, and every element inside its derived bound."""

from __future__ import annotations

import pytest

from normgen import verify
from normgen.choice.first import default_schedule
from normgen.cpu import find_compiler
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from tests.codegen.executors import CpuExecutor, GpuExecutor
from tests.codegen.layouts import DEVICE, SETS
from tests.codegen.matrix import LOST, MOST, SEEDS, report, sample, sets_of, wrong
from tests.samples import CORE, sized

EXTRA = sized(0, 300)
EXTRA_ON_GPU = sized(150, 1500)
matrix = pytest.mark.parametrize(
    ("op", "layouts", "seed"),
    [
        pytest.param(op, name, seed, id=f"{op}-{name}-seed{seed}")
        for seed in SEEDS
        for op in CORE
        for name in sets_of(op, SETS)
    ],
)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@matrix
def test_forward_kernels_are_right_on_the_cpu(op: str, layouts: str, seed: int) -> None:
    cases = sample(op, SETS[layouts], seed, extra=EXTRA, most=MOST)
    found = list(wrong(cases, CpuExecutor(), seed=seed))
    assert not found, report(found, cases)


@pytest.mark.gpu
@matrix
def test_forward_kernels_are_right_on_the_gpu(op: str, layouts: str, seed: int) -> None:
    cases = sample(op, SETS[layouts], seed, extra=EXTRA_ON_GPU)
    found = list(wrong(cases, GpuExecutor(), seed=seed))
    assert not found, report(found, cases)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_sum_of_squares_is_seen_to_lose_rows_with_a_large_mean() -> None:
    """What the matrix leaves out for this rewrite is what the check finds, and nothing else."""
    problem = problem_for(load("layernorm"), shape=(22, 768))
    schedule = Schedule(threads_per_row=256, hold="registers", unroll=0, variance="sum_of_squares")
    inputs, outputs = verify.make_inputs(problem), verify.make_outputs(problem)
    assert CpuExecutor().build([emit(problem, schedule)])[0].run(inputs, outputs) == ""
    found = verify.check(problem, inputs, outputs, chain=verify.longest_chain(problem, schedule))
    assert not found.ok
    assert found.tensor("y").ratios["large_mean"] > 100
    assert set(found.tensor("y").bad_families) <= set(LOST["sum_of_squares"])


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_statistics_the_caller_does_not_want_are_null_pointers() -> None:
    problem = problem_for(load("layernorm"), shape=(22, 768))
    built = CpuExecutor().build([emit(problem, default_schedule(problem, DEVICE))])[0]
    inputs, outputs = verify.make_inputs(problem), verify.make_outputs(problem)
    wanted = {"y": outputs.arrays["y"], "mean": None, "rstd": None}
    run = built.program.run({**inputs.arrays, **wanted}, rows=22, cols=768, scalars=inputs.scalars)
    assert not run.faults
    assert verify.check(problem, inputs, {"y": outputs.arrays["y"]}).ok
