"""One entry on a GPU: our kernel, the roof and the peers on the same buffers, checked, then one interleaved race.

Device, torch and peers are in a worker process: who takes it down fails, and the others are timed in the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from normgen.bench.entrant import Draft, compiled, race_bench
from normgen.bench.peers import Options
from normgen.bench.result import EntryResult, Provider
from normgen.bench.table import OURS
from normgen.device import Device
from normgen.measure.gpu import COPY
from normgen.measure.isolation.bench import WorkerBench
from normgen.measure.isolation.process import Post
from normgen.measure.judge import Judge
from normgen.measure.protocol import roof_name
from normgen.records import statistics
from normgen.schedule.schedule import Schedule, schedule_from
from normgen.suites.suite import Entry

BENCH = "normgen.bench.peers.bench:PeerBench"  # what the worker builds


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all entries of a run share.

    post    of the worker, which builds a `BENCH`
    peers   name -> why it cannot be used; empty where it can
    note    is told of lost workers
    """

    facts: Device
    post: Post
    peers: Mapping[str, str]
    options: Options
    samples: int
    seed: int
    note: Callable[[str], None]


def measure_entry(entry: Entry, schedule: Schedule, note: str, setting: Setting) -> EntryResult:
    """Everything about one entry.

    Raises RefusedError when the device cannot hold its data, DeviceLostError when no worker can be kept alive.
    """
    start = time.perf_counter()
    ours = compiled(OURS, entry.problem, schedule, setting.facts.arch)
    drafts = {OURS: ours} | {name: Draft(key=name, failed=why) for name, why in setting.peers.items()}
    with race_bench(
        setting.post, entry.problem, setting.facts, cache=entry.cache, seed=setting.seed, note=setting.note
    ) as bench:
        judge = Judge(bench)
        timed = [draft for draft in drafts.values() if _is_admitted(draft, judge, bench, setting.options)]
        series = judge.race(timed, samples=setting.samples, seed=setting.seed)
        roofs = bench.roofs
    return conclude(
        entry, drafts, series, roofs, note=note, schedule=schedule.as_dict(), seconds=time.perf_counter() - start
    )


def _is_admitted(draft: Draft, judge: Judge, bench: WorkerBench, options: Options) -> bool:
    """Load our kernel or let a peer prepare itself, check it and warm it up."""
    if draft.failed:
        return False
    if draft.key == OURS:
        return judge.admit(draft, warm=True)

    def prepare() -> None:
        draft.prepare_s = bench.make(draft.key, "prepare", options)

    return judge.admit(draft, warm=True, make=prepare)


def conclude(
    entry: Entry,
    drafts: Mapping[str, Draft],
    series: Mapping[str, Sequence[float]],
    roofs: Sequence[str],
    *,
    note: str = "",
    schedule: Mapping[str, Any] | None = None,
    seconds: float = 0.0,
) -> EntryResult:
    """The entry's result from the samples of its race; the roof is the faster of the copies."""
    problem = entry.problem
    timed_roofs = [key for key in roofs if key in series]
    roof = min(timed_roofs, key=lambda key: statistics.median(series[key]), default=None)
    timed = {name: _timed(name, draft, series, roof) for name, draft in drafts.items()}
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
        cache=entry.cache.value,
        bytes=problem.compulsory_bytes,
        roof_us=statistics.median(series[roof]) if roof else None,
        roof=roof or "",
        ours=ours,
        peers=timed,
        seconds=seconds,
        roofs_us={roof_name(key): statistics.median(series[key]) for key in timed_roofs},
    )


def _timed(name: str, draft: Draft, series: Mapping[str, Sequence[float]], roof: str | None) -> Provider:
    """A provider's times, beside the roofs and ours."""
    samples, ours = series.get(name), series.get(OURS)
    return Provider(
        times_us=statistics.summarise(samples) if samples else None,
        to_roof=statistics.paired_ratio(samples, series[roof]) if samples and roof else None,
        to_copy=statistics.paired_ratio(samples, series[COPY]) if samples and COPY in series else None,
        failed=draft.failed,
        error=draft.error,
        prepare_s=draft.prepare_s,
        ours_to_this=statistics.paired_ratio(ours, samples) if samples and ours and name != OURS else None,
    )


def failed_entry(entry: Entry, reason: str, peers: Sequence[str]) -> EntryResult:
    """An entry of which nothing could be measured."""
    return conclude(entry, {name: Draft(key=name, failed=reason) for name in (OURS, *peers)}, {}, ())
