"""The looks of a kernel at its row: how a row is cut, what each look needs, and its loop over a thread's vectors.

A thread owns the vectors `lane + step * kThreadsPerRow` of its row, in every look, so that a row held in
registers or in its own slots of shared memory needs no barrier between looks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from normgen.codegen.columns import ColumnSums
from normgen.codegen.module import Param, Source
from normgen.codegen.printer import Printer
from normgen.codegen.reductions import CONSTANTS, state_of, steps_of
from normgen.codegen.spelling import unmarked
from normgen.codegen.view import Loop, SectionList, State
from normgen.problem.problem import Problem
from normgen.program.ir import COLS, Load, Map, Reduce, RowProgram, Store, names_of, stage_of, used_names, value_kinds
from normgen.schedule.knobs import Edges, Hold, Params
from normgen.schedule.legality import register_steps
from normgen.schedule.schedule import Schedule
from normgen.spec.spec import Kind

if TYPE_CHECKING:
    from normgen.codegen.ring import Ring


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a row is cut: whole vectors, lanes that share them, steps a lane takes; the edge that is left over.

    The edge of a row is what no whole aligned vector covers: fewer than `vector` elements behind the vectors, and as
    few before them where rows start anywhere. Each lane owns at most one of them.
    """

    vector: int
    lanes: int
    vectors: int  # the most whole vectors a row has
    steps: int
    shifted: bool  # rows may start between two aligned vectors (edges = peel)
    edged: bool  # a row may have an edge

    @property
    def ragged(self) -> bool:
        """Some lanes have no vector in the last step."""
        return self.steps * self.lanes != self.vectors


def layout_of(problem: Problem, schedule: Schedule) -> Layout:
    vectors = problem.cols // schedule.vector
    lanes = schedule.threads_per_row * schedule.row_blocks
    return Layout(
        vector=schedule.vector,
        lanes=lanes,
        vectors=vectors,
        steps=-(-vectors // lanes),
        shifted=schedule.edges is Edges.PEEL,
        edged=schedule.edges is not Edges.EXACT,
    )


@dataclass(frozen=True, kw_only=True)
class Span:
    """Steps of a thread whose vectors wait in one place between looks."""

    place: str  # registers | shared | reload
    unroll: str
    first: str = "0"
    last: str = ""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where in its row a thread works: at one of its vectors, or at its element of the edge.

    width  elements of an access
    index  the element within it
    at     the column it starts at
    held   what a held access is called, of a tensor's name
    """

    width: str
    index: str
    at: str
    held: str

    def of(self, tensor: str) -> str:
        return self.held.format(tensor)


ALIGNED = Site(width="kVector", index="i", at="vector * kVector", held="{}_held[step]")
SHIFTED = Site(width="kVector", index="i", at="column", held="{}_held[step]")
EDGE = Site(width="1", index="0", at="edge", held="{}_edge")


class Looks:
    """What a kernel reads and computes in each look, and the text of its loops."""

    columns: ColumnSums
    ring: Ring

    def __init__(self, problem: Problem, program: RowProgram, schedule: Schedule, name: str) -> None:
        self.problem = problem
        self.program = program
        self.schedule = schedule
        self.name = name
        self.layout = layout_of(problem, schedule)
        self.kinds = value_kinds(program)
        self.stages = stage_of(program)
        self.idle_rows = schedule.rows_per_block > 1
        self.cols = "cols" if problem.any_cols else "kCols"

    # ---- facts -------------------------------------------------------------------------------------------------

    @cached_property
    def groups(self) -> list[tuple[Reduce, ...]]:
        """Row reductions by stage: the reductions of one stage share one look and one exchange."""
        by_stage: dict[int, list[Reduce]] = {}
        for reduce in self.program.row_reduces:
            by_stage.setdefault(self.stages[reduce.names[0]], []).append(reduce)
        return [tuple(by_stage[s]) for s in sorted(by_stage)]

    @cached_property
    def states(self) -> list[State]:
        return [state_of(i, group) for i, group in enumerate(self.groups, start=1)]

    @cached_property
    def elem_stores(self) -> tuple[Store, ...]:
        return tuple(s for s in self.program.stores if s.kind is Kind.ELEM)

    @cached_property
    def names(self) -> dict[str, str]:
        """C text of every value inside an element loop; its order (elem, row, col) orders printed terms."""
        names = dict(CONSTANTS)
        state_text = {n: f"{st.variable}.{n}" for st in self.states for n in st.components}
        for name, kind in self.kinds.items():
            if kind is Kind.ELEM:
                names[name] = f"{name}_i"
        for name, kind in self.kinds.items():
            if kind is Kind.ROW:
                names[name] = state_text.get(name) or self.row_name(name)
            elif kind is Kind.SCALAR:
                names[name] = name
        names[COLS.name] = self.cols
        for name, kind in self.kinds.items():
            if kind is Kind.COL:
                names[name] = f"{name}_i"
        return names

    def row_name(self, value: str) -> str:
        """The variable of a row value: `row_mean`, but not `row_row_max` unless a pointer has that name."""
        says_row = unmarked(value).startswith("row_") and value not in self.problem.present
        return value if says_row else f"row_{value}"

    def elementwise(self, roots: set[str]) -> tuple[list[Load], list[Map]]:
        """The loads and elem-level maps a loop must run to have `roots`, in program order."""
        found = set(roots)
        maps: list[Map] = []
        for statement in reversed(self.program.statements):
            wide = isinstance(statement, Map) and statement.kind in (Kind.ELEM, Kind.COL)
            if wide and isinstance(statement, Map) and statement.name in found:
                found |= used_names(statement)
                maps.insert(0, statement)
        loads = [ld for ld in self.program.loads if ld.name in found and ld.kind in (Kind.ELEM, Kind.COL)]
        return loads, maps

    def look_roots(self, look: int) -> set[str]:
        """Names the loop of look `look` (0-based; the last one writes) starts from."""
        if look < len(self.groups):
            return {n for r in self.groups[look] for n in used_names(r)}
        roots = {s.value for s in self.elem_stores}
        return roots.union(*(names_of(term) for _, term in self.program.col_terms))

    @cached_property
    def look_loads(self) -> list[list[Load]]:
        return [self.elementwise(self.look_roots(i))[0] for i in range(len(self.groups) + 1)]

    @cached_property
    def held(self) -> tuple[Load, ...]:
        """Elem loads that wait between looks (or are all read up front)."""
        if self.schedule.hold is Hold.RELOAD:
            return ()
        wanted = {ld.name for loads in self.look_loads for ld in loads}
        return tuple(ld for ld in self.program.loads if ld.kind is Kind.ELEM and ld.name in wanted)

    @cached_property
    def early_params(self) -> tuple[Load, ...]:
        if self.schedule.params is Params.LATE:
            return ()
        wanted = {ld.name for loads in self.look_loads for ld in loads}
        return tuple(ld for ld in self.program.loads if ld.kind is Kind.COL and ld.name in wanted)

    @cached_property
    def params(self) -> tuple[Param, ...]:
        """Pointers in the problem's order, pitches of elem tensors, sizes, scalars."""
        params = []
        for t in self.problem.tensors:
            const = "" if t.is_written else "const "
            ctype, stable = f"{const}{t.dtype.ctype}*", t.name in self.problem.stable_tensors
            params.append(Param(name=t.name, ctype=ctype, source=Source.TENSOR, key=t.name, stable=stable))
        for t in self.problem.elem_tensors:
            params.append(Param(name=f"{t.name}_pitch", ctype="long long", source=Source.PITCH, key=t.name))
        params.append(Param(name="rows", ctype="int", source=Source.ROWS))
        if self.problem.any_cols:
            params.append(Param(name="cols", ctype="int", source=Source.COLS))
        params += [Param(name=s, ctype="float", source=Source.SCALAR, key=s) for s in self.program.scalars]
        params += self.columns.params()
        return tuple(params)

    # ---- text of single accesses -------------------------------------------------------------------------------

    def ctype(self, tensor: str) -> str:
        return self.problem.tensor(tensor).dtype.ctype

    def vec(self, tensor: str, site: Site | None = None) -> str:
        return f"Vec<{self.ctype(tensor)}, {site.width if site else 'kVector'}>"

    @property
    def one_shift(self) -> bool:
        """Whether all rows of a lane shift alike: the grid's stride is a multiple of the vector (Launch.period)."""
        return self.layout.shifted and self.schedule.persistent > 0

    @property
    def vector_site(self) -> Site:
        return SHIFTED if self.layout.shifted else ALIGNED

    @property
    def sites(self) -> tuple[Site, ...]:
        return (self.vector_site, EDGE) if self.layout.edged else (self.vector_site,)

    def read_elem(self, tensor: str, hint: str, site: Site) -> str:
        return f"read_{hint}<{site.width}>({tensor}_row + {site.at})"

    def read_param(self, tensor: str, site: Site) -> str:
        if site is SHIFTED:  # such a row meets the parameters between two of their vectors
            # A parameter off the 16-byte grid may start within its first word.
            inside = "step < kWholeSteps" if self.problem.align % 16 == 0 else "step > 0 && step < kWholeSteps"
            inside = "false" if self.problem.any_cols else inside
            return f"read_window<kVector>({tensor}, column, {self.cols}, {inside})"
        return f"read_default<{site.width}>({tensor} + {site.at})"

    # ---- loops -------------------------------------------------------------------------------------------------

    @property
    def guard(self) -> str:
        if self.layout.shifted:
            whole = "" if self.problem.any_cols else "step < kWholeSteps || "
            return f"{whole}vector < vectors"
        if self.problem.any_cols:
            return "vector < vectors"
        return "vector < kVectors" if self.layout.ragged else ""

    def column_line(self, text: Iterable[str]) -> tuple[str, ...]:
        """The column of a shifted vector, where `text` names it."""
        named = any(re.search(r"\bcolumn\b", line) for line in text)
        return ("const int column = head + vector * kVector;",) if named else ()

    @property
    def unroll(self) -> str:
        if self.schedule.hold is Hold.REGISTERS or self.schedule.unroll == 0:
            return "#pragma unroll"
        return f"#pragma unroll {self.schedule.unroll}"

    @property
    def held_steps(self) -> int:
        """hold = hybrid: the steps whose vectors wait in registers."""
        return register_steps(self.problem, self.schedule)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Where the vectors of a thread wait, in the order of its steps."""
        if self.schedule.hold is not Hold.HYBRID:
            return (Span(place=self.schedule.hold, unroll=self.unroll),)
        return (
            Span(place="registers", unroll="#pragma unroll", last="kHeldSteps"),
            Span(place="shared", unroll=self.unroll, first="kHeldSteps"),
        )

    def look_loops(self, look: int) -> list[Loop]:
        """One look at the whole row: a loop for each place where vectors wait; the last one ends with the edge."""
        if look < len(self.groups):
            comment = self.states[look].doc
        else:
            comment = "Last look: the outputs" if self.groups else "One look: the outputs"
        loops: list[Loop] = []
        for span in self.spans:
            body = self.look_pass(look, self.vector_site, span.place)
            edge: tuple[str, ...] = ()
            if self.layout.edged and span == self.spans[-1]:
                edge = self.look_pass(look, EDGE, span.place).texts()
            loops.append(
                replace(
                    body,
                    comment="" if loops else comment,
                    unroll=span.unroll,
                    guard=self.guard,
                    head=(*self.column_line(body.texts()), *body.head),
                    edge=edge,
                    first=span.first,
                    last=span.last,
                )
            )
        return loops

    def look_pass(self, look: int, site: Site, place: str) -> Loop:
        """What look `look` does at a site, without what goes round it."""
        loads, maps = self.elementwise(self.look_roots(look))
        head: list[str] = []
        vectors = {load.name: self.vector_of(load, look, head, site, place) for load in loads}
        if look == len(self.groups):
            return self.output_pass(maps, head, self.element_lines(loads, [], vectors, site), site)
        group = self.groups[look]
        by_vector = site is not EDGE and self.layout.vector > 1
        steps = steps_of(self.states[look], group, self.names, by_vector=by_vector)
        peek: tuple[str, ...] = ()
        if steps.peek:
            roots = {n for r in group if r.monoid.vector_step for n in used_names(r)}
            peek = (*self.element_lines(*self.elementwise(roots), vectors, site), *steps.peek)
        return Loop(
            head=(*head, *steps.before),
            peek=peek,
            move=steps.move,
            elem=(*self.element_lines(loads, maps, vectors, site), *steps.elem),
        )

    def element_lines(self, loads: list[Load], maps: list[Map], vectors: dict[str, str], site: Site) -> list[str]:
        """The values of one element: of `loads` from their vectors, and of `maps`."""
        lines = [f"const float {self.names[ld.name]} = element({vectors[ld.name]}, {site.index});" for ld in loads]
        printer = Printer(self.names)
        return lines + [f"const float {self.names[m.name]} = {printer.text(m.expr)};" for m in maps]

    def output_pass(self, maps: list[Map], head: list[str], elem: list[str], site: Site) -> Loop:
        """The last look: what is stored and what is summed over rows; `elem` reads its elements."""
        printer = Printer(self.names)
        stored = {s.value for s in self.elem_stores}
        inlined = {m.name: m for m in maps if m.name in stored and not self.is_read_in_loop(m.name, maps)}
        elem += self.element_lines([], [m for m in maps if m.name not in inlined], {}, site)
        tail: list[str] = []
        for store in self.elem_stores:
            source = inlined.get(store.value)
            text = printer.text(source.expr) if source else self.names[store.value]
            head.append(f"float {store.tensor}_values[{site.width}];")
            if store.accumulate:
                before = f"{store.tensor}_before"
                read = self.read_elem(store.tensor, "default", site)
                head.append(f"const {self.vec(store.tensor, site)} {before} = {read};")
                text = f"element({before}, {site.index}) + {text}"
            elem.append(f"{store.tensor}_values[{site.index}] = {text};")
            tail += self.store_lines(store, site)
        elem += self.columns.elem_lines(printer, site)
        return Loop(head=tuple(head), elem=tuple(elem), tail=tuple(tail))

    def is_read_in_loop(self, name: str, maps: list[Map]) -> bool:
        readers = [*(m.expr for m in maps), *self.columns.terms]
        return any(name in names_of(expr) for expr in readers)

    def vector_of(self, load: Load, look: int, head: list[str], site: Site, place: str) -> str:
        """C text of the access that holds this load in this look; appends its read to `head` where needed."""
        tensor = load.name
        if load.kind is Kind.COL:
            if load in self.early_params:
                return site.of(tensor)
            read = self.read_param(tensor, site)
        elif place == "registers" or (place == "shared" and site is EDGE):
            return site.of(tensor)
        elif place == "shared":
            read = f"read_default<kVector>({self.ring.slot(tensor)})"
        else:  # earlier looks want it cached
            read = self.read_elem(tensor, self.schedule.load if look == len(self.groups) else "default", site)
        head.append(f"const {self.vec(tensor, site)} {tensor}_vec = {read};")
        return f"{tensor}_vec"

    def store_lines(self, store: Store, site: Site) -> list[str]:
        tensor = store.tensor
        write = f"write_{self.schedule.store}({tensor}_row + {site.at}, {tensor}_vec);"
        return [
            f"{self.vec(tensor, site)} {tensor}_vec;",
            f"pack({tensor}_vec, {tensor}_values);",
            f"if (active) {write}" if self.idle_rows else write,
        ]

    def load_loops(self, out: SectionList) -> None:
        """Read the whole row before the first look, but for what asynchronous copies bring."""
        names = " and ".join(load.name for load in self.held)
        for span in self.spans if self.held else ():
            in_registers = span.place == "registers"
            head = []
            for load in self.held:
                read = self.read_elem(load.name, self.schedule.load, self.vector_site)
                to_shared = f"write_default({self.ring.slot(load.name)}, {read});"
                head.append(f"{self.vector_site.of(load.name)} = {read};" if in_registers else to_shared)
            if self.ring and not in_registers:
                continue
            where = "registers" if in_registers else "shared memory"
            what = f"The row of {names} is read once and waits" if span.first == "0" else "The rest of it waits"
            out.loop(
                Loop(
                    comment=f"{what} in {where}; each thread reads back its own part.",
                    unroll=span.unroll,
                    guard=self.guard,
                    head=(*self.column_line(head), *head),
                    edge=self.edge_reads("{}_edge") if span == self.spans[-1] else (),
                    first=span.first,
                    last=span.last,
                )
            )

    def edge_reads(self, name: str) -> tuple[str, ...]:
        """Reads of this lane's element of the edge, of all held tensors."""
        if not self.layout.edged:
            return ()
        reads = [(ld.name, self.read_elem(ld.name, self.schedule.load, EDGE)) for ld in self.held]
        return tuple(f"{name.format(tensor)} = {read};" for tensor, read in reads)

    def param_loops(self, out: SectionList) -> None:
        if not self.early_params:
            return
        out.lines(*self.declarations(self.early_params, "kSteps"))
        reads = {
            site: [f"{site.of(p.name)} = {self.read_param(p.name, site)};" for p in self.early_params]
            for site in self.sites
        }
        head = reads[self.vector_site]
        out.loop(
            Loop(
                unroll="#pragma unroll",
                guard=self.guard,
                head=(*self.column_line(head), *head),
                edge=tuple(reads.get(EDGE, ())),
            )
        )

    def declarations(self, loads: Iterable[Load], steps: str) -> list[str]:
        """Where the vectors of `loads` wait, and their elements of the edge."""
        lines = []
        for load in loads:
            lines.append(f"{self.vec(load.name)} {load.name}_held[{steps}];")
            if self.layout.edged:
                lines.append(f"{self.vec(load.name, EDGE)} {load.name}_edge = {{}};")
        return lines
