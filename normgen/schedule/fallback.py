"""The schedules of an exported header's general kernel."""

from __future__ import annotations

from collections.abc import Callable

from normgen.knobs import ColumnWay, Edges, Hold
from normgen.problem.problem import Problem
from normgen.program.classes import ProgramClass, class_of
from normgen.schedule.lanes.space import fallbacks_of_lanes
from normgen.schedule.plan import WARP
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.default import fallbacks_of_tiles


def fallback_schedules(problem: Problem) -> tuple[Schedule, ...]:
    """The schedules of an exported header's general kernel: any cols and any row pitch; never tuned."""
    return FALLBACKS[class_of(problem)](problem)


def _fallbacks_of_rows(problem: Problem) -> tuple[Schedule, ...]:
    """A block owns a row and reads it once a look; formulas as written. The last one takes any alignment, element by
    element. The one before it, where there is one, reads vectors of 16 bytes with what is left at both ends, and asks
    that the rows of all tensors shift alike; both are one text. With groups of columns there is one, whose vectors let
    a warp own a group. Where sums of columns must be deterministic, one block
    walks all rows.
    """
    columns = ColumnWay.ATOMIC if problem.sums_rows else Schedule().columns
    single = Schedule(threads_per_row=256, vector=1, hold=Hold.RELOAD, columns=columns)
    if problem.spec.group:  # the lanes of one warp own a group
        return (single.varied(vector=max(problem.packed, problem.spec.group // WARP)),)
    sizes = {t.dtype.bytes for t in problem.elem_tensors}
    if len(sizes) > 1:
        return (single.varied(vector=problem.packed),)
    peeled = single.varied(edges=Edges.PEEL)
    return peeled.varied(vector=16 // sizes.pop()), peeled


FALLBACKS: dict[ProgramClass, Callable[[Problem], tuple[Schedule, ...]]] = {
    ProgramClass.ROWS: _fallbacks_of_rows,
    ProgramClass.TILES: fallbacks_of_tiles,
    ProgramClass.LANES: fallbacks_of_lanes,
}
