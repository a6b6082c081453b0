"""The looks of a kernel at its row: what each look reads and computes, and its loop over a thread's vectors.

A thread owns the vectors `lane + step * kThreadsPerRow` of its row, in every look, so that a row held in
registers or in its own slots of shared memory needs no barrier between looks.
"""

from __future__ import annotations

from dataclasses import replace

from normgen.codegen.access import EDGE, Access, Site
from normgen.codegen.columns import Columns
from normgen.codegen.printer import Printer
from normgen.codegen.reductions import steps_of
from normgen.codegen.transport.transport import Transport
from normgen.codegen.view import Loop, SectionList
from normgen.program.ir import Load, Map, Store, names_of, used_names
from normgen.schedule.plan import Place


class Looks:
    """The loops of one kernel."""

    def __init__(self, access: Access, transport: Transport, columns: Columns) -> None:
        self.access = access
        self.plan = access.plan
        self.transport = transport
        self.columns = columns

    def look_loops(self, look: int) -> list[Loop]:
        """One look at the whole row: a loop for each place where vectors wait; the last one ends with the edge."""
        if look < len(self.plan.looks):
            comment = self.access.states[look].doc
        else:
            comment = "Last look: the outputs" if self.plan.looks else "One look: the outputs"
        loops: list[Loop] = []
        for span in self.access.spans:
            body = self.look_pass(look, self.access.vector_site, span.place)
            edge: tuple[str, ...] = ()
            if self.plan.cut.edged and span == self.access.spans[-1]:
                edge = self.look_pass(look, EDGE, span.place).texts()
            loops.append(
                replace(
                    body,
                    comment="" if loops else comment,
                    unroll=span.unroll,
                    guard=self.access.guard,
                    head=(*self.access.column_line(body.texts()), *body.head),
                    edge=edge,
                    first=span.first,
                    last=span.last,
                )
            )
        return loops

    def look_pass(self, look: int, site: Site, place: Place) -> Loop:
        """What look `look` does at a site, without what goes round it."""
        loads, maps = self.plan.elementwise(self.plan.look_roots(look))
        head: list[str] = []
        vectors = {load.name: self.vector_of(load, look, head, site, place) for load in loads}
        if look == len(self.plan.looks):
            return self.output_pass(maps, head, self.element_lines(loads, [], vectors, site), site)
        group = self.plan.looks[look]
        by_vector = site is not EDGE and self.plan.cut.vector > 1
        steps = steps_of(self.access.states[look], group, self.access.names, by_vector=by_vector)
        peek: tuple[str, ...] = ()
        if steps.peek:
            roots = {n for r in group if r.monoid.vector_step for n in used_names(r)}
            peek = (*self.element_lines(*self.plan.elementwise(roots), vectors, site), *steps.peek)
        return Loop(
            head=(*head, *steps.before),
            peek=peek,
            move=steps.move,
            elem=(*self.element_lines(loads, maps, vectors, site), *steps.elem),
        )

    def element_lines(self, loads: list[Load], maps: list[Map], vectors: dict[str, str], site: Site) -> list[str]:
        """The values of one element: of `loads` from their vectors, and of `maps`."""
        names, printer = self.access.names, Printer(self.access.names)
        lines = [f"const float {names[ld.name]} = element({vectors[ld.name]}, {site.index});" for ld in loads]
        return lines + [f"const float {names[m.name]} = {printer.text(m.expr)};" for m in maps]

    def output_pass(self, maps: list[Map], head: list[str], elem: list[str], site: Site) -> Loop:
        """The last look: what is stored and what is summed over rows; `elem` reads its elements."""
        printer = Printer(self.access.names)
        stored = {s.value for s in self.plan.elem_stores}
        inlined = {m.name: m for m in maps if m.name in stored and not self.is_read_in_loop(m.name, maps)}
        elem += self.element_lines([], [m for m in maps if m.name not in inlined], {}, site)
        tail: list[str] = []
        for store in self.plan.elem_stores:
            source = inlined.get(store.value)
            text = printer.text(source.expr) if source else self.access.names[store.value]
            head.append(f"float {store.tensor}_values[{site.width}];")
            if store.accumulate:
                before = f"{store.tensor}_before"
                read = self.access.read_elem(store.tensor, "default", site)
                head.append(f"const {self.access.vec(store.tensor, site)} {before} = {read};")
                text = f"element({before}, {site.index}) + {text}"
            elem.append(f"{store.tensor}_values[{site.index}] = {text};")
            tail += self.store_lines(store, site)
        elem += self.columns.elem_lines(printer, site)
        return Loop(head=tuple(head), elem=tuple(elem), tail=tuple(tail))

    def is_read_in_loop(self, name: str, maps: list[Map]) -> bool:
        readers = [*(m.expr for m in maps), *(term for _, term in self.plan.program.col_terms)]
        return any(name in names_of(expr) for expr in readers)

    def vector_of(self, load: Load, look: int, head: list[str], site: Site, place: Place) -> str:
        """C text of the access that holds this load in this look; appends its read to `head` where needed."""
        tensor = load.name
        if not load.kind.by_row:
            if load in self.plan.early_params:
                return site.of(tensor)
            read = self.access.read_param(tensor, site)
        elif place is Place.REGISTERS or (place is Place.SHARED and site is EDGE):
            return site.of(tensor)
        elif place is Place.SHARED:
            read = f"read_default<kVector>({self.transport.slot(tensor)})"
        else:  # earlier looks want it cached
            hint = self.plan.schedule.load if look == len(self.plan.looks) else "default"
            read = self.access.read_elem(tensor, hint, site)
        head.append(f"const {self.access.vec(tensor, site)} {tensor}_vec = {read};")
        return f"{tensor}_vec"

    def store_lines(self, store: Store, site: Site) -> list[str]:
        tensor = store.tensor
        write = f"write_{self.plan.schedule.store}({tensor}_row + {site.at}, {tensor}_vec);"
        return [
            f"{self.access.vec(tensor, site)} {tensor}_vec;",
            f"pack({tensor}_vec, {tensor}_values);",
            f"if (active) {write}" if self.plan.idle_rows else write,
        ]

    def param_loops(self, out: SectionList) -> None:
        if not self.plan.early_params:
            return
        out.lines(*self.access.declarations(self.plan.early_params, "kSteps"))
        reads = {
            site: [f"{site.of(p.name)} = {self.access.read_param(p.name, site)};" for p in self.plan.early_params]
            for site in self.access.sites
        }
        head = reads[self.access.vector_site]
        out.loop(
            Loop(
                unroll="#pragma unroll",
                guard=self.access.guard,
                head=(*self.access.column_line(head), *head),
                edge=tuple(reads.get(EDGE, ())),
            )
        )
