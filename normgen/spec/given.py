"""A spec as a Python caller has it: a name, a path, its text, the mapping that the text stands for, or a `Spec`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from normgen.errors import UsageError
from normgen.spec.reader import load, parse
from normgen.spec.spec import Spec

Given = str | Path | Mapping[str, Any] | Spec


def spec_of(given: Given, folders: Sequence[str | Path] = ()) -> Spec:
    """The checked spec. A text is what has more than one line; a mapping has the keys of a spec's file.

    Errors: SpecError with file and line, of a mapping in the text that it makes; UsageError for what is no spec.

    Raises UsageError for anything else, SpecError for a spec that is wrong.
    """
    if isinstance(given, Spec):
        return given
    if isinstance(given, Mapping):
        return parse(toml_text(given), file="<mapping>")
    if isinstance(given, str) and "\n" in given:
        return parse(given, file="<text>")
    if isinstance(given, str | Path):
        return load(given, folders)
    raise UsageError("an operation is a spec's name, path, text, mapping or Spec", received=type(given).__name__)


def toml_text(data: Mapping[str, Any]) -> str:
    """A mapping as TOML: plain values first, then a table for each mapping, whose own mappings stand inline."""
    plain = {key: value for key, value in data.items() if not isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    for key, table in data.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{_key(key)}]", *(f"{_key(name)} = {_value(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def _key(name: object) -> str:
    if not isinstance(name, str):
        raise UsageError("the keys of a spec are texts", received=repr(name))
    return name if name.replace("_", "").isascii() and name.replace("_", "").isalnum() else _text(name)


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {_value(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    raise UsageError("the values of a spec are texts, numbers, lists and mappings", received=repr(value))


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
