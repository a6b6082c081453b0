"""Rows in registers, by a block that walks them (copy = direct).

With stages = 2 the next row's loads travel while the present one is computed; Config says whether they do.
"""

from __future__ import annotations

from normgen.codegen.access import EDGE
from normgen.codegen.statements import Comment, ConfigSetting, Do, Gap, If, Let, Set, Statement, function
from normgen.codegen.transport.transport import Transport, fetch_if, fetch_later
from normgen.codegen.walk import Walk
from normgen.program.ir import Load


class RegisterAhead(Transport):
    """copy = direct in a loop over rows."""

    def constants(self) -> list[Let]:
        ahead = "the next row is loaded while the present one is computed"
        is_ahead = ConfigSetting("constexpr bool", "kAhead", "Config::kAhead", ahead, int(self.plan.fetches_ahead))
        return [*super().constants(), is_ahead]

    def start_fetching(self) -> list[Statement]:
        first = self.access.start_tile
        return [Gap(), *self._fetch(), fetch_if(self.access, self._call, first, "kAhead"), Gap()]

    def ask(self) -> list[Statement]:
        row = self.access.valid_row if self._by_row else self.access.tile
        return [If("!kAhead", (Do(f"fetch({row})"),), alone=True)]

    @property
    def _by_row(self) -> bool:
        """Whether `fetch` is told the row of its thread, or the tile."""
        return self.plan.rows_beside and not self.plan.one_shift and not self.access.walks_heads

    @property
    def _call(self) -> str:
        return f"fetch(Team::row({{}}, {self.access.end}))" if self._by_row else "fetch({})"

    def start(self) -> list[Statement]:
        """The row that was fetched becomes the present one, and the next is asked for."""
        access, held = self.access, self.plan.held
        moves = [Set(f"{h.name}_held[step]", f"{h.name}_next[step]") for h in held]
        edges = [Set(f"{h.name}_edge", f"{h.name}_edge_next") for h in held if self.plan.cut.edged]
        later = fetch_later(self.access, self._call, "next_row", access.behind(), "kAhead")
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
        row, found = ("row", []) if self._by_row else access.fetched_row()
        values = [Set(f"{value.name}_next", access.read_row_value(value.name, row)) for value in plan.fetched_rows]
        site = access.vector_site
        reads = [Set(f"{h.name}_next[step]", access.read_elem(h.name, site)) for h in plan.held]
        walk = Walk(head=reads, edge=access.edge_reads("{}_edge_next"))
        starts = [access.row_pointer(plan.problem.tensor(load.name), row) for load in plan.held]
        body = [*found, *starts, *values, *walk.statements(access)]
        why = "Prefetches a row into registers."
        return [*registers, Comment(why), function("fetch", f"int {'row' if self._by_row else access.tile}", body)]
