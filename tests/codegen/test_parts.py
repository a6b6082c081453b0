"""Rows that need no reduction are shared out in parts: blocks that know nothing of each other, without a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from normgen.choice.first import default_schedule
from normgen.cpu import find_compiler
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import space
from normgen.spec.reader import load
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor, GpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong

PLAIN = Schedule(threads_per_row=32, vector=4, hold="registers", unroll=0, parts=3)


def problem(op: str, shape: str, dtype: str = "bf16", **more: int | str) -> Problem:
    return problem_for(load(op), shape=shape, dtype=dtype, **more)


CASES: dict[str, Case] = {
    "even": (problem("swiglu", "37x1536"), replace(PLAIN, parts=2, vector=8)),
    "idle lanes in the last part": (problem("swiglu", "37x1000", "f32"), PLAIN),
    "several vectors a thread": (problem("geglu", "9x2052"), PLAIN),
    "peeled rows": (problem("swiglu", "37x1001"), replace(PLAIN, edges="peel")),
    "a masked tail": (problem("swiglu", "29x1001", pitch=1004), replace(PLAIN, edges="masked")),
    "read where it is used": (problem("swiglu", "29x1024"), replace(PLAIN, hold="reload", unroll=1)),
    "groups of columns": (problem("silu_mul_to_fp8_group", "37x1536"), PLAIN),
    "groups of 16-byte vectors": (problem("quantize_to_fp8_group", "29x1280"), replace(PLAIN, vector=8)),
    "backward": (problem("swiglu", "37x1000", direction="backward"), PLAIN),
    "one row": (problem("swiglu", "1x1024"), replace(PLAIN, parts=6)),
}
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


@needs_compiler
def test_parts_of_rows_are_right_on_the_cpu() -> None:
    for case in CASES.values():
        assert refusal(*case, DEVICE) is None
    found = list(wrong(list(CASES.values()), CpuExecutor(), seed=0))
    assert not found, report(found, list(CASES.values()))


@pytest.mark.gpu
def test_parts_of_rows_are_right_on_the_gpu() -> None:
    found = list(wrong(list(CASES.values()), GpuExecutor(), seed=1))
    assert not found, report(found, list(CASES.values()))


def test_parts_need_neither_a_cluster_nor_its_architecture() -> None:
    module = emit(*CASES["even"])
    assert module.kernels[0].launch.cluster == 1
    assert module.kernels[0].launch.grid(rows=37, sm_count=132) == 74
    assert module.min_arch == 75
    assert compile_module(module, 75).data


@pytest.mark.parametrize(
    ("op", "knobs", "words"),
    [
        ("softmax", {}, "must be resident together"),
        ("swiglu", {"cluster": 2}, "a block's only one"),
        ("swiglu", {"threads_per_row": 16, "rows_per_block": 2}, "a block's only one"),
        ("swiglu", {"persistent": 2}, "reads its part of a row once"),
    ],
)
def test_what_parts_are_not_for(op: str, knobs: dict[str, object], words: str) -> None:
    assert words in str(refusal(problem(op, "37x1024"), replace(PLAIN, **knobs), target("h200")))


def test_long_rows_without_a_reduction_are_shared_out_by_default() -> None:
    chosen = default_schedule(problem("swiglu", "16x11008"), target("h200"))
    assert chosen.parts > 1
    assert chosen.threads_per_row * chosen.parts * chosen.vector >= 11008
    assert default_schedule(problem("softmax", "16x11008"), target("h200")).parts == 1


def test_parts_take_the_place_of_clusters_in_the_search() -> None:
    found = space(problem("swiglu", "16x2048"), target("h200"))
    assert {s.cluster for s in found.legal} == {1}
    assert {1, 2, 4} <= {s.parts for s in found.legal}
    assert {s.parts for s in space(problem("softmax", "16x256"), target("h200")).legal} == {1}
