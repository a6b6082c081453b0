"""Frozen dataclasses as plain values for JSON, and back: by their fields and type hints alone.

A field's metadata may say more: `BESIDE` puts the fields of a nested dataclass beside its owner's, `spelled(to, of)`
writes a value as `to` says it and reads it by `of`. A class may name properties in `ALSO`: they are
written behind its fields, and left alone where they are read; of a class that is `SPARSE` defaults are not written. One
that has `as_dict` is written as that says.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from normgen.errors import NormgenError

DIGITS = 5  # what timing can know, and small diffs
T = TypeVar("T")
_HINTS: dict[Any, dict[str, Any]] = {}
BESIDE = {"beside": True}  # metadata of a field whose own fields stand beside it


def spelled(to: Callable[[Any], Any], of: Callable[[Any], Any]) -> dict[str, Any]:
    """Metadata of a field that is written as `to` says it, and read by `of`, which raises ValueError or our own."""
    return {"spelled": (to, of)}


def plain(value: Any) -> Any:
    """Dicts, lists, texts, numbers, true, false and null of a value: of dataclasses, enums, paths, mappings, tuples."""
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return fields_of(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as plain values, whatever its `as_dict` says."""
    found: dict[str, Any] = {}
    is_sparse = getattr(value, "SPARSE", False)
    for one in fields(value):
        own = getattr(value, one.name)
        if is_sparse and own == one.default:
            continue
        if "spelled" in one.metadata:
            found[one.name] = None if own is None else one.metadata["spelled"][0](own)
        elif one.metadata.get("beside"):
            found |= plain(own)
        else:
            found[one.name] = plain(own)
    return found | {name: plain(getattr(value, name)) for name in getattr(value, "ALSO", ())}


def rounded(value: Any) -> Any:
    """Plain values with floats to five significant digits; NaN and infinity, which JSON does not know, are null."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): rounded(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v) for v in value]
    return value


def made(kind: type[T], data: Any) -> T:
    """The value of a type that plain values say. Raises ValueError with the path of what does not fit."""
    found: T = _made(kind, data, "")
    return found


def _made(kind: Any, data: Any, at: str) -> Any:
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        return _of_union(inside, data, at)
    if origin is not None and issubclass(origin, Mapping):
        _check(isinstance(data, Mapping), "a table", data, at)
        return {_key(inside[0], key, at): _made(inside[1], v, f"{at}.{key}") for key, v in data.items()}
    if origin is not None and issubclass(origin, Sequence):
        _check(isinstance(data, list | tuple), "a list", data, at)
        each = [inside[0]] * len(data) if len(inside) == 1 or inside[1:] == (...,) else inside
        _check(len(each) == len(data), f"a list of {len(each)}", data, at)
        return tuple(_made(k, v, f"{at}[{i}]") for i, (k, v) in enumerate(zip(each, data, strict=True)))
    if is_dataclass(kind):
        return _of_fields(kind, data, at)
    if issubclass(kind, Enum | Path):
        return _tried(kind, data, at)
    if kind is float:
        _check(isinstance(data, int | float) and not isinstance(data, bool), "a number", data, at)
        return _tried(float, data, at) if isinstance(data, int) else data
    words = {int: "a whole number", str: "a text", bool: "true or false"}
    _check(type(data) is kind, words.get(kind, str(kind)), data, at)
    return data


def _of_union(kinds: Sequence[Any], data: Any, at: str) -> Any:
    """Of the first kind that takes it; what is wrong with it, if none does, the first says."""
    if data is None and type(None) in kinds:
        return None
    others = [kind for kind in kinds if kind is not type(None)]
    for kind in others[1:]:
        try:
            return _made(kind, data, at)
        except ValueError:
            continue
    return _made(others[0], data, at)


def _of_fields(kind: Any, data: Any, at: str) -> Any:
    _check(isinstance(data, Mapping), "a table", data, at)
    left = {name: value for name, value in data.items() if name not in getattr(kind, "ALSO", ())}
    found: dict[str, Any] = {}
    for one in fields(kind):
        if one.metadata.get("beside"):
            own = names_of(hints_of(kind)[one.name]) & left.keys()
            if own or _is_needed(one):
                found[one.name] = _made(hints_of(kind)[one.name], {name: left.pop(name) for name in own}, at)
        elif one.name in left:
            value, here, how = left.pop(one.name), f"{at}.{one.name}", one.metadata.get("spelled")
            found[one.name] = _tried(how[1], value, here) if how else _made(hints_of(kind)[one.name], value, here)
        elif _is_needed(one):
            raise ValueError(f"{_path(at)}needs '{one.name}'")
    if left:
        raise ValueError(f"{_path(at)}knows no '{next(iter(left))}'")
    return _tried(lambda given: kind(**given), found, at)


def names_of(kind: Any) -> set[str]:
    """The names under which a dataclass's fields are written."""
    nested = {one.name: names_of(hints_of(kind)[one.name]) for one in fields(kind) if one.metadata.get("beside")}
    return {name for one in fields(kind) for name in nested.get(one.name, {one.name})}


def hints_of(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, by name."""
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind)
    return _HINTS[kind]


def _is_needed(one: Field[Any]) -> bool:
    return one.default is MISSING and one.default_factory is MISSING


def _key(kind: Any, key: Any, at: str) -> Any:
    return _tried(int, key, at) if kind is int else _made(kind, key, at)


def _tried(make: Callable[[Any], Any], data: Any, at: str) -> Any:
    try:
        return make(data)
    except NormgenError as error:
        said = ": ".join(part for part in (error.rule, error.received) if part)
        raise ValueError(f"{_path(at)}{said}") from None
    except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise ValueError(f"{_path(at)}{error}") from None


def _check(fits: bool, what: str, data: Any, at: str) -> None:
    if not fits:
        raise ValueError(f"{_path(at)}is {what}, not {str(data)[:80]!r}")


def _path(at: str) -> str:
    return f"{at.removeprefix('.')}: " if at else ""
