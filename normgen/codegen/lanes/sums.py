"""Sums over rows that lie side by side: a warp's lanes own as many of them, and add a column at a time.

Lines of threads own columns, so that one cell of the block's sums is one warp's alone: no barrier until all are done.
"""

from __future__ import annotations

from normgen.codegen.columns.partials import TwoKernels
from normgen.codegen.columns.sums import PITCH, Cells, SecondKernel
from normgen.codegen.lanes.access import LaneAccess
from normgen.codegen.module import Param
from normgen.codegen.printer import Printer
from normgen.codegen.statements import Comment, Do, For, Gap, If, Let, Set, Statement, constant, setting
from normgen.codegen.walk import UNROLL
from normgen.schedule.plan import Sums


class LaneCells(Cells):
    """One cell for each column, in the columns' order."""

    def __init__(self, access: LaneAccess, sums: Sums) -> None:
        self.access, self.plan, self.sums = access, access.plan, sums
        self.stores = sums.stores
        self.names = [store.tensor for store in sums.stores]
        self.totals = sums.totals

    @property
    def vector(self) -> int:
        return 1


class LaneSums:
    """The sums over rows of one kernel; of a program without any, nothing."""

    def __init__(self, access: LaneAccess) -> None:
        self.access, self.sums = access, access.plan.sums
        if self.sums is None:
            return
        self.cells = LaneCells(access, self.sums)
        self.finish = TwoKernels(self.cells)
        self.terms = [
            (index, store.tensor, term)
            for index, (store, term) in enumerate(access.plan.program.col_terms)
            if term != 0
        ]

    def params(self) -> list[Param]:
        return self.finish.params() if self.sums else []

    def constants(self) -> list[Let]:
        if self.sums is None:
            return []
        return [
            constant("kPitch", PITCH, "columns of a row of float32 sums, padded"),
            constant("kTensors", str(len(self.cells.names)), "tensors that are summed over rows"),
            setting("kCluster", 1),
        ]

    def prologue(self, start: str) -> list[Statement]:
        """Before the row loop: zeros in the cells of the warp's own columns, which no other warp adds to."""
        if self.sums is None:
            return []
        zero = [Set(f"column_sums[{self.cells.start(i)}col]", "0.0f") for i, _ in enumerate(self.cells.names)]
        own = For("for (int col = part + slot * kParts; col < kCols; col += kParts * kSlots)", tuple(zero))
        return [Let("float* const", "column_sums", f"reinterpret_cast<float*>({start})"), own, Do("__syncwarp()")]

    def head(self) -> list[Statement]:
        return [Do(f"float {name}_part = 0.0f") for _, name, _ in self.terms] if self.sums else []

    def elements(self, printer: Printer) -> list[Statement]:
        """What an element adds: not of a row that is there for others alone."""
        return [Set(f"{name}_part", printer.text(term), "+=") for _, name, term in self.terms] if self.sums else []

    def tail(self) -> list[Statement]:
        """Behind a vector: the warp's rows become one number."""
        if not (self.sums and self.terms):
            return []
        idle = [Set(f"{name}_part", "0.0f") for _, name, _ in self.terms]
        lanes = [
            Set(f"{name}_part", f"__shfl_xor_sync(0xffffffffu, {name}_part, offset)", "+=") for _, name, _ in self.terms
        ]
        added = [Set(f"column_sums[{self.cells.start(i)}col]", f"{name}_part", "+=") for i, name, _ in self.terms]
        return [
            If("!active", tuple(idle)),
            For("for (int offset = 16; offset > 0; offset /= 2)", tuple(lanes), UNROLL),
            If("slot == 0", tuple(added)),
        ]

    def epilogue(self) -> list[Statement]:
        """After the row loop: the block's sums leave."""
        if self.sums is None:
            return []
        handed = [
            self.finish.hand_on(i, "cell", f"column_sums[{self.cells.start(i)}cell]")
            for i, _ in enumerate(self.cells.names)
        ]
        return [
            Gap(),
            Comment("The block leaves one partial row of sums."),
            Do("__syncthreads()"),
            *self.finish.target("blockIdx.x"),
            For("for (int cell = threadIdx.x; cell < kCols; cell += kThreads)", tuple(handed)),
        ]

    def second_kernel(self, name: str) -> SecondKernel | None:
        return self.finish.second_kernel(name) if self.sums else None
