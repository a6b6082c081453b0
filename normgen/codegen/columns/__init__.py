"""Sums over all rows, taken in the same pass over the data as dx: of columns (dweight, dbias), and totals.

A way to sum columns is a place where a block adds its rows (`Gather`) and somebody who adds the blocks (`Finish`):

    register_atomic       registers, then atomicAdd into the workspace; the last block converts
    partials_two_kernels  registers, one partial row per block; a second kernel adds them in a fixed order
    partials_last_tile    registers, one partial row per block; the last block at a tile of columns adds it
    shared_atomic         a float32 row in shared memory by atomics, then as register_atomic
    atomic                every row adds straight to the workspace

Totals (totals.py) are added in registers whatever the place is, and have the finish in common.
"""

from __future__ import annotations

from collections.abc import Callable

from normgen.codegen.access import Access, Site
from normgen.codegen.columns.atomics import SharedRow, Straight, Ticket
from normgen.codegen.columns.last_tile import LastTile
from normgen.codegen.columns.partials import TwoKernels
from normgen.codegen.columns.registers import Registers
from normgen.codegen.columns.sums import PITCH, Cells, Finish, Gather, SecondKernel
from normgen.codegen.columns.totals import Totals, total_constants
from normgen.codegen.module import Param
from normgen.codegen.printer import Printer
from normgen.codegen.statements import If, Let, Statement, constant
from normgen.knobs import ColumnWay as Way

WAYS: dict[Way, tuple[Callable[[Cells, Finish], Gather], Callable[[Cells], Finish]]] = {
    Way.REGISTER_ATOMIC: (Registers, Ticket),
    Way.PARTIALS_TWO_KERNELS: (Registers, TwoKernels),
    Way.PARTIALS_LAST_TILE: (Registers, LastTile),
    Way.SHARED_ATOMIC: (SharedRow, Ticket),
    Way.ATOMIC: (Straight, Ticket),
}


class ColumnSums:
    """The sums over rows of one kernel; of a program without any, nothing."""

    def __init__(self, access: Access) -> None:
        self.plan = access.plan
        self.sums = self.plan.sums
        if self.sums is None:
            return
        gather, finish = WAYS[self.sums.way]
        self.cells = Cells(access, self.sums)
        self.finish = finish(self.cells)
        self.gather = (gather if self.sums.stores else Gather)(self.cells, self.finish)
        self.totals = Totals(self.cells, self.finish)

    def params(self) -> list[Param]:
        return self.finish.params() if self.sums else []

    def constants(self) -> list[Let]:
        if self.sums is None:
            return []
        if self.plan.problem.any_cols:
            return total_constants(self.cells)
        pitch = constant("kPitch", PITCH, "columns of a row of float32 sums, padded")
        return [pitch, *self.gather.constants(), *self.finish.constants(), *total_constants(self.cells)]

    def prologue(self) -> list[Statement]:
        """Before the row loop. The block's sums lie behind the held rows."""
        return [*self.gather.prologue(), *self.totals.prologue()] if self.sums else []

    def row(self) -> list[Statement]:
        """What a row adds to the totals, once its values are known."""
        return self.totals.row() if self.sums else []

    def after_last_look(self) -> list[Statement]:
        return self.totals.after_last_look() if self.sums else []

    def elements(self, printer: Printer, site: Site) -> list[Statement]:
        """What one element adds at a site; a sum that is 0 stays as it starts."""
        if self.sums is None:
            return []
        terms = [(i, term) for i, (_, term) in enumerate(self.plan.program.col_terms) if term != 0]
        added = [self.gather.add(index, printer.text(term), site) for index, term in terms]
        added = [If("active", (one,), alone=True) for one in added] if self.plan.rows_beside else added
        return [*added, *self.totals.elements(printer, site)]

    def epilogue(self) -> list[Statement]:
        if self.sums is None:
            return []
        return [*self.gather.epilogue(), *self.totals.epilogue(), *self.finish.epilogue()]

    def second_kernel(self, name: str) -> SecondKernel | None:
        """The kernel that adds what the blocks left."""
        return self.finish.second_kernel(name) if self.sums else None
