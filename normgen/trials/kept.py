"""Trials of any questions, of any runs: what every measured tune keeps, what is merged, shared, and learnt from.

<state folder>/runs/<run>/trials.jsonl   those of a run: a view of its candidates and its finalists, who have a price
<state folder>/trials.jsonl              those of all runs; it grows under its lock

Read, a trial says all there is to know of it; in a file the head says what all of them share, a line only its own.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol, Self

from normgen.device import device_from
from normgen.errors import NormgenError, UsageError
from normgen.files.decoded import unpacked
from normgen.files.plain import BESIDE, made, plain, rounded
from normgen.files.private import make_private, to_stderr, write_atomically
from normgen.problem.question import Question
from normgen.records import lines
from normgen.records.memory import is_unreached
from normgen.records.place import Place
from normgen.records.record import Outcome, Record
from normgen.records.validity import check_fields
from normgen.trials.file import line_of, of_text, text_of
from normgen.trials.head import Run, opening
from normgen.trials.trial import Trial, trial_of

NAME = "trials.jsonl"
SHARED = ("question", "place", "run", "device", "versions")


@dataclass(frozen=True, kw_only=True)
class Common:
    """What all trials of a file share, as of a `Trial`; device and versions stand in every head."""

    question: Mapping[str, Any] | None = field(default=None, hash=False)
    place: Place | None = None
    run: str = ""

    SPARSE = True


@dataclass(frozen=True, kw_only=True)
class Trials(Run):
    """Trials, each of which has all its facts."""

    WRITER = "`normgen tune` or `normgen trials merge`"

    common: Common = field(default=Common(), metadata=BESIDE)
    trials: tuple[Trial, ...] = field(default=(), repr=False)

    @classmethod
    def trial_of(cls, data: Any) -> Trial:
        """Raises ValueError."""
        if not isinstance(data, Mapping):
            raise ValueError("a trial is an object")
        own = {name: value for name, value in data.items() if name not in _CHECKED}
        facts = {name: _checked(name, json.dumps(data[name])) for name in _CHECKED if name in data}
        trial: Trial = replace(made(Trial, own), **facts)
        return trial

    def with_trials(self, trials: Iterable[Any], **facts: Any) -> Self:
        common = replace(self, **facts)._common
        return super().with_trials((_filled(trial, common) for trial in trials), **facts)

    def plain(self, value: Any) -> Any:
        """Of a trial only what the head does not say."""
        said = super().plain(value)
        return _without(said, self._said) if isinstance(value, Trial) else said

    @cached_property
    def _common(self) -> dict[str, Any]:
        found = {**vars(self.common), "device": self.device, "versions": self.versions}
        checked = {name: _checked(name, json.dumps(found[name])) for name in _CHECKED if found[name]}
        return {name: value for name, value in (found | checked).items() if value}

    @cached_property
    def _said(self) -> dict[str, Any]:
        return {name: super(Trials, self).plain(value) for name, value in self._common.items()}


def _filled(trial: Trial, common: Mapping[str, Any]) -> Trial:
    missing = {name: value for name, value in common.items() if not getattr(trial, name)}
    return replace(trial, **missing) if missing else trial


def _without(said: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if name not in shared or value != shared[name]}


@lru_cache(maxsize=4096)
def _checked(name: str, text: str) -> Any:
    """A value that many trials share, as one object. Raises ValueError for what is none of that name."""
    value = json.loads(text)
    try:
        _CHECKED[name](value)
    except NormgenError as error:
        raise ValueError(f"{name}: {error.rule}: {error.received}") from None
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"{name}: {error}") from None
    return value


def _check_question(value: Any) -> None:
    check_fields(value)
    Question.of({"spec_sha256": "", **value})


_CHECKED: dict[str, Callable[[Any], object]] = {
    "question": _check_question,
    "device": device_from,
    "versions": lambda value: check_fields({"versions": value}),
}


def of_records(records: Iterable[Record], run: str) -> Iterator[Trial]:
    """The trials of a run's records: not what it took over from another run, or had no time to try, or predicted."""
    for record in records:
        if record.outcome is Outcome.PREDICTED or record.search.get("reused") or is_unreached(record):
            continue
        yield trial_of(
            record,
            chosen=str(record.search.get("chosen", "")),
            question=record.problem.as_dict(),
            place=record.place,
            run=run,
            device=record.device,
            versions=record.versions,
        )


def joined(trials: Iterable[Trial]) -> Trials:
    """One file's trials: of those whose lines would be the same the first, in the order in which they come."""
    by_line: dict[str, Trial] = {}
    for trial in trials:
        by_line.setdefault(_whole_line(trial), trial)
    once = tuple(by_line.values())
    first = {name: getattr(once[0], name) for name in SHARED} if once else {}
    shared = {name: value for name, value in first.items() if all(getattr(t, name) == value for t in once)}
    facts = {name: shared.pop(name, None) or {} for name in ("device", "versions")}
    opened = Trials(**opening(None, {}, {}) | facts, common=Common(**shared), finished=True, note="")
    return opened.with_trials(once)


def append(path: Path, trials: Sequence[Trial]) -> None:
    """Add trials, each with all its facts, to a file that grows, under its lock. Raises OSError."""
    if trials:
        empty = Trials(**opening(None, {}, {}), finished=True, note="")
        make_private(path.parent)
        lines.append(path, "".join(map(_whole_line, trials)), first=line_of(empty.head(), empty))


def _whole_line(trial: Trial) -> str:
    """A trial with all its facts."""
    return json.dumps(rounded(plain(trial)), ensure_ascii=False, separators=(",", ":")) + "\n"


class Store(Protocol):
    """Where people share files of trials: a folder, a bucket, a server.

    put   keeps bytes under a name, and says whether they are new: what has a name is never written over
    get   everything that was put, with its name
    Both raise OSError. A name is made of the bytes' content, so that one who puts a file twice changes nothing.
    """

    def put(self, name: str, data: bytes) -> bool: ...

    def get(self) -> Iterator[tuple[str, bytes]]: ...


@dataclass(frozen=True)
class Folder:
    """A `Store` in a folder, which may be on a disk that several hosts have."""

    path: Path

    def put(self, name: str, data: bytes) -> bool:
        self.path.mkdir(parents=True, exist_ok=True)
        if is_new := not (self.path / name).exists():
            write_atomically(self.path / name, data)
        return is_new

    def get(self) -> Iterator[tuple[str, bytes]]:
        for path in sorted(self.path.glob("*.jsonl.xz")):
            yield path.name, path.read_bytes()


def push(store: Store, trials: Sequence[Trial]) -> bool:
    """Put trials into a store; whether it did not have them. Raises OSError."""
    found = joined(trials)
    content = "".join(sorted(map(_whole_line, found.trials)))
    name = f"{hashlib.sha256(content.encode()).hexdigest()[:32]}.jsonl.xz"
    return bool(found.trials) and store.put(name, lzma.compress(text_of(found).encode(), preset=9))


def pulled(store: Store) -> Iterator[Trial]:
    """Every trial of a store; stderr hears of files that are none."""
    for name, data in store.get():
        try:
            yield from of_text(Trials, unpacked(data), path=Path(name)).trials
        except (UsageError, ValueError) as error:
            to_stderr(f"left out: {name}: {error}")
