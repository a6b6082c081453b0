"""Files of records: append-only run files, one-line-per-problem files of winners, and the lookup in them.

<state folder>/runs/<run>/candidates.jsonl   every candidate of a run, as it happened
<state folder>/records/<gpu>.jsonl           this user's winners
generated/records/<gpu>.jsonl                the winners that ship
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from normgen.device import TARGETS, Device
from normgen.errors import UsageError, needed
from normgen.files.names import NamePart, name_part
from normgen.files.private import write_atomically
from normgen.files.shipped import shipped
from normgen.pipeline import answered
from normgen.problem.problem import Problem
from normgen.problem.question import Direction, Question
from normgen.program.source import kernel_problem
from normgen.records.lines import Damaged, keep_aside, locked, parsed, told
from normgen.records.lines import read as read_lines
from normgen.records.nearest import Neighbour, is_of, is_of_kin, nearest, place_rank, searched_today
from normgen.records.place import DEFAULT_PLACE, Context, Place
from normgen.records.questions import problem_of, why_other
from normgen.records.record import Record, is_better, parse_line
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.given import Given
from normgen.spec.reader import is_built_in
from normgen.spec.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a file of records holds."""

    records: tuple[Record, ...]
    damaged: tuple[Damaged, ...]


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """The best record for a problem, if there is one, and how it was found or why not.

    exact      it is of this problem, or its kernel, and of this GPU model
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


def spec_path(given: Given, spec: Spec) -> str:
    """How a command line names a spec: as it was given, else by a file in the state folder that has its text."""
    if isinstance(given, Path) or (isinstance(given, str) and "\n" not in given):
        return str(given)
    if is_built_in(spec):
        return spec.name
    folder = state_folder() / "specs"
    path = folder / f"{name_part(NamePart.OP, spec.name)}_{spec.sha256[:12]}.toml"
    with needs_state():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, spec.text)
    return str(path)


def needs_state() -> AbstractContextManager[None]:
    """The boundary of what cannot begin without a state folder: an OSError inside becomes a FileError."""
    return needed("the state folder must be writable", hint="set NORMGEN_STATE_DIR to a folder that is")


def ways_to_records() -> str:
    """The hint where an export has none: those of a run, and those that come with normgen."""
    return f"give files of records: a run's winner.jsonl, or what comes with normgen, {shipped_folder()}/*.jsonl"


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
    return name_part(NamePart.GPU, device.name)


def read(path: Path) -> Reading:
    """Every record of a file; lines that are none come back as `damaged`. A missing file is empty."""
    lines = read_lines(path, _record_of)
    return Reading(records=lines.found, damaged=lines.damaged)


@lru_cache(maxsize=1024)
def _record_of(line: str) -> Record:
    """As `parse_line`: each lookup reads the files anew, most of whose lines this process has seen."""
    return parse_line(line)


def kept(path: Path) -> tuple[Record, ...]:
    """Every record of a file; stderr hears of damaged lines, once."""
    reading = read(path)
    told(reading.damaged)
    return reading.records


def kept_of(path: Path, *, lines: bytes | None = None) -> tuple[Record, ...]:
    """As `kept`, of a file that somebody named: raises UsageError where damaged lines are all that it has.

    lines   the records one a line, where the file has them in another form
    """
    found = read_lines(path, parse_line) if lines is None else parsed(lines, parse_line, path=path)
    if found.damaged and not found.found:
        hint = "a run's winner.jsonl or candidates.jsonl is a file of records"
        raise UsageError("a file of records has at least one", received=str(found.damaged[0]), hint=hint)
    told(found.damaged)
    return found.found


def adopt(
    record: Record,
    folder: Path,
    device: Device,
    *,
    force: bool = False,
    text_now: Callable[[Schedule], str] | None = None,
) -> bool:
    """Put a winner into `folder/<gpu>.jsonl`, one line per problem and place, lines sorted.

    Winners of specs that do not come with normgen are told apart by their specs' digests. Replaces an older line only
    when the new one is better (`is_better`, `text_now` as there) or with `force`; says whether it did. A winner of the
    default place also takes the place of lines that were timed alone. Damaged lines of the old file move to
    `<gpu>.jsonl.damaged`.
    """
    path = folder / f"{gpu_slug(device)}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(path):
        reading = read(path)
        records = adopted(reading.records, record, force=force, text_now=text_now)
        if records is None:
            return False
        told(reading.damaged)
        keep_aside(path, reading.damaged)
        write_atomically(path, "".join(r.line() for r in records))
    return True


def adopted(
    known: Iterable[Record],
    record: Record,
    *,
    force: bool = False,
    text_now: Callable[[Schedule], str] | None = None,
) -> list[Record] | None:
    """What `adopt` makes of the records of a file; None where the new one is not taken."""
    slots = {_slot(r): r for r in known}
    old = slots.get(_slot(record))
    if not (force or is_better(record, old, text_now=text_now)):
        return None
    if record.place == DEFAULT_PLACE and record.measured:
        own = _slot(record)[:-1]
        slots = {slot: r for slot, r in slots.items() if not (r.is_alone and slot[:-1] == own)}
    slots[_slot(record)] = record
    return [slots[slot] for slot in sorted(slots)]


def exchange(folder: Path, pairs: Iterable[tuple[Record, Record | None]]) -> None:
    """Put other records in the place of some in the files of a folder; None: the line goes. Raises OSError.

    All other lines stay as they are, to the byte.
    """
    changed = {old: new for old, new in pairs if old is not new}

    def replaced(line: bytes) -> bytes:
        with contextlib.suppress(ValueError):
            if (old := _record_of(line.decode())) in changed:
                new = changed[old]
                return new.line().encode() if new is not None else b""
        return line

    for path in sorted(folder.glob("*.jsonl")) if changed else ():
        with locked(path):
            lines = path.read_bytes().splitlines(keepends=True)
            found = [replaced(line) for line in lines]
            if found != lines:
                write_atomically(path, b"".join(found))


def lookup(
    problem: Problem,
    device: Device,
    *,
    place: Place = DEFAULT_PLACE,
    folders: Sequence[Path] | None = None,
    records: Iterable[Record] | None = None,
) -> Lookup:
    """The best record for a problem on a GPU model: among `records`, else those in folders, else those there are.

    First the exact problem; then the same one with other statistics, where one kernel serves both (`kernel_problem`);
    then either on another GPU of this architecture: an H200's records take on an H100 what tunes there found (36
    problems: 1.000 x, geometric mean; the default 1.010 x), so that no cost model is asked. Then the nearest one in
    rows and cols whose schedule is worth taking (`records.nearest`).
    Measured records come before predicted ones, those of the asked place before those of the default one, and these
    before what was timed alone; records of other places serve only who names their place. Of several that are left the
    last is taken: a tune begins with what was known, so that its winner has beaten that where it ran, and times of
    other days and machines do not compare. A record whose figures are another question's is none of this one
    (`why_other`). A problem that promises stable parameters takes records without the promise
    when there are none with it. A record of another text of the spec is a miss, with that reason.
    """
    key = problem.question
    known = records_of(device, folders) if records is None else records
    found = [r for r in known if place_rank(r.place, place) is not None]
    own = _of_it(problem, key, (r for r in found if is_of(r, device)), place)
    kin = _of_it(problem, key, (r for r in found if r.measured and is_of_kin(r, device)), place)
    best = itertools.chain(own, kin)
    fit = (r for r in best if refusal(problem, searched_today(r.schedule, problem), device) is None)
    same = next((r for r in fit if why_other(r, problem) is None), None)
    if same is not None:
        schedule = searched_today(same.schedule, problem)
        reason = _why_same(same, schedule, key, device, place)
        return Lookup(record=same, schedule=schedule, exact=is_of(same, device), reason=reason)
    near = nearest(problem, device, found, place=place)
    if near is not None:
        return Lookup(
            record=near.record, schedule=near.schedule, exact=False, reason=_why_near(near, key, device, place)
        )
    return Lookup(record=None, schedule=None, exact=False, reason=_why_missing(problem, found, device))


def _of_it(problem: Problem, key: Question, records: Iterable[Record], place: Place) -> Iterator[Record]:
    """Records of this problem, or of one whose kernel is that of this one; the best first."""
    known = list(records)
    keys = (key, replace(key, stable_parameters=False))
    found = next(filter(None, (_of_problem(k, known) or _of_same_kernel(problem, k, known) for k in keys)), [])
    found.sort(key=lambda r: r.created, reverse=True)
    yield from sorted(found, key=lambda r: (not r.measured, place_rank(r.place, place) or 0))


def _of_same_kernel(problem: Problem, key: Question, records: Iterable[Record]) -> list[Record]:
    """Records of this problem with more or fewer statistics, whose kernel is that of this one."""
    if problem.direction is not Direction.FORWARD:
        return []
    kernel = kernel_problem(problem).question
    alike = [r for r in records if r.is_usable and r.serves(replace(key, dtypes=r.problem.dtypes))]
    answers = [(r, answered(problem_of(r.problem, problem.spec), r.schedule)) for r in alike]
    served = ((r, replace(its, batch_invariant=problem.batch_invariant)) for r, its in answers)
    return [r for r, its in served if its.question == kernel]


def _other_statistics(asked: Question, tuned: Question) -> str:
    more, fewer = tuned.present - asked.present, asked.present - tuned.present
    said = {"with": sorted(more), "without": sorted(fewer)}
    return "".join(f", {word} {' and '.join(names)}" for word, names in said.items() if names)


def _why_same(same: Record, schedule: Schedule, key: Question, device: Device, place: Place) -> str:
    """`tuned for this problem`; on which GPU, with which statistics and where."""
    reason = f"tuned for this problem{_on(same, device)}{_other_statistics(key, same.problem)}{_where(same, place)}"
    return reason + ("" if schedule == same.schedule else ", with two passes for its variance")


def _of_problem(key: Question, records: Iterable[Record]) -> list[Record]:
    return [r for r in records if r.serves(key) and r.is_usable]


def _slot(record: Record) -> tuple[object, ...]:
    """One line each: of a problem at a place. Of a name there is one built-in spec, and any number of others."""
    digest = record.problem.spec_sha256 if record.spec else ""
    return (*record.problem.slot(), digest, str(record.place))


def _where(record: Record, asked: Place) -> str:
    """`, alone`: the place of a record that is not the one asked for."""
    if record.place == asked or not record.measured:
        return ""
    return f", {record.place}" + (" (no record is in place yet)" if record.place.context is Context.ALONE else "")


def _why_near(near: Neighbour, key: Question, device: Device, place: Place) -> str:
    """`tuned for 4096x4096, the nearest to 5000x4000`; on which GPU, and whether the schedule had to be fitted."""
    tuned = near.record.problem
    fitted = "" if near.schedule == near.record.schedule else ", fitted"
    where = _on(near.record, device) + fitted + _where(near.record, place)
    return f"tuned for {tuned.rows}x{tuned.cols}, the nearest to {key.rows}x{key.cols}{where}"


def _on(record: Record, device: Device) -> str:
    """` on NVIDIA H200`: the GPU of a record that was not made on this one."""
    return "" if is_of(record, device) else f" on {record.device['name']}"


def records_of(device: Device, folders: Iterable[Path] | None = None) -> Iterator[Record]:
    """The winners on a GPU model in folders, by default those that are looked up; then those on its kin.

    Its kin are the other GPUs of its architecture.
    """
    places = tuple(record_folders() if folders is None else folders)
    own = f"{gpu_slug(device)}.jsonl"
    for folder in places:
        yield from kept(folder / own)
    for folder in places:
        others = (path for path in sorted(folder.glob("*.jsonl")) if path.name != own)
        yield from (r for path in others for r in kept(path) if is_of_kin(r, device))


def _why_missing(problem: Problem, found: Sequence[Record], device: Device) -> str:
    key = problem.question
    for own in (r for r in found if r.serves(key) and is_of(r, device)):
        why = refusal(problem, own.schedule, device) or (own.excess and f"errors are of their bound: {own.excess}")
        return f"the record of this problem is of no use: {why or why_other(own, problem) or own.outcome}"
    same_op = [r.problem for r in found if (r.problem.op, r.problem.direction) == (key.op, key.direction)]
    if not same_op:
        return f"no record of {key.op} {key.direction} for {device.name}"
    same_text = [k for k in same_op if k.spec_sha256 == key.spec_sha256]
    if not same_text:
        return f"the records of {key.op} are of another text of its spec ({same_op[0].spec_sha256[:12]})"
    near = f"near enough to {key.rows}x{key.cols}, legal there and expected to beat the default schedule"
    return f"no record of {key.op} of these dtypes is {near}"
