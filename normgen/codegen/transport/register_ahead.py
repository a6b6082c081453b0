"""The next row in registers: its loads travel while the present one is computed (stages = 2, copy = direct)."""

from __future__ import annotations

from normgen.codegen.access import EDGE
from normgen.codegen.transport.transport import Transport, fetched_pointers, guarded
from normgen.codegen.view import Loop, SectionList
from normgen.program.ir import Load


class RegisterAhead(Transport):
    """copy = direct with stages = 2."""

    def start_fetching(self, out: SectionList) -> None:
        first = self.access.first_tile
        out.lines(*self._fetch_lines(), f"if ({first} < rows) fetch({first});")

    def start(self, out: SectionList) -> None:
        """The row that was fetched becomes the present one, and the next is asked for."""
        held = self.plan.held
        moves = tuple(f"{h.name}_held[step] = {h.name}_next[step];" for h in held)
        out.loop(Loop(unroll="#pragma unroll", head=moves))
        if self.plan.cut.edged:
            out.lines(*(f"{h.name}_edge = {h.name}_edge_next;" for h in held))
        following = f"first_row + {self.access.tile_stride}"
        out.lines(f"if ({following} < rows) fetch({following});")

    def row_value(self, load: Load) -> str:
        return f"{load.name}_next"

    def _fetch_lines(self) -> list[str]:
        """A lambda that starts the loads of a row tile; its registers are read one trip later."""
        access, plan = self.access, self.plan
        lines = [f"{access.vec(h.name)} {h.name}_next[kSteps];" for h in plan.held]
        if plan.cut.edged:
            lines += [f"{access.vec(h.name, EDGE)} {h.name}_edge_next = {{}};" for h in plan.held]
        lines += [f"float {row.name}_next;" for row in plan.fetched_rows]
        lines += [
            "// The loads of the next row travel while this one is computed.",
            "const auto fetch = [&](int first_row) {",
            f"  const int fetched_row = {access.fetched_row};",
            *fetched_pointers(access, plan.held),
        ]
        lines += [f"  {row.name}_next = {row.name}[fetched_row];" for row in plan.fetched_rows]
        site = access.vector_site
        body = [f"{h.name}_next[step] = {access.read_elem(h.name, plan.schedule.load, site)};" for h in plan.held]
        lines += [
            "  #pragma unroll",
            "  for (int step = 0; step < kSteps; ++step) {",
            "    const int vector = lane + step * kThreadsPerRow;",
            *("    " + line for line in guarded(access, [*access.column_line(body), *body])),
            "  }",
        ]
        if plan.cut.edged:
            lines += ["  if (has_edge) {", *("    " + line for line in access.edge_reads("{}_edge_next")), "  }"]
        return [*lines, "};"]
