"""Schedules of one problem against each other and the roofs: checked, then replayed in one interleaved run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from normgen.bench.entrant import ROOF_SAMPLES, compiled, race_bench, raced
from normgen.cost.work import arithmetic_us, roof_of
from normgen.device import Device
from normgen.files.private import to_stderr
from normgen.measure import timing
from normgen.measure.isolation import process
from normgen.measure.isolation.process import Post
from normgen.measure.judge import Judge
from normgen.measure.protocol import roof_family
from normgen.problem.problem import Problem
from normgen.records import statistics
from normgen.records.place import Place
from normgen.records.statistics import Ratio
from normgen.schedule.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Venue:
    """Where and how a contest is held."""

    facts: Device
    index: int
    samples: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Samples of each name in µs, and why a name has none; `base`: of the chain without a kernel, none alone."""

    series: Mapping[str, Sequence[float]] = field(hash=False)
    roofs_us: Mapping[str, float] = field(hash=False)
    failed: Mapping[str, str] = field(hash=False)
    base: Sequence[Sequence[float]] = field(default=(), hash=False)

    def us(self, name: str) -> float | None:
        """The median of T, or alone of a launch."""
        return statistics.median(self.series[name]) if name in self.series else None

    def cost_us(self, name: str) -> float | None:
        """The price, or alone the time."""
        if name not in self.series or not self.base:
            return self.us(name)
        return statistics.price_of(self.series[name], self.base).median

    def ratio(self, a: str, b: str) -> Ratio | None:
        """a's time over b's, replay by replay: of the whole chains."""
        if a not in self.series or b not in self.series:
            return None
        return statistics.paired_ratio(self.series[a], self.series[b])

    def price_ratio(self, a: str, b: str) -> Ratio | None:
        """a's price over b's; alone, its time."""
        if a not in self.series or b not in self.series:
            return None
        if not self.base:
            return self.ratio(a, b)
        first, second = self.base
        return statistics.price_ratio(self.series[a], self.series[b], a_base=first, b_base=second)

    @property
    def roof_us(self) -> float | None:
        found = roof_of(self.roofs_us)
        return found[1] if found else None


def hold(
    problem: Problem,
    place: Place,
    schedules: Mapping[str, Schedule],
    venue: Venue,
    *,
    note: Callable[[str], None] = to_stderr,
) -> Contest:
    """Time every schedule that is right. Names with equal schedules share one kernel and its samples.

    note   is told of lost workers
    Raises RefusedError when the device cannot hold the data, DeviceLostError when no worker can be kept alive.
    """
    distinct = {schedule.key: schedule for schedule in schedules.values()}
    with Post(process.BENCH, venue.index) as post:
        post.worker()  # gets ready while the kernels are compiled
        drafts = {key: compiled(key, problem, schedule, venue.facts.arch) for key, schedule in distinct.items()}
        with race_bench(post, problem, venue.facts, place=place, seed=venue.seed, note=note) as bench:
            court = Judge(bench, arithmetic_us=arithmetic_us(problem, venue.facts))
            timed = [d for d in drafts.values() if not d.failed and d.judged(court.admit(d, warm=True))]
            least = court.choose_roofs(samples=ROOF_SAMPLES, seed=venue.seed).arithmetic
            series = raced(court, timed, samples=venue.samples, seed=venue.seed)
            roofs, bases = court.roofs, bench.bases
    reasons = {key: draft.failed for key, draft in drafts.items()}
    return Contest(
        series={name: series[s.key] for name, s in schedules.items() if not reasons[s.key]},
        roofs_us={roof_family(key): us for key, us in timing.figures_of(series, roofs, bases).items()} | least,
        base=[series[key] for key in bases],
        failed={name: reasons[s.key] for name, s in schedules.items() if reasons[s.key]},
    )
