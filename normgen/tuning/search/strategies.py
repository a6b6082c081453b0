"""Which point of an enumerated legal set to measure next, from what was told of others. No device, no study.

  1. seeds: the given ones (the default, known winners), then the prior's best, no two of one group (for schedules: no
     two that cut the work alike), and one of every other way: one wrong result then speaks for its way. Without a
     prior: points that are far apart.
  2. after that by expected improvement under the surrogate: in the whole set, and in turns in the regions of the second
     and the third best point, there over that region's own best; a search that sits on the side of a lower hill so
     climbs another one too. Points in flight count as measured at their expected value ("kriging believer":
     Ginsbourger et al. 2010), so that a batch spreads.
A way (for schedules: a rewrite of the formula) whose results were wrong and never right is not proposed again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normgen.tuning.search import surrogate

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Codes = NDArray[np.int16 | np.int32]
Mask = NDArray[np.bool_]

SEEDS = 8  # the first batch: more of the cost model's best keep a search among their kind (docs/search.md's sweeps)
TURNS = (0, 0, 0, 1, 1, 1, 2, 2)  # which region has the turn: 0 is the whole set
NEAR = 3  # of so many of the best points the neighbours are looked at
DRAWN = 64  # of which the farthest is taken where nothing is known
WRONG_LIMIT = 2
POOL = 2000  # points the next is chosen from: a quarter the prior's best, random ones, and neighbours of the best
LEAST_TOLD = 6


@dataclass(frozen=True)
class Told:
    """What is known of a legal set, by indices: costs of usable points, those without one, those in flight as asked.

    wrong   points whose result was wrong
    failed  no usable point for another reason
    """

    costs: Mapping[int, float] = field(default_factory=dict)
    failed: frozenset[int] = frozenset()
    wrong: frozenset[int] = frozenset()
    flying: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Points told, failures included."""
        return len(self.costs) + len(self.failed) + len(self.wrong)

    @property
    def best(self) -> float:
        """The lowest cost."""
        return min(self.costs.values())

    def top(self, count: int) -> list[int]:
        """The best few, best first."""
        return sorted(self.costs, key=lambda i: (self.costs[i], i))[:count]


class Points(NamedTuple):
    """Points as columns: `codes` [points, knobs] into the values of each knob, all of which occur."""

    knobs: tuple[str, ...]
    codes: Codes
    values: tuple[tuple[Any, ...], ...]

    @staticmethod
    def of(points: Sequence[Mapping[str, Any]]) -> Points:
        """Of mappings with the same knobs."""
        columns = {knob: [point[knob] for point in points] for knob in points[0]}
        codes = np.stack([codes_of(values) for values in columns.values()], axis=1)
        return Points(tuple(columns), codes, tuple(tuple(dict.fromkeys(values)) for values in columns.values()))


class Legal:
    """An enumerated legal set: which of its points may still be proposed.

    codes  [points, knobs]: equal where values are
    ways   what a wrong result speaks against: a value for each point
    """

    def __init__(self, codes: Codes, *, ways: Sequence[Hashable] | None = None) -> None:
        self.size = len(codes)
        self.codes = codes
        self.ways = codes_of(ways) if ways is not None else np.zeros(self.size, dtype=np.int16)

    def left(self, told: Told) -> Mask:
        """[points]: neither told nor in flight, nor of a way that was wrong WRONG_LIMIT times and never right."""
        left = np.ones(self.size, dtype=bool)
        left[[*told.costs, *told.failed, *told.wrong, *told.flying]] = False
        right, wrong = self.results_of_ways(told)
        for way, count in wrong.items():
            if count >= WRONG_LIMIT and not right[way]:
                left &= self.ways != way
        return left

    def results_of_ways(self, told: Told) -> tuple[Counter[int], Counter[int]]:
        """How many results of each way were right, and wrong."""
        return Counter(int(self.ways[i]) for i in told.costs), Counter(int(self.ways[i]) for i in told.wrong)

    def distance(self, index: int) -> NDArray[np.intp]:
        """In how many knobs each point differs from that one: [points]."""
        differs: NDArray[np.intp] = (self.codes != self.codes[index]).sum(axis=1)
        return differs


class Surrogate:
    """The next point by seeds, then expected improvement with a polish: see the module's docstring.

    A function of what was told and of the seed alone: whoever goes on with another's search goes the same way.

    legal     the set
    features  [points, features]: a difference of 1 is one step
    log_cost  [points]: log of what a model says each costs; None: nothing is known
    seeds     indices to try first
    groups    of which there is one point each among the prior's best that are tried first
    regions   [points]: which part of the set each is in; None: all in one
    """

    def __init__(
        self,
        legal: Legal,
        *,
        features: Array,
        log_cost: Array | None = None,
        seeds: Sequence[int] = (),
        groups: Sequence[Hashable] | None = None,
        regions: Sequence[Hashable] | None = None,
        seed_count: int = SEEDS,
        seed: int = 0,
    ) -> None:
        self.legal = legal
        self.log_cost = np.zeros(legal.size) if log_cost is None else log_cost - log_cost.mean()
        self._regions = codes_of(regions) if regions is not None else np.zeros(legal.size, dtype=np.int16)
        self._features = features
        self._seed = seed
        jitter = np.random.default_rng(seed).random(legal.size)
        self._by_cost = np.argsort(self.log_cost + 1e-3 * jitter, kind="stable")
        self._groups = groups if groups is not None else range(legal.size)
        given = list(dict.fromkeys(seeds))
        self._main_way = int(legal.ways[given[0] if given else self._by_cost[0]])
        first = self._far_apart(given, seed_count) if log_cost is None else self._likely(given, seed_count)
        self._queue = list(dict.fromkeys([*given, *first]))
        self._kept: tuple[object, _Outlook] | None = None

    def choose(self, told: Told, left: Mask) -> tuple[int, str]:
        """The next point, of those [points] that may be proposed, one at least; and how: model, region or search."""
        if (seed := next((i for i in self._queue if left[i]), None)) is not None:
            return seed, "model"
        if not _has_fit(told):
            proven = {self._main_way, *(int(self.legal.ways[i]) for i in told.costs)}
            ordered = self._by_cost[left[self._by_cost]]
            return next((int(i) for i in ordered if int(self.legal.ways[i]) in proven), int(ordered[0])), "model"
        outlook = self._outlook(told)
        outlook.believe(told.flying)
        chance = self._feasible(told)
        turn = TURNS[(told.count + len(told.flying)) % len(TURNS)]
        leaders = self._leaders(told)
        if 0 < turn < len(leaders):
            here = left & (self._regions == self._regions[leaders[turn]])
            if (chosen := outlook.choose(here, chance, best=told.costs[leaders[turn]])) is not None:
                return chosen, "region"
        chosen = outlook.choose(left, chance, best=told.best)
        return int(np.argmax(left)) if chosen is None else chosen, "search"  # None: none of them was in the pool

    def hope(self, told: Told) -> float:
        """Expected relative improvement over the best of the most promising point left; inf before there is a fit."""
        if not _has_fit(told):
            return float("inf")
        return self._outlook(told).hope(self.legal.left(told), self._feasible(told))

    # ---- seeds ---------------------------------------------------------------------------------------------------

    def _likely(self, given: list[int], count: int) -> list[int]:
        """The prior's best of a new group each, other ways early."""
        ways, groups, main_way = self.legal.ways, self._groups, self._main_way
        used = {groups[i] for i in given}
        others = [int(w) for w in np.unique(ways) if w != main_way]
        probes = [next(int(i) for i in self._by_cost if ways[i] == way) for way in others]
        diverse: list[int] = []
        for index in map(int, self._by_cost):
            if len(diverse) >= count - len(probes):
                break
            if ways[index] == main_way and groups[index] not in used:
                used.add(groups[index])
                diverse.append(index)
        return [*diverse[:2], *probes, *diverse[2:]]

    def _far_apart(self, given: list[int], count: int) -> list[int]:
        """Each the farthest of some drawn ones from those before it (maximin: Johnson et al. 1990)."""
        drawn = np.random.default_rng((self._seed, 0))
        apart = np.full(self.legal.size, np.inf)
        chosen: list[int] = []
        for index in [*given, *[None] * count]:
            if index is None:
                some = drawn.choice(self.legal.size, min(self.legal.size, DRAWN))
                index = int(some[np.argmax(apart[some])])
                chosen.append(index)
            apart = np.minimum(apart, np.abs(self._features - self._features[index]).sum(axis=1))
        return chosen

    # ---- afterwards ----------------------------------------------------------------------------------------------

    def _outlook(self, told: Told) -> _Outlook:
        """What the told points let expect, nothing in flight believed yet: kept until another is told."""
        known = (dict(told.costs), told.failed, told.wrong)
        if self._kept is None or self._kept[0] != known or not self._kept[1].goes_on(told.flying):
            observed, log_cost = _observed(told)
            posterior = surrogate.fit(self._features[observed], log_cost, self.log_cost[observed])
            pool = self._pool(told)
            belief = posterior.over(self._features[pool], self.log_cost[pool])
            self._kept = known, _Outlook(pool, belief, told.best)
        return self._kept[1]

    def _pool(self, told: Told) -> Indices:
        """Points that are looked at until another is told, those in flight among them."""
        left = self.legal.left(replace(told, flying=()))
        flying = np.array(told.flying, dtype=np.intp)
        if left.sum() > POOL:
            apart = np.min([self.legal.distance(i) for i in told.top(NEAR)], axis=0)
            near = np.flatnonzero(left & (apart <= 1))
            cheap = self._by_cost[left[self._by_cost]][: POOL // 4]
            drawn = np.random.default_rng((self._seed, told.count))
            anywhere = drawn.choice(np.flatnonzero(left), POOL - POOL // 4, replace=False)
            return np.unique(np.concatenate([near, cheap, anywhere, flying]))
        return np.unique(np.concatenate([np.flatnonzero(left), flying]))

    def _leaders(self, told: Told) -> list[int]:
        """The best point of each region, best first."""
        first: dict[int, int] = {}
        for index in told.top(len(told.costs)):
            first.setdefault(int(self._regions[index]), index)
        return list(first.values())

    def _feasible(self, told: Told) -> Array:
        """Chance that a point's way is right: of n results of its kind, wrong ones count against it."""
        right, wrong = self.legal.results_of_ways(told)
        chance = [(right[w] + 0.5) / (right[w] + wrong[w] + 0.5) for w in range(int(self.legal.ways.max()) + 1)]
        return np.array(chance)[self.legal.ways]


class _Outlook:
    """Expected improvement at a pool of points, as those in flight are believed one after another."""

    def __init__(self, pool: Indices, belief: surrogate.Belief, best: float) -> None:
        self._pool, self._belief = pool, belief
        self._at = {int(index): at for at, index in enumerate(pool)}
        self._believed: tuple[int, ...] = ()
        self._at_first = self._improvement(best)

    def goes_on(self, flying: tuple[int, ...]) -> bool:
        """Whether nothing but these was believed, in this order, and all can be."""
        return flying[: len(self._believed)] == self._believed and self._at.keys() >= set(flying)

    def believe(self, flying: tuple[int, ...]) -> None:
        for index in flying[len(self._believed) :]:
            self._belief.believe(self._at[index])
        self._believed = flying

    def choose(self, allowed: Mask, chance: Array, *, best: float) -> int | None:
        """The point that promises most over `best`, of the pool and allowed [points]; `chance`: its way is right."""
        promise = np.where(allowed[self._pool], self._improvement(best) * chance[self._pool], -1.0)
        at = int(np.argmax(promise))
        return int(self._pool[at]) if promise[at] >= 0 else None

    def hope(self, allowed: Mask, chance: Array) -> float:
        """The largest expected improvement, with no point in flight believed; 0 when none is allowed."""
        return float(np.max((self._at_first * chance[self._pool])[allowed[self._pool]], initial=0.0))

    def _improvement(self, best: float) -> Array:
        return surrogate.expected_improvement(self._belief.mean, self._belief.deviation, math.log(best))


def _has_fit(told: Told) -> bool:
    return bool(told.costs) and len(told.costs) + len(told.failed) >= LEAST_TOLD


def _observed(told: Told) -> tuple[list[int], Array]:
    """Measured points and their log costs; what does not compile or launch counts as slow."""
    usable, failed = sorted(told.costs), sorted(told.failed)
    slow = told.best * math.exp(surrogate.SLOWEST)
    return [*usable, *failed], np.log([told.costs[i] for i in usable] + [slow] * len(failed))


def codes_of(values: Sequence[Hashable]) -> Codes:
    """A number for each value, the same for equal ones, in order of the first occurrence."""
    number: dict[Hashable, int] = {}
    codes = np.array([number.setdefault(value, len(number)) for value in values])
    return codes.astype(np.int16 if len(number) <= 1 << 15 else np.int32)
