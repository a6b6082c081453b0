"""dweight over 65536 rows: within the derived bound, and far from what adding row after row in float32 loses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen import verify
from normgen.cpu import build, find_compiler
from normgen.device import target
from normgen.knobs import KNOBS
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.python.handle import kernel
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load

H200 = target("h200")
ROWS = 65536
IN_REGISTERS = Schedule(threads_per_row=2, rows_per_block=64, vector=8, hold="registers", unroll=0, persistent=2)


def tall(cols: int) -> Problem:
    return problem_for(
        load("rmsnorm"), shape=(ROWS, cols), dtype="bf16", dtypes={"weight": "f32"}, direction="backward"
    )


def schedule(columns: str) -> Schedule:
    persistent = 0 if columns in ("atomic", "shared_atomic") else 2
    return replace(IN_REGISTERS, columns=columns, persistent=persistent)


def run_on_cpu(problem: Problem, chosen: Schedule, inputs: verify.Inputs) -> verify.Outputs:
    assert refusal(problem, chosen, H200) is None
    outputs = verify.make_outputs(problem)
    run = build(emit(problem, chosen)).run(
        {**inputs.arrays, **outputs.arrays},
        rows=problem.rows,
        cols=problem.cols,
        scalars=inputs.scalars,
        sm_count=H200.sm_count,
        seed=5,
    )
    assert run.faults == (), run.faults
    return outputs


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("columns", [c for c in KNOBS["columns"].values if c not in ("atomic", "shared_atomic")])
def test_sums_over_65536_rows_keep_the_derived_bound_and_beat_one_long_sum(columns: str) -> None:
    problem, chosen = tall(16), schedule(columns)
    inputs = verify.make_inputs(problem, seed=1, families=("normal",))
    outputs = run_on_cpu(problem, chosen, inputs)
    verdict = verify.check(problem, inputs, outputs, rows=64, chain=verify.longest_chain(problem, chosen))
    assert verdict.ok, verdict.summary()
    dy, x, rstd = (inputs.arrays[name].astype(np.float64) for name in ("dy", "x", "rstd"))
    terms = dy * x * rstd[:, None]
    exact = terms.sum(axis=0)
    row_after_row = np.zeros(problem.cols, dtype=np.float32)
    for row in terms.astype(np.float32):
        row_after_row += row
    ours = np.abs(outputs.arrays["dweight"] - exact)
    assert ours.max() <= np.abs(row_after_row - exact).max() / 4  # 264 blocks of 64 row groups: short sums, then a tree


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_adversarial_rows_keep_the_derived_bound_in_a_sum_of_65536() -> None:
    problem, chosen = tall(16), schedule("partials_two_kernels")
    inputs = verify.make_inputs(problem, seed=2)
    outputs = run_on_cpu(problem, chosen, inputs)
    verdict = verify.check(problem, inputs, outputs, rows=64, chain=verify.longest_chain(problem, chosen))
    assert verdict.ok, verdict.summary()


@pytest.mark.gpu
@pytest.mark.parametrize("cols", [128, 1024])
@pytest.mark.filterwarnings("ignore:no record for")
def test_dweight_of_65536_rows_is_no_worse_than_torchs(cols: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    generator = np.random.default_rng(3)
    x, dy, weight = (
        torch.tensor(generator.standard_normal(size, dtype=np.float32), dtype=torch.bfloat16)
        for size in ((ROWS, cols), (ROWS, cols), (cols,))
    )
    wide = x.double()
    mean, rstd = wide.mean(1), 1 / (wide.var(1, unbiased=False) + 1e-5).sqrt()
    exact = (dy.double() * (wide - mean[:, None]) * rstd[:, None]).sum(0).numpy()
    on_gpu = [array.cuda() for array in (dy, x, weight)]
    ours = kernel("layernorm", shape=(ROWS, cols), dtype="bf16", direction="backward")
    _, dweight, _ = ours(*on_gpu, mean.float().cuda(), rstd.float().cuda())
    _, theirs, _ = torch.ops.aten.native_layer_norm_backward(
        on_gpu[0],
        on_gpu[1],
        [cols],
        mean.float().cuda()[:, None],
        rstd.float().cuda()[:, None],
        on_gpu[2],
        torch.zeros_like(on_gpu[2]),
        [True, True, True],
    )
    worst = [np.abs(one.double().cpu().numpy() - exact).max() for one in (dweight, theirs)]
    last_place = np.abs(exact).max() * 2**-8  # both round to bfloat16 at the end
    assert worst[0] <= max(worst[1], last_place)
