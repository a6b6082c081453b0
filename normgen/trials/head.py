"""What every run of trials is: when, where, of which versions, how it ended; and the plain values of it.

A harness derives its own kind of `Run`, whose `TRIALS` names the field that holds what it found.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

from normgen.device import Device
from normgen.errors import DriverError, NormgenError, UsageError
from normgen.files.plain import fields_of, hints_of, made, plain, rounded

INTERRUPTED, DEVICE_LOST, TIME_LIMIT, RUNNING = "interrupted", "device lost", "time limit reached", "still running"
EXIT_INTERRUPTED = 130
REASON_LENGTH = 400


@dataclass(frozen=True, kw_only=True)
class Run:
    """The head of every run.

    device, versions  facts of the GPU; ours, the compiler's, the driver's and every peer's versions
    options           what was asked for
    started, seconds  UTC; wall time of the run, and of those that it went on with
    finished, note    false after an interrupt, a time limit or a lost device, and which
    """

    device: Mapping[str, Any] = field(hash=False)
    versions: Mapping[str, str] = field(hash=False)
    options: Mapping[str, Any] = field(hash=False)
    started: str
    seconds: float = 0.0
    finished: bool = False
    note: str = RUNNING

    SCHEMA: ClassVar[int] = 3
    READ: ClassVar[tuple[int, ...]] = (3,)
    TRIALS: ClassVar[str] = "trials"  # the field that holds them
    WRITER: ClassVar[str] = "a run"  # which command writes such a file
    EXACT: ClassVar[bool] = False  # floats are kept as they are, NaN among them

    @property
    def trials(self) -> tuple[Any, ...]:
        found: tuple[Any, ...] = getattr(self, self.TRIALS)
        return found

    def with_trials(self, trials: Iterable[Any], **facts: Any) -> Self:
        """The run with other trials, and with other facts."""
        return replace(self, **{**facts, self.TRIALS: tuple(trials)})

    def is_good(self, trial: Any) -> bool:  # noqa: ARG002
        """Whether a run that goes on keeps the trial."""
        return True

    def figures(self) -> dict[str, float | None]:
        """What sums the run up, by name."""
        return {}

    @property
    def exit_code(self) -> int:
        """Of an early end: 130 interrupted, 6 device lost; a time limit is none."""
        if self.note == INTERRUPTED:
            return EXIT_INTERRUPTED
        return DriverError.exit_code if self.note.startswith(DEVICE_LOST) else 0

    def head(self) -> dict[str, Any]:
        """Plain values of all but the trials: names, what every run has, what this kind has besides."""
        said, every = self.plain(fields_of(self.with_trials(()))), [f.name for f in fields(Run)]
        own = {name: value for name, value in said.items() if name not in (*every, self.TRIALS)}
        names = {name: value for name, value in own.items() if isinstance(value, str)}
        return {"schema": self.SCHEMA, **names, **{name: said[name] for name in every}, **own}

    def as_dict(self) -> dict[str, Any]:
        """The run as one object of plain values: its head, what sums it up, its trials."""
        figures = rounded(self.figures())
        return {**self.head(), **figures, self.TRIALS: [self.plain(trial) for trial in self.trials]}

    def plain(self, value: Any) -> Any:
        """A trial, or anything else of the run, as its file has it."""
        return plain(value) if self.EXACT else rounded(plain(value))

    @classmethod
    def trial_of(cls, data: Any) -> Any:
        """A trial of its plain values. Raises ValueError."""
        return made(typing.get_args(hints_of(cls)[cls.TRIALS])[0], data)

    @property
    def question(self) -> dict[str, Any]:
        """What must be the same for a run to go on with another's trials."""
        head = self.head()
        options = {name: value for name, value in head["options"].items() if name != "limit_s"}
        passing = {"schema", "summary", "started", "seconds", "finished", "note"}
        return {name: value for name, value in head.items() if name not in passing} | {"options": options}

    def going_on(self, before: Self | None) -> Self:
        """An earlier run of the same question, with its good trials, to go on with; without one this run.

        Raises UsageError for a run of something else.
        """
        if before is None:
            return self
        now, then = self.question, before.question
        other = [f"{name} {then.get(name)}, now {now[name]}" for name in now if now[name] != then.get(name)]
        if other:
            rule = "results to go on with are of the same question, device, versions and options"
            hint = "write to another file, or leave out what asks to go on"
            raise UsageError(rule, received="; ".join(other), hint=hint)
        return before.with_trials(filter(self.is_good, before.trials))


def opening(device: Device | None, versions: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Run` that are known when it begins, which is now."""
    return {
        "device": plain(device) if device else {},
        "versions": dict(sorted(versions.items())),
        "options": plain(options),
        "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def reason_of(error: BaseException) -> str:
    """Why something failed, in one line: our own errors as they are, a library's with its class."""
    if isinstance(error, NormgenError):
        return one_line(str(error))
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:REASON_LENGTH]


def one_line(text: str) -> str:
    """The rule and what was received of the text of an error of ours."""
    return text.partition("\n  hint: ")[0].replace("\n  received: ", ": ")[:REASON_LENGTH]
