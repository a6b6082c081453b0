"""The looks of a kernel at its row: how a row is cut, what each look needs, and its loop over a thread's vectors.

A thread owns the vectors `lane + step * kThreadsPerRow` of its row, in every look, so that a row held in
registers or in its own slots of shared memory needs no barrier between looks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from normgen.codegen.columns import ColumnSums
from normgen.codegen.module import Param, Source
from normgen.codegen.printer import Printer
from normgen.codegen.reductions import CONSTANTS, state_of, step_lines
from normgen.codegen.ring import Ring
from normgen.codegen.view import Loop, SectionList, State
from normgen.problem import Problem
from normgen.program.ir import COLS, Load, Map, Reduce, RowProgram, Store, stage_of, used_names, value_kinds
from normgen.schedule.legality import register_steps
from normgen.schedule.schedule import Schedule
from normgen.spec import Kind


@dataclass(frozen=True, kw_only=True)
class Span:
    """Steps of a thread whose vectors wait in one place between looks."""

    place: str  # registers | shared | reload
    unroll: str
    first: str = "0"
    last: str = ""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a row is cut: vectors per row, lanes that share them, steps a lane takes."""

    vector: int
    lanes: int
    vectors: int  # the most vectors a row can touch: a shifted row touches one more
    steps: int
    shifted: bool  # rows may start between two aligned vectors (edges = peel)
    partial: bool  # the first or the last vector of a row may be incomplete

    @property
    def ragged(self) -> bool:
        """Some lanes have no vector in the last step."""
        return self.steps * self.lanes != self.vectors


def layout_of(problem: Problem, schedule: Schedule) -> Layout:
    vector = schedule.vector
    shifted = schedule.edges == "peel"
    extra = vector - 1 if shifted else 0
    vectors = -(-(problem.cols + extra) // vector)
    lanes = schedule.threads_per_row * schedule.cluster
    return Layout(
        vector=vector,
        lanes=lanes,
        vectors=vectors,
        steps=-(-vectors // lanes),
        shifted=shifted,
        partial=schedule.edges != "exact",
    )


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
                names[name] = state_text.get(name) or (name if name.startswith("row_") else f"row_{name}")
            elif kind is Kind.SCALAR:
                names[name] = name
        names[COLS.name] = self.cols
        for name, kind in self.kinds.items():
            if kind is Kind.COL:
                names[name] = f"{name}_i"
        return names

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
        for reduce in self.program.col_reduces:
            roots |= used_names(reduce)
        return roots

    @cached_property
    def look_loads(self) -> list[list[Load]]:
        return [self.elementwise(self.look_roots(i))[0] for i in range(len(self.groups) + 1)]

    @cached_property
    def held(self) -> tuple[Load, ...]:
        """Elem loads that wait between looks (or are all read up front)."""
        if self.schedule.hold == "reload":
            return ()
        wanted = {ld.name for loads in self.look_loads for ld in loads}
        return tuple(ld for ld in self.program.loads if ld.kind is Kind.ELEM and ld.name in wanted)

    @cached_property
    def early_params(self) -> tuple[Load, ...]:
        if self.schedule.params == "late":
            return ()
        wanted = {ld.name for loads in self.look_loads for ld in loads}
        return tuple(ld for ld in self.program.loads if ld.kind is Kind.COL and ld.name in wanted)

    @cached_property
    def params(self) -> tuple[Param, ...]:
        """Pointers in the problem's order, pitches of elem tensors, sizes, scalars."""
        params = []
        for t in self.problem.tensors:
            const = "" if t.is_written else "const "
            params.append(Param(name=t.name, ctype=f"{const}{t.dtype.ctype}*", source=Source.TENSOR, key=t.name))
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

    def vec(self, tensor: str) -> str:
        return f"Vec<{self.ctype(tensor)}, kVector>"

    def read_elem(self, tensor: str, hint: str) -> str:
        if not self.layout.partial:
            return f"read_{hint}<kVector>({tensor}_row + vector * kVector)"
        return f"read_partial_{hint}<kVector, true>({tensor}_row, column, {self.cols})"

    def read_param(self, tensor: str) -> str:
        if not self.layout.partial:
            return f"read_default<kVector>({tensor} + vector * kVector)"
        if self.layout.shifted and self.problem.align % 16:
            return f"read_partial_default<kVector, false>({tensor}, column, {self.cols})"
        if self.layout.shifted:  # such a row meets the parameters between two of their vectors
            return f"read_shifted<kVector>({tensor}, vector, shift, {self.cols})"
        return f"read_partial_default<kVector, true>({tensor}, column, {self.cols})"

    def write_elem(self, tensor: str, hint: str) -> str:
        if not self.layout.partial:
            return f"write_{hint}({tensor}_row + vector * kVector, {tensor}_vec);"
        return f"write_partial_{hint}({tensor}_row, column, {self.cols}, {tensor}_vec);"

    # ---- loops -------------------------------------------------------------------------------------------------

    @property
    def guard(self) -> str:
        if self.layout.partial:
            return ""  # partial reads and element guards cover lanes without a vector
        if self.problem.any_cols:
            return "vector < vectors"
        return "vector < kVectors" if self.layout.ragged else ""

    @property
    def column_head(self) -> tuple[str, ...]:
        if not self.layout.partial:
            return ()
        start = "vector * kVector - shift" if self.layout.shifted else "vector * kVector"
        first = "step > 0 && " if self.layout.shifted else ""
        whole_steps = "whole_steps" if self.problem.any_cols else "kWholeSteps"
        return (f"const int column = {start};", f"const bool whole = {first}step < {whole_steps};")

    @property
    def elem_guard(self) -> str:
        if not self.layout.partial:
            return ""
        low = "column + i >= 0 && " if self.layout.shifted else ""
        return f"whole || ({low}column + i < {self.cols})"

    @property
    def unroll(self) -> str:
        if self.schedule.hold == "registers" or self.schedule.unroll == 0:
            return "#pragma unroll"
        return f"#pragma unroll {self.schedule.unroll}"

    @property
    def held_steps(self) -> int:
        """hold = hybrid: the steps whose vectors wait in registers."""
        return register_steps(self.problem, self.schedule)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Where the vectors of a thread wait, in the order of its steps."""
        if self.schedule.hold != "hybrid":
            return (Span(place=self.schedule.hold, unroll=self.unroll),)
        return (
            Span(place="registers", unroll="#pragma unroll", last="kHeldSteps"),
            Span(place="shared", unroll=self.unroll, first="kHeldSteps"),
        )

    def look_loops(self, look: int) -> list[Loop]:
        """One look at the whole row: a loop for each place where vectors wait."""
        loops = [self.look_loop(look, span) for span in self.spans]
        return [loops[0], *(replace(loop, comment="") for loop in loops[1:])]

    def look_loop(self, look: int, span: Span) -> Loop:
        """The loop of one look: reads, values, then the state's step or the outputs."""
        final = look == len(self.groups)
        loads, maps = self.elementwise(self.look_roots(look))
        head = list(self.column_head)
        elem: list[str] = []
        for load in loads:
            vec = self.vector_of(load, look, head, span.place)
            elem.append(f"const float {self.names[load.name]} = element({vec}, i);")
        stored = {s.value: s.tensor for s in self.elem_stores} if final else {}
        printer = Printer(self.names)
        for m in maps:
            if m.name in stored and not self.is_read_in_loop(m.name, maps):
                continue
            elem.append(f"const float {self.names[m.name]} = {printer.text(m.expr)};")
        tail: list[str] = []
        if final:
            by_name = {m.name: m for m in maps}
            for store in self.elem_stores:
                unset = " = {}" if self.layout.partial else ""  # masked elements are packed too
                head.append(f"float {store.tensor}_values[kVector]{unset};")
                source = by_name.get(store.value)
                inline = source is not None and not self.is_read_in_loop(store.value, maps)
                text = printer.text(source.expr) if inline and source else self.names[store.value]
                if store.accumulate:
                    before = f"{store.tensor}_before"
                    head.append(f"const {self.vec(store.tensor)} {before} = {self.read_elem(store.tensor, 'default')};")
                    text = f"element({before}, i) + {text}"
                elem.append(f"{store.tensor}_values[i] = {text};")
                tail += self.store_lines(store)
            elem += self.columns.elem_lines({r.names[0]: printer.text(r.args[0]) for r in self.columns.reduces})
            comment = "Last look: the outputs" if self.groups else "One look: the outputs"
        else:
            elem += step_lines(self.states[look], self.groups[look], self.names)
            comment = self.states[look].doc
        return Loop(
            comment=comment,
            unroll=span.unroll,
            guard=self.guard,
            head=tuple(head),
            elem_guard=self.elem_guard,
            elem=tuple(elem),
            tail=tuple(tail),
            first=span.first,
            last=span.last,
        )

    def is_read_in_loop(self, name: str, maps: list[Map]) -> bool:
        readers: list[Map | Reduce] = [*maps, *self.columns.reduces]
        return any(name in used_names(m) for m in readers)

    def vector_of(self, load: Load, look: int, head: list[str], place: str) -> str:
        """C text of the vector that holds this load in this look; appends its read to `head` where needed."""
        tensor = load.name
        if load.kind is Kind.COL:
            if load in self.early_params:
                return f"{tensor}_held[step]"
            head.append(f"const {self.vec(tensor)} {tensor}_vec = {self.read_param(tensor)};")
            return f"{tensor}_vec"
        if place == "registers":
            return f"{tensor}_held[step]"
        if place == "shared":
            head.append(f"const {self.vec(tensor)} {tensor}_vec = read_default<kVector>({self.ring.slot(tensor)});")
            return f"{tensor}_vec"
        hint = self.schedule.load if look == len(self.groups) else "default"  # earlier looks want it cached
        head.append(f"const {self.vec(tensor)} {tensor}_vec = {self.read_elem(tensor, hint)};")
        return f"{tensor}_vec"

    def store_lines(self, store: Store) -> list[str]:
        tensor = store.tensor
        write = self.write_elem(tensor, self.schedule.store)
        return [
            f"{self.vec(tensor)} {tensor}_vec = {{}};" if self.layout.partial else f"{self.vec(tensor)} {tensor}_vec;",
            f"pack({tensor}_vec, {tensor}_values);",
            f"if (active) {write}" if self.idle_rows else write,
        ]

    def load_loops(self, out: SectionList) -> None:
        """Read the whole row before the first look, but for what asynchronous copies bring."""
        names = " and ".join(load.name for load in self.held)
        for span in self.spans if self.held else ():
            if span.place == "shared" and self.ring:
                continue
            head = list(self.column_head)[:1]
            for load in self.held:
                read = self.read_elem(load.name, self.schedule.load)
                if span.place == "registers":
                    head.append(f"{load.name}_held[step] = {read};")
                else:
                    head.append(f"write_default({self.ring.slot(load.name)}, {read});")
            where = "registers" if span.place == "registers" else "shared memory"
            what = f"The row of {names} is read once and waits" if span.first == "0" else "The rest of it waits"
            out.loop(
                Loop(
                    comment=f"{what} in {where}; each thread reads back its own part.",
                    unroll=span.unroll,
                    guard=self.guard,
                    head=tuple(head),
                    first=span.first,
                    last=span.last,
                )
            )

    def param_loops(self, out: SectionList) -> None:
        if not self.early_params:
            return
        out.lines(*(f"{self.vec(p.name)} {p.name}_held[kSteps];" for p in self.early_params))
        reads = [f"{p.name}_held[step] = {self.read_param(p.name)};" for p in self.early_params]
        head = [*(self.column_head[:1] if any("column," in line for line in reads) else ()), *reads]
        out.loop(Loop(unroll="#pragma unroll", guard=self.guard, head=tuple(head)))
