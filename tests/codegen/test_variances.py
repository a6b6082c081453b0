"""Every way to compute a variance, run on the CPU executor on the rows that tell them apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from normgen import verify
from normgen.cpu import find_compiler
from normgen.knobs import KNOBS, VarianceMethod
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from tests.codegen.executors import CpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
HELD = {"hold": "registers", "unroll": 0}
RING = {"persistent": 1, "stages": 2}
# Everyone who may share a barrier or a warp with a row that takes the other branch, and every way for a row to wait.
SIDE_BY_SIDE: dict[str, dict[str, Any]] = {
    "thread": {"threads_per_row": 1, "rows_per_block": 32, "vector": 4},
    "lanes": {"threads_per_row": 8, "rows_per_block": 16, "vector": 4, **HELD},
    "warp": {"threads_per_row": 32, "rows_per_block": 4, "vector": 4, **HELD},
    "tiles": {"threads_per_row": 16, "rows_per_block": 4, "vector": 4, "reduce_with": "cooperative_groups", **HELD},
    "block": {"threads_per_row": 128, "vector": 2, **HELD},
    "named barriers": {"threads_per_row": 256, "rows_per_block": 2, "vector": 1, **HELD},
    "named barriers of tiles": {
        **{"threads_per_row": 256, "rows_per_block": 2, "vector": 1, "reduce_with": "cooperative_groups"},
        **{"persistent": 1, **HELD},
    },
    "tree": {"threads_per_row": 96, "vector": 4, "reduce_with": "shared_tree", **HELD},
    "cluster": {"threads_per_row": 32, "vector": 4, "cluster": 2, **HELD},
    "row loop": {"threads_per_row": 128, "vector": 2, **RING, **HELD},
    "lanes in a row loop": {"threads_per_row": 16, "rows_per_block": 4, "vector": 4, **RING, **HELD},
    "copies in shared memory": {"threads_per_row": 64, "vector": 4, "hold": "shared", "copy": "cp_async", **RING},
    "bulk copies to registers": {"threads_per_row": 64, "vector": 4, "copy": "bulk", **RING, **HELD},
}


def layernorm(rows: int, cols: int, dtype: str = "f32") -> Problem:
    return problem_for(load("layernorm"), shape=(rows, cols), dtype=dtype)


def run(schedule: Schedule, inputs: verify.Inputs) -> verify.Outputs:
    """The outputs of the emitted kernel, which has no fault."""
    problem = inputs.problem
    outputs = verify.make_outputs(problem)
    assert CpuExecutor().build([emit(problem, schedule)])[0].run(inputs, outputs) == ""
    return outputs


def verdict(schedule: Schedule, inputs: verify.Inputs) -> verify.Verdict:
    problem = inputs.problem
    return verify.check(problem, inputs, run(schedule, inputs), chain=verify.longest_chain(problem, schedule))


def of_level(problem: Problem, level: float) -> verify.Inputs:
    """Rows of N(level, 1)."""
    inputs = verify.make_inputs(problem, families=("normal",))
    inputs.arrays["x"][...] += np.float32(level)
    return inputs


def errors(inputs: verify.Inputs, outputs: verify.Outputs) -> tuple[float, float]:
    """The largest errors of y and mean, against float64."""
    x, weight, bias = (inputs.arrays[name].astype(np.float64) for name in ("x", "weight", "bias"))
    mean = x.mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt(x.var(axis=1, keepdims=True) + inputs.scalars["eps"])
    y = (x - mean) * rstd * weight + bias
    return float(np.abs(outputs.arrays["y"] - y).max()), float(np.abs(outputs.arrays["mean"] - mean[:, 0]).max())


@pytest.mark.parametrize("threads", [32, 128])
def test_the_residuals_bring_a_large_mean_to_within_its_own_rounding(threads: int) -> None:
    """At 513 cols and mean 1000 two_pass is off by 2.0e-4 (32 threads) and 1.4e-4 (128), corrected by 5e-5."""
    inputs = of_level(layernorm(512, 513), 1000.0)
    as_written, corrected = (
        errors(inputs, run(Schedule(threads_per_row=threads, variance=variance, **HELD), inputs))
        for variance in (VarianceMethod.TWO_PASS, VarianceMethod.CORRECTED_TWO_PASS)
    )
    half_spacing = 2.0**-15  # of the float32 numbers from 512 to 1024: what any method pays that stores the mean
    assert corrected[1] <= 1.01 * half_spacing
    assert as_written[1] > 2 * half_spacing
    assert corrected[0] < as_written[0] / 2


@pytest.mark.parametrize("family", ["normal", "huge", "mixed_sign", "stretch", "tail"])
def test_a_mean_near_0_is_as_exact_as_the_sum_it_comes_from(family: str) -> None:
    """Residuals round all to one side where they are coarser than the mean: of mixed signs they are off by 0.4 u σ."""
    inputs = verify.make_inputs(layernorm(64, 513), families=(family,))
    as_written, corrected = (
        run(Schedule(threads_per_row=32, variance=variance, **HELD), inputs).arrays["mean"]
        for variance in (VarianceMethod.TWO_PASS, VarianceMethod.CORRECTED_TWO_PASS)
    )
    assert np.array_equal(as_written, corrected)
    assert np.any(corrected)


@pytest.mark.parametrize(("cols", "dtype"), [(96, "f32"), (513, "f32"), (1000, "bf16"), (4097, "f16"), (16384, "f32")])
def test_searched_variances_are_within_their_bound_on_every_family(cols: int, dtype: str) -> None:
    inputs = verify.make_inputs(layernorm(verify.FAMILY_ROWS, cols, dtype))
    for variance in (v for v in KNOBS["variance"].forward if v != VarianceMethod.TWO_PASS):
        found = verdict(Schedule(threads_per_row=128, variance=variance, **HELD), inputs)
        assert found.ok, f"{variance}: {found.summary()}"


def at_the_threshold(rows: int, cols: int) -> verify.Inputs:
    """Rows in turn: at the threshold, a little this side of it, a little that side, far from it on either side, NaN."""
    inputs = verify.make_inputs(layernorm(rows, cols), families=("normal",))
    x = inputs.arrays["x"]
    x[1::6] += np.float32(100.0)  # sums to more than float32 holds: its mean is corrected
    for first, element in ((0, 4.0), (2, 4.001), (3, 3.999)):
        x[first::6] = np.where(np.arange(cols) % 4, 0.0, 4.0)
        x[first::6, 0] = element
    x[2::6, 1], x[3::6, 1] = -0.001, 0.001
    x[5::6, 7] = np.nan
    return inputs


@pytest.mark.parametrize("name", list(SIDE_BY_SIDE))
def test_each_row_takes_its_own_branch_whatever_lies_beside_it(name: str) -> None:
    """A guarded row has the bits of sum_of_squares where it is spared the second look, else of corrected_two_pass."""
    inputs = at_the_threshold(45, 512)
    schedule = Schedule(**SIDE_BY_SIDE[name])
    assert refusal(inputs.problem, replace(schedule, variance=VarianceMethod.GUARDED), DEVICE) is None
    guarded, fast, slow = (
        run(replace(schedule, variance=variance), inputs).arrays
        for variance in (VarianceMethod.GUARDED, VarianceMethod.SUM_OF_SQUARES, VarianceMethod.CORRECTED_TWO_PASS)
    )
    is_fast = np.isin(np.arange(45) % 6, (0, 2, 4))
    for tensor in ("y", "mean", "rstd"):
        rows = is_fast if tensor != "y" else is_fast[:, None]
        want = np.where(rows, fast[tensor], slow[tensor])
        assert np.array_equal(guarded[tensor], want, equal_nan=True), tensor
        assert not np.array_equal(fast[tensor], slow[tensor], equal_nan=True), "the branches can be told apart"
    assert verify.check(inputs.problem, inputs, guarded, chain=verify.longest_chain(inputs.problem, schedule)).ok


@pytest.mark.parametrize(("name", "votes"), [("lanes", True), ("tiles", True), ("warp", False), ("thread", False)])
def test_lanes_of_several_rows_enter_the_branch_together(name: str, votes: bool) -> None:
    """The shuffles within name all lanes of the warp. The executor would let shuffles of two places meet."""
    module = emit(layernorm(45, 512), Schedule(variance=VarianceMethod.GUARDED, **SIDE_BY_SIDE[name]))
    needed = "!(row_x_margin >= 0.0f)"
    branch = f"kThreadsPerRow < 32 ? __any_sync(0xffffffffu, {needed}) : {needed}"
    assert (f"if ({branch}) {{" in module.text) == (name != "thread")
    assert votes == (Schedule(**SIDE_BY_SIDE[name]).threads_per_row in range(2, 32))


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"threads_per_row": 64, "rows_per_block": 2}, "rows that share a block's barriers"),
        ({"threads_per_row": 256, "rows_per_block": 2, "reduce_with": "shared_tree"}, "rows that share a block's"),
        ({"threads_per_row": 8, "rows_per_block": 16, "reduce_with": "shared_tree"}, "rows that share a block's"),
        ({"threads_per_row": 128, "cluster": 2, "persistent": 1}, "clusters that loop over rows count every exchange"),
    ],
)
def test_a_branch_that_others_wait_behind_is_refused(knobs: dict[str, Any], says: str) -> None:
    problem, schedule = layernorm(4096, 1024), Schedule(vector=4, hold="shared", **knobs)
    told = refusal(problem, replace(schedule, variance=VarianceMethod.GUARDED), DEVICE)
    assert told is not None
    assert says in told
    assert refusal(problem, schedule, DEVICE) is None


@pytest.mark.parametrize(("kappa", "is_spared"), [(0.33, True), (0.34, False), (300.0, False)])
def test_rows_on_either_side_of_the_threshold_are_within_their_bound(kappa: float, is_spared: bool) -> None:
    """mean^2 / variance is kappa. At 0.33 rstd takes 4 % of its bound by the sum of squares, at 300 3.3 times it."""
    inputs = verify.make_inputs(layernorm(60, 4096), families=("normal",))
    rng, x = np.random.default_rng(1), inputs.arrays["x"]
    noise = [rng.standard_normal((20, 4096)), rng.uniform(size=(20, 4096)), rng.choice([-1.0, 1.0], (20, 4096))]
    noise[2] *= 1 + 1e-6 * rng.standard_normal((20, 4096))
    spread = np.concatenate([(n - n.mean(axis=1, keepdims=True)) / n.std(axis=1, keepdims=True) for n in noise])
    x[...] = spread + np.sqrt(kappa)
    schedule = Schedule(threads_per_row=32, variance=VarianceMethod.GUARDED, **HELD)
    fast = replace(schedule, variance=VarianceMethod.SUM_OF_SQUARES)
    outputs = run(schedule, inputs)
    assert np.array_equal(outputs.arrays["y"], run(fast, inputs).arrays["y"]) is is_spared
    assert verdict(schedule, inputs).tensor("rstd").max_ratio < 0.1
    assert verdict(fast, inputs).ok is (kappa < 1)


def test_a_sum_of_squares_that_overflows_is_looked_at_again() -> None:
    inputs = verify.make_inputs(layernorm(8, 512), families=("large_constant",))
    inputs.arrays["x"][::2] = np.float32(2e18)  # its square overflows after 86 elements; the variance is 0
    schedule = Schedule(threads_per_row=32, rows_per_block=4, vector=4, variance=VarianceMethod.GUARDED, **HELD)
    outputs = run(schedule, inputs)
    assert np.allclose(outputs.arrays["rstd"], 1e-5**-0.5)
    assert np.all(outputs.arrays["mean"][::2] == np.float32(2e18))


def test_a_guarded_look_tests_only_the_last_of_its_steps() -> None:
    """Of 370 vectors 64 threads have five each, and the last step is not everyone's; two blocks of 96 have one."""
    guarded = Schedule(threads_per_row=64, vector=4, variance="guarded", **HELD)
    rows = problem_for(load("layernorm"), shape="41x1480", dtype="bf16")
    uneven = [guarded, replace(guarded, threads_per_row=96, cluster=2), replace(guarded, hold="reload", unroll=1)]
    for schedule in uneven:
        assert refusal(rows, schedule, DEVICE) is None
        assert "if (step < kFullSteps || vector < kVectors)" in emit(rows, schedule).source
    found = list(wrong([(rows, schedule) for schedule in uneven], CpuExecutor(), seed=4))
    assert not found, report(found, [(rows, schedule) for schedule in uneven])
    for other in (
        replace(guarded, variance="two_pass"),
        replace(guarded, threads_per_row=32, rows_per_block=4),  # whose lanes have a bound that the compiler knows
        replace(guarded, threads_per_row=96, vector=4, cluster=4),
    ):
        assert "kFullSteps" not in emit(rows, other).source
