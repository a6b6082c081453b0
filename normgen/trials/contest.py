"""Kernels of one problem against each other and the roofs: checked, then replayed in one interleaved run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from normgen.cost.work import arithmetic_us, roof_of
from normgen.cuda.driver import find_gpu
from normgen.device import Device
from normgen.errors import NormgenError, UsageError
from normgen.files.private import to_stderr
from normgen.measure import timing
from normgen.measure.isolation import process
from normgen.measure.isolation.bench import WorkerBench
from normgen.measure.isolation.process import Post
from normgen.measure.judge import Judge
from normgen.measure.protocol import DeviceLostError, roof_family
from normgen.problem.problem import Problem
from normgen.records import statistics
from normgen.records.place import Context, Place
from normgen.records.statistics import Price, Ratio
from normgen.schedule.schedule import Schedule
from normgen.trials.entrant import ROOF_SAMPLES, Draft, compiled, race_bench, raced
from normgen.trials.head import opening, reason_of
from normgen.trials.versions import environment

LEAST_SAMPLES = 6  # below it there is no 95 % interval of a median


@dataclass(frozen=True, kw_only=True)
class Venue:
    """Where and how a contest is held."""

    facts: Device
    index: int
    samples: int
    seed: int

    def head(self, versions: Mapping[str, str] | None = None, **options: Any) -> dict[str, Any]:
        """The fields of a run of contests here that are known when it begins; `versions`: of others than ours."""
        asked = {**options, "samples": self.samples, "seed": self.seed}
        return opening(self.facts, {**environment(measured=True), **(versions or {})}, asked)


def venue_of(device: int, *, samples: int, seed: int) -> Venue:
    """The venue on a GPU by its number. Raises NoDeviceError without it, UsageError for too few samples."""
    if samples < LEAST_SAMPLES:
        rule = f"an interval of a median needs at least {LEAST_SAMPLES} samples"
        raise UsageError(rule, received=str(samples))
    found = find_gpu(device)
    assert found is not None, "a GPU that is asked for by number is found or an error"
    return Venue(facts=found[1], index=found[0], samples=samples, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Samples in µs of each name, and why a name has none.

    roofs       samples by key
    base        two series of the chain without a kernel; none alone
    arithmetic  a roof of no samples: what products take, of a problem that has some
    alone_us    medians of launches behind themselves, where they were asked for
    again       samples of the first name's twin, where it took part twice
    """

    series: Mapping[str, Sequence[float]] = field(default_factory=dict, hash=False)
    roofs: Mapping[str, Sequence[float]] = field(default_factory=dict, hash=False)
    base: Sequence[Sequence[float]] = field(default=(), hash=False)
    arithmetic: Mapping[str, float] = field(default_factory=dict, hash=False)
    failed: Mapping[str, str] = field(default_factory=dict, hash=False)
    alone_us: Mapping[str, float] = field(default_factory=dict, hash=False)
    again: Sequence[float] = field(default=(), hash=False)

    @property
    def noise_floor(self) -> float:
        """How far the first name is from itself: a relative difference of times below it is a tie."""
        return statistics.noise_floor(next(iter(self.series.values())), self.again)

    def us(self, name: str) -> float | None:
        """The median of T, or alone of a launch."""
        return statistics.median(self._samples[name]) if name in self._samples else None

    def price(self, name: str) -> Price | None:
        """What the name adds to the chain; None alone, and without samples."""
        own = self._samples.get(name)
        return statistics.price_of(own, self.base) if own and self.base else None

    def cost_us(self, name: str) -> float | None:
        """The price, or alone the time."""
        price = self.price(name)
        return price.median if price else self.us(name)

    def ratio(self, a: str, b: str) -> Ratio | None:
        """a's time over b's, replay by replay: of the whole chains."""
        first, second = self._samples.get(a), self._samples.get(b)
        return statistics.paired_ratio(first, second) if first and second else None

    def price_ratio(self, a: str, b: str | None) -> Ratio | None:
        """a's price over b's, which may be a roof; alone, its time."""
        first, second = self._samples.get(a), self._samples.get(b or "")
        if first and (least := self.arithmetic.get(b or "")):
            found = self.price(a) or statistics.summarise(first)
            return Ratio(median=found.median / least, low=found.low / least, high=found.high / least)
        if not first or not second or not self.base:
            return self.ratio(a, b or "")
        return statistics.price_ratio(first, second, a_base=self.base[0], b_base=self.base[1])

    @cached_property
    def _samples(self) -> Mapping[str, Sequence[float]]:
        return {**self.roofs, **self.series}

    @cached_property
    def costs_of_roofs(self) -> dict[str, float]:
        """Key -> µs of each roof whose price, or alone time, is above 0."""
        found = {key: self.cost_us(key) or 0.0 for key in self.roofs}
        return {key: us for key, us in found.items() if us > 0} | dict(self.arithmetic)

    @property
    def roofs_us(self) -> dict[str, float]:
        """Family -> µs of its roof."""
        return {roof_family(key): us for key, us in self.costs_of_roofs.items()}

    @property
    def roof(self) -> tuple[str | None, float | None]:
        """The key and the µs of the roof."""
        return roof_of(self.costs_of_roofs) or (None, None)


Admit = Callable[[Draft, Judge, WorkerBench], bool]


def admitted(draft: Draft, judge: Judge, _: WorkerBench) -> bool:
    """Load a kernel, check it and warm it up."""
    return not draft.failed and draft.judged(judge.admit(draft, warm=True))


def race(
    post: Post,
    problem: Problem,
    place: Place,
    drafts: Mapping[str, Draft],
    venue: Venue,
    *,
    note: Callable[[str], None],
    admit: Admit = admitted,
    alone: bool = False,
    twice: bool = False,
) -> Contest:
    """One interleaved race of the drafts that are right, the best roof of each family and the chain without a kernel.

    alone   each is then timed behind itself too
    twice   the first takes part twice: the noise floor
    """
    with race_bench(post, problem, venue.facts, place=place, seed=venue.seed, note=note) as bench:
        judge = Judge(bench, arithmetic_us=arithmetic_us(problem, venue.facts))
        timed = [draft for draft in drafts.values() if admit(draft, judge, bench)]
        arithmetic = judge.choose_roofs(samples=ROOF_SAMPLES, seed=venue.seed).arithmetic
        twin = [bench.twin(timed[0].key)] if timed and twice else []
        series = raced(judge, timed, twin, samples=venue.samples, seed=venue.seed)
        roofs, bases = judge.roofs, bench.bases
        if spills := bench.conditions().get("spills"):
            note(f"{problem} is not hot: {spills}")
        alone_us = _alone(timed, judge, venue) if alone and bases else {}
    return Contest(
        series={name: series[draft.key] for name, draft in drafts.items() if draft.key in series and not draft.failed},
        roofs={key: series[key] for key in roofs},
        base=[series[key] for key in bases],
        arithmetic=arithmetic,
        failed={name: draft.failed for name, draft in drafts.items() if draft.failed},
        alone_us=alone_us,
        again=series[twin[0]] if twin else (),
    )


def _alone(timed: Sequence[Draft], judge: Judge, venue: Venue) -> dict[str, float]:
    """Medians of each contender behind itself."""

    def run(keys: list[str]) -> dict[str, float]:
        twins = {key: judge.bench.twin(key, Context.ALONE) for key in keys}
        series = timing.race(judge.bench, list(twins.values()), samples=venue.samples, seed=venue.seed)
        return {key: statistics.median(series[twin]) for key, twin in twins.items()}

    found, faults = judge.rerun([draft.key for draft in timed if not draft.failed], run)
    for draft in timed:
        if draft.key in faults:
            draft.fail(faults[draft.key])
    return found


def hold(
    problem: Problem,
    place: Place,
    schedules: Mapping[str, Schedule],
    venue: Venue,
    *,
    note: Callable[[str], None] = to_stderr,
    twice: bool = False,
) -> Contest:
    """Time every schedule that is right. Names with equal schedules share one kernel and its samples.

    note   is told of lost workers
    Nobody has samples where the device cannot hold the data. Raises DeviceLostError when no worker can be kept alive.
    """
    distinct = {schedule.key: schedule for schedule in schedules.values()}
    try:
        with Post(process.BENCH, venue.index) as post:
            post.worker()  # gets ready while the kernels are compiled
            drafts = {key: compiled(key, problem, schedule, venue.facts.arch) for key, schedule in distinct.items()}
            found = race(post, problem, place, drafts, venue, note=note, twice=twice)
    except DeviceLostError:
        raise
    except NormgenError as error:
        return Contest(failed=dict.fromkeys(schedules, reason_of(error)))
    named = {name: s.key for name, s in schedules.items()}
    return replace(
        found,
        series={name: found.series[key] for name, key in named.items() if key in found.series},
        failed={name: found.failed[key] for name, key in named.items() if key in found.failed},
    )
