"""The schedules of a contraction that are searched: tiles from what a thread owns, ways from what waits in flight."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from normgen.device import Device
from normgen.knobs import KNOBS, ArithmeticMode, Copy, DependentLaunch, Fragment, Hold, SoftmaxMethod
from normgen.problem.problem import Problem
from normgen.program.ir import value_alone
from normgen.schedule.lanes.space import problem_arithmetic
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.clocks import busy_clocks, tiles_of
from normgen.schedule.tiles.cut import contraction
from normgen.schedule.tiles.fragment import has_tensor_cores
from normgen.schedule.tiles.online import moves
from normgen.schedule.tiles.plan import OTHER_REGISTERS, tile_problem_plan
from normgen.schedule.tiles.rules import vector as vector_rule
from normgen.schedule.tiles.wgmma import COLUMNS, LINES, Wgmma

# Sides of a tile differ by at most this factor: a wider one reads more for the products that it has.
MOST_OBLONG = 4
THREADS = {Fragment.SIMT: (64, 128, 256), Fragment.MMA: (32, 64, 128, 256)}  # of a block
LARGEST = 128  # elements of the result that a thread owns
MOST_CUTS = {Fragment.SIMT: 20, Fragment.MMA: 40}  # that are searched
NEAR = 2.0  # cuts that the formula gives up to so many times the clocks of the best one
TEAMS = ((64, 2), (128, 2), (128, 4), (256, 4))  # (tile_m, thread_m) of one team, or of two
PARTS_OF_TEAMS = (1, 2, 4)  # blocks of a cluster
MOST_DEPTHS = 3  # numbers of stages of a tile of teams that are searched
# How tiles come: (copy, stages, tile_k)
WAYS = (
    (Copy.CP_ASYNC, 3, 16),
    (Copy.CP_ASYNC, 2, 32),
    (Copy.CP_ASYNC, 3, 32),
    (Copy.CP_ASYNC, 4, 16),
    (Copy.CP_ASYNC, 4, 8),
    (Copy.DIRECT, 2, 16),
    (Copy.DIRECT, 2, 8),
    (Copy.DIRECT, 2, 32),
    (Copy.DIRECT, 1, 32),
    (Copy.DIRECT, 1, 16),
)
# ... of tensor cores, whose steps are short
WAYS_OF_TENSORS = (
    (Copy.CP_ASYNC, 3, 32),
    (Copy.CP_ASYNC, 4, 32),
    (Copy.CP_ASYNC, 2, 32),
    (Copy.CP_ASYNC, 2, 64),
    (Copy.CP_ASYNC, 3, 64),
    (Copy.CP_ASYNC, 4, 64),
    (Copy.DIRECT, 2, 32),
    (Copy.DIRECT, 1, 64),
)
# ... of a side that waits for its rows' statistics, which is computed on its way and whose rows are long
WAYS_OF_WAITING = (
    (Copy.CP_ASYNC, 2, 32),
    (Copy.CP_ASYNC, 2, 16),
    (Copy.CP_ASYNC, 3, 16),
    (Copy.DIRECT, 2, 32),
    (Copy.DIRECT, 2, 16),
    (Copy.DIRECT, 1, 32),
)


def ways(problem: Problem, fragment: Fragment) -> tuple[tuple[SoftmaxMethod, Copy, int, int], ...]:
    """(softmax, copy, stages, tile_k): first those in which a row is read once."""
    cut = contraction(problem)
    methods = (SoftmaxMethod.ONLINE, SoftmaxMethod.TWO_PASS) if moves(cut) else (SoftmaxMethod.TWO_PASS,)
    methods = methods[:1] if fragment is Fragment.MMA else methods
    of_simt = WAYS_OF_WAITING if cut.ahead else WAYS
    known = of_simt if fragment is Fragment.SIMT else WAYS_OF_TENSORS
    return tuple((method, *way) for method in methods for way in known)


def points(problem: Problem, device: Device) -> Iterator[Schedule]:
    """The best cuts in all ways, as registers fall and bound to as many blocks an SM as their data leaves room for;
    where a spec names a knob's values, these.
    """
    asked = problem.searched_knobs
    fragment = Fragment.MMA if has_tensor_cores(problem, device) else Fragment.SIMT
    bases = cuts(problem, device, fragment)
    known = [dict(zip(("softmax", "copy", "stages", "tile_k"), way, strict=True)) for way in ways(problem, fragment)]
    bases = [base.varied(arithmetic=arithmetic_of(problem)) for base in bases]
    in_ways = {base: [base.varied(**way) for way in known] for base in bases}
    best = {base: min((c for s in made if (c := _clocks(problem, s, device))), default=math.inf)
            for base, made in in_ways.items()}  # fmt: skip
    near = sorted((base for base in bases if best[base] <= NEAR * min(best.values())), key=best.__getitem__)
    streamed = (*streams(problem, device), *teams(problem, device), *makers(problem, device))
    streamed = streamed if fragment is Fragment.MMA else ()
    in_parts = (part for base in near[: MOST_CUTS[fragment]] for found in in_ways[base]
                for part in parted(problem, found, device))  # fmt: skip
    for found in (*streamed, *in_parts):
        bounded = bound(problem, found, device)
        early = [found.varied(dependent_launch=DependentLaunch.START)] if found.hold is Hold.RELOAD else []
        for schedule in (found, *([found.varied(blocks_per_sm=bounded)] if bounded else []), *early):
            if all(getattr(schedule, name) in values for name, values in asked.items() if values):
                yield schedule


def streams(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Of few lines along m: warps share k, and read lines of both sides straight from memory.

    What the formula calls alike stays in this order: 64 of k in twice as many warps took 0.96 of the time of 128 on an
    H200, 32 in twice as many 1.04 times that of 64 (175 pairs of each of the trials of decoding).
    """
    grouped, lines = contraction(problem).grouped, problem.sizes.along(contraction(problem).m)
    least = grouped.size if grouped else 0
    tile_m = next((tile for tile in (8, 16, 32, 64) if tile >= lines), 0)
    tiles_n = dict.fromkeys(max(tile_n, least) for tile_n in (16, 32, 64))
    for tile_k, tile_n, warps in itertools.product((64, 128, 32) if tile_m else (), tiles_n, (2, 4, 8, 16)):
        each = tile_m * tile_n // (32 * warps)
        way = Schedule(hold=Hold.RELOAD, fragment=Fragment.MMA, vector=widest(problem, device), tile_k=tile_k)
        if each:
            cut = way.varied(tile_m=tile_m, tile_n=tile_n, thread_m=-(-each // 4), thread_n=min(each, 4))
            yield from parted(problem, cut, device)


def parted(problem: Problem, s: Schedule, device: Device) -> Iterator[Schedule]:
    """The schedule, and of fewer tiles than two an SM the one in which two blocks share a tile's k.

    Clusters of 4 and 8 are for those who ask: of products of 64 and 256 rows on an H200 they took 1.2 to 2 times as
    long as clusters of two.
    """
    yield s
    if s.fragment is Fragment.MMA and tiles_of(problem, s) < 2 * device.sm_count:
        yield s.varied(cluster=2)


def teams(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Of many lines: tiles that teams of four warps multiply, with as many stages as there is room for, or fewer.

    The copy engine is slow to fill lines with zeros: on an H200 16 rows of 4096 columns, of 14336 products each, take
    41.9 µs in tiles that 64 rows take 33.2 µs in. Less than half a tile is left to the others.
    """
    vector, cut = widest(problem, device), contraction(problem)
    way = Schedule(hold=Hold.SHARED, copy=Copy.BULK, fragment=Fragment.WGMMA, vector=vector)
    cores = Wgmma(problem, way, cut)
    if cores.untensored:
        return
    way = way.varied(tile_k=cores.line)
    way = way.varied(arithmetic=problem_arithmetic(problem))  # tensor cores wait for what is behind their products
    sizes = [problem.sizes.along(axis) for axis in (cut.m, cut.n)]
    for (tile_m, thread_m), tile_n in itertools.product(TEAMS, COLUMNS):
        if tile_m >= 2 * sizes[0] or tile_n >= 2 * max(sizes[1], LINES):
            continue
        tile = way.varied(tile_m=tile_m, tile_n=tile_n, thread_m=thread_m, thread_n=tile_n // 4)
        shared = device.sm_count // tiles_of(problem, tile)  # by so many a tile is, and each block has an SM of its own
        for cluster in (parts for parts in PARTS_OF_TEAMS if parts == 1 or parts <= shared):
            depths = (tile.varied(stages=stages, cluster=cluster) for stages in reversed(KNOBS["stages"].values))
            yield from itertools.islice((s for s in depths if refusal(problem, s, device) is None), MOST_DEPTHS)


def arithmetic_of(problem: Problem) -> ArithmeticMode:
    """Results of 16 bits hide approximate exponentials, which pay where each k, or each result, takes some."""
    cut = contraction(problem)
    is_hidden = all(t.dtype.bytes <= 2 for t in problem.tensors if t.is_written and len(t.axes) > 1)
    takes = cut.left.exponentials + cut.right.exponentials + cut.exponentials
    return ArithmeticMode.APPROXIMATE if is_hidden and takes else ArithmeticMode.EXACT


def makers(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Of a left side that is computed: lanes make its factors of lines that they read once, warps own whole rows."""
    cut = contraction(problem)
    if all(map(value_alone, cut.left.slots)):
        return
    cols = problem.sizes.along(cut.n)
    tile_n = next((tile for tile in KNOBS["tile_n"].values[1:] if tile >= cols), KNOBS["tile_n"].values[-1])
    way = Schedule(hold=Hold.REGISTERS, copy=Copy.CP_ASYNC, fragment=Fragment.MMA, vector=widest(problem, device))
    way = way.varied(tile_n=tile_n, thread_n=tile_n // 4, arithmetic=arithmetic_of(problem))
    way = way.varied(softmax=SoftmaxMethod.ONLINE if moves(cut) else SoftmaxMethod.TWO_PASS)
    for warps, thread_m, tile_k, stages in itertools.product((8, 4, 2), (4, 2), (64, 32), (2, 3, 4)):
        found = way.varied(tile_m=8 * thread_m * warps, thread_m=thread_m, tile_k=tile_k, stages=stages)
        if refusal(problem, found, device) is None:
            yield found


def _clocks(problem: Problem, s: Schedule, device: Device) -> float:
    """Those of a legal schedule; of another one none."""
    return busy_clocks(problem, s, device) if refusal(problem, s, device) is None else 0.0


def bound(problem: Problem, s: Schedule, device: Device) -> int:
    """Blocks an SM that a thread's data leaves registers for; 0: one, which needs no bound."""
    need = -(-(tile_problem_plan(problem, s).held_registers + OTHER_REGISTERS) // 8) * 8
    blocks = device.registers_per_sm // (max(1, s.threads) * need)
    known = [value for value in KNOBS["blocks_per_sm"].values if 1 < value <= blocks]
    return max(known, default=0)


def cuts(problem: Problem, device: Device, fragment: Fragment) -> list[Schedule]:
    """Tiles, and what a thread has of them, of which not more than half would lie beyond the result's edges."""
    vector, found = widest(problem, device), list[Schedule]()
    sizes = [problem.sizes.along(axis) for axis in (contraction(problem).m, contraction(problem).n)]
    tiles = [
        [tile for tile in KNOBS[name].values[1:] if 16 <= tile < 2 * max(size, 16) and tile & (tile - 1) == 0]
        for name, size in zip(("tile_m", "tile_n"), sizes, strict=True)
    ]
    tall = 4 if fragment is Fragment.MMA else 2  # a warp's part is as wide as tall where a thread's is twice as wide
    if contraction(problem).ahead:  # each tile along n reads the rows again, and computes what waits for them
        tiles[1] = tiles[1][-1:]
    for tile_m, tile_n in itertools.product(*tiles):
        if max(tile_m, tile_n) > MOST_OBLONG * min(tile_m, tile_n) and min(sizes) >= 64:
            continue
        for thread_m, thread_n in itertools.product((2, 4, 8, 16), repeat=2):
            threads = tile_m // thread_m * (tile_n // thread_n)
            is_square = thread_m <= 2 * thread_n and thread_n <= tall * thread_m
            if threads in THREADS[fragment] and is_square and thread_m * thread_n <= LARGEST:
                cut = {"tile_m": tile_m, "tile_n": tile_n, "thread_m": thread_m, "thread_n": thread_n}
                found.append(Schedule(hold=Hold.SHARED, vector=vector, tile_k=8, fragment=fragment, **cut))
    return found


def widest(problem: Problem, device: Device) -> int:
    """Elements of the widest access that all its tensors allow."""
    tile = Schedule(hold=Hold.SHARED, tile_m=64, tile_n=64, tile_k=16, thread_m=4, thread_n=4)
    values: Iterator[int] = (v for v in reversed(KNOBS["vector"].values) if v <= tile.tile_k)
    return next(v for v in values if vector_rule(problem, tile.varied(vector=v), device) is None)
