"""Rows that blocks of the grid share through memory: when that pays, by bytes, and the schedules that do so.

No size decides: a way to share a row moves so many bytes through so many SMs, and its blocks wait for each other so
often. What lasts shortest comes first, among the ways without such blocks too. The constants are fitted to 840
schedules of 43 problems (H200: softmax, layernorm and rmsnorm forward, f32 and bf16, 1 to 64 rows of 1 M to 16 M): what
comes first takes 2.6 % more than the best of these in the mean, 14 % at most. A fit without a third of the problems
took 1.3 to 2.1 % more there, of what was timed. That sums over rows want registers is fitted to ten backward problems.
A kernel asks for a vector of each of its inputs before it waits: with that counted, what was chosen for rmsnorm
backward of 64 rows of 1 M took 292 us in place of 398.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from normgen.device import Device
from normgen.knobs import ColumnWay, Copy, Edges, Hold, Params
from normgen.problem.problem import Problem
from normgen.program.source import stages_of
from normgen.schedule.columns import least, most, where
from normgen.schedule.cutting import PLAIN
from normgen.schedule.legality import CUT, has_parameters, has_softmax, persistent, reduces_rows, refusal
from normgen.schedule.plan import held_bytes_per_thread, param_bytes_per_thread, sums_in_registers
from normgen.schedule.policy import look_once
from normgen.schedule.schedule import Schedule

LEAST_ROW = 1 << 20  # bytes: 16 SMs of a cluster read less in the time of one exchange through memory
EXCHANGE_US, CLUSTER_US = 3.1, 0.5  # that blocks wait for each other, through memory and in a cluster
TRIP_US = 0.9  # of a group of blocks, from one row to the next
AHEAD = 0.82  # of a group more, which the next row's copy is worth while blocks wait for each other
TURNING = 0.39  # of the bytes' time, where an SM has one group of blocks, which reads or writes, and never both
SM_BYTES_PER_US, ALONE_BYTES_PER_US = 63_500, 28_000  # that an SM takes at most, and with blocks that share no row
LATENCY_NS = 660.0  # from a load to its value: what threads have asked for meanwhile bounds an SM's rate
HYBRID_BYTES = 18  # that a thread asks for at a time where a row waits in registers and in shared memory
L2_OVER_DRAM = 2.7  # as fast
LEFT_IN_L2 = 0.32  # of L2, what the look before has left there of a row
SPILLED, BESIDE_REGISTERS = 1.25, 20  # of the time, for each register that a thread has when it needs two
HELD_BYTES = 128 << 10  # of a row, what registers of an SM hold
KEPT_BYTES = 160 << 10  # of rows and parameters together
ATOMICS_PER_US = 80_000
BLOCKS = ((1, 1024), (2, 512), (1, 512), (2, 1024), (4, 256), (4, 512))  # blocks of an SM, and their threads


def are_giant(problem: Problem) -> bool:
    """Whether rows are so long that blocks that meet in memory may be the best way to share them."""
    is_long = problem.row_bytes >= LEAST_ROW or problem.cols * problem.dtype.bytes >= LEAST_ROW
    return is_long and reduces_rows(problem) and not (problem.any_cols or problem.sums_batches)


def sharing_us(problem: Problem, s: Schedule, device: Device) -> float:
    """What rows take at least, shared so: bytes through the SMs that have some, and what blocks wait for each other.

    While one group of blocks waits, or turns from reading to writing, others of the same SM move bytes.
    """
    stages = _stages(problem, s, device)
    looks = stages + any(t.is_written and t.kind.is_elem for t in problem.tensors)
    walkers = max(1, min(problem.rows, max(1, s.persistent) * device.sm_count // s.row_blocks))
    dram = device.dram_gb_per_s * 1e3
    moved, near = float(problem.compulsory_bytes), 0.0  # bytes from memory, and from L2
    if s.hold is Hold.RELOAD:
        again = problem.rows * problem.row_bytes * (looks - 1)
        found = left_in_l2(problem, s, device, walkers=walkers)
        moved, near = moved + again * (1 - found), near + again * found
    if not s.keeps_params:
        near += (problem.rows - 1) * problem.parameter_bytes * problem.cols
    groups = _groups_of_sm(s, device, walkers=walkers) * (1 + AHEAD if s.copy.is_asynchronous else 1)
    bytes_us = moved / min(dram, _taken(problem, s, device, walkers=walkers)) + near / (L2_OVER_DRAM * dram)
    waits = stages * (EXCHANGE_US if s.meets_in_memory else CLUSTER_US) + TRIP_US
    waiting_us = math.ceil(problem.rows / walkers) * waits / groups
    spilled = 1 + SPILLED * _short(problem, s, device)
    return (bytes_us * (1 + TURNING / groups) + waiting_us) * spilled + _columns_us(problem, s, walkers, dram)


def _short(problem: Problem, s: Schedule, device: Device) -> float:
    """Registers that a thread lacks, of those that it has: of its sums over rows, or of held values of 16 bits, which
    one look for their variance unpacks all.
    """
    bound = device.registers_per_sm // (s.threads * max(1, s.blocks_per_sm))
    unpacks = s.hold is Hold.REGISTERS and s.blocks_per_sm and problem.dtype.bytes == 2 and look_once(problem, device)
    kept = sums_in_registers(problem, s) + (problem.cols / (s.row_blocks * s.threads) if unpacks else 0)
    return max(0.0, kept + BESIDE_REGISTERS - bound) / bound if kept else 0.0


def _groups_of_sm(s: Schedule, device: Device, *, walkers: int) -> int:
    """Groups of blocks that an SM has a part of."""
    if s.row_blocks > device.sm_count:
        return 1
    return max(1, min(s.persistent, walkers, round(walkers * s.row_blocks / device.sm_count)))


def _taken(problem: Problem, s: Schedule, device: Device, *, walkers: int) -> float:
    """Bytes a us that the SMs with rows take at most: what their threads have asked for arrives a latency later."""
    busy = min(walkers * s.row_blocks, device.sm_count)
    inputs = max(1, problem.row_input_bytes // problem.dtype.bytes)  # each is asked for before one is waited for
    if s.hold is Hold.HYBRID:
        asked = float(HYBRID_BYTES * inputs)
    elif s.hold is Hold.REGISTERS or s.copy.is_asynchronous:
        asked = problem.row_bytes / (s.row_blocks * s.threads)
    else:
        asked = float(inputs * s.vector * problem.dtype.bytes * max(1, s.unroll))
    alone = s.hold is Hold.RELOAD and s.row_blocks == 1
    most = ALONE_BYTES_PER_US if alone else SM_BYTES_PER_US
    return busy * min(most, s.threads * max(1, s.persistent) * asked / LATENCY_NS * 1e3)


def left_in_l2(problem: Problem, s: Schedule, device: Device, *, walkers: int) -> float:
    """The share of rows that L2 has left when so many blocks, or groups of them, look at their rows again.

    A look that begins where the last one ended finds what is left; one that begins with the first columns finds all
    that it needs, or nothing.
    """
    kept, in_flight = LEFT_IN_L2 * device.l2_bytes, least(walkers, problem.rows) * problem.row_bytes
    return where(s.meets_in_memory | (in_flight <= kept), kept / most(kept, in_flight), 0.0)


def _stages(problem: Problem, s: Schedule, device: Device) -> int:
    """Exchanges of a row: one where a method finds in one look what the formula says in two."""
    online = has_softmax(problem) and (problem.dtype.bytes < 4 or s.hold is Hold.RELOAD)
    return 1 if online or look_once(problem, device) else max(1, stages_of(problem))


def _columns_us(problem: Problem, s: Schedule, walkers: int, dram: float) -> float:
    """Sums over rows: partial rows written and read, or atomics, whose sums one block converts."""
    sums = problem.column_outputs * problem.cols
    if s.columns is ColumnWay.ATOMIC:
        return problem.rows * sums / ATOMICS_PER_US + 12 * sums / SM_BYTES_PER_US
    return 8 * walkers * sums / (L2_OVER_DRAM * dram)


def together(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Blocks of the whole grid that share rows, the best first, where no cluster is as good; not all are legal."""
    if not are_giant(problem):
        return
    other = min(sharing_us(problem, s, device) for s in _without(problem, device))

    exponentials = has_softmax(problem)

    def rank(s: Schedule) -> tuple[float, int]:
        """Exponentials of rows that are read again want all threads of an SM: 56 us of 64 for one row of 16 M. A
        variance wants few blocks: 84 of 98.
        """
        is_busy = exponentials and s.hold is Hold.RELOAD
        return sharing_us(problem, s, device), -s.threads * s.persistent if is_busy else 0

    yield from (s for s in sorted(_usual(problem, device), key=rank) if rank(s)[0] < other)


def _without(problem: Problem, device: Device) -> Iterator[Schedule]:
    """How blocks or clusters would take the rows: clusters of rows that they hold."""
    for cluster in (8, 16) if device.arch >= 90 else ():
        if problem.row_bytes // cluster <= HELD_BYTES and not problem.column_outputs:
            held = (problem.row_bytes + problem.parameter_bytes * problem.cols) // cluster
            are_kept = has_parameters(problem) and held <= KEPT_BYTES
            params = Params.KEPT if are_kept else Params.LATE
            yield PLAIN.varied(cluster=cluster, persistent=2, hold=Hold.REGISTERS, params=params)
    alone = PLAIN.varied(threads_per_row=1024, persistent=1, hold=Hold.RELOAD)
    yield alone.varied(columns=ColumnWay.ATOMIC) if problem.column_outputs else alone


def _usual(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Those of which a default is chosen: of equally good ones the first."""
    for s in shared_rows(problem, device):
        held = held_bytes_per_thread(problem, s)
        beside = param_bytes_per_thread(problem, s) if has_parameters(problem) else 0
        kept = s.hold is Hold.REGISTERS and s.copy is Copy.DIRECT and s.stages == 1 and not s.peels
        if kept and beside and problem.rows > 1 and (held + beside) * s.threads * s.persistent <= KEPT_BYTES:
            yield s.varied(params=Params.KEPT)
        yield s


def shared_rows(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Cuts of rows among resident blocks, and places for them to wait; not all are legal."""
    for (per_sm, threads), parts in itertools.product(BLOCKS, _parts(problem, device)):
        wanted = Schedule(
            threads_per_row=threads,
            parts=parts,
            persistent=per_sm,
            blocks_per_sm=per_sm if per_sm > 1 else 0,
        )
        cut = _widest(problem, wanted, device)
        if cut is None or refusal(problem, cut.varied(hold=Hold.RELOAD), device, (*CUT, persistent)) is not None:
            continue
        held, shared = cut.varied(hold=Hold.REGISTERS, unroll=0), cut.varied(hold=Hold.SHARED, unroll=4)
        yield from _summed(problem, held)
        yield from _summed(problem, held.varied(stages=2))
        yield from _summed(problem, held.varied(copy=Copy.CP_ASYNC))
        yield from _summed(problem, shared)
        for copy in Copy.CP_ASYNC, Copy.BULK:
            yield from _summed(problem, shared.varied(copy=copy, stages=2))
        yield from _summed(problem, cut.varied(hold=Hold.HYBRID, unroll=1))
        yield from _summed(problem, cut.varied(hold=Hold.RELOAD, unroll=4))


def _summed(problem: Problem, s: Schedule) -> Iterator[Schedule]:
    """The schedule, with sums of columns in registers and by atomics where there are some."""
    if problem.column_outputs:
        yield s if s.hold is Hold.REGISTERS else s.varied(unroll=0)
        yield s.varied(columns=ColumnWay.ATOMIC)
    else:
        yield s


def _widest(problem: Problem, cut: Schedule, device: Device) -> Schedule | None:
    """The cut with the widest access that rows allow: of those with both ends left over last."""
    size = problem.dtype.bytes
    for vector in (v for v in (16, 8, 4, 2, 1) if v * size <= 16):
        for edges in Edges.EXACT, Edges.MASKED, Edges.PEEL:
            found = cut.varied(vector=vector, edges=edges)
            if refusal(problem, found, device, CUT) is None:
                return found
    return None


def _parts(problem: Problem, device: Device) -> list[int]:
    """Blocks that may share a row so that whole groups are resident: as many groups as rows, or a few."""
    found, rows = set(), max(1, problem.rows)
    for per_sm in {per_sm for per_sm, _ in BLOCKS}:
        resident = per_sm * device.sm_count
        for groups in {*range(1, 9), 11, 12, 16, 22, 33, 44, 66, rows, -(-rows // 2)}:
            parts = resident // groups
            parts -= parts % 2 if parts > 64 else 0
            if groups <= rows and 2 <= parts <= 304:
                found.add(parts)
    return sorted(found, reverse=True)
