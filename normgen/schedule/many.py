"""Many schedules of one problem at once: a column of values for each knob.

`Schedules` is a sequence of `Schedule`s that makes each when it is asked for. Its `columns` is one `Schedule` that
stands for all: in the place of a knob's value it has an array of them, or `Choices` of an enum's. Formulas over numbers
take either, if they choose by `where`, `most`, `least` and `by_value` in the place of `if`, `max`, `min` and a
dictionary, and compare by `==` and `&`: one schedule costs a formula no array, and 10^5 cost no loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from normgen.knobs import KNOBS
from normgen.schedule.schedule import Schedule

N = TypeVar("N", int, float)
NAMES = tuple(KNOBS)
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
        return self.over(getattr(value, name) for value in self._values)

    def over(self, facts: Iterable[Any]) -> NDArray[Any]:
        """A fact of each value of the enum, for each schedule."""
        return np.array(list(facts))[self._codes]

    def by_value(self, facts: Mapping[Any, float], other: float) -> Any:
        return self.over(facts.get(value, other) for value in self._values)


def where(condition: bool, yes: N, no: N) -> N:
    """`yes` of the schedules of which the condition holds, else `no`. Both are computed."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no


def by_value(knob: Any, facts: Mapping[Any, float], other: float = 0.0) -> float:
    """What is said of the knob's value."""
    return knob.by_value(facts, other) if isinstance(knob, Choices) else facts.get(knob, other)


def most(*values: N) -> N:
    """The largest."""
    found = values[0]
    for value in values[1:]:
        if isinstance(found, np.ndarray) or isinstance(value, np.ndarray):
            found = np.maximum(found, value)
        elif value > found:
            found = value
    return found


def least(*values: N) -> N:
    """The smallest."""
    found = values[0]
    for value in values[1:]:
        if isinstance(found, np.ndarray) or isinstance(value, np.ndarray):
            found = np.minimum(found, value)
        elif value < found:
            found = value
    return found


def log2(value: float) -> float:
    return np.log2(value) if isinstance(value, np.ndarray) else math.log2(value)


def up(value: float) -> int:
    """The next whole number."""
    return np.ceil(value).astype(np.int64) if isinstance(value, np.ndarray) else math.ceil(value)


def down(value: float) -> int:
    """Without what is behind the point."""
    return value.astype(np.int64) if isinstance(value, np.ndarray) else int(value)


class Schedules(Sequence[Schedule]):
    """Schedules by the codes of their knobs.

    values  of each knob in the order of `NAMES`, those that occur, in sorted order
    codes   [schedules, knobs]: which of these
    """

    def __init__(self, codes: Codes, values: Sequence[Sequence[Any]]) -> None:
        """Values may be in any order, and some may not occur."""
        kept, found = [], np.empty(codes.shape, dtype=np.int16, order="F")
        for knob, some in enumerate(values):
            occurs = np.bincount(codes[:, knob], minlength=len(some)) > 0
            order = sorted(np.flatnonzero(occurs).tolist(), key=some.__getitem__)
            place = np.zeros(len(some), dtype=np.int16)
            place[order] = np.arange(len(order))
            found[:, knob] = place[codes[:, knob]]
            kept.append(tuple(some[code] for code in order))
        self.codes: Codes = found
        self.values: tuple[tuple[Any, ...], ...] = tuple(kept)

    @staticmethod
    def of(schedules: Sequence[Schedule]) -> Schedules:
        """The columns of schedules."""
        if isinstance(schedules, Schedules):
            return schedules
        codes, values = np.empty((len(schedules), len(NAMES)), dtype=np.int16, order="F"), []
        for knob, name in enumerate(NAMES):
            column = [vars(s)[name] for s in schedules]
            place = {value: code for code, value in enumerate(dict.fromkeys(column))}
            codes[:, knob] = [place[value] for value in column]
            values.append(tuple(place))
        return Schedules(codes, values)

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, at: int) -> Schedule: ...

    @overload
    def __getitem__(self, at: slice) -> Schedules: ...

    def __getitem__(self, at: int | slice) -> Schedule | Schedules:
        if isinstance(at, slice):
            return Schedules(self.codes[at], self.values)
        return self._made(self.codes[at].tolist())

    def __iter__(self) -> Iterator[Schedule]:
        return map(self._made, self.codes.tolist())

    def _made(self, codes: list[int]) -> Schedule:
        some = zip(NAMES, self.values, codes, strict=True)
        return _PLAIN.varied(**{name: values[code] for name, values, code in some})

    def places(self, schedule: Schedule) -> NDArray[np.intp]:
        """Where the schedule stands."""
        here = np.ones(len(self), dtype=bool)
        for knob, (name, values) in enumerate(zip(NAMES, self.values, strict=True)):
            value = getattr(schedule, name)
            here &= (self.codes[:, knob] == values.index(value)) if value in values else False
        return np.flatnonzero(here)

    def __contains__(self, schedule: object) -> bool:
        return isinstance(schedule, Schedule) and bool(self.places(schedule).size)

    def index(self, schedule: Schedule, start: int = 0, stop: int | None = None) -> int:
        """The first place of the schedule. Raises ValueError if it has none."""
        found = [at for at in self.places(schedule).tolist() if at in range(*slice(start, stop).indices(len(self)))]
        if not found:
            raise ValueError(f"{schedule} is not among {len(self)} schedules")
        return int(found[0])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedules):
            return NotImplemented
        return self.values == other.values and np.array_equal(self.codes, other.codes)

    __hash__ = None  # type: ignore[assignment]

    def column(self, name: str) -> Any:
        """A knob's value of each schedule: an array, or `Choices`; one value that all have stands alone."""
        knob = NAMES.index(name)
        values, codes = self.values[knob], self.codes[:, knob]
        if len(values) == 1:
            return values[0]
        return Choices(codes, values) if isinstance(values[0], Enum) else np.array(values)[codes]

    @cached_property
    def columns(self) -> Schedule:
        """A schedule with a column for each knob that differs."""
        return _PLAIN.varied(**{name: self.column(name) for name in NAMES})


_PLAIN = Schedule()
