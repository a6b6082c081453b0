"""Which schedules a problem allows on a device, and the sentence that refuses each of the others.

A rule is a function (problem, schedule, device) -> sentence or None. Structural rules look at the knobs that
cut the work (threads, vectors, where the row waits); free rules at the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from normgen.device import Device
from normgen.problem import Problem
from normgen.schedule.schedule import Schedule
from normgen.spec import Kind

_NO_COLUMNS = Schedule().columns
CHAINED_BYTES = 768 << 20  # an early start gains 0.2 % at 16384x8192 bf16, 1 to 5 % from there down (H200)
Rule = Callable[[Problem, Schedule, Device], str | None]


def held_register_limit(s: Schedule, device: Device) -> int:
    """Registers a thread may fill with row data: three quarters of its share, less addresses and state."""
    available = min(255, device.registers_per_sm // max(s.threads, 1) // max(1, s.blocks_per_sm))
    return available * 3 // 4 - 12


def vectors_per_row(problem: Problem, s: Schedule) -> int:
    """The most whole vectors a row has; what is left of it, its edge, is owned element by element."""
    return problem.cols // s.vector


def steps_per_lane(problem: Problem, s: Schedule) -> int:
    """Vectors a thread owns in its row."""
    return -(-vectors_per_row(problem, s) // (s.threads_per_row * s.cluster))


def held_bytes_per_thread(problem: Problem, s: Schedule) -> int:
    """Bytes of row inputs a thread keeps between looks."""
    return steps_per_lane(problem, s) * s.vector * problem.row_input_bytes


def param_bytes_per_thread(problem: Problem, s: Schedule) -> int:
    """Bytes of column parameters a thread keeps when they are loaded early."""
    return steps_per_lane(problem, s) * s.vector * problem.parameter_bytes


def column_outputs(problem: Problem) -> int:
    """Column reductions of a backward problem: dweight, dbias, ..."""
    return problem.column_outputs


def sums_in_registers(problem: Problem, s: Schedule) -> int:
    """Registers of a thread that hold its column sums over rows."""
    if s.columns in ("atomic", "shared_atomic"):
        return 0
    return column_outputs(problem) * steps_per_lane(problem, s) * s.vector


def sums_pitch(problem: Problem) -> int:
    """Float32 cells of one column reduction's row of sums: whole 128-byte lines."""
    return -(-problem.cols // 32) * 32


def last_tile_sums(problem: Problem) -> int:
    """Cells of a column tile that a last arriver adds: 128 at a time, and at most 8 tiles to visit."""
    return max(128, -(-column_outputs(problem) * sums_pitch(problem) // (8 * 128)) * 128)


def last_tiles(problem: Problem) -> int:
    return -(-column_outputs(problem) * sums_pitch(problem) // last_tile_sums(problem))


def sums_shared_bytes(problem: Problem, s: Schedule) -> int:
    """Shared memory of a block's column sums: its row groups side by side; then the warps of a last arriver."""
    if not column_outputs(problem):
        return 0
    row = column_outputs(problem) * sums_pitch(problem) * 4
    if s.columns == "shared_atomic":
        return row
    groups = s.rows_per_block if s.edges == "peel" else s.threads // max(32, s.threads_per_row)
    if s.columns == "atomic" or (s.rows_per_block == 1 and s.edges != "peel"):
        groups = 0
    return max(groups * row, 16 * s.threads if s.columns == "partials_last_tile" else 0)


def shared_bytes(problem: Problem, s: Schedule) -> int:
    """Dynamic shared memory of a block: held rows, then column sums."""
    held = s.threads * held_bytes_per_thread(problem, s) if s.hold == "shared" else 0
    return held + sums_shared_bytes(problem, s)


def _block_size(_: Problem, s: Schedule, __: Device) -> str | None:
    if s.threads > 1024:
        return "threads_per_row x rows_per_block is at most 1024 threads a block"
    if s.threads % 32:
        return "threads_per_row x rows_per_block must be whole warps of 32 threads"
    return None


def _idle_threads(problem: Problem, s: Schedule, _: Device) -> str | None:
    lanes = s.threads_per_row * s.cluster
    if lanes > 1 and lanes // 2 >= vectors_per_row(problem, s):
        return "at least half of a row's threads would own no vector"
    return None


def _vector_width(problem: Problem, s: Schedule, device: Device) -> str | None:
    limit = 32 if device.arch >= 100 else 16
    width = s.vector * problem.dtype.bytes
    if width > limit:
        return f"one access moves at most {limit} bytes on sm_{device.arch}"
    return None


def _edges(problem: Problem, s: Schedule, _: Device) -> str | None:
    aligned = all(problem.row_alignment(t) >= min(16, s.vector * t.dtype.bytes) for t in problem.elem_tensors)
    divides = problem.cols % s.vector == 0 and not problem.any_cols
    if s.edges == "exact" and problem.any_cols and s.vector > 1:
        return "cols is a run-time value: vectors need a masked tail"
    if s.edges == "exact" and s.vector > 1 and not divides:
        return f"vectors of {s.vector} elements need cols divisible by {s.vector}, or edges = masked or peel"
    if s.edges != "peel" and not aligned:
        return f"rows are not aligned to vectors of {s.vector} elements: use a narrower vector or edges = peel"
    if s.edges == "masked" and divides:
        return "cols is divisible by the vector: nothing to mask"
    if s.edges == "masked" and s.vector == 1:
        return "vectors of one element have no tail"
    edge = {"exact": 0, "masked": s.vector - 1, "peel": 2 * s.vector - 2}[s.edges]
    if s.edges != "exact" and problem.cols < s.vector:
        return f"a row of {problem.cols} elements has no vector of {s.vector}"
    if edge > s.threads_per_row * s.cluster:
        return f"up to {edge} elements outside of the whole vectors need a lane each"
    if s.edges == "peel":
        if s.vector == 1:
            return "vectors of one element need no peeled head"
        if aligned and divides:
            return "rows are aligned and whole vectors: nothing to peel"
        if len({t.dtype.bytes for t in problem.elem_tensors}) > 1:
            return "a peeled head needs all elem tensors of one element size, so that their rows shift alike"
        if s.vector * problem.dtype.bytes > 16:
            return "a peeled head aligns to at most 16 bytes"
        if s.persistent and s.cluster > 1:
            return "clusters that fit the device are not a multiple of the vector: rows would shift from trip to trip"
    return None


def _any_cols(problem: Problem, s: Schedule, _: Device) -> str | None:
    if problem.any_cols and (s.hold != "reload" or s.params != "late"):
        return "cols is a run-time value: nothing of a row's length fits registers or a fixed buffer"
    return None


def _hold(problem: Problem, s: Schedule, device: Device) -> str | None:
    if s.hold == "registers":
        registers = held_bytes_per_thread(problem, s) // 4 * s.stages + sums_in_registers(problem, s)
        if s.params != "late":
            registers += param_bytes_per_thread(problem, s) // 4
        limit = held_register_limit(s, device)
        if registers > limit:
            return f"a thread would hold {registers} registers of data; {s.threads} threads a block leave it {limit}"
    if s.hold == "hybrid":
        return "hybrid holding is not built yet"
    needed, limit = shared_bytes(problem, s), device.shared_per_block - 4096
    if needed > limit:
        what = "rows" if s.hold == "shared" else "column sums"
        return f"the {what} of a block need {needed} bytes of shared memory; {device.name} leaves it {limit}"
    elem_inputs = [t for t in problem.elem_tensors if not t.is_written]
    if s.hold == "shared" and any(s.vector * t.dtype.bytes < 4 for t in elem_inputs):
        return "shared slots of less than 4 bytes a thread conflict on banks: use a wider vector or registers"
    return None


def _params_registers(problem: Problem, s: Schedule, device: Device) -> str | None:
    if s.params == "late":
        return None
    if param_bytes_per_thread(problem, s) == 0:
        return "there are no column parameters to load early"
    if s.params == "packed" and all(t.dtype.bytes > 2 for t in problem.tensors if t.kind is Kind.COL):
        return "column parameters of 32 bits are kept as they are stored: params = kept"
    if s.hold != "registers" and param_bytes_per_thread(problem, s) // 4 > held_register_limit(s, device):
        return "the column parameters of a thread do not fit its registers"
    return None


def _cluster(problem: Problem, s: Schedule, device: Device) -> str | None:
    if s.cluster == 1:
        return None
    if device.arch < 90:
        return "thread-block clusters need sm_90"
    if s.rows_per_block > 1 or s.threads_per_row < 32:
        return "a cluster shares one row: rows_per_block = 1 and whole warps"
    if s.reduce_with != "shuffle":
        return "clusters combine with shuffles and distributed shared memory"
    if problem.any_cols:
        return "a cluster shares rows of a fixed length: cols is a run-time value"
    if column_outputs(problem) and s.columns == "shared_atomic":
        return (
            "a block of a cluster meets a part of the columns: its row of sums in shared memory would be mostly zeros"
        )
    return None


def _persistent(problem: Problem, s: Schedule, device: Device) -> str | None:
    if not s.persistent:
        if s.keeps_params:
            return "parameters are kept across rows only by a persistent grid"
        if s.stages > 1:
            return "several rows in flight need a persistent grid"
        return None
    tiles = -(-problem.rows // s.rows_per_block)
    columns = column_outputs(problem) > 0
    if (
        tiles <= max(1, s.persistent * device.sm_count // s.cluster)
        and not problem.any_cols
        and s.persistent > 1
        and not columns
    ):
        return "the grid would have no row to loop over"
    if s.persistent * s.threads > device.threads_per_sm:
        return f"{s.persistent} blocks of {s.threads} threads exceed the {device.threads_per_sm} threads of an SM"
    return None


def _dependent_launch(problem: Problem, s: Schedule, device: Device) -> str | None:
    if s.dependent_launch == "off":
        return None
    if device.arch < 90:
        return "programmatic dependent launch needs sm_90"
    if s.dependent_launch == "on" and (not column_outputs(problem) or s.columns != "partials_two_kernels"):
        return "there is no second kernel to start early"
    if s.dependent_launch == "loads" and (s.persistent or column_outputs(problem) or s.hold == "reload"):
        return (
            "the next kernel starts after the loads of a row that is read as a whole and is the only one of its block"
        )
    return None


def _copy(_: Problem, s: Schedule, __: Device) -> str | None:
    if s.copy != "direct":
        return "asynchronous copies are not built yet"
    if s.stages > 2:
        return "more than two rows in flight need an asynchronous copy"
    if s.stages > 1 and s.hold != "registers":
        return "the next row travels in registers: hold = registers"
    return None


def _columns(problem: Problem, s: Schedule, _: Device) -> str | None:
    if not column_outputs(problem):
        return "there are no column reductions to sum" if s.columns != _NO_COLUMNS else None
    if problem.any_cols and s.columns != "atomic":
        return "cols is a run-time value: column sums go straight to memory (columns = atomic)"
    if s.columns in ("atomic", "shared_atomic"):
        return None
    if not s.persistent:
        return "column sums in registers pay only over many rows of one block: persistent >= 1"
    if s.hold != "registers" and s.unroll != 0:
        return "column sums in registers need a completely unrolled row (unroll = 0)"
    return None


def _reduce_with(_: Problem, s: Schedule, __: Device) -> str | None:
    if s.threads_per_row == 1 and s.reduce_with != "shuffle":
        return "a thread that owns a row combines with nobody"
    return None


def _unroll(problem: Problem, s: Schedule, _: Device) -> str | None:
    if s.hold == "registers" and s.unroll != 0:
        return "a row held in registers is unrolled completely (unroll = 0)"
    if s.hold == "registers":
        return None
    if problem.any_cols:
        return "a run-time number of steps is not unrolled completely" if s.unroll == 0 else None
    steps = steps_per_lane(problem, s)
    if s.unroll > max(1, steps):
        return f"unroll {s.unroll} exceeds the {steps} steps of a thread"
    if s.unroll == 0 and steps > 16:
        return f"{steps} steps are too many to unroll completely"
    if s.unroll == 0 and steps in (1, 2, 4, 8) and not column_outputs(problem):
        return f"unroll 0 is unroll {steps} here"
    return None


def _launch_bound(_: Problem, s: Schedule, device: Device) -> str | None:
    if s.blocks_per_sm * s.threads > device.threads_per_sm:
        return f"{s.blocks_per_sm} blocks of {s.threads} threads exceed the {device.threads_per_sm} threads of an SM"
    if s.blocks_per_sm > device.blocks_per_sm:
        return f"an SM holds at most {device.blocks_per_sm} blocks"
    return None


def _hints(_: Problem, s: Schedule, device: Device) -> str | None:
    if device.arch < 80 and {s.load, s.store} & {"evict_first", "evict_last"}:
        return "L2 eviction priorities need sm_80"
    return None


STRUCTURAL: tuple[Rule, ...] = (
    _block_size,
    _vector_width,
    _idle_threads,
    _edges,
    _any_cols,
    _cluster,
    _persistent,
    _copy,
)
FREE: tuple[Rule, ...] = (
    _dependent_launch,
    _columns,
    _any_cols,
    _params_registers,
    _hold,
    _persistent,
    _reduce_with,
    _cluster,
    _unroll,
    _launch_bound,
    _hints,
)


def searched_tile(problem: Problem, s: Schedule, _: Device) -> str | None:
    """Search policy for structural knobs: legal, but not worth a measurement."""
    limit = 512 if column_outputs(problem) else 256  # row groups of a block share one row of column sums
    if s.rows_per_block > 1 and s.threads > limit:
        return f"not searched: several rows side by side beyond {limit} threads a block"
    forward = not column_outputs(problem)
    least = 512 if s.edges == "peel" else 1024
    if forward and s.persistent and s.cluster == 1 and not least <= s.persistent * s.threads <= 1024:
        return "not searched: a persistent grid with less than 512 or more than 1024 threads an SM"
    if forward and s.stages > 1 and s.edges != "peel" and s.cluster == 1:
        return "not searched: the next row in registers, of aligned rows that leave no column sums"
    if column_outputs(problem) and s.persistent * s.threads > 768 and s.hold == "registers":
        return "not searched: more than 768 resident threads an SM, with column sums in registers"
    return None


def searched_cluster(problem: Problem, s: Schedule, device: Device) -> str | None:
    """Search policy: a cluster pays where one block cannot hold the row or rows are fewer than SMs.

    Column sums take registers too, and a cluster leaves fewer partial rows: clusters from half a block's row on.
    """
    if s.cluster == 1:
        return None
    if s.threads_per_row < 128:
        return "not searched: clusters of blocks below 128 threads"
    if column_outputs(problem):
        if problem.cols * problem.dtype.bytes < 8192 and problem.rows >= 4 * device.sm_count:
            return "not searched: column sums over clusters for rows below 8 KiB, unless there are few rows"
        if not s.persistent:
            return "not searched: clusters that do not loop over rows, with column sums"
        return None
    if s.persistent and s.persistent * s.threads != 1024:
        return "not searched: a persistent grid of clusters with other than 1024 threads an SM"
    small = problem.cols * problem.dtype.bytes < 32768 and problem.rows * 2 > device.sm_count
    if small or problem.any_cols:
        return "not searched: clusters for rows that one block holds, unless rows are fewer than half the SMs"
    if steps_per_lane(problem, s) > 16:
        return "not searched: clusters with more than 16 vectors a thread"
    return None


def searched_launch(problem: Problem, s: Schedule, device: Device) -> str | None:
    """Search policy: what an early start is combined with.

    The next launch may start at once where a block walks rows, else when the row has been asked for; on an H200 the
    other order loses up to 1 %. With column sums it never loses (8192x768 to 4096x4096): only that is searched.
    """
    if s.columns == "partials_two_kernels" and column_outputs(problem):
        if device.arch >= 90 and not s.chained and problem.compulsory_bytes < CHAINED_BYTES:
            return "not searched: two kernels without an early start"
        return None
    if not s.chained:
        return None
    if problem.compulsory_bytes >= CHAINED_BYTES:
        return "not searched: every kernel launched early where a launch moves 768 MB or more"
    if s.hold != "registers":
        return "not searched: every kernel launched early, of rows not held in registers"
    if s.dependent_launch != ("start" if s.persistent else "loads"):
        return "not searched: the next kernel started at another place than the best"
    return None


# Rules that look at one free knob, and else at the structure alone.
ONE_KNOB: dict[str, tuple[Rule, ...]] = {
    "unroll": (_unroll,),
    "params": (_persistent, _params_registers),
    "dependent_launch": (_dependent_launch, searched_launch),
}


def plain_only(problem: Problem, s: Schedule) -> str | None:
    """Why this structure is searched only without hints, early parameters and a persistent grid; None: with all.

    Such points are worth one measurement each (they are the steps of the classic optimisation ladder, or win in
    a corner), not a subspace of their own.
    """
    extras = "hints, early parameters or a persistent grid"
    if column_outputs(problem) and s.columns != "partials_two_kernels":
        return "not searched: column sums by atomics or last arrivers, with " + extras
    if s.reduce_with != "shuffle" or s.threads_per_row == 1:
        return "not searched: thread per row, shared_tree, cooperative_groups with " + extras
    wide_is_legal = problem.cols * problem.dtype.bytes % 16 == 0 and problem.align % 16 == 0
    if s.vector * problem.dtype.bytes < 8 and wide_is_legal:
        return "not searched: accesses below 8 bytes where 16 are possible, with " + extras
    if s.hold != "registers" and held_bytes_per_thread(problem, s) <= 256 and not problem.any_cols:
        return "not searched: a row not held in registers that would fit them, with " + extras
    if s.variance in ("welford", "shifted") and s.hold == "registers":
        return "not searched: one-look variances of a row in registers, with " + extras
    return None


def refusal(problem: Problem, schedule: Schedule, device: Device, rules: tuple[Rule, ...] | None = None) -> str | None:
    """Why this schedule is not legal, as one sentence; None if it is."""
    for rule in rules if rules is not None else (*STRUCTURAL, *FREE):
        reason = rule(problem, schedule, device)
        if reason is not None:
            return reason
    return None
