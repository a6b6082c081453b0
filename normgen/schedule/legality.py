"""Which schedules a problem allows on a device, and the sentence that refuses each of the others.

A rule is a function (problem, schedule, device) -> sentence or None. Structural rules look at the knobs that
cut the work (threads, vectors, where the row waits); free rules at the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from normgen.device import MOST_TOGETHER, Device
from normgen.knobs import (
    KNOBS,
    ColumnWay,
    Copy,
    DependentLaunch,
    Division,
    Edges,
    Hold,
    Keep,
    LoadHint,
    Params,
    ReduceWith,
    SoftmaxMethod,
    Statistics,
    VarianceMethod,
)
from normgen.problem.problem import LARGEST_SIZE, Problem
from normgen.program.classes import ProgramClass, class_of
from normgen.program.ir import COLS, RowProgram, looks
from normgen.program.ir import Load as Read
from normgen.program.rewrites.hoist import hoist_row_divisions
from normgen.program.rewrites.kept import name_kept_values
from normgen.program.rewrites.passes import passed
from normgen.program.rewrites.quotients import divide_by_remainders
from normgen.program.rewrites.reductions import applicable, variance
from normgen.program.source import kernel_problem, written_program
from normgen.schedule.lanes import rules as lane_rules
from normgen.schedule.plan import (
    WARP,
    groups_are_warps,
    has_pairs,
    has_row_barriers,
    held_bytes_per_thread,
    held_register_limit,
    param_bytes_per_thread,
    register_steps,
    shared_bytes,
    slot_bytes,
    steps_per_lane,
    sums_in_registers,
    vectors_per_row,
)
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles import rules as tile_rules

_NO_COLUMNS = Schedule().columns
BLOCK_SHARED = 2048  # bytes that a block takes beside what its plan counts: its states, and the system's
Rule = Callable[[Problem, Schedule, Device], str | None]


def _block_size(_: Problem, s: Schedule, __: Device) -> str | None:
    if s.threads > 1024:
        return "threads_per_row x rows_per_block is at most 1024 threads a block"
    if s.threads % 32:
        return "threads_per_row x rows_per_block must be whole warps of 32 threads"
    return None


def _idle_threads(problem: Problem, s: Schedule, device: Device) -> str | None:
    if _has_few_idle(problem, s, device):
        return None
    return "at least half of a row's threads would own no vector"


def _has_few_idle(problem: Problem, s: Schedule, _: Device) -> bool:
    lanes = s.threads_per_row * s.row_blocks
    few = (lanes <= 1) | (lanes // 2 < vectors_per_row(problem, s))
    if not problem.deterministic:
        return few
    # A block has a warp at least, and one row at a time where atomics keep the order of rows.
    return few | ((s.threads == WARP) & (s.columns == ColumnWay.ATOMIC))


def _vector_width(problem: Problem, s: Schedule, device: Device) -> str | None:
    limit = 32 if device.arch >= 100 else 16
    width = s.vector * problem.dtype.bytes
    if width > limit:
        return f"one access moves at most {limit} bytes on sm_{device.arch}"
    return None


def _edges(problem: Problem, s: Schedule, _: Device) -> str | None:
    aligned = all(problem.row_alignment(t) >= min(16, t.dtype.bytes_of(s.vector)) for t in problem.matrices)
    aligned = aligned and problem.align >= min(16, s.vector * problem.widest_parameter)
    divides = problem.cols % s.vector == 0 and (not problem.any_cols or bool(problem.spec.group))
    if s.edges is Edges.EXACT and problem.any_cols and s.vector > 1 and not problem.spec.group:
        return "cols is a run-time value: vectors need a masked tail"
    if s.edges is Edges.EXACT and s.vector > 1 and not divides:
        return f"vectors of {s.vector} elements need cols divisible by {s.vector}, or edges = masked or peel"
    if s.edges is not Edges.PEEL and not aligned:
        what = f"rows or parameters are not aligned to vectors of {s.vector} elements"
        return f"{what}: use a narrower vector or edges = peel"
    if s.edges is Edges.MASKED and divides:
        return "cols is divisible by the vector: nothing to mask"
    if s.edges is Edges.MASKED and s.vector == 1:
        return "vectors of one element have no tail"
    edge = {"exact": 0, "masked": s.vector - 1, "peel": 2 * s.vector - 2}[s.edges]
    if s.edges is not Edges.EXACT and problem.cols < s.vector:
        return f"a row of {problem.cols} elements has no vector of {s.vector}"
    if edge > s.threads_per_row * s.row_blocks:
        return f"up to {edge} elements outside of the whole vectors need a lane each"
    if s.edges is Edges.PEEL:
        if s.vector == 1 and not problem.any_cols:
            return "vectors of one element need no peeled head"
        if aligned and divides:
            return "rows are aligned and whole vectors: nothing to peel"
        if len({t.dtype.bytes for t in problem.elem_tensors}) > 1:
            return "a peeled head needs all elem tensors of one element size, so that their rows shift alike"
        if s.vector * problem.dtype.bytes > 16:
            return "a peeled head aligns to at most 16 bytes"
    return None


def _packed(problem: Problem, s: Schedule, _: Device) -> str | None:
    if problem.packed > 1 and (s.vector % problem.packed or s.edges is not Edges.EXACT):
        return f"a thread writes whole bytes of {problem.packed} elements: vectors of these, edges = exact"
    return None


def _groups(problem: Problem, s: Schedule, _: Device) -> str | None:
    group = problem.spec.group
    if not group:
        return None
    lanes = group // s.vector
    if group % s.vector:
        return f"a group of {group} columns is whole vectors: vector divides it"
    if lanes > WARP:
        return f"the lanes of a warp own a group: its {group} columns are at most {WARP} vectors"
    if lanes > s.threads_per_row:
        return f"a group of {group} columns is owned by {lanes} threads of its row"
    if s.edges is not Edges.EXACT:
        return "groups of columns are whole vectors: edges = exact"
    if s.softmax is SoftmaxMethod.ONLINE:
        return "groups and an online softmax both read a vector ahead of its elements"
    return None


def in_place(problem: Problem, s: Schedule, _: Device) -> str | None:
    """No thread reads what another one has overwritten.

    A thread owns the same vectors of a row, and the same element of its edge, in every look, and no look reads beyond
    them. So it writes them behind all of its own reads, wherever the row waits between the looks, and rows on their
    way are other rows. Idle threads recompute a row that its owners overwrite meanwhile; they store nothing. But a
    pivot is read by all threads of its row: there must be a barrier before one of them overwrites it.
    """
    if taken := next((load.of for load in rolled_loads(problem) if _is_overwritten(problem, s, load)), ""):
        return f"other threads of a row read what an output in the place of '{taken}' overwrites: roll moves it to them"
    by_shuffles = s.row_blocks == 1 and 1 < s.threads_per_row <= WARP
    if not problem.in_place or not by_shuffles:
        return None
    if any(problem.tensor(name).under for name in pivots(problem, s.variance, s.softmax)):
        return "lanes that shuffle pass no barrier before one of them overwrites the pivot of their row"
    return None


@lru_cache(maxsize=32)
def pivots(problem: Problem, variance: VarianceMethod, softmax: SoftmaxMethod) -> frozenset[str]:
    """The tensors of which all threads of a row read one element."""
    program = passed(written_program(problem), Schedule(variance=variance, softmax=softmax))[-1][1]
    return frozenset(load.of for load in program.loads if load.of and not load.roll)


def rolled_loads(problem: Problem) -> tuple[Read, ...]:
    """What is read at other columns than a thread's own ones."""
    if not problem.spec.rolls:
        return ()
    return tuple(load for load in _loads(problem) if load.roll)


@lru_cache(maxsize=32)
def _loads(problem: Problem) -> tuple[Read, ...]:
    return passed(written_program(problem), Schedule())[-1][1].loads


def _is_overwritten(problem: Problem, s: Schedule, load: Read) -> bool:
    """Whether an output takes the place of what is rolled, and a thread does not itself hold all that it needs.

    It holds what is read unrolled, too.
    """
    if not problem.tensor(load.of).under:
        return False
    stride = s.threads_per_row * s.row_blocks * s.vector
    is_own = problem.cols % stride == 0 and int(load.ahead.subs(COLS, problem.cols)) % stride == 0
    is_own &= any(other.name == load.of for other in _loads(problem))
    return not (is_own and s.hold is Hold.REGISTERS and s.edges is Edges.EXACT and not problem.any_cols)


def _any_cols(problem: Problem, s: Schedule, _: Device) -> str | None:
    if problem.any_cols and (s.hold is not Hold.RELOAD or s.params is not Params.LATE):
        return "cols is a run-time value: nothing of a row's length fits registers or a fixed buffer"
    return None


def _hold(problem: Problem, s: Schedule, device: Device) -> str | None:
    if s.hold is Hold.REGISTERS:
        rows = s.stages if s.copy is Copy.DIRECT else 1  # other rows on their way are in shared memory
        registers = held_bytes_per_thread(problem, s) // 4 * rows + sums_in_registers(problem, s)
        if s.params.in_registers:
            registers += param_bytes_per_thread(problem, s) // 4
        limit = held_register_limit(s, device)
        if registers > limit:
            return f"a thread would hold {registers} registers of data; {s.threads} threads a block leave it {limit}"
    if s.hold is Hold.HYBRID:
        reason = _hybrid(problem, s)
        if reason is not None:
            return reason
    if s.hold is Hold.SHARED and s.unroll == 0:
        registers = sums_in_registers(problem, s)
        if s.params.in_registers:
            registers += param_bytes_per_thread(problem, s) // 4
        limit = held_register_limit(s, device)
        if registers > limit:
            return f"a thread would keep {registers} registers of sums and parameters; its block leaves it {limit}"
    needed, limit = shared_bytes(problem, s), device.shared_per_block - 4096
    if needed > limit:
        what = "rows" if slot_bytes(problem, s) else "column sums"
        return f"the {what} of a block need {needed} bytes of shared memory; {device.name} leaves it {limit}"
    if s.hold in (Hold.SHARED, Hold.HYBRID) and any(s.vector * t.dtype.bytes < 4 for t in problem.elem_inputs):
        return "shared memory of less than 4 bytes a thread conflict on banks: use a wider vector or registers"
    return None


def keep(problem: Problem, s: Schedule, device: Device) -> str | None:
    """Rules of keep = values: floats in registers for each element of the row inputs, at most."""
    if s.keep is Keep.ROW:
        return None
    if s.hold is not Hold.REGISTERS or problem.any_cols:
        return "values wait in registers in the place of a row that does so: hold = registers"
    if not keeps_values(problem):
        return "no pass leaves another one anything but the row as it is stored: keep = row"
    registers = steps_per_lane(problem, s) * s.vector * len(problem.elem_inputs) + sums_in_registers(problem, s)
    if s.stages > 1 and s.copy is Copy.DIRECT:
        registers += held_bytes_per_thread(problem, s) // 4
    if s.params.in_registers:
        registers += param_bytes_per_thread(problem, s) // 4
    limit = held_register_limit(s, device)
    if registers > limit:
        return f"a thread would keep {registers} registers of values; {s.threads} threads a block leave it {limit}"
    return None


def division(problem: Problem, s: Schedule, _: Device) -> str | None:
    """Rules of division = remainder."""
    return None if s.division is Division.IEEE else without_remainders(problem)


@lru_cache(maxsize=1024)
def without_remainders(problem: Problem) -> str | None:
    """Why nothing of a problem is divided by the remainder."""
    if problem.any_cols:
        return "cols known at the call alone have no reciprocal yet: division = ieee"
    if has_means(problem) or has_quotients(problem):
        return None
    return "no row or group has a quotient, but by powers of two: division = ieee"


@lru_cache(maxsize=1024)
def has_variance(problem: Problem) -> bool:
    """Whether a formula has a variance, which can be computed in one look."""
    return VarianceMethod.GUARDED in applicable(written_program(problem))["variance"]


@lru_cache(maxsize=1024)
def has_softmax(problem: Problem) -> bool:
    """Whether a formula has a softmax, which can be computed in one look."""
    return SoftmaxMethod.ONLINE in applicable(written_program(problem))["softmax"]


def has_parameters(problem: Problem) -> bool:
    """Whether rows meet parameters: of columns, groups, heads or batches."""
    return any(t.is_parameter or t.kind.by_batch for t in problem.tensors)


@lru_cache(maxsize=1024)
def has_means(problem: Problem) -> bool:
    """Whether a row of the problem has a mean that rounds."""
    program = _with_divisions(problem)
    others = divide_by_remainders(program, means=False)
    return not problem.divides_exactly and divide_by_remainders(program) != others


@lru_cache(maxsize=1024)
def has_quotients(problem: Problem) -> bool:
    """Whether rows or groups of the problem have quotients that are no means: scales of codes, reciprocals."""
    program = _with_divisions(problem)
    return divide_by_remainders(program, means=False) != program


def _with_divisions(problem: Problem) -> RowProgram:
    """The program as the pass that divides finds it."""
    return hoist_row_divisions(variance(written_program(problem), VarianceMethod.TWO_PASS), corrected=False)


@lru_cache(maxsize=1024)
def keeps_values(problem: Problem) -> bool:
    """Whether looks share more of an element than a float32 of its row: a conversion, or a term of two formulas."""
    program = written_program(problem)
    narrow = any(t.dtype.bytes < 4 for t in problem.elem_inputs)
    return looks(program) > 1 and (narrow or name_kept_values(variance(program, VarianceMethod.TWO_PASS)) != program)


def _hybrid(problem: Problem, s: Schedule) -> str | None:
    kept = register_steps(problem, s)
    if kept == 0:
        return "not one vector of a row fits the registers of a thread: hold = shared"
    if steps_per_lane(problem, s) <= kept:
        return f"the {kept} vectors that fit the registers of a thread are its whole row: hold = registers"
    if s.params.in_registers:
        return "a row that fills the registers leaves none for parameters: params = late"
    if problem.column_outputs and s.columns not in (ColumnWay.ATOMIC, ColumnWay.SHARED_ATOMIC):
        return "column sums in registers leave none for part of a row: hold = registers, shared or reload"
    return None


def params_registers(problem: Problem, s: Schedule, device: Device) -> str | None:
    if s.params is Params.LATE:
        return None
    if param_bytes_per_thread(problem, s) == 0:
        return "there are no column parameters to load early"
    if s.params is Params.PREFETCHED:
        return _prefetched(problem, s)
    if s.params is Params.PACKED and all(t.dtype.bytes > 2 for t in problem.tensors if not t.kind.by_row):
        return "column parameters of 32 bits are kept as they are stored: params = kept"
    if s.hold is not Hold.REGISTERS and param_bytes_per_thread(problem, s) // 4 > held_register_limit(s, device):
        return "the column parameters of a thread do not fit its registers"
    return None


def _prefetched(problem: Problem, s: Schedule) -> str | None:
    """One instruction brings a whole parameter to L2 (cp.async.bulk.prefetch.L2): 16 bytes a unit."""
    if s.persistent or s.hold is not Hold.REGISTERS:
        return "parameters are asked for ahead of the one row that a thread holds in registers"
    if not problem.vector_parameters:
        return "parameters with a value for each group of columns are few: nothing to ask for ahead"
    if problem.align % 16 or any(problem.cols * t.dtype.bytes % 16 for t in problem.vector_parameters):
        return "parameters are asked for ahead in whole units of 16 bytes: align and cols"
    return None


def _cluster(problem: Problem, s: Schedule, device: Device) -> str | None:
    if s.cluster == 1:
        return None
    if not device.has_clusters:
        return "thread-block clusters need sm_90"
    if s.rows_per_block > 1 or s.threads_per_row < 32:
        return "a cluster shares one row: rows_per_block = 1 and whole warps"
    if s.reduce_with is not ReduceWith.SHUFFLE and (s.persistent or not s.reduce_with.is_short):
        return "clusters combine with shuffles and distributed shared memory; short_chains in a grid without a row loop"
    if problem.any_cols:
        return "a cluster shares rows of a fixed length: cols is a run-time value"
    if s.persistent and s.edges is Edges.PEEL:
        return "clusters that fit the device are not a multiple of the vector: rows shift from iteration to iteration"
    if problem.column_outputs and s.columns is ColumnWay.SHARED_ATOMIC:
        return (
            "a block of a cluster meets a part of the columns: its row of sums in shared memory would be mostly zeros"
        )
    return None


def _parts(problem: Problem, s: Schedule, _: Device) -> str | None:
    if s.parts == 1:
        return None
    if s.cluster > 1 or s.rows_per_block > 1 or s.threads_per_row < 32:
        return "a part of a row is a block's only one, in whole warps: cluster = 1, rows_per_block = 1"
    if problem.any_cols:
        return "a row of fixed length has parts: cols is a run-time value"
    if problem.sums_rows and not reduces_rows(problem):
        return "sums over rows that need nothing of a row as a whole find blocks enough in its rows: parts = 1"
    if s.parts > 64 and not reduces_rows(problem):
        return "a row that is not reduced needs no more than 64 parts"
    counted = problem.cols + s.parts * s.threads_per_row * s.vector
    if counted > LARGEST_SIZE:
        return f"an int counts the columns of a row, and one step of its {s.parts} blocks beyond them: fewer threads"
    return None


def _part_copy(problem: Problem, s: Schedule, _: Device) -> str | None:
    if s.parts > 1 and not reduces_rows(problem) and (s.persistent or s.copy is not Copy.DIRECT):
        return "a block reads its part of a row once, directly: persistent = 0, copy = direct"
    return None


def meeting(problem: Problem, s: Schedule, device: Device) -> str | None:
    """Rules of blocks that share a row and exchange through memory: each waits for the others, so all are resident."""
    if s.parts == 1 or not reduces_rows(problem):
        return None
    if not s.persistent:
        return "blocks of a grid that share a row must be resident together, whatever rows is: persistent >= 1"
    if s.parts > min(s.persistent * device.sm_count, MOST_TOGETHER):
        return (
            f"{s.parts} blocks share a row: no more than {s.persistent} for each of {device.sm_count} SMs are resident"
        )
    if s.persistent > max(1, s.blocks_per_sm):
        return f"{s.persistent} blocks an SM are resident for certain by a launch bound: blocks_per_sm >= persistent"
    if s.persistent * (shared_bytes(problem, s) + BLOCK_SHARED) > device.shared_per_sm:
        return f"{s.persistent} blocks an SM find no room for what each keeps in shared memory"
    if s.reduce_with is not ReduceWith.SHUFFLE:
        return "blocks of a grid combine by shuffles, and through memory: reduce_with = shuffle"
    if s.dependent_launch is not DependentLaunch.OFF:
        return "blocks that wait for each other start together, behind what is in front: dependent_launch = off"
    if problem.sums_batches:
        return "sums by batches give each batch blocks of its own, of which some would wait to start: parts = 1"
    if s.edges is Edges.PEEL:
        return _peeled_meeting(problem, s)
    if s.columns is ColumnWay.SHARED_ATOMIC:
        return "a block meets a part of the columns: its row of sums in shared memory would be mostly zeros"
    return None


def _peeled_meeting(problem: Problem, s: Schedule) -> str | None:
    """Each row of a group begins where it will: nothing of a row's columns may stay with a thread."""
    if s.keeps_params or s.stages > 1 or s.copy is not Copy.DIRECT:
        return "rows shift from one to the next: no parameters are kept, and no row comes ahead, with edges = peel"
    if problem.sums_rows and s.columns is not ColumnWay.ATOMIC:
        return "rows shift from one to the next: column sums go straight to memory (columns = atomic)"
    return None


@lru_cache(maxsize=1024)
def reduces_rows(problem: Problem) -> bool:
    """Whether something is reduced over the columns of a row; over groups of them does not count."""
    return bool(written_program(problem).row_reduces)


def finds_pairs(problem: Problem, s: Schedule) -> bool:
    """Whether short chains find the largest |x| of groups in pairs of elements, and no row is reduced."""
    if problem.any_cols or not problem.spec.group or s.vector < 8 or reduces_rows(problem):
        return False
    return any(has_pairs(problem, s, r) for r in written_program(problem).reduces)


def persistent(problem: Problem, s: Schedule, device: Device) -> str | None:
    if not s.persistent:
        if s.keeps_params:
            return "parameters are kept across rows only by a persistent grid"
        if s.stages > 1:
            return "several rows in flight need a persistent grid"
        return None
    tiles = -(-problem.rows // s.rows_per_block)
    if (
        tiles <= max(1, s.persistent * device.sm_count // s.cluster)
        and s.parts == 1
        and not problem.any_cols
        and s.persistent > 1
        and not problem.sums_rows
    ):
        return "the grid would have no row to loop over"
    if s.persistent * s.threads > device.threads_per_sm:
        return f"{s.persistent} blocks of {s.threads} threads exceed the {device.threads_per_sm} threads of an SM"
    return None


def dependent_launch(problem: Problem, s: Schedule, device: Device) -> str | None:
    if s.dependent_launch is DependentLaunch.OFF:
        return None
    if device.arch < 90:
        return "programmatic dependent launch needs sm_90"
    if s.dependent_launch is DependentLaunch.ON and (not problem.sums_rows or not s.columns.has_two_kernels):
        return "there is no second kernel to start early"
    if s.dependent_launch is DependentLaunch.LOADS and (s.persistent or problem.sums_rows or s.hold is Hold.RELOAD):
        return (
            "the next kernel starts after the loads of a row that is read as a whole and is the only one of its block"
        )
    return None


def _copy(problem: Problem, s: Schedule, device: Device) -> str | None:
    if s.copy is not Copy.DIRECT:
        return _asynchronous(problem, s, device)
    if s.stages > 2:
        return "more than two rows in flight need an asynchronous copy"
    if s.stages > 1 and s.hold is not Hold.REGISTERS:
        return "the next row travels in registers: hold = registers"
    return None


def _asynchronous(problem: Problem, s: Schedule, device: Device) -> str | None:
    """Rules of copy = cp_async and bulk."""
    needed = KNOBS["copy"].least_arch.get(s.copy, 0)
    if device.arch < needed:
        return f"copy = {s.copy} needs sm_{needed}"
    if not problem.elem_inputs:  # a sum's gradient reads none of what was summed
        return "nothing is read of each element: copy = direct"
    if s.hold is Hold.RELOAD:
        return "a row that is copied to shared memory waits there or in registers: hold = shared, hybrid or registers"
    if s.hold is Hold.REGISTERS and not s.persistent:
        return "without later rows to copy meanwhile, a row goes to registers directly: copy = direct, or hold = shared"
    if s.hold is Hold.HYBRID and s.persistent:
        return "a row that fills registers and shared memory leaves no room for the next: persistent = 0"
    if any(s.vector * t.dtype.bytes < 4 for t in problem.elem_inputs):
        return "one asynchronous copy moves at least 4 bytes: use a wider vector"
    if s.copy is Copy.BULK:
        return _bulk(problem, s)
    return None


def _room(problem: Problem, s: Schedule, device: Device) -> str | None:
    if _has_room(problem, s, device):
        return None
    used, limit = shared_bytes(problem, s), _room_for_copies(device)
    return f"the rows on their way need {used} bytes of shared memory a block; {device.name} leaves it {limit}"


def _has_room(problem: Problem, s: Schedule, device: Device) -> bool:
    return (s.copy == Copy.DIRECT) | (shared_bytes(problem, s) <= _room_for_copies(device))


def _room_for_copies(device: Device) -> int:
    return device.shared_per_block - 4096


def _bulk(problem: Problem, s: Schedule) -> str | None:
    """Whole rows are copied; of peeled ones the whole vectors, of which `_idle_threads` leaves each row some."""
    if s.peels:
        if s.row_blocks > 1:
            return "a bulk copy for each block of a cluster starts where no row shifts: edges = exact"
        if s.vector * problem.dtype.bytes % 16:
            return "a bulk copy moves units of 16 bytes that start at 16-byte addresses: use a wider vector"
        return None
    for t in problem.elem_inputs:
        if problem.cols * t.dtype.bytes % 16 or problem.row_alignment(t) % 16:
            return "a bulk copy moves whole rows of 16-byte units that start at 16-byte addresses, or edges = peel"
        if s.threads_per_row * s.vector * t.dtype.bytes % 16:
            return "rows side by side in shared memory start at 16-byte addresses: use a wider vector or more threads"
    return None


def _columns(problem: Problem, s: Schedule, _: Device) -> str | None:
    if not problem.sums_rows:
        return "there are no column reductions to sum" if s.columns != _NO_COLUMNS else None
    if not problem.column_outputs and s.columns is ColumnWay.SHARED_ATOMIC:
        return "a block has one number for each total: columns = partials_two_kernels or register_atomic"
    if problem.any_cols and s.columns is not ColumnWay.ATOMIC:
        return "cols is a run-time value: column sums go straight to memory (columns = atomic)"
    if problem.sums_batches and s.columns is ColumnWay.PARTIALS_LAST_TILE:
        return (
            "the last block at a tile would add it for every batch, one after another: columns = partials_two_kernels"
        )
    if s.columns is ColumnWay.PARTIALS_LAST_TILE and any(t.is_row_sum and t.group for t in problem.tensors):
        return "the columns of a group may lie in several tiles, each with a last block: columns = partials_two_kernels"
    if problem.deterministic and not s.columns.is_deterministic:
        if s.columns is not ColumnWay.ATOMIC:
            return "deterministic: atomics add the sums of blocks in whatever order these end; columns = partials_*"
        if s.rows_per_block > 1 or s.edges is Edges.PEEL:
            return "deterministic: atomics keep the order of rows only where one thread owns a column in all of them"
        if problem.totals and s.cluster * s.parts > 1:
            return "deterministic: atomics of several blocks add a total in whatever order these end"
        return None
    if s.columns in (ColumnWay.ATOMIC, ColumnWay.SHARED_ATOMIC):
        return None
    if not s.persistent:
        return "column sums in registers pay only over many rows of one block: persistent >= 1"
    if problem.column_outputs and s.hold is not Hold.REGISTERS and s.unroll != 0:
        return "column sums in registers need a completely unrolled row (unroll = 0)"
    return None


def _guarded(_: Problem, s: Schedule, __: Device) -> str | None:
    """A branch that a whole row takes has barriers that only its threads may share."""
    if s.variance is not VarianceMethod.GUARDED:
        return None
    if s.cluster > 1 and s.persistent:
        return "clusters that loop over rows count every exchange: a row that is spared its second pass misses one"
    by_block = s.threads_per_row > 1 if s.reduce_with is ReduceWith.SHARED_TREE else s.threads_per_row > 32
    alone = has_row_barriers(s) and s.reduce_with is not ReduceWith.SHARED_TREE
    if s.rows_per_block > 1 and by_block and not alone:
        return (
            "rows that share a block's barriers take equally many passes: variance = guarded takes one row a block, "
            "or shuffles of at most 32 or at least 256 threads a row"
        )
    return None


def _reduce_with(problem: Problem, s: Schedule, __: Device) -> str | None:
    if s.threads_per_row == 1 and s.reduce_with is not ReduceWith.SHUFFLE:
        return "a thread that owns a row combines with nobody"
    return _short(problem, s) if s.reduce_with.is_short else None


def _short(problem: Problem, s: Schedule) -> str | None:
    """Rules of reduce_with = short_chains."""
    if problem.any_cols:
        return "general kernels combine as their tuned neighbours do, by shuffles"
    if not reduces_rows(problem):
        if groups_are_warps(problem, s) or finds_pairs(problem, s):
            return None
        return "groups alone: of a vector for each lane of a warp, or the largest of eight stored 16-bit values or more"
    if s.rows_per_block > 1 or s.threads_per_row * s.row_blocks <= WARP:
        return "what warps have left is read by every thread of their row: rows_per_block = 1, several warps"
    return None


def unroll(problem: Problem, s: Schedule, _: Device) -> str | None:
    if s.hold is Hold.REGISTERS and s.unroll != 0:
        return "a row held in registers is unrolled completely (unroll = 0)"
    if s.hold is Hold.REGISTERS:
        return None
    if problem.any_cols:
        return "a run-time number of steps is not unrolled completely" if s.unroll == 0 else None
    in_registers = register_steps(problem, s) if s.hold is Hold.HYBRID else 0
    steps = max(1, steps_per_lane(problem, s) - in_registers)
    if s.unroll > steps:
        return f"unroll {s.unroll} exceeds the {steps} step{'s' if steps > 1 else ''} of a thread"
    if s.unroll == 0 and steps > 16:
        return f"{steps} steps are too many to unroll completely"
    if s.unroll == 0 and steps in (1, 2, 4, 8) and not problem.column_outputs:
        return f"unroll 0 is unroll {steps} here"
    return None


def _launch_bound(_: Problem, s: Schedule, device: Device) -> str | None:
    if s.blocks_per_sm * s.threads > device.threads_per_sm:
        return f"{s.blocks_per_sm} blocks of {s.threads} threads exceed the {device.threads_per_sm} threads of an SM"
    if s.blocks_per_sm > device.blocks_per_sm:
        return f"an SM holds at most {device.blocks_per_sm} blocks"
    return None


def statistics(problem: Problem, s: Schedule, _: Device) -> str | None:
    if s.statistics is Statistics.LEFT_OUT and kernel_problem(problem) == problem:
        return "there is no statistic to leave out"
    return None


def row_order(problem: Problem, s: Schedule, _: Device) -> str | None:
    if not s.row_order.descends:
        return None
    if problem.sums_batches:
        return "the rows of a batch are taken from its first one: row_order = ascending"
    if problem.sums_rows and not s.persistent:
        return "blocks of one tile, with sums over rows, take it in their own order: row_order = ascending"
    return None


def hints(_: Problem, s: Schedule, device: Device) -> str | None:
    if device.arch < 80 and {s.load, s.store} & {"evict_first", "evict_last"}:
        return "L2 eviction priorities need sm_80"
    if s.copy.is_by_threads and s.hold is not Hold.HYBRID and s.load is not LoadHint.DEFAULT:
        # With a cache hint some kernels end in an illegal instruction (NVRTC 13.0, H200).
        return "cp.async carries no cache hint: load = default"
    if (
        s.copy is Copy.BULK
        and s.hold is not Hold.HYBRID
        and s.load not in (LoadHint.DEFAULT, LoadHint.EVICT_FIRST, LoadHint.EVICT_LAST)
    ):
        return "bulk copies take priorities in L2 only: load = default, evict_first or evict_last"
    return None


def _batch_invariant(problem: Problem, s: Schedule, _: Device) -> str | None:
    if problem.batch_invariant and not s.is_batch_invariant:
        return "batch-invariant: a peeled head is as long as the row's address says; edges = exact or masked"
    return None


# Rules about how a row is cut: a cut that breaks one of these rules breaks it wherever the row waits.
CUT: tuple[Rule, ...] = (_block_size, _vector_width, _idle_threads, _edges, _packed, _groups, _batch_invariant, _parts)
STRUCTURAL: tuple[Rule, ...] = (
    *CUT,
    _any_cols,
    _cluster,
    _part_copy,
    persistent,
    _copy,
    _room,
)
FREE: tuple[Rule, ...] = (
    meeting,
    dependent_launch,
    _columns,
    _any_cols,
    params_registers,
    _hold,
    keep,
    persistent,
    _reduce_with,
    _guarded,
    division,
    in_place,
    _cluster,
    unroll,
    _launch_bound,
    hints,
    row_order,
    statistics,
)


# By which formula over columns of schedules a rule refuses nothing: of so many that is quicker than to ask for each.
PASSES: dict[Rule, Callable[[Problem, Schedule, Device], bool]] = {_idle_threads: _has_few_idle, _room: _has_room}

RULES: dict[ProgramClass, tuple[Rule, ...]] = {
    ProgramClass.ROWS: (*STRUCTURAL, *FREE, tile_rules.of_rows),
    ProgramClass.TILES: (*tile_rules.RULES, hints, _launch_bound),
    ProgramClass.LANES: (*lane_rules.RULES, division, hints, _launch_bound, statistics),
}


def rules_of(problem: Problem) -> tuple[Rule, ...]:
    """All rules of the problem's class, in the order in which they are asked."""
    return RULES[class_of(problem)]


def refusal(problem: Problem, schedule: Schedule, device: Device, rules: tuple[Rule, ...] | None = None) -> str | None:
    """Why this schedule is not legal, as one sentence; None if it is."""
    for rule in rules if rules is not None else rules_of(problem):
        reason = rule(problem, schedule, device)
        if reason is not None:
            return reason
    return None
