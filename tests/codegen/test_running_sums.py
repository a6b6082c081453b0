"""A thread's row sums: up to four running sums, to which the elements of its vectors are added in turn, then a tree."""

from __future__ import annotations

import numpy as np
import pytest

from normgen import verify
from normgen.choice.first import default_schedule
from normgen.cpu import find_compiler
from normgen.device import target
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.schedule.schedule import RUNNING_SUMS, Schedule
from normgen.schedule.space import space
from normgen.spec.reader import load
from tests.codegen.executors import CpuExecutor

H200 = target("h200")


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("vector", [1, 2, 4, 8])
def test_a_threads_sum_is_that_of_its_running_sums_bit_for_bit(vector: int) -> None:
    problem = problem_for(load("row_sum"), shape=(5, 1024), dtype="bf16")
    schedule = Schedule(threads_per_row=1, rows_per_block=32, vector=vector)
    inputs, outputs = verify.make_inputs(problem), verify.make_outputs(problem)
    assert CpuExecutor().build([emit(problem, schedule)])[0].run(inputs, outputs) == ""
    x = np.asarray(inputs.arrays["x"], np.float32)
    count = min(vector, RUNNING_SUMS)
    sums = np.zeros((5, count), np.float32)
    for column in range(1024):
        sums[:, column % vector % count] += x[:, column]
    while count > 1:
        count //= 2
        sums = sums[:, :count] + sums[:, count:]
    (name,) = outputs.arrays
    assert np.array_equal(np.asarray(outputs.arrays[name], np.float32).ravel(), sums.ravel(), equal_nan=True)


def test_held_rows_of_float32_are_searched_with_the_methods_that_round_least() -> None:
    for op, knob, loses in (("softmax", "softmax", "online"), ("layernorm", "variance", "two_pass")):
        for dtype in ("f32", "bf16"):
            problem = problem_for(load(op), shape="1024x16384", dtype=dtype)
            held = [s for s in space(problem, H200).legal if s.hold != "reload" and not s.persistent]
            assert held
            assert any(getattr(s, knob) == loses for s in held) == (dtype == "bf16")
            chosen = default_schedule(problem, H200)
            assert dtype == "bf16" or getattr(chosen, knob) != loses
