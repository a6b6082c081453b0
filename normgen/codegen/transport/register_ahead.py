"""The next row in registers: its loads travel while the present one is computed (stages = 2, copy = direct)."""

from __future__ import annotations

from normgen.codegen.access import EDGE
from normgen.codegen.statements import Comment, Do, Gap, Statement, function
from normgen.codegen.transport.transport import Transport, fetch_if, fetch_later, fetched, next_row
from normgen.codegen.walk import Walk
from normgen.program.ir import Load


class RegisterAhead(Transport):
    """copy = direct with stages = 2."""

    def start_fetching(self) -> list[Statement]:
        first = self.access.first_tile
        return [Gap(), *self._fetch(), fetch_if(self.access, "fetch({})", first), Gap()]

    def start(self) -> list[Statement]:
        """The row that was fetched becomes the present one, and the next is asked for."""
        access, held = self.access, self.plan.held
        moves = [Do(f"{h.name}_held[step] = {h.name}_next[step]") for h in held]
        edges = [Do(f"{h.name}_edge = {h.name}_edge_next") for h in held if self.plan.cut.edged]
        later = fetch_later(self.access, "fetch({})", "next_row", next_row(access))
        return [*Walk(head=moves, always=True).statements(access), *edges, *later]

    def row_value(self, load: Load) -> str:
        return f"{load.name}_next"

    def _fetch(self) -> list[Statement]:
        """A function that starts the loads of a row tile; its registers are read one trip later."""
        access, plan = self.access, self.plan
        registers: list[Statement] = [Do(f"{access.vec(h.name)} {h.name}_next[kSteps]") for h in plan.held]
        if plan.cut.edged:
            registers += [Do(f"{access.vec(h.name, EDGE)} {h.name}_edge_next = {{}}") for h in plan.held]
        registers += [Do(f"float {row.name}_next") for row in plan.fetched_rows]
        row, _ = access.fetched_row()
        values = [Do(f"{value.name}_next = {access.read_row_value(value.name, row)}") for value in plan.fetched_rows]
        site = access.vector_site
        reads = [Do(f"{h.name}_next[step] = {access.read_elem(h.name, site)}") for h in plan.held]
        walk = Walk(head=reads, edge=access.edge_reads("{}_edge_next"))
        body = [*fetched(access), *values, *walk.statements(access)]
        why = "The next row is loaded while the present one is computed."
        return [*registers, Comment(why), function("fetch", f"int {access.tile}", body)]
