"""Points as the surrogate sees them: numbers, of which a difference of 1 is one step."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields

import numpy as np

from normgen.knobs import Group, names_of
from normgen.schedule.schedule import Schedule
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
    *names_of(Group.TILE),
)
_CHOICES = tuple(f.name for f in fields(Schedule) if f.name not in _LOGARITHMIC)


def features_of(points: Sequence[Mapping[str, Hashable]]) -> Array:
    """[points, features] of any points: a number by its logarithm if it is doubled twice, another value by a column."""
    columns: list[Array] = []
    for knob in points[0]:
        values = [p[knob] for p in points]
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            columns.append(_scaled(np.array(values, dtype=np.float64)))
        else:
            columns += _indicators(values)
    return _stacked(columns, len(points))


def schedule_features(schedules: Sequence[Schedule], facts: Sequence[Array] = ()) -> Array:
    """[schedules, features]: the knobs, and what follows from several of them and decides by itself.

    facts  more columns, counted by their logarithms: see `facts_of`
    """
    columns = [_logarithm([getattr(s, name) for s in schedules]) for name in _LOGARITHMIC]
    for name in _CHOICES:
        columns += _indicators([getattr(s, name) for s in schedules])
    columns.append(_logarithm([s.threads for s in schedules]))
    columns.append(_logarithm([s.threads_per_row * s.row_blocks * s.vector for s in schedules]))
    columns.append(np.array([float(s.persistent > 0) for s in schedules]))
    columns.append(_logarithm([max(1, s.persistent * s.threads) for s in schedules]))  # resident threads, not blocks
    columns += [STEP * np.log2(np.maximum(fact, 2**-10)) for fact in facts]
    return _stacked(columns, len(schedules))


def facts_of(occupancy: Array, waves: Array, registers: Array) -> tuple[Array, ...]:
    """What a device makes of schedules [schedules]: occupancy, waves, how much of the last one is idle, registers."""
    return occupancy, waves, np.ceil(waves) / np.maximum(waves, 2**-10), registers


def region(s: Schedule) -> tuple[Hashable, ...]:
    """The way a schedule moves its data: schedules of two ways have little in common."""
    return s.hold, s.copy, s.persistent > 0, s.stages > 1, s.cluster > 1, s.columns


def cut(s: Schedule) -> tuple[Hashable, ...]:
    """How a schedule cuts the work."""
    tile = (s.tile_m, s.tile_n, s.thread_m, s.thread_n)
    return s.threads_per_row, s.rows_per_block, s.row_blocks, s.vector, s.hold, s.copy, s.persistent > 0, *tile


def _scaled(values: Array) -> Array:
    least, most = float(values.min()), float(values.max())
    if most >= DOUBLED and (least >= 1 or (least == 0 and np.all(values == np.round(values)))):
        return _logarithm(values.tolist())
    steps = min(len(np.unique(values)) - 1, 4)
    return STEP * steps * (values - least) / max(most - least, 1e-300)


def _logarithm(values: Sequence[float]) -> Array:
    """Of 0 as of a half."""
    logarithms: Array = STEP * np.log2(np.maximum(0.5, np.array(values, dtype=np.float64)))
    return logarithms


def _indicators(values: Sequence[Hashable]) -> list[Array]:
    different = dict.fromkeys(values)
    if len(different) == 1:
        return []
    return [STEP * np.array([float(v == value) for v in values]) for value in different]


def _stacked(columns: Sequence[Array], count: int) -> Array:
    """Those that vary, a column of zeros where none does."""
    varied = [column for column in columns if column.min() != column.max()]
    return np.stack(varied, axis=1) if varied else np.zeros((count, 1))
