"""Which of the legal schedules are searched: each rule is a finding about where a choice cannot win.

As in legality, a rule is a function (problem, schedule, device) -> sentence or None.
"""

from __future__ import annotations

import math
from functools import lru_cache

from normgen.device import Device
from normgen.knobs import (
    ColumnWay,
    Copy,
    DependentLaunch,
    Division,
    Hold,
    Keep,
    LoadHint,
    Params,
    ReduceWith,
    SoftmaxMethod,
    StoreHint,
    VarianceMethod,
)
from normgen.problem.problem import Problem
from normgen.program.rewrites.approximate import has_exponentials
from normgen.program.source import written_program
from normgen.schedule.legality import (
    Rule,
    dependent_launch,
    division,
    has_means,
    has_quotients,
    has_variance,
    hints,
    keep,
    params_registers,
    persistent,
    reduces_rows,
    row_order,
    unroll,
)
from normgen.schedule.plan import held_bytes_per_thread, steps_per_lane, vectors_per_row
from normgen.schedule.schedule import Schedule

KIB = 1024
LEFT_IN_L2 = 0.75  # of L2: a larger input's first rows are not there any more when a kernel begins
EITHER_ORDER = 0.6  # of L2: from so much on either order of the rows may be the better one
OTHER_TREES = (ReduceWith.COOPERATIVE_GROUPS, ReduceWith.SHARED_TREE)
LEAST_DIVIDED = 2048  # cols of a peeled row whose means a product and its remainder make faster
CHAINED_BYTES = 768 << 20  # an early start gains 0.2 % at 16384x8192 bf16, 1 to 5 % from there down (H200)


def searched_tile(problem: Problem, s: Schedule, device: Device) -> str | None:
    """Search policy for structural knobs: legal, but not worth a measurement.

    Alone no persistent grid of aligned rows came within 3 % of the best. In place, on an H200, those that fetch the
    next row meanwhile are the best of samples of 280: by 8 % at layernorm 4096x4096 bf16, 7 % at 8192x1000, 4 % at
    8192x768 f32, 3 % at 8192x768 bf16.
    """
    limit = 512 if problem.column_outputs else 256  # row groups of a block share one row of column sums
    if s.rows_per_block > 1 and s.threads > limit:
        return f"not searched: several rows side by side beyond {limit} threads a block"
    walks = not problem.sums_rows and s.persistent > 0 and s.cluster == 1
    is_asked = "persistent" in problem.searched_knobs or problem.any_cols
    if _walks_registers(problem, s) and not is_asked:
        if problem.rows < 8 * device.sm_count:
            return "not searched: a persistent grid of less than 8 rows an SM"
        keeps = s.peels or _wide_parameters(problem)
        if s.stages == 1 and not keeps:
            return "not searched: a persistent grid of aligned rows that does not fetch the next one"
        if not (512 if keeps else 256) <= s.persistent * s.threads <= 1024:
            return "not searched: a persistent grid with less than 256 (peeled: 512) or more than 1024 threads an SM"
    elif walks and s.persistent * s.threads != 1024 and not is_asked:
        return "not searched: a persistent grid of asynchronous copies with other than 1024 threads an SM"
    if problem.column_outputs and s.persistent * s.threads > 768 and s.hold is Hold.REGISTERS:
        return "not searched: more than 768 resident threads an SM, with column sums in registers"
    return None


def searched_cut(problem: Problem, s: Schedule, _: Device) -> str | None:
    """Search policy for how a row is shared out, from 17 sweeps on an H200 (figures: the best of those left out).

    Rows of less than 256 bytes are outside of what was swept. Where a spec lists a knob's values, they are searched.
    """
    asked = problem.searched_knobs
    if problem.any_cols or is_tiny(problem):
        return None
    if "vector" not in asked and s.vector * problem.dtype.bytes < 8 and _is_whole(problem):
        return "not searched: accesses below 8 bytes where 16 are possible"  # 1.025 x
    asked_for = -(-vectors_per_row(problem, s) // (s.threads_per_row * steps_per_lane(problem, s)))
    if s.parts > 1.25 * asked_for:
        return "not searched: more parts of a row by a quarter than its steps ask for"
    if "threads_per_row" not in asked and held_bytes_per_thread(problem, s) > 256 and s.threads_per_row < 512:
        return "not searched: more than 256 bytes of a row for each of less than 512 threads"  # 1.055 x
    return None


def is_tiny(problem: Problem) -> bool:
    """Whether rows are shorter than those of the sweeps."""
    return problem.cols * problem.dtype.bytes < 256


def _is_whole(problem: Problem) -> bool:
    """Whether every row begins at a multiple of 16 bytes, and ends there."""
    return math.gcd(problem.cols * problem.dtype.bytes, problem.pitch * problem.dtype.bytes, problem.align) % 16 == 0


def _searched_hold(problem: Problem, s: Schedule) -> str | None:
    """Where a row waits: in registers, if it is short (the same sweeps)."""
    main_row = problem.cols * problem.dtype.bytes
    if problem.any_cols or "hold" in problem.searched_knobs or is_tiny(problem):
        return None
    held = 8 * KIB if problem.column_outputs else 64 * KIB
    if s.hold is Hold.RELOAD and main_row <= held:
        return f"not searched: a row of at most {held // KIB} KiB read again for every pass"  # 1.113 x
    if s.hold is Hold.SHARED and s.copy is Copy.DIRECT and _is_short_norm(problem):
        return "not searched: norms of rows below 32 KiB that wait in shared memory"  # 1.035 x
    return None


@lru_cache(maxsize=1024)
def _is_short_norm(problem: Problem) -> bool:
    """Rows below 32 KiB without exponentials."""
    return problem.cols * problem.dtype.bytes < 32 * KIB and not has_exponentials(written_program(problem))


def searched_cluster(problem: Problem, s: Schedule, device: Device) -> str | None:
    """Search policy: a cluster pays where one block cannot hold the row or rows are fewer than SMs.

    Column sums take registers too, and a cluster leaves fewer partial rows: clusters from half a block's row on.
    """
    if s.cluster == 1:
        return None
    if not problem.sums_rows and not reduces_rows(problem):
        return "not searched: clusters whose blocks have nothing to exchange; parts are as good without one"
    if s.threads_per_row < 128:
        return "not searched: clusters of blocks below 128 threads"
    if problem.sums_rows:
        if problem.cols * problem.dtype.bytes < 8192 and problem.rows >= 4 * device.sm_count:
            return "not searched: column sums over clusters for rows below 8 KiB, unless there are few rows"
        return None
    if s.persistent and s.persistent * s.threads != 1024:
        return "not searched: a persistent grid of clusters with other than 1024 threads an SM"
    small = problem.cols * problem.dtype.bytes < 32768 and problem.rows * 2 > device.sm_count
    if small or problem.any_cols:
        return "not searched: clusters for rows that one block holds, unless rows are fewer than half the SMs"
    if steps_per_lane(problem, s) > 16:
        return "not searched: clusters with more than 16 vectors a thread"
    return None


def searched_columns(problem: Problem, s: Schedule, _: Device) -> str | None:
    """Search policy: deterministic atomics need a single block for all rows, fit for a general kernel only.

    Over many rows partial sums and a second kernel win: 20 records of 2048 rows and more, and a sweep (8192x2048 bf16)
    in which last arrivers took 1.38 times the best and atomics 1.42 times.
    """
    if problem.deterministic and s.columns is ColumnWay.ATOMIC:
        return "not searched: one block that loops over all rows"
    is_asked = "columns" in problem.searched_knobs or problem.any_cols
    if problem.sums_rows and problem.rows >= 2048 and not is_asked and not s.columns.has_two_kernels:
        return "not searched: column sums of many rows by atomics"
    return None


def searched_place(problem: Problem, s: Schedule, _: Device) -> str | None:
    """Search policy: copies past the registers pay for long rows, of which registers hold too few bytes under way."""
    columns = problem.sums_rows
    if (reason := _searched_hold(problem, s)) is not None:
        return reason
    if s.copy is Copy.DIRECT:
        if columns and s.hold is Hold.SHARED:
            return "not searched: column sums of rows that wait in shared memory without asynchronous copies"
        if s.hold is Hold.HYBRID and (s.rows_per_block > 1 or s.persistent):
            return "not searched: half a row in registers with several rows a block"
        return None
    if s.vector * problem.dtype.bytes != 16:
        return "not searched: asynchronous copies of less than 16 bytes a thread"
    if columns and (problem.cols * problem.dtype.bytes < 4096 or s.threads_per_row < 64 or s.rows_per_block > 2):
        return "not searched: asynchronous copies of short rows, or of more than two side by side, with column sums"
    if columns and s.persistent > 2:
        return "not searched: column sums by asynchronous copies, with more than two blocks an SM"
    if columns:
        return None
    if s.persistent and (problem.cols * problem.dtype.bytes < 32768 or s.hold is not Hold.REGISTERS):
        return "not searched: asynchronous copies of later rows, of rows below 32 KiB or not held in registers"
    if s.rows_per_block > 1 or (not s.persistent and held_bytes_per_thread(problem, s) <= 64):
        return "not searched: asynchronous copies of rows that registers hold in four vectors a thread"
    return None


def _wide_parameters(problem: Problem) -> bool:
    """Parameters of more bytes than a row and its output, as f32 ones of 16-bit rows: worth keeping across rows."""
    return problem.parameter_bytes > 2 * problem.row_input_bytes


def searched_hint(problem: Problem, s: Schedule, _: Device) -> str | None:
    """Search policy: rows that are fetched while others are worked on gain nothing by priorities in L2."""
    if _walks_registers(problem, s) and s.load is LoadHint.EVICT_LAST and not problem.any_cols:
        return "not searched: priorities in L2, with rows that are fetched while others are worked on"
    return None


def _walks_registers(problem: Problem, s: Schedule) -> bool:
    """A persistent grid of single blocks, forward, whose next row travels to registers."""
    return not problem.sums_rows and s.persistent > 0 and s.cluster == 1 and s.copy is Copy.DIRECT


def searched_keep(problem: Problem, s: Schedule, _: Device) -> str | None:
    """Of a block's only row, in few steps, the compiler keeps what it has computed (NVRTC 13.0: the same code).

    Where floats wait in registers the winners have plain hints (gate_rmsnorm, adaln, layernorm of odd rows; H200).
    """
    if s.keep is Keep.ROW:
        return None
    if not s.persistent and steps_per_lane(problem, s) < 4:
        return "not searched: values of a block's only row, of fewer than 4 vectors a thread"
    if s.store is not StoreHint.DEFAULT or s.load is LoadHint.EVICT_LAST:
        return "not searched: values in registers, and a store or load with a hint for the L2"
    return None


def searched_division(problem: Problem, s: Schedule, device: Device) -> str | None:
    """Search policy: of shorter rows the division is level or ahead, up to 8 % (four shapes, tuned with each; H200).

    Peeled ones gain 2 % at 2730 and 3333 cols. Where few rows have scales, a kernel waits for their two divisions;
    where rows with scales are short, divisions are a part of their instructions (machine code of layernorm_to_int8
    4096x768: 345 a row, 321 without).
    """
    least = LEAST_DIVIDED if s.peels else 4096
    if s.division is Division.IEEE or "division" in problem.searched_knobs:
        return None
    counts = problem.rows <= device.sm_count or problem.row_bytes < 4 * KIB
    if (counts and has_quotients(problem)) or (has_means(problem) and problem.cols >= least):
        return None
    return f"not searched: means of fewer than {least} cols by a product and its remainder, quotients of many rows"


def overflows_l2(size: int, device: Device) -> bool:
    """Whether so many bytes, written in order, have pushed their first ones out of L2 when a kernel begins to read.

    Then the last rows first: each is found there before this kernel's own output takes its place, and what comes last
    is what the next kernel reads first. A copy between plain kernels takes 12 % less for 67 MB in and 67 MB out, 6 %
    for 117 MB, nothing for 268 MB; at 33 MB, which fit, it takes 9 % more. 42 MB lie between: chains with softmax and
    rmsnorm 4096x5120 bf16 take 3.6 and 1.4 % more, with add_rmsnorm 1.9 % less (H200, 60 MB of L2).
    """
    return size > LEFT_IN_L2 * device.l2_bytes


def searched_order(problem: Problem, s: Schedule, device: Device) -> str | None:
    """Search policy: the last rows first only where L2 has hardly room for all of them."""
    if not s.row_order.descends or "row_order" in problem.searched_knobs:
        return None
    if problem.any_cols or problem.main_bytes <= EITHER_ORDER * device.l2_bytes:
        return "not searched: the last rows first, of an input of any size or one that L2 holds"
    return None


def searched_params(problem: Problem, s: Schedule, device: Device) -> str | None:
    """Search policy: parameters asked for ahead gain up to 10 % for one row, and 2 % for 64 (H200)."""
    is_asked = "params" in problem.searched_knobs
    if s.params is Params.EARLY and _walks_registers(problem, s) and not is_asked:
        return "not searched: parameters read early, and again for each row, where they can be kept"
    if s.params is Params.PREFETCHED and not is_asked and (problem.rows > device.sm_count or s.cluster > 1):
        return "not searched: parameters asked for ahead of more rows than SMs, or of clusters"
    return None


def searched_launch(problem: Problem, s: Schedule, _: Device) -> str | None:
    """Search policy: what an early start is combined with.

    The next launch may start at once where a block walks rows, else when the row has been asked for; on an H200 the
    other order loses up to 1 %. Clusters that walk rows may let it start at their end as well: its clusters find no
    room before (2048x65536 bf16: 1 % over long chains). With column sums the end is the best place, and between plain
    kernels no early start is as good (8192x768: 13.1 and 13.0 us, 15.5 and more at other places).
    """
    if s.columns is ColumnWay.PARTIALS_TWO_KERNELS and problem.sums_rows:
        if s.dependent_launch in (DependentLaunch.ON, DependentLaunch.START):
            return "not searched: column sums that let the next kernel start before their end"
        return None
    if not s.chained:
        return None
    if _walks_registers(problem, s) and not problem.any_cols:
        return "not searched: every kernel launched early, of rows that are fetched while others are worked on"
    if problem.compulsory_bytes >= CHAINED_BYTES:
        return "not searched: every kernel launched early where a launch moves 768 MB or more"
    if s.hold is not Hold.REGISTERS:
        return "not searched: every kernel launched early, of rows not held in registers"
    at_end = s.dependent_launch is DependentLaunch.END and s.persistent > 0 and s.row_blocks > 1
    if not at_end and s.dependent_launch != ("start" if s.persistent else "loads"):
        return "not searched: the next kernel started at another place than the best"
    return None


def searched_method(problem: Problem, s: Schedule, device: Device) -> str | None:
    """Search policy: past the registers, or half in them, go the rows of the best methods only."""
    if s.reduce_with.is_short and (reason := _searched_short(problem, s, device)) is not None:
        return reason
    if (
        s.reduce_with in OTHER_TREES
        and "reduce_with" not in problem.searched_knobs
        and not problem.any_cols
        and _is_short_norm(problem)
    ):
        return "not searched: norms of rows below 32 KiB with other trees than shuffles"  # 1.047 x in 12 sweeps
    if inexact := shows_in_float32(problem, s):
        return f"not searched: {inexact}"
    if s.variance in (VarianceMethod.CORRECTED_TWO_PASS, VarianceMethod.GUARDED) and s.hold is Hold.RELOAD:
        return "not searched: residuals, or a second pass over some rows, of rows that are not held"
    if s.variance is VarianceMethod.CORRECTED_TWO_PASS and _walks_registers(problem, s) and not problem.any_cols:
        return "not searched: residuals of rows that are fetched while others are worked on"
    if s.copy is Copy.DIRECT and s.hold is not Hold.HYBRID:
        return None
    if s.reduce_with in OTHER_TREES or s.variance in (VarianceMethod.WELFORD, VarianceMethod.SHIFTED):
        return "not searched: asynchronous copies and hybrid rows with other trees and one-pass variances"
    if s.columns != Schedule().columns:
        return "not searched: asynchronous copies and hybrid rows with column sums other than partials_two_kernels"
    return None


def _searched_short(problem: Problem, s: Schedule, device: Device) -> str | None:
    """A shorter wait in more instructions, for blocks that have an SM to themselves; of groups alone, in fewer."""
    crowded = problem.rows * s.row_blocks > 2 * device.sm_count and reduces_rows(problem)
    if crowded and "reduce_with" not in problem.searched_knobs:
        return "not searched: short chains in more than two blocks an SM"
    if s.hold is not Hold.REGISTERS or s.copy is not Copy.DIRECT or s.persistent or s.blocks_per_sm:
        return "not searched: short chains, but for the only row of a block, in registers"
    return None


def shows_in_float32(problem: Problem, s: Schedule) -> str | None:
    """Which method rounds more than it has to, where rows of float32 are held and a better one costs little.

    Outputs of 16 bits hide both; so do the bounds, which an accuracy table (docs/accuracy.md) is finer than.
    """
    if problem.dtype.bytes < 4 or s.hold is Hold.RELOAD:
        return None
    if s.softmax is SoftmaxMethod.ONLINE:
        return "one pass over held rows of a softmax in float32: each move to a new maximum rounds the sum"
    if leaves_rounding(problem, s) and not _walks_registers(problem, s):
        return "a variance of held float32 rows about a mean whose rounding is left in it"
    return None


def leaves_rounding(problem: Problem, s: Schedule) -> bool:
    """Whether a variance of held float32 rows is taken about a mean whose rounding is left in it."""
    held = problem.dtype.bytes >= 4 and s.hold is not Hold.RELOAD
    return held and s.variance is VarianceMethod.TWO_PASS and has_variance(problem)


def plain_only(problem: Problem, s: Schedule, _: Device) -> str | None:
    """Why this structure is searched only without hints, early parameters and a persistent grid; None: with all.

    Such points are worth one measurement each (they are the steps of the classic optimisation ladder, or win in
    a corner), not a subspace of their own.
    """
    extras = "hints, early parameters or a persistent grid"
    if problem.sums_rows and s.columns is not ColumnWay.PARTIALS_TWO_KERNELS:
        return "not searched: column sums by atomics or last arrivers, with " + extras
    if s.reduce_with in OTHER_TREES or s.threads_per_row == 1:
        return "not searched: thread per row, shared_tree, cooperative_groups with " + extras
    if s.vector * problem.dtype.bytes < 8 and _is_whole(problem):
        return "not searched: accesses below 8 bytes where 16 are possible, with " + extras
    if s.hold is not Hold.REGISTERS and held_bytes_per_thread(problem, s) <= 256 and not problem.any_cols:
        return "not searched: a row not held in registers that would fit them, with " + extras
    return None


def costs_to_others(s: Schedule) -> tuple[bool, bool, bool]:
    """What a schedule costs outside of its own time, to choose among equals: no order of sums, outputs pushed out of
    L2, the next kernel started before it finds room.

    Streaming stores cost the kernel that reads the output next (docs/copy_hints.cu), and among equals gain nothing.
    Neither does a start at once of clusters that walk rows: in long chains it loses 1 % (2048x65536 bf16, H200).
    """
    crowds = s.dependent_launch is DependentLaunch.START and s.row_blocks > 1
    return not s.columns.is_deterministic, s.store is not StoreHint.DEFAULT, crowds


# Rules that look at one free knob, and else at the structure alone.
ONE_KNOB: dict[str, tuple[Rule, ...]] = {
    "unroll": (unroll,),
    "keep": (keep, searched_keep),
    "division": (division, searched_division),
    "load": (hints, searched_hint),
    "row_order": (row_order, searched_order),
    "params": (persistent, params_registers, searched_params),
    "dependent_launch": (dependent_launch, searched_launch),
}
