"""Which point of an enumerated legal set to measure next: ours, and a random order. No device, no study.

Ours, in batches of which two may be in flight:
  1. seeds: the given ones (the default, known winners), then the cost model's best, no two alike in the knobs that
     cut the work, and one of every other rewrite: one wrong result then speaks for its rewrite.
  2. after that most of a batch by expected improvement under the surrogate, a share of it among the neighbours
     (one knob changed) of the best few points. Points of the same batch, and of the batch in flight, count as
     measured at their expected value ("kriging believer": Ginsbourger et al. 2010), so that a batch spreads.
A rewrite whose results were wrong and never right is not proposed again.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from normgen.schedule.many import NAMES, Schedules, combinations
from normgen.schedule.schedule import Schedule
from normgen.tuning.search import surrogate

Array = NDArray[np.float64]

SEEDS = 8  # the first batch: more of the cost model's best keep a search among their kind (docs/search.md's sweeps)
POLISH_SHARE = 0.4
POLISHED = 3  # neighbours of so many of the best points
WRONG_LIMIT = 2
POOL = 1200  # points a batch is chosen from: the cost model's best, random ones, and neighbours of the best
LEAST_TOLD = 6


class Strategy(Protocol):
    """Proposes indices into a legal set and is told what they took."""

    def ask(self, count: int) -> list[int]:
        """Up to `count` points not asked for before; none when the set is exhausted."""

    def tell(self, index: int, us: float | None, *, is_wrong: bool = False) -> None:
        """µs of a point; None: it is no usable kernel, `is_wrong` when its result missed the contract."""


class RandomOrder:
    """Every point once, in a shuffled order."""

    def __init__(self, size: int, *, seed: int) -> None:
        self._order = random.Random(seed).sample(range(size), size)

    def ask(self, count: int) -> list[int]:
        asked, self._order = self._order[:count], self._order[count:]
        return asked

    def tell(self, index: int, us: float | None, *, is_wrong: bool = False) -> None:
        pass


class Surrogate:
    """Seeds, then expected improvement with a polish: see the module's docstring. Deterministic for a seed.

    log_cost   log of the cost model's µs of each legal schedule
    seeds      indices to try first
    how        of a point that was asked for: a "record" that was given, by cost "model", "search" or its "polish"
    """

    def __init__(
        self,
        legal: Sequence[Schedule],
        *,
        log_cost: Array,
        seeds: Sequence[int] = (),
        seed_count: int = SEEDS,
        seed: int = 0,
    ) -> None:
        self._legal = legal
        self.log_cost = log_cost
        self._random = np.random.default_rng(seed)
        self._features = surrogate.features_of(legal)
        self._codes = codes_of(legal)
        self._left = np.ones(len(legal), dtype=bool)
        self._us: dict[int, float] = {}
        self._failed: set[int] = set()  # no kernel at all: not those with a wrong result
        self._flying: dict[int, None] = {}
        self.how: dict[int, str] = {}
        self._ways = ways_of(legal)
        self._wrong: Counter[int] = Counter()
        self._by_cost = np.argsort(log_cost + 1e-3 * self._random.random(len(legal)), kind="stable")
        self._given = frozenset(seeds)
        self._queue = self._seed_order(list(dict.fromkeys(seeds)), seed_count)

    def ask(self, count: int) -> list[int]:
        picked = [i for i in self._queue[:count] if self._left[i]]
        self._queue = self._queue[count:]
        self._take(picked, ["record" if i in self._given else "model" for i in picked])
        while len(picked) < count and self._left.any():
            picked += self._choose(count - len(picked))
        return picked

    def tell(self, index: int, us: float | None, *, is_wrong: bool = False) -> None:
        self._flying.pop(index, None)
        way = int(self._ways[index])
        if us is not None:
            self._us[index] = us
            return
        if not is_wrong:
            self._failed.add(index)
        self._wrong[way] += is_wrong
        if self._wrong[way] >= WRONG_LIMIT and not any(self._ways[i] == way for i in self._us):
            self._left &= self._ways != way

    @property
    def best(self) -> int | None:
        """Index of the fastest point told."""
        return min(self._us, key=lambda i: (self._us[i], i), default=None)

    def hope(self) -> float:
        """Expected relative improvement over the best of the most promising point left; inf before there is a fit."""
        if not self._has_fit():
            return float("inf")
        pool = self._pool()
        if not pool.size:
            return 0.0
        belief, best = self._belief(pool), float(np.log(min(self._us.values())))
        return float((surrogate.expected_improvement(belief.mean, belief.deviation, best) * self._feasible(pool)).max())

    def _has_fit(self) -> bool:
        return bool(self._us) and len(self._us) + len(self._failed) >= LEAST_TOLD

    def _take(self, indices: Sequence[int], how: Sequence[str]) -> None:
        self.how.update(zip(indices, how, strict=True))
        self._left[list(indices)] = False
        self._flying.update(dict.fromkeys(indices))

    # ---- seeds ---------------------------------------------------------------------------------------------------

    def _seed_order(self, given: list[int], count: int) -> list[int]:
        """The given seeds; then the cost model's best with a new cut of the work each, other rewrites early."""
        chosen = list(given)
        cuts = {_cut(self._legal[i]) for i in chosen}
        self._main_way = main_way = int(self._ways[chosen[0] if chosen else self._by_cost[0]])
        others = [int(w) for w in np.unique(self._ways) if w != main_way]
        probes = [next(int(i) for i in self._by_cost if self._ways[i] == way) for way in others]
        diverse: list[int] = []
        for index in map(int, self._by_cost):
            if len(diverse) >= count - len(probes):
                break
            if self._ways[index] == main_way and _cut(self._legal[index]) not in cuts:
                cuts.add(_cut(self._legal[index]))
                diverse.append(index)
        first = [*diverse[:2], *probes, *diverse[2:]]
        return list(dict.fromkeys([*chosen, *first]))

    # ---- afterwards ----------------------------------------------------------------------------------------------

    def _choose(self, count: int) -> list[int]:
        if not self._has_fit():
            proven = {self._main_way, *(int(self._ways[i]) for i in self._us)}
            left = [int(i) for i in self._by_cost if self._left[i]]
            chosen = sorted(left, key=lambda i: int(self._ways[i]) not in proven)[:count]
            self._take(chosen, ["model"] * len(chosen))
            return chosen
        found = self._spread(self._pool(), count)
        self._take(list(found), list(found.values()))
        return list(found)

    def _pool(self) -> NDArray[np.intp]:
        """Points a batch is chosen from."""
        left = np.flatnonzero(self._left)
        if left.size <= POOL:
            return left
        near = np.zeros(len(self._legal), dtype=bool)
        for index in self._top():
            near |= self._distance(index) <= 1
        cheap = self._by_cost[self._left[self._by_cost]][: POOL // 2]
        anywhere = self._random.choice(left, POOL // 2, replace=False)
        return np.unique(np.concatenate([np.flatnonzero(near & self._left), cheap, anywhere]))

    def _top(self) -> list[int]:
        return sorted(self._us, key=lambda i: (self._us[i], i))[:POLISHED]

    def _distance(self, index: int) -> NDArray[np.intp]:
        """In how many knobs each legal point differs from that one: [legal]."""
        differs: NDArray[np.intp] = (self._codes != self._codes[index]).sum(axis=1)
        return differs

    def _observed(self) -> tuple[list[int], Array]:
        """Measured points and their log µs; what does not compile or launch counts as slow."""
        told = sorted(self._us)
        slow = min(self._us.values()) * math.exp(surrogate.SLOWEST)
        return [*told, *sorted(self._failed)], np.log([self._us[i] for i in told] + [slow] * len(self._failed))

    def _belief(self, pool: NDArray[np.intp]) -> surrogate.Belief:
        told, log_us = self._observed()
        posterior = surrogate.fit(self._features[told], log_us, self.log_cost[told])
        return posterior.over(self._features[pool], self.log_cost[pool])

    def _spread(self, pool: NDArray[np.intp], count: int) -> dict[int, str]:
        """The best of the pool one after another, each believed at its mean before the next is chosen; and how."""
        flying = np.array(list(self._flying), dtype=np.intp)
        whole = np.concatenate([pool, flying])
        belief = self._belief(whole)
        for at in range(len(pool), len(whole)):
            belief.believe(at)
        best = float(np.log(min(self._us.values())))
        near = np.zeros(len(self._legal), dtype=bool)
        for index in self._top():
            near |= self._distance(index) == 1
        chance = self._feasible(pool)
        free = np.ones(len(pool), dtype=bool)
        picked: dict[int, str] = {}
        for turn in range(min(count, len(pool))):
            improvement = surrogate.expected_improvement(belief.mean, belief.deviation, best)[: len(pool)]
            polish = turn < round(count * POLISH_SHARE) and bool((free & near[pool]).any())
            allowed = free & near[pool] if polish else free
            at = int(np.argmax(np.where(allowed, improvement * chance, -1.0)))
            picked[int(pool[at])] = "polish" if polish else "search"
            free[at] = False
            belief.believe(at)
        return picked

    def _feasible(self, pool: NDArray[np.intp]) -> Array:
        """Chance that a point's rewrite is right: of n results of its kind, wrong ones count against it."""
        right = Counter(int(self._ways[i]) for i in self._us)
        chance = {w: (right[w] + 0.5) / (right[w] + self._wrong[w] + 0.5) for w in set(self._ways.tolist())}
        return np.array([chance[int(self._ways[i])] for i in pool])


def _cut(s: Schedule) -> tuple[object, ...]:
    tile = (s.tile_m, s.tile_n, s.thread_m, s.thread_n)
    return s.threads_per_row, s.rows_per_block, s.row_blocks, s.vector, s.hold, s.copy, s.persistent > 0, *tile


def codes_of(legal: Sequence[Schedule]) -> NDArray[np.int16]:
    """[legal, knobs]: which of a knob's values, in sorted order."""
    return np.ascontiguousarray(Schedules.of(legal).compact().codes)


def ways_of(legal: Sequence[Schedule]) -> NDArray[np.int16]:
    """A number for each combination of rewrites: [legal]."""
    schedules = Schedules.of(legal).compact()
    _, ways = combinations(schedules, np.arange(len(legal)), [NAMES.index("variance"), NAMES.index("softmax")])
    return ways.astype(np.int16)
