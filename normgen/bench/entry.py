"""One entry on a GPU: our kernel, the roof and the peers on the same buffers, checked, then one interleaved race.

Device, torch and peers are in a worker process: who takes it down fails, and the others are timed in the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from normgen.bench.entrant import ROOF_SAMPLES, Draft, compiled, race_bench, raced
from normgen.bench.peers import Options
from normgen.bench.result import EntryResult, Provider
from normgen.bench.table import OURS
from normgen.cost.work import arithmetic_us, flops, roof_of
from normgen.device import Device
from normgen.measure import timing
from normgen.measure.gpu import COPY
from normgen.measure.isolation.bench import WorkerBench
from normgen.measure.isolation.process import Post
from normgen.measure.judge import Judge
from normgen.measure.protocol import roof_family
from normgen.records import statistics
from normgen.records.place import Context
from normgen.records.statistics import Ratio
from normgen.schedule.schedule import Schedule, schedule_from
from normgen.suites.suite import Entry

BENCH = "normgen.bench.peers.bench:PeerBench"  # what the worker builds


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What all entries of a run share.

    post    of the worker, which builds a `BENCH`
    peers   name -> why it cannot be used; empty where it can
    alone   every contender is also timed behind itself
    note    is told of lost workers
    """

    facts: Device
    post: Post
    peers: Mapping[str, str]
    options: Options
    samples: int
    seed: int
    note: Callable[[str], None]
    alone: bool = False


def measure_entry(entry: Entry, schedule: Schedule, note: str, shared: Shared) -> EntryResult:
    """Everything about one entry.

    Raises RefusedError when the device cannot hold its data, DeviceLostError when no worker can be kept alive.
    """
    start = time.perf_counter()
    ours = compiled(OURS, entry.problem, schedule, shared.facts.arch)
    drafts = {OURS: ours} | {name: Draft(key=name, failed=why) for name, why in shared.peers.items()}
    with race_bench(
        shared.post, entry.problem, shared.facts, place=entry.place, seed=shared.seed, note=shared.note
    ) as bench:
        judge = Judge(bench, arithmetic_us=arithmetic_us(entry.problem, shared.facts))
        timed = [draft for draft in drafts.values() if _is_admitted(draft, judge, bench, shared.options)]
        arithmetic = judge.choose_roofs(samples=ROOF_SAMPLES, seed=shared.seed).arithmetic
        series = raced(judge, timed, samples=shared.samples, seed=shared.seed)
        roofs, bases = judge.roofs, bench.bases
        if spills := bench.conditions().get("spills"):
            shared.note(f"{entry.label} is not hot: {spills}")
        alone_us = _alone(timed, judge, shared) if shared.alone and bases else {}
    return conclude(
        entry,
        drafts,
        Samples(series=series, roofs=roofs, bases=bases, alone_us=alone_us, arithmetic=arithmetic),
        note=note,
        schedule=schedule.as_dict(),
        seconds=time.perf_counter() - start,
    )


def _alone(timed: list[Draft], judge: Judge, shared: Shared) -> dict[str, float]:
    """Medians of each contender behind itself."""

    def run(keys: list[str]) -> dict[str, float]:
        twins = {key: judge.bench.twin(key, Context.ALONE) for key in keys}
        series = timing.race(judge.bench, list(twins.values()), samples=shared.samples, seed=shared.seed)
        return {key: statistics.median(series[twin]) for key, twin in twins.items()}

    found, faults = judge.rerun([draft.key for draft in timed if not draft.failed], run)
    for draft in timed:
        if draft.key in faults:
            draft.fail(faults[draft.key])
    return found


def _is_admitted(draft: Draft, judge: Judge, bench: WorkerBench, options: Options) -> bool:
    """Load our kernel or let a peer prepare itself, check it and warm it up."""
    if draft.failed:
        return False
    if draft.key == OURS:
        return draft.judged(judge.admit(draft, warm=True))

    def prepare() -> None:
        draft.prepare_s = bench.make(draft.key, "prepare", options)

    return draft.judged(judge.admit(draft, warm=True, make=prepare))


@dataclass(frozen=True, kw_only=True)
class Samples:
    """What the races of an entry gave.

    series      of every contender, of the roofs, and of the chain without one (`bases`; none alone)
    arithmetic  a roof of no samples: what products take, of a problem that has some
    """

    series: Mapping[str, Sequence[float]] = field(default_factory=dict)
    roofs: Sequence[str] = ()
    bases: Sequence[str] = ()
    alone_us: Mapping[str, float] = field(default_factory=dict)
    arithmetic: Mapping[str, float] = field(default_factory=dict)

    def ratio(self, a: str, b: str | None) -> Ratio | None:
        """The price of a over that of b; alone, the time."""
        if b is not None and b in self.arithmetic and a in self.series:
            own, bases = self.series[a], [self.series[base] for base in self.bases]
            found = statistics.price_of(own, bases) if bases else statistics.summarise(own)
            least = self.arithmetic[b]
            return Ratio(median=found.median / least, low=found.low / least, high=found.high / least)
        if b is None or a not in self.series or b not in self.series:
            return None
        if not self.bases:
            return self.times_ratio(a, b)
        first, second = (self.series[base] for base in self.bases)
        return statistics.price_ratio(self.series[a], self.series[b], a_base=first, b_base=second)

    def times_ratio(self, a: str, b: str) -> Ratio | None:
        """T of a over T of b."""
        if a not in self.series or b not in self.series:
            return None
        return statistics.paired_ratio(self.series[a], self.series[b])


def conclude(
    entry: Entry,
    drafts: Mapping[str, Draft],
    samples: Samples,
    *,
    note: str = "",
    schedule: Mapping[str, Any] | None = None,
    seconds: float = 0.0,
) -> EntryResult:
    """The entry's result from the samples of its races; the roof is the cheapest of the hand-written kernels."""
    problem = entry.problem
    series = {key: list(values) for key, values in samples.series.items()}
    roofs_us = timing.figures_of(series, [key for key in samples.roofs if key in series], samples.bases)
    roofs_us |= samples.arithmetic
    roof, roof_us = roof_of(roofs_us) or (None, None)
    timed = {name: _timed(name, draft, samples, roof) for name, draft in drafts.items()}
    knobs = dict(schedule or {})
    ours = replace(timed.pop(OURS), note=note, schedule=knobs, overlaps=schedule_from(knobs).chained)
    return EntryResult(
        label=entry.label,
        op=problem.spec.name,
        direction=problem.direction.value,
        shape=entry.shape,
        rows=problem.rows,
        cols=problem.cols,
        dtypes={t.name: t.dtype.name for t in problem.tensors},
        pitch=problem.pitch,
        align=problem.align,
        **entry.place.as_dict(),
        bytes=problem.compulsory_bytes,
        flops=flops(problem),
        roof_us=roof_us,
        roof=roof or "",
        ours=ours,
        peers=timed,
        seconds=seconds,
        roofs_us={roof_family(key): us for key, us in roofs_us.items()},
        chain_us=timing.chain_times(series, samples.bases),
    )


def _timed(name: str, draft: Draft, samples: Samples, roof: str | None) -> Provider:
    """A provider's price and times, beside the roofs and ours."""
    own = samples.series.get(name)
    bases = [samples.series[base] for base in samples.bases]
    is_peer = name != OURS
    return Provider(
        price_us=statistics.price_of(own, bases) if own and bases else None,
        times_us=statistics.summarise(own) if own else None,
        to_roof=samples.ratio(name, roof),
        to_copy=samples.ratio(name, COPY),
        failed=draft.failed,
        error=draft.error,
        prepare_s=draft.prepare_s,
        ours_to_this=samples.times_ratio(OURS, name) if is_peer else None,
        our_price_to_this=samples.ratio(OURS, name) if is_peer and bases else None,
        alone_us=samples.alone_us.get(name),
    )


def failed_entry(entry: Entry, reason: str, peers: Sequence[str]) -> EntryResult:
    """An entry of which nothing could be measured."""
    return conclude(entry, {name: Draft(key=name, failed=reason) for name in (OURS, *peers)}, Samples())
