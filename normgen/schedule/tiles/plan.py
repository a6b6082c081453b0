"""Every fact that follows from a contraction's problem, program and schedule, derived once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from normgen.knobs import Copy, Fragment, Hold, SoftmaxMethod
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.program.frozen import frozen
from normgen.program.ir import (
    Load,
    RowProgram,
    names_of,
)
from normgen.program.source import written_program
from normgen.schedule.plan import least_arch
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.cut import Brought, Contraction, Side, contraction, contraction_of
from normgen.schedule.tiles.fragment import Made, Mma, Simt, Streamed
from normgen.schedule.tiles.online import moving_maximum
from normgen.schedule.tiles.wgmma import Wgmma
from normgen.spec.formula import Expression, Name

# Of a thread beside its data, for addresses and the loop: of at most 128 registers a thread with 104 of data (8 x 8
# sums of f32, sm_90) spills none, one with 120 does.
OTHER_REGISTERS = 24


@dataclass(frozen=True, kw_only=True)
class TilePlan:
    """One kernel of a contraction, decided: what the emitter turns into text."""

    problem: Problem
    program: RowProgram
    schedule: Schedule
    cut: Contraction

    @cached_property
    def fragment(self) -> Simt:
        """Who multiplies the factors."""
        of_warps = {Hold.RELOAD: Streamed, Hold.REGISTERS: Made}.get(self.schedule.hold, Mma)
        kinds = {Fragment.SIMT: Simt, Fragment.MMA: of_warps, Fragment.WGMMA: Wgmma}
        return kinds[self.schedule.fragment](self.problem, self.schedule, self.cut)

    @property
    def threads(self) -> int:
        """Of a block: those that own a part of the result, and those that do not."""
        return self.schedule.threads + self.fragment.producers

    def size(self, axis: str) -> int:
        return self.problem.sizes.along(axis)

    def tile(self, axis: str) -> int:
        s = self.schedule
        return {self.cut.m: s.tile_m, self.cut.n: s.tile_n, self.cut.k: s.tile_k}[axis]

    def is_fixed(self, axis: str) -> bool:
        """Whether the axis' length is known when the text is compiled."""
        return axis != "rows" and not self.problem.any_cols

    @property
    def in_batches(self) -> bool:
        """Whether each batch of rows has tiles of its own."""
        return any(t.kind.by_batch for t in self.problem.tensors)

    @property
    def parts(self) -> int:
        """Blocks of a cluster that share a tile, each with a part of k."""
        return self.schedule.cluster

    @property
    def part(self) -> int:
        """Of k, what a block sums: whole tiles."""
        tile = max(1, self.schedule.tile_k)
        return -(-self.size(self.cut.k) // (self.parts * tile)) * tile

    @property
    def handed_floats(self) -> int:
        """Of shared memory of a cluster's first block, for what the others hand on."""
        s = self.schedule
        each = s.thread_m * s.thread_n * len(self.cut.sums) + s.thread_m * len(self.cut.left.riding)
        return (self.parts - 1) * each * s.threads

    @property
    def hands_in_slots(self) -> bool:
        """Whether that takes the place of tiles, which a thread that asks ahead has as many of as there is room for."""
        return bool(self.fragment.producers)

    @property
    def in_shared(self) -> bool:
        """Whether tiles wait in shared memory: of both sides, or of the right one."""
        return self.schedule.hold is not Hold.RELOAD

    @property
    def shared_sides(self) -> tuple[Side, ...]:
        """The sides whose tiles wait in shared memory."""
        return tuple(side for side in self.cut.sides if self.in_shared and not self.is_made(side))

    def is_made(self, side: Side) -> bool:
        """Whether lanes make a side's factors where the products read them, in registers."""
        return self.schedule.hold is Hold.REGISTERS and side is self.cut.left

    def copies(self, side: Side) -> bool:
        """Whether a side's tiles reach shared memory past the registers: cp.async moves what is stored as a slot is."""
        is_shared = self.schedule.copy is not Copy.DIRECT and not self.is_made(side)
        return is_shared and not self.way_through_registers(side)

    def scales(self, side: Side) -> bool:
        """Whether a thread makes the factors of what it has copied itself, where that lies."""
        return self.copies(side) and bool(self.gains(side))

    def way_through_registers(self, side: Side) -> str:
        """Why cp.async cannot bring a side's tiles, or nothing."""
        return self._brought(side)[0]

    def gains(self, side: Side) -> tuple[Load, ...]:
        """What a side has along k alone, where its factor is made of these and one matrix that cp.async can bring."""
        return self._brought(side)[1]

    def _brought(self, side: Side) -> Brought:
        """Both: alike of all schedules that multiply so."""
        who = type(self.fragment), self.fragment.moved
        if who not in side.brought:
            gains = self._gains(side)
            side.brought[who] = ("" if gains else self._through_registers(side)), gains
        return side.brought[who]

    def _through_registers(self, side: Side) -> str:
        tensors = {load.name: self.tensor(load) for load in side.loads if load.kind.is_matrix}
        moved = self.fragment.moved
        bare = set(map(self.fragment.source, side.slots)) & {name for name, t in tensors.items() if t.dtype in moved}
        if len(bare) < len(side.slots):
            types = " or ".join(dtype.name for dtype in moved)
            return f"cp.async moves {types} as it is stored; what is converted or computed goes by way of registers"
        if any(tensors[name].null_as is not None for name in bare):
            return "cp.async reads a tensor that is there: one that may be null goes by way of registers"
        if any(not names_of(reduce.args[0]) <= bare for reduce in side.riding):
            return "what is reduced beside the products is made of what is copied, or goes by way of registers"
        return ""

    def _gains(self, side: Side) -> tuple[Load, ...]:
        matrices = [load for load in side.loads if load.kind.is_matrix]
        others = tuple(load for load in side.loads if load.kind.axes and not load.kind.is_matrix)
        is_one = len(side.slots) == len(matrices) == 1 and not side.known
        if not is_one or side.slots[0] == Name(matrices[0].name) or any(side.axis in ld.kind.axes for ld in others):
            return ()
        matrix = self.tensor(matrices[0])
        return others if matrix.dtype is self.fragment.scaled and matrix.null_as is None else ()

    @property
    def runs_ahead(self) -> bool:
        """Whether the first factors of a tile are read with the last products of the tile before.

        Then nobody reads the slots behind the loop over k.
        """
        return self.fragment.reads_ahead and self.schedule.stages > 1 and all(map(self.copies, self.cut.sides))

    @property
    def reads_last(self) -> bool:
        """Whether a thread may still read shared memory when another one is done with its sums."""
        if not self.in_shared:
            return bool(self.fragment.exchanged_floats)
        return bool(self.cut.riding) or not self.runs_ahead

    def is_even(self, side: Side) -> bool:
        """Whether in each step the threads move whole lines of a side, all of them: a step is so many lines on."""
        s, tile = self.schedule, self.tile(side.axis)
        vectors, line = tile * s.tile_k // s.vector, (s.tile_k if self.lies_deep(side) else tile) // s.vector
        return s.threads % line == 0 and vectors % s.threads == 0

    def is_same(self, side: Side, load: Load) -> bool:
        """Whether a thread needs the same vector of a load in all steps of a tile: a gain along lines that lie deep."""
        return load.kind.axes == (self.cut.k,) and self.lies_deep(side) and self.is_even(side)

    # ---- a side's tile -----------------------------------------------------------------------------------------

    def tensor(self, load: Load) -> TensorUse:
        return self.problem.tensor(load.tensor)

    def lies_deep(self, side: Side) -> bool:
        """Whether a side's lines lie along k."""
        return side.along == self.cut.k

    @property
    def reads_pieces_of_k(self) -> bool:
        """Whether a thread reads pieces along k of a side in shared memory."""
        return self.fragment.reads_pieces_of_k

    def lines(self, side: Side) -> int:
        """The partial results of a reduction that rides along: of each element of the tile's axis so many."""
        s = self.schedule
        return s.tile_k // s.vector if self.lies_deep(side) else s.tile_k

    @cached_property
    def riding_floats(self) -> int:
        """What the threads leave of reductions that ride along, when they are done with the slots."""
        return sum(len(side.riding) * self.lines(side) * self.tile(side.axis) for side in self.shared_sides)

    @cached_property
    def slots_floats(self) -> int:
        """Of all tiles that wait in shared memory, or of what takes their place."""
        tiles = sum(self.fragment.slot_bytes(side) * len(side.slots) for side in self.shared_sides) // 4
        exchanged = max(self.fragment.exchanged_floats, self.grouped_floats)
        return max(tiles * self.schedule.stages, self.riding_floats, self.reduced_floats, exchanged)

    @property
    def reduced_floats(self) -> int:
        """What the threads leave of reductions of the result: of each row as many parts as threads have of it."""
        s = self.schedule
        return s.tile_n // s.thread_n * s.tile_m * len(self.cut.reduced.names) if self.cut.reduced else 0

    # ---- groups of columns of the result -----------------------------------------------------------------------

    @property
    def threads_n(self) -> int:
        """Threads that share a line of a tile."""
        return self.schedule.tile_n // self.schedule.thread_n

    @property
    def own_of_group(self) -> int:
        """Columns of a group that a thread owns: pieces of a thread are as many columns apart as all threads' are."""
        assert self.cut.grouped is not None
        piece = self.piece(self.cut.n)
        return piece * max(1, self.cut.grouped.size // (piece * self.threads_n))

    @property
    def threads_of_group(self) -> int:
        """Threads, of neighbouring columns, that share a group of a line."""
        assert self.cut.grouped is not None
        return self.cut.grouped.size // self.own_of_group

    @property
    def lanes_of_group(self) -> int:
        """Of these, those of a warp."""
        return min(self.threads_of_group, self.lanes[1])

    @property
    def groups_meet(self) -> bool:
        """Whether several warps have a part of a group."""
        return self.cut.grouped is not None and self.threads_of_group > self.lanes_of_group

    @property
    def grouped_floats(self) -> int:
        """What warps that share groups leave of these, for each other."""
        if self.cut.grouped is None or not self.groups_meet:
            return 0
        parts = self.threads_n // self.lanes_of_group * (self.schedule.thread_n // self.own_of_group)
        return parts * self.schedule.tile_m * len(self.cut.grouped.reduces)

    @property
    def grouped_registers(self) -> int:
        """What a thread keeps of elements and groups beside its sums, whose places the elements take."""
        if self.cut.grouped is None:
            return 0
        s, grouped = self.schedule, self.cut.grouped
        kept = max(0, len(grouped.kept) - len(self.cut.sums)) * s.thread_n
        return s.thread_m * (kept + s.thread_n // self.own_of_group * len({*grouped.held}))

    @property
    def block_bytes(self) -> int:
        """What a block leaves of reductions of the result."""
        return 4 * self.schedule.tile_m * len(self.cut.reduced.names) if self.cut.reduced else 0

    @property
    def is_online(self) -> bool:
        """Whether a maximum of the rows moves while the products are summed."""
        return self.schedule.softmax is SoftmaxMethod.ONLINE

    @cached_property
    def last(self) -> Expression | None:
        """The last k of a row whose term is not 0, where tiles behind it are not read."""
        return moving_maximum(self.cut).last if self.is_online else None

    @cached_property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: tiles, and what is known of each row of the tile."""
        moved = 0 if self.is_made(self.cut.left) else self.schedule.stages
        statistics = moved if self.is_online else sum(len(look.riding) for look in self.cut.ahead)
        handed = 0 if self.hands_in_slots else self.handed_floats
        floats = self.slots_floats + handed + statistics * self.schedule.tile_m
        return 4 * floats + self.fragment.barrier_bytes

    # ---- a thread's part ---------------------------------------------------------------------------------------

    def piece(self, axis: str) -> int:
        """Elements of an axis that a thread owns side by side."""
        return self.fragment.piece(axis)

    @property
    def has_whole_vectors(self) -> bool:
        """Whether the result's lines are whole vectors of a thread's pieces: of one that is stored they always are."""
        n = self.cut.n
        return not self.is_fixed(n) or self.size(n) % min(self.schedule.vector, self.piece(n)) == 0

    @property
    def lanes(self) -> tuple[int, int]:
        """The threads of a warp along m and along n."""
        return self.fragment.lanes

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold sums, and factors on their way to these."""
        sums = self.schedule.thread_m * self.schedule.thread_n * len(self.cut.sums)
        return sums + max(self.fragment.factors, self.grouped_registers)

    @property
    def held_registers(self) -> int:
        """Registers of a thread for sums, factors, and what is on its way to shared memory."""
        words, threads = 0, self.schedule.threads
        for side in self.shared_sides:
            loads = self.gains(side) if self.scales(side) else () if self.copies(side) else side.loads
            vectors = -(-self.tile(side.axis) * self.schedule.tile_k // (self.schedule.vector * max(1, threads)))
            for ld in loads:
                a_vector = max(4, self.schedule.vector * self.tensor(ld).dtype.bytes) // 4
                words += a_vector * (1 if self.is_same(side, ld) else vectors)
        return self.accumulators + words

    @property
    def min_arch(self) -> int:
        return least_arch(self.problem, self.program, self.schedule)


@lru_cache(maxsize=4096)
def tile_problem_plan(problem: Problem, schedule: Schedule) -> TilePlan:
    """The plan as far as legality asks: of the program before the rewrites that a schedule chooses."""
    cut = contraction(problem)
    return TilePlan(problem=problem, program=frozen(written_program(problem)), schedule=schedule, cut=cut)


def tile_plan_of(problem: Problem, program: RowProgram, schedule: Schedule) -> TilePlan:
    """The plan of a program that is already rewritten for the schedule."""
    cut = contraction_of(problem, program)
    return TilePlan(problem=problem, program=frozen(program), schedule=schedule, cut=cut)
