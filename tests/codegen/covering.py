"""A covering sample: few schedules in which every knob value, and every pair of values of two knobs, occurs."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from normgen.choice.first import default_schedule
from normgen.device import Device
from normgen.knobs import KNOBS, Copy, VarianceMethod
from normgen.problem.problem import Problem
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule

STEPS = 1000  # of a walk: one in five comes to a legal schedule that it has not met before
SHORT_WALK = 120
VALUES = {name: knob.values for name, knob in KNOBS.items()}
Case = tuple[Problem, Schedule]

# threads_per_row and rows_per_block pair by what they mean; the other knobs by value.
PAIRED = (
    *("reduce_with", "vector", "variance", "softmax", "hold", "edges", "stages"),
    *("unroll", "load", "store", "params", "columns", "blocks_per_sm", "cluster"),
)


def values(problem: Problem, s: Schedule) -> list[tuple[str, object]]:
    """What pairs are made of."""
    team = "thread" if s.threads_per_row == 1 else "warp" if s.threads_per_row == 32 else s.strategy
    team = "part of a warp" if 1 < s.threads_per_row < 32 else team
    return [
        ("team", team),
        ("rows side by side", s.rows_per_block > 1),
        ("row loop", s.persistent > 0),
        ("dtype", problem.dtype.name),
        ("layout", (problem.rows, problem.cols)),
        *((name, getattr(s, name)) for name in PAIRED),
    ]


def single_values(s: Schedule) -> list[tuple[str, object]]:
    return [(name, getattr(s, name)) for name in KNOBS]


def features(case: Case) -> set[tuple[object, ...]]:
    """Single knob values and pairs of values."""
    return {*single_values(case[1]), *itertools.combinations(values(*case), 2)}


def pool(problem: Problem, device: Device, rng: random.Random) -> list[Case]:
    """Some hundred legal schedules of a problem, searched or not.

    They are met on short random walks, from the default and from each value of each knob that is legal beside it.
    """
    default = default_schedule(problem, device)
    nearby = (default.varied(**{name: value}) for name in KNOBS for value in KNOBS[name].values)
    legal = [start for start in dict.fromkeys((default, *nearby)) if refusal(problem, start, device) is None]
    found = dict.fromkeys(s for start in legal for s in walk(problem, start, device, rng, STEPS // len(legal)))
    return [(problem, schedule) for schedule in found]


def cover(cases: Sequence[Case], most: int | None = None) -> list[Case]:
    """A few of the cases that have all features of all of them: always the one with the most new ones next.

    At `most` so many: what they leave out is pairs that one case alone shows.
    """
    number: dict[tuple[object, ...], int] = {}
    shown = [[number.setdefault(f, len(number)) for f in features(c)] for c in cases]
    masks = [mask_of(bits, len(number)) for bits in shown]
    missing = (1 << len(number)) - 1
    queue = [(-mask.bit_count(), i) for i, mask in enumerate(masks)]
    heapq.heapify(queue)
    chosen = []
    while missing and (most is None or len(chosen) < most):
        _, i = heapq.heappop(queue)
        gain = (masks[i] & missing).bit_count()
        if gain and queue and -gain > queue[0][0]:
            heapq.heappush(queue, (-gain, i))
        elif gain:
            chosen.append(cases[i])
            missing &= ~masks[i]
    return chosen


def mask_of(bits: Iterable[int], count: int) -> int:
    """The number of `count` bits in which these are set; adding their powers of two takes ten times as long."""
    mask = bytearray(count // 8 + 1)
    for bit in bits:
        mask[bit >> 3] |= 1 << (bit & 7)
    return int.from_bytes(mask, "little")


def ways(problem: Problem, device: Device, rng: random.Random) -> list[Case]:
    """A few legal schedules, in which each team for a row, way for rows to arrive, cut and exchange comes once.

    They are met on random walks that start with each team, alone and in a cluster, for one row and for many.
    """
    default = default_schedule(problem, device)
    seen: set[tuple[str, object]] = set()
    found: list[Case] = []
    teams = itertools.product((1, 8, 32, 64), (1, 2), (0, 1), KNOBS["vector"].values, KNOBS["edges"].values)
    for threads, cluster, persistent, vector, edges in teams:
        shape = {"threads_per_row": threads, "rows_per_block": max(1, 32 // threads), "vector": vector, "edges": edges}
        start = replace(default, cluster=cluster, persistent=persistent, copy=Copy.DIRECT, stages=1, **shape)
        told = way(problem, start)
        if told <= seen or refusal(problem, start, device) is not None:
            continue
        for point in walk(problem, start, device, rng, SHORT_WALK):
            if point.variance is VarianceMethod.SUM_OF_SQUARES:  # loses rows with a large mean
                continue
            if not (told := way(problem, point)) <= seen:
                seen |= told
                found.append((problem, point))
    return found


def way(problem: Problem, s: Schedule) -> set[tuple[str, object]]:
    told = {pair for pair in values(problem, s) if pair[0] in ("team", "edges", "reduce_with")}
    return told | {("copy", s.copy), ("cluster walks", s.row_blocks > 1 and s.persistent > 0)}


def walk(
    problem: Problem,
    start: Schedule,
    device: Device,
    rng: random.Random,
    steps: int,
    drawn_from: Mapping[str, Sequence[object]] = VALUES,
) -> Iterator[Schedule]:
    """Legal schedules, each once and a few knobs from the one before."""
    names = tuple(drawn_from)
    schedule, met = start, {start}
    yield start
    for _ in range(steps):
        changed = rng.sample(names, rng.randint(1, 4))
        point = schedule.varied(**{name: rng.choice(drawn_from[name]) for name in changed})
        if refusal(problem, point, device) is not None:
            continue
        schedule = point
        if point not in met:
            met.add(point)
            yield point
