"""Fit the cost model's constants to measured schedules: `normgen calibrate --fit FILES`.

Minimises the squared log ratio of measured to predicted time, points near the best of their problem weighing most
(that is where the order matters), plus a pull towards the starting constants, by a pattern search: one constant
after another is scaled up and down as long as that helps. Deterministic.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from normgen.device import Device
from normgen.errors import UsageError
from normgen.problem import Problem
from normgen.schedule.constants import Constants
from normgen.schedule.cost import predict
from normgen.schedule.schedule import Schedule

FIXED = (
    "base_registers",
    "held_registers",
    "param_registers",
    "vector_registers",
    "sum_registers",
)  # fitted to compilers' reports
PULL = 0.004
NEAR = 4.0  # weight e^(-NEAR log(us / best))
STEPS = (1.3, 1.1, 1.03)
FACTORS = ("load_streaming", "load_no_allocate", "store_streaming", "params_early", "params_kept", "persistent_penalty")
LARGEST = 400  # points of a problem: the fastest half and an even share of the rest


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The timed schedules of one problem on one device."""

    problem: Problem
    device: Device
    points: tuple[tuple[Schedule, float], ...]


def read_measured(paths: Sequence[Path]) -> list[Measured]:
    """Problems and their timed schedules from sweeps and files of records."""
    from normgen.tuning.replay import problem_of
    from normgen.tuning.store import read
    from normgen.tuning.sweep_file import Header, read_sweep

    found: dict[str, tuple[Problem, Device, dict[Schedule, float]]] = {}

    def add(key: Mapping[str, object], cache: str, device: Mapping[str, object], s: Schedule, us: float) -> None:
        name = json.dumps([key, cache, device["name"]], sort_keys=True)
        if name not in found:
            header = Header(
                problem=key, cache=cache, device=device, versions={}, roof_us=None, noise_floor=None, bytes=0,
                legal=0, seed=0, default=s, knobs={},
            )  # fmt: skip
            found[name] = problem_of(header), Device(**dict(device)), {}  # type: ignore[arg-type]
        found[name][2][s] = us

    for path in paths:
        if _is_sweep(path):
            sweep = read_sweep(path)
            for point in sweep.points:
                if point.us is not None:
                    add(sweep.header.problem, sweep.header.cache, sweep.header.device, point.schedule, point.us)
        else:
            for record in read(path).records:
                if record.times_us is not None:
                    key = {**record.as_dict(), "dtypes": dict(record.problem.dtypes)}
                    names = ("op", "direction", "rows", "cols", "dtypes", "pitch", "align", "stable_parameters")
                    key = {name: key[name] for name in names if name in key}
                    add(key, record.cache.value, record.device, record.schedule, record.times_us.median)
    if not found:
        raise UsageError("a fit needs measured schedules", received=", ".join(map(str, paths)))
    return [Measured(problem=p, device=d, points=tuple(_thinned(us))) for p, d, us in found.values()]


def _is_sweep(path: Path) -> bool:
    data = path.read_bytes()
    text = lzma.decompress(data) if data[:6] == b"\xfd7zXZ\x00" else data
    return b'"knobs"' in text.split(b"\n", 1)[0]


def _thinned(us: Mapping[Schedule, float]) -> list[tuple[Schedule, float]]:
    ordered = sorted(us.items(), key=lambda item: (item[1], item[0].key))
    if len(ordered) <= LARGEST:
        return ordered
    near, far = ordered[: LARGEST // 2], ordered[LARGEST // 2 :]
    return near + far[:: max(1, len(far) // (LARGEST // 2))]


def loss(measured: Sequence[Measured], constants: Constants, start: Constants) -> float:
    """Weighted mean squared log error, the mean over problems, plus the pull."""
    from normgen.tuning.parts import stages_of

    total = 0.0
    for one in measured:
        stages, best = stages_of(one.problem), min(us for _, us in one.points)
        weights = errors = 0.0
        for schedule, us in one.points:
            told = predict(one.problem, schedule, one.device, stages=stages, constants=constants).us
            weight = math.exp(-NEAR * math.log(us / best)) + 0.01
            error = math.log(us / told)
            # Believed faster than it is: the model's first choice may be that one.
            errors += weight * error**2 * (2.0 if error > 0 else 1.0)
            weights += weight
        total += errors / weights / len(measured)
    names = [n for n in start.as_dict() if n not in FIXED]
    before, after = start.as_dict(), constants.as_dict()
    return total + PULL * sum(_distance(n, after[n], before[n]) ** 2 for n in names) / len(names)


def _distance(name: str, value: float, start: float) -> float:
    if start == 0:
        return abs(value)
    return math.log(value / start) * (10.0 if name in FACTORS else 1.0)


def fit_constants(
    measured: Sequence[Measured],
    start: Constants,
    *,
    keep: Sequence[str] = (),
    rounds: int = 2,
    tell: Callable[[str], None] = lambda _: None,
) -> Constants:
    """The constants that predict the measured times best; those named in `keep` stay as they are."""
    best, value = start, loss(measured, start, start)
    for step in STEPS:
        for _ in range(rounds):
            before = value
            for name in [n for n in start.as_dict() if n not in (*FIXED, *keep)]:
                best, value = _improved(measured, start, best, value, name, 1 + (step - 1) / _stiffness(name))
            tell(f"steps of {step}: loss {value:.5f}")
            if value > before * 0.999:
                break
    return best


def _stiffness(name: str) -> float:
    return 10.0 if name in FACTORS else 1.0


def _improved(
    measured: Sequence[Measured], start: Constants, best: Constants, value: float, name: str, step: float
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
