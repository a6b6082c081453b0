"""Optimisation ladders as data: `specs/ladders/*.toml` has the kernels of a source, rung by rung, as knobs on plain.

A ladder has `name`, `summary`, `[source]`, `[problem]` and `[[rung]]`s. A rung is one kernel, several (`kernels`), or
none that the language has (`missing`, with the reason). Its `blocks` are the source's launches with the source's times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normgen.errors import SpecError, UsageError, did_you_mean
from normgen.files.plain import names_of
from normgen.spec.reader import builtin_folder
from normgen.spec.toml_lines import array_lines, key_lines, parse_toml, read_text

_LADDER = ("name", "summary", "source", "problem", "rung")


@dataclass(frozen=True, kw_only=True)
class LadderSource:
    """Where a ladder comes from; `gpu` is what its times were measured on."""

    title: str
    url: str = ""
    follows: str = ""
    gpu: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Block:
    """One launch of a rung: knobs beside the rung's own, and what the source measured."""

    block: str
    knobs: str = ""
    ms: float | None = None
    gb_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class RungKernel:
    """One kernel of a rung of several; `is_fixed`: a block's knobs do not change it."""

    op: str
    knobs: str = ""
    is_fixed: bool = False


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One rung.

    knobs    `name=value ...` on plain
    problem  what differs from the ladder's
    kernels  where one kernel is not all
    shows    texts that stand in the emitted kernels
    unsafe   why it may be wrong on some rows: it runs by name, and the search leaves it out
    missing  why the language has no such kernel
    """

    name: str
    title: str
    idea: str
    knobs: str = ""
    look: str = ""
    shows: tuple[str, ...] = ()
    problem: Mapping[str, Any] = field(default_factory=dict)
    kernels: tuple[RungKernel, ...] = ()
    blocks: tuple[Block, ...] = ()
    unsafe: str = ""
    missing: str = ""

    @property
    def best(self) -> Block | None:
        """The launch that the source measured as the fastest; without times the first one."""
        return min(self.blocks, key=lambda b: b.ms if b.ms is not None else float("inf"), default=None)


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """All rungs of one source."""

    name: str
    summary: str
    source: LadderSource
    problem: Mapping[str, Any]
    rungs: tuple[Rung, ...]

    def rung(self, name: str) -> Rung:
        """The rung of that name. Raises UsageError for another."""
        found = next((r for r in self.rungs if r.name == name), None)
        if found is None:
            known = [r.name for r in self.rungs]
            raise UsageError(f"the ladder {self.name} has no such rung", received=name, hint=did_you_mean(name, known))
        return found


def ladders_folder() -> Path:
    return builtin_folder() / "ladders"


def steps_folder() -> Path:
    """Specs of the single kernels of rungs that take several."""
    return ladders_folder() / "steps"


def list_ladders() -> dict[str, Path]:
    """Name -> file of the ladders that come with normgen, sorted."""
    return {file.stem: file for file in sorted(ladders_folder().glob("*.toml"))}


def load_ladder(path_or_name: str) -> Ladder:
    """The ladder of a TOML file, or the built-in one of that name. Raises SpecError with file and line."""
    known = list_ladders()
    file = Path(path_or_name) if path_or_name.endswith(".toml") else known.get(path_or_name)
    if file is None:
        raise UsageError("unknown ladder", received=path_or_name, hint=did_you_mean(path_or_name, known))
    return parse_ladder(read_text(file, what="ladder"), file=str(file))


def parse_ladder(text: str, *, file: str) -> Ladder:
    """The ladder of a text; `file` is what error messages call it."""
    data, lines = parse_toml(text, file=file), key_lines(text)
    rung_lines = array_lines(text, "rung")

    def taken(table: Any, known: Iterable[str], needed: Iterable[str], line: int) -> dict[str, Any]:
        if not isinstance(table, dict):
            raise SpecError("a ladder is made of tables", file=file, line=line, received=repr(table))
        for key in table:
            if key not in known:
                raise SpecError(f"unknown key '{key}'", file=file, line=line, hint=did_you_mean(key, known))
        for key in needed:
            if not table.get(key):
                raise SpecError(f"'{key}' is needed here", file=file, line=line)
        return table

    def line(*path: str) -> int:
        return lines.get(path, 1)

    taken(data, _LADDER, ("name", "source", "problem", "rung"), 1)
    source = LadderSource(**taken(data["source"], names_of(LadderSource), ("title",), line("source")))
    problem = taken(data["problem"], data["problem"], ("op", "shape"), line("problem"))
    rungs = []
    for number, given in enumerate(data["rung"]):
        at = rung_lines[number][""]
        own = dict(taken(given, names_of(Rung), ("name", "title", "idea"), at))
        if bool(own.get("blocks")) == bool(own.get("missing")):
            raise SpecError("a rung has blocks, or says why it is missing", file=file, line=at, received=own["name"])
        own["idea"] = " ".join(own["idea"].split())
        own["shows"] = tuple(own.get("shows", ()))
        own["kernels"] = tuple(
            RungKernel(**taken(k, names_of(RungKernel), ("op",), at)) for k in own.get("kernels", ())
        )
        own["blocks"] = tuple(Block(**taken(b, names_of(Block), ("block",), at)) for b in own.get("blocks", ()))
        rungs.append(Rung(**own))
    return Ladder(
        name=data["name"], summary=data.get("summary", ""), source=source, problem=problem, rungs=tuple(rungs)
    )
