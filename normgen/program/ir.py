"""RowProgram: SSA over rows in five statement forms.

    load   x : elem                              stored dtype -> float32
    load   x_middle : row = x[middle]            one element of each row (of x: elem; of a col: the same in all rows)
    load   right : row = x[label]                that of the column which a row value names; 0 where it names none
    load   x_rolled : elem = x[col - k]          each element of another column, around the row's end
    random u : elem = random(seed, 0)            the first random number of each element, from the bits of `seed`
    reduce x_sum : row = sum(x)                  over a monoid, elem -> row
    reduce top : groups = max_128(x)             the same over groups of 128 columns
    reduce t : scalar = sum_rows(s)  over all rows, of row values or of all elements: a total
    reduce w : col = sum_rows(x)     over all rows, for each column; w : batches over the rows of each batch
    reduce s : row = sum(x) unless 0 <= m, then v  rows whose m says so keep the row value v; the others are reduced
    reduce y : elem = dot_inner(x, w)  a contraction: the sum over inner of x : left times w : matrix
    reduce d : batch_matrix = dot_rows(x, y)  one over the rows of each batch
    reduce q : row = sum_inner(x)    over the inner axis of a side of a contraction
    map    y : elem = (x - mean) * rstd          any sympy expression over earlier values
    store  y                                     float32 -> stored dtype

A value's kind is the join of what it reads: scalar < row < groups < elem, scalar < col < elem. `cols` and `inner`
(the symbols COLS, INNER), the scalars and the indices of row and column (`functions.ROW`, `functions.COL`) may appear
in every expression.
sympy's Max and Min mean IEEE 754-2019 maximum and minimum: NaN if an argument is NaN (the clamp of a variance must not
hide a NaN row). Symbols are `symbol(name)`; a name is defined once.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import chain, count
from typing import Any

import sympy as sp

from normgen.errors import ProgramError
from normgen.program.functions import COL, ROW, TERM, Index
from normgen.program.monoid import DOT, Monoid, symbol
from normgen.program.printing import show_expr
from normgen.spec.formula import Expression, Name, nodes
from normgen.spec.spec import Kind, join

COLS = sp.Symbol("cols", positive=True, integer=True)
INNER = sp.Symbol("inner", positive=True, integer=True)
SIZES = (COLS, INNER)  # lengths of axes, which no statement defines
_INDICES = {index.name: index.kind for index in (ROW, COL, TERM)}

Expr = Any  # an expression of sympy, or of a frozen program a tree of spec/formula.py


class Column(StrEnum):
    """A column that every row has."""

    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"

    def of(self, cols: int) -> int:
        """Its number in rows of `cols`."""
        return {Column.FIRST: 0, Column.MIDDLE: cols // 2, Column.LAST: cols - 1}[self]


@dataclass(frozen=True)
class Load:
    """The tensor's name is the value's name, unless `of` names the tensor.

    A load with `of` broadcasts one column of the tensor over its row: what the pivot of a shifted variance is chosen
    from, or the element that the row value `index` names. Its kind is ROW, also for a col tensor, and it belongs to
    stage 0. With `roll` it has the tensor's kind: what other threads of the row own. A tensor with a value for each
    `group` of columns is read as one for each column: only the address differs.
    """

    name: str
    kind: Kind
    of: str = ""
    column: Column = Column.FIRST
    index: str = ""  # a loaded row value, in place of `column`
    roll: Expr | None = None  # of an elem or a col: by how many columns it is rolled, in place of `column`
    group: int = 0  # neighbouring columns that share a value

    @property
    def tensor(self) -> str:
        """The tensor that is read."""
        return self.of or self.name

    @property
    def ahead(self) -> Expr:
        """How many columns lie between an element's and the one that it is read of."""
        return -self.roll if self.roll is not None else sp.Integer(0)


@dataclass(frozen=True)
class Random:
    """A random number for each element, uniform in [0, 1), as a function of the seed, the element and the `draw`.

    A program of the backward pass has the same numbers: they are drawn again, never stored.
    """

    name: str
    seed: str  # the tensor whose bits it reads
    draw: int  # which of the random numbers of an element
    kind: Kind = Kind.ELEM


@dataclass(frozen=True)
class Guard:
    """What spares a row a reduction: where 0 <= margin its values are `instead`. A margin that is NaN spares nothing.

    Both are row values, so that all threads of a row decide alike.
    """

    margin: Expr
    instead: tuple[Expr, ...]


@dataclass(frozen=True)
class Reduce:
    """One monoid over elem arguments, or a total of row values. `names` has a value per component of the state.

    over  the axis that a contraction drops, or that a reduction of one of its sides drops (INNER). All others have
          COL here, and their kind says what they drop
    """

    names: tuple[str, ...]
    kind: Kind  # ROW: over columns; GROUPS: over groups of them; COL, INNER, SCALAR: over rows; BATCHES: those of each
    monoid: Monoid
    args: tuple[Expr, ...]
    guard: Guard | None = None
    group: int = 0  # columns of a group
    over: Kind = Kind.COL

    @property
    def is_dot(self) -> bool:
        """Whether it is a contraction."""
        return self.monoid.name == DOT.name  # an equal one, where a pass has looked through its expressions

    @property
    def is_of_side(self) -> bool:
        """Whether it reduces the inner axis of a side of a contraction."""
        return self.over.by_inner and not self.is_dot


@dataclass(frozen=True)
class Map:
    name: str
    kind: Kind
    expr: Expr


@dataclass(frozen=True)
class Store:
    """Write value `value` to `tensor`, or add it to what is there; its kind is the value's.

    A tensor with a value for each `group` of columns has the sum of the value's columns there: the gradient of what is
    read as a value for each column.
    """

    tensor: str
    value: str
    kind: Kind
    accumulate: bool = False
    group: int = 0


Statement = Load | Random | Reduce | Map | Store


@dataclass(frozen=True)
class RowProgram:
    """A checked sequence of statements; `scalars` are its run-time numbers (eps)."""

    name: str
    statements: tuple[Statement, ...]
    scalars: tuple[str, ...] = ()

    @property
    def loads(self) -> tuple[Load, ...]:
        return tuple(s for s in self.statements if isinstance(s, Load))

    @property
    def randoms(self) -> tuple[Random, ...]:
        return tuple(s for s in self.statements if isinstance(s, Random))

    @property
    def reduces(self) -> tuple[Reduce, ...]:
        return tuple(s for s in self.statements if isinstance(s, Reduce))

    @property
    def row_reduces(self) -> tuple[Reduce, ...]:
        return tuple(r for r in self.reduces if is_row_reduce(r))

    @property
    def dots(self) -> tuple[Reduce, ...]:
        """Its contractions."""
        return tuple(r for r in self.reduces if r.is_dot)

    @property
    def col_reduces(self) -> tuple[Reduce, ...]:
        return tuple(r for r in self.reduces if r.kind.is_columns and not r.is_of_side)

    @property
    def totals(self) -> tuple[Reduce, ...]:
        return tuple(r for r in self.reduces if r.kind is Kind.SCALAR)

    @property
    def col_terms(self) -> tuple[tuple[Store, Expr], ...]:
        """What every column output sums over all rows, or those of each batch, in the order of the stores.

        What is no sum is 0.
        """
        return self._terms(columns=True)

    @property
    def total_terms(self) -> tuple[tuple[Store, Expr], ...]:
        """The same of every scalar output: its terms are values of rows, or of elements."""
        return self._terms(columns=False)

    def _terms(self, *, columns: bool) -> tuple[tuple[Store, Expr], ...]:
        sums = {s.names[0]: s.args[0] for s in (*self.col_reduces, *self.totals)}
        stores = (s for s in self.stores if (s.kind.is_columns if columns else s.kind is Kind.SCALAR))
        return tuple((s, sums.get(s.value, sp.Integer(0))) for s in stores)

    @property
    def maps(self) -> tuple[Map, ...]:
        return tuple(s for s in self.statements if isinstance(s, Map))

    @property
    def stores(self) -> tuple[Store, ...]:
        return tuple(s for s in self.statements if isinstance(s, Store))

    @cached_property
    def is_sound(self) -> bool:
        """True; raises ProgramError for a rule that is broken. Kept, because passes check what they get and give."""
        _check_rules(self)
        return True

    def __str__(self) -> str:
        return "\n".join([f"program {self.name}({', '.join(self.scalars)})", *map(show_statement, self.statements)])


def defined_names(statement: Statement) -> tuple[str, ...]:
    match statement:
        case Load(name=name) | Random(name=name) | Map(name=name):
            return (name,)
        case Reduce(names=names):
            return names
        case Store():
            return ()


def used_exprs(statement: Statement) -> tuple[Expr, ...]:
    match statement:
        case Load(index=index):
            return (symbol(index),) if index else ()
        case Random(seed=seed):
            return (symbol(seed),)
        case Map(expr=expr):
            return (expr,)
        case Reduce(args=args, guard=guard):
            return (*args, guard.margin, *guard.instead) if guard else args
        case Store(value=value):
            return (symbol(value),)


def kind_of(expr: Expr, kinds: Mapping[str, Kind]) -> Kind:
    """The join of the kinds of what an expression reads."""
    return join([*(kinds[name] for name in names_of(expr)), *index_kinds(expr)])


def index_kinds(expr: Expr) -> tuple[Kind, ...]:
    """The axes along which an expression reads the number of its place."""
    if isinstance(expr, Expression):
        return tuple(kind for name, kind in _INDICES.items() if Name(name) in nodes(expr))
    return _index_kinds(expr)


@lru_cache(maxsize=4096)
def _index_kinds(expr: sp.Expr) -> tuple[Kind, ...]:
    return tuple(index.kind for index in expr.atoms(Index))


def names_of(expr: Expr) -> frozenset[str]:
    """Names of the values and scalars an expression reads (never `cols` or `inner`)."""
    return expr.names if isinstance(expr, Expression) else _names_of(expr)


@lru_cache(maxsize=4096)  # each pass asks again, of expressions that it mostly left as they were
def _names_of(expr: sp.Expr) -> frozenset[str]:
    return frozenset(s.name for s in expr.free_symbols if s not in SIZES)


def value_alone(expr: Expr) -> str:
    """The value that an expression is, as it stands; else nothing."""
    return str(expr.name) if isinstance(expr, Name | sp.Symbol) else ""


def used_names(statement: Statement) -> frozenset[str]:
    """Names of the values and scalars a statement reads (never `cols` or `inner`)."""
    return frozenset().union(*map(names_of, used_exprs(statement)))


def free_name(wish: str, *taken: Container[str], joint: str = "") -> str:
    """`wish`, or the first of wish2, wish3 ... that none of `taken` has, with `joint` in front of the number."""
    names = chain([wish], (f"{wish}{joint}{number}" for number in count(2)))
    return next(name for name in names if not any(name in some for some in taken))


def value_kinds(program: RowProgram) -> dict[str, Kind]:
    """Kind of every value and scalar of the program."""
    kinds: dict[str, Kind] = dict.fromkeys(program.scalars, Kind.SCALAR)
    for statement in program.statements:
        if not isinstance(statement, Store):
            kinds.update((name, statement.kind) for name in defined_names(statement))
    return kinds


def stage_of(program: RowProgram) -> dict[str, int]:
    """How many dependent reductions each value waits for: 0 for loads, s for the result of stage s.

    Those of rows count, contractions, and those of their sides. A sum over all rows is known behind them.
    """
    stages: dict[str, int] = dict.fromkeys(program.scalars, 0)
    for statement in program.statements:
        need = max((stages[n] for n in used_names(statement)), default=0)
        for name in defined_names(statement):
            stages[name] = need + is_stage(statement)
    return stages


def is_row_reduce(statement: Statement) -> bool:
    """Whether it reduces the columns of each row."""
    return isinstance(statement, Reduce) and statement.kind.is_row and not statement.is_of_side


def is_stage(statement: Statement) -> bool:
    """Whether what reads it waits for it: a reduction of rows, a contraction, or a reduction of a side of one."""
    return is_row_reduce(statement) or (isinstance(statement, Reduce) and (statement.is_dot or statement.is_of_side))


def looks(program: RowProgram) -> int:
    """How often the row must be looked at: its stages, plus one if elem or col results need them."""
    stages = stage_of(program)
    row_stages = max((stages[n] for r in program.row_reduces for n in r.names), default=0)
    needs_final = any(s.kind.within_row and s.kind.by_row for s in program.stores) or bool(program.col_terms)
    kinds = value_kinds(program)
    needs_final |= any(kind_of(term, kinds).within_row for _, term in program.total_terms)
    return row_stages + (1 if needs_final else 0)


def check(program: RowProgram) -> RowProgram:
    """Raise ProgramError unless the program obeys every rule of the IR; return it unchanged."""
    _ = program.is_sound
    return program


def _check_rules(program: RowProgram) -> None:
    kinds: dict[str, Kind] = dict.fromkeys(program.scalars, Kind.SCALAR)
    for statement in program.statements:
        for name in sorted(used_names(statement)):
            if name not in kinds:
                received = f"{name} in: {show_statement(statement)}"
                raise ProgramError("a value must be defined before it is used", received=received)
        read = join(kind_of(e, kinds) for e in used_exprs(statement))
        rules = (*_broken_rules(statement, read), *_broken_sides(statement, kinds), *_broken_guard(statement, kinds))
        for rule in rules:
            raise ProgramError(rule, received=show_statement(statement))
        for name in defined_names(statement):
            if name in kinds or name in map(str, SIZES):
                raise ProgramError("a value is defined once", received=f"{name} in: {show_statement(statement)}")
            assert not isinstance(statement, Store)
            kinds[name] = statement.kind
    sums = {name for r in (*program.col_reduces, *program.totals) for name in r.names}
    sums |= {m.name for m in program.maps if m.expr == 0}
    for store in program.stores:
        if not (store.kind.by_row or store.kind.by_inner) and store.value not in sums:
            raise ProgramError("a column or scalar output is a sum over the rows, or 0", received=show_statement(store))
    stored = [s.tensor for s in program.stores]
    if len(stored) != len(set(stored)):
        raise ProgramError("a tensor is stored once", received=", ".join(stored))


def _broken_rules(statement: Statement, read: Kind) -> Iterator[str]:
    match statement:
        case Reduce(names=names, kind=kind, monoid=monoid, args=args, group=group):
            if statement.is_dot or statement.is_of_side or kind.by_inner or read.by_inner:
                yield from _broken_contraction(statement, read)
            elif kind.is_elem:
                yield "a reduction gives a scalar, a row, a col or a groups value"
            if kind.is_groups is not bool(group):
                yield "a reduction over groups knows their columns"
            if kind.is_groups and len(names) > 1:
                yield "groups are reduced by monoids of one component"
            if len(names) != len(monoid.state) or len(args) != len(monoid.args):
                wants = f"{len(monoid.args)} argument(s) and gives {len(monoid.state)} value(s)"
                yield f"monoid '{monoid.name}' takes {wants}"
            is_over_rows = not (kind.by_row or statement.is_dot or statement.is_of_side)
            if is_over_rows and monoid.name != "sum":
                yield "reductions over rows are sums"
            if kind is Kind.SCALAR and read.is_groups:
                yield "a total adds values of rows or of elements"
        case Map(kind=kind):
            if _is_product(kind) or _is_product(read):
                yield "no value varies along rows, inner and cols: the sum of such products is a contraction"
            is_broadcast = (
                read is Kind.SCALAR
                or (kind.is_elem and not read.by_inner)
                or (kind.is_groups and read.by_row and not read.within_row)
                or (kind.by_inner and kind.is_matrix and join([kind, read]) is kind)
            )
            if read is not kind and not is_broadcast:
                yield f"this map's kind is {read}"
        case Store(kind=kind, group=group):
            if read is not kind:
                yield f"a store has its value's kind, here {read}"
            if group and not kind.is_columns:
                yield "groups of columns are added up of a sum over rows"
        case Random(kind=kind):
            if read is not Kind.SCALAR or not kind.is_elem:
                yield "random numbers of elements come from one seed"
        case Load(kind=kind, index=index, group=group):
            if group and (index or kind.is_elem):
                yield "groups of columns share a value of what is the same in each row"
            if index and not (statement.of and read.is_row):
                yield "the column of an element is a row value"
            if statement.of and not (kind.is_row or statement.roll):
                yield "one element of a row is a row value"
            if statement.roll and not (statement.of and kind.by_col and not kind.by_inner):
                yield "values of columns are rolled, under a name of their own"


def _broken_contraction(statement: Reduce, read: Kind) -> Iterator[str]:
    kind, over = statement.kind, statement.over
    if statement.guard or statement.group:
        yield "a contraction, and a reduction of its side, has neither a guard nor groups"
    if not statement.is_dot:
        is_over_rows = kind.is_inner and read.is_left and not statement.is_of_side
        is_over_inner = read is join([kind, Kind.INNER]) and not kind.by_inner and statement.is_of_side and kind.axes
        if not (is_over_rows or is_over_inner):
            yield (
                "a reduction over inner gives a row of a left value, or a col of a matrix value; a sum over rows "
                "gives an inner of a left value"
            )
    elif kind.by_batch and not over.is_row:
        yield "a contraction over the rows of each batch gives a matrix of each"
    elif not _is_product(read) or over not in read or len(over.axes) != 1 or kind.of_batch is not read & ~over:
        yield "a contraction drops one of the axes rows, inner and cols, which its sides have together"


def _broken_sides(statement: Statement, kinds: Mapping[str, Kind]) -> Iterator[str]:
    """Each side of a contraction has the axis that is dropped, and one of the two that stay."""
    if isinstance(statement, Reduce) and statement.is_dot:
        sides = [kind_of(arg, kinds) for arg in statement.args]
        if any(statement.over not in side or _is_product(side) for side in sides):
            yield "each side of a contraction has the axis that it drops, and one of the two others"


def _is_product(kind: Kind) -> bool:
    return kind.by_row and kind.by_inner and kind.by_col


def _broken_guard(statement: Statement, kinds: Mapping[str, Kind]) -> Iterator[str]:
    if not isinstance(statement, Reduce) or statement.guard is None:
        return
    guard = statement.guard
    if len(guard.instead) != len(statement.names):
        yield "a guard has a value for each that is reduced"
    if not statement.kind.is_row or any(kind_of(e, kinds).by_col for e in (guard.margin, *guard.instead)):
        yield "a guard is made of row values, and spares rows"


def show_statement(statement: Statement) -> str:
    match statement:
        case Load(name=name, kind=kind, roll=sp.Expr() as roll, group=group):
            place = f"{show_expr(COL - roll)}{f' // {group}' if group else ''}"
            return f"  load   {name} : {kind} = {statement.tensor}[{place}]"
        case Load(name=name, kind=kind, of=of, column=column, index=index, group=group):
            place = f"{index or column if of else 'col'}{f' // {group}' if group else ''}"
            return f"  load   {name} : {kind}" + (f" = {statement.tensor}[{place}]" if of or group else "")
        case Random(name=name, seed=seed, draw=draw, kind=kind):
            return f"  random {name} : {kind} = random({seed}, {draw})"
        case Reduce(names=names, kind=kind, monoid=monoid, args=args, guard=guard, group=group):
            suffix = f"_{group}" if group else "" if kind.by_row else "_rows"
            if statement.is_dot or statement.is_of_side:
                suffix = f"_{''.join(statement.over.axes)}"
            listed = ", ".join(map(show_expr, args))
            spared = f" unless 0 <= {show_expr(guard.margin)}, then " if guard else ""
            spared += ", ".join(map(show_expr, guard.instead)) if guard else ""
            return f"  reduce {', '.join(names)} : {kind} = {monoid.name}{suffix}({listed}){spared}"
        case Map(name=name, kind=kind, expr=expr):
            return f"  map    {name} : {kind} = {show_expr(expr)}"
        case Store(tensor=tensor, value=value, accumulate=accumulate, group=group):
            value = f"sum_{group}({value})" if group else value
            if accumulate:
                return f"  store  {tensor} += {value}"
            return f"  store  {tensor}" if tensor == value else f"  store  {tensor} = {value}"
