"""`normgen replay`: what a search strategy would have found on a recorded sweep, without a GPU.

An evaluation is a point asked for: one that failed costs an evaluation and gives no time; a point whose machine code
an earlier one had costs one too. Reported is the sweep's optimum over the best so far, by prices (alone: by times),
after 10, 25, 50, 100 and 200 evaluations: the median and the worst of the seeds.

    normgen  the tuner's own strategy, in the tuner's batches with two of them in flight
    random   exact: the distribution of the best of n points drawn without replacement. Median: that of one run;
             worst: the median of the worst of as many runs as there are seeds.
    tpe      Optuna's TPESampler as its documentation sets it up: a categorical parameter for every knob that varies,
             default settings, one trial after another. A suggestion that is not legal is moved to the legal point
             that differs in the fewest knobs; a point it had before is answered from memory and costs nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

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
from normgen.tuning.search.strategies import Strategy, Surrogate, codes_of

EVALUATIONS = (10, 25, 50, 100, 200)
BATCH = 8  # as the tuner's
IN_FLIGHT = 2
TPE_TRIALS = 5  # times the evaluations: suggestions answered from memory end somewhere
STRATEGIES = ("normgen", "random", "tpe")


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """A recorded legal set: the price of each point, or alone its µs (None: no usable kernel), whether it was wrong,
    the cost model's µs."""

    legal: tuple[Schedule, ...] = field(repr=False)
    us: tuple[float | None, ...] = field(repr=False)
    wrong: tuple[bool, ...] = field(repr=False)
    predicted_us: tuple[float, ...] = field(repr=False)
    default: Schedule

    @property
    def optimum_us(self) -> float:
        return min(us for us in self.us if us is not None)


@dataclass(frozen=True, kw_only=True)
class ReplayReport:
    """Fractions of the optimum after each of EVALUATIONS; 0 where nothing usable was found yet."""

    strategy: str
    seeds: int
    median: dict[int, float]
    worst: dict[int, float]


def landscape_of(sweep: Sweep) -> Landscape:
    """The landscape of a sweep, with today's cost model."""
    hot, base_us = sweep.place.is_hot, sweep.chain_us or 0.0
    problem, device = swept_problem(sweep.problem), device_from(sweep.device)
    legal = tuple(p.schedule for p in sweep.points)
    sweep.optimum  # noqa: B018  raises when there is no time at all
    return Landscape(
        legal=legal,
        us=tuple(None if p.us is None else p.us - base_us for p in sweep.points),
        wrong=tuple(p.outcome is Outcome.WRONG_RESULT for p in sweep.points),
        predicted_us=tuple(terms(problem, legal, device, hot=hot)["us"].tolist()),
        default=sweep.default,
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
    run = _run_tpe if strategy == "tpe" else _run_ours
    workers = min(seeds, workers or len(os.sched_getaffinity(0)))
    if workers > 1:
        with ProcessPoolExecutor(workers) as pool:
            curves = list(pool.map(run, [land] * seeds, range(seeds), chunksize=max(1, seeds // (4 * workers))))
    else:
        curves = [run(land, seed) for seed in range(seeds)]
    table = np.array(curves)
    return ReplayReport(
        strategy=strategy,
        seeds=seeds,
        median=dict(zip(EVALUATIONS, map(float, np.median(table, axis=0)), strict=True)),
        worst=dict(zip(EVALUATIONS, map(float, table.min(axis=0)), strict=True)),
    )


def follow(land: Landscape, strategy: Strategy, *, batch: int = BATCH, in_flight: int = IN_FLIGHT) -> list[float]:
    """Fractions of the optimum after each of EVALUATIONS: points are told a batch at a time, as the tuner does."""
    waiting: list[list[int]] = []
    told: list[float | None] = []
    while len(told) < EVALUATIONS[-1]:
        while len(waiting) < in_flight and (asked := strategy.ask(batch)):
            waiting.append(asked)
        if not waiting:
            break
        for index in waiting.pop(0):
            told.append(land.us[index])
            strategy.tell(index, land.us[index], is_wrong=land.wrong[index])
    return fractions(told, land.optimum_us)


def fractions(told: Sequence[float | None], optimum_us: float) -> list[float]:
    """Optimum over the best of the first n, for each n of EVALUATIONS."""
    found = []
    for n in EVALUATIONS:
        usable = [us for us in told[:n] if us is not None]
        found.append(optimum_us / min(usable) if usable else 0.0)
    return found


def _run_ours(land: Landscape, seed: int) -> list[float]:
    log_cost = np.log(np.asarray(land.predicted_us))
    first = [land.legal.index(land.default)] if land.default in land.legal else []
    return follow(land, Surrogate(land.legal, log_cost=log_cost, seeds=first, seed=seed))


def _run_tpe(land: Landscape, seed: int) -> list[float]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed), direction="minimize")
    codes = codes_of(land.legal)
    names = [f.name for f in fields(Schedule)]
    values = {name: sorted({getattr(s, name) for s in land.legal}) for name in names}
    varied = [i for i, name in enumerate(names) if len(values[name]) > 1]
    known: dict[int, None] = {}
    for _ in range(TPE_TRIALS * EVALUATIONS[-1]):
        if len(known) >= EVALUATIONS[-1]:
            break
        trial = study.ask()
        wanted = [values[names[i]].index(trial.suggest_categorical(names[i], values[names[i]])) for i in varied]
        index = int(np.argmin((codes[:, varied] != np.array(wanted, dtype=codes.dtype)).sum(axis=1)))
        known.setdefault(index)
        us = land.us[index]
        if us is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, us)
    return fractions([land.us[i] for i in known], land.optimum_us)


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
    )
