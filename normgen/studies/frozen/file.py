"""The file of frozen problems: the sweep of each in a line, of one model of card, cut in three by a hash.

fit      what rules, features and rankers are fitted to
choose   what is chosen between them by
test     what nobody looks at until the end; each look is written down beside the file, in looks.txt
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from normgen.errors import UsageError, did_you_mean
from normgen.files.plain import made
from normgen.files.shipped import shipped
from normgen.records.lines import append
from normgen.studies.sweep_file import Sweep, is_sweep, read_sweep
from normgen.trials.file import read
from normgen.trials.head import Run

SALT = "row kernels 20261127"
TEST = "test"
PARTS = ("fit", "choose", TEST)
SEEN = PARTS[:2]
FILE = shipped("generated") / "frozen" / "h200.jsonl.xz"
MORE = FILE.with_name("fit_h200.jsonl.xz")  # problems that were timed where a ranker chose: fit alone
TRIALS = FILE.parents[1] / "trials" / "h100_h200.jsonl.xz"
LOOKS = "looks.txt"


def part_of(question: Mapping[str, Any], salt: str = SALT) -> str:
    """The part of a question, plain values as in a sweep or a record: by its op, direction and shape.

    Its dtypes do not count: one shape in two dtypes would tell the third that nobody looks at from another. Without a
    salt, of a file that is not cut, it is fit.
    """
    if not salt:
        return "fit"
    facts = "{op} {direction} {rows}x{cols}".format(**question)
    digest = hashlib.sha256(f"{salt} {facts}".encode()).digest()
    return PARTS[int.from_bytes(digest) % len(PARTS)]


@dataclass(frozen=True, kw_only=True)
class Frozen(Run):
    """Sweeps of different problems on one model of card, in one place; of two of one problem the last."""

    TRIALS = "sweeps"
    WRITER = "`normgen study frozen`"

    salt: str = SALT
    sweeps: tuple[Sweep, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        grounds = {(str(s.device["name"]), s.place) for s in self.sweeps}
        if len(grounds) > 1 or any(name != self.device["name"] for name, _ in grounds):
            said = ", ".join(sorted(f"{name} {place}" for name, place in grounds))
            raise ValueError(f"all of {self.device['name']}, in one place, not {said}")

    def with_trials(self, trials: Iterable[Any], **facts: Any) -> Self:
        return super().with_trials({sweep.key: sweep for sweep in trials}.values(), **facts)

    @classmethod
    def trial_of(cls, data: Any) -> Sweep:
        """A line is what `normgen sweep` writes as one object. Raises ValueError."""
        return made(Sweep, {name: value for name, value in dict(data).items() if name != "schema"})


def read_frozen(path: Path = FILE, parts: Sequence[str] = SEEN, *, why: str = "") -> tuple[Sweep, ...]:
    """The sweeps of these parts.

    why   who looks at the third, and what for: a line of looks.txt beside the file
    Raises UsageError for a file or a part that is none, and for a look without a reason.
    """
    for part in parts:
        if part not in PARTS:
            raise UsageError("unknown part of the frozen problems", received=part, hint=did_you_mean(part, PARTS))
    why = " ".join(why.split())
    if TEST in parts and not why:
        raise UsageError("the part 'test' is for the end: say who looks at it and what for", received=f"why={why!r}")
    whole = read(Frozen, path, is_strict=True)
    if TEST in parts:
        append(path.with_name(LOOKS), f"{datetime.now(UTC):%Y-%m-%d} {why}\n")
    return tuple(sweep for sweep in whole.sweeps if part_of(sweep.problem, whole.salt) in parts)


def gathered(sources: Iterable[Path]) -> Frozen:
    """One run of all sweeps in files, of a sweep or of frozen problems, and in folders of such files.

    Of two sweeps of one problem the later stays. Raises UsageError for a sweep that is not whole or whose points do not
    say how they were chosen, for none at all, and for two models of card.
    """
    files = [f for source in sources for f in (sorted(source.glob("*.jsonl*")) if source.is_dir() else [source])]
    sweeps = [sweep for file in files for sweep in _whole(file)]
    if not sweeps:
        raise UsageError("frozen problems are gathered from sweeps", received=", ".join(map(str, files)) or "no file")
    versions = dict.fromkeys(name for sweep in sweeps for name in sweep.versions if name != "default_text")
    try:
        return Frozen(
            device=sweeps[0].device,
            versions={n: ", ".join(sorted({s.versions[n] for s in sweeps if n in s.versions})) for n in versions},
            options={},
            started=min(sweep.started for sweep in sweeps),
            seconds=sum(sweep.seconds for sweep in sweeps),
            finished=True,
            note="",
        ).with_trials(sorted(sweeps, key=lambda sweep: sweep.options.get("seed", 0)))
    except ValueError as error:
        raise UsageError("frozen problems are of one kind of card", received=str(error)) from None


def _whole(file: Path) -> tuple[Sweep, ...]:
    sweeps = (read_sweep(file),) if is_sweep(file) else read(Frozen, file, is_strict=True).sweeps
    for sweep in sweeps:
        unsaid = sum(not point.chosen for point in sweep.points)
        if not sweep.finished or unsaid or sweep.chain_us is None:
            what = f"{sweep.note or 'complete'}, {unsaid} points that do not say how they were chosen"
            raise UsageError("frozen problems are whole samples of timed chains", received=f"{file}: {what}")
    return sweeps
