"""The looks of a kernel at its row: what each look reads and computes, and its walk over a thread's vectors.

A thread owns the vectors `row_thread + step * kThreadsPerRow` of its row, in every look, so that a row held in
registers or in its own slots of shared memory needs no barrier between looks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from normgen.codegen.access import EDGE, SHIFTED, Access, Site
from normgen.codegen.columns import ColumnSums
from normgen.codegen.groups import Groups
from normgen.codegen.printer import PRODUCT, Printer
from normgen.codegen.reductions import steps_of
from normgen.codegen.statements import Do, Gap, If, Let, Set, Statement
from normgen.codegen.transport.transport import Transport
from normgen.codegen.walk import Walk
from normgen.program.functions import COL, ROW
from normgen.program.ir import Load, Map, Random, Store, names_of, used_names
from normgen.program.rewrites.named import away_from, named_columns
from normgen.schedule.plan import Elementwise, Waiting


@dataclass(frozen=True, kw_only=True)
class Elements:
    """How one look computes values of an element at a site.

    vectors  C text of the access that holds a tensor's elements, or random numbers
    waiting  the values that earlier looks left in registers
    left     those that this one leaves for later ones
    """

    access: Access
    site: Site
    vectors: Mapping[str, str]
    waiting: Collection[str]
    left: Collection[str] = ()

    def values(self, loop: Elementwise) -> list[Statement]:
        """All that `loop` does, in the order in which values need each other; then what is left for later looks."""
        leaves = [Set(self.floats(name), self.access.names[name]) for name in self.left]
        return [*self.reads(loop), *self.maps(loop.maps), *leaves]

    def reads(self, loop: Elementwise) -> list[Statement]:
        """Which column the element is in, the tensors' values there, and what was kept of it."""
        site = self.site
        column = site.at if site is EDGE else f"{site.at} + {site.index}"
        found: list[Statement] = [Let("const int", self.access.names[COL.name], column)]
        found += [self.let(s.name, f"element({self.vectors[s.name]}, {site.index})") for s in loop.sources]
        for name in loop.kept:
            found.append(self.let(name, self.floats(name) if name in self.waiting else f"{name}_kept[{site.index}]"))
        return found

    def maps(self, maps: Iterable[Map]) -> list[Statement]:
        printer = Printer(self.access.names_at(self.site))
        return [self.let(m.name, printer.text(m.expr)) for m in maps]

    def let(self, name: str, text: str) -> Let:
        """The value as a constant; the compiler does not compute again what is left for later looks."""
        return Let("const float", self.access.names[name], f"computed_once({text})" if name in self.left else text)

    def floats(self, name: str) -> str:
        """Where the value waits for later looks."""
        return f"{name}_edge_float" if self.site is EDGE else f"{name}_floats[step][{self.site.index}]"


class Looks:
    """The walks of one kernel."""

    def __init__(self, access: Access, transport: Transport, columns: ColumnSums) -> None:
        self.access = access
        self.plan = access.plan
        self.transport = transport
        self.columns = columns
        self.groups = Groups(access)

    def walks(self, look: int) -> list[Walk]:
        """One look at the whole row: a walk for each place where vectors wait; the last one ends with the edge."""
        if look < len(self.plan.looks):
            comment = self.access.states[look].doc.capitalize()
        else:
            comment = "Last pass: the outputs" if self.plan.looks else "One pass: the outputs"
        walks: list[Walk] = []
        for span in self.access.spans:
            walk = self.look_at(look, self.access.vector_site, span.place)
            if self.plan.cut.edged and span == self.access.spans[-1]:
                at_edge = self.look_at(look, EDGE, span.place)
                walk = replace(walk, edge=[*at_edge.head, *at_edge.peek, *at_edge.move, *at_edge.elem, *at_edge.tail])
            backwards = span.place is Waiting.RELOAD and self.plan.turns_back(look)
            walks.append(replace(walk, comment="" if walks else comment, span=span, backwards=backwards))
        return walks

    def kept_values(self) -> list[Statement]:
        """Where values of elements wait for later looks."""
        names = [name for found in self.plan.kept for name in found]
        edges = [Do(f"float {name}_edge_float = 0.0f") for name in names if self.plan.cut.edged]
        return [*(Do(f"float {name}_floats[kSteps][kVector]") for name in names), *edges]

    def look_at(self, look: int, site: Site, place: Waiting) -> Walk:
        """What look `look` does at a site."""
        roots = self.plan.look_roots(look)
        head: list[Statement] = [*self.access.places(site)]
        vectors = {
            source.name: self.drawn(source, head, site)
            if isinstance(source, Random)
            else self.vector_of(source, look, head, site, place)
            for source in self.plan.look_sources[look]
        }
        is_last = look == len(self.plan.looks)
        waiting = self.plan.waiting(look)
        elements = Elements(access=self.access, site=site, vectors=vectors, waiting=waiting)

        def values(wanted: set[str], kept: Collection[str] = waiting) -> list[Statement]:
            return elements.values(self.plan.elementwise(wanted, kept))

        groups = self.groups.walk(roots, values, waiting, vectors, is_last=is_last)
        loop = self.plan.elementwise(roots.union(self.plan.kept[look]), [*waiting, *groups.kept])
        if is_last:
            found = self.outputs(loop, head, elements)
            before, after = (*found.head, *groups.before), (*found.tail, *groups.tail)
            return replace(found, head=before, peek=groups.peek, move=groups.move, tail=after)
        group = self.plan.looks[look]
        by_vector = site is not EDGE and self.plan.cut.vector > 1
        steps = steps_of(self.access.states[look], group, self.access.names_at(site), site.index, by_vector=by_vector)
        peek: tuple[Statement, ...] = ()
        if steps.peek:
            peek = (*values({n for r in group if r.monoid.vector_step for n in used_names(r)}), *steps.peek)
        stored = self.written(self.plan.early_stores if look == 0 else (), {}, site)
        return Walk(
            head=(*head, *steps.before, *groups.before, *stored.head),
            peek=(*groups.peek, *peek),
            move=(*groups.move, *steps.move),
            elem=(*replace(elements, left=self.plan.kept[look]).values(loop), *stored.elem, *steps.elem),
            tail=(*stored.tail, *steps.after),
        )

    def outputs(self, loop: Elementwise, head: list[Statement], elements: Elements) -> Walk:
        """The last look: what is stored and what is summed over rows."""
        site = elements.site
        stored = {s.value for s in self.plan.late_stores}
        known = {m.name for m in loop.maps if m.name in stored and not self.is_read_in_loop(m.name, loop.maps)}

        def walk(maps: Sequence[Map]) -> Walk:
            written = self.written(self.plan.late_stores, {m.name: m for m in maps if m.name in known}, site)
            elem = [
                *elements.reads(loop),
                *elements.maps(m for m in maps if m.name not in known),
                *written.elem,
                *self.columns.elements(Printer(self.access.names_at(site)), site),
            ]
            return Walk(head=(*head, *written.head), elem=elem, tail=written.tail)

        found = walk(loop.maps)
        numbers = named_columns((m.expr for m in loop.maps), self.access.column_numbers)
        if not numbers or site is EDGE or self.plan.cut.vector == 1:
            return found
        # Without a branch 16 of 66 instructions of a vector of cross_entropy_grad compare its columns with the label.
        named = " || ".join(f"0 <= {number}_place && {number}_place < kVector" for number in numbers)
        plain = walk([replace(m, expr=away_from(numbers, m.expr)) for m in loop.maps])
        return replace(found, named=named, plain=plain.elem)

    def written(self, stores: Iterable[Store], inlined: Mapping[str, Map], site: Site) -> Walk:
        """What a walk does for the outputs that it writes; of `inlined` values the formula is written where they go."""
        printer = Printer(self.access.names_at(site))
        head: list[Statement] = []
        elem: list[Statement] = []
        tail: list[Statement] = []
        for store in stores:
            source = inlined.get(store.value)
            text = printer.text(source.expr) if source else self.access.names[store.value]
            head.append(Do(f"float {store.tensor}_values[{site.width}]"))
            if store.accumulate:
                before = f"{store.tensor}_before"
                read = self.access.read_elem(store.tensor, site, hinted=False)
                head.append(Let(f"const {self.access.vec(store.tensor, site)}", before, read))
                # its terms, added one by one, would each round at the size of what was there
                added = printer.operand(source.expr, PRODUCT) if source else text
                text = f"element({before}, {site.index}) + {added}"
            elem.append(Set(f"{store.tensor}_values[{site.index}]", text))
            tail += self.stores(store, site)
        return Walk(head=head, elem=elem, tail=tail)

    def is_read_in_loop(self, name: str, maps: list[Map]) -> bool:
        terms = (*self.plan.program.col_terms, *self.plan.elem_totals)
        readers = [*(m.expr for m in maps), *(term for _, term in terms)]
        return any(name in names_of(expr) for expr in readers)

    def vector_of(self, load: Load, look: int, head: list[Statement], site: Site, place: Waiting) -> str:
        """C text of the access that holds this load in this look; appends its read to `head` where needed."""
        tensor = load.name
        if load.roll:
            vector = f"Vec<{self.access.ctype(load.of)}, {site.width}>"
            head.append(Let(f"const {vector}", f"{tensor}_vec", self.access.read_rolled(load, site, place)))
            return f"{tensor}_vec"
        if not load.kind.by_row:
            read = self.access.read_param(tensor, site)
            if load in self.plan.config_params:
                head.append(If("!kEarlyParams", (Set(site.of(tensor), read),), alone=True))
            if load in (*self.plan.config_params, *self.plan.early_params):
                return site.of(tensor)
        elif place is Waiting.REGISTERS or (place is Waiting.SHARED and site is EDGE):
            return site.of(tensor)
        elif place is Waiting.SHARED:
            read = f"read<kVector>({self.transport.slot(tensor)})"
        else:  # earlier looks want it cached
            read = self.access.read_elem(tensor, site, hinted=look == len(self.plan.looks))
        head.append(Let(f"const {self.access.vec(tensor, site)}", f"{tensor}_vec", read))
        return f"{tensor}_vec"

    def drawn(self, random: Random, head: list[Statement], site: Site) -> str:
        """As `vector_of`, of random numbers: a vector of them costs a call for every four columns."""
        names, vector = self.access.names, f"{random.name}_vec"
        how = f"{site.width}, true" if site is SHIFTED else site.width
        call = f"random_numbers<{how}>({names[random.seed]}, {names[ROW.name]}, {site.at}, {random.draw})"
        head.append(Let(f"const Vec<float, {site.width}>", vector, call))
        return vector

    def stores(self, store: Store, site: Site) -> list[Statement]:
        tensor = store.tensor
        write = Do(self.access.write_elem(tensor, site))
        return [
            Do(f"{self.access.vec(tensor, site)} {tensor}_vec"),
            Do(f"pack({tensor}_vec, {tensor}_values)"),
            *self.access.if_wanted(
                store.tensor, If("active", (write,), alone=True) if self.plan.rows_beside else write
            ),
        ]

    def early_params(self) -> list[Statement]:
        """Column parameters come to registers, if the Config says so where it may."""
        params = self.plan.config_params or self.plan.early_params
        if not params:
            return []
        reads = {
            site: [Set(site.of(p.name), self.access.read_param(p.name, site)) for p in params]
            for site in self.access.sites
        }
        walk = Walk(head=reads[self.access.vector_site], edge=reads.get(EDGE, ()))
        reading = walk.statements(self.access)
        if self.plan.config_params:
            reading = [If("kEarlyParams", tuple(reading)), Gap()]
        return [*self.access.declarations(params, self.access.steps), *reading]
