"""Rows that blocks of the grid share through memory: which are so long that it may pay, and how they are cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from normgen.device import Device
from normgen.knobs import ColumnWay, Copy, Edges, Hold
from normgen.problem.problem import Problem
from normgen.schedule.columns import least, most, where
from normgen.schedule.legality import CUT, persistent, reduces_rows, refusal
from normgen.schedule.schedule import Schedule

LEAST_ROW = 1 << 20  # bytes: 16 SMs of a cluster read less in the time of one exchange through memory
# ... and what one SM reads where there are no clusters. Sums of columns leave a row no other place than registers.
LEAST_SUMMED_ROW = LEAST_ROW // 16
LEFT_IN_L2 = 0.32  # of L2, what the look before has left there of a row
BLOCKS = ((1, 1024), (2, 512), (1, 512), (2, 1024), (4, 256), (4, 512))  # blocks of an SM, and their threads


def are_giant(problem: Problem, device: Device) -> bool:
    """Whether rows are so long that blocks that meet in memory may be the best way to share them."""
    least_row = LEAST_SUMMED_ROW if problem.column_outputs and not device.has_clusters else LEAST_ROW
    is_long = problem.row_bytes >= least_row or problem.cols * problem.dtype.bytes >= least_row
    return is_long and reduces_rows(problem) and not (problem.any_cols or problem.sums_batches)


def left_in_l2(problem: Problem, s: Schedule, device: Device, *, walkers: int) -> float:
    """The share of rows that L2 has left when so many blocks, or groups of them, look at their rows again.

    A look that begins where the last one ended finds what is left; one that begins with the first columns finds all
    that it needs, or nothing.
    """
    kept, in_flight = LEFT_IN_L2 * device.l2_bytes, least(walkers, problem.rows) * problem.row_bytes
    return where(s.meets_in_memory | (in_flight <= kept), kept / most(kept, in_flight), 0.0)


def shared_rows(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Cuts of rows among resident blocks, and places for them to wait; not all are legal."""
    for (per_sm, threads), parts in itertools.product(BLOCKS, _parts(problem, device)):
        wanted = Schedule(
            threads_per_row=threads,
            parts=parts,
            persistent=per_sm,
            blocks_per_sm=per_sm if per_sm > 1 else 0,
        )
        for cut in _widest(problem, wanted, device):
            if refusal(problem, cut.varied(hold=Hold.RELOAD), device, (*CUT, persistent)) is None:
                yield from _places(problem, cut)


def _places(problem: Problem, cut: Schedule) -> Iterator[Schedule]:
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


def _widest(problem: Problem, cut: Schedule, device: Device) -> Iterator[Schedule]:
    """The cut with the widest access that rows allow: of those with both ends left over last.

    Sums of columns of which each row begins elsewhere take a block's shared memory, or atomics: then also the widest
    without ends, where atomics are out or nothing else shares a row.
    """
    has_others = problem.column_outputs and (problem.deterministic or not device.has_clusters)
    size = problem.dtype.bytes
    for vector in (v for v in (16, 8, 4, 2, 1) if v * size <= 16):
        for edges in Edges.EXACT, Edges.MASKED, Edges.PEEL:
            found = cut.varied(vector=vector, edges=edges)
            if refusal(problem, found, device, CUT) is None:
                yield found
                if not (found.peels and has_others):
                    return


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
