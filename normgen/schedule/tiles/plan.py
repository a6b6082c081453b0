"""Every fact that follows from a contraction's problem, program and schedule, derived once.

A contraction has three axes, any of rows, inner and cols: its result lies along m and n, of which n is the one along
which the result's elements lie side by side in memory, and k is summed. A block owns a tile of the result and reads
both of its sides, a tile of k at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from normgen.errors import ProgramError
from normgen.knobs import Copy, Hold, SoftmaxMethod
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.program.classes import is_of_result, tile_axes
from normgen.program.frozen import Order, frozen
from normgen.program.ir import (
    SIZES,
    Expr,
    Load,
    Map,
    Reduce,
    RowProgram,
    Store,
    defined_names,
    index_kinds,
    kind_of,
    names_of,
    show_statement,
    stage_of,
    used_names,
    value_alone,
    value_kinds,
)
from normgen.program.rewrites.passes import passed
from normgen.program.source import written_program
from normgen.program.trees import is_minus, operands
from normgen.schedule.plan import least_arch
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.fragment import FRAGMENTS, Simt
from normgen.spec.formula import Expression, Name, Number, Power

# Of a thread beside its data, for addresses and the loop: of at most 128 registers a thread with 104 of data (8 x 8
# sums of f32, sm_90) spills none, one with 120 does.
OTHER_REGISTERS = 24


@dataclass(frozen=True)
class Side:
    """What is multiplied from one side: values along one of the result's axes and along k.

    axis    m or n, as the program names it
    slots   distinct factors of the contraction's products: a block has a slot for a tile of each
    riding  reductions over k of values of this side, which ride along with the loads
    loads   what all these are computed of; of these the first tensor along both axes says how threads share a tile
    maps    how, in program order
    known   reductions of its rows that are known before
    along   the axis along which its elements lie side by side in memory: a thread's vectors lie along it
    """

    axis: str
    slots: tuple[Expression, ...]
    riding: tuple[Reduce, ...]
    loads: tuple[Load, ...]
    maps: tuple[Map, ...]
    known: frozenset[str] = frozenset()
    along: str = ""

    @cached_property
    def numbered(self) -> frozenset[str]:
        """Axes along which an element's number is read."""
        exprs = (*self.slots, *(e for reduce in self.riding for e in reduce.args), *(m.expr for m in self.maps))
        return frozenset(axis for e in exprs for kind in index_kinds(e) for axis in kind.axes)


@dataclass(frozen=True)
class ReducedRows:
    """Reductions of the result's rows, of which each block has a part, and what is made of them, and stored."""

    reduces: tuple[Reduce, ...]
    finish: tuple[Load | Map | Store, ...]


@dataclass(frozen=True)
class Contraction:
    """A program of class TILES, taken apart.

    sums      the contractions: all sum over one axis
    left      the side along m
    right     the side along n
    ahead     looks at the rows of the left side before its products, in order: what each reduces, the next one reads
    epilogue  what is computed of the sums, and stored or reduced
    reduced   reductions of the result's rows, where there are some
    """

    m: str
    n: str
    k: str
    sums: tuple[Reduce, ...]
    left: Side
    right: Side
    ahead: tuple[Side, ...]
    epilogue: tuple[Load | Map | Store | Reduce, ...]
    reduced: ReducedRows | None = None

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.left, self.right

    @property
    def riding(self) -> tuple[Reduce, ...]:
        return (*self.left.riding, *self.right.riding)


def contraction_of(problem: Problem, program: RowProgram) -> Contraction:
    """The axes, sides, sums and epilogue of a rewritten program, frozen.

    Raises ProgramError with the statement that does not fit.
    """
    axes = tile_axes(program)
    result, (k,), whole = (axes.m | axes.n).axes, axes.k.axes, program.dots[0].kind
    n = next((problem.tensor(s.tensor).axes[-1] for s in program.stores if s.kind is whole), result[-1])
    m = next(axis for axis in result if axis != n)
    riding: dict[str, list[Reduce]] = {m: [], n: []}
    kinds, stages = value_kinds(program), stage_of(program)
    of_result = [r for r in program.reduces if is_of_result(r, axes, kinds)]
    awaited = _awaited(program, of_result)
    for reduce in (r for r in program.reduces if not r.is_dot and r not in of_result):
        if len(reduce.names) > 1:
            rule = "beside its products a kernel of these finds sums and extrema, no columns that hold them"
            raise ProgramError(rule, received=show_statement(reduce).strip())
        if reduce.names[0] not in awaited:
            riding[reduce.kind.axes[0]].append(reduce)
    factors = {m: dict[Expr, None](), n: dict[Expr, None]()}
    for factor in (arg for dot in program.dots for arg in dot.args):
        factors[m if m in kind_of(factor, kinds).axes else n][factor] = None
    left, right = (_side(program, axis, tuple(factors[axis]), tuple(riding[axis]), awaited) for axis in (m, n))
    ahead: list[Side] = []
    for stage in sorted({stages[name] for name in awaited}):
        found = tuple(r for r in program.reduces if r.names[0] in awaited and stages[r.names[0]] == stage)
        ahead.append(_side(program, m, (), found, {name for name in awaited if stages[name] < stage}))
    left, right, *ahead = (replace(side, along=_runs_along(problem, side, k)) for side in (left, right, *ahead))
    results = {name for r in program.reduces for name in r.names}
    behind = _behind(program, of_result)
    finish = _needed(program, [s for s in program.stores if s.value in behind], stop=results)
    reduced = ReducedRows(tuple(of_result), tuple(finish)) if of_result else None
    stores, read = [s for s in program.stores if s.value not in behind], frozenset().union(*map(used_names, of_result))
    wanted = {*_needed(program, stores, read=read, stop=results), *of_result}
    epilogue = tuple(s for s in program.statements if s in wanted)
    return _frozen(program, Contraction(m, n, k, program.dots, left, right, tuple(ahead), epilogue, reduced))


def _frozen(program: RowProgram, cut: Contraction) -> Contraction:
    """With trees for expressions. What is known before a loop comes last in sums and products, but for a side's maps;
    of the result elements come first, then lines along m, then along n."""
    kinds = value_kinds(program)
    numbers = (*program.scalars, *(ld.name for ld in program.loads if not ld.kind.axes), *map(str, SIZES))

    def side(found: Side) -> tuple[Side, Order]:
        loads, maps = ([s.name for s in listed] for listed in (found.loads, found.maps))
        order = Order([*(name for name in loads if kinds[name].axes), *numbers, *sorted(found.known), *maps])
        return replace(
            found,
            slots=tuple(map(order.tree, found.slots)),
            riding=tuple(map(order.reduce, found.riding)),
            maps=tuple(map(order.statement, found.maps)),
        ), order

    (left, of_left), (right, of_right) = map(side, cut.sides)
    sides = {expr: order for found, order in ((cut.left, of_left), (cut.right, of_right)) for expr in found.slots}
    sums = tuple(replace(dot, args=tuple(sides[arg].tree(arg) for arg in dot.args)) for dot in cut.sums)
    reduces = (*cut.sums, *cut.riding, *(reduce for look in cut.ahead for reduce in look.riding))
    made = (s.name for s in cut.epilogue if isinstance(s, Load | Map))
    values = dict.fromkeys((*(r.names[0] for r in reduces), *made))
    of_result = Order([*sorted(values, key=lambda name: (-len(kinds[name].axes), cut.n in kinds[name].axes)), *numbers])
    reduced = cut.reduced
    if reduced is not None:
        known = (*(r.names[0] for r in reduced.reduces), *(s.name for s in reduced.finish if not isinstance(s, Store)))
        behind = Order([*known, *numbers])
        orders = (of_result if isinstance(s, Map) and not s.kind.axes else behind for s in reduced.finish)
        finish = tuple(order.statement(s) for s, order in zip(reduced.finish, orders, strict=True))
        reduced = ReducedRows(tuple(map(of_result.reduce, reduced.reduces)), finish)
    return replace(
        cut,
        sums=sums,
        left=left,
        right=right,
        ahead=tuple(side(look)[0] for look in cut.ahead),
        epilogue=tuple(map(of_result.statement, cut.epilogue)),
        reduced=reduced,
    )


def _behind(program: RowProgram, of_result: list[Reduce]) -> set[str]:
    """The values that wait for a reduction of the result."""
    found = {name for reduce in of_result for name in reduce.names}
    for statement in program.statements:
        if used_names(statement) & found:
            found.update(defined_names(statement))
    return found


def _awaited(program: RowProgram, of_result: list[Reduce]) -> set[str]:
    """The reductions that another one waits for, other than one of the result."""
    needed: set[str] = set()
    for statement in reversed(program.statements):
        is_awaiting = isinstance(statement, Reduce) and statement not in of_result
        if is_awaiting or needed & {*defined_names(statement)}:
            needed |= used_names(statement)
    return {name for r in program.reduces for name in r.names if name in needed}


def _side(program: RowProgram, axis: str, slots: tuple[Expr, ...], riding: tuple[Reduce, ...], known: set[str]) -> Side:
    """`known`: reductions that a look ahead has made."""
    read = frozenset().union(*map(names_of, slots), *map(used_names, riding))
    needed = list(_needed(program, [], read=read, stop=known))
    loads = [s for s in needed if isinstance(s, Load)]
    loads.sort(key=lambda load: -len(load.kind.axes))
    return Side(axis, slots, riding, tuple(loads), tuple(s for s in needed if isinstance(s, Map)), frozenset(known))


def _runs_along(problem: Problem, side: Side, k: str) -> str:
    lead = side.loads[0]
    return problem.tensor(lead.tensor).axes[-1] if lead.kind.is_matrix else k


def _needed(
    program: RowProgram, stores: list[Store], *, read: frozenset[str] = frozenset(), stop: set[str] | None = None
) -> Iterator[Load | Map | Store]:
    """The loads, maps and `stores` that lead to these or to what is `read`, in program order."""
    needed = set(read).union(*map(used_names, stores))
    for statement in reversed(program.statements):
        if needed & {*defined_names(statement)} - (stop or set()):
            needed |= used_names(statement)
    for statement in program.statements:
        if statement in stores or (isinstance(statement, Load | Map) and statement.name in needed):
            assert isinstance(statement, Load | Map | Store)
            yield statement


@lru_cache(maxsize=1024)
def contraction(problem: Problem) -> Contraction:
    """That of the problem's program, of which no schedule changes what follows here."""
    return contraction_of(problem, passed(written_program(problem), Schedule())[-1][1])


def vanishes(factor: Expression, side: Side, k: str) -> bool:
    """Whether a factor is 0 where the loads of its side are filled with 0: a product of values along k, as loaded.

    A factor that is not, such as exp(x) or one with a value of its own for each row, must be replaced beyond an edge.
    """
    zeros = {load.name for load in side.loads if k in load.kind.axes}
    if is_minus(factor):
        return vanishes(factor.right, side, k)
    parts = operands(factor, "*/")
    bases = [part.base if isinstance(part, Power) and part.exponent > 0 else part for _, part in parts]
    names = {base.name for base in bases if isinstance(base, Name)}
    is_product = all(isinstance(base, Name | Number) for base in bases) and names <= {*zeros, *map(str, SIZES)}
    divides = any(way == "/" and not isinstance(part, Number) for way, part in parts)
    return is_product and not divides and bool(names & zeros)


def is_neutral(reduce: Reduce, side: Side, k: str) -> bool:
    """Whether elements that are filled with 0 change nothing of a reduction that rides along."""
    return vanishes(reduce.args[0], side, k) and reduce.monoid.name in ("sum", "absmax")


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
        return FRAGMENTS[self.schedule.fragment](self)

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
    def in_shared(self) -> bool:
        """Whether tiles of both sides wait in shared memory."""
        return self.schedule.hold is Hold.SHARED

    def copies(self, side: Side) -> bool:
        """Whether a side's tiles reach shared memory past the registers: cp.async moves what is stored as a slot is."""
        return self.schedule.copy is Copy.CP_ASYNC and not self.way_through_registers(side)

    def scales(self, side: Side) -> bool:
        """Whether a thread makes the factors of what it has copied itself, where that lies."""
        return self.copies(side) and bool(self.gains(side))

    def way_through_registers(self, side: Side) -> str:
        """Why cp.async cannot bring a side's tiles, or nothing."""
        tensors = {load.name: self.tensor(load) for load in side.loads if load.kind.is_matrix}
        if self.gains(side):
            return ""
        moved = self.fragment.moved
        bare = set(map(value_alone, side.slots)) & {name for name, t in tensors.items() if t.dtype in moved}
        if len(bare) < len(side.slots):
            types = " or ".join(dtype.name for dtype in moved)
            return f"cp.async moves {types} as it is stored; what is converted or computed goes by way of registers"
        if any(tensors[name].null_as is not None for name in bare):
            return "cp.async reads a tensor that is there: one that may be null goes by way of registers"
        if any(not names_of(reduce.args[0]) <= bare for reduce in side.riding):
            return "what is reduced beside the products is made of what is copied, or goes by way of registers"
        return ""

    def gains(self, side: Side) -> tuple[Load, ...]:
        """What a side has along k alone, where its factor is made of these and one matrix that cp.async can bring."""
        matrices = [load for load in side.loads if load.kind.is_matrix]
        others = tuple(load for load in side.loads if load.kind.axes and not load.kind.is_matrix)
        is_one = len(side.slots) == len(matrices) == 1 and not side.known
        if not is_one or side.slots[0] == Name(matrices[0].name) or any(side.axis in ld.kind.axes for ld in others):
            return ()
        matrix = self.tensor(matrices[0])
        return others if matrix.dtype is self.fragment.scaled and matrix.null_as is None else ()

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

    def line_and_lines(self, side: Side) -> tuple[int, int]:
        """Elements of a line of a side's tile, as it lies in memory, and how many lines it has."""
        deep, flat = self.schedule.tile_k, self.tile(side.axis)
        return (deep, flat) if self.lies_deep(side) else (flat, deep)

    @cached_property
    def riding_floats(self) -> int:
        """What the threads leave of reductions that ride along, when they are done with the slots."""
        sides = self.cut.sides if self.in_shared else ()
        return sum(len(side.riding) * self.lines(side) * self.tile(side.axis) for side in sides)

    @cached_property
    def slots_floats(self) -> int:
        """Of all tiles that wait in shared memory, or of what takes their place."""
        sides = self.cut.sides if self.in_shared else ()
        tiles = sum(self.fragment.slot_bytes(side) * len(side.slots) for side in sides) // 4
        return max(tiles * self.schedule.stages, self.riding_floats, self.reduced_floats)

    @property
    def reduced_floats(self) -> int:
        """What the threads leave of reductions of the result: of each row as many parts as threads have of it."""
        s = self.schedule
        return s.tile_n // s.thread_n * s.tile_m * len(self.cut.reduced.reduces) if self.cut.reduced else 0

    @property
    def block_bytes(self) -> int:
        """What a block leaves of reductions of the result."""
        return 4 * self.schedule.tile_m * len(self.cut.reduced.reduces) if self.cut.reduced else 0

    @property
    def is_online(self) -> bool:
        """Whether a maximum of the rows moves while the products are summed."""
        return self.schedule.softmax is SoftmaxMethod.ONLINE

    @cached_property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: tiles, and what is known of each row of the tile."""
        statistics = self.schedule.stages if self.is_online else sum(len(look.riding) for look in self.cut.ahead)
        return 4 * (self.slots_floats + statistics * self.schedule.tile_m)

    # ---- a thread's part ---------------------------------------------------------------------------------------

    def piece(self, axis: str) -> int:
        """Elements of an axis that a thread owns side by side."""
        return self.fragment.piece(axis)

    @property
    def lanes(self) -> tuple[int, int]:
        """The threads of a warp along m and along n."""
        return self.fragment.lanes

    def own(self, side: Side) -> int:
        """Elements of a side's axis that a thread owns."""
        return self.schedule.thread_m if side is self.cut.left else self.schedule.thread_n

    @property
    def accumulators(self) -> int:
        """Registers of a thread that hold sums, and factors on their way to these."""
        return self.schedule.thread_m * self.schedule.thread_n * len(self.cut.sums) + self.fragment.factors

    @property
    def held_registers(self) -> int:
        """Registers of a thread for sums, factors, and what is on its way to shared memory."""
        words, threads = 0, self.schedule.threads
        for side in self.cut.sides if self.in_shared else ():
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
