"""Totals (a loss over all tokens, dalpha): values of rows, or of elements, added over all rows.

Each thread adds what it owns of its block's rows in a register; the block then adds its threads and hands one float32
number per total on, as it does with sums of columns.
"""

from __future__ import annotations

from normgen.codegen.access import EDGE, Site
from normgen.codegen.columns.sums import Cells, Finish
from normgen.codegen.printer import Printer
from normgen.codegen.statements import Comment, Do, For, If, Let, Set, Statement, constant
from normgen.codegen.walk import UNROLL


def total_constants(cells: Cells) -> list[Let]:
    """Sizes of what a block hands on."""
    if not cells.totals:
        return []
    return [
        constant("kTotals", str(len(cells.totals)), "numbers that are summed over rows"),
        constant("kTotalPitch", "(kTotals + 31) / 32 * 32", "float32 cells that a block has for them, padded"),
    ]


class Totals:
    """Where a block adds the totals of its rows."""

    def __init__(self, cells: Cells, finish: Finish) -> None:
        self.cells = cells
        self.access = cells.access
        self.plan = cells.plan
        self.finish = finish
        self.names = [store.tensor for store in cells.totals]
        self.of_elements = [(store.tensor, term) for store, term in self.plan.elem_totals]

    def prologue(self) -> list[Statement]:
        """Before the row loop."""
        sums = [Do(f"float {name}_sum = 0.0f") for name in self.names]
        return [Comment("This thread's part of the totals."), *sums] if sums else []

    def row(self) -> list[Statement]:
        """What a row adds, once its values are known; a total that is 0 stays as it starts."""
        printer = Printer(self.access.names)
        terms = [(s.tensor, term) for s, term in self.plan.row_totals if term != 0]
        added = tuple(Set(f"{name}_sum", printer.text(term), "+=") for name, term in terms)
        who = "row_thread == 0 && active" if self.plan.rows_beside else "row_thread == 0"
        # A row's part is added up by itself first: its chain of additions is short.
        parts = [Do(f"float {name}_part[kRunningSums] = {{}}") for name, _ in self.of_elements]
        return [*([If(who, added)] if added else []), *parts]

    def elements(self, printer: Printer, site: Site) -> list[Statement]:
        """What one element adds."""
        part = "0" if site is EDGE else f"{site.index} % kRunningSums"
        return [Set(f"{name}_part[{part}]", printer.text(term), "+=") for name, term in self.of_elements]

    def after_last_look(self) -> list[Statement]:
        added = [Set(f"{name}_sum", f"sum_in_pairs({name}_part)", "+=") for name, _ in self.of_elements]
        return [If("active", (one,), alone=True) for one in added] if self.plan.rows_beside else [*added]

    def epilogue(self) -> list[Statement]:
        """After the row loop: the block's threads, first within each warp, then warp by warp."""
        if not self.names:
            return []
        lanes = tuple(
            Set(f"{name}_sum", f"__shfl_xor_sync(0xffffffffu, {name}_sum, offset)", "+=") for name in self.names
        )
        left = tuple(Set(f"warp_totals[threadIdx.x / 32][{i}]", f"{name}_sum") for i, name in enumerate(self.names))
        handed = (
            Let("const float", "total", "total_of_warps<kThreads / 32>(warp_totals, index)"),
            self.finish.hand_on_total("index", "total"),
        )
        return [
            Comment("The threads of the block add their totals in a fixed order."),
            Do("__shared__ float warp_totals[kThreads / 32][kTotals]"),
            For("for (int offset = 16; offset > 0; offset /= 2)", lanes, UNROLL),
            If("threadIdx.x % 32 == 0", left),
            Do("__syncthreads()"),
            *self.finish.target_of_totals(),
            For("for (int index = threadIdx.x; index < kTotals; index += kThreads)", handed),
        ]
