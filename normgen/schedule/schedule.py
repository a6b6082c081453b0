"""The knobs of one kernel, frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from normgen.errors import UsageError, did_you_mean
from normgen.knobs import (
    KNOBS,
    TABLE,
    ArithmeticMode,
    ColumnWay,
    Copy,
    DependentLaunch,
    Division,
    Edges,
    Fragment,
    Hold,
    Keep,
    LoadHint,
    Params,
    ReduceWith,
    RowOrder,
    SoftmaxMethod,
    Statistics,
    StoreHint,
    VarianceMethod,
    knob_value,
)
from normgen.schedule.columns import most

RUNNING_SUMS = 4  # that a thread's vectors add to, at most: short chains of additions, none of which waits for another


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How one kernel runs: a value for each knob of `knobs.TABLE`, which says what each decides.

    The plain values are those of a kernel without techniques: a block of 256 threads owns a row, and reads it for every
    pass. docs/knobs.md has each knob with pictures.
    """

    threads_per_row: int = 256
    rows_per_block: int = 1
    cluster: int = 1
    parts: int = 1
    reduce_with: ReduceWith = ReduceWith.SHUFFLE
    vector: int = 1
    variance: VarianceMethod = VarianceMethod.TWO_PASS
    softmax: SoftmaxMethod = SoftmaxMethod.TWO_PASS
    hold: Hold = Hold.RELOAD
    keep: Keep = Keep.ROW
    copy: Copy = Copy.DIRECT
    edges: Edges = Edges.EXACT
    persistent: int = 0
    stages: int = 1
    unroll: int = 1
    load: LoadHint = LoadHint.DEFAULT
    store: StoreHint = StoreHint.DEFAULT
    params: Params = Params.LATE
    blocks_per_sm: int = 0
    columns: ColumnWay = ColumnWay.PARTIALS_TWO_KERNELS
    dependent_launch: DependentLaunch = DependentLaunch.OFF
    arithmetic: ArithmeticMode = ArithmeticMode.EXACT
    division: Division = Division.IEEE
    row_order: RowOrder = RowOrder.ASCENDING
    statistics: Statistics = Statistics.NULLABLE
    tile_m: int = 0
    tile_n: int = 0
    tile_k: int = 0
    thread_m: int = 0
    thread_n: int = 0
    fragment: Fragment = Fragment.SIMT

    def __post_init__(self) -> None:
        for knob in TABLE:
            value = getattr(self, knob.name)
            meant = knob_value(knob.name, value)
            if meant is not value:
                object.__setattr__(self, knob.name, meant)

    def varied(self, **knobs: Any) -> Schedule:
        """This schedule with some knobs at other values of the table, which are not looked at again.

        Ten times as fast as `replace`: a space has 10^5 points.
        """
        found = object.__new__(Schedule)
        vars(found).update(vars(self), **knobs)
        return found

    @property
    def keeps_params(self) -> bool:
        """Whether a block reads the column parameters once for all its rows."""
        return self.params.are_kept

    @property
    def chained(self) -> bool:
        """Whether the call's first kernel, too, may start before the kernel in front of it in the stream has ended."""
        return self.dependent_launch.is_chained

    @property
    def peels(self) -> bool:
        """Whether rows may start between two aligned vectors."""
        return self.edges == Edges.PEEL

    @property
    def is_batch_invariant(self) -> bool:
        """Whether all rows go the same way, whatever their number and their places.

        A thread's share of a row and the order in which states are combined follow from knobs alone. A peeled head is
        as long as a row's address says. Rows that are spared a look (variance = guarded) take their own values even
        where a row beside them is not. The sums over rows are another matter: those depend on the rows.
        """
        return not self.peels

    @property
    def order(self) -> tuple[Any, ...]:
        """What decides a row's bits: schedules of one order differ in which rows run where and when, and in hints."""
        return tuple(getattr(self, name) for name in _OF_ORDER)

    def with_order(self, other: Schedule) -> Schedule:
        """This schedule with another one's order."""
        return self.varied(**{name: getattr(other, name) for name in _OF_ORDER})

    @property
    def running_sums(self) -> int:
        """The sums that the elements of a thread's vectors are added to in turn; Welford's recurrence has one state."""
        return 1 if self.variance is VarianceMethod.WELFORD else min(self.vector, RUNNING_SUMS)

    @property
    def threads(self) -> int:
        """Threads per block."""
        if isinstance(self.tile_m, int) and not self.tile_m:  # of columns all have tiles, or none
            return self.threads_per_row * self.rows_per_block
        return (self.tile_m // most(1, self.thread_m)) * (self.tile_n // most(1, self.thread_n))

    @property
    def row_blocks(self) -> int:
        """Blocks that share one row: as a cluster, or as parts of the row."""
        return self.cluster * self.parts

    @property
    def meets_in_memory(self) -> bool:
        """Whether blocks of the grid exchange in memory what they find of a row: all of them must be resident."""
        return (self.parts > 1) & (self.persistent > 0)

    @property
    def strategy(self) -> str:
        """thread_per_row, warp_per_row, block_per_row, cluster_per_row, blocks_per_row or block_per_part, as reports
        name it; of a contraction block_per_tile.
        """
        if self.tile_m:
            return "block_per_tile"
        if self.cluster > 1:
            return "cluster_per_row"
        if self.parts > 1:
            return "blocks_per_row" if self.persistent else "block_per_part"
        if self.threads_per_row == 1:
            return "thread_per_row"
        return "warp_per_row" if self.threads_per_row <= 32 else "block_per_row"

    def as_dict(self) -> dict[str, Any]:
        """The value of every knob; `dataclasses.asdict` would copy each one, at six times the cost."""
        return {name: getattr(self, name) for name in KNOBS}

    @property
    def chosen(self) -> dict[str, Any]:
        """The knobs that are not at their plain value."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}

    @property
    def key(self) -> str:
        """Twelve hex digits that name this schedule in files and kernel names; a new knob renames none."""
        return hashlib.sha256(json.dumps(self.chosen, sort_keys=True).encode()).hexdigest()[:12]

    def __str__(self) -> str:
        """Only what is not plain: `threads_per_row=32 vector=4 ...`."""
        return " ".join(f"{name}={value}" for name, value in self.chosen.items()) or "default"


# How a row is shared out, its sums formed and combined. `hold` and `unroll` change no sum, but where a compiler
# contracts a product and a sum into one rounding is up to the statements around it.
_OF_ORDER = (
    *("threads_per_row", "cluster", "parts", "reduce_with", "vector", "edges", "variance", "softmax", "arithmetic"),
    *("division", "hold", "keep", "copy", "unroll", "statistics", "columns"),
    *("tile_m", "tile_n", "tile_k", "thread_m", "thread_n", "fragment"),
)


def schedule_from(values: Mapping[str, Any], base: Schedule | None = None) -> Schedule:
    """A schedule from a mapping of knobs, by any spelling of their values (`knob_value`); the others are `base`'s.

    Raises UsageError for an unknown knob or value.
    """
    for name in values:
        if name not in KNOBS:
            raise UsageError("unknown knob", received=name, hint=did_you_mean(name, KNOBS))
    return (base or Schedule()).varied(**{name: knob_value(name, value) for name, value in values.items()})


def changed(schedule: Schedule, knobs: str) -> Schedule:
    """The schedule with the knobs of a text such as `vector=4 hold=shared` changed; `default` stands for no change."""
    pairs = [pair.partition("=") for pair in knobs.split() if pair != "default"]
    return schedule_from({name: value for name, _, value in pairs}, schedule)
