"""Clusters that walk rows: each block owns its columns of every row, and the states of a row cross its blocks."""

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
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.verify import make_inputs, make_outputs
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor, new_workspace
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong, wrong_backward

H200 = target("h200")
PLAIN = Schedule(threads_per_row=32, vector=4, hold="registers", unroll=0, persistent=2)
AHEAD = replace(PLAIN, stages=2, params="kept")
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


def backward(op: str = "layernorm", shape: str = "37x1024", dtype: str = "bf16", **more: int) -> Problem:
    return problem_for(load(op), shape=shape, dtype=dtype, direction="backward", **more)


BACKWARD: dict[str, Case] = {
    "one look, two blocks": (backward(), replace(PLAIN, cluster=2, threads_per_row=64)),
    "one look, eight blocks, the next row ahead": (backward("rmsnorm", dtype="f32"), replace(AHEAD, cluster=8)),
    "no whole last step": (backward(shape="29x1001", pitch=1004), replace(PLAIN, cluster=4, edges="masked")),
    "read again from memory": (backward("rmsnorm"), replace(PLAIN, cluster=2, hold="reload")),
    "rows wait in shared memory": (backward(), replace(PLAIN, cluster=2, hold="shared")),
    "sums by atomics": (backward(dtype="f32"), replace(AHEAD, cluster=4, columns="register_atomic")),
    "atomics a row": (backward(shape="9x1024"), replace(PLAIN, cluster=2, persistent=0, columns="atomic")),
    "no rows": (backward(shape="0x1024"), replace(AHEAD, cluster=4)),
    "one row": (backward(shape="1x1024"), replace(AHEAD, cluster=4)),
}
FORWARD: dict[str, Case] = {
    "two looks, the next row ahead": (problem_for(load("layernorm"), shape="37x1024"), replace(AHEAD, cluster=4)),
    "one look": (problem_for(load("rmsnorm"), shape="37x1024"), replace(PLAIN, cluster=2, hold="shared", unroll=2)),
}


@needs_compiler
@pytest.mark.parametrize("seed", [0, 1])
def test_clusters_that_walk_rows_are_right_on_the_cpu(seed: int) -> None:
    for problem, schedule in (*BACKWARD.values(), *FORWARD.values()):
        assert refusal(problem, schedule, DEVICE) is None
    found = [*wrong_backward(list(BACKWARD.values()), CpuExecutor(), seed=seed)]
    found += wrong(list(FORWARD.values()), CpuExecutor(), seed=seed)
    assert not found, report(found, [*BACKWARD.values(), *FORWARD.values()])


@pytest.mark.parametrize("name", [*BACKWARD, *FORWARD])
def test_clusters_that_walk_rows_compile_for_sm_90(name: str) -> None:
    module = emit(*(BACKWARD | FORWARD)[name])
    assert module.min_arch == 90
    assert compile_module(module, 90).data


def faults_of(module: Module, problem: Problem) -> set[FaultKind]:
    inputs, outputs = make_inputs(problem, seed=0), make_outputs(problem)
    workspace = new_workspace(module, problem.rows)
    run = build(module).run(
        {**inputs.arrays, **outputs.arrays},
        rows=problem.rows,
        cols=problem.cols,
        scalars=inputs.scalars,
        sm_count=DEVICE.sm_count,
        workspace=workspace,
    )
    return {fault.kind for fault in run.faults}


@needs_compiler
def test_slots_that_are_not_alternated_are_a_race() -> None:
    problem, schedule = BACKWARD["one look, two blocks"]
    module = emit(problem, schedule)
    assert "slots[exchange % 2]" in module.text
    assert faults_of(module, problem) == set()
    single = replace(module, text=module.text.replace("slots[exchange % 2]", "slots[0]"))
    assert FaultKind.SHARED_RACE in faults_of(single, problem)


@needs_compiler
def test_a_store_to_a_block_that_has_not_started_is_reported() -> None:
    problem, schedule = BACKWARD["one look, two blocks"]
    module = emit(problem, schedule)
    start = "cluster_arrive();  // a block may write to another only once that one has started"
    assert module.text.count(start) == 1
    assert module.text.count("  cluster_wait();\n\n  for (") == 1
    hasty = module.text.replace(start, "").replace("  cluster_wait();\n\n  for (", "  for (")
    assert FaultKind.SHARED_RACE in faults_of(replace(module, text=hasty), problem)


@pytest.mark.parametrize("cluster", [2, 4, 8])
def test_a_cluster_fills_one_partial_row(cluster: int) -> None:
    problem = backward(shape="100000x4096")
    schedule = replace(PLAIN, threads_per_row=64, vector=8, cluster=cluster)
    clusters = 2 * 132 // cluster
    assert emit(problem, schedule).workspace_bytes(rows=100000, sm_count=132) == clusters * 2 * 4096 * 4


@pytest.mark.parametrize(("cols", "cluster"), [(16384, 4), (32768, 4), (65536, 8)])
def test_registers_of_column_sums_shrink_by_the_cluster(cols: int, cluster: int) -> None:
    problem = backward(shape=f"2048x{cols}")
    one = Schedule(threads_per_row=512, vector=8, hold="registers", unroll=0, persistent=1, stages=2, params="kept")
    assert "registers of data" in (refusal(problem, one, H200) or "")
    assert refusal(problem, replace(one, cluster=cluster), H200) is None
