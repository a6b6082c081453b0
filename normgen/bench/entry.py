"""One entry on a GPU: our kernel, the roof and the peers on the same buffers, checked, then one interleaved race."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from normgen.bench.expected import Expected
from normgen.bench.peers import NotOfferedError, Options, Peer
from normgen.bench.result import EntryResult, Provider
from normgen.bench.table import OURS
from normgen.cuda.cache import CubinCache
from normgen.cuda.compiler import compile_module
from normgen.device import Device
from normgen.errors import NormgenError
from normgen.measure import timing
from normgen.measure.gpu import COPY, GpuBench
from normgen.measure.protocol import DeviceLostError, roof_name
from normgen.measure.replays import CONTEST_REPLAY_US
from normgen.pipeline import emit
from normgen.records import statistics
from normgen.schedule.schedule import Schedule, schedule_from
from normgen.suites.suite import Entry

if TYPE_CHECKING:
    from normgen.bench.peers.device import TorchSide

CHECKED_ELEMENTS = 1 << 21  # of the adversarial check; what is timed is checked on its own inputs besides
REASON_LENGTH = 400


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all entries of a run share. A peer that cannot be used is a sentence instead of a module."""

    facts: Device
    index: int
    peers: Mapping[str, Peer | str]
    options: Options
    samples: int
    seed: int


@dataclass(kw_only=True)
class _Draft:
    """What is known of a provider so far."""

    failed: str = ""
    error: dict[str, float] = field(default_factory=dict)
    prepare_s: float = 0.0


def measure_entry(entry: Entry, schedule: Schedule, note: str, setting: Setting) -> EntryResult:
    """Everything about one entry. Raises DeviceLostError when nothing can be measured any more."""
    start = time.perf_counter()
    bench = GpuBench(
        entry.problem,
        setting.facts,
        index=setting.index,
        cache=entry.cache,
        seed=setting.seed,
        checked_elements=CHECKED_ELEMENTS,
        replay_us=CONTEST_REPLAY_US,
    )
    side: TorchSide | None = None
    is_lost = False
    try:
        expected = Expected(entry.problem, bench.inputs, seed=setting.seed)
        drafts = {OURS: _ours(bench, entry, schedule, expected, setting)}
        usable = {name: peer for name, peer in setting.peers.items() if not isinstance(peer, str)}
        side, why_not = _torch_side(bench, setting) if usable else (None, "")
        for name, unusable in setting.peers.items():
            if side is not None and name in usable:
                drafts[name] = _peer(side, name, usable[name], expected, setting)
            else:
                drafts[name] = _Draft(failed=why_not if name in usable else str(unusable))
        timed = [name for name, draft in drafts.items() if not draft.failed]
        series = timing.race(bench, [*timed, *bench.roofs], samples=setting.samples, seed=setting.seed)
    except DeviceLostError:
        is_lost = True  # a context that is gone refuses even to free
        raise
    finally:
        if not is_lost:
            if side is not None:
                side.close()
            bench.close()
    return conclude(
        entry, drafts, series, bench.roofs, note=note, schedule=schedule.as_dict(), seconds=time.perf_counter() - start
    )


def _torch_side(bench: GpuBench, setting: Setting) -> tuple[TorchSide | None, str]:
    """torch's view of the bench, or why there is none: a torch without CUDA, a driver that is too old for it."""
    from normgen.bench.peers.device import TorchSide  # imports torch

    try:
        return TorchSide(bench, index=setting.index), ""
    except Exception as error:
        return None, f"torch cannot use the GPU: {reason_of(error)}"


def _ours(bench: GpuBench, entry: Entry, schedule: Schedule, expected: Expected, setting: Setting) -> _Draft:
    """Compile, check on adversarial rows and on the inputs that will be timed, capture."""
    draft, start = _Draft(), time.perf_counter()
    try:
        module = emit(entry.problem, schedule)
        bench.load(OURS, module, compile_module(module, setting.facts.arch, cache=CubinCache()))
        check = bench.check(OURS, full=False)
        draft.error, draft.failed = dict(check.error), "" if check.ok else f"wrong result: {check.summary}"
        bench.launch_once(OURS)
        draft.prepare_s = time.perf_counter() - start
        shares = {name: expected.share(name, _read_ours(bench, expected, name)) for name in expected.tensors}
        _settle(draft, shares)
        if not draft.failed:
            bench.warm_up(OURS)
    except DeviceLostError:
        raise
    except NormgenError as error:
        draft.failed = reason_of(error)
    return draft


def _read_ours(bench: GpuBench, expected: Expected, name: str) -> Any:
    use = expected.tensors[name].use
    chunks = expected.chunks if use.kind.by_row else expected.chunks[:1]
    return np.concatenate([bench.read(use, chunk) for chunk in chunks]).astype(np.float64)


def _peer(side: TorchSide, name: str, peer: Peer, expected: Expected, setting: Setting) -> _Draft:
    """Prepare, check, capture; whatever a library raises is its own affair, unless it took the device down."""
    from normgen.bench.peers.device import read_chunks  # imports torch

    draft = _Draft()
    try:
        results, draft.prepare_s = side.first(name, peer, setting.options)
        missing = expected.missing(results)
        if missing:
            raise NotOfferedError("does not return", received=", ".join(missing))
        shares = {}
        for tensor in expected.tensors.values():
            if tensor.use.name in results:
                got, roundoff = read_chunks(results[tensor.use.name], tensor.use, expected.chunks)
                shares[tensor.use.name] = expected.share(tensor.use.name, got, peer_roundoff=roundoff)
        del results
        _settle(draft, shares)
        if not draft.failed:
            side.add(name)
    except DeviceLostError:
        raise
    except Exception as error:
        draft.failed = reason_of(error)
    if draft.failed and not side.still_works():
        raise DeviceLostError(f"peer '{name}' ended the device's context", received=draft.failed)
    return draft


def _settle(draft: _Draft, shares: Mapping[str, float]) -> None:
    """Note the largest errors; one above its limit makes the result wrong."""
    for name, share in shares.items():
        draft.error[name] = max(share, draft.error.get(name, 0.0))
    wrong = [f"{name} is {share:.3g} times its limit off" for name, share in shares.items() if not share <= 1]
    if wrong and not draft.failed:
        draft.failed = f"wrong result: {', '.join(wrong)}"


def reason_of(error: BaseException) -> str:
    """One line: our own errors as they are, a library's with its class."""
    if isinstance(error, NormgenError):
        text = error.rule + (f": {error.received}" if error.received else "")
    else:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return text[:REASON_LENGTH]


def conclude(
    entry: Entry,
    drafts: Mapping[str, Any],
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


def _timed(name: str, draft: _Draft, series: Mapping[str, Sequence[float]], roof: str | None) -> Provider:
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
    return conclude(entry, {name: _Draft(failed=reason) for name in (OURS, *peers)}, {}, ())
