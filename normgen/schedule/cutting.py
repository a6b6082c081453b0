"""How a row is cut among threads: (vector, edges, threads), the best first, each rule with what was measured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from normgen.device import Device
from normgen.knobs import KNOBS, Edges, Hold
from normgen.problem.problem import Problem
from normgen.schedule.plan import WARP, held_bytes_per_thread, idle_lanes, steps_per_lane
from normgen.schedule.policy import are_few, leave_room
from normgen.schedule.schedule import Schedule

PLAIN = Schedule()
THREADS = tuple(1 << exponent for exponent in range(11))  # of a row and block; others are left to the search
WARPS = (8, 16, *range(WARP, 513, WARP))
SHORT_VECTORS = 20  # of a row, where a thread has one or two rather than more
LEAST_COVERED = 64  # bytes of a row that a narrow access of its threads covers: two sectors of a line
WALKED_BYTES = 196  # of a row, for each of 256 threads in a cluster
FITTING_THREADS = 1536  # of an SM, at the 42 registers that rows of such kernels take
NARROW_COLS = 2048  # of many rows that threads read by 4 bytes
CLUSTER_OF_1024 = 1.5  # what blocks of 1024 threads in a cluster are off by


def cuts(problem: Problem, device: Device, hold: Hold, cluster: int) -> Iterator[Schedule]:
    """Ways to cut a row among threads, the best first."""
    for vector, edges, threads in _pairs(problem, device, cluster):
        yield PLAIN.varied(
            threads_per_row=threads,
            rows_per_block=max(1, 128 // threads) if cluster == 1 else 1,
            cluster=cluster,
            vector=vector,
            edges=edges,
            hold=hold,
            unroll=0 if hold is Hold.REGISTERS else 1,
        )


def _pairs(problem: Problem, device: Device, cluster: int) -> Iterator[tuple[int, Edges, int]]:
    """(vector, edges, threads of a row and block), the best first: of one access after the other.

    Vectors of 16 and 8 bytes compete: those of 8 leave no lanes idle at 4096x7168 bf16 (256 threads; 3 % ahead of idle
    ones, 1 % at 1024 rows of 4 KiB), and of few short rows they keep twice as many threads busy (what tuning finds at
    3x1088, 22x320, 83x192 and 28x2944: 2 to 20 % of their prices). Groups of columns take vectors of 16 bytes, which
    leave fewer lanes to combine, and of few such rows any number of warps may be the one that leaves none idle
    (rmsnorm_to_fp8_group 29x1280: 160 threads take 0.79 of the price of 64). Where short rows are peeled they compete
    too (softmax 299551x91 bf16: 1.36 x), and few rows are peeled around those of 8 (rmsnorm 12x4409 and 40x2731: 0.84
    of the price, layernorm 5x3001: 0.79).
    """
    few, grouped = are_few(problem, device), bool(problem.spec.group)
    by_8 = few and cluster == 1 and problem.cols * problem.dtype.bytes > 8192 and not grouped
    found = list(accesses(problem, device, by_8=by_8))
    compete = not (by_8 or cluster > 1 or problem.sums_rows or grouped)
    together = 2 if compete and len({edges for _, edges in found[:2]}) == 1 else 1
    groups = [found[:together], *([access] for access in found[together:])]
    whole, half = ((size // problem.dtype.bytes, Edges.PEEL) for size in (16, 8))
    if few and cluster == 1 and not grouped and problem.dtype.bytes == 2:
        groups.insert(groups.index([whole]), [half])
    elif compete and problem.cols <= SHORT_VECTORS * whole[0]:
        groups[groups.index([whole])] = [whole, half]
    for group in groups:
        rated = [
            (_distance(problem, device, vector, edges, cluster, threads) + 0.15 * number, number, threads)
            for number, (vector, edges) in enumerate(group)
            for threads in (WARPS if few and grouped and 256 <= problem.cols <= 4096 else THREADS)
        ]
        yield from ((*group[number], threads) for _, number, threads in sorted(rated))


def accesses(problem: Problem, device: Device, *, by_8: bool) -> Iterator[tuple[int, Edges]]:
    """(vector, edges), the best first: whole rows by 8 bytes are worth more than peeled or masked ones by 16.

    By 4 bytes too where a thread has little to read (rmsnorm 33x2154 bf16 hot: 1.6 x as fast, 212x6274 fresh: 1.24 x)
    or column sums to keep beside it (layernorm backward 11252x450: 1.3 x), and of many rows up to 2048 cols (layernorm
    20000x1002: 0.77 of a peeled kernel's price, 166630x222: 0.70; rmsnorm 60000x334 and 10000x2046: 0.97 and 0.99;
    layernorm 4000x5002: 1.3). `by_8`: by 8 bytes first, as few rows of more than a vector for each of 512 threads
    (rmsnorm 1x7168: 9 %) and few without a reduction are: 32 of their 45 winners.
    """
    size = problem.dtype.bytes
    widths = [v for v in (16, 8, 4, 2, 1) if v * size <= 16]
    if by_8:
        widths.sort(key=lambda v: v * size != 8)
    least = 4 if leave_room(problem, device) or problem.column_outputs or problem.cols <= NARROW_COLS else 8
    yield from ((v, Edges.EXACT) for v in widths if v > 1 and v * size >= least)
    if leave_room(problem, device) and problem.cols * size <= 2048:
        # A thread of 512 has two elements: peeled edges cost more (layernorm 25x957 bf16: 1.3 x; H100, 180x289: 1.15).
        yield 1, Edges.EXACT
    yield from itertools.product(widths, (Edges.EXACT, Edges.MASKED, Edges.PEEL))


def _distance(problem: Problem, device: Device, vector: int, edges: Edges, cluster: int, threads: int) -> float:
    """How far so many threads of a row and block are from what is wanted.

    With column sums about two of 16 bytes a thread, which take registers too, and few idle lanes. Else about four of
    16 bytes, in blocks of 128 rather than more (4096x6144 bf16: 128 threads 20 % ahead of 256) and of 1024 only where
    nothing else is left; two where the rows leave SMs room (256x4096 bf16: 6 %) and of rows of up to 20 in whole lines
    (65536x128: 5 % of the price, 100000x128: 4 %), one of other rows of up to 20 (524288x64: 13 %). In a cluster 256
    threads that hold up to 196 bytes each (softmax 500x50000 bf16: 2 % ahead of 512, rmsnorm 112x106432: 5 %), else
    512; not 1024, whose clusters wait for as many free SMs (layernorm 12x208320: 1.8 x the price of 256; on an H100
    rmsnorm_to_fp8_token 7x203968 1.29 x the chain of 512, softmax 8x128256 1.9 x, rmsnorm_to_fp8 25x23757 1.09 x).
    512 too where blocks are fewer than SMs (16x4096 bf16 with its weights in DRAM: 9 % ahead of 256), 256 of up to 4 KB
    (layernorm 3x1018 f32: 12 % of the price; 1x2048 and 64x2048 bf16), 128 of peeled rows (rmsnorm 12x4409: 14 %). No
    more than find room at a time (rmsnorm 526x10560: 256 threads 9 % ahead of 512). Idle lanes cost their share, and
    wait with the others (32x5120 bf16: 6 %, layernorm 1245x13184 to int8: 20 %). Threads whose narrow
    accesses cover less than two sectors of a row fetch the rest in vain (rmsnorm to fp8, by elements: 5000x333 takes
    2.4 x as long by 8 threads as by 32, 1.4 x by 16; 50000x4097 1.3 x by 256 as by 128).
    """
    width = min(16, vector * problem.dtype.bytes) / 16
    cut = PLAIN.varied(threads_per_row=threads, vector=vector, cluster=cluster)
    steps, idle = steps_per_lane(problem, cut), idle_lanes(problem.cols, cut)
    is_roomy = leave_room(problem, device)
    vectors = problem.cols // vector * width
    of_lines = width == 1 and problem.cols * problem.dtype.bytes % 128 == 0
    aim = 2 if problem.column_outputs or is_roomy else 4
    if aim == 4 and vectors <= SHORT_VECTORS:
        aim = 2 if of_lines and vectors > 8 else 1
    if problem.column_outputs:
        return (abs(steps * width - aim) if steps >= 2 else 1.5) + 4 * idle + 8 * (threads == 1024)
    is_walking = cluster > 1 and walks(problem, device, cluster)
    few = are_few(problem, device) and not is_walking
    waits = 2 * (is_roomy and not is_walking and not find_room(problem.rows * cluster, threads, device))
    if few or cluster > 1:
        many = 256 if held_bytes_per_thread(problem, cut.varied(threads_per_row=256)) <= WALKED_BYTES else 512
        is_little = width == 0.5 and problem.cols * problem.dtype.bytes <= 4096
        one = 128 if edges is Edges.PEEL else 256 if is_little else 512
        usual, most = many, 16.0
        if few and cluster == 16:
            usual, most = 256, 8 / width
        elif few:
            usual, most = one if cluster == 1 else 128, min(16 if vector == 1 else 8, 4 / width)
        is_spread = steps < 2 and not (few and cluster == 1)
        off = abs(math.log2(threads / usual)) + 2 * max(is_spread, math.log2(max(1, steps) / most))
        wide = CLUSTER_OF_1024 * (cluster > 1 and threads == 1024 and vector > 1)
        return off + waits + wide + (8 * idle if cluster == 1 else 0)
    off = abs(math.log2(max(steps, 0.75) * width / aim)) + 5.5 * max(0.0, idle) + waits
    size = problem.dtype.bytes
    if vector * size < 8:
        off += 2 * max(0.0, math.log2(min(LEAST_COVERED, problem.cols * size) / (threads * vector * size)))
    return off + {256: 0.2, 512: 0.2, 1024: 1.1}.get(threads, 0.0)


def find_room(blocks: int, threads: int, device: Device) -> bool:
    """Whether all blocks of so many threads find room at a time: none waits for another to end."""
    return math.ceil(blocks / device.sm_count) <= FITTING_THREADS // threads


def walks(problem: Problem, device: Device, cluster: int) -> bool:
    """Whether clusters walk rows: where all have about as many, and there are more than fit (of 1024 threads an SM).

    299 rows of log_softmax, two for one cluster in eight and one for the others, lose 8 % by it.
    """
    if are_few(problem, device) and problem.rows * cluster <= 4 * device.sm_count:
        return False
    rows = problem.rows * cluster / (4 * device.sm_count)
    return math.ceil(rows) <= 1.3 * rows


def at_most(name: str, wanted: float) -> int:
    """The largest value of the knob that does not exceed `wanted`, and at least one block or row."""
    return int(max(v for v in KNOBS[name].values if v <= max(1, wanted)))
