"""Suites: TOML files of problems to time, read as strictly as specs.

name = "forward_h200"
summary = "..."

[defaults]                      # what an entry does not say; without it f32, fresh, between, forward
setting = "fresh"               # or cold, hot
context = "between"             # or chain, matmul, alone

[[entry]]                       # one problem, or one for each shape of a list
op = "rmsnorm"
shape = ["4096x4096", "16384x8192"]
dtype = "bf16"
dtypes = { weight = "f32" }     # where others differ
without = ["rstd"]              # optional tensors that are absent
gradients = ["x", "weight"]     # backward: of these alone
pitch = 4128                    # elements from row start to row start
align = 2                       # bytes that divide base pointers
stable_parameters = true        # a promise: one of `problem.question.PROMISES`
in_place = { y = "x" }          # outputs that take the place of an input
layout = { scale = "packed" }   # how scales of groups lie: row_major, column_major, packed, swizzled
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from normgen.errors import NormgenError, SpecError, UsageError, did_you_mean
from normgen.files.names import is_plain
from normgen.problem.problem import Problem
from normgen.problem.question import ASKED, PROMISES, Direction
from normgen.program.source import problem_for
from normgen.records.place import Context, Place, Setting, place_named
from normgen.spec.reader import builtin_folder, load
from normgen.spec.toml_lines import array_lines, key_lines, parse_toml, read_text

_TOP_KEYS = ("name", "summary", "defaults", "entry")
_DEFAULT_KEYS = ("dtype", "setting", "context", "direction", "without", *PROMISES, "in_place", "layout")
_ENTRY_KEYS = (*_DEFAULT_KEYS, "op", "shape", "inner", "pitch", "align", "dtypes", "gradients")
_CHOICES: dict[str, tuple[str, ...]] = {
    "setting": tuple(Setting),
    "context": tuple(Context),
    "direction": tuple(Direction),
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One problem of a suite and where it is timed."""

    op: str
    shape: str
    problem: Problem
    place: Place
    dtypes: tuple[tuple[str, str], ...] = ()  # as the suite says them
    line: int = 0

    def arguments(self) -> dict[str, Any]:
        """What `tune` is asked for the entry, as plain values."""
        return {"op": self.op, **self.problem.arguments(), **self.place.as_dict()}

    @property
    def key(self) -> str:
        """What tells the entry from every other one of its suite."""
        return f"{self.label} {sorted(t.name for t in self.problem.tensors)}"

    @property
    def label(self) -> str:
        """`rmsnorm fwd 4096x4096 bf16 fresh`, with whatever is unusual behind it: what --only is matched against."""
        problem = self.problem
        words = [problem.spec.name, problem.direction.short, self.shape, problem.dtype.name, str(self.place)]
        odd = {
            t.name: t.dtype.name for t in problem.tensors if t.dtype != problem.dtype and not _is_statistic(problem, t)
        }
        words += [f"{name}={dtype}" for name, dtype in odd.items()]
        words += [f"pitch={problem.pitch}"] if problem.pitch != problem.cols * problem.col_stride else []
        words += [f"align={problem.align}"] if problem.align != 16 else []
        words += [f"gradients={','.join(problem.gradients)}"] if problem.gradients else []
        words += problem.promises
        words += [f"{written}_over_{read}" for written, read in problem.in_place]
        words += [f"{name}_{layout}" for name, layout in problem.layout]
        return " ".join(words)


def _is_statistic(problem: Problem, tensor: Any) -> bool:
    return tensor.name in {t.name for t in problem.spec.statistics}


@dataclass(frozen=True, kw_only=True)
class Suite:
    name: str
    summary: str
    entries: tuple[Entry, ...]
    file: str = ""

    def only(self, pattern: str) -> Suite:
        """The entries whose label contains the pattern (`*` and `?` as in file names).

        Raises UsageError when there is none.
        """
        chosen = tuple(e for e in self.entries if _matches(e, pattern))
        if not chosen:
            hint = f"for example '{self.entries[0].label}'"
            raise UsageError(f"no entry of suite '{self.name}' matches the pattern", received=pattern, hint=hint)
        return replace(self, entries=chosen)

    def skip(self, pattern: str) -> Suite:
        """The entries whose label does not contain the pattern. Raises UsageError when that leaves none."""
        chosen = tuple(e for e in self.entries if not _matches(e, pattern))
        if not chosen:
            raise UsageError(f"every entry of suite '{self.name}' matches the pattern to skip", received=pattern)
        return replace(self, entries=chosen)

    def part(self, which: slice) -> Suite:
        """Some of the entries, by their places. Raises UsageError when that leaves none."""
        if not self.entries[which]:
            raise UsageError(f"suite '{self.name}' has fewer entries than parts", received=str(len(self.entries)))
        return replace(self, entries=self.entries[which])

    def at(self, *, setting: str | None = None, context: str | None = None) -> Suite:
        """The same entries in another setting or context. Raises UsageError for an unknown one."""

        def moved(place: Place) -> Place:
            return place_named(setting or place.setting, context or place.context)

        return replace(self, entries=tuple(replace(e, place=moved(e.place)) for e in self.entries))


def _matches(entry: Entry, pattern: str) -> bool:
    return fnmatch.fnmatchcase(entry.label, f"*{pattern}*")


def list_suites() -> dict[str, Path]:
    """Name -> file of the suites that come with normgen."""
    return {file.stem: file for file in sorted((builtin_folder() / "suites").glob("*.toml"))}


def load_suite(path_or_name: str | Path) -> Suite:
    """The checked suite of a TOML file, or the built-in one of that name.

    Errors: SpecError with file and line; UsageError when there is no such file or name.

    Raises UsageError for an unknown name.
    """
    known = list_suites()
    is_path = isinstance(path_or_name, Path) or path_or_name.endswith(".toml") or "/" in path_or_name
    file = Path(path_or_name) if is_path else known.get(str(path_or_name))
    if file is None:
        raise UsageError("unknown suite", received=str(path_or_name), hint=did_you_mean(str(path_or_name), known))
    return parse_suite(read_text(file, what="suite"), file=str(file))


def parse_suite(text: str, *, file: str = "<suite>") -> Suite:
    """The checked suite of a TOML text; `file` is what error messages call it."""
    text = text.replace("\r\n", "\n")
    return _Reader(parse_toml(text, file=file), text, file).read()


class _Reader:
    def __init__(self, data: dict[str, Any], text: str, file: str) -> None:
        self.data, self.file = data, file
        self.lines = key_lines(text)
        self.entry_lines = array_lines(text, "entry")

    def read(self) -> Suite:
        self.known_keys(self.data, _TOP_KEYS, lambda key: self.lines.get((key,), 1))
        for key in ("name", "summary"):
            if not (isinstance(text := self.data.get(key, ""), str) and is_plain(text, besides="\n\t")):
                raise self.error(
                    f"'{key}' is a text without control characters", self.lines[(key,)], received=ascii(text)
                )
        if not self.data.get("name"):
            raise self.error("a suite has a name", 1, hint='the first line reads: name = "..."')
        defaults = self.data.get("defaults", {})
        if not isinstance(defaults, dict):
            raise self.error("[defaults] is a table", self.lines[("defaults",)], received=repr(defaults))
        self.known_keys(defaults, _DEFAULT_KEYS, lambda key: self.lines.get(("defaults", key), 1))
        tables = self.data.get("entry", [])
        if not isinstance(tables, list) or not tables or len(tables) != len(self.entry_lines):
            raise self.error("a suite has at least one [[entry]]", self.lines.get(("entry",), 1))
        entries = [
            entry
            for table, at in zip(tables, self.entry_lines, strict=True)
            for entry in self.entries(table, defaults, at)
        ]
        self.check_distinct(entries)
        return Suite(
            name=self.data["name"], summary=self.data.get("summary", ""), entries=tuple(entries), file=self.file
        )

    def error(self, rule: str, line: int, *, received: str | None = None, hint: str | None = None) -> SpecError:
        return SpecError(rule, file=self.file, line=line, received=received, hint=hint)

    def known_keys(self, table: Mapping[str, Any], known: tuple[str, ...], line_of: Any) -> None:
        for key in table:
            if key not in known:
                raise self.error(f"unknown key '{key}'", line_of(key), hint=did_you_mean(key, known))

    def check_distinct(self, entries: list[Entry]) -> None:
        seen: dict[str, Entry] = {}
        for entry in entries:
            first = seen.setdefault(entry.key, entry)
            if first is not entry:
                raise self.error(
                    "every entry is another problem", entry.line, received=f"{entry.label}, as on line {first.line}"
                )

    def entries(self, table: dict[str, Any], defaults: dict[str, Any], at: dict[str, int]) -> list[Entry]:
        """One entry for each of the table's shapes."""

        def line_of(key: str) -> int:
            return at.get(key, at[""])

        self.known_keys(table, _ENTRY_KEYS, line_of)
        fields = {**defaults, **table}
        self.check_types(fields, line_of)
        shapes = fields["shape"] if isinstance(fields["shape"], list) else [fields["shape"]]
        return [self.entry(fields, shape, line_of) for shape in shapes]

    def check_types(self, fields: Mapping[str, Any], line_of: Any) -> None:
        for key in ("op", "shape"):
            if key not in fields:
                raise self.error(f"an entry has '{key}'", line_of(""))
        for key, value in fields.items():
            wanted, is_right = _form(key, value)
            if not is_right:
                raise self.error(f"'{key}' is {wanted}", line_of(key), received=repr(value))
            choices = _CHOICES.get(key)
            if choices and value not in choices:
                raise self.error(f"unknown {key}", line_of(key), received=value, hint=did_you_mean(value, choices))

    def entry(self, fields: Mapping[str, Any], shape: str, line_of: Any) -> Entry:
        try:
            asked: Any = {name: value for name, value in fields.items() if name in ASKED}
            problem = problem_for(load(fields["op"]), shape=shape, **asked)
        except NormgenError as error:
            raise self.error(error.rule, line_of(""), received=error.received, hint=error.hint) from None
        if problem.rows == 0:
            raise self.error("a shape without rows has nothing to time", line_of("shape"), received=shape)
        place = place_named(fields.get("setting", Setting.FRESH), fields.get("context", Context.BETWEEN))
        dtypes = tuple(fields.get("dtypes", {}).items())
        return Entry(op=fields["op"], shape=shape, problem=problem, place=place, dtypes=dtypes, line=line_of(""))


def _form(key: str, value: Any) -> tuple[str, bool]:
    """What a key's value looks like, and whether this one does."""
    kind = ASKED[key].kind if key in ASKED else str
    if kind is int:
        return "a whole number", isinstance(value, int) and not isinstance(value, bool)
    if kind is bool:
        return "true or false", isinstance(value, bool)
    if kind is tuple:
        return "a list of names", isinstance(value, list) and all(isinstance(v, str) for v in value)
    if kind is dict:
        return 'a table of texts, as { weight = "f32" }', isinstance(value, dict) and all(
            isinstance(v, str) for v in value.values()
        )
    if key == "shape":
        listed = value if isinstance(value, list) else [value]
        return 'a shape or a list of them, "8x1024x768"', bool(listed) and all(isinstance(v, str) for v in listed)
    return "a text", isinstance(value, str)
