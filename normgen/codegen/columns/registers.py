"""Sums in registers: a thread adds its columns of all rows of its block, and the block adds its row groups."""

from __future__ import annotations

from normgen.codegen.access import Site
from normgen.codegen.columns.sums import Gather
from normgen.codegen.view import Loop, SectionList
from normgen.schedule.plan import WARP


class Registers(Gather):
    """register_atomic, partials_two_kernels, partials_last_tile."""

    def prologue(self, out: SectionList) -> None:
        names = self.cells.names
        out.lines(
            "// Sums over the rows of this thread, column by column.",
            *(f"float {name}_sum[kSteps][kVector] = {{}};" for name in names),
            *(f"float {name}_edge_sum = 0.0f;" for name in names if self.plan.cut.edged),
        )

    def add_line(self, index: int, term: str, site: Site) -> str:
        name = self.cells.names[index]
        return f"{name}_edge_sum += {term};" if site.at == "edge" else f"{name}_sum[step][i] += {term};"

    def epilogue(self, out: SectionList) -> None:
        if self.sums.in_shared:
            self._leave(out)
            self.combine(out)
            return
        out.loop(
            Loop(
                comment="One sum per column leaves the block.",
                unroll="#pragma unroll",
                guard=self.access.guard,
                elem=self._hand_on("{}_sum[step][i]", "i * kVectors + vector"),
                edge=self._hand_on("{}_edge_sum", "edge") if self.plan.cut.edged else (),
            )
        )

    def combine(self, out: SectionList) -> None:
        """What the row groups left side by side -> one sum per cell, which leaves the block."""
        self.add_groups(out)

    def _hand_on(self, sum_: str, cell: str) -> tuple[str, ...]:
        walker = self.access.walker
        names = enumerate(self.cells.names)
        return tuple(self.finish.hand_on(index, cell, sum_.format(name), walker=walker) for index, name in names)

    def _leave(self, out: SectionList) -> None:
        """Registers -> shared memory, one row of sums per group."""
        s, shifted = self.plan.schedule, self.plan.cut.shifted
        shares_warp = s.threads_per_row < WARP and not shifted
        if shares_warp:
            self._add_rows_of_warp(out)
        group = "threadIdx.x / 32" if shares_warp else "slot" if s.rows_per_block > 1 else "0"
        cell = "column + i" if shifted else "i * kVectors + vector"
        count = len(self.cells.names)
        row = f"column_sums[{group} * {count} * kPitch + "
        names = list(enumerate(self.cells.names))
        elem = tuple(f"{row}{self.cells.start(index)}{cell}] = {name}_sum[step][i];" for index, name in names)
        first_rows = "threadIdx.x % 32 < kThreadsPerRow" if shares_warp else ""
        owner = f"if ({first_rows}) " if first_rows else ""
        edge = tuple(f"{owner}{row}{self.cells.start(index)}edge] = {name}_edge_sum;" for index, name in names)
        out.loop(
            Loop(
                comment="The row groups of this block leave their sums side by side ...",
                unroll="#pragma unroll",
                guard=" && ".join(g for g in (self.access.guard, first_rows) if g),
                head=self.access.column_line(elem),
                elem=elem,
                edge=edge if self.plan.cut.edged else (),
            )
        )

    def add_groups(self, out: SectionList) -> None:
        lines = [
            "__syncthreads();",
            "// ... and are added in a fixed order.",
            "for (int cell = threadIdx.x; cell < kCols; cell += kThreads) {",
        ]
        count = len(self.cells.names)
        for index, name in enumerate(self.cells.names):
            starts = (self.cells.start(group * count + index) for group in range(self.sums.groups))
            lines += self.total_lines(index, name, [f"column_sums[{start}cell]" for start in starts])
        out.lines(*lines, "}")

    def total_lines(self, index: int, name: str, cells: list[str]) -> list[str]:
        """One cell's sums of all row groups become one."""
        total = f"{name}_total"
        handed = self.finish.hand_on(index, "cell", total, walker="blockIdx.x")
        return [f"  const float {total} = {' + '.join(cells)};", f"  {handed}"]

    def _add_rows_of_warp(self, out: SectionList) -> None:
        sums = [f"{name}_sum[step][i]" for name in self.cells.names]
        out.lines(
            "// Rows that share a warp.",
            "#pragma unroll",
            "for (int step = 0; step < kSteps; ++step) {",
            "  #pragma unroll",
            "  for (int i = 0; i < kVector; ++i) {",
            "    #pragma unroll",
            "    for (int offset = kThreadsPerRow; offset < 32; offset *= 2) {",
            *(f"      {sum_} += __shfl_xor_sync(0xffffffffu, {sum_}, offset);" for sum_ in sums),
            "    }",
            "  }",
            "}",
        )
        if self.plan.cut.edged:
            edges = [f"{name}_edge_sum" for name in self.cells.names]
            out.lines(
                "#pragma unroll",
                "for (int offset = kThreadsPerRow; offset < 32; offset *= 2) {",
                *(f"  {sum_} += __shfl_xor_sync(0xffffffffu, {sum_}, offset);" for sum_ in edges),
                "}",
            )
