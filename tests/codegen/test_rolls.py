"""roll(x, k): every way in which rows are read at other columns, around their ends, in both directions; refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen import verify
from normgen.cpu import build
from normgen.errors import ProgramError, SpecError, UsageError
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.program.ir import Load
from normgen.program.lower import lower
from normgen.program.rewrites.passes import passed
from normgen.program.source import problem_for, written_program
from normgen.schedule.default import default_schedule
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse
from normgen.spec.spec import Spec
from normgen.verify.derivative_proof import proven_program
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor
from tests.codegen.layouts import DEVICE
from tests.codegen.matrix import report, wrong, wrong_backward
from tests.codegen.test_batches import IN_REGISTERS, LAYOUT, RING, summed

HALVES, PAIRS = load("qk_norm_rope"), load("qk_norm_rope_pairs")
MIXED = parse("""
    name = "neighbours"
    [tensors]
    x = "input"
    gate = { role = "parameter", group = 3, dtypes = ["f32", "bf16"] }
    shift = { role = "batch_parameter", optional = true, absent = "0" }
    weight = "parameter"
    scale = "row_input"
    total = "row_output"
    y = "output"
    [formulas]
    h = "(x - mean(x)) * scale + shift"
    further = "roll(h * weight, cols - 2) * roll(gate, 4)"
    y = "further + roll(roll(h, 1), 1 - cols / 3) * where(roll(col, 5) < 4, 0.5, weight)"
    total = "sum(roll(x, -1) * x)"
    """)
WAYS = {
    "a thread a row": ("7x3x6", "f32", {"threads_per_row": 1, "rows_per_block": 32, "vector": 2}),
    "lanes a row": ("5x9x120", "f32", {"threads_per_row": 8, "rows_per_block": 8, "vector": 4, **IN_REGISTERS}),
    "a warp a row": ("3x5x192", "bf16", {"threads_per_row": 32, "rows_per_block": 2, "vector": 8, **IN_REGISTERS}),
    "a block a row": ("2x5x768", "bf16", {"threads_per_row": 128, "vector": 4, "hold": "shared", "unroll": 1}),
    "a cluster a row": ("2x3x768", "f32", {"threads_per_row": 64, "cluster": 2, "vector": 2, **IN_REGISTERS}),
    "rows ahead": ("4x7x384", "f32", {"threads_per_row": 64, "vector": 2, **RING, "stages": 2}),
    "a bulk ring": ("4x7x384", "bf16", {"threads_per_row": 64, "vector": 2, **RING, "copy": "bulk"}),
    "a masked tail": ("3x4x126", "bf16", {"threads_per_row": 16, "rows_per_block": 4, "vector": 4, "edges": "masked"}),
    "a peeled head": ("3x4x1002", "f32", {"threads_per_row": 64, "vector": 4, "edges": "peel", **IN_REGISTERS}),
    "peeled walkers": ("3x14x258", "bf16", {"threads_per_row": 32, "vector": 8, "edges": "peel", "persistent": 1}),
    "values kept": (
        *("3x5x192", "bf16"),
        {"threads_per_row": 32, "rows_per_block": 2, "vector": 2, "keep": "values", **IN_REGISTERS},
    ),
    "again and again": ("3x4x96", "f16", {"threads_per_row": 32, "vector": 1, "reduce_with": "shared_tree"}),
}  # fmt: skip
PITCHES = {**LAYOUT, "a masked tail": {"pitch": 128}}


def cases(direction: str) -> list[Case]:
    """Each way with one of the two layouts of pairs in turn, and with the mixed spec."""
    found: list[Case] = []
    for number, (name, (shape, dtype, knobs)) in enumerate(WAYS.items()):
        for spec in ((HALVES, PAIRS)[number % 2], MIXED):
            problem = problem_for(spec, shape=shape, dtype=dtype, direction=direction, **PITCHES.get(name, {}))
            schedule = Schedule(**knobs)
            if direction == "backward":
                keep = next(summed(problem, schedule, number), None)
                schedule = keep or next(summed(problem, replace(schedule, keep=Schedule().keep), number))
            why = refusal(problem, schedule, DEVICE)
            if name == "values kept" and why:
                continue
            assert why is None, (name, why)
            found.append((problem, schedule))
    return found


def test_kernels_are_right_on_the_cpu() -> None:
    found = list(wrong(cases("forward"), CpuExecutor(), seed=0))
    assert not found, report(found, cases("forward"))


def test_gradients_are_right_on_the_cpu() -> None:
    found = list(wrong_backward(cases("backward"), CpuExecutor(), seed=0))
    assert not found, report(found, cases("backward"))
