"""The class of a program: which frame of a kernel computes it.

What depends on the frame is looked up by it: legality's rules, the space, defaults, the cost model, what a record of
another shape is worth, and the source of the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from normgen.errors import ProgramError
from normgen.problem.problem import Problem
from normgen.program.ir import (
    Load,
    Map,
    Random,
    Reduce,
    RowProgram,
    Statement,
    Store,
    defined_names,
    kind_of,
    show_statement,
    used_names,
    value_kinds,
)
from normgen.program.rewrites.contractions import factors_leave
from normgen.program.rewrites.reductions import online_results
from normgen.program.source import with_line, written_program
from normgen.spec.spec import Kind, Spec


class ProgramClass(StrEnum):
    """rows: a team of threads owns a row, and looks at it once more than its longest chain of reductions is long.

    tiles: a block owns a tile of what contractions give, and reads the axis that they drop once.
    lanes: as rows, of rows whose elements lie apart: neighbouring threads own neighbouring rows, and each has a part.
    """

    ROWS = "rows"
    TILES = "tiles"
    LANES = "lanes"


class TileAxes(NamedTuple):
    """The axes of a program of tiles, each of them one of rows, inner and cols: values [m, n] are sums over k."""

    m: Kind
    n: Kind
    k: Kind


def is_of_result(reduce: Reduce, axes: TileAxes, kinds: dict[str, Kind]) -> bool:
    """Whether it reduces the rows of values [m, n], of which a block has parts: it is known when all are done."""
    return not reduce.is_dot and reduce.kind.is_row and kind_of(reduce.args[0], kinds) is axes.m | axes.n


def is_of_groups(statement: Statement) -> bool:
    """Whether it reduces groups of columns, which lie in a tile."""
    return isinstance(statement, Reduce) and statement.kind.is_groups


def program_class(program: RowProgram) -> ProgramClass:
    """Tiles of a program with a contraction, or with a value along inner; else rows.

    Raises ProgramError for a program of tiles that one kernel does not compute, with the statement that does not fit.
    """
    if not (program.dots or any(kind.by_inner for kind in value_kinds(program).values())):
        return ProgramClass.ROWS
    tile_axes(online_results(factors_leave(program)))
    return ProgramClass.TILES


def class_of_formulas(spec: Spec, program: RowProgram, present: frozenset[str]) -> ProgramClass:
    """As `program_class`, of a program of a spec's formulas; what does not fit is refused with a formula's line."""
    try:
        return program_class(program)
    except ProgramError as error:
        raise with_line(error, spec, present) from None


@lru_cache(maxsize=1024)
def class_of(problem: Problem) -> ProgramClass:
    """The class of the problem's program, which no rewrite changes; of rows that lie side by side that of their layout.

    Raises SpecError, or ProgramError where no formula is to blame, as `program_class` does.
    """
    if problem.col_stride > 1:  # of no product: `make_problem` refuses it
        return ProgramClass.LANES
    present = frozenset(t.name for t in problem.spec.tensors) - set(problem.absent)
    return class_of_formulas(problem.spec, written_program(problem), present)


def tile_axes(program: RowProgram) -> TileAxes:
    """m, n and k of a program of tiles whose factors have left the sums.

    Raises ProgramError with the statement that one kernel of tiles does not compute.
    """
    if not program.dots:
        rule = "values along inner are the sides of a contraction, and this program has none"
        raise ProgramError(rule, received=program.name)
    first = program.dots[0]
    m, n = first.kind.single_axes
    axes = TileAxes(m, n, first.over)
    kinds = value_kinds(program)
    reduced: set[str] = set()  # values that wait for a reduction
    statistics: set[str] = set()  # of these, what waits for reductions of rows alone: a look ahead at the rows gives it
    of_result: set[str] = set()  # ... for a reduction of the result
    for statement in program.statements:
        waits = used_names(statement) & reduced
        names = (statement.value,) if isinstance(statement, Store) else defined_names(statement)
        behind = waits & of_result
        if behind or (isinstance(statement, Reduce) and is_of_result(statement, axes, kinds)):
            of_result.update(defined_names(statement))
            misfits = _misfits_of_result(statement, is_behind=bool(behind), alone=waits == behind)
        else:
            misfits = _misfits(statement, axes, first.kind, kinds, waits=bool(waits - statistics))
        for rule, hint in misfits:
            raise ProgramError(rule, received=show_statement(statement).strip(), hint=hint, value=names[0])
        found = names if waits or isinstance(statement, Reduce) else ()
        reduced.update(found)
        is_dot = isinstance(statement, Reduce) and statement.is_dot
        of_rows = not is_dot and kinds.get(names[0], Kind.SCALAR).by_row and not is_of_groups(statement)
        statistics.update(found if of_rows and waits <= statistics and not {*found} & of_result else ())
    return axes


def dropped_axis(reduce: Reduce, kinds: dict[str, Kind]) -> Kind:
    """The axis that a reduction drops; none of one that drops several, or a part of one."""
    if reduce.is_dot or reduce.is_of_side:
        return reduce.over
    read = kind_of(reduce.args[0], kinds)
    axis = read & ~reduce.kind
    return axis if len(axis.axes) == 1 and not reduce.group and reduce.kind in read else Kind.SCALAR


_SPLIT = "a spec of its own computes it, of what this one stores"
_STATISTIC = f"{_SPLIT}; backward, a statistic of rows is stored and saved"
_ONCE = "a value of the row may be a factor of a side, but no term of it, nor below a cast or a function"
_SAVE = (
    "each gradient is a problem of its own, --gradients x; a product that its formula reads again is stored and saved, "
    'saved = ["z"]'
)


def _misfits(
    statement: Statement, axes: TileAxes, result: Kind, kinds: dict[str, Kind], *, waits: bool
) -> Iterator[tuple[str, str]]:
    """(Rule, way out) of what a kernel of tiles does not do with a statement.

    result  m | n, or that of each batch
    """
    m, n, k = axes
    match statement:
        case Load(of=of, group=group, kind=kind) if of or group or (kind.by_batch and not kind.is_batch_matrix):
            rule = "a kernel of products reads whole tensors, and of batches matrices, without groups or taken elements"
            yield rule, _SPLIT
        case Load(kind=kind) if kind.by_batch and k.is_row and not result.by_batch:
            yield "a sum over the rows of all batches does not read what each batch has of its own", _SPLIT
        case Random():
            yield "a kernel of products draws no random numbers", _SPLIT
        case Reduce(guard=guard) if guard:
            yield "a kernel of products spares no rows a reduction", _SPLIT
        case Reduce(kind=kind) if statement.is_dot and kind is not result:
            yield f"all contractions of a kernel sum {_of(k)} to values along {_of(result)}", _SAVE
        case Reduce() if statement.is_dot and waits:
            yield f"a kernel reads {_of(k)} once, and a side of a contraction waits for a reduction", _ONCE
        case Reduce(kind=kind, args=args) if is_of_groups(statement):
            if not kind_of(args[0], kinds).is_elem:
                yield "groups of columns are reduced of values along rows and cols", _SPLIT
        case Reduce(kind=kind) if not statement.is_dot:
            if waits or dropped_axis(statement, kinds) is not k or not (kind is m or kind is n):
                rule = f"a kernel of products reduces its sides over {_of(k)}, to values along {_of(m)} or {_of(n)}"
                yield rule, _STATISTIC
            elif k.is_row and result.by_batch:
                yield "beside a sum over the rows of each batch a kernel reduces nothing else", _SAVE
        case Map(kind=kind) | Store(kind=kind) if kind.is_groups and result.is_elem:
            return
        case Map(kind=kind) if waits and kind not in result:
            yield f"a kernel reads {_of(k)} once, and a value along it waits for a reduction", _ONCE
        case Store(kind=kind) if kind not in result or kind is Kind.SCALAR:
            yield f"a kernel of products stores values along {_of(m)}, {_of(n)} or both", _SPLIT


def _misfits_of_result(statement: Statement, *, is_behind: bool, alone: bool) -> Iterator[tuple[str, str]]:
    """The same of a reduction of the result, and of what waits for one, for nothing else if it is `alone`."""
    match statement:
        case Reduce() if is_behind:
            yield "a reduction of the result waits for another one, and a kernel makes the result once", _SPLIT
        case Reduce(guard=guard, group=group) if guard or group:
            yield "a kernel of products reduces whole rows of its result", _SPLIT
        case Map(kind=kind) | Store(kind=kind) if is_behind and not kind.is_row:
            yield (
                "what waits for a reduction of the result's rows is known behind all of it: a value of the row",
                _STATISTIC,
            )
        case Map() | Store() if not alone:
            yield "what waits for a reduction of the result is made of no other sum", _SPLIT


def _of(kind: Kind) -> str:
    return " and ".join(kind.axes)
