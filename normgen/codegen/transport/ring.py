"""Asynchronous copies of rows to shared memory, by whichever technique.

A persistent grid keeps a ring of `stages` row tiles: while one is computed, the next are on their way. A slot is
filled again once its readers are done: with rows in shared memory after the last look; with rows in registers after
they have been read from it. With several slots the barrier of the first reduction proves that; the only slot is worth
a barrier of its own, so that the next row travels during the first look, too.
"""

from __future__ import annotations

from typing import Protocol

from normgen.codegen.access import EDGE, Access
from normgen.codegen.statements import Comment, Do, Gap, If, Let, Set, Statement, function, loop
from normgen.codegen.transport.direct import read_row
from normgen.codegen.transport.transport import Slots, Transport, fetch_if, fetch_later
from normgen.codegen.walk import Walk
from normgen.program.ir import Load
from normgen.schedule.plan import WARP, Waiting

EMPTY = "the slots are empty"


class Copier(Protocol):
    """One asynchronous copy technique.

    elected   "" or the condition of the thread that asks for a row, ready to be joined by &&
    commit    what comes behind the copies of a tile
    proves_arrival  whether readers must pass a barrier before a slot is filled again
    """

    slots: Slots
    elected: str
    commit: tuple[Statement, ...]
    proves_arrival: bool

    def constants(self) -> list[Let]: ...

    def shared(self) -> list[Statement]: ...

    def set_up(self) -> list[Statement]:
        """Before the first copy of a ring."""
        ...

    def fetch(self) -> list[Statement]:
        """The function that asks for a row tile."""
        ...

    def copy_row(self) -> list[Statement]:
        """Without a ring: ask for the only row tile of a block."""
        ...

    def wait(self) -> list[Statement]: ...

    def counters(self) -> list[Statement]:
        """What counts stages, before the row loop."""
        ...

    def next_stage(self) -> list[Statement]:
        """At the end of a row."""
        ...


class Ring(Transport):
    """copy = cp_async or bulk."""

    def __init__(self, access: Access, copier: Copier, *, reduction_frees: bool) -> None:
        super().__init__(access)
        self.copier = copier
        self.slots = copier.slots
        # Whether a slot waits for the barrier of the first row reduction, which proves that all threads have read it.
        self.reduction_frees = reduction_frees and self.plan.is_staged

    def constants(self) -> list[Let]:
        return [*self.slots.constants(), *self.copier.constants()]

    def shared(self) -> list[Statement]:
        return self.copier.shared()

    # ---- before the row loop -----------------------------------------------------------------------------------

    def prologue(self) -> list[Statement]:
        """Barriers, and the first row tiles on their way."""
        if not self.plan.copies_ahead:
            return []
        copier = self.copier
        return [
            *copier.set_up(),
            Gap(),
            *copier.fetch(),
            *self._fetch_values(),
            *self._first_fetches(),
            *copier.counters(),
            Gap(),
        ]

    def _fetch_values(self) -> list[Statement]:
        """What a thread needs of the next row beside its vectors waits in registers."""
        if not self._fetches_values:
            return []
        access, plan = self.access, self.plan
        edges = [ld for ld in plan.held if plan.cut.edged]
        registers: list[Statement] = [Do(f"float {r.name}_next") for r in plan.fetched_rows]
        registers += [Do(f"{access.vec(ld.name, EDGE)} {ld.name}_edge_next = {{}}") for ld in edges]
        row, body = access.fetched_row()
        body += [Set(f"{r.name}_next", access.read_row_value(r.name, row)) for r in plan.fetched_rows]
        if edges:
            body += [access.row_pointer(plan.problem.tensor(ld.name), row) for ld in edges]
            body.append(If("has_edge", access.edge_reads("{}_edge_next")))
        return [*registers, function("fetch_values", f"int {access.tile}", body)]

    @property
    def _fetches_values(self) -> bool:
        return self.plan.cut.edged or bool(self.plan.fetched_rows)

    def _first_fetches(self) -> list[Statement]:
        first = self.access.start_tile
        values = [fetch_if(self.access, "fetch_values({})", first)] if self._fetches_values else []
        copier = self.copier
        if not self.plan.is_staged:
            return [fetch_if(self.access, "fetch({})", first, copier.elected), *copier.commit, *values]
        tile = [
            Let("const int", self.access.tile, self.access.behind(first, tiles="stage")),
            fetch_if(self.access, "fetch({}, stage)", self.access.tile, copier.elected),
            *copier.commit,
        ]
        return [loop("stage", "kStages", tile, unroll="#pragma unroll 1"), *values]

    # ---- within a row ------------------------------------------------------------------------------------------

    def start(self) -> list[Statement]:
        """Ask for what no copy is under way for: with one row tile a block, for all of it."""
        if self.plan.copies_ahead:
            return self._next_values()
        return [*self.copier.copy_row(), *read_row(self)]

    def row_value(self, load: Load) -> str:
        return f"{load.name}_next" if self.plan.copies_ahead else super().row_value(load)

    def _next_values(self) -> list[Statement]:
        """The next row's values are asked for as soon as this row's have been taken."""
        if not self._fetches_values:
            return []
        edges = [Set(f"{ld.name}_edge", f"{ld.name}_edge_next") for ld in self.plan.held if self.plan.cut.edged]
        return [*edges, *fetch_later(self.access, "fetch_values({})", "next_row", self.access.behind())]

    def arrive(self) -> list[Statement]:
        """Wait for this row; rows that are held in registers leave their slots."""
        wait = [Gap(), *self.copier.wait()]
        if self.plan.places != (Waiting.REGISTERS,):
            return wait
        leave = [*wait, *Walk(head=self.slots.reads()).statements(self.access)]
        if not self.copier.proves_arrival:
            return [*leave, *self._refill()]
        return leave if self.reduction_frees else [*leave, *self._release(), *self._refill()]

    def after_first_look(self) -> list[Statement]:
        in_registers = self.plan.places == (Waiting.REGISTERS,)
        if not (self.plan.copies_ahead and self.copier.proves_arrival and in_registers and self.reduction_frees):
            return []
        return [Comment("Every thread of the row has passed a barrier since it read its slots."), *self._refill()]

    def after_last_look(self) -> list[Statement]:
        if not self.plan.copies_ahead:
            return []
        refill: list[Statement] = []
        if self.plan.places == (Waiting.SHARED,):
            refill = [*(self._release() if self.copier.proves_arrival else []), *self._refill()]
        return [*refill, *self.copier.next_stage()]

    def _release(self) -> list[Statement]:
        """The barrier between the last read of a slot and the copy that fills it again."""
        threads = self.plan.schedule.threads_per_row
        if threads == 1:
            return []
        if threads <= WARP:
            return [Do("__syncwarp()", EMPTY)]
        if self.plan.row_barriers:
            return [Do("named_barrier(1 + block_row, kThreadsPerRow)", EMPTY)]
        return [Do("__syncthreads()", EMPTY)]

    def _refill(self) -> list[Statement]:
        """The slots get the row tile that is `stages` trips ahead."""
        ahead = self.access.behind(tiles="kStages")
        call, row = ("fetch({}, stage)", ahead) if self.plan.is_staged else ("fetch({})", self.access.behind())
        return [*fetch_later(self.access, call, "refill_row", row, self.copier.elected), *self.copier.commit]


def fetch_parameters(access: Access) -> str:
    """The parameters of a `fetch` function."""
    return f"int {access.tile}{', int stage' if access.plan.is_staged else ''}"
