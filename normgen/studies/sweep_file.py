"""A sweep: what every measured point of a legal set took, in one small file of trials, compressed when it is complete.

The head has the problem, as in a record, the place, and what all times are held against in the same run. A twin is an
earlier point with the same machine code, whose figures the point shares. A later line for the same point replaces an
earlier one: the fastest are timed again at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from normgen.device import device_from
from normgen.errors import UsageError
from normgen.files.plain import BESIDE
from normgen.problem.question import Question
from normgen.records.place import Place
from normgen.records.validity import check_fields
from normgen.schedule.schedule import Schedule
from normgen.trials.file import peeked, read
from normgen.trials.head import Run
from normgen.trials.trial import SPELLED, Trial


@dataclass(frozen=True, kw_only=True)
class Sweep(Run):
    """A recorded sweep; every schedule once, in the order asked for.

    roof_us      what the best hand-written kernel that moves the problem's bytes costs, same run
    chain_us     what the chain takes without a kernel, same run; None alone
    noise_floor  the default schedule against itself: a relative difference below it is a tie
    legal        counts the whole legal set, of which the points may be a sample
    """

    TRIALS = "points"
    WRITER = "`normgen sweep`"

    problem: Mapping[str, Any] = field(hash=False)
    place: Place = field(metadata=BESIDE)
    roof_us: float | None
    chain_us: float | None = None
    noise_floor: float | None
    bytes: int
    legal: int
    default: Schedule = field(metadata=SPELLED)
    points: tuple[Trial, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        same = {name: getattr(self, name) for name in ("device", "versions", "roof_us", "bytes")}
        check_fields({**self.problem, **same, "search": {"noise_floor": self.noise_floor}})
        Question.of({"spec_sha256": "", **self.problem})
        device_from(self.device)
        if self.chain_us is not None and not self.chain_us > 0:
            raise ValueError(f"a chain takes some time: {self.chain_us}")

    def with_trials(self, trials: Iterable[Any], **facts: Any) -> Self:
        """Of the trials of one schedule, the last."""
        return super().with_trials({trial.key: trial for trial in trials}.values(), **facts)

    @property
    def key(self) -> str:
        """What tells a sweep from the others of a file of several: `key_of` its problem."""
        return key_of(self.problem)

    @property
    def question(self) -> dict[str, Any]:
        """What must be the same for a sweep to go on."""
        versions = {name: self.versions.get(name) for name in ("protocol", "default_text")}
        asked = {name: getattr(self, name) for name in ("problem", "place", "device", "legal")}
        return {name: self.plain(value) for name, value in {**asked, **versions}.items()}

    @property
    def optimum(self) -> Trial:
        """The fastest point. Raises UsageError when none has a time."""
        timed = [p for p in self.points if p.us is not None]
        if not timed:
            raise UsageError("a sweep to replay needs a point with a time", received=f"{len(self.points)} points")
        return min(timed, key=lambda p: p.us or 0.0)


def key_of(question: Mapping[str, Any]) -> str:
    """A problem, plain values as of a record, whatever its spec's text."""
    return " ".join(f"{name}={value}" for name, value in sorted(question.items()) if name != "spec_sha256")


def is_sweep(path: Path) -> bool:
    """Whether a file, plain or xz, begins with the head of a sweep."""
    return {"legal", "noise_floor"} <= peeked(path).keys()


def read_sweep(path: Path) -> Sweep:
    """The sweep of a complete or growing file. Raises UsageError with what is wrong with it."""
    return read(Sweep, path, is_strict=True)
