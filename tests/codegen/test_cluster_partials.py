"""Column sums that the blocks of a cluster, each with rows of its own, add through distributed shared memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.codegen.module import Module
from normgen.cpu import FaultKind, build, find_compiler
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.plan import shared_bytes, steps_per_lane
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import space
from normgen.spec.reader import load
from normgen.verify import make_inputs, make_outputs
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor, new_workspace
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong_backward

H200 = target("h200")
PAIRS = Schedule(
    **{"threads_per_row": 64, "vector": 4, "hold": "registers", "unroll": 0, "persistent": 3, "stages": 2},
    **{"columns": "cluster_partials", "cluster": 2},
)
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


def backward(op: str = "layernorm", shape: str = "37x1024", dtype: str = "bf16", **more: int) -> Problem:
    return problem_for(load(op), shape=shape, dtype=dtype, direction="backward", **more)


CASES: dict[str, Case] = {
    "two outputs": (backward(), PAIRS),
    "one output, four blocks": (backward("rmsnorm", dtype="f32"), replace(PAIRS, cluster=4, params="kept")),
    "eight blocks": (backward(shape="61x256", dtype="f32"), replace(PAIRS, cluster=8, dependent_launch="end")),
    "rows side by side": (backward(shape="61x512"), replace(PAIRS, rows_per_block=4, threads_per_row=32)),
    "rows within a warp": (backward("rmsnorm", shape="333x64"), replace(PAIRS, rows_per_block=16, threads_per_row=8)),
    "incomplete last vector": (backward(shape="29x997", pitch=1000), replace(PAIRS, edges="masked", cluster=4)),
    "peeled": (backward(shape="41x1001"), replace(PAIRS, edges="peel")),
    "peeled, side by side": (
        backward("rmsnorm", shape="67x515"),
        replace(PAIRS, edges="peel", rows_per_block=2, vector=8, threads_per_row=32),
    ),
    "rows by bulk copies": (backward(), replace(PAIRS, copy="bulk", stages=3)),
    "rows read again": (backward(dtype="f32"), replace(PAIRS, hold="reload", stages=1)),
    "more blocks than rows": (backward(shape="2x1024"), replace(PAIRS, cluster=4)),
    "no rows": (backward(shape="0x1024"), PAIRS),
    "added to what is there": (
        problem_for(load("layernorm"), shape="21x256", direction="backward", accumulate=True),
        PAIRS,
    ),
}


@needs_compiler
@pytest.mark.parametrize("seed", [0, 1])
def test_sums_of_clusters_are_right_and_the_same_in_any_order_of_blocks(seed: int) -> None:
    for name, (problem, schedule) in CASES.items():
        assert refusal(problem, schedule, DEVICE) is None, name
    found = list(wrong_backward(list(CASES.values()), CpuExecutor(), seed=seed))
    assert not found, report(found, list(CASES.values()))


@pytest.mark.parametrize("name", CASES)
def test_sums_of_clusters_compile_for_sm_90(name: str) -> None:
    module = emit(*CASES[name])
    assert module.min_arch == 90
    assert compile_module(module, 90).data


def faults_of(module: Module, problem: Problem) -> set[FaultKind]:
    inputs, outputs = make_inputs(problem, seed=0), make_outputs(problem)
    run = build(module).run(
        {**inputs.arrays, **outputs.arrays},
        rows=problem.rows,
        cols=problem.cols,
        scalars=inputs.scalars,
        sm_count=DEVICE.sm_count,
        workspace=new_workspace(module, problem.rows),
    )
    return {fault.kind for fault in run.faults}


WAITS = "  cluster_arrive();\n  cluster_wait();"


def without_barrier(module: Module, which: int) -> Module:
    """The module whose cluster barrier number `which` is a barrier of the block."""
    parts = module.text.split(WAITS)
    assert len(parts) == 3, "one barrier before the sums are read, and one behind"
    joins = [WAITS, WAITS]
    joins[which] = "  __syncthreads();"
    return replace(module, text=parts[0] + joins[0] + parts[1] + joins[1] + parts[2])


@needs_compiler
@pytest.mark.parametrize("name", ["two outputs", "rows side by side"])
def test_sums_read_before_the_cluster_has_left_them_are_a_race(name: str) -> None:
    problem, schedule = CASES[name]
    module = emit(problem, schedule)
    assert faults_of(module, problem) == set()
    found = faults_of(without_barrier(module, 0), problem)
    assert found & {FaultKind.SHARED_RACE, FaultKind.UNINITIALISED_SHARED}


@needs_compiler
def test_a_block_that_ends_while_others_may_read_its_sums_is_reported() -> None:
    problem, schedule = CASES["two outputs"]
    found = faults_of(without_barrier(emit(problem, schedule), 1), problem)
    assert found & {FaultKind.SHARED_RACE, FaultKind.OUT_OF_BOUNDS_SHARED}


@needs_compiler
def test_sums_that_change_while_others_may_read_them_are_a_race() -> None:
    problem, schedule = CASES["two outputs"]
    module = emit(problem, schedule)
    last = "  cluster_arrive();\n  cluster_wait();  // a block may end"
    assert module.text.count(last) == 1
    hasty = module.text.replace(last, f"  const_cast<float*>(column_sums)[threadIdx.x] = 0.0f;\n{last}")
    assert FaultKind.SHARED_RACE in faults_of(replace(module, text=hasty), problem)


@pytest.mark.parametrize("cluster", [2, 4, 8])
def test_a_cluster_leaves_one_partial_row_of_rows_that_its_blocks_own_alone(cluster: int) -> None:
    problem = backward(shape="100000x4096")
    one = replace(PAIRS, threads_per_row=256, vector=8, persistent=2, cluster=1, columns="partials_two_kernels")
    many = replace(one, columns="cluster_partials", cluster=cluster)
    assert steps_per_lane(problem, many) == steps_per_lane(problem, one)
    assert many.strategy == "block_per_row"
    module, launch = emit(problem, many), emit(problem, many).kernels[0].launch
    assert launch.grid(rows=100000, sm_count=132) == 264 // cluster * cluster
    assert launch.grid(rows=cluster + 1, sm_count=132) == 2 * cluster
    assert module.workspace_bytes(rows=100000, sm_count=132) == 264 // cluster * 2 * 4096 * 4
    assert shared_bytes(problem, many) == launch.shared_bytes == 2 * 4096 * 4


REFUSED: dict[str, tuple[dict[str, object], str, str]] = {
    "no cluster": ({"cluster": 1}, "h200", "cluster >= 2"),
    "an older GPU": ({}, "a100", "clusters need sm_90"),
    "a block a row": ({"persistent": 0, "stages": 1}, "h200", "persistent >= 1"),
    "rows that are not unrolled": ({"hold": "reload", "unroll": 1, "stages": 1}, "h200", "unroll = 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_what_the_sums_of_a_cluster_need(name: str) -> None:
    knobs, gpu, says = REFUSED[name]
    assert says in (refusal(backward(), replace(PAIRS, **knobs), target(gpu)) or "")


def test_the_sums_of_a_cluster_need_column_sums_and_shared_memory_for_them() -> None:
    forward = problem_for(load("layernorm"), shape="100000x1024", dtype="bf16")
    assert "no column reductions" in (refusal(forward, PAIRS, H200) or "")
    small = replace(H200, name="a small GPU", shared_per_block=8 * 1024)
    assert "column sums of a block need 8192 bytes" in (refusal(backward(), PAIRS, small) or "")


def test_no_search_proposes_the_sums_of_a_cluster_which_are_legal_by_hand() -> None:
    problem = backward(shape="8192x768")
    assert refusal(problem, PAIRS, H200) is None
    assert "cluster_partials" not in {s.columns for s in space(problem, H200).legal}
