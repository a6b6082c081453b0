"""Optuna samplers over an enumerated set of legal points: each point is proposed once, and nothing else.

    SurrogateSampler  expected improvement under a Gaussian process, with a model's costs as the prior
    NearestSampler    another sampler's proposal, moved to the legal point nearest to it
    UniformSampler    Optuna's RandomSampler, drawing among the points that are left

What is proposed follows from the study's own trials: told ones, failed ones, and those that run, which are believed at
their mean. A chosen point is kept in the trial as a system attribute, as Optuna's GridSampler does.
"""

from __future__ import annotations

import abc
import contextlib
import zlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from normgen.errors import UsageError
from normgen.tuning.search.features import features_of
from normgen.tuning.search.strategies import SEEDS, Codes, Legal, Mask, Points, Surrogate, Told
from normgen.tuning.search.surrogate import Array

WRONG = "is_wrong"  # user attribute of a failed trial: it ran, and its result was wrong
_CHOSEN = "normgen:point"  # system attribute: [check sum of the set, index in it, how it was chosen]
Point = Mapping[str, Any]


class LegalSampler(optuna.samplers.BaseSampler, abc.ABC):  # type: ignore[misc,unused-ignore]
    """What the samplers here have in common: each point once, the seeds first.

    points  mappings of a knob to a value that Optuna can store, all with the same knobs
    seeds   points to try first, in order; those that are not legal are skipped
    ways    for each point what a wrong result speaks against: a way that is wrong twice and never right is left alone.
            A trial says so by the user attribute `is_wrong` and the state FAIL

    When every point was proposed, `Study.optimize` ends; a study that is asked for more gets the best point again.
    Raises UsageError for points with different knobs, a point that occurs twice, or none.
    """

    def __init__(
        self, points: Sequence[Point] | Points, *, seeds: Sequence[Point] = (), ways: Sequence[Hashable] | None = None
    ) -> None:
        self._points = points if isinstance(points, Points) else _as_columns(points)
        self._knobs = self._points.knobs
        self._values = dict(zip(self._knobs, self._points.values, strict=True))
        self._code = {knob: {value: code for code, value in enumerate(self._values[knob])} for knob in self._knobs}
        self._varied = [knob for knob in self._knobs if len(self._values[knob]) > 1] or list(self._knobs[:1])
        self._at = {knob: at for at, knob in enumerate(self._varied)}  # the column of its codes
        codes = np.ascontiguousarray(self._points.codes[:, [self._knobs.index(knob) for knob in self._varied]])
        lines = [line.tobytes() for line in codes]
        self._index = {line: i for i, line in enumerate(lines)}
        if len(self._index) < len(lines):
            twice = next(i for i, line in enumerate(lines) if self._index[line] != i)
            received = str({knob: self._values[knob][codes[twice, at]] for knob, at in self._at.items()})
            raise UsageError("each legal point occurs once", received=received)
        self._legal = Legal(codes, ways=ways)
        self._check_sum = zlib.crc32(codes.tobytes(), zlib.crc32(repr(self._values).encode()))
        self._seeds = [i for seed in seeds if (i := self.index_of(seed)) is not None]
        self._finished: dict[int, int | None] = {}  # a trial that ended stays as it is: its point

    @property
    def distributions(self) -> dict[str, CategoricalDistribution]:
        """One categorical distribution a knob, over the values that occur: for `study.ask(sampler.distributions)`."""
        return {knob: CategoricalDistribution(_in_order(set(values))) for knob, values in self._values.items()}

    def index_of(self, point: Point) -> int | None:
        """Where in the legal set a point is; None: it is not legal."""
        if any(knob not in point for knob in self._knobs):
            return None
        codes = {knob: self._code[knob].get(point[knob], -1) for knob in self._knobs}
        if min(codes.values()) < 0:
            return None
        return self._index.get(
            np.array([codes[knob] for knob in self._varied], dtype=self._legal.codes.dtype).tobytes()
        )

    @staticmethod
    def how(trial: optuna.Trial) -> str:
        """How a trial's point was chosen: as a given "record", by the "model", ...; empty when it was enqueued."""
        return str(trial.storage.get_trial_system_attrs(trial._trial_id).get(_CHOSEN, [""])[-1])

    def left(self, study: optuna.Study) -> int:
        """How many points can still be proposed."""
        return int(self._legal.left(self._told(study)).sum())

    @abc.abstractmethod
    def _choose(self, study: optuna.Study, trial: FrozenTrial, told: Told, left: Mask) -> tuple[int, str]:
        """The next point, of those left [points], of which there is one; and how it was chosen, in a word."""

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        fixed = trial.system_attrs.get("fixed_params", {})  # of a trial that was enqueued
        if fixed.keys() >= set(self._knobs):
            return
        told = self._told(study, without=trial.number)
        agrees = np.ones(self._legal.size, dtype=bool)
        for knob in fixed.keys() & set(self._knobs):
            agrees &= self._codes_of(knob) == self._code[knob].get(fixed[knob], -1)
        if not agrees.any():
            raise UsageError("an enqueued trial agrees with a legal point", received=str(fixed))
        left = self._legal.left(told) & agrees
        if (seed := next((i for i in self._seeds if left[i]), None)) is not None:
            index, how = seed, "record"
        elif left.any():
            index, how = self._choose(study, trial, told, left)
        else:
            index, how = _again(told, agrees), "again"
        study._storage.set_trial_system_attr(trial._trial_id, _CHOSEN, [self._check_sum, index, how])

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, BaseDistribution]:  # noqa: ARG002
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def sample_independent(
        self,
        study: optuna.Study,  # noqa: ARG002
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """The chosen point's value. Raises UsageError for a knob, or a value, that the other side does not have."""
        if param_name not in self._knobs:
            raise UsageError("the legal points have no such knob", received=param_name, hint=", ".join(self._knobs))
        if (index := self._chosen(trial)) is None:
            raise UsageError("a trial has a chosen point", received=f"none in trial {trial.number}: '{param_name}'")
        value = self._values[param_name][self._codes_of(param_name)[index]]
        if not param_distribution._contains(param_distribution.to_internal_repr(value)):
            raise UsageError(f"'{param_name}' has a value that its distribution lacks", received=repr(value))
        return value

    def _codes_of(self, knob: str) -> Codes:
        """Which of its values each point has: [points]."""
        return self._points.codes[:, self._knobs.index(knob)]

    def after_trial(self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:  # noqa: ARG002
        if not self.left(study):
            with contextlib.suppress(RuntimeError):  # told outside of `optimize`
                study.stop()

    def _told(self, study: optuna.Study, *, without: int = -1) -> Told:
        """The study's trials as indices into the set; those outside it are left out."""
        if study.directions != [optuna.study.StudyDirection.MINIMIZE]:
            raise UsageError("the study minimizes one value", received=", ".join(d.name for d in study.directions))
        costs: dict[int, float] = {}
        failed, wrong, flying = set(), set(), []
        for trial in study._storage.get_all_trials(study._study_id, deepcopy=False):
            if trial.number == without or (index := self._index_in(trial)) is None:
                continue
            if trial.state is TrialState.COMPLETE:
                costs[index] = _positive(trial)
            elif not trial.state.is_finished():
                flying.append(index)
            elif trial.user_attrs.get(WRONG):
                wrong.add(index)
            else:
                failed.add(index)
        failed, wrong = failed - costs.keys(), wrong - costs.keys() - failed
        known = costs.keys() | failed | wrong
        once = tuple(i for i in dict.fromkeys(flying) if i not in known)
        return Told(costs, frozenset(failed), frozenset(wrong), once)

    def _index_in(self, trial: FrozenTrial) -> int | None:
        """The point of a trial: its parameters, as long as it runs what was chosen for it."""
        if trial.number in self._finished:
            return self._finished[trial.number]
        index = self.index_of(trial.params)
        if index is None:
            index = self.index_of(trial.system_attrs.get("fixed_params", {}))
        if index is None:
            index = self._chosen(trial)
        if trial.state.is_finished():
            self._finished[trial.number] = index
        return index

    def _chosen(self, trial: FrozenTrial) -> int | None:
        check_sum, index, _ = trial.system_attrs.get(_CHOSEN, (None, None, None))
        return index if check_sum == self._check_sum else None


class SurrogateSampler(LegalSampler):
    """An Optuna sampler for an enumerated space: the search that `tune` uses, for any objective like a time.

    points      mappings of a knob to a value, all with the same knobs; nothing else is proposed, and each point once
    log_cost    [points]: log of what a model says each costs; believed as far as the told costs bear it out
    seeds       points to try first, in order; those that are not legal are skipped
    seed        of the random choices
    features    [points, features], of which a difference of 1 is one step; None: they follow from the points' values
    groups      [points]: of the model's best that are tried first there is one of each group
    regions     [points]: which part of the space each is in; the second and the third best are climbed beside the best
    ways        [points]: what a wrong result speaks against. A way that was wrong twice and never right is left alone;
                a trial says so by the user attribute `is_wrong` and the state FAIL
    seed_count  points that are tried before the first fit, `seeds` not counted

    The study minimizes a positive value, whose logarithm a Gaussian process models; the next point is the one of the
    largest expected improvement. Trials that failed count as slow, those that run as measured at their mean, so that
    batches and parallel workers spread. Proposals follow from the seed and the study's trials, whoever made them: a
    study in a storage is gone on with. When every point was proposed, `Study.optimize` ends, and `Study.ask` gives the
    best one again. Raises UsageError: here, and from `Study.ask` for a study of another kind.
    """

    def __init__(
        self,
        points: Sequence[Point] | Points,
        *,
        log_cost: Sequence[float] | Array | None = None,
        seeds: Sequence[Point] = (),
        seed: int = 0,
        features: Array | None = None,
        groups: Sequence[Hashable] | None = None,
        regions: Sequence[Hashable] | None = None,
        ways: Sequence[Hashable] | None = None,
        seed_count: int = SEEDS,
    ) -> None:
        super().__init__(points, seeds=seeds, ways=ways)
        size = self._legal.size
        per_point = {"log_cost": log_cost, "features": features, "groups": groups, "regions": regions, "ways": ways}
        for name, given in per_point.items():
            if given is not None and len(given) != size:
                raise UsageError(f"{name} has an entry for each of {size} points", received=str(len(given)))
        for name, numbers in {"log_cost": log_cost, "features": features}.items():
            if numbers is not None and not _is_finite(numbers):
                raise UsageError(f"{name} is made of finite numbers", received=repr(numbers)[:80])
        self._surrogate = Surrogate(
            self._legal,
            features=features_of(self._points) if features is None else features,
            log_cost=None if log_cost is None else np.asarray(log_cost, dtype=np.float64),
            seeds=self._seeds,
            groups=groups,
            regions=regions,
            seed_count=seed_count,
            seed=seed,
        )

    def hope(self, study: optuna.Study) -> float:
        """Expected relative improvement over the best of the most promising point left; inf before there is a fit."""
        return self._surrogate.hope(self._told(study))

    def _choose(self, study: optuna.Study, trial: FrozenTrial, told: Told, left: Mask) -> tuple[int, str]:  # noqa: ARG002
        return self._surrogate.choose(told, left)


class NearestSampler(LegalSampler):
    """Another sampler's proposals, each moved to the nearest legal point that was not proposed yet.

    Nearest: differs in the fewest knobs; among several one by chance. The other sampler sees the points that were
    evaluated, not those it proposed, over `distributions`.
    """

    def __init__(
        self,
        inner: optuna.samplers.BaseSampler,
        points: Sequence[Point] | Points,
        *,
        seeds: Sequence[Point] = (),
        seed: int = 0,
        ways: Sequence[Hashable] | None = None,
    ) -> None:
        super().__init__(points, seeds=seeds, ways=ways)
        self._inner, self._seed = inner, seed
        self._asked = {knob: d for knob, d in self.distributions.items() if not d.single()}

    def _choose(self, study: optuna.Study, trial: FrozenTrial, told: Told, left: Mask) -> tuple[int, str]:  # noqa: ARG002
        self._inner.before_trial(study, trial)
        space = {k: d for k, d in self._inner.infer_relative_search_space(study, trial).items() if k in self._asked}
        wanted = dict(self._inner.sample_relative(study, trial, space)) if space else {}
        for knob, distribution in self._asked.items():
            if knob not in wanted:
                wanted[knob] = self._inner.sample_independent(study, trial, knob, distribution)
        apart = np.zeros(self._legal.size, dtype=int)
        for knob, value in wanted.items():
            apart += self._codes_of(knob) != self._code[knob][value]
        nearest = np.flatnonzero(left & (apart == apart[left].min()))
        return int(np.random.default_rng((self._seed, trial.number)).choice(nearest)), "search"

    def after_trial(self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        self._inner.after_trial(study, trial, state, values)
        super().after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        self._inner.reseed_rng()


class UniformSampler(LegalSampler):
    """Optuna's RandomSampler, which draws the number of one of the points that are left."""

    def __init__(
        self,
        points: Sequence[Point] | Points,
        *,
        seeds: Sequence[Point] = (),
        seed: int = 0,
        ways: Sequence[Hashable] | None = None,
    ) -> None:
        super().__init__(points, seeds=seeds, ways=ways)
        self._inner = optuna.samplers.RandomSampler(seed=seed)

    def _choose(self, study: optuna.Study, trial: FrozenTrial, told: Told, left: Mask) -> tuple[int, str]:  # noqa: ARG002
        numbers = IntDistribution(0, int(left.sum()) - 1)
        return int(np.flatnonzero(left)[self._inner.sample_independent(study, trial, "left", numbers)]), "random"

    def reseed_rng(self) -> None:
        self._inner.reseed_rng()


def optuna_sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    """Optuna's own sampler tpe or gp, of which the first is told that batches are asked. See `require_sampler`."""
    if name == "gp":
        return optuna.samplers.GPSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def _as_columns(points: Sequence[Point]) -> Points:
    points = list(points or ())
    if not points:
        raise UsageError("a sampler needs at least one legal point")
    for point in points:
        if not (isinstance(point, Mapping) and point):
            raise UsageError("a legal point is a mapping of a knob, or several, to values", received=repr(point))
    if odd := next((p for p in points if p.keys() != points[0].keys()), None):
        hint = str(tuple(points[0]))
        raise UsageError("legal points all have the same knobs", received=str(dict(odd)), hint=hint)
    try:
        return Points.of(points)
    except TypeError as error:
        hint = "None, a bool, a number or a str"
        raise UsageError("a knob's value is one that Optuna stores", received=str(error), hint=hint) from None


def _is_finite(numbers: Any) -> bool:
    try:
        return bool(np.isfinite(numbers).all())
    except TypeError:
        return False


def _positive(trial: FrozenTrial) -> float:
    value = trial.value
    if value is None or not value > 0:
        raise UsageError(
            "a study of legal points minimizes a positive value", received=f"trial {trial.number}: {value}"
        )
    return float(value)


def _again(told: Told, allowed: Mask) -> int:
    """What to propose when nothing is left: the best of what is allowed [points], else the first."""
    return next((i for i in told.top(len(told.costs)) if allowed[i]), int(np.argmax(allowed)))


def _in_order(values: set[Any]) -> list[Any]:
    """Sorted where they can be; else by kind and spelling."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=lambda v: (type(v).__name__, repr(v)))
