"""One entry on a GPU: our kernel, the roof and the peers on the same buffers, checked, then one interleaved race.

Device, torch and peers are in a worker process: who takes it down fails, and the others are timed in the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from normgen.bench.peers import Options
from normgen.bench.result import EntryResult, Provider
from normgen.bench.table import OURS
from normgen.cost.work import flops
from normgen.measure.gpu import COPY
from normgen.measure.isolation.bench import WorkerBench
from normgen.measure.isolation.process import Post
from normgen.measure.judge import Judge
from normgen.records import statistics
from normgen.schedule.schedule import Schedule
from normgen.suites.suite import Entry
from normgen.trials.contest import Contest, Venue, admitted, race
from normgen.trials.entrant import Draft, compiled

BENCH = "normgen.bench.peers.bench:PeerBench"  # what the worker builds


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What all entries of a run share.

    post    of the worker, which builds a `BENCH`
    peers   name -> why it cannot be used; empty where it can
    alone   every contender is also timed behind itself
    note    is told of lost workers
    """

    venue: Venue
    post: Post
    peers: Mapping[str, str]
    options: Options
    note: Callable[[str], None]
    alone: bool = False


def measure_entry(entry: Entry, schedule: Schedule, note: str, shared: Shared) -> EntryResult:
    """Everything about one entry.

    Raises RefusedError when the device cannot hold its data, DeviceLostError when no worker can be kept alive.
    """
    start, venue = time.perf_counter(), shared.venue
    drafts = {OURS: compiled(OURS, entry.problem, schedule, venue.facts.arch)}
    drafts |= {name: Draft(key=name, failed=why) for name, why in shared.peers.items()}

    def admit(draft: Draft, judge: Judge, bench: WorkerBench) -> bool:
        """Our kernel as any; a peer prepares itself."""
        if draft.failed or draft.key == OURS:
            return admitted(draft, judge, bench)

        def prepare() -> None:
            draft.prepare_s = bench.make(draft.key, "prepare", shared.options)

        return draft.judged(judge.admit(draft, warm=True, make=prepare))

    contest = race(
        shared.post, entry.problem, entry.place, drafts, venue, note=shared.note, admit=admit, alone=shared.alone
    )
    return conclude(entry, drafts, contest, note=note, schedule=schedule, seconds=time.perf_counter() - start)


def conclude(
    entry: Entry,
    drafts: Mapping[str, Draft],
    contest: Contest,
    *,
    note: str = "",
    schedule: Schedule | None = None,
    seconds: float = 0.0,
) -> EntryResult:
    """The entry's result from its race; the roof is the cheapest of the hand-written kernels."""
    problem, (roof, roof_us) = entry.problem, contest.roof
    timed = {name: _timed(name, draft, contest, roof) for name, draft in drafts.items()}
    ours = replace(
        timed.pop(OURS),
        note=note,
        schedule=schedule.as_dict() if schedule else {},
        overlaps=schedule is not None and schedule.chained,
    )
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
        place=entry.place,
        bytes=problem.compulsory_bytes,
        flops=flops(problem),
        roof_us=roof_us,
        roof=roof or "",
        ours=ours,
        peers=timed,
        seconds=seconds,
        roofs_us=contest.roofs_us,
        chain_us=statistics.summarise([us for base in contest.base for us in base]) if contest.base else None,
    )


def _timed(name: str, draft: Draft, contest: Contest, roof: str | None) -> Provider:
    """A provider's price and times, beside the roofs and ours."""
    own, is_peer = contest.series.get(name), name != OURS
    return Provider(
        price_us=contest.price(name),
        times_us=statistics.summarise(own) if own else None,
        to_roof=contest.price_ratio(name, roof),
        to_copy=contest.price_ratio(name, COPY),
        failed=draft.failed,
        error=draft.error,
        prepare_s=draft.prepare_s,
        ours_to_this=contest.ratio(OURS, name) if is_peer else None,
        our_price_to_this=contest.price_ratio(OURS, name) if is_peer and contest.base else None,
        alone_us=contest.alone_us.get(name),
    )


def failed_entry(entry: Entry, reason: str, peers: Sequence[str]) -> EntryResult:
    """An entry of which nothing could be measured."""
    return conclude(entry, {name: Draft(key=name, failed=reason) for name in (OURS, *peers)}, Contest())
