"""The schedules of a contraction that are searched, and what of its work the busiest SM has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from normgen.device import Device
from normgen.problem.problem import Problem
from normgen.schedule.knobs import KNOBS, Copy, Hold, Softmax
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.online import moves
from normgen.schedule.tiles.plan import contraction

# Sides of a tile differ by at most this factor: a wider one reads more for the products that it has.
MOST_OBLONG = 4
THREADS = (64, 128, 256)  # of a block
# How tiles come: (copy, stages, tile_k)
WAYS = (
    (Copy.CP_ASYNC, 3, 16),
    (Copy.CP_ASYNC, 4, 8),
    (Copy.CP_ASYNC, 2, 32),
    (Copy.DIRECT, 2, 16),
    (Copy.DIRECT, 2, 8),
    (Copy.DIRECT, 1, 32),
)


# ... of a side that waits for its rows' statistics, which is computed on its way and whose rows are long
WAYS_OF_WAITING = ((Copy.DIRECT, 2, 32), (Copy.DIRECT, 2, 16), (Copy.DIRECT, 1, 32))


def ways(problem: Problem) -> tuple[tuple[Softmax, Copy, int, int], ...]:
    """(softmax, copy, stages, tile_k): first those in which a row is read once."""
    cut = contraction(problem)
    if not cut.ahead:
        return tuple((Softmax.TWO_PASS, *way) for way in WAYS)
    methods = (Softmax.ONLINE, Softmax.TWO_PASS) if moves(cut) else (Softmax.TWO_PASS,)
    return tuple((method, *way) for method in methods for way in WAYS_OF_WAITING)


def points(problem: Problem) -> Iterator[Schedule]:
    """The cuts with the widest vector that the problem has, in all ways; where a spec names a knob's values, these."""
    asked = problem.searched_knobs
    for base, (softmax, copy, stages, tile_k) in itertools.product(cuts(problem), ways(problem)):
        found = base.varied(softmax=softmax, copy=copy, stages=stages, tile_k=tile_k)
        if all(getattr(found, name) in values for name, values in asked.items() if values):
            yield found


def cuts(problem: Problem) -> list[Schedule]:
    """Tiles, and what a thread has of them, of which not more than half would lie beyond the result's edges."""
    vector = widest(problem)
    found: list[Schedule] = []
    sizes = [problem.sizes.along(axis) for axis in (contraction(problem).m, contraction(problem).n)]
    tiles = [
        [tile for tile in KNOBS[name].values[1:] if tile < 2 * max(size, 16)]
        for name, size in zip(("tile_m", "tile_n"), sizes, strict=True)
    ]
    if contraction(problem).ahead:  # each tile along n reads the rows again, and computes what waits for them
        tiles[1] = tiles[1][-1:]
    for tile_m, tile_n in itertools.product(*tiles):
        if max(tile_m, tile_n) > MOST_OBLONG * min(tile_m, tile_n) and min(sizes) >= 64:
            continue
        for thread_m, thread_n in itertools.product((2, 4, 8), (2, 4, 8)):
            threads = tile_m // thread_m * (tile_n // thread_n)
            if threads in THREADS and thread_m <= 2 * thread_n and thread_n <= 2 * thread_m:
                found.append(
                    Schedule(
                        hold=Hold.SHARED,
                        vector=vector,
                        tile_m=tile_m,
                        tile_n=tile_n,
                        tile_k=8,
                        thread_m=thread_m,
                        thread_n=thread_n,
                    )
                )
    return found


def widest(problem: Problem) -> int:
    """Elements of the widest access that all its tensors allow."""
    if problem.any_cols:
        return 1
    lengths = [problem.sizes.along(t.axes[-1]) for t in problem.tensors if t.kind.is_matrix]
    aligned = [problem.row_alignment(t) // t.dtype.bytes for t in problem.tensors if t.kind.is_matrix]
    return max(1, math.gcd(16 // problem.dtype.bytes, *lengths, *aligned))


def tiles_of(problem: Problem, s: Schedule) -> int:
    """Tiles of the result, of all batches."""
    cut, batches = contraction(problem), problem.batches if problem.rows_per_batch else 1
    lines = problem.rows_per_batch if problem.rows_per_batch and cut.m == "rows" else problem.sizes.along(cut.m)
    return batches * -(-lines // s.tile_m) * -(-problem.sizes.along(cut.n) // s.tile_n)


def busiest_products(problem: Problem, s: Schedule, device: Device) -> float:
    """Products that the busiest SM has, each at what it costs with its share of reads of shared memory."""
    busiest = -(-tiles_of(problem, s) // device.sm_count)
    # A warp's read of four floats takes the time of four instructions: 16 threads get 16 bytes each in two clocks.
    reads = 1 / s.thread_m + 1 / s.thread_n
    return busiest * s.tile_m * s.tile_n * (1 + reads)
