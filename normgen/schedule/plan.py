"""Every fact that follows from a problem, its program and a schedule, derived once.

The functions need no program: legality and cost model ask them a hundred thousand times a problem. A `Plan` adds what
depends on the program, for one schedule: it is all that the emitter reads.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from normgen.device import MOST_TOGETHER, Device
from normgen.dtypes import CASTS
from normgen.knobs import KNOBS, ColumnWay, Copy, Edges, Hold, Keep, Params, ReduceWith, VarianceMethod
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.program.frozen import frozen
from normgen.program.ir import (
    Expr,
    Load,
    Map,
    Random,
    Reduce,
    RowProgram,
    Store,
    defined_names,
    kind_of,
    names_of,
    stage_of,
    used_exprs,
    used_names,
    value_alone,
    value_kinds,
)
from normgen.schedule.columns import least, most, some, where
from normgen.schedule.schedule import Schedule
from normgen.spec.formula import Cast, Expression, nodes
from normgen.spec.spec import Kind

WARP = 32
FIRST_ARCH = 75
LINE_BYTES, SECTOR_BYTES = 128, 32  # of memory: what a cache keeps together, and what is moved at once
TICKET_BYTES = 128  # an arrival counter has a line of its own
HYBRID_SPARE = 8  # registers beside a held row: without them blocks of 1024 threads spill (NVRTC 13.0, sm_90)


def alignment_of(problem: Problem, s: Schedule) -> int:
    """Bytes that every row start and every column parameter must be a multiple of."""
    if s.peels:
        return problem.dtype.bytes
    if s.copy is not Copy.DIRECT and not s.tile_m:
        return 16
    return min(16, max(t.dtype.bytes_of(s.vector) for t in problem.tensors if not t.kind.is_spread))


def tensor_alignment(problem: Problem, s: Schedule, tensor: TensorUse) -> int:
    """The alignment of one tensor that the text was emitted for; element by element, an element's own is enough."""
    if problem.col_stride > 1:
        return problem.row_alignment(tensor) if s.vector > 1 and tensor.kind.is_elem else tensor.dtype.bytes
    if s.tile_m:
        is_wide = s.vector > 1 and tensor.kind.within_row
        aligned = problem.row_alignment(tensor) if tensor.kind.is_matrix else problem.align
        return aligned if is_wide else tensor.dtype.bytes
    asked_ahead = s.params is Params.PREFETCHED and tensor.is_parameter
    if (s.vector == 1 and s.copy is Copy.DIRECT and not asked_ahead) or not tensor.kind.by_col:
        return tensor.dtype.bytes
    return problem.row_alignment(tensor) if tensor.kind.is_matrix else problem.align


def held_register_limit(s: Schedule, device: Device) -> int:
    """Registers a thread may fill with row data: three quarters of its share, less addresses and state."""
    return _held_registers(s, device.registers_per_sm)


def _held_registers(s: Schedule, registers_per_sm: int) -> int:
    available = least(255, registers_per_sm // most(s.threads, 1) // most(1, s.blocks_per_sm))
    return available * 3 // 4 - 12


def register_steps(problem: Problem, s: Schedule) -> int:
    """hold = hybrid: how many vectors of each row input a thread keeps in registers, as many as fit them.

    Every GPU since compute capability 5.0 has 65536 registers an SM, so that a schedule means one kernel everywhere.
    """
    spare = _held_registers(s, 65536) - HYBRID_SPARE
    return most(0, spare // most(1, s.vector * problem.row_input_bytes // 4))


def has_row_barriers(s: Schedule) -> bool:
    """Rows side by side synchronise by a named barrier each, where rows are wide.

    On an H200 that takes 2 % off the backward pass of 4096x4096 (2 rows of 256 threads) and adds 25 % to
    8192x768 (2 rows of 64 threads): a barrier whose number the hardware learns at run time is a slow one.
    """
    return s.rows_per_block > 1 and s.threads_per_row >= 256


def vectors_per_row(problem: Problem, s: Schedule) -> int:
    """The most whole vectors a row has; what is left of it, its edge, is owned element by element."""
    return problem.cols // s.vector


def head_unit(problem: Problem, s: Schedule) -> int:
    """Elements: the first vector of a peeled row starts at a multiple of so many.

    Those of a whole line of memory, else of a whole sector, where a row has them and lanes for what is left at both
    ends: then no two accesses move the same sector. On an H200 0.6 to 1.2 % at 4097 and 50257 cols of bf16, 0.2 % at
    1023.
    """
    if s.peels and not problem.any_cols:
        for whole in LINE_BYTES, SECTOR_BYTES:
            unit = whole // problem.dtype.bytes
            if s.vector < unit <= min(problem.cols, s.threads_per_row * s.row_blocks - s.vector + 2):
                return unit
    return s.vector


def steps_per_lane(problem: Problem, s: Schedule) -> int:
    """Vectors a thread owns in its row."""
    return _steps(problem.cols, s)


def idle_lanes(cols: int, s: Schedule) -> float:
    """Lanes without a vector in the last step, for each vector of a row of so many cols."""
    return _steps(cols, s) * s.threads_per_row * s.row_blocks * s.vector / cols - 1


def _steps(cols: int, s: Schedule) -> int:
    return -(-(cols // s.vector) // (s.threads_per_row * s.row_blocks))


def held_bytes_per_thread(problem: Problem, s: Schedule) -> int:
    """Bytes of row inputs a thread keeps between looks."""
    return steps_per_lane(problem, s) * s.vector * problem.row_input_bytes


def vector_registers(problem: Problem, s: Schedule) -> int:
    """Registers of a vector of each row input, as it is stored: one at least, of less than four bytes too."""
    return sum(-(-s.vector * t.dtype.bytes // 4) for t in problem.elem_inputs)


def param_bytes_per_thread(problem: Problem, s: Schedule) -> int:
    """Bytes of column parameters a thread keeps when they are loaded early."""
    return steps_per_lane(problem, s) * s.vector * problem.parameter_bytes


def sums_in_registers(problem: Problem, s: Schedule) -> int:
    """Registers of a thread that hold its column sums over rows."""
    if not problem.column_outputs:
        return 0
    return problem.column_outputs * steps_per_lane(problem, s) * s.vector * s.columns.in_registers


def sums_pitch(problem: Problem) -> int:
    """Float32 cells of one column reduction's row of sums: whole 128-byte lines."""
    return -(-problem.cols // 32) * 32


def last_tile_sums(problem: Problem) -> int:
    """Cells of a column tile that a last arriver adds: 128 at a time, and at most 8 tiles to visit."""
    return max(128, -(-problem.column_outputs * sums_pitch(problem) // (8 * 128)) * 128)


def last_tiles(problem: Problem) -> int:
    return -(-problem.column_outputs * sums_pitch(problem) // last_tile_sums(problem))


def sums_shared_bytes(problem: Problem, s: Schedule) -> int:
    """Shared memory of a block's column sums: its row groups side by side; then the warps of a last arriver."""
    if not problem.sums_rows:
        return 0
    row = problem.column_outputs * sums_pitch(problem) * 4
    groups = where(s.peels, s.rows_per_block, s.threads // most(32, s.threads_per_row))
    is_alone = (s.columns == ColumnWay.ATOMIC) | ((s.rows_per_block == 1) & (s.edges != Edges.PEEL))
    last = where(s.columns == ColumnWay.PARTIALS_LAST_TILE, 16 * s.threads, 0)
    beside = most(where(is_alone, 0, groups * row), last)
    return where(s.columns == ColumnWay.SHARED_ATOMIC, row, beside)


def shared_bytes(problem: Problem, s: Schedule) -> int:
    """Dynamic shared memory of a block: held rows, then column sums."""
    return slot_bytes(problem, s) + sums_shared_bytes(problem, s)


def slot_bytes(problem: Problem, s: Schedule) -> int:
    """Slots of the rows that wait in shared memory or come through it."""
    if not some(s.hold.in_shared | (s.copy != Copy.DIRECT)):
        return 0
    steps = steps_per_lane(problem, s) - where(s.hold == Hold.HYBRID, register_steps(problem, s), 0)
    tile = s.threads * most(0, steps) * s.vector * problem.row_input_bytes
    return where(s.copy != Copy.DIRECT, tile * s.stages, where(s.hold.in_shared, tile, 0))


def groups_are_warps(problem: Problem, s: Schedule) -> bool:
    """Whether each lane of a warp owns one vector of a group."""
    return problem.spec.group == WARP * s.vector and s.threads_per_row >= WARP


def in_pairs(problem: Problem, s: Schedule, reduce: Reduce) -> bool:
    """Whether a thread finds the largest |x| of its vector in the bits of two elements at a time."""
    return s.reduce_with.is_short and has_pairs(problem, s, reduce)


def has_pairs(problem: Problem, s: Schedule, reduce: Reduce) -> bool:
    """Whether short chains would do so.

    Of eight elements or more, read as they are stored, in 16 bits: of four it takes as many instructions.
    """
    read = {t.name for t in problem.elem_inputs if t.dtype.bytes == 2}
    is_read = reduce.monoid.name == "absmax" and value_alone(reduce.args[0]) in read
    return s.vector >= 8 and reduce.kind.is_groups and is_read


def is_spared(look: tuple[Reduce, ...]) -> bool:
    """Whether rows may be spared this look: each of its reductions is guarded."""
    return all(reduce.guard for reduce in look)


@dataclass(frozen=True, kw_only=True)
class RowCut:
    """How a row is cut: whole vectors, lanes that share them, steps a lane takes; the edge that is left over.

    The edge of a row is what no whole aligned vector covers: fewer than `vector` elements behind the vectors, and
    fewer than `unit` before them where rows start anywhere. Each lane owns at most one of them.
    """

    vector: int
    steps: int
    unit: int  # elements: the first vector of a shifted row starts at a multiple of so many
    shifted: bool  # rows may start between two aligned vectors (edges = peel)
    edged: bool  # a row may have an edge

    @property
    def has_unit(self) -> bool:
        """Whether a row's first vector starts at a multiple of more than a vector."""
        return self.unit > self.vector


class ExchangeWay(StrEnum):
    """How the threads of a row combine their states."""

    NONE = "none"  # a thread owns a row, or no row value is reduced
    LANES = "lanes"
    BLOCK = "block_shuffle"
    TREE = "tree"
    COOPERATIVE_WARP = "cooperative_warp"
    COOPERATIVE_BLOCK = "cooperative_block"
    CLUSTER = "cluster"
    CLUSTER_WALK = "cluster_rows"  # clusters that walk rows: an exchange a row, without a cluster barrier
    GRID = "grid"  # blocks of the grid that walk rows together: through memory


class Waiting(StrEnum):
    """Where the vectors of some steps of a thread wait between looks."""

    REGISTERS = "registers"
    SHARED = "shared"
    RELOAD = "reload"


@dataclass(frozen=True, kw_only=True)
class Sums:
    """The sums over rows of a kernel: where they are added up, and what they need.

    stores       of columns
    totals       of scalars: a block has one cell for each
    by_batch     some store has a sum for each batch of rows: then all are added up batch by batch, and a sum over all
                 rows is the batches' sum
    total_bytes  of the workspace for these cells, whole lines: of a block, or of all
    groups       row groups of a block that keep sums of their own
    fixed_bytes, block_bytes, batch_bytes   of the workspace: for all blocks, for each block, for each batch
    column_bytes  what each column costs of the fixed ones, or of those for each batch, where cols is a run-time value
    """

    way: ColumnWay
    stores: tuple[Store, ...]
    totals: tuple[Store, ...]
    by_batch: bool
    total_bytes: int
    pitch: int
    in_registers: bool
    in_shared: bool
    groups: int
    shared_bytes: int
    fixed_bytes: int
    column_bytes: int
    block_bytes: int
    batch_bytes: int


class Meeting(NamedTuple):
    """What blocks of the grid need that share rows and exchange states through memory.

    words        of the largest state
    fixed_bytes  of the workspace for all blocks: a counter for each group that can be resident, in a line of its own
    block_bytes  for each block: two states of its own, of which exchanges take turns
    """

    words: int
    fixed_bytes: int
    block_bytes: int


class Elementwise(NamedTuple):
    """What a loop does of each element, in program order.

    sources  loads and random numbers
    maps     what is computed of them
    kept     values that an earlier loop over the same elements left
    """

    sources: list[Load | Random]
    maps: list[Map]
    kept: list[str]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One kernel, decided: what the emitter turns into text."""

    problem: Problem
    program: RowProgram
    schedule: Schedule

    # ---- the program, look by look -----------------------------------------------------------------------------

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        return value_kinds(self.program)

    @cached_property
    def stages(self) -> dict[str, int]:
        return stage_of(self.program)

    @cached_property
    def looks(self) -> list[tuple[Reduce, ...]]:
        """Row reductions by stage: the reductions of one stage share one look and one exchange."""
        by_stage: dict[int, list[Reduce]] = {}
        for reduce in self.program.row_reduces:
            by_stage.setdefault(self.stages[reduce.names[0]], []).append(reduce)
        return [tuple(by_stage[s]) for s in sorted(by_stage)]

    @cached_property
    def elem_stores(self) -> tuple[Store, ...]:
        return tuple(s for s in self.program.stores if s.kind.is_elem)

    @cached_property
    def early_stores(self) -> tuple[Store, ...]:
        """Element outputs that the first look computes anyway: they leave while the row is still being reduced.

        Not where the row is read again, whose place one may take. One that takes an input's place waits for the
        exchange where other threads read of that input, too: words that neighbours share, or a pivot.
        """
        if not self.looks or Waiting.RELOAD in self.places:
            return ()
        first = self.elementwise(self.look_roots(0))
        known = {value.name for value in (*first.sources, *first.maps)}
        apart = not (self.cut.shifted or self.cut.edged)
        pivots = {load.of for load in self.program.loads}
        late = {written for written, read in self.problem.in_place if not apart or read in pivots}
        return tuple(s for s in self.elem_stores if s.value in known and s.tensor not in late)

    @cached_property
    def late_stores(self) -> tuple[Store, ...]:
        """Element outputs that the last look writes."""
        return tuple(s for s in self.elem_stores if s not in self.early_stores)

    @cached_property
    def group_stores(self) -> tuple[Store, ...]:
        return tuple(s for s in self.program.stores if s.kind.is_groups)

    @cached_property
    def elem_totals(self) -> tuple[tuple[Store, Expr], ...]:
        """Totals of elements, with what each element adds."""
        return tuple(t for t in self.program.total_terms if kind_of(t[1], self.kinds).within_row)

    @cached_property
    def row_totals(self) -> tuple[tuple[Store, Expr], ...]:
        """Totals of row values, with what each row adds."""
        return tuple(t for t in self.program.total_terms if t not in self.elem_totals)

    @property
    def has_last_look(self) -> bool:
        """Whether the row is looked at once its values are known."""
        return bool(self.late_stores or self.program.col_terms or self.elem_totals)

    def grouped(self, roots: set[str]) -> list[Reduce | Map]:
        """The reductions over groups, and the maps of their values, that a loop must run to have `roots`."""
        found = set(roots)
        wanted: list[Reduce | Map] = []
        for statement in reversed(self.program.statements):
            is_in_loop = isinstance(statement, Map) and statement.kind.within_row
            is_in_loop |= isinstance(statement, Reduce) and statement.kind.is_groups
            if isinstance(statement, Map | Reduce) and is_in_loop and found.intersection(defined_names(statement)):
                found |= used_names(statement)
                if statement.kind.is_groups:
                    wanted.insert(0, statement)
        return wanted

    def group_rounds(self, roots: set[str]) -> list[list[Reduce | Map]]:
        """The same in rounds: a reduction waits for the values of groups that its elements are computed with."""
        rounds: dict[str, int] = {}
        for statement in self.program.statements:
            is_reduced = isinstance(statement, Reduce) and statement.kind.is_groups
            is_known = isinstance(statement, Reduce) and not is_reduced  # before the loop
            last = 0 if is_known else max((rounds.get(n, 0) for n in used_names(statement)), default=0)
            rounds.update((name, last + is_reduced) for name in defined_names(statement))
        wanted = [(rounds[defined_names(statement)[0]], statement) for statement in self.grouped(roots)]
        return [[s for number, s in wanted if number == one] for one in sorted({number for number, _ in wanted})]

    def group_arguments(self, roots: set[str]) -> set[str]:
        """The values that those reductions read of each element."""
        return {name for r in self.grouped(roots) if isinstance(r, Reduce) for name in used_names(r)}

    def elementwise(self, roots: set[str], kept: Collection[str] = ()) -> Elementwise:
        """What a loop must run to have `roots`, given its groups' values and each element's `kept` ones."""
        found = set(roots)
        maps: list[Map] = []
        for statement in reversed(self.program.statements):
            wide = isinstance(statement, Map) and statement.kind.by_col
            if wide and isinstance(statement, Map) and statement.name in found and statement.name not in kept:
                found |= used_names(statement)
                maps.insert(0, statement)
        sources: tuple[Load | Random, ...] = (*self.program.loads, *self.program.randoms)
        wanted = found.difference(kept)
        loads = [source for source in sources if source.name in wanted and source.kind.by_col]
        return Elementwise(loads, maps, [name for name in kept if name in found])

    def look_roots(self, look: int) -> set[str]:
        """Names the loop of look `look` (0-based; the last one writes) starts from."""
        if look < len(self.looks):
            return {n for r in self.looks[look] for n in used_names(r)}
        roots = {s.value for s in (*self.late_stores, *self.group_stores)}
        return roots.union(*(names_of(term) for _, term in (*self.program.col_terms, *self.elem_totals)))

    @cached_property
    def look_sources(self) -> list[list[Load | Random]]:
        """What each look reads, or draws, of every element."""
        return [self._loop(look, self.waiting(look)).sources for look in range(len(self.looks) + 1)]

    def _loop(self, look: int, kept: Collection[str]) -> Elementwise:
        """All that a look does of each element, for its groups too."""
        roots = self.look_roots(look)
        return self.elementwise(roots | self.group_arguments(roots), kept)

    @cached_property
    def kept(self) -> list[list[str]]:
        """keep = values: of each look the values of elements that it leaves for later ones.

        Not of a look that rows may be spared.
        """
        if self.schedule.keep is Keep.ROW:
            return [[] for _ in range(len(self.looks) + 1)]
        found: list[list[str]] = []
        for look in range(len(self.looks) + 1):
            known = [name for names in found for name in names]
            is_left = look < len(self.looks) and not is_spared(self.looks[look])
            loop = self._loop(look, known)
            own = [v.name for v in (*loop.sources, *loop.maps) if v.kind.is_elem] if is_left else []
            later = (self._loop(after, [*known, *own]).kept for after in range(look + 1, len(self.looks) + 1))
            needed = {name for names in later for name in names}
            found.append([name for name in own if name in needed])
        return found

    def waiting(self, look: int) -> list[str]:
        """The values of elements that looks before this one left."""
        return [name for names in self.kept[:look] for name in names]

    @cached_property
    def look_loads(self) -> list[list[Load]]:
        return [[source for source in sources if isinstance(source, Load)] for sources in self.look_sources]

    @cached_property
    def seeds(self) -> frozenset[str]:
        """Tensors that are read as bits."""
        return frozenset(random.seed for random in self.program.randoms)

    @cached_property
    def held(self) -> tuple[Load, ...]:
        """Elem loads that wait between looks (or are all read up front)."""
        if self.schedule.hold is Hold.RELOAD:
            return ()
        wanted = {ld.name for loads in self.look_loads for ld in loads}
        return tuple(ld for ld in self.program.loads if ld.kind.is_elem and not ld.roll and ld.name in wanted)

    @cached_property
    def col_params(self) -> tuple[Load, ...]:
        """Column parameters that a look needs."""
        wanted = {ld.name for loads in self.look_loads for ld in loads}
        return tuple(ld for ld in self.program.loads if ld.kind.is_col and not ld.roll and ld.name in wanted)

    @cached_property
    def early_params(self) -> tuple[Load, ...]:
        """Column parameters that are read before the look that needs them."""
        return self.col_params if self.schedule.params.in_registers else ()

    @cached_property
    def config_params(self) -> tuple[Load, ...]:
        """Column parameters of which the Config says whether they are read early: the kernel has text for both.

        Registers can hold them where every loop over vectors is unrolled. Where a block walks rows, early is before
        the first of them, whose shift is then that of all.
        """
        p, s = self.problem, self.schedule
        unrolled = not p.any_cols and s.unroll == 0 and not self.is_hybrid
        unrolled = unrolled and not (self.loops_rows and self.cut.shifted and not self.one_shift)
        either = not s.params.read_early and self.has_team if self.loops_rows else not s.keeps_params
        return self.col_params if either and unrolled and not (s.chained and p.stable_tensors) else ()

    @cached_property
    def asked_params(self) -> tuple[Load, ...]:
        """Column parameters that the kernel can ask for ahead of its row; the Config says whether it does."""
        is_asked = self.schedule.params is Params.PREFETCHED or (self.config_params and not self.loops_rows)
        return tuple(load for load in self.col_params if not load.group) if is_asked else ()

    @cached_property
    def fetched_rows(self) -> tuple[Load, ...]:
        """Row values that are read with their row."""
        return tuple(ld for ld in self.program.loads if ld.kind.is_row and not ld.of)

    # ---- the row among threads ---------------------------------------------------------------------------------

    @cached_property
    def cut(self) -> RowCut:
        s = self.schedule
        return RowCut(
            vector=s.vector,
            steps=steps_per_lane(self.problem, s),
            unit=head_unit(self.problem, s),
            shifted=s.peels,
            edged=s.edges is not Edges.EXACT,
        )

    @property
    def one_shift(self) -> bool:
        """Whether all rows of a lane shift alike: the grid's stride is a multiple of their unit (`period`).

        Blocks that share a row through memory are as many as are resident, whatever that is a multiple of.
        """
        return self.cut.shifted and self.schedule.persistent > 0 and self.schedule.parts == 1

    @property
    def places(self) -> tuple[Waiting, ...]:
        """Where the vectors of a thread wait, in the order of its steps."""
        if self.schedule.hold is Hold.HYBRID:
            return (Waiting.REGISTERS, Waiting.SHARED)
        return (Waiting(self.schedule.hold.value),)

    @property
    def ends_unevenly(self) -> bool:
        """Whether the text says of a guarded look that only the last of a thread's steps may have no vector.

        NVRTC 13.0 takes threadIdx.x for any number, and tests each step: layernorm 4000x3520 bf16 by 64 threads has 39
        branches more, and takes 1.06 to 1.16 times the chain (five shapes, H100; 7x13056 by clusters 1.01). It has a
        bound for lanes of a block with several rows. Other looks are not said to: their steps are a predicate each
        (cross_entropy_grad 3474x3840 takes 1.02, but rmsnorm 1x7168 0.96 and rmsnorm_to_fp8_token 119x182976 0.94).
        """
        s = self.schedule
        is_uneven = self.cut.steps > 1 and vectors_per_row(self.problem, s) % (s.threads_per_row * s.row_blocks) > 0
        return is_uneven and s.variance is VarianceMethod.GUARDED and s.rows_per_block == 1 and not self.cut.shifted

    @property
    def is_hybrid(self) -> bool:
        """Whether part of a row waits in registers and the rest in shared memory."""
        return len(self.places) > 1

    @property
    def held_steps(self) -> int:
        """hold = hybrid: the steps whose vectors wait in registers."""
        return register_steps(self.problem, self.schedule)

    def turns_back(self, look: int) -> bool:
        """Whether a look at a row that is read again begins where the one before it ended: L2 still holds that part.

        Of rows that the whole grid shares; those of other kernels lie in L2, or there are many beside each other.
        """
        return self.meeting is not None and look % 2 == 1

    @property
    def unroll(self) -> int:
        """Steps per loop trip, 0 for all, where the row does not wait in registers as a whole."""
        return 0 if self.schedule.hold is Hold.REGISTERS else self.schedule.unroll

    @property
    def idle_rows(self) -> bool:
        """Whether a block's last rows may lie behind the problem's."""
        return self.schedule.rows_per_block > 1

    @property
    def has_team(self) -> bool:
        """Whether Config names the threads that share a row: one text for lanes of a warp, a block, or a cluster.

        Blocks of a grid that share rows have a text of their own.
        """
        return self.schedule.row_blocks == 1 or self.exchange is ExchangeWay.CLUSTER

    @property
    def rows_beside(self) -> bool:
        """Whether the text is for blocks with several rows side by side, too: Config says how many there are."""
        return self.idle_rows or (self.has_team and not self.problem.any_cols and not self.one_shift)

    # ---- how threads combine -----------------------------------------------------------------------------------

    @cached_property
    def exchange(self) -> ExchangeWay:
        s = self.schedule
        if not self.looks:
            return ExchangeWay.NONE
        if s.parts > 1:
            return ExchangeWay.GRID
        if s.row_blocks > 1:
            return ExchangeWay.CLUSTER_WALK if self.loops_rows else ExchangeWay.CLUSTER
        if s.threads_per_row == 1:
            return ExchangeWay.NONE
        wide = s.threads_per_row > WARP
        if s.reduce_with is ReduceWith.SHARED_TREE:
            return ExchangeWay.TREE
        if s.reduce_with is ReduceWith.COOPERATIVE_GROUPS:
            return ExchangeWay.COOPERATIVE_BLOCK if wide else ExchangeWay.COOPERATIVE_WARP
        return ExchangeWay.BLOCK if wide else ExchangeWay.LANES

    @cached_property
    def meeting(self) -> Meeting | None:
        """None but where blocks of the grid meet in memory."""
        if self.exchange is not ExchangeWay.GRID:
            return None
        words = max(sum(len(reduce.names) for reduce in look) for look in self.looks)
        groups = MOST_TOGETHER // self.schedule.parts
        return Meeting(words=words, fixed_bytes=groups * TICKET_BYTES, block_bytes=2 * 4 * words)

    @property
    def row_barriers(self) -> bool:
        """Whether rows side by side synchronise by a named barrier each."""
        return has_row_barriers(self.schedule)

    @property
    def waits_by_row(self) -> bool:
        """Whether the exchange of a row has a barrier of its own."""
        return self.exchange in (ExchangeWay.BLOCK, ExchangeWay.COOPERATIVE_BLOCK) and self.row_barriers

    @property
    def double_slots(self) -> bool:
        """With a single barrier per row, a fast warp could overwrite slots a slow warp still reads: alternate them."""
        waits = (ExchangeWay.BLOCK, ExchangeWay.COOPERATIVE_BLOCK, ExchangeWay.LANES, ExchangeWay.COOPERATIVE_WARP)
        return self.exchange in waits and self.loops_rows and sum(not is_spared(look) for look in self.looks) == 1

    # ---- rows in flight ----------------------------------------------------------------------------------------

    @property
    def loops_rows(self) -> bool:
        """A persistent grid loops over rows; sums over rows are written after the loop even if rows is 0."""
        return self.schedule.persistent > 0 or self.sums is not None

    @property
    def copies(self) -> bool:
        """Whether rows come by asynchronous copies."""
        return self.schedule.copy is not Copy.DIRECT

    @property
    def packs_params(self) -> bool:
        """Whether column parameters wait as they are stored."""
        return self.schedule.params is Params.PACKED

    @property
    def copies_ahead(self) -> bool:
        """Whether copies of later rows are under way while a row is computed."""
        return self.copies and self.schedule.persistent > 0

    @property
    def is_staged(self) -> bool:
        return self.copies and self.schedule.stages > 1

    @property
    def fetches_ahead(self) -> bool:
        """Whether the next row travels to registers while this one is computed."""
        return self.schedule.stages > 1 and self.schedule.hold is Hold.REGISTERS and not self.copies

    @property
    def walks_registers(self) -> bool:
        """Whether rows that a block walks come straight to registers: one text for this row's loads and the next's."""
        direct = not self.copies and self.places == (Waiting.REGISTERS,) and self.loops_rows
        alike = self.one_shift or not self.cut.shifted
        unrolled = self.unroll == 0 and not self.problem.any_cols
        return self.fetches_ahead or (direct and alike and bool(self.held) and unrolled)

    @property
    def reads_params_ahead(self) -> bool:
        """Column parameters are read before the kernels in front have ended: the caller promises they do not change."""
        s = self.schedule
        ahead = s.keeps_params if self.loops_rows else s.params is Params.EARLY
        stable = all(load.name in self.problem.stable_tensors for load in self.early_params)
        return s.chained and ahead and stable

    @property
    def least_blocks(self) -> int:
        """Blocks that must fit an SM, a launch bound; 0: none.

        Where threads read the states of all warps, one: unbound, NVRTC 13.0 keeps a kernel of 512 threads within the 32
        registers of four blocks, and reads the states one after another. One of 1024 threads it keeps within 32 of two
        blocks, and spills; of blocks that share rows there are no more than are said.
        """
        return self.schedule.blocks_per_sm or int(self.schedule.reduce_with.is_short or self.meeting is not None)

    # ---- sums over rows ----------------------------------------------------------------------------------------

    @cached_property
    def sums(self) -> Sums | None:
        """None where nothing is summed over the rows."""
        stores = tuple(store for store, _ in self.program.col_terms)
        totals = tuple(store for store, _ in self.program.total_terms)
        if not (stores or totals):
            return None
        p, s, way = self.problem, self.schedule, self.schedule.columns
        in_registers = way is ColumnWay.REGISTER_ATOMIC or way.is_deterministic
        regroups = s.rows_per_block > 1 or self.cut.shifted
        row_bytes = len(stores) * sums_pitch(p) * 4
        own_bytes = -(-row_bytes // (16 * s.parts)) * 16 if s.parts > 1 else row_bytes // s.cluster
        total_bytes = -(-len(totals) // 32) * 128
        if way.is_deterministic:
            fixed = (last_tiles(p) + bool(totals)) * TICKET_BYTES if way is ColumnWay.PARTIALS_LAST_TILE else 0
        else:
            fixed = total_bytes + TICKET_BYTES + (0 if p.sums_batches else row_bytes)
        groups = s.rows_per_block if self.cut.shifted else max(1, s.threads // max(WARP, s.threads_per_row))
        return Sums(
            way=way,
            stores=stores,
            totals=totals,
            by_batch=p.sums_batches,
            total_bytes=total_bytes,
            pitch=sums_pitch(p),
            in_registers=in_registers,
            in_shared=way is ColumnWay.SHARED_ATOMIC or (in_registers and regroups),
            groups=groups if in_registers else 1,
            shared_bytes=sums_shared_bytes(p, s),
            fixed_bytes=fixed,
            column_bytes=len(stores) * 4 if p.any_cols else 0,
            block_bytes=own_bytes + total_bytes if way.is_deterministic else 0,
            batch_bytes=row_bytes if p.sums_batches and not way.is_deterministic else 0,
        )

    @property
    def walks_batches(self) -> bool:
        """Whether a walker's rows are all of one batch, as the sums are that it keeps from row to row."""
        return self.problem.sums_batches and self.schedule.columns is not ColumnWay.ATOMIC

    @property
    def descends(self) -> bool:
        """Whether walkers go from their last rows to their first ones."""
        return self.schedule.row_order.descends

    # ---- what a launch needs -----------------------------------------------------------------------------------

    @cached_property
    def slot_bytes(self) -> int:
        """Dynamic shared memory of the rows that wait there or come through it."""
        return slot_bytes(self.problem, self.schedule)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: the held rows, then the block's column sums."""
        return shared_bytes(self.problem, self.schedule)

    @property
    def period(self) -> int:
        """The blocks of a persistent grid are a multiple of this: a thread's rows all start at one alignment."""
        unit = self.cut.unit
        return unit // math.gcd(unit, self.schedule.rows_per_block) if self.one_shift else 1

    @property
    def blocks(self) -> int:
        """A fixed grid; 0: by rows. One walker adds its rows one after another where atomics must keep their order."""
        in_order = self.problem.deterministic and self.schedule.columns is ColumnWay.ATOMIC
        return self.schedule.cluster * self.schedule.parts if in_order else 0

    @property
    def min_arch(self) -> int:
        return least_arch(self.problem, self.program, self.schedule)


def least_arch(problem: Problem, program: RowProgram, schedule: Schedule) -> int:
    """The lowest sm_NN that has what the knobs ask for, and the dtypes."""
    knobs = (KNOBS[n].least_arch.get(str(v), FIRST_ARCH) for n, v in schedule.as_dict().items())
    exprs = (expr for statement in program.statements for expr in used_exprs(statement))
    casts = (node.to for e in exprs if isinstance(e, Expression) for node in nodes(e) if isinstance(node, Cast))
    dtypes = (*(t.dtype for t in problem.tensors), *(CASTS[name] for name in casts))
    return max(FIRST_ARCH, *knobs, *(int(dtype.least_arch) for dtype in dtypes))


def plan_of(problem: Problem, program: RowProgram, schedule: Schedule) -> Plan:
    """The plan of a program that is already rewritten for the schedule."""
    return Plan(problem=problem, program=frozen(program), schedule=schedule)
