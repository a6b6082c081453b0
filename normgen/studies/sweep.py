"""`normgen sweep`: measure every legal schedule of a problem, or a stratified sample, into one small file.

Compilers run ahead of the GPU; identical cubins are measured once; a kernel is checked before it is timed; a batch
is timed in short interleaved windows together with the default schedule, whose drift all times are divided by. The
fastest are timed again at the end in one longer interleaved run, because the least of thousands of noisy medians
is luck. What a file holds already is not measured again.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from normgen.choice.first import default_schedule
from normgen.cost.model import terms
from normgen.cuda.driver import device_facts
from normgen.device import Device
from normgen.errors import NothingValidError
from normgen.files.private import to_stderr
from normgen.measure import timing
from normgen.measure.isolation.start import processes
from normgen.measure.judge import Eliminated, Judge, Passed, bench_at
from normgen.measure.protocol import Bench, DeviceLostError
from normgen.measure.timing import Policy
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.records import statistics
from normgen.records.place import Place
from normgen.records.record import Outcome
from normgen.records.statistics import Times
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import space, with_default
from normgen.studies.sweep_file import Sweep
from normgen.trials.file import resumed, write
from normgen.trials.head import opening
from normgen.trials.run import RunProgress, run
from normgen.trials.trial import Trial
from normgen.trials.versions import environment
from normgen.tuning.candidate import Built, Checked, Failed, Proposed, Timed, Twin
from normgen.tuning.compile import Builder, text_of

BATCH = 32
AHEAD = 6  # batches in the compilers while one is on the GPU
# Three samples show that a schedule is far behind. Most legal schedules are, and each further sample takes 0.5 ms.
POLICY = Policy(screen_samples=8, drop_after=3, margin=0.3)
REFERENCE = "reference"  # the key under which the default schedule stays loaded
FINAL_POINTS = 32
FINAL_SAMPLES = 30
REFERENCE_SAMPLES = 30


def sample_of(legal: Sequence[Schedule], count: int | None, *, seed: int) -> list[Schedule]:
    """`count` schedules in shuffled order, each stratum by its share and none left out; None: all of them.

    A stratum is what the structural knobs say: threads a row, where the row waits, the rewrites, the way of
    reducing, a row loop or none.
    """
    shuffle = random.Random(seed)
    if count is None or count >= len(legal):
        return shuffle.sample(list(legal), len(legal))
    strata: dict[tuple[Any, ...], list[Schedule]] = {}
    for s in legal:
        key = (s.threads_per_row, s.hold, s.variance, s.softmax, s.reduce_with, s.columns, s.persistent > 0)
        strata.setdefault(key, []).append(s)
    for members in strata.values():
        shuffle.shuffle(members)
    # Position of each member in its stratum's deck, as a share: cutting the merged decks takes every share alike.
    ranked = sorted(
        ((i + 0.5 * (i > 0)) / len(members), number, i)
        for number, members in enumerate(strata.values())
        for i in range(len(members))
    )
    decks = list(strata.values())
    chosen = [decks[number][i] for _, number, i in ranked[:count]]
    return shuffle.sample(chosen, len(chosen))


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Schedules that are measured together."""

    label: str
    schedules: tuple[Schedule, ...]

    @property
    def key(self) -> str:
        return self.label


class Sweeper:
    """Measures points on a bench, batch by batch, in the order given."""

    def __init__(self, *, bench: Bench, make_builder: Callable[[], Builder], default: Schedule, seed: int) -> None:
        self._bench, self._judge = bench, Judge(bench)
        self._make_builder, self._seed = make_builder, seed
        self._builder = make_builder()
        self._default = default
        self._baseline_us: float | None = None
        self._batches = 0
        self._points: dict[str, Trial] = {}

    def start(self) -> dict[str, float | None]:
        """Load the default schedule, the drift's reference, and race it with the roofs: facts of a `Sweep`.

        Raises NothingValidError when the default does not compile or is wrong: without it nothing is comparable.
        """
        built = self._make_builder().rebuilt(Proposed(schedule=self._default, name=REFERENCE))
        verdict = built if isinstance(built, Failed) else self._judge.admit(built)
        if not isinstance(verdict, Passed):
            raise NothingValidError("the default schedule must compile and be right", received=verdict.reason)
        self._bench.warm_up(REFERENCE)
        twin = self._bench.twin(REFERENCE)
        bases, roofs = self._bench.bases, self._bench.roofs
        keys = [REFERENCE, twin, *bases, *roofs]
        series = timing.race(self._bench, keys, samples=REFERENCE_SAMPLES, seed=self._seed)
        self._baseline_us = statistics.median(series[REFERENCE])
        chain = timing.chain_times(series, bases)
        return {
            "roof_us": min(timing.figures_of(series, roofs, bases).values(), default=None),
            "noise_floor": statistics.noise_floor(series[REFERENCE], series[twin]),
            "chain_us": chain.median if chain else None,
        }

    def measured(self, batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[Trial]]]:
        """The points of each batch; a lost device is an error after those that were measured."""
        left, waiting = iter(batches), deque[tuple[Batch, list[Proposed]]]()
        while True:
            while len(waiting) < AHEAD and (batch := next(left, None)) is not None:
                waiting.append((batch, [self._begin(s) for s in batch.schedules]))
            if not waiting:
                return
            current, candidates = waiting.popleft()
            points: list[Trial] = []
            try:
                points.extend(map(self._settle, self._evaluate(candidates)))
            except DeviceLostError:
                yield current, points
                raise
            yield current, points

    def words(self, _: Sequence[Trial]) -> str:
        best = min((p.us for p in self._points.values() if p.us is not None), default=None)
        return f"best {best:.2f} us" if best else ""

    def retimed(self, points: Sequence[Trial]) -> Iterator[Trial]:
        """Time the fastest points again, longer and interleaved: what changes of them and of their twins."""
        fastest = sorted((p for p in points if p.us is not None and p.twin is None), key=lambda p: p.us or 0.0)
        builder, chosen = self._make_builder(), [Proposed(schedule=p.schedule) for p in fastest[:FINAL_POINTS]]
        for candidate in chosen:
            builder.begin(candidate)
        failed: dict[str, Outcome] = {}
        for candidate in chosen:
            built = builder.finish(candidate)
            verdict = self._judge.admit(built) if isinstance(built, Built) else built
            if isinstance(verdict, Failed | Eliminated):
                failed[candidate.key] = verdict.outcome
        series, faults = self._judge.rerun(
            [c.key for c in chosen if c.key in self._judge.loaded],
            lambda keys: timing.race(self._bench, [REFERENCE, *keys], samples=FINAL_SAMPLES, seed=self._seed),
        )
        failed |= {key: fault.outcome for key, fault in faults.items()}
        drift = statistics.median(series[REFERENCE]) / (self._baseline_us or statistics.median(series[REFERENCE]))
        us = {c.schedule: statistics.median(series[c.key]) / drift for c in chosen if c.key in series}
        of_twins = {p.schedule: us[p.twin] for p in points if p.twin in us}
        self._judge.forget(c.key for c in chosen)
        for point in points:
            if outcome := failed.get((point.twin or point.schedule).key):
                yield replace(point, us=None, outcome=outcome)
            elif point.schedule in us | of_twins:
                yield replace(point, us=(us | of_twins)[point.schedule])

    def _begin(self, schedule: Schedule) -> Proposed:
        candidate = Proposed(schedule=schedule)
        self._builder.begin(candidate)
        return candidate

    def _evaluate(self, batch: list[Proposed]) -> Iterator[Timed | Failed | Twin]:
        """What becomes of each as soon as it is known; a lost device says so after the one that lost it."""
        states = [self._builder.finish(c) for c in batch]
        yield from (s for s in states if isinstance(s, Failed))
        good: dict[str, Checked] = {}
        for kernel in (s for s in states if isinstance(s, Built)):
            try:
                found = kernel.judged(self._judge.admit(kernel))
            except DeviceLostError as lost:
                yield kernel.failed(Outcome.LAUNCH_ERROR, str(lost))
                raise
            if isinstance(found, Checked):
                good[found.key] = found
            else:
                yield found
        times, faults = self._screen(list(good))
        yield from (good[key].failed(fault.outcome, fault.reason) for key, fault in faults.items())
        yield from (good[key].timed(us) for key, us in times.items())
        self._judge.forget(good)
        self._batches += 1
        yield from (s for s in states if isinstance(s, Twin))

    def _screen(self, good: list[str]) -> tuple[Mapping[str, Times], Mapping[str, Eliminated]]:
        """Times of a batch; a kernel that faults is taken out of it, and the others are timed again."""

        def run(keys: list[str]) -> Mapping[str, Times]:
            if not keys:
                return {}
            return timing.screen(
                self._bench,
                keys,
                reference=REFERENCE,
                baseline_us=self._baseline_us,
                policy=POLICY,
                seed=self._seed + self._batches,
            ).times

        return self._judge.rerun(good, run)

    def _settle(self, state: Timed | Failed | Twin) -> Trial:
        """The candidate's point; its cubin is let go, thousands of them would fill the memory.

        A candidate with another's machine code shares its fate.
        """
        self._builder.forget(state)
        if isinstance(state, Twin):
            first = self._points[state.first]
            point = replace(first, schedule=state.schedule, twin=first.schedule)
        else:
            point = Trial(
                schedule=state.schedule,
                outcome=state.outcome,
                us=state.times_us.median if isinstance(state, Timed) else None,
                registers=state.registers,
                spill_bytes=sum(int(r["spill_bytes"]) for r in state.resources),
            )
        self._points[state.key] = point
        return point


def sweep(
    sweeper: Sweeper,
    legal: Sequence[Schedule],
    *,
    path: Path,
    limit: int | None,
    seed: int,
    opened: Callable[..., Sweep],
    progress: RunProgress,
    first: Mapping[Schedule, str] = MappingProxyType({}),
) -> Sweep:
    """Measure what `path` does not hold yet of the legal set, or of `first` and a sample of `limit`; the whole sweep.

    `first` says how each of its schedules was chosen. `opened(roof_us=..., noise_floor=..., chain_us=...)` is a new
    sweep. Raises UsageError when the file is of another problem, device, place or protocol, or when the default
    schedule is emitted as another text today.
    """
    fresh = opened(**sweeper.start())
    start = fresh.going_on(resumed(Sweep, path, is_strict=True))
    wanted = list(dict.fromkeys([*first, *sample_of(legal, limit, seed=seed)]))
    if fresh.default not in wanted:
        wanted = [fresh.default, *wanted[: max(len(first), len(wanted) - 1) if limit else None]]
    chosen = {s: first.get(s, "" if limit is None else "random") for s in wanted} | {fresh.default: "default"}
    known = {p.schedule for p in start.points}
    left = [s for s in wanted if s not in known]
    batches = [
        Batch(label=f"schedules from {i + 1} of {len(left)}", schedules=tuple(left[i : i + BATCH]))
        for i in range(0, len(left), BATCH)
    ]

    def measured(batches: Sequence[Batch]) -> Iterator[tuple[Batch, list[Trial]]]:
        for batch, points in sweeper.measured(batches):
            yield batch, [replace(point, chosen=chosen[point.schedule]) for point in points]

    found = run(start, batches, progress=progress, words=sweeper.words, path=path, spread=measured)
    if left and found.finished:
        # A batch gives its failures first and its twins last: here they stand as they were asked for.
        order = {s: i for i, s in enumerate([*(p.schedule for p in start.points), *left])}
        points = sorted(found.points, key=lambda p: order[p.schedule])
        found = found.with_trials([*points, *sweeper.retimed(points)])
        write(path, found)
    return found


def called_fastest(
    problem: Problem, legal: Sequence[Schedule], facts: Device, place: Place, *, count: int
) -> list[Schedule]:
    """The first `count` by the cost model, of equal predictions the plainer ones first."""
    us = terms(problem, legal, facts, hot=place.is_hot)["us"].tolist() if count else []
    slowest = sorted(us)[:count][-1:]
    found = {s: (told, len(str(s)), s.key) for s, told in zip(legal, us, strict=False) if [told] <= slowest}
    return sorted(found, key=lambda s: found[s])[:count]


def sweep_on_gpu(
    problem: Problem,
    *,
    place: Place,
    path: Path,
    limit: int | None = None,
    first: Mapping[Schedule, str] = MappingProxyType({}),
    best: int = 0,
    index: int = 0,
    seed: int = 0,
    progress: RunProgress,
) -> Sweep:
    """Sweep the problem on GPU `index`. Raises NoDeviceError without one, else as `sweep`.

    first  schedules beside a sample of `limit`, and how each was chosen
    best   before them so many that the cost model calls fastest: its first choice among them
    """
    facts = device_facts(index)
    default = default_schedule(problem, facts)
    legal = with_default(space(problem, facts).legal, default)
    versions = {**environment(measured=True), "default_text": text_of(problem, default, emit)}
    opened = partial(
        Sweep,
        **opening(facts, versions, {"seed": seed}),
        problem=problem.question.as_dict(),
        place=place,
        bytes=problem.compulsory_bytes,
        legal=len(legal),
        default=default,
    )
    with processes(index) as using:
        sweeper = Sweeper(
            bench=bench_at(using.post, problem, facts, place=place, seed=seed, note=to_stderr),
            make_builder=lambda: Builder(
                problem, emit=emit, submit=lambda m: using.pool.submit(m, facts.arch), emitter=using.emitter
            ),
            default=default,
            seed=seed,
        )
        asked = dict.fromkeys(called_fastest(problem, legal, facts, place, count=best), "model") | dict(first)
        return sweep(sweeper, legal, path=path, limit=limit, seed=seed, opened=opened, progress=progress, first=asked)
