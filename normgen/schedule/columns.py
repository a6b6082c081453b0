"""Formulas over one value or over a column of them, one for each of many schedules.

A formula takes both, if it chooses by `where`, `most`, `least` and `by_value` in the place of `if`, `max`, `min` and a
dictionary, and compares by `==` and `&`: one schedule costs it no array, and 10^5 cost it no loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

N = TypeVar("N", int, float)
Codes = NDArray[np.int16]


class Choices:
    """A column of an enum's values. Properties of the enum are columns too."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, codes: Codes, values: Sequence[Any]) -> None:
        self._codes, self._values = codes, tuple(values)

    def __eq__(self, other: object) -> Any:
        return self.over(value == other for value in self._values)

    def __ne__(self, other: object) -> Any:
        return self.over(value != other for value in self._values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # of a column that is not made yet, as pickle's
            raise AttributeError(name)
        return self.over(getattr(value, name) for value in self._values)

    def over(self, facts: Iterable[Any]) -> NDArray[Any]:
        """A fact of each value of the enum, for each schedule."""
        return np.array(list(facts))[self._codes]

    def by_value(self, facts: Mapping[Any, float], other: float) -> Any:
        return self.over(facts.get(value, other) for value in self._values)


def where(condition: bool, yes: N, no: N) -> N:
    """`yes` of the schedules of which the condition holds, else `no`. Both are computed."""
    if isinstance(condition, ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no


def some(condition: bool) -> bool:
    """Whether the condition holds of any of the schedules: what none of them has need not be computed."""
    return bool(condition.any()) if isinstance(condition, ndarray) else condition


def by_value(knob: Any, facts: Mapping[Any, float], other: float = 0.0) -> float:
    """What is said of the knob's value."""
    return knob.by_value(facts, other) if isinstance(knob, Choices) else facts.get(knob, other)


def most(a: N, b: N) -> N:
    """The larger one."""
    if isinstance(a, ndarray) or isinstance(b, ndarray):
        return np.maximum(a, b)
    return a if a > b else b


def least(a: N, b: N) -> N:
    """The smaller one."""
    if isinstance(a, ndarray) or isinstance(b, ndarray):
        return np.minimum(a, b)
    return a if a < b else b


def log2(value: float) -> float:
    return np.log2(value) if isinstance(value, ndarray) else math.log2(value)


def up(value: float) -> int:
    """The next whole number."""
    return np.ceil(value).astype(np.int64) if isinstance(value, ndarray) else math.ceil(value)


def down(value: float) -> int:
    """Without what is behind the point."""
    return value.astype(np.int64) if isinstance(value, ndarray) else int(value)
