"""A program of class TILES taken apart: its axes, sides, sums, and what is computed of these.

A contraction has three axes, any of rows, inner and cols: its result lies along m and n, of which n is the one along
which the result's elements lie side by side in memory, and k is summed. A block owns a tile of the result and reads
both of its sides, a tile of k at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from normgen.dtypes import F32, DType
from normgen.errors import ProgramError
from normgen.problem.problem import Problem
from normgen.program.classes import is_of_groups, is_of_result, tile_axes
from normgen.program.frozen import Order
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
    value_kinds,
)
from normgen.program.rewrites.passes import passed
from normgen.program.source import written_program
from normgen.program.trees import is_minus, operands
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.grouped import Grouped, grouped_of
from normgen.spec.formula import Call, Cast, Expression, Name, Number, Power, nodes

# Why a side's tiles go by way of registers, or nothing; and what each k of it is scaled by on its way.
Brought = tuple[str, tuple[Load, ...]]


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
    def brought(self) -> dict[tuple[type, tuple[DType, ...]], Brought]:
        """By who multiplies and what is copied as it is stored: what plans have found out."""
        return {}

    @cached_property
    def numbered(self) -> frozenset[str]:
        """Axes along which an element's number is read."""
        exprs = (*self.slots, *(e for reduce in self.riding for e in reduce.args), *(m.expr for m in self.maps))
        return frozenset(axis for e in exprs for kind in index_kinds(e) for axis in kind.axes)

    @cached_property
    def exponentials(self) -> int:
        """Those that an element's factors and values take."""
        return _exponentials(
            (*self.slots, *(e for reduce in self.riding for e in reduce.args), *(m.expr for m in self.maps))
        )


def _exponentials(exprs: Iterable[Expression]) -> int:
    calls = {node for e in exprs for node in nodes(e) if isinstance(node, Call)}
    return sum(call.function in ("exp", "exp_approximate") for call in calls)


@dataclass(frozen=True)
class ReducedRows:
    """Reductions of the result's rows, of which each block has a part, and what is made of them, and stored."""

    reduces: tuple[Reduce, ...]
    finish: tuple[Load | Map | Store, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of all components of their states."""
        return tuple(name for reduce in self.reduces for name in reduce.names)


@dataclass(frozen=True)
class Contraction:
    """A program of class TILES, taken apart.

    sums      the contractions: all sum over one axis
    left      the side along m
    right     the side along n
    ahead     looks at the rows of the left side before its products, in order: what each reduces, the next one reads
    epilogue  what is computed of the sums, and stored or reduced: rows of all of it, or groups of columns
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

    @cached_property
    def grouped(self) -> Grouped | None:
        """The rounds of an epilogue that reduces groups of columns."""
        return grouped_of(self.epilogue)

    @cached_property
    def exponentials(self) -> int:
        """Those that an element of the result takes beside its products, of tensors as large as the result."""
        reads = any(isinstance(s, Load) and {self.m, self.n} <= {*s.kind.axes} for s in self.epilogue)
        return _exponentials(s.expr for s in self.epilogue if isinstance(s, Map)) if reads else 0

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
    of_groups = [r for r in program.reduces if is_of_groups(r)]
    in_epilogue = [*of_result, *of_groups]
    if of_groups and n != "cols":
        rule = f"a group of columns lies in a tile's line, and those of this result lie along {n}"
        raise ProgramError(rule, received=show_statement(of_groups[0]).strip())
    awaited = _awaited(program, in_epilogue)
    for reduce in (r for r in program.reduces if not r.is_dot and r not in in_epilogue):
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
    stores, read = (
        [s for s in program.stores if s.value not in behind],
        frozenset().union(*map(used_names, in_epilogue)),
    )
    wanted = {*_needed(program, stores, read=read, stop=results), *in_epilogue}
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
            slots=tuple(_factor(order, slot) for slot in found.slots),
            riding=tuple(map(order.reduce, found.riding)),
            maps=tuple(map(order.statement, found.maps)),
        ), order

    (left, of_left), (right, of_right) = map(side, cut.sides)
    sides = {expr: order for found, order in ((cut.left, of_left), (cut.right, of_right)) for expr in found.slots}
    sums = tuple(replace(dot, args=tuple(_factor(sides[arg], arg) for arg in dot.args)) for dot in cut.sums)
    reduces = (*cut.sums, *cut.riding, *(reduce for look in cut.ahead for reduce in look.riding))
    made = (name for s in cut.epilogue if isinstance(s, Load | Map) or is_of_groups(s) for name in defined_names(s))
    values = dict.fromkeys((*(r.names[0] for r in reduces), *made))
    places = sorted(values, key=lambda name: (-len(kinds[name].axes), kinds[name].by_group, cut.n in kinds[name].axes))
    of_result = Order([*places, *numbers])
    reduced = cut.reduced
    if reduced is not None:
        known = (*reduced.names, *(s.name for s in reduced.finish if not isinstance(s, Store)))
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


def _factor(order: Order, slot: Expr) -> Expression:
    """The tree of a factor, which float32 holds: a cast to it rounds nothing."""
    tree = order.tree(slot)
    return tree.arg if isinstance(tree, Cast) and tree.to == F32.name else tree


def _behind(program: RowProgram, of_result: list[Reduce]) -> set[str]:
    """The values that wait for a reduction of the result."""
    found = {name for reduce in of_result for name in reduce.names}
    for statement in program.statements:
        if used_names(statement) & found:
            found.update(defined_names(statement))
    return found


def _awaited(program: RowProgram, in_epilogue: list[Reduce]) -> set[str]:
    """The reductions that another one waits for, other than one of the epilogue."""
    needed: set[str] = set()
    for statement in reversed(program.statements):
        is_awaiting = isinstance(statement, Reduce) and statement not in in_epilogue
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
