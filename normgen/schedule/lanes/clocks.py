"""What a schedule of rows side by side costs: bytes through memory, and how much of them is on its way at a time."""

from __future__ import annotations

import math
from typing import NamedTuple

from normgen.device import Device
from normgen.knobs import Hold, SoftmaxMethod
from normgen.problem.problem import Problem
from normgen.program.ir import looks
from normgen.program.source import written_program
from normgen.schedule.lanes.plan import (
    OTHER_REGISTERS,
    groups_of_parts,
    held_bytes,
    held_registers,
    rows_of_block,
    steps_of_part,
    sums_bytes,
    vector_registers,
)
from normgen.schedule.plan import LINE_BYTES, SECTOR_BYTES
from normgen.schedule.schedule import Schedule

LATENCY_NS = 900.0  # from a load to its value under full load (H200, copies)
LOOK_NS = 1200.0  # one exchange among the parts of a block, and what waits for it
ALONE_NS = 200.0  # the end of a look of a thread that shares its rows with none
INSTRUCTION_CLOCKS = 2.0  # from one instruction of a warp to its next, where few warps run
ELEMENT_CLOCKS = 6.0  # of a warp's scheduler, for one element of each lane in one look
ACCESS_CLOCKS, SHARED_CLOCKS = 8.0, 14.0  # beside them, for one vector, and for one that waits in shared memory
MOVING_REGISTERS = 5  # of a row, while a sum of exponentials moves its maximum
# Of a register that holds stored elements, with what the compiler keeps beside it where all steps are unrolled
# (NVRTC 13.0: softmax backward of 16 steps of 8 bf16 takes more than 255, layernorm backward of 16 of 4 twice 128).
HELD, HELD_BESIDE_SUMS = 1.5, 3.0
SHORT_LINE = 0.25  # of the time, for each half of a line that a part's threads leave out (softmax backward, H200)
SPILL_CLOCKS = 4.0
BLEND, ALONE_BLEND = 2.0, 1.5  # of these times: where an SM has one block, none loads while another one stores
STATE_REGISTERS = 3  # of a row, in one look


class Work(NamedTuple):
    """µs of memory, of a slot's blocks one after another, and of instructions; registers of a thread; the grid."""

    memory_us: float
    latency_us: float
    issue_us: float
    columns_us: float
    registers: int
    resident: int
    blocks: int
    rounds: float
    bytes: float

    @property
    def us(self) -> float:
        """The longest of these, blended; sums over rows come behind. Measured ones lie within some 15 % (H200)."""
        parts = (self.memory_us, self.latency_us, self.issue_us)
        blend = ALONE_BLEND if self.resident == 1 and self.rounds > 1 else BLEND
        return float(sum(part**blend for part in parts) ** (1 / blend)) + self.columns_us


def walks(problem: Problem, s: Schedule) -> int:
    """How often the columns are walked."""
    found = looks(written_program(problem))
    return max(1, found - 1 if s.softmax is SoftmaxMethod.ONLINE or s.variance.looks_once else found)


def register_limit(s: Schedule, device: Device) -> int:
    """Registers of a thread that the launch bound leaves."""
    return min(255, device.registers_per_sm // s.threads // max(1, s.blocks_per_sm) // 8 * 8)


def expected_registers(problem: Problem, s: Schedule) -> int:
    """Of a thread, before the compiler says."""
    flight = 0 if s.hold is Hold.REGISTERS else (s.unroll or 1) * vector_registers(problem, s)
    values = s.vector * (STATE_REGISTERS + len(problem.elem_tensors))
    values += s.vector * MOVING_REGISTERS if s.softmax is SoftmaxMethod.ONLINE else 0
    held = held_registers(problem, s) * (HELD_BESIDE_SUMS if problem.sums_rows else HELD)
    return int(held + flight + values + OTHER_REGISTERS)


def expected_shared(problem: Problem, s: Schedule) -> int:
    groups = groups_of_parts(s)
    states = 2 * 4 * groups * rows_of_block(s) if groups > 1 else 0
    return held_bytes(problem, s) + sums_bytes(problem) + states


def touched(problem: Problem, s: Schedule) -> float:
    """Bytes that move for each byte that is asked for: lines that a warp's threads touch in part come in sectors.

    Threads side by side have neighbouring rows, up to the last one side by side; then the next column follows them
    where a warp has it.
    """
    size = problem.dtype.bytes
    run = min(s.rows_per_block * s.vector, problem.col_stride) * size
    if run >= LINE_BYTES or problem.col_stride <= s.rows_per_block * s.vector:
        return 1.0
    return math.ceil(run / SECTOR_BYTES) * SECTOR_BYTES / run * (1 + SHORT_LINE * math.log2(LINE_BYTES / run))


def work(problem: Problem, s: Schedule, device: Device, *, registers: int | None = None, hot: bool = False) -> Work:
    """Figures for the busiest SM."""
    wanted = registers or expected_registers(problem, s)
    limit = register_limit(s, device)
    need, spilled = min(wanted, limit), max(0, wanted - limit)
    warps, shared = s.threads // 32, expected_shared(problem, s)
    by_registers = device.registers_per_sm // (-(-need // 8) * 8 * 32 * max(1, warps))
    by_shared = device.shared_per_sm // (shared + 1024) if shared else device.blocks_per_sm
    resident = max(1, min(by_registers, by_shared, device.threads_per_sm // s.threads, device.blocks_per_sm))
    tiles = max(1, -(-problem.rows // rows_of_block(s)))  # of no rows as of one
    blocks = min(tiles, s.persistent * device.sm_count) if s.persistent else tiles
    running = min(resident, -(-blocks // device.sm_count))
    rounds = math.ceil(tiles / (device.sm_count * running)) if tiles > device.sm_count * running else 1
    passes, steps = walks(problem, s), steps_of_part(problem, s)
    reread = passes - 1 if s.hold is Hold.RELOAD else 0
    in_sm = rows_of_block(s) * problem.row_bytes * running <= (128 << 10)
    in_l2 = rows_of_block(s) * problem.row_bytes * running * device.sm_count <= device.l2_bytes // 2
    moved = problem.compulsory_bytes * touched(problem, s)
    again = problem.rows * problem.row_bytes * reread * touched(problem, s)
    share = 0.15 if in_sm else 0.6 if in_l2 else 1.0
    rate = device.dram_gb_per_s * 1e3 * (1.3 if hot else 1.0)
    # What is on its way: Little's law bounds an SM's rate by the bytes that its threads have asked for.
    each = steps if s.hold is not Hold.RELOAD else min(steps, s.unroll or steps)
    vector_bytes = s.vector * (problem.row_input_bytes or problem.dtype.bytes)  # without a row that is read: of a store
    flight = running * s.threads * min(each * vector_bytes, 192)
    busy = min(blocks, device.sm_count)
    most = busy * flight / LATENCY_NS * 1e3  # bytes a µs
    tail = 1.0 if rounds == 1 else rounds * device.sm_count * running / tiles
    memory = (moved + again * share) / min(rate, most * 2) * max(1.0, min(1.25, tail))
    trips = math.ceil(steps / max(1, each))
    access = SHARED_CLOCKS if s.hold is Hold.SHARED else ACCESS_CLOCKS
    vector_clocks = passes * (ELEMENT_CLOCKS * s.vector + access) + problem.column_outputs * 14
    vector_clocks += SPILL_CLOCKS * spilled * passes / steps  # stored and loaded once a look
    look_ns = LOOK_NS if s.threads_per_row > 1 else ALONE_NS
    walked_us = steps * vector_clocks * INSTRUCTION_CLOCKS / device.sm_clock_ghz / 1e3
    block_us = (LATENCY_NS * (trips if s.hold is Hold.RELOAD else 1) * (1 + reread) + look_ns * passes) / 1e3
    latency = (block_us + walked_us) * rounds
    clocks = problem.rows * problem.cols / s.vector / 32 * vector_clocks
    issue = clocks / (busy * 4 * 0.65 * device.sm_clock_ghz * 1e3)
    sums = 2 * blocks * problem.column_outputs * problem.cols * 4 / rate + 1.8 if problem.column_outputs else 0.0
    return Work(memory, latency, issue, sums, need, running, blocks, rounds, moved)
