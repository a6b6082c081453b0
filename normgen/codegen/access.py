"""Text of single accesses: what values are called, where in its row a thread works, which row it works on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from normgen.codegen.reductions import CONSTANTS, state_of
from normgen.codegen.spelling import unmarked
from normgen.codegen.view import State
from normgen.problem.problem import TensorUse
from normgen.program.ir import COLS, Load
from normgen.schedule.plan import Place, Plan


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


@dataclass(frozen=True, kw_only=True)
class Span:
    """Steps of a thread whose vectors wait in one place between looks; `last` "" stands for all that are left."""

    place: Place
    unroll: str
    first: str = "0"
    last: str = ""


class Access:
    """The names and addresses of one kernel."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.cols = "cols" if plan.problem.any_cols else "kCols"
        self.states: list[State] = [state_of(i, group) for i, group in enumerate(plan.looks, start=1)]

    @cached_property
    def names(self) -> dict[str, str]:
        """C text of every value inside an element loop; its order (elem, row, col) orders printed terms."""
        names = dict(CONSTANTS)
        kinds = self.plan.kinds
        state_text = {n: f"{st.variable}.{n}" for st in self.states for n in st.components}
        for name, kind in kinds.items():
            if kind.is_elem:
                names[name] = f"{name}_i"
        for name, kind in kinds.items():
            if not kind.by_col:
                names[name] = (state_text.get(name) or self.row_name(name)) if kind.by_row else name
        names[COLS.name] = self.cols
        for name, kind in kinds.items():
            if kind.by_col and not kind.by_row:
                names[name] = f"{name}_i"
        return names

    def row_name(self, value: str) -> str:
        """The variable of a row value: `row_mean`, but not `row_row_max` unless a pointer has that name."""
        says_row = unmarked(value).startswith("row_") and value not in self.plan.problem.present
        return value if says_row else f"row_{value}"

    # ---- one access --------------------------------------------------------------------------------------------

    def ctype(self, tensor: str) -> str:
        return self.plan.problem.tensor(tensor).dtype.ctype

    def vec(self, tensor: str, site: Site | None = None) -> str:
        return f"Vec<{self.ctype(tensor)}, {site.width if site else 'kVector'}>"

    @property
    def vector_site(self) -> Site:
        return SHIFTED if self.plan.cut.shifted else ALIGNED

    @property
    def sites(self) -> tuple[Site, ...]:
        return (self.vector_site, EDGE) if self.plan.cut.edged else (self.vector_site,)

    def read_elem(self, tensor: str, hint: str, site: Site) -> str:
        return f"read_{hint}<{site.width}>({tensor}_row + {site.at})"

    def read_param(self, tensor: str, site: Site) -> str:
        if site is SHIFTED:  # such a row meets the parameters between two of their vectors
            # A parameter off the 16-byte grid may start within its first word.
            inside = "step < kWholeSteps" if self.plan.problem.align % 16 == 0 else "step > 0 && step < kWholeSteps"
            inside = "false" if self.plan.problem.any_cols else inside
            return f"read_window<kVector>({tensor}, column, {self.cols}, {inside})"
        return f"read_default<{site.width}>({tensor} + {site.at})"

    def edge_reads(self, name: str) -> tuple[str, ...]:
        """Reads of this lane's element of the edge, of all held tensors."""
        if not self.plan.cut.edged:
            return ()
        reads = [(ld.name, self.read_elem(ld.name, self.plan.schedule.load, EDGE)) for ld in self.plan.held]
        return tuple(f"{name.format(tensor)} = {read};" for tensor, read in reads)

    def declarations(self, loads: Iterable[Load], steps: str) -> list[str]:
        """Where the vectors of `loads` wait, and their elements of the edge."""
        lines = []
        for load in loads:
            lines.append(f"{self.vec(load.name)} {load.name}_held[{steps}];")
            if self.plan.cut.edged:
                lines.append(f"{self.vec(load.name, EDGE)} {load.name}_edge = {{}};")
        return lines

    # ---- a thread's vectors ------------------------------------------------------------------------------------

    @property
    def guard(self) -> str:
        if self.plan.cut.shifted:
            whole = "" if self.plan.problem.any_cols else "step < kWholeSteps || "
            return f"{whole}vector < vectors"
        if self.plan.problem.any_cols:
            return "vector < vectors"
        return "vector < kVectors" if self.plan.cut.ragged else ""

    def column_line(self, text: Iterable[str]) -> tuple[str, ...]:
        """The column of a shifted vector, where `text` names it."""
        named = any(re.search(r"\bcolumn\b", line) for line in text)
        return ("const int column = head + vector * kVector;",) if named else ()

    @property
    def unroll(self) -> str:
        return f"#pragma unroll {self.plan.unroll}" if self.plan.unroll else "#pragma unroll"

    @property
    def spans(self) -> tuple[Span, ...]:
        """Where the vectors of a thread wait, in the order of its steps."""
        if not self.plan.is_hybrid:
            return (Span(place=self.plan.places[0], unroll=self.unroll),)
        return (
            Span(place=Place.REGISTERS, unroll="#pragma unroll", last="kHeldSteps"),
            Span(place=Place.SHARED, unroll=self.unroll, first="kHeldSteps"),
        )

    # ---- a thread's row ----------------------------------------------------------------------------------------

    @property
    def walker(self) -> str:
        """Which of the walkers of rows this block is, or belongs to: a cluster walks as one."""
        return "blockIdx.x / kCluster" if self.plan.schedule.row_blocks > 1 else "blockIdx.x"

    @property
    def walkers(self) -> str:
        return "gridDim.x / kCluster" if self.plan.schedule.row_blocks > 1 else "gridDim.x"

    @property
    def fetched_row(self) -> str:
        if not self.plan.idle_rows:
            return "first_row"
        if self.plan.one_shift:
            return "first_row + slot < rows ? first_row + slot : own_row"
        return "min(first_row + slot, rows - 1)"

    @property
    def first_tile(self) -> str:
        return "blockIdx.x * kRowsPerBlock" if self.plan.idle_rows else self.walker

    @property
    def tile_stride(self) -> str:
        return "gridDim.x * kRowsPerBlock" if self.plan.idle_rows else self.walkers

    @property
    def valid_row(self) -> str:
        return "valid_row" if self.plan.idle_rows else "row"

    def row_index_lines(self, text: str) -> list[str]:
        """Which row this is, by the names that `text` reads."""
        lines = []
        if self.plan.loops_rows:
            lines.append("const int row = first_row + slot;" if self.plan.idle_rows else "const int row = first_row;")
        if self.plan.idle_rows:
            other = "own_row" if self.plan.one_shift else "rows - 1"
            what = "their lane's first row" if self.plan.one_shift else "the last row"
            lines.append(f"const bool active = row < rows;  // idle rows recompute {what} and store nothing")
            if re.search(r"\bvalid_row\b", text):
                lines.append(f"const int valid_row = active ? row : {other};")
        return lines

    def row_pointer(self, tensor: TensorUse, row: str) -> str:
        const = "" if tensor.is_written else "const "
        return (
            f"{const}{tensor.dtype.ctype}* {tensor.name}_row = "
            f"{tensor.name} + static_cast<long long>({row}) * {tensor.name}_pitch;"
        )

    def pointer_lines(self, text: str) -> list[str]:
        """Row starts of the elem tensors that `text` reads or writes."""
        plan, lines = self.plan, []
        for tensor in plan.problem.elem_tensors:
            pivot = any(ld.first_of == tensor.name for ld in plan.program.loads)
            aligned = plan.cut.shifted and not plan.one_shift and tensor is self.first_elem
            if re.search(rf"\b{tensor.name}_row\b", text) or pivot or aligned:
                lines.append(self.row_pointer(tensor, self.valid_row))
        if plan.cut.shifted and not plan.one_shift:
            lines += self.shift_lines(f"{self.first_elem.name}_row")
        return lines

    @property
    def first_elem(self) -> TensorUse:
        return next(t for t in self.plan.problem.elem_tensors if not t.is_written)

    def shift_lines(self, row: str) -> list[str]:
        """How the row at pointer `row` is cut."""
        address = f"reinterpret_cast<unsigned long long>({row})"
        return [
            "// A row's first elements, up to its first aligned vector, and its last ones belong to a lane each.",
            f"const int shift = static_cast<int>({address} / sizeof({self.first_elem.dtype.ctype}) % kVector);",
            "const int head = (kVector - shift) % kVector;",
            f"const int vectors = ({self.cols} - head) / kVector;",
            "const int edge = lane < head ? lane : lane + vectors * kVector;",
            f"const bool has_edge = edge < {self.cols};",
        ]

    def edge_lines(self) -> list[str]:
        """The element outside of the whole vectors that this lane owns in every row."""
        plan = self.plan
        if plan.one_shift:
            x = self.first_elem.name
            first = f"min(static_cast<int>({self.first_tile} + slot), rows - 1)" if plan.idle_rows else self.first_tile
            return [
                "// The grid's stride is a multiple of the vector: all rows of this lane shift alike.",
                f"const int own_row = {first};",
                *self.shift_lines(f"{x} + static_cast<long long>(own_row) * {x}_pitch"),
            ]
        if not plan.cut.edged or plan.cut.shifted:
            return []
        vectors = "vectors" if plan.problem.any_cols else "kVectors"
        return [
            "// The elements behind the last whole vector belong to a lane each.",
            f"const int edge = lane + {vectors} * kVector;",
            f"const bool has_edge = edge < {self.cols};",
        ]
