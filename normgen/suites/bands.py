"""Any number of rows: bands of row counts, each with the schedule of the one count that was tuned for it.

The records are the table: those of a problem's kind and columns, whatever their rows. A row count belongs to the
nearest tuned one by ratio, as in a header's dispatch, if that is at most an octave away; `normgen tune --rows` tunes
every second octave. Elsewhere the nearest power of two stands for it, so that few look-ups serve all counts. What a
band's count gets is what `lookup` says.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from normgen.choice.first import default_schedule
from normgen.cost.model import predicted_us
from normgen.device import Device
from normgen.errors import UsageError
from normgen.problem.problem import LARGEST_ROWS, LARGEST_TILED, Problem
from normgen.records.nearest import is_same_kind, place_rank
from normgen.records.place import DEFAULT_PLACE, Place
from normgen.records.record import Record
from normgen.records.winners import Lookup, lookup, records_of
from normgen.schedule.legality import refusal
from normgen.schedule.policy import searched_method
from normgen.schedule.schedule import Schedule

NEAR = 1.0  # octaves
STEP = 4  # from one tuned row count to the next
MOST_ROWS = LARGEST_ROWS


class Bands:
    """What serves each row count of a problem on a GPU model. The records are read once, at making."""

    def __init__(
        self, problem: Problem, device: Device, *, place: Place = DEFAULT_PLACE, records: Iterable[Record] | None = None
    ) -> None:
        known = records_of(device) if records is None else records
        alike = (r for r in known if is_same_kind(r.problem, problem))
        self._known = tuple(r for r in alike if place_rank(r.place, place) is not None)
        self._problem, self._device, self._place = problem, device, place
        self.tuned = tuple(sorted({r.problem.rows for r in self._known if self._is_same_row(r)}))
        self._found: dict[int, Lookup] = {}
        self._lock = threading.Lock()

    def band(self, rows: int) -> int:
        """The row count whose look-up serves so many rows."""
        rows = max(rows, 1)
        near = min(self.tuned, key=lambda tuned: _octaves(tuned, rows), default=None)
        if near is not None and _octaves(near, rows) <= NEAR:
            return near
        return min(1 << round(math.log2(rows)), LARGEST_TILED if self._problem.spec.has_inner else LARGEST_ROWS)

    def lookup(self, rows: int) -> Lookup:
        """What the band of so many rows runs, looked up once."""
        band = self.band(rows)
        with self._lock:
            if band not in self._found:
                self._found[band] = self._in_order(band) if self._problem.batch_invariant else self._own(band)
            return self._found[band]

    def _own(self, band: int) -> Lookup:
        return lookup(self._problem.with_rows(band), self._device, place=self._place, records=self._known)

    def _in_order(self, band: int) -> Lookup:
        """A batch-invariant band: what it runs, made to reduce in the one order of all bands."""
        own = self._own(band)
        schedule = self._reordered(self._problem.with_rows(band), own.schedule, self.order)
        changed = "" if schedule == own.schedule else ", in the order of all bands"
        return replace(own, schedule=schedule, reason=own.reason + changed)

    @cached_property
    def order(self) -> Schedule:
        """Of the schedules of all tuned bands, the one whose order costs all of them least, by the cost model.

        What a search would leave out at one of the bands, as not worth a measurement, comes after what it would not.
        """
        problems = [self._problem.with_rows(rows) for rows in self.tuned or (1, 64, 4096)]
        own = [self._own(p.rows).schedule or default_schedule(p, self._device) for p in problems]

        def moved(order: Schedule) -> Iterator[tuple[Problem, Schedule]]:
            return ((p, self._reordered(p, s, order)) for p, s in zip(problems, own, strict=True))

        def cost(order: Schedule) -> float:
            return math.prod(predicted_us(p, s, self._device, hot=self._place.is_hot) for p, s in moved(order))

        legal = [order for order in own if all(refusal(p, order, self._device) is None for p in problems)]
        searched = [o for o in legal if all(searched_method(p, s, self._device) is None for p, s in moved(o))]
        return min(searched or legal or own[:1], key=lambda order: (cost(order), order.key))

    def _reordered(self, problem: Problem, own: Schedule | None, order: Schedule) -> Schedule:
        """A band's schedule with the order of another one, or that other one where this is not legal."""
        own = own or default_schedule(problem, self._device)
        moved = own if own.order == order.order else own.with_order(order)
        return moved if refusal(problem, moved, self._device) is None else order

    def _is_same_row(self, record: Record) -> bool:
        own = self._problem.question
        layouts = [(key.cols, key.pitch, key.align) for key in (own, record.problem)]
        return record.is_usable and layouts[0] == layouts[1]


def row_counts(first: int, last: int, *, step: int = STEP) -> tuple[int, ...]:
    """The row counts to tune for all from `first` to `last`: both, and what lies `step` times apart between them."""
    found = [first]
    while found[-1] * step < last:
        found.append(found[-1] * step)
    if len(found) > 1 and last / found[-1] < 2:  # too near to the last: one stands for both
        found.pop()
    return (*found, last) if last > first else (first,)


def parse_rows(text: str) -> tuple[int, int]:
    """(1, 16384) of `1..16384`. Raises UsageError for another text, and for more rows than a problem has."""
    found = re.fullmatch(r"([1-9][0-9]{0,9})\.\.([1-9][0-9]{0,9})", text.strip())
    first, last = (int(found[1]), int(found[2])) if found else (1, 0)
    if not first <= last <= MOST_ROWS:
        raise UsageError("rows are a range of row counts", received=text, hint="for example 1..16384")
    return first, last


def _octaves(a: int, b: int) -> float:
    return abs(math.log2(a / b))
