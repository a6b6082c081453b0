"""Column sums finished by the last block to arrive at each tile of columns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.cpu import FaultKind, build, find_compiler
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.plan import last_tile_sums, last_tiles
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.verify import make_inputs, make_outputs
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor, new_workspace
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong_backward

TILES = Schedule(
    threads_per_row=64, vector=4, hold="registers", unroll=0, persistent=3, columns="partials_last_tile", stages=2
)
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


def backward(op: str = "layernorm", shape: str = "37x1024", dtype: str = "bf16", **more: int) -> Problem:
    return problem_for(load(op), shape=shape, dtype=dtype, direction="backward", **more)


CASES: dict[str, Case] = {
    "two outputs": (backward(), TILES),
    "one output": (backward("rmsnorm", dtype="f32"), TILES),
    "rows side by side": (backward(shape="61x512"), replace(TILES, rows_per_block=4, threads_per_row=32)),
    "rows within a warp": (
        backward("rmsnorm", shape="333x64"),
        replace(TILES, rows_per_block=16, threads_per_row=8),
    ),
    "incomplete last vector": (backward(shape="29x997", pitch=1000), replace(TILES, edges="masked")),
    "clusters": (backward(), replace(TILES, cluster=2)),
    "more blocks than rows": (backward(shape="2x1024"), TILES),
    "no rows": (backward(shape="0x1024"), TILES),
    "added to what is there": (
        problem_for(load("layernorm"), shape="21x256", direction="backward", accumulate=True),
        TILES,
    ),
}


@needs_compiler
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_last_arrivers_are_right_in_any_order_of_blocks(seed: int) -> None:
    for problem, schedule in CASES.values():
        assert refusal(problem, schedule, DEVICE) is None
    found = list(wrong_backward(list(CASES.values()), CpuExecutor(), seed=seed))
    assert not found, report(found, list(CASES.values()))


@pytest.mark.parametrize("name", CASES)
def test_last_arrivers_compile(name: str) -> None:
    assert compile_module(emit(*CASES[name]), 90).data


@pytest.mark.parametrize(("op", "cols"), [("rmsnorm", 32), ("layernorm", 768), ("layernorm", 4096), ("rmsnorm", 5000)])
def test_tiles_cover_every_cell_with_at_most_eight_counters(op: str, cols: int) -> None:
    problem = backward(op, shape=f"4096x{cols}")
    vector = 8 if cols % 8 == 0 else 4
    schedule = replace(TILES, vector=vector)
    cells = problem.column_outputs * -(-cols // 32) * 32
    size, tiles = last_tile_sums(problem), last_tiles(problem)
    assert size % 128 == 0
    assert (tiles - 1) * size < cells <= tiles * size
    assert tiles <= 8
    assert emit(problem, schedule).workspace.fixed == 128 * tiles


@needs_compiler
def test_a_block_that_does_not_wait_for_its_threads_before_it_arrives_gives_wrong_sums_or_a_race() -> None:
    problem, schedule = CASES["rows side by side"]
    module = emit(problem, schedule)
    inputs, outputs = make_inputs(problem, seed=0), make_outputs(problem)
    assert module.text.count("  group_sums[") > 0
    arrival = "  if (threadIdx.x == 0) is_last"
    early = module.text.replace(f"  __syncthreads();\n{arrival}", arrival)
    assert early != module.text
    run = build(replace(module, text=early)).run(
        {**inputs.arrays, **outputs.arrays},
        rows=problem.rows,
        cols=problem.cols,
        scalars=inputs.scalars,
        sm_count=DEVICE.sm_count,
        workspace=new_workspace(module, problem.rows),
        seed=3,
    )
    assert FaultKind.SHARED_RACE in {fault.kind for fault in run.faults}


def test_the_last_tile_needs_shared_memory_for_its_warps() -> None:
    problem = backward(shape="4096x16384")
    plain = Schedule(threads_per_row=1024, vector=8, hold="shared", unroll=0, persistent=1)
    fits = target("h200")
    small = replace(fits, name="a small GPU", shared_per_block=16384 * 4 + 4096)
    assert refusal(problem, plain, small) is None
    reason = refusal(problem, replace(plain, columns="partials_last_tile"), small)
    assert reason is not None
    assert "shared memory" in reason
