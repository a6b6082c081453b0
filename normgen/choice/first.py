"""The schedule of a problem that nobody tuned, and those to try first: the whole search space, ordered by a ranker."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from normgen.choice.features import features
from normgen.choice.ranker import shipped_ranker
from normgen.cost.model import terms
from normgen.device import Device
from normgen.errors import NothingValidError
from normgen.knobs import Edges
from normgen.problem.problem import Problem
from normgen.problem.question import PLAIN_ALIGN
from normgen.program.classes import ProgramClass, class_of
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.lanes.space import default_of_lanes
from normgen.schedule.legality import in_place, refusal
from normgen.schedule.many import Schedules
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import space
from normgen.schedule.tiles.default import default_of_tiles

LISTED = 64  # schedules that are worth a list
ALIKE = 1.1  # times the least: predictions of the cost model that nothing measured tells apart


def default_schedule(problem: Problem, device: Device) -> Schedule:
    """A legal schedule that is good without any measurement of this problem: what the tuner has to beat.

    Raises NothingValidError if no schedule is legal, which would be a hole in the space.
    """
    return first_choices(problem, device)[0]


@functools.lru_cache(maxsize=1024)
def first_choices(problem: Problem, device: Device) -> tuple[Schedule, ...]:
    """Legal schedules, the best first, before anything of the problem is measured. Raises as `default_schedule`."""
    return CHOICES[class_of(problem)](problem, device)


def _choices_of_rows(problem: Problem, device: Device) -> tuple[Schedule, ...]:
    """Of an architecture that was measured as the ranker orders them. Of another one it orders those that the cost
    model calls about as fast as the fastest: what it has learned of blocks and accesses holds there too, what it has
    learned of sizes does not.
    """
    legal = space(problem, device).legal
    if not len(legal):
        return (_general(problem, device),)
    ranker = shipped_ranker()
    if device.arch not in ranker.archs:
        us = terms(problem, legal, device)["us"]
        legal = legal.taken(np.flatnonzero(us <= ALIKE * us.min()))
    order = np.argsort(ranker.scores(features(problem, legal, device)), kind="stable")
    return tuple(legal[int(place)] for place in order[:LISTED])


def behind(problem: Problem, schedules: Sequence[Schedule], device: Device) -> NDArray[np.float64]:
    """What is expected of each of the schedules: how far it is behind the best there is, as a share of its time.

    By the ranker where it knows the architecture and the class of programs, else by the cost model, and then up to a
    constant.
    """
    found, ranker = Schedules.of(schedules), shipped_ranker()
    if device.arch in ranker.archs and is_ranked(problem):
        return np.maximum(0, ranker.scores(features(problem, found, device))) ** 2
    us: NDArray[np.float64] = np.log(terms(problem, found, device)["us"])
    return us


def is_ranked(problem: Problem) -> bool:
    """Whether the problem is of a class whose timings the ranker is fitted to."""
    return class_of(problem) in RANKED


def _general(problem: Problem, device: Device) -> Schedule:
    """Where the search has nothing, as of rows whose vectors end in different places: what any columns take."""
    general = fallback_schedules(problem)
    narrower = itertools.product((8, 4, 2, 1), (256, 128, 64, 32), (Edges.EXACT, Edges.MASKED))
    others = (general[-1].varied(vector=v, threads_per_row=threads, edges=edges) for v, threads, edges in narrower)
    reasons: list[str] = []
    for schedule in (*general, *others):
        reason = refusal(problem, schedule, device)
        if reason is None:
            return schedule
        reasons.append(reason)
    hint = reasons[0]
    widest = general[-1]
    whole = replace(problem, align=PLAIN_ALIGN, pitch=problem.cols * problem.col_stride)
    if taken := in_place(problem, Schedule(), device):  # of every schedule, and not the first one's reason
        hint = f"{taken}: leave in_place out"
    elif refusal(whole, widest, device) is None:  # no narrower one owns a group, or a byte of two elements
        hint = f"rows of whole vectors of {widest.vector} elements: align={PLAIN_ALIGN}, and such a pitch"
        hint += f"; here align={problem.align}, pitch={problem.pitch}"
    raise NothingValidError("no schedule is legal for this problem", received=str(problem), hint=hint)


CHOICES: dict[ProgramClass, Callable[[Problem, Device], tuple[Schedule, ...]]] = {
    ProgramClass.ROWS: _choices_of_rows,
    ProgramClass.TILES: lambda problem, device: (default_of_tiles(problem, device),),
    ProgramClass.LANES: lambda problem, device: (default_of_lanes(problem, device),),
}
RANKED = frozenset({ProgramClass.ROWS})  # classes whose timings the ranker was fitted to
