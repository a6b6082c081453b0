"""A whole suite: which schedule each entry gets, the peers, the time limit, results as they come."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from normgen.bench import entry as entries
from normgen.bench import peers as peer_modules
from normgen.bench.entry import Shared, failed_entry, measure_entry
from normgen.bench.peers import Options
from normgen.bench.result import EntryResult, Results, opening, reason_of
from normgen.bench.table import ratio_text
from normgen.cuda.driver import find_gpu
from normgen.device import Device
from normgen.errors import NormgenError, NothingValidError, UsageError
from normgen.measure.isolation.process import Post
from normgen.measure.protocol import DeviceLostError
from normgen.records.winners import Lookup, adopt, kept_of, lookup, record_folders
from normgen.schedule.default import default_schedule
from normgen.schedule.schedule import Schedule
from normgen.suites.suite import Entry, Suite
from normgen.text import figure
from normgen.tuning.progress import Progress, Silent
from normgen.tuning.tuner import environment, tune

INTERRUPTED, DEVICE_LOST, TIME_LIMIT = "interrupted", "device lost", "time limit reached"
IMPORT_S = 300.0  # a peer may take this long to import, the start of its process included


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a run is asked for.

    peers          by name; None: every installed one
    tune_budget_s  tune an entry that has no exact, measured record, this long; None: never
    records        files whose records are looked at besides the user's and the shipped ones
    limit_s        begin no entry later than this
    alone          every contender is also timed behind itself
    """

    peers: tuple[str, ...] | None = None
    options: Options = field(default_factory=Options)
    tune_budget_s: float | None = None
    records: tuple[Path, ...] = ()
    samples: int = 40
    seed: int = 0
    limit_s: float | None = None
    alone: bool = False

    def as_dict(self) -> dict[str, Any]:
        plain = {**asdict(self), "records": [str(path) for path in self.records]}
        return plain | {"peers": list(self.peers) if self.peers is not None else None}


def run_suite(
    suite: Suite,
    wish: Wish,
    *,
    device: int = 0,
    progress: Progress | None = None,
    before: Results | None = None,
    on_results: Callable[[Results], None] = lambda _: None,
) -> Results:
    """Measure every entry; `on_results` gets all results so far after each one.

    before   results of an earlier run of the same wish: what has a time there is not measured again, and is kept
    An interrupt, a time limit or a lost device ends the run with what there is: `finished` and `note` say so.
    Raises NoDeviceError without a GPU, UsageError for a wrong wish or for results of another one.
    """
    progress = progress or Silent()
    if wish.samples < 6:
        raise UsageError("an interval of a median needs at least 6 samples", received=str(wish.samples))
    found = find_gpu(device)
    assert found is not None, "a GPU that is asked for by number is found or an error"
    index, facts = found
    with Post(entries.BENCH, index) as post, record_places(wish.records, facts) as folders:
        chosen, versions = open_peers(wish.peers, progress, post)
        shared = Shared(
            facts=facts,
            post=post,
            peers=chosen,
            options=wish.options,
            samples=wish.samples,
            seed=wish.seed,
            note=progress.note,
            alone=wish.alone,
        )
        state = _State(suite, wish, facts, {**environment(measured=True), **versions}, on_results)
        if before is not None:
            state.go_on(before)
        try:
            for number, entry in enumerate(suite.entries, start=1):
                if state.has(entry):
                    continue
                if wish.limit_s is not None and state.elapsed_s > wish.limit_s:
                    return state.results(note=TIME_LIMIT)
                progress.phase(f"[{number}/{len(suite.entries)}] {entry.label}")
                result = _one(entry, shared, wish, folders, progress)
                state.add(result)
                progress.note(f"[{number}/{len(suite.entries)}] {progress_text(result)}")
        except KeyboardInterrupt:
            return state.results(note=INTERRUPTED)
        except DeviceLostError as error:
            progress.note(str(error))
            return state.results(note=f"{DEVICE_LOST}: {error.rule}")
    return state.results(finished=True)


class _State:
    """The results so far."""

    def __init__(
        self,
        suite: Suite,
        wish: Wish,
        facts: Device,
        versions: Mapping[str, str],
        on_results: Callable[[Results], None],
    ) -> None:
        self._fixed = opening(facts, versions, wish.as_dict()) | {"suite": suite.name, "summary": suite.summary}
        self._entries: list[EntryResult] = []
        self._start = time.monotonic()
        self._before_s = 0.0
        self._on_results = on_results

    @property
    def elapsed_s(self) -> float:
        """Of this run alone: what its time limit is about."""
        return time.monotonic() - self._start

    def go_on(self, before: Results) -> None:
        """Keep what an earlier run timed. Raises UsageError when it is not of the same wish."""
        now, then = question(self.results()), question(before)
        other = [f"{name} {then[name]}, now {now[name]}" for name in now if now[name] != then[name]]
        if other:
            rule = "results to go on with are of the same suite, device, versions and options"
            raise UsageError(rule, received="; ".join(other), hint="write to another file, or leave --resume out")
        self._entries = [e for e in before.entries if e.ours.us is not None]
        self._before_s, self._fixed["started"] = before.seconds, before.started

    def has(self, entry: Entry) -> bool:
        names = {t.name for t in entry.problem.tensors}
        return any(done.label == entry.label and set(done.dtypes) == names for done in self._entries)

    def add(self, entry: EntryResult) -> None:
        self._entries.append(entry)
        self._on_results(self.results(note="still running"))

    def results(self, *, finished: bool = False, note: str = "") -> Results:
        seconds = self._before_s + self.elapsed_s
        return Results(**self._fixed, seconds=seconds, finished=finished, note=note, entries=tuple(self._entries))


def question(results: Results) -> dict[str, Any]:
    """What must be the same for a run to go on with another's results."""
    found = results.as_dict()
    options = {name: value for name, value in found["options"].items() if name != "limit_s"}
    return {"suite": found["suite"], "device": found["device"], "versions": found["versions"], "options": options}


def _one(entry: Entry, shared: Shared, wish: Wish, folders: Sequence[Path], progress: Progress) -> EntryResult:
    try:
        schedule, note = schedule_for(entry, shared.facts, shared.post.index, wish, folders, progress)
        return measure_entry(entry, schedule, note, shared)
    except DeviceLostError:
        raise
    except NormgenError as error:  # too little memory for the buffers, for one
        return failed_entry(entry, reason_of(error), tuple(shared.peers))


def open_peers(names: tuple[str, ...] | None, progress: Progress, post: Post) -> tuple[dict[str, str], dict[str, str]]:
    """Why each peer cannot be used, empty where it can; and the versions to name. None: the installed ones.

    They are imported where they will run, in the post's worker: an import may take its process down.
    """
    asked = peer_modules.NAMES if names is None else peer_modules.check_names(names)
    chosen: dict[str, str] = {}
    versions: dict[str, str] = {}
    for name in asked:
        missing = peer_modules.missing_packages(name)
        if missing and names is None:
            progress.note(f"peer {name}: not installed ({', '.join(missing)})")
            continue
        try:
            peer_modules.require_packages(name)
            versions |= post.ask("versions", name, limit_s=IMPORT_S)
            chosen[name] = ""
        except NormgenError as error:
            chosen[name] = reason_of(error)
            progress.note(f"peer {name}: {chosen[name]}")
    return chosen, versions


def schedule_for(
    entry: Entry, facts: Device, index: int, wish: Wish, folders: Sequence[Path], progress: Progress
) -> tuple[Schedule, str]:
    """The best record's schedule, after tuning if that is wished for, else the default; and where it comes from."""
    found = lookup(entry.problem, facts, place=entry.place, folders=folders)
    if wish.tune_budget_s is not None and not _is_exact(found, entry):
        try:
            result = tune(
                **entry.arguments(), device=index, budget_s=wish.tune_budget_s, seed=wish.seed, progress=progress
            )
        except NothingValidError as error:
            progress.note(f"{entry.label}: {error.rule}")
        else:
            if result.interrupted:
                raise KeyboardInterrupt
            return result.record.schedule, ""
    if found.record is None or found.schedule is None:
        return default_schedule(entry.problem, facts), "default schedule"
    if not found.exact:
        return found.schedule, found.reason
    other = "" if found.record.place == entry.place else f"tuned {found.record.place}"
    return found.schedule, other if found.record.measured else "predicted schedule"


def _is_exact(found: Lookup, entry: Entry) -> bool:
    record = found.record
    return record is not None and found.exact and record.measured and record.place == entry.place


@contextmanager
def record_places(files: Sequence[Path], facts: Device) -> Iterator[tuple[Path, ...]]:
    """The folders to look records up in, the given files' first. Raises UsageError as `kept_of`."""
    with tempfile.TemporaryDirectory(prefix="normgen-bench-") as temporary:
        for file in files:
            for record in kept_of(file):
                if record.device.get("name") == facts.name:
                    adopt(record, Path(temporary), facts)
        yield (*((Path(temporary),) if files else ()), *record_folders())


def progress_text(entry: EntryResult) -> str:
    """`rmsnorm fwd 4096x4096 bf16 fresh: 18.21 µs, 97.0 % of roofline; best peer liger 18.80 µs, 1.032 x [..] (6 s)`"""
    ours = entry.ours
    text = f"{entry.label}: "
    if ours.us is not None:
        text += f"{figure(ours.cost_us)} µs, {figure(entry.percent_of_roof(ours), 3)} % of roofline"
    else:
        text += ours.failed
    best, faster = entry.best_peer, entry.faster
    if best is not None:
        text += f"; best peer {best} {figure(entry.peers[best].cost_us)} µs"
        text += f", {ratio_text(faster)}" if faster else ""
    failed = [name for name, peer in entry.peers.items() if peer.failed]
    text += f"; no time of {', '.join(failed)}" if failed else ""
    return f"{text} ({entry.seconds:.1f} s)"
