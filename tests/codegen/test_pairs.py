"""The largest |x| of a group in the bits of two stored elements at a time, by short chains: what floats would find."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen import verify
from normgen.cpu import find_compiler
from normgen.cuda.compiler import compile_module
from normgen.device import target
from normgen.knobs import ReduceWith
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor, Executor, GpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import InputsOf, report, wrong

PAIRED = Schedule(threads_per_row=32, vector=8, hold="registers", unroll=0, reduce_with="short_chains")
BOTH = """
name = "both"
summary = "The largest magnitude of groups beside another value of them."

[tensors]
x = { role = "input", dtypes = ["f32", "f16", "bf16"] }
scale = { role = "group_statistic" }
most = { role = "group_statistic" }
y = { role = "output" }

[formulas]
scale = "absmax(x, 128)"
most = "max(x * x, 128)"
y = "x / (scale + 1) + most"
"""


def problem(shape: str, dtype: str = "bf16", op: str = "quantize_to_fp8_group", **more: int) -> Problem:
    return problem_for(parse(op) if "\n" in op else load(op), shape=shape, dtype=dtype, **more)


CASES: dict[str, Case] = {
    "bf16": (problem("37x1280"), PAIRED),
    "f16": (problem("37x1280", "f16"), PAIRED),
    "four rows a block": (problem("29x256"), replace(PAIRED, threads_per_row=32, rows_per_block=4)),
    "parts of a row": (problem("13x2048"), replace(PAIRED, parts=2)),
    "idle lanes": (problem("13x1152"), replace(PAIRED, threads_per_row=64)),
    "from shared memory": (problem("9x1280"), replace(PAIRED, hold="shared", copy="cp_async")),
    "read where it is used": (problem("9x1280"), replace(PAIRED, hold="reload", unroll=1)),
    "beside another value of the group": (problem("9x1280", op=BOTH), PAIRED),
}
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


def test_the_text_compares_pairs_of_what_is_read_alone() -> None:
    for case in CASES.values():
        assert refusal(*case, DEVICE) is None
        assert "largest_magnitude(" in emit(*case).source
    for other in (
        (problem("37x1280"), replace(PAIRED, reduce_with="shuffle")),
        (problem("37x1280"), replace(PAIRED, vector=4)),
        (problem("37x1280", "f32"), replace(PAIRED, vector=4)),
        (problem("37x1280", op="rmsnorm_to_fp8_group"), replace(PAIRED, threads_per_row=64)),
    ):
        assert refusal(*other, DEVICE) is None
        assert "largest_magnitude(" not in emit(*other).source
    wide = problem("37x1280", "f32"), PAIRED, target("b200")  # whose accesses are 32 bytes: eight floats
    assert "for each lane of a warp" in str(refusal(*wide))


@needs_compiler
def test_pairs_are_right_on_the_cpu() -> None:
    found = list(wrong(list(CASES.values()), CpuExecutor(), seed=0))
    assert not found, report(found, list(CASES.values()))


@pytest.mark.gpu
def test_pairs_are_right_on_the_gpu() -> None:
    found = list(wrong(list(CASES.values()), GpuExecutor(), seed=1))
    assert not found, report(found, list(CASES.values()))
    all_numbers_are_the_same(GpuExecutor())


def all_numbers_are_the_same(executor: Executor) -> None:
    """Every 16-bit number is in some group, as the largest of its group or not: what floats find, one by one."""
    for dtype in ("bf16", "f16"):
        asked = problem("1024x128", dtype)
        schedules = [replace(PAIRED, threads_per_row=16, rows_per_block=2, reduce_with=way) for way in WAYS]
        told = []
        for built in executor.build([emit(asked, schedule) for schedule in schedules]):
            inputs = InputsOf(3).get(asked, schedules[0])
            numbers = np.random.default_rng(5).permutation(2 * 65536).astype(np.uint16)
            inputs.arrays["x"].view(np.uint16)[...] = numbers.reshape(1024, 128)
            outputs = verify.make_outputs(asked, inputs=inputs)
            assert not built.run(inputs, outputs)
            told.append((outputs.arrays["q"].tobytes(), outputs.arrays["scale"]))
        assert told[0][0] == told[1][0]
        assert np.array_equal(told[0][1], told[1][1], equal_nan=True)  # which of several NaN is nobody's promise


WAYS = (ReduceWith.SHORT_CHAINS, ReduceWith.SHUFFLE)


@needs_compiler
def test_pairs_find_what_single_floats_find() -> None:
    all_numbers_are_the_same(CpuExecutor())


@pytest.mark.parametrize("arch", [89, 90, 100])
def test_pairs_compile_where_no_instruction_compares_them(arch: int) -> None:
    assert compile_module(emit(*CASES["bf16"]), arch).data
