"""The knobs of one kernel, frozen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from normgen.errors import UsageError, did_you_mean

CHAINED = ("start", "loads", "end")  # dependent launch of every kernel, by where it lets the next one start


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How one kernel runs.

    threads_per_row  1 = a thread owns a row; <= 32 = a (sub-)warp, shuffles only; above = whole warps
    rows_per_block   rows side by side in one block
    cluster          blocks that share one row through distributed shared memory (sm_90+); with columns =
                     cluster_partials they walk rows of their own, and share their column sums
    reduce_with      shuffle | cooperative_groups | shared_tree: how the threads of a row combine
    vector           elements of one access to the first row input (bytes: vector * element size)
    variance         two_pass | sum_of_squares | shifted | welford: the rewrite of a variance
    softmax          two_pass | online: the rewrite of a softmax denominator
    hold             registers | shared | hybrid | reload: where a row waits between looks; hybrid: as much of it in
                     registers as they take, the rest in shared memory
    copy             direct | cp_async | bulk: how a row reaches the SM
    edges            exact | masked | peel: cols % vector == 0; a masked last vector; a scalar head and tail
    persistent       blocks per SM of a grid that loops over rows; 0 = one block per row tile
    stages           rows in flight in the persistent loop: 2 with the next one in registers; with asynchronous copies
                     1 to 4 row tiles in shared memory
    unroll           vectors per loop trip when the row is not held in registers; 0 = all
    load, store      cache hints of the elem tensors
    params           early | late | kept | packed: when the column parameters are read; kept and packed read them once
                     for all rows of a block, packed keeps them as stored (16-bit ones take half the registers)
    blocks_per_sm    launch bound: the least number of blocks that must fit an SM; 0 = none
    columns          how column reductions (dweight, dbias) are summed over blocks, see DETERMINISTIC_COLUMNS
    arithmetic       exact | approximate: exponentials by expf, or by the hardware's power of two
    dependent_launch off | on | start | loads | end: programmatic dependent launch (sm_90+). on: only a call's second
                     kernel starts while its first one ends; the others: every kernel starts while the one in front
                     of it in the stream ends, and lets the next one start when it starts, has asked for its row, or
                     ends
    """

    threads_per_row: int = 256
    rows_per_block: int = 1
    cluster: int = 1
    reduce_with: str = "shuffle"
    vector: int = 1
    variance: str = "two_pass"
    softmax: str = "two_pass"
    hold: str = "reload"
    copy: str = "direct"
    edges: str = "exact"
    persistent: int = 0
    stages: int = 1
    unroll: int = 1
    load: str = "default"
    store: str = "default"
    params: str = "late"
    blocks_per_sm: int = 0
    columns: str = "partials_two_kernels"
    dependent_launch: str = "off"
    arithmetic: str = "exact"

    @property
    def keeps_params(self) -> bool:
        """Whether a block reads the column parameters once for all its rows."""
        return self.params in ("kept", "packed")

    @property
    def chained(self) -> bool:
        """Whether the call's first kernel, too, may start before the kernel in front of it in the stream has ended."""
        return self.dependent_launch in CHAINED

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.threads_per_row * self.rows_per_block

    @property
    def row_blocks(self) -> int:
        """Blocks that share one row: the cluster's, unless these only add their column sums together."""
        return 1 if self.columns == "cluster_partials" else self.cluster

    @property
    def strategy(self) -> str:
        """thread_per_row, warp_per_row, block_per_row or cluster_per_row, as reports name it."""
        if self.row_blocks > 1:
            return "cluster_per_row"
        if self.threads_per_row == 1:
            return "thread_per_row"
        return "warp_per_row" if self.threads_per_row <= 32 else "block_per_row"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

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


# The ways to sum columns that give the same bits in every run: each sum in a fixed order, no atomics on sums.
DETERMINISTIC_COLUMNS = ("partials_two_kernels", "cluster_partials", "partials_last_tile")
TWO_KERNELS = ("partials_two_kernels", "cluster_partials")  # a second kernel adds rows of partial sums

KNOBS: dict[str, tuple[Any, ...]] = {
    "threads_per_row": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    "rows_per_block": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "cluster": (1, 2, 4, 8, 16),
    "reduce_with": ("shuffle", "cooperative_groups", "shared_tree"),
    "vector": (1, 2, 4, 8, 16),
    "variance": ("two_pass", "sum_of_squares", "shifted", "welford"),
    "softmax": ("two_pass", "online"),
    "hold": ("registers", "shared", "hybrid", "reload"),
    "copy": ("direct", "cp_async", "bulk"),
    "edges": ("exact", "masked", "peel"),
    "persistent": (0, 1, 2, 3, 4, 6, 8, 12, 16),
    "stages": (1, 2, 3, 4),
    "unroll": (0, 1, 2, 4, 8),
    "load": ("default", "streaming", "cache_global", "no_allocate", "evict_first", "evict_last"),
    "store": ("default", "streaming", "cache_global", "evict_first"),
    "params": ("early", "late", "kept", "packed"),
    "blocks_per_sm": (0, 1, 2, 3, 4, 6, 8),
    "columns": (
        "partials_two_kernels",
        "cluster_partials",
        "partials_last_tile",
        "register_atomic",
        "shared_atomic",
        "atomic",
    ),
    "dependent_launch": ("off", "on", *CHAINED),
    "arithmetic": ("exact", "approximate"),
}


def schedule_from(values: Mapping[str, Any]) -> Schedule:
    """A schedule from a mapping of knobs; unknown knobs and values are errors."""
    for name, value in values.items():
        if name not in KNOBS:
            raise UsageError("unknown knob", received=name, hint=did_you_mean(name, KNOBS))
        if value not in KNOBS[name]:
            allowed = ", ".join(map(str, KNOBS[name]))
            raise UsageError(f"knob '{name}' takes one of: {allowed}", received=repr(value))
    return Schedule(**values)


def changed(schedule: Schedule, knobs: str) -> Schedule:
    """The schedule with the knobs of a text such as `vector=4 hold=shared` changed; `default` stands for no change."""
    pairs = [pair.partition("=") for pair in knobs.split() if pair != "default"]
    values = {name: int(value) if value.isdecimal() else value for name, _, value in pairs}
    return schedule_from(schedule.as_dict() | values)
