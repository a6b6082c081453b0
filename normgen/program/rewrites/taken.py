"""Elements that an index names are loaded, not searched for.

    reduce right : row = sum(where(col == label, x, 0))   ->   load right : row = x[label]

A thread would compare the number of each of its columns, and add. The rows are still reduced otherwise: the barrier of
that stands between the load and an output that takes the place of x.
"""

from __future__ import annotations

from dataclasses import replace

from normgen.program.functions import COL, equal, where
from normgen.program.ir import Load, Reduce, RowProgram, Statement, check
from normgen.program.monoid import SUM, symbol
from normgen.spec.spec import Kind


def load_taken_elements(program: RowProgram) -> RowProgram:
    """The program with every take(x, index) of tensors as a load."""
    loads = {symbol(ld.name): ld for ld in program.loads if not ld.of}
    taken: dict[Statement, Load] = {}
    for reduce in program.row_reduces:
        if reduce.monoid is not SUM or reduce.guard or not isinstance(reduce.args[0], where):
            continue
        condition, chosen, other = reduce.args[0].args
        if not isinstance(condition, equal) or COL not in condition.args or other != 0:
            continue
        index = next((loads[side] for side in condition.args if side in loads), None)  # col == col has none
        x = loads.get(chosen)
        if x and x.kind.is_elem and index and index.kind.is_row:
            taken[reduce] = Load(reduce.names[0], Kind.ROW, of=x.name, index=index.name)
    if not taken or len(taken) == len(program.row_reduces):
        return program
    kept = [s for s in program.statements if not (isinstance(s, Reduce) and s in taken)]
    last = max(i for i, s in enumerate(kept) if isinstance(s, Load))
    return check(replace(program, statements=(*kept[: last + 1], *taken.values(), *kept[last + 1 :])))
