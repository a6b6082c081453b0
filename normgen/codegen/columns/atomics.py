"""Sums by atomics: every element to the workspace, or to a row in shared memory first; the last block finishes."""

from __future__ import annotations

from normgen.codegen.access import Site
from normgen.codegen.columns.sums import Finish, Gather
from normgen.codegen.module import Param, Source
from normgen.codegen.view import SectionList
from normgen.schedule.plan import TICKET_BYTES


class Straight(Gather):
    """atomic: every row adds straight to the workspace (the plain kernel of the literature)."""

    base = "sums"

    def add_line(self, index: int, term: str, site: Site) -> str:
        column = site.at if site.at == "edge" else f"{site.at} + i"
        return f"atomicAdd({self.base} + {self.cells.start(index)}{column}, {term});"


class SharedRow(Straight):
    """shared_atomic: rows are added to a float32 row in shared memory, which the block adds to the workspace."""

    base = "column_sums"

    @property
    def _count(self) -> str:
        return f"{len(self.cells.names)} * kPitch"

    def prologue(self, out: SectionList) -> None:
        out.lines(
            f"for (int i = threadIdx.x; i < {self._count}; i += kThreads) column_sums[i] = 0.0f;",
            "__syncthreads();",
        )

    def epilogue(self, out: SectionList) -> None:
        out.lines(
            "__syncthreads();",
            f"for (int cell = threadIdx.x; cell < {self._count}; cell += kThreads) {{",
            "  atomicAdd(sums + cell, column_sums[cell]);",
            "}",
        )


class Ticket(Finish):
    """The last block to arrive converts the sums, and zeroes the workspace again."""

    def params(self) -> list[Param]:
        return [
            Param(name="ticket", ctype="unsigned*", source=Source.WORKSPACE),
            Param(name="sums", ctype="float*", source=Source.WORKSPACE, offset=TICKET_BYTES),
        ]

    def hand_on(self, index: int, cell: str, value: str, *, walker: str) -> str:
        return f"atomicAdd(sums + {self.cells.start(index)}{cell}, {value});"

    def epilogue(self, out: SectionList) -> None:
        cells = self.cells
        lines = [
            "// The last block to arrive finishes and leaves the workspace ready for the next call.",
            "__threadfence();",
            "__shared__ bool is_last;",
            "__syncthreads();",
            "if (threadIdx.x == 0) is_last = atomicAdd(ticket, 1u) + 1 == gridDim.x;",
            "__syncthreads();",
            "if (is_last) {",
            "  __threadfence();",
            f"  for (int cell = threadIdx.x; cell < {cells.access.cols}; cell += {cells.plan.schedule.threads}) {{",
            f"    const int column = {cells.column_of_cell};",
        ]
        for index, store in enumerate(cells.stores):
            name = cells.names[index]
            lines.append(f"    const float {name}_total = load_cache_global(sums + {cells.start(index)}cell);")
            lines.append(f"    sums[{cells.start(index)}cell] = 0.0f;")
            lines += ["    " + line for line in cells.write_lines(store, f"{name}_total")]
        out.lines(*lines, "  }", "  if (threadIdx.x == 0) *ticket = 0;", "}")
