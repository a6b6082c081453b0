"""TOML with lines: on which one a key stands, which tomllib itself does not tell, and where a text is none.

Files come from anybody. Their size and nesting are checked on the text, before tomllib, which recurses into brackets
and takes quadratic time for keys of many parts.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normgen.errors import SpecError, UsageError
from normgen.files.names import plain_path

KeyPath = tuple[str, ...]
LARGEST_FILE = 1 << 20  # bytes; the largest file that ships has 5 kB
DEEPEST_TABLE = 16  # brackets within brackets, and parts of a dotted key

_BARE = r"[A-Za-z0-9_-]+"
_KEY = rf"""(?:{_BARE}|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"\s*\[\[?\s*({_DOTTED})\s*\]\]?")
_ENTRY = re.compile(rf"\s*({_DOTTED})\s*=\s*(.*)")
_INLINE = re.compile(rf"(?:^\{{|,)\s*({_DOTTED})\s*=")
_LONG_NUMBER = re.compile(r"[0-9_]{1000}")
# A string that never ends takes the rest: tomllib stops where it begins.
_LEXEME = re.compile(
    r"""(?s:"{3}(?:\\.|[^\\])*?(?:"{3,5}|\\?\Z)|'{3}.*?(?:'{3,5}|\Z))"""
    r"""|"(?:\\.|[^"\\\n])*"?|'[^'\n]*'?|\#[^\n]*|[\[\]{}.,=\n]"""
)
_STRINGS = re.compile(r'"(?:\\.|[^"\\])*"' + r"|'[^']*'")


def parse_toml(text: str, *, file: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises SpecError, with `file` and the line, where it is none.

    A text with brackets or keys deeper than DEEPEST_TABLE is none either.
    TOML's whole numbers have 64 bits. tomllib reads longer ones, up to some length, and ends in a ValueError beyond.
    """
    if line := _too_deep(text):
        rule = f"brackets and dotted keys nest at most {DEEPEST_TABLE} levels"
        raise SpecError(rule, file=file, line=line)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        line = int(at[1]) if at else text.count("\n") + 1
        raise SpecError(f"not valid TOML: {error}", file=file, line=line) from None
    except RecursionError:
        raise SpecError("brackets nest too deep", file=file) from None
    except ValueError:
        long = (number for number, line in enumerate(text.split("\n"), start=1) if _LONG_NUMBER.search(line))
        raise _too_long(file, next(long, 1)) from None
    for path in _long_numbers(data, ()):
        lines = key_lines(text)
        raise _too_long(file, next((lines[path[:n]] for n in range(len(path), 0, -1) if path[:n] in lines), 1))
    return data


def read_text(path: str | Path, *, what: str) -> str:
    """The text of a TOML file, `what` for error messages: a spec, a suite.

    Raises UsageError for a file that cannot be read, SpecError for one that is too large or no text.
    """
    file = plain_path(path)
    try:
        with file.open("rb") as stream:
            data = stream.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"cannot read the {what} file", received=f"{file}: {error.strerror}") from None
    if len(data) > LARGEST_FILE:
        raise SpecError(f"a {what} file has at most {LARGEST_FILE} bytes", file=str(file))
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise SpecError(
            f"a {what} is UTF-8 text", file=str(file), received=f"the byte 0x{data[error.start]:02x} at {error.start}"
        ) from None


def _too_deep(text: str) -> int | None:
    """The first line that opens more brackets, or has a key of more parts, than may be; None where all is well."""
    depth, parts = 0, 1
    for found in _LEXEME.finditer(text):
        mark = found[0]
        if mark == ".":
            parts += 1
        elif mark in "[]{},=\n":
            parts = 1
            depth = max(0, depth + (mark in "[{") - (mark in "]}"))
        if max(depth, parts) > DEEPEST_TABLE:
            return text.count("\n", 0, found.start()) + 1
    return None


def _too_long(file: str, line: int) -> SpecError:
    return SpecError("a whole number has at most 64 bits", file=file, line=line)


def _long_numbers(value: object, path: KeyPath) -> Iterator[KeyPath]:
    """Where whole numbers stand that 64 bits do not hold; an entry of an array stands where the array does."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _long_numbers(inner, (*path, key))
    elif isinstance(value, list):
        for inner in value:
            yield from _long_numbers(inner, path)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        yield path


def key_lines(text: str) -> dict[KeyPath, int]:
    """First line (from 1) of every table and key, by its full path; `text` is valid TOML."""
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, line in _outside_long_strings(text):
        if header := _HEADER.match(line):
            table = _parts(header[1])
            _note(lines, table, number)
        elif entry := _ENTRY.match(line):
            path = table + _parts(entry[1])
            _note(lines, path, number)
            if entry[2].startswith("{"):
                for inner in _INLINE.finditer(_STRINGS.sub(_blank_value, entry[2])):
                    _note(lines, path + _parts(inner[1]), number)
    return lines


def array_lines(text: str, name: str) -> list[dict[str, int]]:
    """For each `[[name]]` in order: its own line under "", and the first line of every key in it."""
    tables: list[dict[str, int]] = []
    is_inside = False
    for number, line in _outside_long_strings(text):
        if header := _HEADER.match(line):
            is_inside = line.lstrip().startswith("[[") and _parts(header[1]) == (name,)
            if is_inside:
                tables.append({"": number})
        elif is_inside and (entry := _ENTRY.match(line)):
            tables[-1].setdefault(_parts(entry[1])[0], number)
    return tables


def _note(lines: dict[KeyPath, int], path: KeyPath, number: int) -> None:
    for length in range(1, len(path) + 1):
        lines.setdefault(path[:length], number)


def _blank_value(string: re.Match[str]) -> str:
    """A string that is a value must not look like keys; one before `=` is a key itself."""
    is_key = string.string[string.end() :].lstrip().startswith("=")
    return string[0] if is_key else '""'


def _parts(dotted: str) -> KeyPath:
    return tuple(part.strip().strip("\"'") for part in re.findall(_KEY, dotted))


def _outside_long_strings(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines that do not start inside a multi-line string."""
    closing: str | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        if closing is None:
            yield number, line
        position = 0
        while position >= 0:
            if closing is None:
                found = re.compile(r'"""|' + "'''").search(line, position)
                closing, position = (found[0], found.end()) if found else (None, -1)
            else:
                end = line.find(closing, position)
                closing, position = (closing, -1) if end < 0 else (None, end + 3)
