"""Peeled rows: where their first vector begins, and that no row's bits depend on where memory lies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from normgen import verify
from normgen.cpu import find_compiler
from normgen.device import target
from normgen.knobs import Copy, Edges, Hold, Params
from normgen.pipeline import emit, planned
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.verify import Buffer
from tests.codegen.executors import CpuExecutor

LINE, SECTOR = 128, 32  # bytes
PEELED = Schedule(threads_per_row=128, vector=8, hold=Hold.REGISTERS, unroll=0, edges=Edges.PEEL)


@pytest.mark.parametrize(
    ("cols", "dtype", "knobs", "unit"),
    [
        (4097, "bf16", {}, LINE // 2),
        (4097, "f32", {"vector": 4}, LINE // 4),
        (1023, "bf16", {"threads_per_row": 32}, SECTOR // 2),  # a lane each for 15 + 7 elements, not for 63 + 7
        (1023, "bf16", {"threads_per_row": 64, "vector": 2}, LINE // 2),  # 63 + 1 elements
        (1023, "bf16", {"threads_per_row": 64, "vector": 4}, SECTOR // 2),  # 63 + 3
        (1023, "bf16", {"threads_per_row": 16, "vector": 4, "rows_per_block": 8}, 4),
        (63, "bf16", {"threads_per_row": 32, "vector": 2}, SECTOR // 2),
        (15, "bf16", {"threads_per_row": 32, "vector": 2}, 2),  # the row has no 16 elements
    ],
)
def test_the_first_vector_begins_a_line_or_a_sector_where_lanes_are_left_for_what_stands_before_it(
    cols: int, dtype: str, knobs: dict[str, Any], unit: int
) -> None:
    problem = problem_for(load("rmsnorm"), shape=(40, cols), dtype=dtype)
    cut = planned(problem, replace(PEELED, **knobs)).cut
    assert cut.unit == unit
    assert problem.cols >= cut.unit
    most = cut.unit - 1 + cut.vector - 1
    assert most <= replace(PEELED, **knobs).threads_per_row or cut.unit == cut.vector


def test_a_general_kernel_knows_no_row_length_and_counts_in_vectors() -> None:
    problem = problem_for(load("rmsnorm"), shape=(40, 4097), dtype="bf16", any_cols=True, align=2)
    assert planned(problem, replace(PEELED, hold=Hold.RELOAD, unroll=1)).cut.unit == 8


def moved(buffer: Buffer, by: int) -> Buffer:
    """A copy whose array starts `by` bytes behind a line of memory."""
    array = buffer.array
    extent = array.shape[0] * array.strides[0]
    storage = np.full(extent + 4 * LINE, 0xFF, dtype=np.uint8)
    offset = LINE + (by - storage.ctypes.data) % LINE
    copy = np.ndarray(array.shape, array.dtype, storage.data, offset=offset, strides=array.strides)
    copy[...] = array
    return Buffer(array=copy, storage=storage, offset=offset)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize(
    "schedule",
    [
        PEELED,
        replace(PEELED, threads_per_row=32, rows_per_block=4, vector=4),
        replace(PEELED, persistent=2, stages=2, params=Params.PACKED),
        replace(PEELED, hold=Hold.SHARED, copy=Copy.CP_ASYNC, unroll=1),
        replace(PEELED, hold=Hold.SHARED, copy=Copy.BULK, unroll=1),
        replace(PEELED, copy=Copy.BULK, persistent=2, stages=3),
    ],
    ids=str,
)
@pytest.mark.parametrize(("align", "steps"), [(16, range(0, LINE, 16)), (2, range(2, LINE, 16))])
def test_a_rows_bits_do_not_depend_on_where_memory_lies(schedule: Schedule, align: int, steps: range) -> None:
    """Beyond a vector, that is: an allocator gives what it has."""
    problem = problem_for(load("layernorm"), shape=(300, 1027), dtype="bf16", align=align)
    assert refusal(problem, schedule, target("h200")) is None
    (built,) = CpuExecutor().build([emit(problem, schedule)])
    inputs = verify.make_inputs(problem, seed=1)
    found = []
    for step in steps:
        outputs = verify.make_outputs(problem)
        here = replace(
            inputs, buffers={n: moved(b, step) if b.array.ndim == 2 else b for n, b in inputs.buffers.items()}
        )
        there = replace(
            outputs, buffers={n: moved(b, step) if b.array.ndim == 2 else b for n, b in outputs.buffers.items()}
        )
        assert built.run(here, there) == ""
        found.append(b"".join(np.ascontiguousarray(a).tobytes() for a in there.arrays.values()))
    assert len(set(found)) == 1
