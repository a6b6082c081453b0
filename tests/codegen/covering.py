"""A covering sample: few schedules in which every knob value, and every pair of values of two knobs, occurs."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from normgen.device import Device
from normgen.problem.problem import Problem
from normgen.schedule.default import default_schedule
from normgen.schedule.knobs import KNOBS, Copy, Variance
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import space

POOL = 700  # schedules drawn from each problem's space, besides those that show a value for the first time
TRIES = 16_000  # random points a way to sum columns: some 20 to 200 of them are legal
PLAIN = Schedule()
Case = tuple[Problem, Schedule]
# What a spec that lists these has searched besides what searches propose.
ASKED = {name: KNOBS[name].forward for name in ("threads_per_row", "vector", "hold", "reduce_with", "persistent")}
ASKED |= {"variance": (*KNOBS["variance"].forward, Variance.WELFORD)}

# threads_per_row and rows_per_block pair by what they mean; the other knobs by value.
PAIRED = (
    *("reduce_with", "vector", "variance", "softmax", "hold", "edges", "stages"),
    *("unroll", "load", "store", "params", "columns", "blocks_per_sm", "cluster"),
)
STEPS = 120  # of a walk; one in five is legal


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
    """Part of the problem's space, as wide as a spec may ask for, that shows every value which the whole shows."""
    if problem.sums_rows:
        return drawn(problem, device, rng)
    asked = replace(problem, spec=replace(problem.spec, knobs=ASKED))
    legal = list(space(asked, device).legal)
    rng.shuffle(legal)
    seen: set[tuple[str, object]] = set()
    first = []
    for schedule in legal[POOL:]:
        new = set(single_values(schedule)) - seen
        if new:
            seen |= new
            first.append(schedule)
    return [(problem, s) for s in (*legal[:POOL], *first)]


def drawn(problem: Problem, device: Device, rng: random.Random) -> list[Case]:
    """Random legal points, searched or not, as many tries for each way to sum columns.

    The space of a backward problem has tens of thousands of points, nearly all in few of the ways.
    """
    choices = {name: KNOBS[name].values for name in KNOBS if name not in ("columns", "statistics")}
    found = []
    for columns in KNOBS["columns"].values:
        for _ in range(TRIES):
            point = {name: rng.choice(listed) for name, listed in choices.items()}
            schedule = PLAIN.varied(columns=columns, **point)
            if refusal(problem, schedule, device) is None:
                found.append((problem, schedule))
    return found


def cover(cases: Sequence[Case]) -> list[Case]:
    """A few of the cases that have all features of all of them: always the one with the most new ones next."""
    number: dict[tuple[object, ...], int] = {}
    masks = [sum(1 << number.setdefault(f, len(number)) for f in features(c)) for c in cases]
    missing = (1 << len(number)) - 1
    queue = [(-mask.bit_count(), i) for i, mask in enumerate(masks)]
    heapq.heapify(queue)
    chosen = []
    while missing:
        _, i = heapq.heappop(queue)
        gain = (masks[i] & missing).bit_count()
        if gain and queue and -gain > queue[0][0]:
            heapq.heappush(queue, (-gain, i))
        elif gain:
            chosen.append(cases[i])
            missing &= ~masks[i]
    return chosen


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
        for point in walk(problem, start, device, rng):
            if not (told := way(problem, point)) <= seen:
                seen |= told
                found.append((problem, point))
    return found


def way(problem: Problem, s: Schedule) -> set[tuple[str, object]]:
    told = {pair for pair in values(problem, s) if pair[0] in ("team", "edges", "reduce_with")}
    return told | {("copy", s.copy), ("cluster walks", s.row_blocks > 1 and s.persistent > 0)}


def walk(problem: Problem, start: Schedule, device: Device, rng: random.Random) -> Iterator[Schedule]:
    """Legal schedules, each a few knobs from the one before."""
    schedule = start
    for _ in range(STEPS):
        yield schedule
        changed = rng.sample(tuple(KNOBS), rng.randint(1, 4))
        point = replace(schedule, **{name: rng.choice(KNOBS[name].values) for name in changed})
        if point.variance != Variance.SUM_OF_SQUARES and refusal(problem, point, device) is None:
            schedule = point
