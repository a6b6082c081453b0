"""`normgen study repeat`: do tunes with other seeds, each from empty caches, find the same? How long do they take?

Each tune is a process of its own with its own, empty folders, as a user's first one is. Its winner, the default and
the fastest schedules of a sweep are then timed in one interleaved run: times of separate runs differ by a few per cent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from normgen.choice.first import default_schedule
from normgen.device import Device
from normgen.errors import NothingValidError, UsageError
from normgen.problem.problem import Problem
from normgen.records import statistics
from normgen.records.place import Place
from normgen.schedule.schedule import Schedule, schedule_from
from normgen.studies.replay import swept_problem
from normgen.studies.sweep_file import Sweep
from normgen.trials.contest import Venue, hold, venue_of

COMMAND: Sequence[str] = (sys.executable, "-m", "normgen")
SWEPT = 3  # of a sweep's fastest: the very first may owe its place to luck
SAMPLES = 60
FOLDERS = ("NORMGEN_CACHE_DIR", "NORMGEN_STATE_DIR")


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """One tune: its winner, how many candidates it tried, how many of them were timed, and how long it all took.

    finalists  schedule -> its µs in that tune's own confirmation: whether a better one was lost there, or never tried
    notes      what the tune said, as that a faster one lost between matrix products
    """

    seed: int
    winner: Schedule
    finalists: Mapping[str, float | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    candidates: int
    timed: int
    wall_s: float
    phases_s: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """What tunes found: the price (alone, the time) of every schedule in one run.

    best         the cheapest of the sweep's in that run
    noise_floor  of that run: the first schedule against itself
    """

    tunes: tuple[Tuned, ...]
    us: Mapping[Schedule, float]
    swept: tuple[Schedule, ...]
    noise_floor: float

    @property
    def best(self) -> Schedule:
        """What winners are compared with: the fastest of the sweep's; without a sweep the fastest of all."""
        return min(self.swept or tuple(self.us), key=lambda s: self.us[s])

    def as_dict(self) -> dict[str, Any]:
        """What `normgen study repeat --json` prints; a ratio is µs over that of `best`, both of the one run."""
        best_us = self.us[self.best]
        tunes = [
            asdict(t)
            | {"winner": str(t.winner), "us": self.us[t.winner], "ratio": round(self.us[t.winner] / best_us, 4)}
            for t in self.tunes
        ]
        return {
            "best": {"schedule": str(self.best), "us": best_us, "of_sweep": bool(self.swept)},
            "worst_ratio": max(t["ratio"] for t in tunes),
            "median_candidates": statistics.median([t.candidates for t in self.tunes]),
            "median_timed": statistics.median([t.timed for t in self.tunes]),
            "median_wall_s": round(statistics.median([t.wall_s for t in self.tunes]), 2),
            "noise_floor": self.noise_floor,
            "tunes": tunes,
        }


def tune_apart(arguments: Sequence[str], *, seed: int) -> Tuned:
    """One `normgen tune` with empty caches. Raises NothingValidError with what it said when it fails."""
    with tempfile.TemporaryDirectory(prefix="normgen-repeat-") as folder:
        environment = {**os.environ, **{name: str(Path(folder) / name.lower()) for name in FOLDERS}}
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        began = time.monotonic()
        done = subprocess.run(
            [*COMMAND, "tune", *arguments, "--seed", str(seed), "--json"],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        wall_s = time.monotonic() - began
    if done.returncode:
        raise NothingValidError(f"the tune with seed {seed} must find a kernel", received=done.stderr[-2000:])
    found = json.loads(done.stdout)
    if not found["measured"]:
        raise UsageError("predictions cannot be compared: tunes are repeated on a GPU", received=found["device"])
    counts: dict[str, int] = found["counts"]
    tried = sum(n for name, n in counts.items() if name not in ("same_code", "reused"))
    return Tuned(
        seed=seed,
        winner=schedule_from(found["best"]["schedule"]),
        finalists={f["schedule"]: f["price_us"] or f["us"] for f in found["finalists"]},
        notes=tuple(found["notes"]),
        candidates=tried,
        timed=counts.get("ok", 0) - counts.get("same_code", 0),
        wall_s=round(wall_s, 2),
        phases_s=found["phases_s"],
    )


def time_together(
    problem: Problem, place: Place, schedules: Sequence[Schedule], venue: Venue
) -> tuple[dict[Schedule, float], float]:
    """(price of each schedule, noise floor of T) of one interleaved run; what cannot be timed is an error.

    Alone the price is the median time.
    """
    named = {str(schedule): schedule for schedule in schedules}
    found = hold(problem, place, named, venue, twice=True)
    if found.failed:
        reason = next(iter(found.failed.values()))
        raise NothingValidError("a schedule that was measured must compile and be right", received=reason)
    us = {schedule: found.cost_us(name) or 0.0 for name, schedule in named.items()}
    if free := [str(s) for s, price in us.items() if price <= 0]:
        raise NothingValidError("a schedule must cost something to be compared", received=", ".join(free))
    return us, found.noise_floor


def fastest_of(sweep: Sweep | None, problem: Problem, place: Place, device: Device) -> tuple[Schedule, ...]:
    """The first few of a sweep. Raises UsageError when it is a sweep of something else."""
    if sweep is None:
        return ()
    same = swept_problem(sweep.problem) == problem and sweep.place == place and sweep.device["name"] == device.name
    if not same:
        asked = f"{problem} {place} on {device.name}"
        swept = f"{swept_problem(sweep.problem)} {sweep.place} on {sweep.device['name']}"
        raise UsageError(
            "the sweep must be of the problem, place and GPU model that is tuned", received=f"{swept}; {asked}"
        )
    timed = sorted((p for p in sweep.points if p.us is not None and p.twin is None), key=lambda p: p.us or 0.0)
    return tuple(p.schedule for p in timed[:SWEPT])


def repeat_on_gpu(
    problem: Problem,
    arguments: Sequence[str],
    *,
    place: Place,
    seeds: int,
    against: Sweep | None = None,
    index: int = 0,
    tell: Callable[[Tuned], None] = lambda _: None,
) -> Repeat:
    """Tune with seeds 0 .. seeds - 1 one after the other on GPU `index`, then time what they found together.

    `arguments` are those of `normgen tune` without --seed. Raises NoDeviceError without a GPU.
    """
    venue = venue_of(index, samples=SAMPLES, seed=0)
    swept = fastest_of(against, problem, place, venue.facts)
    tunes = []
    for seed in range(seeds):
        tunes.append(tune_apart([*arguments, "--device", str(index)], seed=seed))
        tell(tunes[-1])
    schedules = [*swept, *(t.winner for t in tunes), default_schedule(problem, venue.facts)]
    us, floor = time_together(problem, place, schedules, venue)
    return Repeat(tunes=tuple(tunes), us=us, swept=swept, noise_floor=floor)
