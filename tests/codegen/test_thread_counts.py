"""Thread counts that are whole warps but no power of two: every exchange, and every way to sum columns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.cpu import find_compiler
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.knobs import ColumnWay
from normgen.pipeline import emit, emit_parts
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor, Executor, GpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong, wrong_backward

HELD = Schedule(vector=4, hold="registers", unroll=0)


def _forward(op: str, shape: str, dtype: str = "f32", **knobs: object) -> Case:
    more = {"pitch": knobs.pop("pitch")} if "pitch" in knobs else {}
    return problem_for(load(op), shape=shape, dtype=dtype, **more), replace(HELD, **knobs)


FORWARD: dict[str, Case] = {
    "768 threads": _forward("layernorm", "37x3072", threads_per_row=768),
    "992 threads, 31 warps": _forward("softmax", "29x4096", threads_per_row=992),
    "three warps a row, rows side by side": _forward("rmsnorm", "37x384", threads_per_row=96, rows_per_block=4),
    "a barrier for each row": _forward("layernorm", "37x1536", threads_per_row=384, rows_per_block=2),
    "a grid that loops, one look": _forward("rmsnorm", "37x640", threads_per_row=160, persistent=1),
    "welford": _forward("layernorm", "37x896", threads_per_row=224, variance="welford"),
    "online, a masked last vector": _forward(
        "softmax", "37x1001", pitch=1004, threads_per_row=224, softmax="online", edges="masked"
    ),
    "a tree in shared memory": _forward("layernorm", "37x1536", threads_per_row=288, reduce_with="shared_tree"),
    "cooperative groups": _forward("layernorm", "37x1536", threads_per_row=224, reduce_with="cooperative_groups"),
    "cooperative groups, a barrier for each row": _forward(
        "rmsnorm", "37x1536", threads_per_row=320, rows_per_block=2, reduce_with="cooperative_groups"
    ),
    "31 warps, read by every thread": _forward("softmax", "29x4096", threads_per_row=992, reduce_with="short_chains"),
    "three warps, read by every thread of a grid that loops": _forward(
        "layernorm", "180x384", threads_per_row=96, persistent=1, reduce_with="short_chains", variance="guarded"
    ),
    "clusters of 12 warps, read by every thread": _forward(
        "layernorm", "37x1536", threads_per_row=96, cluster=4, reduce_with="short_chains"
    ),
    "the largest of warps, in one instruction": _forward(
        "rmsnorm_to_fp8_token", "37x1024", "bf16", threads_per_row=256, reduce_with="short_chains"
    ),
    "the largest of groups that are warps": _forward(
        "silu_mul_to_fp8_group", "37x1280", "bf16", threads_per_row=64, parts=5, reduce_with="short_chains"
    ),
    "parts of a row, four vectors in flight": _forward(
        "swiglu", "5x4096", threads_per_row=32, parts=5, vector=4, hold="reload", unroll=4
    ),
    "clusters of 12 warps": _forward("layernorm", "37x1536", threads_per_row=96, cluster=4),
    "clusters of 40 warps": _forward("softmax", "29x5120", threads_per_row=640, cluster=2),
    "clusters of 96 warps": _forward("rmsnorm", "29x12288", threads_per_row=768, cluster=4),
    "clusters that walk rows": _forward(
        "layernorm", "37x1536", threads_per_row=96, cluster=2, persistent=1, stages=2, params="kept"
    ),
    "a ring of bulk copies": _forward(
        "rmsnorm", "37x1536", "bf16", threads_per_row=96, vector=8, copy="bulk", persistent=1, stages=2
    ),
    "copies by the threads": _forward(
        "rmsnorm", "37x1536", threads_per_row=384, copy="cp_async", hold="shared", unroll=1, persistent=1, stages=2
    ),
}
BACKWARD: dict[str, Case] = {
    f"{op}, {way.value}": (
        problem_for(load(op), shape=shape, dtype=dtype, direction="backward"),
        replace(HELD, threads_per_row=threads, rows_per_block=rows, persistent=1, columns=way),
    )
    for way in ColumnWay
    for op, shape, dtype, threads, rows in (
        ("layernorm", "37x768", "f32", 192, 1),
        ("rmsnorm", "37x384", "bf16", 96, 2),
    )
}


def check(executor: Executor) -> None:
    found = [
        *wrong(list(FORWARD.values()), executor, seed=0),
        *wrong_backward(list(BACKWARD.values()), executor, seed=0),
    ]
    assert not found, report(found, [*FORWARD.values(), *BACKWARD.values()])


@pytest.mark.parametrize("case", [*FORWARD.values(), *BACKWARD.values()], ids=[*FORWARD, *BACKWARD])
def test_any_number_of_warps_is_legal_and_compiles(case: Case) -> None:
    problem, schedule = case
    assert refusal(problem, schedule, DEVICE) is None
    assert compile_module(emit(problem, schedule), target("h200").arch)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_any_number_of_warps_is_right_on_the_cpu() -> None:
    check(CpuExecutor())


@pytest.mark.gpu
def test_any_number_of_warps_is_right_on_the_gpu() -> None:
    check(GpuExecutor())


def test_every_tree_is_among_the_cases() -> None:
    files = {file.name for case in (*FORWARD.values(), *BACKWARD.values()) for file in emit_parts(*case).library}
    assert files >= {"block", "beside", "own_tile", "cluster_team", "reduce_tree", "exchange_cluster"}
