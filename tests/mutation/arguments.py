"""Arguments why a mutant that survives is right: equivalent.toml, whose lines name mutants of a class."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from tests.mutation.mutants import Mutant

FILE = Path(__file__).parent / "equivalent.toml"


@dataclass(frozen=True, kw_only=True)
class Argument:
    """Mutants of these classes in these kernels, which are patterns as of file names.

    `line`, a regular expression, is looked for in the line that was changed and the one behind it, `changed` in what
    the line became.
    """

    classes: tuple[str, ...]
    kernels: tuple[str, ...] = ("*",)
    line: str = ""
    changed: str = ""
    because: str

    def covers(self, mutant: Mutant) -> bool:
        return (
            mutant.kind in self.classes
            and any(fnmatchcase(mutant.case, pattern) for pattern in self.kernels)
            and re.search(self.line, f"{mutant.before}\n{mutant.following}") is not None
            and re.search(self.changed, mutant.after) is not None
        )


def arguments(file: Path = FILE) -> tuple[Argument, ...]:
    listed = tomllib.loads(file.read_text(encoding="utf-8")).get("equivalent", [])
    return tuple(
        Argument(
            classes=tuple(entry["classes"]),
            kernels=tuple(entry.get("kernels", ("*",))),
            line=entry.get("line", ""),
            changed=entry.get("changed", ""),
            because=entry["because"],
        )
        for entry in listed
    )


def argument_for(mutant: Mutant, listed: Iterable[Argument]) -> Argument | None:
    return next((argument for argument in listed if argument.covers(mutant)), None)
