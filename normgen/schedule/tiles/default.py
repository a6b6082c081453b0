"""The schedule of a contraction that nobody tuned, and of a header's general kernel."""

from __future__ import annotations

from normgen.device import Device
from normgen.errors import NothingValidError
from normgen.problem.problem import Problem
from normgen.schedule.knobs import Hold
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.clocks import busy_clocks
from normgen.schedule.tiles.space import points


def default_of_tiles(problem: Problem, device: Device) -> Schedule:
    """The point of the space that leaves the busiest SM the fewest clocks: no table of shapes."""
    legal = [s for s in points(problem, device) if refusal(problem, s, device) is None]
    if not legal:
        raise NothingValidError("no schedule is legal for this problem", received=str(problem))
    return min(legal, key=lambda s: (busy_clocks(problem, s, device), -s.stages))


def fallbacks_of_tiles(_: Problem) -> tuple[Schedule, ...]:
    """One block size for all sizes, element by element."""
    return (Schedule(hold=Hold.SHARED, stages=2, tile_m=64, tile_n=64, tile_k=8, thread_m=4, thread_n=4),)
