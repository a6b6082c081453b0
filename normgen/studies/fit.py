"""Fit the cost model's constants to measured schedules: `normgen calibrate --fit FILES`.

The factors of hints come from pairs of schedules that differ in that hint alone: the median of their ratios. The
other constants minimise the squared log ratio of measured to predicted time, points near the best of their problem
weighing most (that is where the order matters), plus a pull towards the starting constants, by a pattern search: one
constant after another is scaled up and down as long as that helps. Deterministic.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from normgen.cost.constants import Constants
from normgen.cost.model import terms
from normgen.device import Device
from normgen.errors import UsageError
from normgen.knobs import LoadHint, StoreHint
from normgen.problem.problem import Problem
from normgen.records.place import DEFAULT_PLACE, Place
from normgen.records.record import Outcome
from normgen.schedule.many import Schedules
from normgen.schedule.schedule import Schedule
from normgen.studies.replay import swept_problem
from normgen.studies.trial_files import read_trials

FIXED = (
    "base_registers",
    "held_registers",
    "param_registers",
    "vector_registers",
    "sum_registers",  # so far: fitted to compilers' reports
    "params_early",
    "params_kept",  # pairs of schedules say 1 to 3 %, of which the latency of late parameters is modelled by itself
)
PULL = 0.004
LEVEL = 0.2  # weight of a whole problem's error
NEAR = 4.0  # weight e^(-NEAR log(us / best))
STEPS = (1.3, 1.1, 1.03)
FACTORS = ("held_shared", "persistent_penalty")
PAIRED = ("load_past_l1", "load_streams_past_l1", "store_streaming")
PAIRED_NEAR = 1.4  # times the best: pairs of slower schedules say nothing
LEAST_PAIRS = 5
LARGEST = 400  # points of a problem: the fastest half and an even share of the rest


@dataclass(frozen=True, kw_only=True)
class TimedProblem:
    """The timed schedules of one problem on one device; `hot`: with its tensors in L2."""

    problem: Problem
    device: Device
    place: Place = DEFAULT_PLACE
    points: tuple[tuple[Schedule, float], ...]

    @cached_property
    def schedules(self) -> Schedules:
        return Schedules.of(schedule for schedule, _ in self.points)


def read_measured(paths: Sequence[Path], *, thinned: bool = True) -> list[TimedProblem]:
    """Problems and their timed schedules from any files of trials; `thinned`: as many as a fit needs.

    Raises UsageError for files without measured schedules.
    """
    found: dict[str, tuple[Problem, Device, Place, dict[Schedule, float]]] = {}

    def add(key: Mapping[str, Any], place: Place, device: Mapping[str, Any], s: Schedule, us: float) -> None:
        name = json.dumps([key, str(place), device["name"]], sort_keys=True)
        if name not in found:
            found[name] = swept_problem(key), Device(**dict(device)), place, {}
        found[name][3][s] = us

    for path in paths:
        for trial in read_trials(path):
            if trial.measured and trial.outcome is Outcome.OK and (us := trial.cost_us) is not None:  # of a price
                assert trial.question is not None
                assert trial.device is not None
                add(trial.question, trial.place or DEFAULT_PLACE, trial.device, trial.schedule, us)
    if not found:
        raise UsageError("a fit needs measured schedules", received=", ".join(map(str, paths)))
    chosen = _thinned if thinned else lambda us: list(us.items())
    return [
        TimedProblem(problem=p, device=d, place=place, points=tuple(chosen(us))) for p, d, place, us in found.values()
    ]


def _thinned(us: Mapping[Schedule, float]) -> list[tuple[Schedule, float]]:
    ordered = sorted(us.items(), key=lambda item: (item[1], item[0].key))
    if len(ordered) <= LARGEST:
        return ordered
    near, far = ordered[: LARGEST // 2], ordered[LARGEST // 2 :]
    return near + far[:: max(1, len(far) // (LARGEST // 2))]


def loss(measured: Sequence[TimedProblem], constants: Constants, start: Constants) -> float:
    """Weighted variance of the log errors, the mean over problems, plus a share of their means' squares and the pull.

    The variance is what the order of a problem's schedules depends on; the mean is a matter of the whole problem.
    """
    total = sum(_loss_of(one, constants) for one in measured) / len(measured)
    names = [n for n in start.as_dict() if n not in FIXED]
    before, after = start.as_dict(), constants.as_dict()
    return total + PULL * sum(_distance(n, after[n], before[n]) ** 2 for n in names) / len(names)


def _loss_of(one: TimedProblem, constants: Constants) -> float:
    told = terms(one.problem, one.schedules, one.device, hot=one.place.is_hot, constants=constants)["us"]
    us = np.array([us for _, us in one.points])
    weights = np.exp(-NEAR * np.log(us / us.min())) + 0.01
    weights /= weights.sum()
    errors = np.log(us / told)
    mean = float((weights * errors).sum())
    # Believed faster than it is: the model's first choice may be that one.
    spread = (weights * (errors - mean) ** 2 * np.where(errors > mean, 2.0, 1.0)).sum()
    return float(spread) + LEVEL * mean**2


def _distance(name: str, value: float, start: float) -> float:
    if start == 0:
        return abs(value)
    return math.log(value / start) * (10.0 if name in FACTORS else 1.0)


def fit_constants(
    measured: Sequence[TimedProblem],
    start: Constants,
    *,
    keep: Sequence[str] = (),
    rounds: int = 2,
    tell: Callable[[str], None] = lambda _: None,
) -> Constants:
    """The constants that predict the measured times best; those named in `keep` stay as they are."""
    paired = {n: factor for n, factor in paired_factors(measured).items() if n not in keep}
    best = start = replace(start, **paired)
    value = loss(measured, start, start)
    for step in STEPS:
        for _ in range(rounds):
            before = value
            for name in [n for n in start.as_dict() if n not in (*FIXED, *PAIRED, *keep)]:
                best, value = _improved(measured, start, best, value, name, 1 + (step - 1) / _stiffness(name))
            tell(f"steps of {step}: loss {value:.5f}")
            if value > before * 0.999:
                break
    return best


def paired_factors(measured: Sequence[TimedProblem]) -> dict[str, float]:
    """Median over pairs of schedules that differ in one hint alone: time with it over time without."""
    ratios: dict[str, list[float]] = {}
    for one in measured:
        us = dict(one.points)
        limit = PAIRED_NEAR * min(us.values())
        for s, with_us in us.items() if not one.place.is_hot else ():
            for knob, plain in (
                ("load", replace(s, load=LoadHint.DEFAULT)),
                ("store", replace(s, store=StoreHint.DEFAULT)),
            ):
                without = us.get(plain)
                name = _hint_constant(one.problem, s, knob)
                if name and without is not None and min(with_us, without) <= limit:
                    ratios.setdefault(name, []).append(with_us / without)
    return {name: float(np.median(found)) for name, found in ratios.items() if len(found) >= LEAST_PAIRS}


def _hint_constant(problem: Problem, s: Schedule, knob: str) -> str:
    """Which constant the cost model applies for that hint; empty: none."""
    if knob == "store":
        return "store_streaming" if s.store is StoreHint.STREAMING and not problem.column_outputs else ""
    if s.load in (LoadHint.DEFAULT, LoadHint.EVICT_LAST) or s.hold.reads_again:
        return ""
    one_stream = len(problem.elem_inputs) == 1
    return "load_past_l1" if one_stream else "load_streams_past_l1"


def _stiffness(name: str) -> float:
    return 10.0 if name in FACTORS else 1.0


def _improved(
    measured: Sequence[TimedProblem], start: Constants, best: Constants, value: float, name: str, step: float
) -> tuple[Constants, float]:
    """Scale one constant up or down while the loss falls, three times at most."""
    for factor in (step, 1 / step):
        steps = 0
        while steps < 3:
            tried = replace(best, **{name: getattr(best, name) * factor})
            found = loss(measured, tried, start)
            if found >= value * (1 - 1e-5):
                break
            best, value, steps = tried, found, steps + 1
        if steps:
            break
    return best, value
