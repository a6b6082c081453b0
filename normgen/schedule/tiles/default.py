"""The schedule of a contraction that nobody tuned, and of a header's general kernel."""

from __future__ import annotations

import itertools

from normgen.device import Device
from normgen.errors import NothingValidError
from normgen.problem.problem import Problem
from normgen.schedule.knobs import KNOBS, Hold
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.space import busiest_products, cuts, ways


def default_of_tiles(problem: Problem, device: Device) -> Schedule:
    """The cut that leaves the busiest SM the least to do, in the first way that is legal; of equal cuts the one that
    reads the least, which has the largest tile and the squarest.
    """
    by_work = sorted(cuts(problem), key=lambda s: (busiest_products(problem, s, device), 1 / s.tile_m + 1 / s.tile_n))
    for base, (softmax, copy, stages, tile_k) in itertools.product(by_work, ways(problem)):
        for vector in (v for v in reversed(KNOBS["vector"].values) if v <= base.vector):
            found = base.varied(softmax=softmax, copy=copy, stages=stages, tile_k=tile_k, vector=vector)
            if refusal(problem, found, device) is None:
                return found
    raise NothingValidError("no schedule is legal for this problem", received=str(problem))


def fallbacks_of_tiles(_: Problem) -> tuple[Schedule, ...]:
    """One block size for all sizes, element by element."""
    return (Schedule(hold=Hold.SHARED, stages=2, tile_m=64, tile_n=64, tile_k=8, thread_m=4, thread_n=4),)
