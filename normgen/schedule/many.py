"""Many schedules of one problem at once: a column of values for each knob."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from normgen.knobs import KNOBS
from normgen.schedule.columns import Choices, Codes
from normgen.schedule.schedule import Schedule

NAMES = tuple(KNOBS)
Rows = NDArray[np.intp]
DENSE = 1 << 20  # combinations of values up to which each has a cell of its own; more are sorted


class Schedules(Sequence[Schedule]):
    """A sequence of schedules by the codes of their knobs; each `Schedule` is made when it is asked for.

    codes   [schedules, knobs], the knobs in the order of `NAMES`
    values  of each knob, that its codes stand for
    """

    def __init__(self, codes: Codes, values: Sequence[Sequence[Any]]) -> None:
        self.codes = np.asfortranarray(codes)
        self.values = tuple(map(tuple, values))

    @staticmethod
    def of(schedules: Iterable[Schedule]) -> Schedules:
        """The columns of schedules."""
        if isinstance(schedules, Schedules):
            return schedules
        made = list(schedules)
        codes, values = np.empty((len(made), len(NAMES)), dtype=np.int16, order="F"), []
        for knob, name in enumerate(NAMES):
            column = [getattr(s, name) for s in made]
            place = {value: code for code, value in enumerate(dict.fromkeys(column))}
            codes[:, knob] = [place[value] for value in column]
            values.append(tuple(place))
        return Schedules(codes, values)

    def compact(self) -> Schedules:
        """The same schedules, with the values that occur alone, in sorted order."""
        codes, kept = np.empty_like(self.codes), []
        for knob, values in enumerate(self.values):
            occurs = np.bincount(self.codes[:, knob], minlength=len(values)) > 0
            order = sorted(np.flatnonzero(occurs).tolist(), key=values.__getitem__)
            place = np.zeros(len(values), dtype=np.int16)
            place[order] = np.arange(len(order))
            codes[:, knob] = place[self.codes[:, knob]]
            kept.append([values[code] for code in order])
        return Schedules(codes, kept)

    def taken(self, rows: Rows) -> Schedules:
        """The schedules of these rows."""
        codes = np.empty((len(rows), len(NAMES)), dtype=np.int16, order="F")
        for knob in range(len(NAMES)):
            codes[:, knob] = self.codes[rows, knob]
        return Schedules(codes, self.values)

    def times(
        self, lists: Mapping[str, Sequence[Any]], allowed: Mapping[str, NDArray[np.bool_]] | None = None
    ) -> Schedules:
        """Each schedule with all combinations of some knobs' values, the last knob's first.

        allowed   of a knob [schedules, values]: which of its values a schedule is varied by; else by all
        """
        every = {name: np.ones((len(self), len(values)), dtype=bool) for name, values in lists.items()}
        masks = {name: (allowed or every)[name] for name in lists}
        sizes = {name: mask.sum(axis=1) for name, mask in masks.items()}
        each = np.prod([*sizes.values(), np.ones(len(self), dtype=np.intp)], axis=0)
        rows = np.repeat(np.arange(len(self)), each)
        place = np.arange(len(rows)) - np.repeat(np.cumsum(each) - each, each)
        found = self.taken(rows)
        values = list(self.values)
        for name in reversed([*lists]):
            knob, size = NAMES.index(name), sizes[name][rows]
            listed = np.argsort(~masks[name], axis=1, kind="stable")  # the allowed ones first
            found.codes[:, knob] = listed[rows, place % size]
            place //= size
            values[knob] = tuple(lists[name])
        return Schedules(found.codes, values)

    def followed_by(self, other: Schedules) -> Schedules:
        """These schedules, then the others."""
        codes, values = np.concatenate([self.codes, other.codes]), []
        for knob, (own, others) in enumerate(zip(self.values, other.values, strict=True)):
            both = tuple(dict.fromkeys((*own, *others)))
            place = np.array([both.index(value) for value in others], dtype=np.int16)
            codes[len(self) :, knob] = place[other.codes[:, knob]]
            values.append(both)
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
            return list(self) == list(other) if isinstance(other, list | tuple) else NotImplemented
        ours, theirs = self.compact(), other.compact()
        return ours.values == theirs.values and np.array_equal(ours.codes, theirs.codes)

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
        """One schedule that stands for all: a column in the place of each knob that differs, for formulas that take it.

        Its types tell of one schedule, as do those of the formulas.
        """
        return _PLAIN.varied(**{name: self.column(name) for name in NAMES})


def combinations(schedules: Schedules, rows: Rows, knobs: Iterable[int]) -> tuple[Rows, NDArray[np.intp]]:
    """Of each combination of the knobs' values in these rows a row that has it, and which one each row has."""
    key, size = np.zeros(len(rows), dtype=np.int64), 1
    for knob in knobs:
        radix = len(schedules.values[knob])
        if radix > 1:
            if size * radix >= 1 << 62:
                _, key = np.unique(key, return_inverse=True)
                size = len(rows)
            key, size = key * radix + schedules.codes[rows, knob], size * radix
    if size > DENSE:
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        return rows[first], which
    place = np.full(size, -1)
    place[key] = np.arange(len(rows))
    found = np.flatnonzero(place >= 0)
    first = rows[place[found]]
    place[found] = np.arange(len(found))
    return first, place[key]


_PLAIN = Schedule()
