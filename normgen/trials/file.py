"""A file of trials: its run's head as one line of JSON, then a line a trial.

While a run lasts, lines are appended, so that a run that is killed leaves at most the last one torn; when it ends, the
file is replaced by one whose head says how. A name that ends with `.xz` is compressed then, and grows as NAME.part.
Read is also what `--json` prints, one object with head and trials.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from normgen.errors import UsageError
from normgen.files.decoded import parse_json, unpacked
from normgen.files.plain import made, names_of
from normgen.files.private import write_output
from normgen.records import lines
from normgen.trials.head import Run

R = TypeVar("R", bound=Run)


def read(kind: type[R], path: Path, *, is_strict: bool = False, keeps: bool = False) -> R:
    """The run of a file, growing or whole. Damaged trials are left out and told; of a strict reader they are errors.

    keeps   damaged lines are written into NAME.damaged, for who writes the file anew
    Raises UsageError with what is wrong with it.
    """
    try:
        data = unpacked(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _refusal(kind, path, error) from None
    return of_text(kind, data, path=path, is_strict=is_strict, keeps=keeps)


def of_text(
    kind: type[R], data: bytes, *, path: Path = Path("results"), is_strict: bool = False, keeps: bool = False
) -> R:
    """As `read`, of a file's bytes."""
    try:
        head, rest = _beheaded(data)
        if not isinstance(head, dict) or head.get("schema") not in kind.READ:
            said = head.get("schema") if isinstance(head, dict) else head
            raise ValueError(f"schema {said!r}, this version reads {', '.join(map(str, kind.READ))}")
        damaged: Sequence[lines.Damaged] = ()
        if kind.TRIALS in head:
            found = tuple(kind.trial_of(one) for one in head[kind.TRIALS])
        else:
            found, damaged = _trials(kind, rest, path, is_strict=is_strict)
        own = {name: value for name, value in head.items() if name in names_of(kind)}
        run = made(kind, {**own, kind.TRIALS: []}).with_trials(found)
    except (ValueError, TypeError) as error:
        raise _refusal(kind, path, error) from None
    lines.told(damaged)
    if keeps:
        lines.keep_aside(path, damaged)
    return run


def _trials(
    kind: type[Run], data: bytes, path: Path, *, is_strict: bool
) -> tuple[tuple[Any, ...], Sequence[lines.Damaged]]:
    told = lines.parsed(data, lambda text: kind.trial_of(parse_json(text)), path=path)
    torn = 0 if data.endswith(b"\n") else 1
    if is_strict and len(told.damaged) > torn:
        raise ValueError(f"line {told.damaged[0].line + 1}: {told.damaged[0].why}")
    return told.found, told.damaged


def _refusal(kind: type[Run], path: Path, error: Exception) -> UsageError:
    return UsageError(f"a results file is what {kind.WRITER} wrote", received=f"{path}: {error}")


def resumed(kind: type[R], path: Path | None, *, is_strict: bool = False) -> R | None:
    """What a file holds that a run may go on with: of the growing one, else of the whole one; None without a head.

    The run will write the file anew: its damaged lines are kept in NAME.damaged.
    """
    for file in dict.fromkeys((growing_of(path), path)) if path is not None else ():
        if file.is_file() and file.stat().st_size and (file == path or b"\n" in file.read_bytes()):
            return read(kind, file, is_strict=is_strict, keeps=True)
    return None


def peeked(path: Path) -> dict[str, Any]:
    """The head of a file of trials, with what an object has besides; nothing of a file that has none."""
    try:
        head, _ = _beheaded(unpacked(path.read_bytes()))
    except (OSError, ValueError):  # whoever reads it as something else says what is wrong
        return {}
    return head if isinstance(head, dict) else {}


def _beheaded(data: bytes) -> tuple[Any, bytes]:
    """The first line and what is behind it; of one object over several lines the whole of it."""
    first, _, rest = data.partition(b"\n")
    try:
        return parse_json(first), rest
    except ValueError:
        return parse_json(data), b""


class Book:
    """What writes a run's file as the run goes on; without a path it writes nothing. Raises OSError.

    A pipe, a terminal and /dev/null, to which nothing can be added durably, get the whole run when it ends.
    """

    def __init__(self, path: Path | None, run: Run) -> None:
        self._path, self._run = path, run
        self._growing = growing_of(path) if path is not None and (path.is_file() or not path.exists()) else None
        if self._growing is not None:
            write_output(self._growing, text_of(run))

    def add(self, trials: Iterable[Any]) -> None:
        """Append trials; they are on disk when this returns."""
        if self._growing is not None and (text := "".join(map(self._line, trials))):
            lines.append(self._growing, text)

    def _line(self, trial: Any) -> str:
        return line_of(self._run.plain(trial), self._run)

    def close(self, run: R) -> R:
        """Replace the file by the whole run."""
        if self._path is not None:
            write(self._path, run)
        if self._growing is not None and self._growing != self._path:
            self._growing.unlink()
        return run


def write(path: Path, run: Run) -> None:
    """The whole file at once. Raises OSError."""
    text = text_of(run).encode()
    write_output(path, lzma.compress(text, preset=9 | lzma.PRESET_EXTREME) if path.suffix == ".xz" else text)


def growing_of(path: Path) -> Path:
    """The file that grows in the place of one that will be packed."""
    return path.with_name(path.name + ".part") if path.suffix == ".xz" else path


def line_of(value: Any, run: Run) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=run.EXACT, separators=(",", ":")) + "\n"


def text_of(run: Run) -> str:
    return "".join(line_of(value, run) for value in (run.head(), *map(run.plain, run.trials)))
