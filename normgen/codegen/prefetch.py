"""The next row in registers: its loads travel while the present one is computed (stages = 2, copy = direct)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normgen.codegen.looks import EDGE
from normgen.codegen.view import Loop, SectionList

if TYPE_CHECKING:
    from normgen.codegen.builder import KernelBuilder


def fetch_lines(builder: KernelBuilder) -> list[str]:
    """A lambda that starts the loads of a row tile; its registers are read one trip later."""
    lines = [f"{builder.vec(h.name)} {h.name}_next[kSteps];" for h in builder.held]
    if builder.layout.edged:
        lines += [f"{builder.vec(h.name, EDGE)} {h.name}_edge_next = {{}};" for h in builder.held]
    lines += [f"float {row.name}_next;" for row in builder.fetched_rows]
    lines += [
        "// The loads of the next row travel while this one is computed.",
        "const auto fetch = [&](int first_row) {",
        f"  const int fetched_row = {builder.fetched_row};",
    ]
    for load in builder.held:
        lines.append(f"  {builder.row_pointer(builder.problem.tensor(load.name), 'fetched_row')}")
    lines += [f"  {row.name}_next = {row.name}[fetched_row];" for row in builder.fetched_rows]
    body = [
        f"{h.name}_next[step] = {builder.read_elem(h.name, builder.schedule.load, builder.vector_site)};"
        for h in builder.held
    ]
    body = [*builder.column_line(body), *body]
    if builder.guard:
        body = [f"if ({builder.guard}) {{", *("  " + line for line in body), "}"]
    lines += [
        "  #pragma unroll",
        "  for (int step = 0; step < kSteps; ++step) {",
        "    const int vector = lane + step * kThreadsPerRow;",
        *("    " + line for line in body),
        "  }",
    ]
    if builder.layout.edged:
        lines += ["  if (has_edge) {", *("    " + line for line in builder.edge_reads("{}_edge_next")), "  }"]
    return [*lines, "};"]


def take_fetched(builder: KernelBuilder, out: SectionList) -> None:
    """The row that was fetched becomes the present one, and the next is asked for."""
    moves = tuple(f"{h.name}_held[step] = {h.name}_next[step];" for h in builder.held)
    out.loop(Loop(unroll="#pragma unroll", head=moves))
    if builder.layout.edged:
        out.lines(*(f"{h.name}_edge = {h.name}_edge_next;" for h in builder.held))
    out.lines(f"if (first_row + {builder.tile_stride} < rows) fetch(first_row + {builder.tile_stride});")
