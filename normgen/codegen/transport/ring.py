"""Asynchronous copies of rows to shared memory, by whichever technique.

A persistent grid keeps a ring of `stages` row tiles: while one is computed, the next are on their way. A slot is
filled again once its readers are done: with rows in registers after they have been read from it, with rows in
shared memory after the last look.
"""

from __future__ import annotations

from typing import Protocol

from normgen.codegen.access import EDGE, Access
from normgen.codegen.transport.direct import read_row
from normgen.codegen.transport.transport import Slots, Transport
from normgen.codegen.view import Loop, SectionList
from normgen.program.ir import Load
from normgen.schedule.plan import WARP, Place


class Copier(Protocol):
    """One asynchronous copy technique.

    elected   "" or the condition of the thread that asks for a row, ready to be joined by &&
    commit    lines behind the copies of a tile
    proves_arrival  whether readers must pass a barrier before a slot is filled again
    """

    slots: Slots
    elected: str
    commit: tuple[str, ...]
    proves_arrival: bool

    def constants(self) -> list[tuple[str, str, str]]: ...

    def shared_lines(self) -> tuple[str, ...]: ...

    def set_up(self, out: SectionList) -> None:
        """Before the first copy of a ring."""

    def fetch_lines(self) -> list[str]:
        """The function that asks for a row tile."""
        ...

    def copy_row(self, out: SectionList) -> None:
        """Without a ring: ask for the only row tile of a block."""

    def wait_line(self) -> str: ...

    def counters(self) -> list[str]:
        """What counts stages, before the row loop."""
        ...

    def next_stage(self) -> list[str]:
        """At the end of a row."""
        ...


class Ring(Transport):
    """copy = cp_async or bulk."""

    def __init__(self, access: Access, copier: Copier, *, reduction_frees: bool) -> None:
        super().__init__(access)
        self.copier = copier
        self.slots = copier.slots
        # Whether the barrier of the first row reduction proves that all threads have emptied the slots.
        self.reduction_frees = reduction_frees

    def constants(self) -> list[tuple[str, str, str]]:
        return [*self.slots.constants(), *self.copier.constants()]

    def shared_lines(self) -> tuple[str, ...]:
        return self.copier.shared_lines()

    # ---- before the row loop -----------------------------------------------------------------------------------

    def prologue(self, out: SectionList) -> None:
        """Barriers, and the first row tiles on their way."""
        if not self.plan.copies_ahead:
            return
        self.copier.set_up(out)
        out.lines(*self.copier.fetch_lines(), *self._row_value_lines(), *self._first_fetches())

    def _row_value_lines(self) -> list[str]:
        """What a thread needs of the next row beside its vectors waits in registers."""
        if not self._fetches_values:
            return []
        access, plan = self.access, self.plan
        edges = [ld for ld in plan.held if plan.cut.edged]
        lines = [f"float {r.name}_next;" for r in plan.fetched_rows]
        lines += [f"{access.vec(ld.name, EDGE)} {ld.name}_edge_next = {{}};" for ld in edges]
        lines += ["const auto fetch_values = [&](int first_row) {", f"  const int fetched_row = {access.fetched_row};"]
        lines += [f"  {r.name}_next = {r.name}[fetched_row];" for r in plan.fetched_rows]
        if edges:
            lines += [f"  {access.row_pointer(plan.problem.tensor(ld.name), 'fetched_row')}" for ld in edges]
            reads = access.edge_reads("{}_edge_next")
            lines += ["  if (has_edge) {", *("    " + line for line in reads), "  }"]
        return [*lines, "};"]

    @property
    def _fetches_values(self) -> bool:
        return self.plan.cut.edged or bool(self.plan.fetched_rows)

    def _first_fetches(self) -> list[str]:
        first, stride = self.access.first_tile, self.access.tile_stride
        elected = f"{self.copier.elected} && " if self.copier.elected else ""
        values = [f"if ({first} < rows) fetch_values({first});"] if self._fetches_values else []
        counters = self.copier.counters()
        if not self.plan.is_staged:
            return [f"if ({elected}{first} < rows) fetch({first});", *self.copier.commit, *values, *counters]
        return [
            "#pragma unroll 1",
            "for (int stage = 0; stage < kStages; ++stage) {",
            f"  const int first_row = {first} + stage * {stride};",
            f"  if ({elected}first_row < rows) fetch(first_row, stage);",
            *("  " + line for line in self.copier.commit),
            "}",
            *values,
            *counters,
        ]

    # ---- within a row ------------------------------------------------------------------------------------------

    def start(self, out: SectionList) -> None:
        """Ask for what no copy is under way for: with one row tile a block, for all of it."""
        if self.plan.copies_ahead:
            self._next_values(out)
            return
        self.copier.copy_row(out)
        read_row(self, out)

    def row_value(self, load: Load) -> str:
        return f"{load.name}_next" if self.plan.copies_ahead else super().row_value(load)

    def _next_values(self, out: SectionList) -> None:
        """The next row's values are asked for as soon as this row's have been taken."""
        if not self._fetches_values:
            return
        following = f"first_row + {self.access.tile_stride}"
        edges = [f"{ld.name}_edge = {ld.name}_edge_next;" for ld in self.plan.held if self.plan.cut.edged]
        out.lines(*edges, f"if ({following} < rows) fetch_values({following});")

    def arrive(self, out: SectionList) -> None:
        """Wait for this row; rows that are held in registers leave their slots."""
        out.lines(self.copier.wait_line())
        if self.plan.places != (Place.REGISTERS,):
            return
        out.loop(Loop(unroll="#pragma unroll", guard=self.access.guard, head=self.slots.reads()))
        if not self.copier.proves_arrival:
            out.lines(*self._refill())
        elif not self.reduction_frees:
            out.lines(*self._release(), *self._refill())

    def after_first_look(self, out: SectionList) -> None:
        in_registers = self.plan.places == (Place.REGISTERS,)
        if self.plan.copies_ahead and self.copier.proves_arrival and in_registers and self.reduction_frees:
            out.lines("// Every thread of the row has passed a barrier since it read its slots.", *self._refill())

    def after_last_look(self, out: SectionList) -> None:
        if not self.plan.copies_ahead:
            return
        if self.plan.places == (Place.SHARED,):
            out.lines(*(self._release() if self.copier.proves_arrival else []), *self._refill())
        out.lines(*self.copier.next_stage())

    def _release(self) -> list[str]:
        """The barrier between the last read of a slot and the copy that fills it again."""
        why = "  // the slots are empty"
        threads = self.plan.schedule.threads_per_row
        if threads == 1:
            return []
        if threads <= WARP:
            return ["__syncwarp();" + why]
        if self.plan.row_barriers:
            return ["named_barrier(1 + slot, kThreadsPerRow);" + why]
        return ["__syncthreads();" + why]

    def _refill(self) -> list[str]:
        staged = self.plan.is_staged
        ahead = f"first_row + {'kStages * ' if staged else ''}{self.access.tile_stride}"
        elected = f"{self.copier.elected} && " if self.copier.elected else ""
        return [
            f"if ({elected}{ahead} < rows) fetch({ahead}{', stage' if staged else ''});",
            *self.copier.commit,
        ]


def fetch_head(access: Access, who: str) -> list[str]:
    """The first lines of a `fetch` function."""
    parameters = "int first_row, int stage" if access.plan.is_staged else "int first_row"
    return [who, f"const auto fetch = [&]({parameters}) {{", f"  const int fetched_row = {access.fetched_row};"]
