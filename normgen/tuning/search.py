"""Search over the enumerated legal schedules, kept as an Optuna study.

Only legal points are ever proposed: the sampler hands Optuna whole points of the enumerated set as its relative
sample, so the study has one categorical parameter a knob and opens in optuna-dashboard as any other.

Order of proposals: the seeds (the default first, then known winners, then the cost model's best ones that differ
from each other, every rewrite in turn), then batches of which most come from a surrogate, a share from the
neighbours of the best point (one knob changed), and one point from anywhere.

Surrogate: tree-structured Parzen scoring (Bergstra et al. 2011, eq. 4) over the whole enumerated set instead of
over samples of it: log l(x) - log g(x), where l and g are products of smoothed per-knob frequencies among the
best quarter and the rest, plus the cost model's log time as one more term.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import optuna

from normgen.errors import NothingValidError
from normgen.schedule.schedule import Schedule
from normgen.tuning.study import StudyCopy

GOOD_SHARE = 0.25
POLISH_SHARE = 0.375
WRONG_LIMIT = 3
SEED_DISTANCE = 2  # knobs in which the cost model's seeds differ from each other
COST_WEIGHT = 4.0  # one factor e^(1/4) of predicted time weighs as much as one factor e of density


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """One point to evaluate: tell its number back."""

    number: int
    schedule: Schedule
    predicted_us: float


class LegalSampler(optuna.samplers.BaseSampler):  # type: ignore[misc,unused-ignore]
    """Hands out the points a chooser picked, as relative samples over all knobs."""

    def __init__(self, space: Mapping[str, optuna.distributions.BaseDistribution]) -> None:
        self._space = dict(space)
        self.next_point: dict[str, Any] = {}

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:  # noqa: ARG002
        return dict(self._space)

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:  # noqa: ARG002
        return dict(self.next_point)

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:  # noqa: ARG002
        raise RuntimeError(f"knob '{param_name}' was asked for outside the enumerated set")


class Search:
    """Batch ask and tell over `legal`; deterministic for a seed and the values told.

    predicted  the cost model's µs of each legal schedule, in the same order
    seeds      schedules to try first, in order (the default, known winners); those outside `legal` are skipped
    copy       a study in a database that every told trial is copied to
    """

    def __init__(
        self,
        legal: Sequence[Schedule],
        *,
        predicted: Sequence[float],
        seeds: Sequence[Schedule] = (),
        seed_count: int = 16,
        seed: int = 0,
        study_name: str = "normgen",
        copy: StudyCopy | None = None,
    ) -> None:
        if not legal:
            raise NothingValidError(
                "no schedule is legal for this problem", hint="normgen space --why lists each refusal"
            )
        self._legal = list(legal)
        self._index = {schedule: i for i, schedule in enumerate(self._legal)}
        self._log_cost = np.log(np.maximum(np.asarray(predicted, dtype=np.float64), 1e-9))
        self._random = random.Random(seed)
        self._codes, distributions = _encode(self._legal)
        self._sampler = LegalSampler(distributions)
        self._distributions = distributions
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(sampler=self._sampler, direction="minimize", study_name=study_name)
        self._copy = copy
        self._left = np.ones(len(self._legal), dtype=bool)  # not asked for yet
        self._values: dict[int, float] = {}  # index in legal -> µs
        self._failed: set[int] = set()
        self._pending: dict[int, tuple[Any, int]] = {}  # trial number -> trial, index in legal
        self._ways = _ways(self._legal)
        self._wrong: Counter[int] = Counter()  # way -> kernels that missed the contract
        self._queue = self._seed_order(seeds, seed_count)

    def ask(self, count: int) -> list[Proposal]:
        """Up to `count` points nobody has been asked for; fewer, or none, when the set runs out."""
        picked = self._take(self._queue[:count])
        self._queue = self._queue[count:]
        if len(picked) < count:
            picked += self._choose(count - len(picked))
        return [self._proposal(i) for i in picked]

    def tell(self, number: int, us: float | None, *, reason: str = "", is_wrong: bool = False) -> None:
        """The time of a proposal, or None when it is no usable kernel; `reason` goes into the study.

        `is_wrong`: its result missed the accuracy contract. A rewrite with WRONG_LIMIT wrong kernels and no right one
        is not proposed again: how the statistics are computed decides accuracy, the other knobs do not.
        """
        trial, index = self._pending.pop(number)
        if reason:
            trial.set_user_attr("reason", reason)
        if us is None:
            self._failed.add(index)
            way = int(self._ways[index])
            self._wrong[way] += is_wrong
            if self._wrong[way] >= WRONG_LIMIT and not any(self._ways[i] == way for i in self._values):
                self._give_up(way)
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._values[index] = us
            self.study.tell(trial, us)
        if self._copy is not None:
            self._copy.add(self.study.get_trials(deepcopy=False)[number])

    @property
    def best(self) -> tuple[Schedule, float] | None:
        """The fastest schedule told so far, and its µs."""
        if not self._values:
            return None
        index = min(self._values, key=lambda i: (self._values[i], i))
        return self._legal[index], self._values[index]

    @property
    def trials(self) -> int:
        """Points told so far, failures included."""
        return len(self._values) + len(self._failed)

    def _proposal(self, index: int) -> Proposal:
        self._sampler.next_point = self._legal[index].as_dict()
        trial = self.study.ask(self._distributions)
        self._pending[trial.number] = (trial, index)
        predicted_us = float(np.exp(self._log_cost[index]))
        return Proposal(number=trial.number, schedule=self._legal[index], predicted_us=predicted_us)

    def _seed_order(self, seeds: Sequence[Schedule], count: int) -> list[int]:
        """The given seeds, then the cost model's best of each rewrite in turn, at least SEED_DISTANCE knobs apart."""
        chosen = list(dict.fromkeys(self._index[s] for s in seeds if s in self._index))
        target = min(len(self._legal), len(chosen) + count)
        far_enough = np.ones(len(self._legal), dtype=bool)
        for index in chosen:
            far_enough &= self._distance(index) >= SEED_DISTANCE
        by_cost = np.argsort(self._log_cost, kind="stable")
        queues = deque(deque(map(int, by_cost[self._ways[by_cost] == way])) for way in np.unique(self._ways))
        while queues and len(chosen) < target:
            queue = queues.popleft()
            found = next((i for i in iter_pop(queue) if far_enough[i]), None)
            if found is not None:
                chosen.append(found)
                far_enough &= self._distance(found) >= SEED_DISTANCE
                queues.append(queue)
        return chosen

    def _give_up(self, way: int) -> None:
        """Never propose this rewrite again."""
        self._left &= self._ways != way
        self._queue = [i for i in self._queue if self._ways[i] != way]

    def _distance(self, index: int) -> np.ndarray:
        """In how many knobs each legal point differs from that one: [legal]."""
        differs: np.ndarray = (self._codes != self._codes[index]).sum(axis=1)
        return differs

    def _choose(self, count: int) -> list[int]:
        """A batch after the seeds: polish, surrogate, one from anywhere. Takes them off the points left."""
        picked: list[int] = []
        parts: list[Callable[[int], list[int]]] = [self._polish, self._surrogate, self._anywhere]
        polish = round(count * POLISH_SHARE)
        anywhere = 1 if count >= 4 else 0
        for part, share in zip(parts, (polish, count - polish - anywhere, anywhere), strict=True):
            picked += self._take(part(share))
        return picked + self._take(self._surrogate(count - len(picked)))

    def _take(self, indices: list[int]) -> list[int]:
        self._left[indices] = False
        return indices

    def _polish(self, count: int) -> list[int]:
        """Points not asked for yet that differ from the best in one knob; the surrogate orders them."""
        if not self._values or count <= 0:
            return []
        best = min(self._values, key=lambda i: (self._values[i], i))
        return self._top(self._left & (self._distance(best) == 1), count)

    def _surrogate(self, count: int) -> list[int]:
        return self._top(self._left, count) if count > 0 else []

    def _anywhere(self, count: int) -> list[int]:
        left = np.flatnonzero(self._left)
        return [int(left[i]) for i in self._random.sample(range(len(left)), min(count, len(left)))]

    def _top(self, allowed: np.ndarray, count: int) -> list[int]:
        """The `count` allowed points with the highest scores, the first of equals first."""
        candidates = np.flatnonzero(allowed)
        order = np.argsort(-self._scores()[candidates], kind="stable")
        return [int(i) for i in candidates[order[:count]]]

    def _scores(self) -> np.ndarray:
        """log l - log g of every legal point, plus the cost model's term: [legal]; higher is more promising."""
        scores: np.ndarray = -COST_WEIGHT * (self._log_cost - self._log_cost.min())
        told = sorted(self._values, key=lambda i: (self._values[i], i))
        if not told:
            return scores
        split = max(1, math.ceil(GOOD_SHARE * len(told)))
        good, rest = told[:split], told[split:] + sorted(self._failed)
        for knob in range(self._codes.shape[1]):
            column = self._codes[:, knob]
            size = int(column.max()) + 1
            scores = scores + (_log_density(column[good], size) - _log_density(column[rest], size))[column]
        return scores


def iter_pop(queue: deque[int]) -> Iterator[int]:
    """The elements of a queue, each removed as it is looked at."""
    while queue:
        yield queue.popleft()


def _ways(legal: Sequence[Schedule]) -> np.ndarray:
    """A number for each combination of rewrites: [legal]."""
    pairs = [(schedule.variance, schedule.softmax) for schedule in legal]
    number = {pair: i for i, pair in enumerate(sorted(set(pairs)))}
    return np.array([number[pair] for pair in pairs], dtype=np.int16)


def _log_density(codes: np.ndarray, size: int) -> np.ndarray:
    """Log of the smoothed frequency of each of `size` values: (count + 1) / (n + size)."""
    result: np.ndarray = np.log((np.bincount(codes, minlength=size) + 1.0) / (len(codes) + size))
    return result


def _encode(legal: Sequence[Schedule]) -> tuple[np.ndarray, dict[str, Any]]:
    """Codes [legal, knobs] and one categorical distribution a knob, over the values that occur."""
    columns: list[list[int]] = []
    distributions: dict[str, Any] = {}
    for knob in (f.name for f in fields(Schedule)):
        values = [getattr(schedule, knob) for schedule in legal]
        known = sorted(set(values))
        code = {value: i for i, value in enumerate(known)}
        columns.append([code[value] for value in values])
        distributions[knob] = optuna.distributions.CategoricalDistribution(known)
    return np.array(columns, dtype=np.int16).T.copy(), distributions
