"""The schedule of a contraction that nobody tuned, and of a header's general kernel."""

from __future__ import annotations

from normgen.device import Device
from normgen.errors import NothingValidError
from normgen.knobs import Fragment, Hold
from normgen.problem.problem import Problem
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.clocks import asked_bytes, busy_clocks
from normgen.schedule.tiles.cut import contraction
from normgen.schedule.tiles.plan import tile_problem_plan
from normgen.schedule.tiles.space import points

# Points up to so many times the fewest clocks are alike for the formula. Of these, on an H200 in f32, 128x256x32 with
# 16 x 8 a thread, which asks L2 for least, takes 0.96 of the time of the one with the fewest clocks at 4096^3, 3020 µs,
# 0.92 at 2048^3, 388 µs, and 0.94 at 8192^3, 24.0 ms. Sides that wait for their rows are faster in small tiles.
ALIKE = 1.02


def default_of_tiles(problem: Problem, device: Device) -> Schedule:
    """Of the points of the space that leave the busiest SM the fewest clocks the one that asks L2 for least."""
    legal = [s for s in points(problem, device) if refusal(problem, s, device) is None]
    if not legal:
        raise NothingValidError("no schedule is legal for this problem", received=str(problem))
    clocks = {s: busy_clocks(problem, s, device) for s in legal}
    few_lines = any(s.fragment is Fragment.MMA and s.hold is Hold.RELOAD for s in legal)  # the other side is read once
    if contraction(problem).ahead or few_lines:
        return min(legal, key=lambda s: (clocks[s], -s.stages))
    alike = [s for s in legal if clocks[s] <= ALIKE * min(clocks.values())]
    return min(alike, key=lambda s: (asked_bytes(problem, s), clocks[s], *_reads(problem, s)))


def _reads(problem: Problem, s: Schedule) -> tuple[int, int]:
    """Of tiles alike in all else, what shared memory is read less for: tall parts of threads, wide ones of teams.

    Threads that read pieces along k of both sides hold those of all their lines along m: few, and with two stages
    128x256x32 takes 2973 us at 4096^3 in f32 on an H200, with three 2995, and with 16 x 8 a thread it spills.
    """
    fragment = tile_problem_plan(problem, s).fragment
    if all(map(fragment.is_deep, fragment.cut.sides)) and s.fragment is Fragment.SIMT:
        return abs(s.stages - 2), s.thread_m
    return -s.stages, s.thread_m if s.fragment is Fragment.WGMMA else -s.thread_m


def fallbacks_of_tiles(_: Problem) -> tuple[Schedule, ...]:
    """One block size for all sizes, element by element."""
    return (Schedule(hold=Hold.SHARED, stages=2, tile_m=64, tile_n=64, tile_k=8, thread_m=4, thread_n=4),)
