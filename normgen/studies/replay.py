"""`normgen replay`: what a search strategy would have found on a recorded sweep, without a GPU.

An evaluation is a point asked for: one that failed costs an evaluation and gives no time; a point whose machine code
an earlier one had costs one too. Reported is the sweep's optimum over the best so far, by prices (alone: by times),
after EVALUATIONS: the median and the worst of the seeds; and a score beside random search over the tuner's trials.

    normgen  the tuner's own sampler, in the tuner's batches with two of them in flight
    misled   the same with a prior of noise: the cost model's words, each given to another point, for each seed anew
    random   exact: the distribution of the best of n points drawn without replacement. Median: that of one run;
             worst: the median of the worst of as many runs as there are seeds.
    tpe      Optuna's TPESampler with its default settings over a categorical parameter for every knob that varies,
             one trial after another; a suggestion is moved to the nearest legal point that was not proposed yet.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from normgen.cost.constants import fitted_to
from normgen.cost.model import terms
from normgen.device import device_from
from normgen.errors import UsageError, did_you_mean
from normgen.problem.problem import Problem
from normgen.problem.question import Question
from normgen.records.questions import problem_of
from normgen.records.record import Outcome
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.studies.sweep_file import Sweep
from normgen.tuning.search.features import facts_of

if TYPE_CHECKING:
    from normgen.tuning.search.sampler import LegalSampler

TRIALS = 64  # the tuner's, over which the score is taken
EVALUATIONS = (10, 25, 50, TRIALS, 100, 200)
BATCH = 8  # as the tuner's
IN_FLIGHT = 2
STRATEGIES = ("normgen", "misled", "random", "tpe")


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """A recorded legal set: the price of each point, or alone its µs (None: no usable kernel), whether it was wrong,
    the cost model's µs and facts (`features.facts_of`), and whether that model was fitted to times of this problem."""

    legal: tuple[Schedule, ...] = field(repr=False)
    us: tuple[float | None, ...] = field(repr=False)
    wrong: tuple[bool, ...] = field(repr=False)
    predicted_us: tuple[float, ...] = field(repr=False)
    facts: tuple[np.ndarray[Any, np.dtype[np.float64]], ...] = field(default=(), repr=False)
    default: Schedule
    fitted: bool = False

    @property
    def optimum_us(self) -> float:
        return min(us for us in self.us if us is not None)

    @cached_property
    def varied(self) -> tuple[dict[str, Any], ...]:
        """Each point by the knobs that vary."""
        points = [s.as_dict() for s in self.legal]
        varied = [knob for knob in points[0] if len({p[knob] for p in points}) > 1]
        return tuple({knob: p[knob] for knob in varied} for p in points)


@dataclass(frozen=True, kw_only=True)
class ReplayReport:
    """Fractions of the optimum after each of EVALUATIONS (0: nothing usable yet), and the score: see `score`."""

    strategy: str
    seeds: int
    median: dict[int, float]
    worst: dict[int, float]
    score: float


def landscape_of(sweep: Sweep) -> Landscape:
    """The landscape of a sweep, with today's cost model."""
    hot, base_us = sweep.place.is_hot, sweep.chain_us or 0.0
    problem, device = swept_problem(sweep.problem), device_from(sweep.device)
    legal = tuple(p.schedule for p in sweep.points)
    told = terms(problem, legal, device, hot=hot)
    sweep.optimum  # noqa: B018  raises when there is no time at all
    return Landscape(
        legal=legal,
        us=tuple(None if p.us is None else p.us - base_us for p in sweep.points),
        wrong=tuple(p.outcome is Outcome.WRONG_RESULT for p in sweep.points),
        predicted_us=tuple(told["us"].tolist()),
        facts=facts_of(told["occupancy"], told["waves"], told["registers"]),
        default=sweep.default,
        fitted=str(problem) in fitted_to(device),
    )


def swept_problem(key: Mapping[str, Any]) -> Problem:
    """The problem that plain values say, as a record's do. Raises UsageError when its spec is not built in."""
    spec = load(key["op"])
    return problem_of(Question.of({**key, "spec_sha256": spec.sha256}), spec)  # times outlive a reworded spec


def replay(land: Landscape, strategy: str, *, seeds: int, workers: int | None = None) -> ReplayReport:
    """Run a strategy with seeds 0 .. seeds - 1. Raises UsageError for an unknown strategy."""
    if strategy not in STRATEGIES:
        raise UsageError("unknown strategy", received=strategy, hint=did_you_mean(strategy, STRATEGIES))
    if strategy == "random":
        return exact_random(land, seeds=seeds)
    workers = min(seeds, workers or len(os.sched_getaffinity(0)))
    asked = [(land, strategy, seed) for seed in range(seeds)]
    if workers > 1:
        with ProcessPoolExecutor(workers) as pool:
            runs = list(pool.map(_run, asked, chunksize=max(1, seeds // (4 * workers))))
    else:
        runs = [_run(one) for one in asked]
    table = np.array([fractions(told, land.optimum_us) for told in runs])
    return ReplayReport(
        strategy=strategy,
        seeds=seeds,
        median=dict(zip(EVALUATIONS, map(float, np.median(table, axis=0)), strict=True)),
        worst=dict(zip(EVALUATIONS, map(float, table.min(axis=0)), strict=True)),
        score=score(land, runs),
    )


def follow(land: Landscape, sampler: LegalSampler, *, batch: int = BATCH, in_flight: int = IN_FLIGHT) -> list[int]:
    """What a study with this sampler over `land.varied` evaluates, told a batch at a time as in the tuner."""
    import optuna

    from normgen.tuning.search.sampler import WRONG

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=sampler)
    distributions = sampler.distributions
    waiting: list[list[optuna.Trial]] = []
    told: list[int] = []
    while len(told) < EVALUATIONS[-1]:
        while len(waiting) < in_flight and sampler.left(study):
            waiting.append([study.ask(distributions) for _ in range(batch) if sampler.left(study)])
        if not waiting:
            break
        for trial in waiting.pop(0):
            index = sampler.index_of(trial.params)
            assert index is not None, "a sampler proposes legal points"
            told.append(index)
            if land.wrong[index]:
                trial.set_user_attr(WRONG, True)
            if land.us[index] is None:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
            else:
                study.tell(trial, land.us[index])
    return told


def fractions(told: Sequence[float | None], optimum_us: float) -> list[float]:
    """Optimum over the best of the first n, for each n of EVALUATIONS."""
    found = []
    for n in EVALUATIONS:
        usable = [us for us in told[:n] if us is not None]
        found.append(optimum_us / min(usable) if usable else 0.0)
    return found


def score(land: Landscape, runs: Sequence[Sequence[float | None]]) -> float:
    """How much of what random search leaves to be won is won, on average over the evaluations 1 .. TRIALS.

        mean over n of (R(n) - F(n)) / (R(n) - optimum)

    R  expected best time of n points drawn at random, F the mean of the runs' best. 0: as random search; 1: the
    optimum at once; what fails counts as the slowest point. It is the score by which Kernel Tuner compares optimizers
    (Willemsen et al., arXiv 2509.26300), over evaluations as the time; a set's budget is the tuner's.
    """
    usable = [us for us in land.us if us is not None]
    slowest, chance = max(usable), expected_best(land)
    counted = range(1, min(TRIALS, len(land.us) - 1) + 1)
    best = np.array([[min([slowest, *(us for us in run[:n] if us is not None)]) for n in counted] for run in runs])
    left = np.array([chance[n] - land.optimum_us for n in counted])
    won = np.array([chance[n] for n in counted]) - best.mean(axis=0)
    return float(np.mean(won[left > 0] / left[left > 0])) if (left > 0).any() else 0.0


def expected_best(land: Landscape) -> list[float]:
    """Expected best µs of n points drawn without replacement, n = 0 .. TRIALS; what fails is as the slowest."""
    usable = sorted(us for us in land.us if us is not None)
    ordered = np.array(usable + [usable[-1]] * (len(land.us) - len(usable)))
    size = len(ordered)
    expected = [float(ordered[-1])]
    for n in range(1, min(TRIALS, size) + 1):
        missed = np.ones(size)  # chance that none of the k fastest is drawn
        for k in range(1, size):
            missed[k] = missed[k - 1] * max(0, size - n - k + 1) / (size - k + 1)
        expected.append(float(ordered[0] + (np.diff(ordered) * missed[1:]).sum()))
    return expected


def sampler_on(land: Landscape, strategy: str, seed: int) -> LegalSampler:
    """The sampler of a strategy over `land.varied`, with the default as its first point where it was swept."""
    from normgen.tuning.search.sampler import NearestSampler, optuna_sampler
    from normgen.tuning.search.search import surrogate_sampler

    seeds = [land.varied[land.legal.index(land.default)]] if land.default in land.legal else []
    if strategy == "tpe":
        return NearestSampler(optuna_sampler(strategy, seed), land.varied, seeds=seeds, seed=seed)
    log_cost = np.log(np.asarray(land.predicted_us))
    if strategy == "misled":
        log_cost = np.random.default_rng((seed, 1)).permutation(log_cost)
    return surrogate_sampler(
        land.legal, points=land.varied, log_cost=log_cost, facts=land.facts, seeds=seeds, seed=seed
    )


def _run(asked: tuple[Landscape, str, int]) -> list[float | None]:
    land, strategy, seed = asked
    sampler = sampler_on(land, strategy, seed)
    at_once = (1, 1) if strategy == "tpe" else (BATCH, IN_FLIGHT)
    return [land.us[i] for i in follow(land, sampler, batch=at_once[0], in_flight=at_once[1])]


def exact_random(land: Landscape, *, seeds: int) -> ReplayReport:
    """Random search without replacement, by the hypergeometric distribution of the best rank among n draws."""
    ordered = sorted(us for us in land.us if us is not None)
    size = len(land.us)

    def fraction(draws: int, chance: float) -> float:
        """Optimum over the time that the best of `draws` points does not exceed with that chance."""
        if draws >= size:
            return 1.0
        log_miss = 0.0  # log of the chance that none of the fastest k is drawn
        for k, us in enumerate(ordered, start=1):
            left = size - draws - k + 1
            if left <= 0:
                return ordered[0] / us
            log_miss += math.log(left / (size - k + 1))
            if -math.expm1(log_miss) >= chance:
                return ordered[0] / us
        return 0.0

    return ReplayReport(
        strategy="random",
        seeds=seeds,
        median={n: fraction(n, 0.5) for n in EVALUATIONS},
        worst={n: fraction(n, 0.5 ** (1 / seeds)) for n in EVALUATIONS},
        score=0.0,
    )
