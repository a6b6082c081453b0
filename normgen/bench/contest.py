"""Schedules of one problem against each other and the roofs: checked, then replayed in one interleaved run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from normgen.bench.entrant import compiled, race_bench
from normgen.device import Device
from normgen.files.private import to_stderr
from normgen.measure import judge
from normgen.measure.isolation.process import Post
from normgen.measure.judge import Judge
from normgen.measure.protocol import roof_name
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


def hold(
    problem: Problem,
    cache: Cache,
    schedules: Mapping[str, Schedule],
    place: Place,
    *,
    note: Callable[[str], None] = to_stderr,
) -> Contest:
    """Time every schedule that is right. Names with equal schedules share one kernel and its samples.

    note   is told of lost workers
    Raises RefusedError when the device cannot hold the data, DeviceLostError when no worker can be kept alive.
    """
    distinct = {schedule.key: schedule for schedule in schedules.values()}
    with Post(judge.BENCH, place.index) as post:
        post.worker()  # gets ready while the kernels are compiled
        drafts = {key: compiled(key, problem, schedule, place.facts.arch) for key, schedule in distinct.items()}
        with race_bench(post, problem, place.facts, cache=cache, seed=place.seed, note=note) as bench:
            court = Judge(bench)
            timed = [draft for draft in drafts.values() if court.admit(draft, warm=True)]
            series = court.race(timed, samples=place.samples, seed=place.seed)
            roofs = bench.roofs
    reasons = {key: draft.failed for key, draft in drafts.items()}
    return Contest(
        series={name: series[s.key] for name, s in schedules.items() if not reasons[s.key]},
        roofs_us={roof_name(key): statistics.median(series[key]) for key in roofs},
        failed={name: reasons[s.key] for name, s in schedules.items() if reasons[s.key]},
    )
