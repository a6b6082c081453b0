"""Which schedules rows side by side allow on a device, and the sentence that refuses each of the others."""

from __future__ import annotations

from normgen.device import MOST_BLOCKS, Device
from normgen.knobs import KNOBS, ColumnWay, Hold, VarianceMethod
from normgen.problem.problem import Problem
from normgen.program.ir import is_row_reduce
from normgen.program.source import written_program
from normgen.schedule.lanes.plan import (
    groups_of_parts,
    held_bytes,
    held_registers,
    parts_of_warp,
    rows_of_block,
    sums_bytes,
    vector_registers,
)
from normgen.schedule.plan import WARP
from normgen.schedule.schedule import Schedule

# The knobs that rows side by side have; all others are plain.
OWN = {"threads_per_row", "rows_per_block", "vector", "hold", "unroll", "load", "store", "persistent", "blocks_per_sm"}
OWN |= {"variance", "softmax", "arithmetic", "division", "statistics"}
WIDEST = 16  # bytes of an access
LEAST_OTHERS = 14  # registers beside data: softmax of 32 held ones, by 4 rows a thread, fits 64 (NVRTC 13.0)
STATES = 4  # floats of a look's state, where no program is looked at: a Welford state has three


def own(_: Problem, s: Schedule, __: Device) -> str | None:
    other = next((name for name in s.chosen if name not in OWN), "")
    if other:
        return f"{other} is a knob of rows of neighbouring elements: {other} = {KNOBS[other].plain}"
    return None


def cut(problem: Problem, s: Schedule, _: Device) -> str | None:
    if s.threads > 1024 or s.threads % WARP:
        return "threads_per_row x rows_per_block is whole warps, of 1024 threads at most"
    if s.rows_per_block < WARP and s.threads_per_row % parts_of_warp(s):
        return "the threads of a warp have whole parts of its rows: another threads_per_row"
    if s.threads_per_row > problem.cols:
        return f"{s.threads_per_row} threads share a row of {problem.cols} columns: fewer threads_per_row"
    if problem.sums_rows and s.rows_per_block != WARP:
        return "a warp adds its rows column by column: rows_per_block = 32"
    if -(-problem.rows // rows_of_block(s)) > MOST_BLOCKS:
        return f"a launch has at most {MOST_BLOCKS} blocks: more rows_per_block, or a wider vector"
    return None


def vector(problem: Problem, s: Schedule, _: Device) -> str | None:
    if s.vector == 1:
        return None
    if problem.col_stride % s.vector:
        return f"{problem.col_stride} rows lie side by side, which are no whole vectors of {s.vector}"
    if s.vector * problem.dtype.bytes > WIDEST:
        return f"one access moves at most {WIDEST} bytes"
    if any(problem.row_alignment(t) < min(WIDEST, s.vector * t.dtype.bytes) for t in problem.elem_tensors):
        return f"tensors are not aligned to vectors of {s.vector} elements: use a narrower vector"
    return None


def place(problem: Problem, s: Schedule, _: Device) -> str | None:
    if s.hold is Hold.HYBRID:
        return "elements wait in one place: hold = registers, shared or reload"
    if s.hold is Hold.SHARED and any(s.vector * t.dtype.bytes < 4 for t in problem.elem_inputs):
        return "shared memory of less than 4 bytes a thread conflicts on banks: use a wider vector or registers"
    return None


def method(problem: Problem, s: Schedule, _: Device) -> str | None:
    if s.variance is VarianceMethod.GUARDED and s.rows_per_block > WARP:
        return "each warp must know whether any row of its block is looked at again: rows_per_block = 32 or less"
    if problem.sums_rows and s.columns is not ColumnWay.PARTIALS_TWO_KERNELS:
        return "blocks leave partial rows for a second kernel: columns = partials_two_kernels"
    return None


def walks(problem: Problem, s: Schedule, _: Device) -> str | None:
    if s.persistent and not problem.sums_rows:
        return "a block has its rows, and walks no others: persistent = 0"
    return None


def registers(problem: Problem, s: Schedule, device: Device) -> str | None:
    limit = min(255, device.registers_per_sm // max(1, s.threads) // max(1, s.blocks_per_sm))
    states = 2 * s.vector if any(map(is_row_reduce, written_program(problem).statements)) else 0
    need = held_registers(problem, s) + vector_registers(problem, s) + states + LEAST_OTHERS
    if need > limit:
        return f"a thread would need about {need} registers; {s.threads} threads leave it {limit}"
    return None


def shared(problem: Problem, s: Schedule, device: Device) -> str | None:
    used = held_bytes(problem, s) + sums_bytes(problem) + states_bytes(s)
    if used > device.shared_per_block:
        return f"a block needs up to {used} bytes of shared memory; {device.name} has {device.shared_per_block}"
    return None


def states_bytes(s: Schedule) -> int:
    """At most, of any program's looks."""
    groups, areas = groups_of_parts(s), 3 if s.variance is VarianceMethod.GUARDED else 2
    return areas * STATES * 4 * groups * rows_of_block(s) if groups > 1 else 0


RULES = (own, cut, vector, place, method, walks, registers, shared)
