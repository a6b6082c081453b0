"""Whether a JSON value is a record, by `schema.json`: the one place that judges what stands in a file of records.

Of JSON Schema it knows the words that the schema uses. What no record can hold anywhere is refused first: numbers
that are not finite or do not fit 64 bits, texts that no file can hold, and deep nesting.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEEPEST = 12  # the policy of a search stands at depth 4
_LARGEST = 2**63 - 1
_SHOWN = 60  # characters of a value in a message

_KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "object": ("an object", (dict,)),
    "array": ("a list", (list, tuple)),
    "string": ("a text", (str,)),
    "integer": ("a whole number", (int,)),
    "number": ("a number", (int, float)),
    "boolean": ("true or false", (bool,)),
    "null": ("null", (type(None),)),
}


def check_record(data: object) -> None:
    """Raises ValueError, which names the field, for a JSON value that is no record."""
    _check_plain(data, "the line", 0)
    _check(data, _schema(), "")


def check_fields(data: Mapping[str, Any]) -> None:
    """As `check_record`, of values that stand in another file under names of a record's fields."""
    _check_plain(data, "the line", 0)
    for name, value in data.items():
        _check(value, _schema().properties[name], name)


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """One rule of the schema, read once: a lookup in the records that ship checks 40,000 values."""

    kinds: tuple[str, ...]  # what a message calls them
    types: frozenset[type]  # empty: any
    allowed: tuple[object, ...] | None
    least: float | None
    above: float | None
    most: float | None
    filled: bool
    properties: Mapping[str, _Rule]
    required: frozenset[str]
    closed: bool  # no other keys
    others: _Rule | None  # what holds for other keys, if anything does
    items: _Rule | None

    @staticmethod
    def of(rule: Mapping[str, Any]) -> _Rule:
        named, others, items = rule.get("type", ()), rule.get("additionalProperties"), rule.get("items")
        kinds = [_KINDS[kind] for kind in ((named,) if isinstance(named, str) else named)]
        return _Rule(
            kinds=tuple(word for word, _ in kinds),
            types=frozenset(type_ for _, types in kinds for type_ in types),
            allowed=tuple(rule.get("enum", [rule["const"]] if "const" in rule else ())) or None,
            least=rule.get("minimum"),
            above=rule.get("exclusiveMinimum"),
            most=rule.get("maximum"),
            filled="minLength" in rule or "minProperties" in rule,
            properties={name: _Rule.of(inner) for name, inner in rule.get("properties", {}).items()},
            required=frozenset(rule.get("required", ())),
            closed=others is False,
            others=_Rule.of(others) if isinstance(others, Mapping) else None,
            items=_Rule.of(items) if items else None,
        )

    def takes_type(self, value: object) -> bool:
        """JSON's own types, and what stands for a text or an object in values that were never written."""
        if not self.types or type(value) in self.types:
            return True
        return (str in self.types and isinstance(value, str)) or (dict in self.types and isinstance(value, Mapping))


@functools.cache
def _schema() -> _Rule:
    return _Rule.of(json.loads(Path(__file__).with_name("schema.json").read_text(encoding="utf-8")))


def _check_plain(value: object, where: str, depth: int) -> None:
    if depth > DEEPEST:
        raise ValueError(f"nested deeper than {DEEPEST}")
    if isinstance(value, str):
        if value.isascii():
            return
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{where} is no text: {_shown(value)}") from None
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is not finite: {value}")
    elif type(value) is int:
        if abs(value) > _LARGEST:
            raise ValueError(f"{where} does not fit 64 bits")
    elif isinstance(value, dict | Mapping):  # dict first: an abstract class is asked twenty times as slowly
        for name, part in value.items():
            if not name.isascii():
                _check_plain(name, f"a key of {where}", depth)
            _check_plain(part, name, depth + 1)
    elif isinstance(value, list | tuple):
        for part in value:
            _check_plain(part, where, depth + 1)


def _check(value: Any, rule: _Rule, where: str) -> None:
    """One rule of the schema, and those inside it."""
    if complaint := _complaint(value, rule):
        raise ValueError(f"{where or 'the line'} must be {complaint}: {_shown(value)}")
    if isinstance(value, dict | Mapping):
        _check_object(value, rule, where)
    elif rule.items is not None and isinstance(value, list | tuple):
        for part in value:
            _check(part, rule.items, where)


def _check_object(value: Mapping[str, Any], rule: _Rule, where: str) -> None:
    unknown = sorted(value.keys() - rule.properties) if rule.closed else []
    missing = sorted(rule.required - value.keys())
    said = [f"{what} keys: {names}" for what, names in (("unknown", unknown), ("missing", missing)) if names]
    if said:
        raise ValueError(f"{where or 'the line'} has {', '.join(said)}")
    for name, part in value.items():
        inner = rule.properties.get(name, rule.others)
        if inner is not None:
            _check(part, inner, f"{where}.{name}" if where else name)


def _complaint(value: Any, rule: _Rule) -> str:
    """What a value would have to be instead; empty where it is that."""
    if not rule.takes_type(value):
        return " or ".join(rule.kinds)
    if rule.allowed is not None and not any(value == one and _is_alike(value, one) for one in rule.allowed):
        return "one of " + ", ".join(map(str, rule.allowed))
    if type(value) in (int, float):
        if rule.least is not None and value < rule.least:
            return f"at least {rule.least}"
        if rule.above is not None and value <= rule.above:
            return f"above {rule.above}"
        if rule.most is not None and value > rule.most:
            return f"at most {rule.most}"
    return "not empty" if rule.filled and isinstance(value, str | Mapping) and not value else ""


def _is_alike(value: object, known: object) -> bool:
    """JSON's true and 1.0 are not its 1; an enum's member is its text."""
    return isinstance(value, type(known)) and isinstance(value, bool) == isinstance(known, bool)


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
