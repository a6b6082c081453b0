"""Totals of sums over the columns become totals of the elements.

    reduce s : row = sum(x); reduce t : scalar = sum_rows(s)   ->   reduce t : scalar = sum_rows(x)

Each thread then adds what it owns of all its rows, and the rows need no exchange: the threads of a block combine once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from normgen.program.ir import Reduce, RowProgram, Statement, is_row_reduce, kind_of, used_names, value_kinds
from normgen.program.monoid import SUM, symbol


def totals_of_elements(program: RowProgram) -> RowProgram:
    """The program with every sum over the columns that only a total reads within that total.

    It is left where it would cost a look: where the row is reduced otherwise and nothing is written of its elements.
    """
    readers = Counter(name for s in program.statements for name in used_names(s))
    kinds = value_kinds(program)
    sums = {s.names[0]: s for s in program.row_reduces if s.monoid is SUM and readers[s.names[0]] == 1}
    # A value of groups is in each of their columns: without an absent input it may be all that a row sums.
    sums = {name: s for name, s in sums.items() if not kind_of(s.args[0], kinds).is_groups}
    moved = {str(t.args[0]): sums[str(t.args[0])] for t in program.totals if str(t.args[0]) in sums}
    is_looked_at = bool(program.col_terms) or any(s.kind.within_row and s.kind.by_row for s in program.stores)
    if not is_looked_at and len(moved) < len(program.row_reduces):
        return program
    statements: list[Statement] = []
    for statement in program.statements:
        if is_row_reduce(statement) and any(statement is s for s in moved.values()):
            continue
        if isinstance(statement, Reduce) and statement in program.totals:
            found = next((s for name, s in moved.items() if statement.args == (symbol(name),)), None)
            statement = replace(statement, args=found.args) if found else statement
        statements.append(statement)
    return replace(program, statements=tuple(statements))
