"""Rows by plain loads: each thread reads its vectors to where they wait, when their row begins."""

from __future__ import annotations

from normgen.codegen.statements import Do, Statement
from normgen.codegen.transport.transport import Transport
from normgen.codegen.walk import Walk
from normgen.schedule.plan import Waiting


class Direct(Transport):
    """copy = direct."""

    def start(self) -> list[Statement]:
        return read_row(self)


def read_row(transport: Transport) -> list[Statement]:
    """Read the whole row before the first look, but for what asynchronous copies bring."""
    access, plan = transport.access, transport.plan
    names = " and ".join(load.name for load in plan.held)
    found: list[Statement] = []
    for span in access.spans if plan.held else ():
        in_registers = span.place is Waiting.REGISTERS
        head: list[Statement] = []
        for load in plan.held:
            read = access.read_elem(load.name, access.vector_site)
            to_shared = f"write({transport.slot(load.name)}, {read})"
            head.append(Do(f"{access.vector_site.of(load.name)} = {read}" if in_registers else to_shared))
        if plan.copies and not in_registers:
            continue
        where = "registers" if in_registers else "shared memory"
        waits = "its first vectors wait" if len(access.spans) > 1 else "it waits"
        what = f"Read the row of {names} once; {waits}" if span.first == "0" else "The rest of it waits"
        edge = access.edge_reads("{}_edge") if span == access.spans[-1] else ()
        comment = f"{what} in {where}."
        found += Walk(comment=comment, head=head, edge=edge, span=span).statements(access)
    return found
