"""How a call may be shared out among processes, by the roles of its tensors.

Along one dimension of a mesh a call may be
  whole       every tensor is replicated
  by rows     one of the sizes before the last is sharded: of tensors [.., cols] and [..] alike; parameters are
              replicated, and what is summed over rows, their gradients and totals, is a partial sum
  by columns  of an operation in which no column sees another one, as swiglu: parameters [cols] are sharded too
A norm's columns are always whole. Rows that are told apart by their numbers, as those of causal_softmax and of dropout,
are not shared out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.program.functions import COL, ROW, roll
from normgen.program.ir import COLS, Load, used_exprs
from normgen.program.source import written_program
from normgen.spec.spec import Kind

# What a tensor is along one dimension of a mesh: the number of the size that is sharded, or one of these.
REPLICATED = -1
PARTIAL = -2
Share = int


def shares(
    problem: Problem, reads: Sequence[TensorUse], writes: Sequence[TensorUse], shapes: Mapping[str, Sequence[int]]
) -> Iterator[tuple[dict[str, Share], dict[str, Share]]]:
    """(of what is read, of what is written), by name, for each way in which a call may be shared out.

    shapes  of the read tensors that are there
    """
    yield dict.fromkeys(shapes, REPLICATED), dict.fromkeys((use.name for use in writes), REPLICATED)
    first = next(shapes[u.name] for u in reads if u.is_row_input and u.name in shapes)
    uses = {use.name: use for use in (*reads, *writes)}
    written = [use.name for use in writes]

    def found(share: Callable[[TensorUse], Share | None]) -> tuple[dict[str, Share], dict[str, Share]] | None:
        of = {name: share(uses[name]) for name in (*shapes, *written)}
        if None in of.values():
            return None
        known = {name: value for name, value in of.items() if value is not None}
        return {name: known[name] for name in shapes}, {name: known[name] for name in written}

    if not _numbers_rows(problem):
        shared = next(((u, shapes[u.name]) for u in reads if u.kind.by_batch and u.name in shapes), None)
        batches = tuple(shared[1][: len(shared[1]) - shared[0].kind.width_axes]) if shared else (1,)
        for dim in range(len(first) - 1):
            way = found(partial(_by_rows, dim=dim, first=first, batches=batches))
            if way is not None:
                yield way
    if _is_column_by_column(problem, (*reads, *writes)):
        way = found(partial(_by_columns, last=len(first) - 1))
        if way is not None:
            yield way


def _by_rows(use: TensorUse, dim: int, first: Sequence[int], batches: tuple[int, ...]) -> Share | None:
    """None where the rows of the first tensor cannot be sharded along this size of it; `batches`: sizes of theirs."""
    if use.kind.by_row:
        return dim
    summed = PARTIAL if use.is_written else REPLICATED
    if not use.kind.by_batch:
        return summed
    # Of a batch are the rows of one index of the first size, of a head those of one index of the last before cols.
    at = len(first) - 2 if use.kind.by_head else 0
    if batches != tuple(first[at : at + len(batches)]):
        return summed if math.prod(batches) == 1 else None
    if not at <= dim < at + len(batches):
        return summed
    return None if use.is_written and dim > at else dim - at  # what is written has all batches in one size


def _by_columns(use: TensorUse, last: int) -> Share | None:
    if use.kind.by_col:
        return last if use.kind.by_row else len(use.kind.axes) - 1
    if not use.is_written:
        return REPLICATED
    return PARTIAL if use.kind is Kind.SCALAR else None


def _numbers_rows(problem: Problem) -> bool:
    """Whether what a row becomes depends on which of the rows it is."""
    program = written_program(problem)
    return bool(program.randoms) or any(expr.has(ROW) for expr in _exprs(problem))


def _is_column_by_column(problem: Problem, uses: Sequence[TensorUse]) -> bool:
    """Whether an element depends on its column alone, of each tensor."""
    program = written_program(problem)
    if problem.spec.has_inner or problem.spec.groups or program.row_reduces or program.dots or program.randoms:
        return False
    picks = any(isinstance(s, Load) and s.of for s in program.statements)
    numbered = any(expr.has(COL, COLS, roll) for expr in _exprs(problem))
    return not (picks or numbered or any(use.group for use in uses))


def _exprs(problem: Problem) -> Iterator[Any]:
    for statement in written_program(problem).statements:
        yield from used_exprs(statement)
