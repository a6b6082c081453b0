"""What a schedule of rows side by side costs: bytes through memory, and how much of them is on its way at a time."""

from __future__ import annotations

from typing import NamedTuple

from normgen.device import Device
from normgen.knobs import Hold, SoftmaxMethod
from normgen.problem.problem import Problem
from normgen.program.ir import looks
from normgen.program.source import written_program
from normgen.schedule.columns import down, least, log2, most, up, where
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
    near_bytes: float

    @property
    def us(self) -> float:
        """The longest of these, blended; sums over rows come behind. Measured ones lie within some 15 % (H200)."""
        parts = (self.memory_us, self.latency_us, self.issue_us)
        blend = where((self.resident == 1) & (self.rounds > 1), ALONE_BLEND, BLEND)
        blended: float = sum(part**blend for part in parts) ** (1 / blend)
        return blended + self.columns_us


def walks(problem: Problem, s: Schedule) -> int:
    """How often the columns are walked."""
    found = looks(written_program(problem))
    return most(1, found - ((s.softmax == SoftmaxMethod.ONLINE) | s.variance.looks_once))


def register_limit(s: Schedule, device: Device) -> int:
    """Registers of a thread that the launch bound leaves."""
    return least(255, device.registers_per_sm // s.threads // most(1, s.blocks_per_sm) // 8 * 8)


def expected_registers(problem: Problem, s: Schedule) -> int:
    """Of a thread, before the compiler says."""
    flight = where(s.hold == Hold.REGISTERS, 0, most(1, s.unroll) * vector_registers(problem, s))
    moving = where(s.softmax == SoftmaxMethod.ONLINE, MOVING_REGISTERS, 0)
    values = s.vector * (STATE_REGISTERS + len(problem.elem_tensors) + moving)
    held = held_registers(problem, s) * (HELD_BESIDE_SUMS if problem.sums_rows else HELD)
    return down(held + flight + values + OTHER_REGISTERS)


def expected_shared(problem: Problem, s: Schedule) -> int:
    groups = groups_of_parts(s)
    states = where(groups > 1, 2 * 4 * groups * rows_of_block(s), 0)
    return held_bytes(problem, s) + sums_bytes(problem) + states


def touched(problem: Problem, s: Schedule) -> float:
    """Bytes that move for each byte that is asked for: lines that a warp's threads touch in part come in sectors.

    Threads side by side have neighbouring rows, up to the last one side by side; then the next column follows them
    where a warp has it.
    """
    size = problem.dtype.bytes
    run = least(s.rows_per_block * s.vector, problem.col_stride) * size
    is_whole = (run >= LINE_BYTES) | (problem.col_stride <= s.rows_per_block * s.vector)
    short = up(run / SECTOR_BYTES) * SECTOR_BYTES / run * (1 + SHORT_LINE * log2(LINE_BYTES / run))
    return where(is_whole, 1.0, short)


def work(problem: Problem, s: Schedule, device: Device, *, registers: int | None = None, hot: bool = False) -> Work:
    """Figures for the busiest SM."""
    wanted = registers or expected_registers(problem, s)
    limit = register_limit(s, device)
    need, spilled = least(wanted, limit), most(0, wanted - limit)
    warps, shared = s.threads // 32, expected_shared(problem, s)
    by_registers = device.registers_per_sm // (-(-need // 8) * 8 * 32 * most(1, warps))
    by_shared = where(shared > 0, device.shared_per_sm // (shared + 1024), device.blocks_per_sm)
    by_threads = least(device.threads_per_sm // s.threads, device.blocks_per_sm)
    resident = most(1, least(least(by_registers, by_shared), by_threads))
    tiles = most(1, -(-problem.rows // rows_of_block(s)))  # of no rows as of one
    blocks = where(s.persistent > 0, least(tiles, s.persistent * device.sm_count), tiles)
    running = least(resident, -(-blocks // device.sm_count))
    rounds = most(1, up(tiles / (device.sm_count * running)))
    passes, steps = walks(problem, s), steps_of_part(problem, s)
    reread = where(s.hold == Hold.RELOAD, passes - 1, 0)
    in_sm = rows_of_block(s) * problem.row_bytes * running <= (128 << 10)
    in_l2 = rows_of_block(s) * problem.row_bytes * running * device.sm_count <= device.l2_bytes // 2
    moved = problem.compulsory_bytes * touched(problem, s)
    again = problem.rows * problem.row_bytes * reread * touched(problem, s)
    share = where(in_sm, 0.15, where(in_l2, 0.6, 1.0))
    rate = device.dram_gb_per_s * 1e3 * (1.3 if hot else 1.0)
    # What is on its way: Little's law bounds an SM's rate by the bytes that its threads have asked for.
    each = where((s.hold == Hold.RELOAD) & (s.unroll > 0), least(steps, s.unroll), steps)
    vector_bytes = s.vector * (problem.row_input_bytes or problem.dtype.bytes)  # without a row that is read: of a store
    flight = running * s.threads * least(each * vector_bytes, 192)
    busy = least(blocks, device.sm_count)
    asked = busy * flight / LATENCY_NS * 1e3  # bytes a µs
    tail = where(rounds == 1, 1.0, rounds * device.sm_count * running / tiles)
    memory = (moved + again * share) / least(rate, asked * 2) * most(1.0, least(1.25, tail))
    trips = where(s.hold == Hold.RELOAD, up(steps / most(1, each)), 1)
    access = where(s.hold == Hold.SHARED, SHARED_CLOCKS, ACCESS_CLOCKS)
    vector_clocks = passes * (ELEMENT_CLOCKS * s.vector + access) + problem.column_outputs * 14
    vector_clocks += SPILL_CLOCKS * spilled * passes / steps  # stored and loaded once a look
    look_ns = where(s.threads_per_row > 1, LOOK_NS, ALONE_NS)
    walked_us = steps * vector_clocks * INSTRUCTION_CLOCKS / device.sm_clock_ghz / 1e3
    block_us = (LATENCY_NS * trips * (1 + reread) + look_ns * passes) / 1e3
    latency = (block_us + walked_us) * rounds
    clocks = problem.rows * problem.cols / s.vector / 32 * vector_clocks
    issue = clocks / (busy * 4 * 0.65 * device.sm_clock_ghz * 1e3)
    sums = 2 * blocks * problem.column_outputs * problem.cols * 4 / rate + 1.8 if problem.column_outputs else 0.0
    return Work(memory, latency, issue, sums, need, running, blocks, rounds, moved, again)
