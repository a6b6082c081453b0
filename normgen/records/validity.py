"""Whether a JSON value is a record, by `schema.json`: the one place that judges what stands in a file of records.

Of JSON Schema it knows the words that the schema uses. What no record can hold anywhere is refused first: numbers
that are not finite or do not fit 64 bits, texts that no file can hold, and deep nesting.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

DEEPEST = 12  # the policy of a search stands at depth 4
_LARGEST = 2**63 - 1
_SHOWN = 60  # characters of a value in a message

_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "object": ("an object", lambda value: isinstance(value, Mapping)),
    "array": ("a list", lambda value: isinstance(value, list | tuple)),
    "string": ("a text", lambda value: isinstance(value, str)),
    "integer": ("a whole number", lambda value: type(value) is int),
    "number": ("a number", lambda value: type(value) in (int, float)),
    "boolean": ("true or false", lambda value: isinstance(value, bool)),
    "null": ("null", lambda value: value is None),
}


def check_record(data: object) -> None:
    """Raises ValueError, which names the field, for a JSON value that is no record."""
    _check_plain(data, "the line", 0)
    _check(data, _schema(), "")


def check_fields(data: Mapping[str, Any]) -> None:
    """As `check_record`, of values that stand in another file under names of a record's fields."""
    _check_plain(data, "the line", 0)
    for name, value in data.items():
        _check(value, _schema()["properties"][name], name)


@functools.cache
def _schema() -> Mapping[str, Any]:
    text = Path(__file__).with_name("schema.json").read_text(encoding="utf-8")
    schema: Mapping[str, Any] = json.loads(text)
    return schema


def _check_plain(value: object, where: str, depth: int) -> None:
    if depth > DEEPEST:
        raise ValueError(f"nested deeper than {DEEPEST}")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{where} is no text: {_shown(value)}") from None
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is not finite: {value}")
    elif type(value) is int and abs(value) > _LARGEST:
        raise ValueError(f"{where} does not fit 64 bits")
    elif isinstance(value, Mapping):
        for name, part in value.items():
            _check_plain(name, f"a key of {where}", depth)
            _check_plain(part, name, depth + 1)
    elif isinstance(value, list | tuple):
        for part in value:
            _check_plain(part, where, depth + 1)


def _check(value: Any, rule: Mapping[str, Any], where: str) -> None:
    """One rule of the schema, and those inside it."""
    if complaint := _complaint(value, rule):
        raise ValueError(f"{where or 'the line'} must be {complaint}: {_shown(value)}")
    if isinstance(value, Mapping):
        _check_object(value, rule, where)
    elif isinstance(value, list | tuple):
        for part in value:
            _check(part, rule.get("items", {}), where)


def _check_object(value: Mapping[str, Any], rule: Mapping[str, Any], where: str) -> None:
    known, others = rule.get("properties", {}), rule.get("additionalProperties", True)
    unknown = sorted(set(value) - set(known)) if others is False else []
    missing = sorted(set(rule.get("required", ())) - set(value))
    said = [f"{what} keys: {names}" for what, names in (("unknown", unknown), ("missing", missing)) if names]
    if said:
        raise ValueError(f"{where or 'the line'} has {', '.join(said)}")
    for name, part in value.items():
        inner = known.get(name, others)
        _check(part, inner if isinstance(inner, Mapping) else {}, f"{where}.{name}" if where else name)


def _complaint(value: Any, rule: Mapping[str, Any]) -> str:
    """What a value would have to be instead; empty where it is that."""
    named = rule.get("type", ())
    kinds = [_KINDS[kind] for kind in ((named,) if isinstance(named, str) else named)]
    if kinds and not any(fits(value) for _, fits in kinds):
        return " or ".join(word for word, _ in kinds)
    allowed = rule.get("enum", [rule["const"]] if "const" in rule else None)
    if allowed is not None and not any(value == one and _is_alike(value, one) for one in allowed):
        return "one of " + ", ".join(map(str, allowed))
    if type(value) in (int, float):
        if "minimum" in rule and value < rule["minimum"]:
            return f"at least {rule['minimum']}"
        if "exclusiveMinimum" in rule and value <= rule["exclusiveMinimum"]:
            return f"above {rule['exclusiveMinimum']}"
        if "maximum" in rule and value > rule["maximum"]:
            return f"at most {rule['maximum']}"
    is_empty = isinstance(value, str | Mapping) and not value
    return "not empty" if is_empty and ("minLength" in rule or "minProperties" in rule) else ""


def _is_alike(value: object, known: object) -> bool:
    """JSON's true and 1.0 are not its 1; an enum's member is its text."""
    return isinstance(value, type(known)) and isinstance(value, bool) == isinstance(known, bool)


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
