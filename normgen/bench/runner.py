"""A whole suite: which schedule each entry gets, the peers, the time limit, results as they come."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Unpack

from normgen.bench import entry as entries
from normgen.bench import peers as peer_modules
from normgen.bench.entry import Shared, failed_entry, measure_entry
from normgen.bench.peers import Options
from normgen.bench.result import EntryResult, Results
from normgen.bench.table import ratio_text
from normgen.choice.first import default_schedule
from normgen.device import Device
from normgen.errors import NormgenError, NothingValidError
from normgen.measure.isolation.process import Post
from normgen.measure.protocol import DeviceLostError
from normgen.records.winners import Lookup, adopt, kept_of, lookup, record_folders
from normgen.schedule.schedule import Schedule
from normgen.suites.suite import Entry, Suite
from normgen.text import figure
from normgen.trials.contest import Venue, venue_of
from normgen.trials.head import reason_of
from normgen.trials.run import How, run
from normgen.tuning.progress import Progress, Silent
from normgen.tuning.tuner import tune

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


def run_suite(
    suite: Suite,
    wish: Wish,
    *,
    device: int = 0,
    progress: Progress | None = None,
    before: Results | None = None,
    **how: Unpack[How],
) -> Results:
    """Measure every entry.

    before   results of an earlier run of the same wish: what has a time there is not measured again, and is kept
    Raises NoDeviceError without a GPU, UsageError for a wrong wish or for results of another one.
    """
    progress = progress or Silent()
    how.setdefault("limit_s", wish.limit_s)
    venue = venue_of(device, samples=wish.samples, seed=wish.seed)
    with Post(entries.BENCH, venue.index) as post, record_places(wish.records, venue.facts) as folders:
        chosen, versions = open_peers(wish.peers, progress, post)
        shared = Shared(
            venue=venue, post=post, peers=chosen, options=wish.options, note=progress.note, alone=wish.alone
        )
        opened = Results(**venue.head(versions, **asdict(wish)), suite=suite.name, summary=suite.summary)
        return run(
            opened.going_on(before),
            suite.entries,
            lambda entry: [_one(entry, shared, wish, folders, progress)],
            progress=progress,
            words=lambda found: progress_text(found[0]),
            **how,
        )


def _one(entry: Entry, shared: Shared, wish: Wish, folders: Sequence[Path], progress: Progress) -> EntryResult:
    try:
        schedule, note = schedule_for(entry, shared.venue, wish, folders, progress)
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
    entry: Entry, venue: Venue, wish: Wish, folders: Sequence[Path], progress: Progress
) -> tuple[Schedule, str]:
    """The best record's schedule, after tuning if that is wished for, else the default; and where it comes from."""
    found = lookup(entry.problem, venue.facts, place=entry.place, folders=folders)
    if wish.tune_budget_s is not None and not _is_exact(found, entry):
        try:
            return tuned(entry, venue, progress, budget_s=wish.tune_budget_s), ""
        except NothingValidError as error:
            progress.note(f"{entry.label}: {error.rule}")
    if found.record is None or found.schedule is None:
        return default_schedule(entry.problem, venue.facts), "default schedule"
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
    """`18.21 µs, 97.0 % of roofline; best peer liger 18.80 µs, 1.032 x [..]; no time of quack`"""
    ours = entry.ours
    text = f"{figure(ours.cost_us)} µs, {figure(entry.percent_of_roof(ours), 3)} % of roofline"
    text = text if ours.us is not None else ours.failed
    best, faster = entry.best_peer, entry.faster
    if best is not None:
        text += f"; best peer {best} {figure(entry.peers[best].cost_us)} µs"
        text += f", {ratio_text(faster)}" if faster else ""
    failed = [name for name, peer in entry.peers.items() if peer.failed]
    return text + (f"; no time of {', '.join(failed)}" if failed else "")


def tuned(entry: Entry, venue: Venue, progress: Progress, *, budget_s: float, trials: int | None = None) -> Schedule:
    """What a tune finds for an entry. Raises KeyboardInterrupt where Ctrl-C ended it."""
    limits: dict[str, Any] = {"device": venue.index, "budget_s": budget_s, "trials": trials, "seed": venue.seed}
    result = tune(**entry.arguments(), **limits, progress=progress)
    if result.interrupted:
        raise KeyboardInterrupt
    return result.record.schedule
