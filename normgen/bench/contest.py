"""Schedules of one problem against each other and the roofs: checked, then replayed in one interleaved run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from normgen.bench.entry import CHECKED_ELEMENTS, reason_of
from normgen.cuda.cache import CubinCache
from normgen.cuda.compiler import compile_module
from normgen.device import Device
from normgen.errors import NormgenError
from normgen.measure import timing
from normgen.measure.gpu import GpuBench
from normgen.measure.protocol import DeviceLostError, roof_name
from normgen.measure.replays import CONTEST_REPLAY_US
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.records import statistics
from normgen.records.record import Cache
from normgen.records.statistics import Ratio
from normgen.schedule.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and how a contest is held."""

    facts: Device
    index: int
    samples: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Samples of each name in µs a launch, and why a name has none."""

    series: Mapping[str, Sequence[float]] = field(hash=False)
    roofs_us: Mapping[str, float] = field(hash=False)
    failed: Mapping[str, str] = field(hash=False)

    def us(self, name: str) -> float | None:
        return statistics.median(self.series[name]) if name in self.series else None

    def ratio(self, a: str, b: str) -> Ratio | None:
        """a's time over b's, replay by replay."""
        if a not in self.series or b not in self.series:
            return None
        return statistics.paired_ratio(self.series[a], self.series[b])

    @property
    def roof_us(self) -> float | None:
        return min(self.roofs_us.values(), default=None)


def hold(problem: Problem, cache: Cache, schedules: Mapping[str, Schedule], place: Place) -> Contest:
    """Time every schedule that is right. Names with equal schedules share one kernel and its samples.

    Raises DeviceLostError when nothing can be measured any more.
    """
    bench = GpuBench(
        problem,
        place.facts,
        index=place.index,
        cache=cache,
        seed=place.seed,
        checked_elements=CHECKED_ELEMENTS,
        replay_us=CONTEST_REPLAY_US,
    )
    is_lost = False
    try:
        distinct = {schedule.key: schedule for schedule in schedules.values()}
        reasons = {key: _prepare(bench, problem, schedule, place) for key, schedule in distinct.items()}
        timed = [key for key, reason in reasons.items() if not reason]
        series = timing.race(bench, [*timed, *bench.roofs], samples=place.samples, seed=place.seed)
    except DeviceLostError:
        is_lost = True  # a context that is gone refuses even to free
        raise
    finally:
        if not is_lost:
            bench.close()
    return Contest(
        series={name: series[s.key] for name, s in schedules.items() if not reasons[s.key]},
        roofs_us={roof_name(key): statistics.median(series[key]) for key in bench.roofs},
        failed={name: reasons[s.key] for name, s in schedules.items() if reasons[s.key]},
    )


def _prepare(bench: GpuBench, problem: Problem, schedule: Schedule, place: Place) -> str:
    """Compile, load, check and capture; why that failed, or an empty text."""
    try:
        module = emit(problem, schedule)
        bench.load(schedule.key, module, compile_module(module, place.facts.arch, cache=CubinCache()))
        check = bench.check(schedule.key, full=False)
        if not check.ok:
            return f"wrong result: {check.summary}"
        bench.warm_up(schedule.key)
    except DeviceLostError:
        raise
    except NormgenError as error:
        return reason_of(error)
    return ""
