"""Points as the surrogate sees them: numbers, of which a difference of 1 is one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.knobs import KNOBS, Group, names_of
from normgen.schedule.columns import most
from normgen.schedule.many import NAMES, Schedules
from normgen.schedule.schedule import Schedule
from normgen.tuning.search.strategies import Points
from normgen.tuning.search.surrogate import Array

STEP = 0.5  # a doubling; two values of a choice are two of them apart
DOUBLED = 4  # times its least value from which on a number counts by its logarithm
_LOGARITHMIC = (
    "threads_per_row",
    "rows_per_block",
    "vector",
    "cluster",
    "persistent",
    "unroll",
    "stages",
    "blocks_per_sm",
    *(name for name in names_of(Group.TILE) if KNOBS[name].is_size),
)
_CHOICES = tuple(f.name for f in fields(Schedule) if f.name not in _LOGARITHMIC)


def features_of(points: Points) -> Array:
    """[points, features] of any points: a number by its logarithm if it is doubled twice, another value by a column."""
    columns: list[Array] = []
    for values, codes in zip(points.values, points.codes.T, strict=True):
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            columns.append(_scaled(np.array(values, dtype=np.float64)[codes]))
        else:
            columns += _indicators(codes, len(values))
    return _stacked(columns, len(points.codes))


def schedule_features(schedules: Sequence[Schedule], facts: Sequence[Array] = ()) -> Array:
    """[schedules, features]: the knobs, and what follows from several of them and decides by itself.

    facts  more columns, counted by their logarithms: see `facts_of`
    """
    found = Schedules.of(schedules).compact()
    s = found.columns
    columns = [_logarithm(getattr(s, name)) for name in _LOGARITHMIC]
    for name in _CHOICES:
        knob = NAMES.index(name)
        columns += _indicators(found.codes[:, knob], len(found.values[knob]))
    columns.append(_logarithm(s.threads))
    columns.append(_logarithm(s.threads_per_row * s.row_blocks * s.vector))
    columns.append(np.asarray(s.persistent > 0, dtype=np.float64))
    columns.append(_logarithm(most(1, s.persistent * s.threads)))  # resident threads, not blocks
    columns += [STEP * np.log2(np.maximum(fact, 2**-10)) for fact in facts]
    return _stacked(columns, len(found))


def facts_of(occupancy: Array, waves: Array, registers: Array) -> tuple[Array, ...]:
    """What a device makes of schedules [schedules]: occupancy, waves, how much of the last one is idle, registers."""
    return occupancy, waves, np.ceil(waves) / np.maximum(waves, 2**-10), registers


def regions_of(schedules: Sequence[Schedule]) -> list[int]:
    """A number for each way to move data: schedules of two ways have little in common."""
    found = Schedules.of(schedules)
    s, (hold, copy, sums) = found.columns, _codes(found, "hold", "copy", "columns")
    return _numbered(len(found), hold, copy, s.persistent > 0, s.stages > 1, s.cluster > 1, sums)


def cuts_of(schedules: Sequence[Schedule]) -> list[int]:
    """A number for each way to cut the work."""
    found = Schedules.of(schedules)
    s, places = found.columns, _codes(found, "hold", "copy", "fragment")
    tile = (s.tile_m, s.tile_n, s.thread_m, s.thread_n)
    cut = (s.threads_per_row, s.rows_per_block, s.row_blocks, s.vector, *tile)
    return _numbered(len(found), *cut, *places, s.persistent > 0)


def ways_of(schedules: Sequence[Schedule]) -> list[int]:
    """A number for each rewrite of the formula: what a wrong result speaks against."""
    return _numbered(len(schedules), *_codes(Schedules.of(schedules), "variance", "softmax"))


def _codes(found: Schedules, *names: str) -> list[NDArray[np.int16]]:
    return [found.codes[:, NAMES.index(name)] for name in names]


def _numbered(count: int, *columns: Any) -> list[int]:
    """A number for each combination of what so many schedules have in these columns."""
    numbers = np.zeros(count, dtype=np.intp)
    for column in columns:
        different, codes = np.unique(np.broadcast_to(column, count), return_inverse=True)
        if len(different) > 1:
            _, numbers = np.unique(numbers * len(different) + codes, return_inverse=True)
    found: list[int] = numbers.tolist()
    return found


def _scaled(values: Array) -> Array:
    least, most = float(values.min()), float(values.max())
    if most >= DOUBLED and (least >= 1 or (least == 0 and np.all(values == np.round(values)))):
        return _logarithm(values)
    steps = min(len(np.unique(values)) - 1, 4)
    return STEP * steps * (values - least) / max(most - least, 1e-300)


def _logarithm(values: Any) -> Array:
    """Of 0 as of a half."""
    logarithms: Array = STEP * np.log2(np.maximum(0.5, values))
    return logarithms


def _indicators(codes: NDArray[np.int16], count: int) -> list[Array]:
    return [STEP * (codes == code) for code in range(count)] if count > 1 else []


def _stacked(columns: Sequence[Array], count: int) -> Array:
    """Those that vary, a column of zeros where none does."""
    varied = [column for column in columns if column.min() != column.max()]
    return np.stack(varied, axis=1) if varied else np.zeros((count, 1))
