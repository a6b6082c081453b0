"""Files of records: append-only run files, one-line-per-problem files of winners, and the lookup in them.

<state folder>/runs/<run>/candidates.jsonl   every candidate of a run, as it happened
<state folder>/records/<gpu>.jsonl           this user's winners
generated/records/<gpu>.jsonl                the winners that ship
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from normgen.device import TARGETS, Device
from normgen.errors import UsageError, needed
from normgen.files.names import Part, name_part
from normgen.files.private import write_atomically
from normgen.files.shipped import shipped
from normgen.problem.problem import Problem
from normgen.records.lines import Damaged, keep_aside, locked
from normgen.records.lines import read as read_lines
from normgen.records.nearest import Neighbour, nearest, searched_today
from normgen.records.record import Cache, ProblemKey, Record, is_better, parse_line
from normgen.schedule.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a file of records holds."""

    records: tuple[Record, ...]
    damaged: tuple[Damaged, ...]


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """The best record for a problem, if there is one, and how it was found or why not.

    schedule   the record's, fitted to the problem where the record is a neighbour's
    """

    record: Record | None
    schedule: Schedule | None
    exact: bool
    reason: str


def state_folder() -> Path:
    """NORMGEN_STATE_DIR, else the user's state folder (XDG_STATE_HOME on Linux)."""
    given = os.environ.get("NORMGEN_STATE_DIR")
    if given:
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_state_dir("normgen"))


def needs_state() -> AbstractContextManager[None]:
    """The boundary of what cannot begin without a state folder: an OSError inside becomes a FileError."""
    return needed("the state folder must be writable", hint="set NORMGEN_STATE_DIR to a folder that is")


def shipped_folder() -> Path:
    """The records that come with normgen."""
    return shipped("generated") / "records"


def record_folders() -> tuple[Path, ...]:
    """Where winners are looked up: the user's own first, then what ships."""
    return (state_folder() / "records", shipped_folder())


def gpu_slug(device: Device) -> str:
    """The file name of a GPU model: `h200`; a GPU outside the table by its own name, `nvidia-rtx-a6000`."""
    for name, known in TARGETS.items():
        if known.name == device.name:
            return name
    return name_part(Part.GPU, device.name)


def read(path: Path) -> Reading:
    """Every record of a file; lines that are none come back as `damaged`. A missing file is empty."""
    lines = read_lines(path, parse_line)
    return Reading(records=lines.found, damaged=lines.damaged)


def read_whole(path: Path) -> tuple[Record, ...]:
    """Every record of a file that somebody named: a damaged line raises UsageError instead of being set aside."""
    reading = read(path)
    if reading.damaged:
        raise UsageError("every line of a record file must be a record", received=str(reading.damaged[0]))
    return reading.records


def adopt(
    record: Record,
    folder: Path,
    device: Device,
    *,
    force: bool = False,
    text_now: Callable[[Schedule], str] | None = None,
) -> bool:
    """Put a winner into `folder/<gpu>.jsonl`, one line per problem and cache policy, lines sorted.

    Replaces an older line only when the new one is better (`is_better`, `text_now` as there) or with `force`; says
    whether it did.
    Damaged lines of the old file move to `<gpu>.jsonl.damaged`.
    """
    path = folder / f"{gpu_slug(device)}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(path):
        reading = read(path)
        slots = {_slot(r): r for r in reading.records}
        old = slots.get(_slot(record))
        if not (force or is_better(record, old, text_now=text_now)):
            return False
        slots[_slot(record)] = record
        keep_aside(path, reading.damaged)
        write_atomically(path, "".join(slots[slot].line() for slot in sorted(slots)))
    return True


def lookup(
    problem: Problem, device: Device, *, cache: Cache = Cache.COLD, folders: Sequence[Path] | None = None
) -> Lookup:
    """The best record for a problem on a GPU model.

    First the exact problem, then the nearest one in rows and cols whose schedule is worth taking (`tuning.nearest`).
    Measured records come before predicted ones, the asked cache policy before the other. A problem that promises
    stable parameters takes records without the promise when there are none with it. A record of another text of the
    spec is a miss, with that reason.
    """
    key = ProblemKey.of(problem)
    found = list(_records(device, record_folders() if folders is None else folders))
    exact = _of_problem(key, found) or _of_problem(replace(key, stable_parameters=False), found)

    def order(record: Record) -> tuple[bool, bool, float]:
        return not record.measured, record.cache is not cache, record.us or float("inf")

    if exact:
        best = min(exact, key=order)
        schedule = searched_today(best.schedule, problem)
        reason = "tuned for this problem" + ("" if schedule == best.schedule else ", with two passes for its variance")
        return Lookup(record=best, schedule=schedule, exact=True, reason=reason)
    near = nearest(problem, device, found, cache=cache)
    if near is not None:
        return Lookup(record=near.record, schedule=near.schedule, exact=False, reason=_why_near(near, key))
    return Lookup(record=None, schedule=None, exact=False, reason=_why_missing(key, found, device))


def _of_problem(key: ProblemKey, records: Iterable[Record]) -> list[Record]:
    return [r for r in records if r.serves(key) and r.outcome.is_usable]


def _slot(record: Record) -> tuple[object, ...]:
    return (*record.problem.slot(), record.cache.value)


def _why_near(near: Neighbour, key: ProblemKey) -> str:
    """`tuned for 4096x4096, the nearest to 5000x4000`, and whether the schedule had to be fitted."""
    tuned = near.record.problem
    fitted = "" if near.schedule == near.record.schedule else ", fitted"
    return f"tuned for {tuned.rows}x{tuned.cols}, the nearest to {key.rows}x{key.cols}{fitted}"


def _records(device: Device, folders: Iterable[Path]) -> Iterator[Record]:
    for folder in folders:
        yield from read(folder / f"{gpu_slug(device)}.jsonl").records


def _why_missing(key: ProblemKey, found: Sequence[Record], device: Device) -> str:
    same_op = [r.problem for r in found if (r.problem.op, r.problem.direction) == (key.op, key.direction)]
    if not same_op:
        return f"no record of {key.op} {key.direction} for {device.name}"
    same_text = [k for k in same_op if k.spec_sha256 == key.spec_sha256]
    if not same_text:
        return f"the records of {key.op} are of another text of its spec ({same_op[0].spec_sha256[:12]})"
    near = f"near enough to {key.rows}x{key.cols}, legal there and expected to beat the default schedule"
    return f"no record of {key.op} of these dtypes is {near}"
