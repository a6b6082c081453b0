"""Rows by plain loads: each thread reads its vectors to where they wait, when their row begins."""

from __future__ import annotations

from normgen.codegen.transport.transport import Transport
from normgen.codegen.view import Loop, SectionList
from normgen.schedule.plan import Place


class Direct(Transport):
    """copy = direct."""

    def start(self, out: SectionList) -> None:
        read_row(self, out)


def read_row(transport: Transport, out: SectionList) -> None:
    """Read the whole row before the first look, but for what asynchronous copies bring."""
    access, plan = transport.access, transport.plan
    names = " and ".join(load.name for load in plan.held)
    for span in access.spans if plan.held else ():
        in_registers = span.place is Place.REGISTERS
        head = []
        for load in plan.held:
            read = access.read_elem(load.name, plan.schedule.load, access.vector_site)
            to_shared = f"write_default({transport.slot(load.name)}, {read});"
            head.append(f"{access.vector_site.of(load.name)} = {read};" if in_registers else to_shared)
        if plan.copies and not in_registers:
            continue
        where = "registers" if in_registers else "shared memory"
        what = f"The row of {names} is read once and waits" if span.first == "0" else "The rest of it waits"
        out.loop(
            Loop(
                comment=f"{what} in {where}; each thread reads back its own part.",
                unroll=span.unroll,
                guard=access.guard,
                head=(*access.column_line(head), *head),
                edge=access.edge_reads("{}_edge") if span == access.spans[-1] else (),
                first=span.first,
                last=span.last,
            )
        )
