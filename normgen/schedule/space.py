"""All legal schedules of a problem on a device, each refusal with its reason, and the default among them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from normgen.device import Device
from normgen.errors import NothingValidError
from normgen.problem.problem import Problem
from normgen.program.rewrites.approximate import has_exponentials
from normgen.program.rewrites.reductions import applicable
from normgen.program.source import written_program
from normgen.schedule.legality import (
    CUT,
    FREE,
    STRUCTURAL,
    column_outputs,
    held_bytes_per_thread,
    held_register_limit,
    hints,
    param_bytes_per_thread,
    refusal,
    steps_per_lane,
    sums_in_registers,
)
from normgen.schedule.policy import (
    CHAINED_BYTES,
    ONE_KNOB,
    plain_only,
    searched_cluster,
    searched_columns,
    searched_hint,
    searched_launch,
    searched_method,
    searched_place,
    searched_tile,
)
from normgen.schedule.schedule import CHAINED, KNOBS, Schedule
from normgen.spec.spec import Kind

# What a spec that says nothing searches. Knobs that are not listed keep the schedule's default.
DEFAULT_KNOBS: dict[str, tuple[Any, ...]] = {
    "threads_per_row": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    "cluster": (1, 2, 4, 8, 16),
    "rows_per_block": (1, 2, 4, 8, 16, 32, 128),  # as far as 256 threads a block
    "vector": (1, 2, 4, 8),
    "hold": ("registers", "shared", "hybrid", "reload"),
    "copy": ("direct", "cp_async", "bulk"),
    "edges": ("exact", "masked", "peel"),
    "persistent": (0, 1, 2, 4, 8, 16),
    "stages": (1, 2),
    "reduce_with": ("shuffle", "cooperative_groups", "shared_tree"),
    # Not sum_of_squares: it loses rows that a dtype can hold (near_level and sparse_steps of verify/rows.py).
    "variance": ("two_pass", "shifted", "welford"),
    "softmax": ("two_pass", "online"),
    "unroll": (0, 1, 4),
    "load": ("evict_last", "default", "no_allocate"),
    "store": ("default", "streaming"),
    "params": ("late", "early", "kept", "packed"),
    "blocks_per_sm": (0,),
    "dependent_launch": ("off", *CHAINED),
}
# Backward programs with column reductions: a persistent grid that keeps column sums in registers.
BACKWARD_KNOBS: dict[str, tuple[Any, ...]] = {
    "threads_per_row": (1, 8, 16, 32, 64, 128, 256, 512, 1024),
    "rows_per_block": (1, 2, 4, 8, 16, 32, 128),
    "cluster": (1, 2, 4, 8),
    "vector": (1, 2, 4, 8),
    "hold": ("registers", "shared", "reload"),
    "copy": ("direct", "cp_async", "bulk"),
    "edges": ("exact", "masked", "peel"),
    "persistent": (0, 1, 2, 3, 4),
    "stages": (1, 2, 3, 4),
    # Not cluster_partials: 1.02 to 1.11 times the time of partials_two_kernels (figures: normgen/codegen/columns.py).
    "columns": ("partials_two_kernels", "partials_last_tile", "register_atomic", "shared_atomic", "atomic"),
    "unroll": (0, 1),
    "load": ("default", "no_allocate", "evict_last"),
    "store": ("default", "streaming"),
    "params": ("late", "kept"),
    "dependent_launch": ("off", "on", "start", "end"),
}
CUT_KNOBS = ("threads_per_row", "rows_per_block", "cluster", "vector", "edges")  # how rows are cut
PLACE_KNOBS = ("hold", "copy", "persistent", "stages")  # where they wait, and how many
STRUCTURAL_KNOBS = (*CUT_KNOBS, *PLACE_KNOBS)
METHOD_KNOBS = ("reduce_with", "variance", "softmax", "columns")
FREE_KNOBS = tuple(name for name in KNOBS if name not in (*STRUCTURAL_KNOBS, *METHOD_KNOBS))
L1_ALONE = 28 << 10  # of an SM's L1, what shared memory cannot have (compute capability 8.0 to 9.0)
EARLY_BYTES = 128  # of parameters a thread may hold beside its row


@dataclass(kw_only=True)
class Refusal:
    """One reason, how many points it refused, and one of them."""

    reason: str
    count: int
    example: Schedule


@dataclass(frozen=True, kw_only=True)
class Space:
    """`legal` in a fixed order; `refusals` by how many points they cost."""

    problem: Problem
    device: Device
    legal: tuple[Schedule, ...]
    refusals: tuple[Refusal, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.legal)


def with_default(legal: Sequence[Schedule], default: Schedule) -> list[Schedule]:
    """The legal schedules with the default among them: a spec's own search space may leave it out."""
    return list(legal) if default in legal else [default, *legal]


def knob_values(problem: Problem, rewrites: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[Any, ...]]:
    """The values searched for every knob: the spec's of this direction, else the defaults.

    Of knobs that change nothing here, as rewrites do without a variance and `columns` without column sums, one value.
    """
    default = Schedule()
    values: dict[str, tuple[Any, ...]] = {}
    asked = problem.searched_knobs
    chosen = {**(BACKWARD_KNOBS if column_outputs(problem) else DEFAULT_KNOBS), **asked}
    for name in KNOBS:
        searched = chosen.get(name, (getattr(default, name),))
        if name in ("variance", "softmax"):
            applicable = rewrites.get(name, ())
            searched = tuple(v for v in searched if v in applicable) or (getattr(default, name),)
        if name == "params":
            searched = tuple(v for v in searched if v in _params_values(problem)) or (default.params,)
        if name == "columns" and not column_outputs(problem):
            searched = (default.columns,)
        if name == "arithmetic" and name not in asked and _approximates(problem):
            searched = ("approximate",)
        values[name] = tuple(searched)
    return values


def _approximates(problem: Problem) -> bool:
    """Whether exponentials are approximate: outputs of 16 bits hide it, and it takes 3 instructions instead of 8."""
    narrow = all(t.dtype.bytes <= 2 for t in problem.tensors if t.is_written)
    return (
        narrow
        and "approximate" in problem.searched_knobs.get("arithmetic", ("approximate",))
        and has_exponentials(written_program(problem))
    )


def _params_values(problem: Problem) -> tuple[str, ...]:
    """Values of `params` that mean something: 32-bit parameters have no packed form."""
    if not problem.parameter_bytes:
        return ("late",)
    narrow = any(t.dtype.bytes < 4 for t in problem.tensors if t.kind is Kind.COL and not t.is_written)
    return ("late", "early", "kept", "packed") if narrow else ("late", "early", "kept")


def space(problem: Problem, device: Device) -> Space:
    """Enumerate the search space of `problem` on `device`."""
    values = knob_values(problem, applicable(written_program(problem)))
    legal: list[Schedule] = []
    refusals: dict[str, Refusal] = {}
    for structure in _structures(problem, device, values, refusals):
        reason = refusal(problem, structure, device, (*STRUCTURAL, searched_tile, searched_cluster, searched_place))
        if reason is not None:
            _count(refusals, reason, structure)
            continue
        for base in _points(structure, METHOD_KNOBS, values):
            unsearched = searched_method(base)
            if unsearched is not None:
                _count(refusals, unsearched, base)
                continue
            plain = plain_only(problem, base)
            if plain is not None:
                _count(refusals, plain, base)
            if plain is not None and base.persistent > (1 if column_outputs(problem) else 0):
                continue
            lists = values if plain is None else _plain(problem, base, device, values)
            for schedule in _points(base, FREE_KNOBS, _promising(problem, base, device, lists, refusals)):
                reason = refusal(problem, schedule, device, (*FREE, searched_hint, searched_launch, searched_columns))
                if reason is None:
                    legal.append(schedule)
                else:
                    _count(refusals, reason, schedule)
    ordered = sorted(refusals.values(), key=lambda r: (-r.count, r.reason))
    return Space(problem=problem, device=device, legal=tuple(legal), refusals=tuple(ordered))


def _plain(
    problem: Problem, base: Schedule, device: Device, values: Mapping[str, tuple[Any, ...]]
) -> dict[str, tuple[Any, ...]]:
    """The values of the free knobs at a point that is searched only once: the first ones that this policy allows."""
    lists = {n: v[:1] for n, v in values.items()} | {"unroll": values["unroll"]}
    for name, rule in (("load", hints), ("dependent_launch", searched_launch)):
        allowed = [v for v in values[name] if rule(problem, replace(base, **{name: v}), device) is None]
        lists[name] = tuple(allowed[:1]) or lists[name]
    return lists


def _structures(
    problem: Problem, device: Device, values: Mapping[str, tuple[Any, ...]], refusals: dict[str, Refusal]
) -> Iterator[Schedule]:
    """Cuts of a row that are legal by themselves, with every place and number of rows: most of the product is not."""
    places = math.prod(len(values[n]) for n in PLACE_KNOBS)
    plainest = Schedule(params="late", unroll=1, columns=values["columns"][0])
    for cut in _points(plainest, CUT_KNOBS, values):
        reason = refusal(problem, cut, device, CUT)
        if reason is None:
            yield from _points(cut, PLACE_KNOBS, values)
        else:
            _count(refusals, reason, cut, places)


def _promising(
    problem: Problem,
    base: Schedule,
    device: Device,
    values: Mapping[str, tuple[Any, ...]],
    refusals: dict[str, Refusal],
) -> dict[str, tuple[Any, ...]]:
    """`values` without those that no other free knob can make legal: most points of a space need not be visited.

    A rule that names one free knob and structure alone refuses its value at all points of `base`.
    """
    left = dict(values)
    for name in ONE_KNOB:
        for value in values[name]:
            example = replace(base, **{name: value})
            reason = next((r for rule in ONE_KNOB[name] if (r := rule(problem, example, device)) is not None), None)
            if reason is not None and len(left[name]) > 1:
                left[name] = tuple(v for v in left[name] if v != value)
                points = math.prod(len(left[n]) for n in FREE_KNOBS if n != name)
                _count(refusals, reason, example, points)
    return left


def _points(base: Schedule, names: tuple[str, ...], values: Mapping[str, tuple[Any, ...]]) -> Iterator[Schedule]:
    knobs = dict(vars(base))  # dataclasses.replace looks at every field again for each point
    for combination in itertools.product(*(values[n] for n in names)):
        knobs.update(zip(names, combination, strict=True))
        yield Schedule(**knobs)


def _count(refusals: dict[str, Refusal], reason: str, schedule: Schedule, points: int = 1) -> None:
    if reason in refusals:
        refusals[reason].count += points
    else:
        refusals[reason] = Refusal(reason=reason, count=points, example=schedule)


def default_schedule(problem: Problem, device: Device) -> Schedule:
    """A legal schedule that is good without any measurement: what the tuner has to beat.

    Rows wait in registers, in as few blocks as hold them, else in shared memory, else they are read again; one block
    owns several short rows. Many long rows go to shared memory first: see `_long_rows`.

    Raises NothingValidError if no schedule is legal, which would be a hole in the space.
    """
    if column_outputs(problem):
        candidates = _with_columns(problem, device)
    else:
        candidates = itertools.chain(_long_rows(problem, device), _without_columns(problem, device))
    arithmetic = "approximate" if _approximates(problem) else "exact"
    # One look and one exchange less pay from 16 KiB on: 1 % at 8192x4096 bf16, where two looks win, 4 to 14 % above.
    long = problem.cols * problem.row_input_bytes >= 16384
    softmax = "online" if long and "online" in applicable(written_program(problem))["softmax"] else "two_pass"
    for schedule in (replace(s, arithmetic=arithmetic, softmax=softmax) for s in candidates):
        if refusal(problem, schedule, device) is None:
            return schedule
    raise NothingValidError("no schedule is legal for this problem", received=str(problem))


def _cut(problem: Problem, hold: str, cluster: int, *, few: bool = False) -> Iterator[Schedule]:
    """Ways to cut a row among threads, the best first."""
    for vector, edges in _accesses(problem, few=few):
        for threads in _thread_preference(problem, vector, cluster, few=few):
            yield Schedule(
                threads_per_row=threads,
                rows_per_block=max(1, 128 // threads) if cluster == 1 else 1,
                cluster=cluster,
                vector=vector,
                edges=edges,
                hold=hold,
                unroll=0 if hold == "registers" else 1,
            )


def _accesses(problem: Problem, *, few: bool) -> Iterator[tuple[int, str]]:
    """(vector, edges), the best first: whole rows by 8 bytes are worth more than peeled or masked ones by 16.

    By 4 bytes too where a thread has little to read (rmsnorm 33x2154 bf16 hot: 1.6 x as fast) or column sums to keep
    beside it (layernorm backward 11252x450: 1.3 x).
    """
    size = problem.dtype.bytes
    widths = [v for v in (16, 8, 4, 2, 1) if v * size <= 16]
    least = 4 if few or column_outputs(problem) else 8
    yield from ((v, "exact") for v in widths if v > 1 and v * size >= least)
    yield from itertools.product(widths, ("exact", "masked", "peel"))


def _long_rows(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Defaults of many rows of 32 KiB and more: in shared memory, brought there by asynchronous copies.

    In registers such a row leaves an SM room for one or two blocks, and little is on its way while they compute. In
    shared memory three rows of 64 KiB fit: 1.3 x as fast as in registers for softmax 16384x32768, 1.6 x for layernorm
    8192x16384 (bf16). Two rows must fit, and the parameters in what is left of the L1, or every row fetches them from
    L2: then two blocks that walk rows keep a half each (layernorm 4096x32768: 1.1 x as fast).
    A row too long for shared memory that meets no parameters waits in registers for the rest (log_softmax 4096x151936:
    1.18 x as fast as a cluster).
    """
    row = problem.cols * problem.row_input_bytes
    if device.arch < 80 or problem.any_cols or row < 32768 or problem.rows < 4 * device.sm_count:
        return
    sm90 = device.arch >= 90
    blocks = min(4, device.shared_per_sm // (row + 2048))
    if blocks < 2:
        if blocks == 0 and not _has_parameters(problem):
            yield from _copied(problem, Schedule(hold="hybrid", threads_per_row=1024, unroll=0), bulk=sm90)
    elif problem.cols * problem.parameter_bytes <= device.shared_per_sm + L1_ALONE - blocks * row:
        yield from _copied(problem, Schedule(hold="shared", threads_per_row=512, unroll=4), bulk=sm90)
    elif sm90:
        halves = Schedule(hold="registers", threads_per_row=512, cluster=2, unroll=0)
        yield from _copied(problem, replace(halves, persistent=2, stages=2, params="early"), bulk=True)


def _copied(problem: Problem, wanted: Schedule, *, bulk: bool) -> Iterator[Schedule]:
    """`wanted` with rows that come by bulk copies, which stay in L2 longest, or by cp.async."""
    for copy in ("bulk", "cp_async") if bulk else ("cp_async",):
        for cut in _cut(problem, wanted.hold, wanted.cluster):
            if cut.threads_per_row == wanted.threads_per_row:
                load = "evict_last" if copy == "bulk" else "default"
                yield replace(wanted, vector=cut.vector, edges=cut.edges, copy=copy, load=load)


def _without_columns(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Defaults of programs whose rows have nothing to do with each other.

    Of many rows the inputs are last to leave L2: up to 4 % faster from memory, and the next kernel finds as much of the
    outputs there as after default loads, where streaming stores would leave it less (see docs/techniques.md).
    With an early start parameters are read early; without one, late wins for fewer rows than SMs but in clusters.
    Holding f32 parameters in registers costs occupancy: with 64 of them a thread, 8192x4096 bf16 takes 36 % longer than
    with parameters read late.
    Clusters that walk many long rows, the next one on its way, hide their exchanges (2048x65536 to 2048x262144: 3 to
    7 % ahead of one cluster a row).
    """
    few = problem.rows < device.sm_count
    clusters = _clusters(problem, device)
    for hold, cluster in (*(("registers", c) for c in clusters), ("shared", 1), ("reload", 1)):
        for cut in _cut(problem, hold, cluster, few=few):
            if hold == "registers" and _crowded(problem, cut, more=len(clusters) > 1):
                continue
            chained = device.arch >= 90 and hold == "registers" and problem.compulsory_bytes < CHAINED_BYTES
            hinted = replace(
                cut,
                load="default" if few else "evict_last" if device.arch >= 80 else "streaming",
                store="streaming" if device.arch < 80 and not few else "default",
                dependent_launch="loads" if chained else "off",
            )
            if cluster > 1 and not few and hold == "registers":
                walking = replace(
                    hinted, persistent=max(1, 1024 // cut.threads), dependent_launch="start" if chained else "off"
                )
                yield replace(walking, stages=2)
                yield walking
            narrow = 0 < param_bytes_per_thread(problem, cut) <= EARLY_BYTES
            if hold == "registers" and narrow and (chained or few == (cluster > 1)):
                yield replace(hinted, params="early")
            # Rows that stay in L2 would push parameters out of it that are read late.
            yield replace(hinted, load="no_allocate") if _has_parameters(problem) and not few else hinted


def _clusters(problem: Problem, device: Device) -> tuple[int, ...]:
    """Blocks to share a row, the best first: few long rows are spread over idle SMs, 8 KB a block or more."""
    if device.arch < 90:
        return (1,)
    sizes = (1, 2, 4, 8, 16)
    vectors = problem.cols * problem.dtype.bytes // 16
    spread = [c for c in sizes if problem.rows * c <= device.sm_count and vectors >= 512 * c and vectors > 1024]
    first = max(spread, default=1)
    return (*(c for c in sizes if c >= first), *(c for c in sizes if c < first))


def _crowded(problem: Problem, s: Schedule, *, more: bool) -> bool:
    """Whether rows in registers need too many: over 256 bytes a thread, or so many a block that no four fit an SM.

    Clusters of 16 find room in few places of the chip: from 8 on, only the threads' share counts (2048x262144 f32).
    """
    held = held_bytes_per_thread(problem, s)
    return held > 256 or (more and s.cluster < 8 and held * s.threads_per_row > 65536)


def _has_parameters(problem: Problem) -> bool:
    return any(t.kind is Kind.COL and not t.is_written for t in problem.tensors)


def _with_columns(problem: Problem, device: Device) -> Iterator[Schedule]:
    """Defaults of programs with column sums: in registers beside the row, over a cluster if need be; then of rows
    read again; then by atomics.

    512 threads an SM leave each 128 registers for the next row too; short rows share blocks of 256 threads, which add
    up their sums. More than 32 sums a thread leave room for 384 threads (8192x768 to 16384x8192 bf16 on an H200).
    Atomics a row cost ten times as much there as rows read again (2048x16384, 2048x32768 bf16).
    """
    kept = "kept" if _has_parameters(problem) else "late"
    dependent = "end" if device.arch >= 90 else "off"
    clusters = (1, 2, 4, 8, 16) if device.arch >= 90 else (1,)
    for cut in itertools.chain.from_iterable(_cut(problem, "registers", cluster) for cluster in clusters):
        if held_bytes_per_thread(problem, cut) <= 256:
            many_sums = sums_in_registers(problem, cut) > 32 and cut.threads_per_row <= 128
            block, per_sm = (128, 384) if many_sums else (256, 512)
            side_by_side = max(1, block // cut.threads_per_row) if cut.cluster == 1 and cut.threads_per_row < 128 else 1
            cut = replace(cut, rows_per_block=min(side_by_side, KNOBS["rows_per_block"][-1]))
            sums = replace(cut, persistent=max(1, per_sm // cut.threads), dependent_launch=dependent)
            yield replace(sums, params=kept, stages=2)
            yield replace(sums, params=kept)
            yield sums
    for cut in sorted(_cut(problem, "reload", 1), key=lambda s: -s.vector):
        if 256 <= cut.threads <= 512 and sums_in_registers(problem, cut) <= held_register_limit(cut, device):
            yield replace(cut, persistent=1, unroll=0, dependent_launch=dependent)
    for hold in ("registers", "shared", "reload"):
        yield from (replace(cut, columns="atomic") for cut in _cut(problem, hold, 1))


def fallback_schedule(problem: Problem) -> Schedule:
    """The schedule of an exported header's general kernel: any cols, any row pitch and any alignment; never tuned.

    A block owns a row, reads it once a look and element by element; formulas as written. Where sums of columns must be
    deterministic, that one block walks all rows.
    """
    writes_columns = any(t.is_written and t.kind is Kind.COL for t in problem.tensors)
    columns = "atomic" if writes_columns else Schedule().columns
    return Schedule(threads_per_row=256, vector=1, hold="reload", columns=columns)


def _thread_preference(problem: Problem, vector: int, cluster: int, *, few: bool) -> list[int]:
    """Threads per row and block, the best first.

    With column sums about two of 16 bytes a thread, which take registers too, and few idle lanes. Else about four of
    16 bytes, in blocks of 128 rather than more (4096x6144 bf16: 128 threads 20 % ahead of 256) and of 1024 only where
    nothing else is left; 512 in a cluster, whose blocks start together; 256 where blocks are fewer than SMs.
    """
    aim = 2 if column_outputs(problem) else 4
    width = min(16, vector * problem.dtype.bytes) / 16

    def distance(threads: int) -> tuple[float, int]:
        steps = steps_per_lane(problem, Schedule(threads_per_row=threads, vector=vector, cluster=cluster))
        if column_outputs(problem):
            idle = threads * cluster * steps * vector / problem.cols - 1
            return ((abs(steps * width - aim) if steps >= 2 else 1.5) + 4 * idle + 8 * (threads == 1024), threads)
        if few or cluster > 1:
            usual, most = (512, 16) if not few else (256 if cluster == 1 else 128, 4 if width >= 0.5 else 8)
            return (abs(math.log2(threads / usual)) + 2 * (steps > most or steps < 2), threads)
        off = abs(math.log2(max(steps, 0.75) * width / aim))
        return (off + {256: 0.2, 512: 0.2, 1024: 1.1}.get(threads, 0.0), threads)

    return sorted((32, 64, 128, 256, 512, 1024, 16, 8, 4, 2, 1), key=distance)
