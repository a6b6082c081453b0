"""Single accesses: what values are called, where in its row a thread works, which row it works on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from normgen.codegen.config.constants import inner
from normgen.codegen.printer import Printer, float_literal, place_of
from normgen.codegen.reductions import CONSTANTS, State, state_of
from normgen.codegen.spelling import unmarked
from normgen.codegen.statements import Comment, Do, If, Let, Set, Statement
from normgen.dtypes import F32
from normgen.knobs import LoadHint, StoreHint
from normgen.problem.problem import Problem
from normgen.problem.scales import TILE_ROWS, WORD, ScaleLayout
from normgen.problem.tensors import TensorUse
from normgen.program.functions import COL, ROW
from normgen.program.ir import COLS, Load
from normgen.schedule.plan import Plan, Waiting
from normgen.spec.spec import Kind


def operand(text: str) -> str:
    """The text as a factor beside a pitch: that has 64 bits, and so has the product."""
    return text if text.isidentifier() else f"({text})"


def policy(hint: LoadHint | StoreHint) -> str:
    """The library's type for a cache hint: EvictLast."""
    return "".join(word.capitalize() for word in hint.value.split("_"))


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where in its row a thread works: at one of its vectors, or at its element of the edge.

    width  elements of an access
    index  the element within it
    at     the column it starts at
    place  the same, as it is added to a pointer. A thread's first place and a number of its own for each step: then all
           steps share one address. As `vector * kVector` each had a product of 64 bits, a fifth of all instructions of
           rmsnorm_to_fp8_group (NVRTC 13.0, sm_90).
    held   what a held access is called, of a tensor's name
    """

    width: str
    index: str
    at: str
    place: str
    held: str

    def of(self, tensor: str) -> str:
        return self.held.format(tensor)


_STEP = "first_col + step * kStride"
ALIGNED = Site(width="kVector", index="i", at="vector * kVector", place=_STEP, held="{}_held[step]")
SHIFTED = Site(width="kVector", index="i", at="column", place=_STEP, held="{}_held[step]")
EDGE = Site(width="1", index="0", at="edge", place="edge", held="{}_edge")


@dataclass(frozen=True, kw_only=True)
class Span:
    """Steps of a thread whose vectors wait in one place between looks; `last` "" stands for all that are left."""

    place: Waiting
    unroll: str
    first: str = "0"
    last: str = ""


class Tensors:
    """What every access shares, whatever the frame of its kernel: null pointers, and what stands for them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def ctype(self, tensor: str) -> str:
        return self.problem.tensor(tensor).dtype.ctype

    def unless_null(self, tensor: str, read: str, width: str = "") -> str:
        """The read where there is something to read; of a vector of `width`, or of a row's only value."""
        use = self.problem.tensor(tensor)
        if use.null_as is None and not use.witness:
            return read
        number = float_literal(use.null_as or 0)  # a gradient that nobody wants is added to 0
        instead = f"filled<{use.dtype.ctype}, {width}>({number})" if width else number
        return f"{self._witness(tensor) or tensor} != nullptr ? {read} : {instead}"

    def if_wanted(self, tensor: str, *statements: Statement) -> tuple[Statement, ...]:
        """What writes a tensor, which the caller of a kernel of any columns may not want."""
        witness = self._witness(tensor)
        return (If(f"{witness} != nullptr", statements, alone=len(statements) == 1),) if witness else statements

    def _witness(self, tensor: str) -> str:
        """The pointer that says whether a gradient is wanted; one that lies over an input has that one's."""
        name = self.problem.tensor(tensor).witness
        return self.problem.tensor(name).memory if name else ""

    # ---- values of groups --------------------------------------------------------------------------------------

    def row_pointer(self, tensor: TensorUse, row: str) -> Let:
        const = "const " if tensor.is_const else ""
        match tensor.layout:
            case ScaleLayout.ROW_MAJOR:
                step = f"{operand(row)} * {tensor.name}_pitch"
            case ScaleLayout.COLUMN_MAJOR:
                step = row
            case ScaleLayout.PACKED:
                step = f"static_cast<long long>({row}) * {WORD}"
            case ScaleLayout.SWIZZLED:
                tile = f"({row} / {TILE_ROWS}) * {tensor.name}_pitch"
                step = f"{tile} + place_in_tile({row})"
        start = f"{tensor.name} + {step}"
        return Let(f"{const}{tensor.dtype.ctype}*", f"{tensor.name}_row", start)

    def write_group(self, tensor: str, group: str, value: str, *, row: str, groups: str) -> str:
        """One value of a group, by the group's number of a row's `groups`: `row_pointer` is where the row's begin."""
        start, pitch = f"{tensor}_row", f"{tensor}_pitch"
        match self.problem.tensor(tensor).layout:
            case ScaleLayout.ROW_MAJOR:
                return self._write_value(tensor, f"{start}[{group}]", value)
            case ScaleLayout.COLUMN_MAJOR:
                return self._write_value(tensor, f"{start}[{operand(group)} * {pitch}]", value)
            case ScaleLayout.PACKED:
                return f"write_packed({start}, {pitch}, {group}, {groups}, {value})"
            case ScaleLayout.SWIZZLED:
                return f"write_swizzled({start}, {row}, rows, {group}, {groups}, {value})"

    def _write_value(self, tensor: str, place: str, value: str) -> str:
        is_float = self.problem.tensor(tensor).dtype is F32
        return f"{place} = {value}" if is_float else f"write_row_value(&{place}, {value})"


class Access(Tensors):
    """The names and addresses of one kernel."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.problem)
        self.plan = plan
        self.cols = "cols" if plan.problem.any_cols else "kCols"
        self.states: list[State] = [state_of(i, group) for i, group in enumerate(plan.looks, start=1)]

    @cached_property
    def names(self) -> dict[str, str]:
        """C text of every value inside an element loop;"""
        names = dict(CONSTANTS)
        kinds = self.plan.kinds
        state_text = {n: f"{st.variable}.{n}" for st in self.states for n in st.components}
        for name, kind in kinds.items():
            if kind.is_elem:
                names[name] = f"{name}_i"
        for name, kind in kinds.items():
            if kind.is_groups:
                names[name] = f"{name}_g"
            elif not kind.by_col:
                names[name] = (state_text.get(name) or self.row_name(name)) if kind.by_row else name
        names |= {ld.name: f"{ld.name}_value" for ld in self.plan.program.loads if kinds[ld.name] is Kind.SCALAR}
        names |= {COLS.name: self.cols, ROW.name: self.valid_row, COL.name: COL.name}
        for name, kind in kinds.items():
            if kind.by_col and not kind.by_row:
                names[name] = f"{name}_i"
        return names

    def names_at(self, site: Site) -> dict[str, str]:
        """The names, and those of places in the vectors of a site."""
        places = {name: f"{name}_place" for name in self.column_numbers}
        return self.names | {place_of(name): text for name, text in ({COL.name: site.index} | places).items()}

    def places(self, site: Site) -> list[Let]:
        """Where in a vector the columns lie that whole row values name: as ints they cost an element one comparison."""
        return [
            Let("const int", f"{name}_place", f"column_of({self.names[name]}) - {site.at}")
            for name in self.column_numbers
        ]

    @cached_property
    def column_numbers(self) -> tuple[str, ...]:
        """Row inputs of whole numbers, as the label of each row is."""
        rows = (ld.name for ld in self.plan.program.loads if ld.kind.is_row and not ld.of)
        return tuple(name for name in rows if self.plan.problem.tensor(name).dtype.is_integer)

    def row_name(self, value: str) -> str:
        """The variable of a row value: `row_mean`, but not `row_row_max` unless a pointer has that name."""
        says_row = unmarked(value).startswith("row_") and value not in self.plan.problem.present
        return value if says_row else f"row_{value}"

    # ---- one access --------------------------------------------------------------------------------------------

    def vec(self, tensor: str, site: Site | None = None) -> str:
        return f"Vec<{self.ctype(tensor)}, {site.width if site else 'kVector'}>"

    @property
    def vector_site(self) -> Site:
        return SHIFTED if self.plan.cut.shifted else ALIGNED

    @property
    def sites(self) -> tuple[Site, ...]:
        return (self.vector_site, EDGE) if self.plan.cut.edged else (self.vector_site,)

    def read_elem(self, tensor: str, site: Site, *, hinted: bool = True) -> str:
        read = "read_first" if self.plan.problem.tensor(tensor).under else "read"
        text = f"{read}<{site.width}{', Load' if hinted else ''}>({tensor}_row + {site.place})"
        return self.unless_null(tensor, text, site.width)

    def write_elem(self, tensor: str, site: Site) -> str:
        use = self.plan.problem.tensor(tensor)
        place = site.place if use.dtype.packed == 1 else f"static_cast<unsigned>({site.place}) / {use.dtype.packed}"
        return f"write<Store>({use.memory}_row + {place}, {tensor}_vec)"

    @property
    def divisor(self) -> str:
        """What divides the number of a row: the quotient is its batch; of a head's rows it is the remainder."""
        return "batches" if self.plan.problem.spec.has_heads else "rows_per_batch"

    def _batch_of(self, row: str) -> str:
        quotient = f"quotient({row}, {self.divisor}_inverse)"
        row = row if row.isidentifier() else f"({row})"
        return f"{row} - {quotient} * batches" if self.plan.problem.spec.has_heads else quotient

    def read_row_value(self, tensor: str, row: str) -> str:
        return self.unless_null(tensor, self._row_value(tensor, row))

    def _row_value(self, tensor: str, row: str) -> str:
        """One that is there."""
        if self.plan.problem.tensor(tensor).kind.by_batch:
            row = "batch" if self.plan.walks_batches else self._batch_of(row)
        is_float = self.plan.problem.tensor(tensor).dtype is F32
        place = f"{tensor}[{inner(row)}]"
        return place if is_float else f"row_value(&{place})"

    def write_row_value(self, tensor: str, row: str, value: str, *, accumulate: bool = False) -> str:
        value = f"{self._row_value(tensor, row)} + {value}" if accumulate else value  # written only where it is wanted
        return self._write_value(tensor, f"{tensor}[{inner(row)}]", value)

    def write_group_value(self, tensor: str, group: str, value: str) -> str:
        """One value of a group, by the group's number in its row: `row_pointer` is where those of the row begin."""
        return self.write_group(tensor, group, value, row=self.valid_row, groups=f"{self.cols} / kGroup")

    def start(self, tensor: str) -> str:
        """Where a row's values of columns begin, or all rows' where these have the same."""
        return f"{tensor}_row" if self.plan.problem.tensor(tensor).kind.is_matrix else tensor

    def read_param(self, tensor: str, site: Site) -> str:
        start, group = self.start(tensor), self.plan.problem.tensor(tensor).group
        read = f"read<{site.width}>({start} + {site.place})"
        if group:
            aligned = "false" if site is SHIFTED else "true"
            read = f"read_groups<{group}, {site.width}, {aligned}>({start}, {site.at})"
        elif site is SHIFTED:  # such a row meets the parameters between two of their vectors
            inside = "false" if self.plan.problem.any_cols else "step >= kFirstInside && step < kWholeSteps"
            read = f"read_window<kVector>({start}, column, {self.cols}, {inside})"
        return self.unless_null(tensor, read, site.width)

    def read_rolled(self, load: Load, site: Site, place: Waiting) -> str:
        """The elements of other columns: in whole vectors, and from registers, where these have them."""
        start = f"{load.of}_row" if self.problem.tensor(load.of).kind.is_matrix else load.of
        aligned = "true" if site is ALIGNED else "false"
        known = "false" if self.plan.problem.any_cols else "true"
        by = Printer(self.names).columns(load.ahead)
        held = self.plan.held if place is Waiting.REGISTERS and site is ALIGNED and not self.plan.is_hybrid else ()
        if load.of in {other.name for other in held}:
            return f"rolled_held<kStride, {by}, {self.cols}>({load.of}_held, step, {load.of}_row, {site.at})"
        how = f"{site.width}, {load.group or 1}, {aligned}, {known}"
        return self.unless_null(load.of, f"read_rolled<{how}>({start}, {site.at}, {by}, {self.cols})", site.width)

    def edge_reads(self, name: str) -> tuple[Statement, ...]:
        """Reads of this thread's element of the edge, of all held tensors."""
        if not self.plan.cut.edged:
            return ()
        reads = [(ld.name, self.read_elem(ld.name, EDGE)) for ld in self.plan.held]
        return tuple(Set(name.format(tensor), read) for tensor, read in reads)

    def declarations(self, loads: Iterable[Load], steps: str) -> list[Statement]:
        """Where the vectors of `loads` wait, and their elements of the edge."""
        found: list[Statement] = []
        for load in loads:
            found.append(Do(f"{self.vec(load.name)} {load.name}_held[{steps}]"))
            if self.plan.cut.edged:
                found.append(Do(f"{self.vec(load.name, EDGE)} {load.name}_edge = {{}}"))
        return found

    # ---- a thread's vectors ------------------------------------------------------------------------------------

    @property
    def steps(self) -> str:
        """How many vectors a thread owns."""
        return "steps" if self.plan.problem.any_cols else "kSteps"

    @property
    def guard(self) -> str:
        """The condition under which a step has a vector."""
        if self.plan.cut.shifted:
            whole = "" if self.plan.problem.any_cols else "step < kWholeSteps || "
            return f"{whole}vector < vectors"
        if self.plan.problem.any_cols:
            return "vector < vectors"
        return f"{'step < kFullSteps' if self.plan.ends_unevenly else 'kEven'} || vector < kVectors"

    @property
    def unroll(self) -> str:
        return "#pragma unroll kUnroll" if self.plan.unroll else "#pragma unroll"

    @property
    def spans(self) -> tuple[Span, ...]:
        """Where the vectors of a thread wait, in the order of its steps."""
        if not self.plan.is_hybrid:
            return (Span(place=self.plan.places[0], unroll=self.unroll),)
        return (
            Span(place=Waiting.REGISTERS, unroll="#pragma unroll", last="kHeldSteps"),
            Span(place=Waiting.SHARED, unroll=self.unroll, first="kHeldSteps"),
        )

    # ---- a thread's row ----------------------------------------------------------------------------------------

    @property
    def walker(self) -> str:
        """Which of the walkers of rows this block is, or belongs to: a cluster, or the blocks of a row's parts."""
        return self._walker_of("blockIdx.x")

    @property
    def walkers(self) -> str:
        return self._walker_of("gridDim.x")

    def _walker_of(self, block: str) -> str:
        if self.plan.schedule.parts > 1:
            return f"{block} / kParts"
        return f"{block} / kCluster" if self.plan.schedule.cluster > 1 else block

    @property
    def end(self) -> str:
        """What the rows end at: all of them, or those of the batch that a walker stays in."""
        return "batch_end" if self.plan.walks_batches and not self.walks_heads else "rows"

    @property
    def last(self) -> str:
        """The last of a walker's rows: idle ones recompute it, and no other walker writes there."""
        return "batch_last" if self.walks_heads else f"{self.end} - 1"

    @property
    def walks_heads(self) -> bool:
        """Whether a walker stays in a head, whose rows lie `batches` apart."""
        return self.plan.walks_batches and self.plan.problem.spec.has_heads

    @property
    def _apart(self) -> str:
        """What numbers of a walker's rows are multiplied by."""
        return " * batches" if self.walks_heads else ""

    def batch(self) -> list[Statement]:
        """The batch of a walker whose rows are all of one batch: each has as many blocks as the others."""
        if not self.plan.walks_batches:
            return []
        rest = "rows - batch_start < rows_per_batch"
        own: list[Statement] = [
            Let("const int", "batch_blocks", "gridDim.x / max(batches, 1)", "each batch of rows has blocks of its own"),
            Let("const int", "batch", "blockIdx.x / batch_blocks"),
            Let("const int", "batch_block", "blockIdx.x % batch_blocks"),
        ]
        if self.walks_heads:
            why = "a head's rows are batch, batch + batches, batch + 2 * batches and so on"
            last = Let("const int", "batch_last", "batch + (rows - 1 - batch) / max(batches, 1) * batches")
            return [Comment(f"The batches are heads: {why}."), *own, *([last] if self.plan.rows_beside else [])]
        return [
            *own,
            Let("const int", "batch_start", "batch * rows_per_batch"),
            Let(
                "const int", "batch_end", f"{rest} ? rows : batch_start + rows_per_batch", "the last one may be shorter"
            ),
        ]

    @property
    def tile(self) -> str:
        """The variable for the first row of a tile; a tile of one row is that row."""
        return "first_row" if self.plan.rows_beside else "row"

    @property
    def first_tile(self) -> str:
        if self.plan.walks_batches:
            own = "batch_block * kRowsPerBlock" if self.plan.rows_beside else self._walker_of("batch_block")
            start = "batch" if self.walks_heads else "batch_start"
            return f"{start} + ({own}){self._apart}" if self._apart else f"{start} + {own}"
        return "blockIdx.x * kRowsPerBlock" if self.plan.rows_beside else self.walker

    @property
    def start_tile(self) -> str:
        """Where a walker begins: its first tile, or the variable of its last one."""
        return "last_start" if self.plan.descends else self.first_tile

    def last_start(self) -> list[Statement]:
        """Where the last of a walker's tiles starts, if it has them from the last to the first.

        Each walker has the tiles that it would have in ascending order, so that rows shift alike as they do there.
        A walker without a tile begins at none: what is computed of its first one would be another walker's.
        """
        if not (self.plan.descends and self.plan.loops_rows):
            return []
        first, stride = self.first_tile, self.tile_stride
        start = f"(rows - 1 - {first}) / ({stride}) * ({stride}) + {first}"
        start = f"{first} < rows ? static_cast<int>({start}) : -1"
        return [Let("const int", "last_start", start, "this block takes its last tile first")]

    def behind(self, tile: str = "", *, tiles: str = "") -> str:
        """The start of the tile that a walker comes to behind `tile`, else this one, or of that many `tiles` on."""
        sign = "-" if self.plan.descends else "+"
        return f"{tile or self.tile} {sign} {f'{tiles} * ' if tiles else ''}{self.tile_stride}"

    def is_tile(self, row: str) -> str:
        """Whether a walker has a tile that starts at `row`."""
        return f"{row} >= 0" if self.plan.descends else f"{row} < {self.end}"

    @property
    def walk(self) -> str:
        """The head of a walker's loop over its tiles."""
        tile, step = self.tile, "-=" if self.plan.descends else "+="
        return f"for (int {tile} = {self.start_tile}; {self.is_tile(tile)}; {tile} {step} {self.tile_stride})"

    @property
    def only_row(self) -> str:
        """The row of a thread whose block has one tile."""
        if not self.plan.rows_beside:
            return f"Order::tile({self.walker}, rows - 1)"
        return "Order::tile(Team::tile(), (rows - 1) / kRowsPerBlock) * kRowsPerBlock + block_row"

    @property
    def tile_stride(self) -> str:
        blocks = "batch_blocks" if self.plan.walks_batches else "gridDim.x"
        stride = f"{blocks} * kRowsPerBlock" if self.plan.rows_beside else self._walker_of(blocks)
        return f"{stride}{self._apart}"

    @property
    def valid_row(self) -> str:
        return "valid_row" if self.plan.rows_beside else "row"

    def row_index(self) -> list[Statement]:
        """Which row this is."""
        found: list[Statement] = []
        if self.plan.loops_rows:
            found += [Let("const int", "row", f"first_row + block_row{self._apart}")] if self.plan.rows_beside else []
        if self.plan.rows_beside:
            other = "own_row" if self.plan.one_shift else self.last
            what = "their thread's first row" if self.plan.one_shift else "it"
            why = f"threads past the last row redo {what} and store nothing"
            found.append(Let("const bool", "active", f"kRowsPerBlock == 1 || row < {self.end}", why))
            found.append(Let("const int", "valid_row", f"active ? row : {other}"))
        return found

    def fetched_row(self) -> tuple[str, list[Statement]]:
        """Within a function that fetches a tile: the thread's row, and what declares it."""
        if not self.plan.rows_beside:
            return self.tile, []
        own = f"first_row + block_row{self._apart}"
        row = f"min({own}, {self.last})" if self.walks_heads else f"Team::row(first_row, {self.end})"
        row = f"{own} < {self.end} ? {own} : own_row" if self.plan.one_shift else row
        return "fetched_row", [Let("const int", "fetched_row", row)]

    def row_starts(self) -> list[Statement]:
        """Where the row starts in each tensor of rows, and its batch's in each tensor of batches; how it is cut."""
        problem = self.plan.problem
        batch = Let("const int", "batch", self._batch_of(self.valid_row))
        is_read = any(t.kind.by_batch for t in problem.pitched_tensors)
        found: list[Statement] = [batch] if is_read and not self.plan.walks_batches else []
        for tensor in problem.pitched_tensors:
            found.append(self.row_pointer(tensor, "batch" if tensor.kind.by_batch else self.valid_row))
        if self.plan.cut.shifted and not self.plan.one_shift:
            found += self.shift(f"{self.first_elem.name}_row", f"({self.first_elem.name}_row - {self.first_elem.name})")
        return found

    @property
    def first_elem(self) -> TensorUse:
        read = [t for t in self.plan.problem.elem_tensors if not t.is_written]
        return next((t for t in read if t.null_as is None), read[0])

    @property
    def unit(self) -> str:
        """Elements: a shifted row's first vector starts at a multiple of so many."""
        return "kUnit" if self.plan.cut.has_unit else "kVector"

    def shift(self, row: str, offset: str) -> list[Statement]:
        """How the row at pointer `row` is cut, so many elements from the first one.

        Units are counted from the first row's: where memory lies, beyond a vector, must not change a row's bits.
        """
        x = self.first_elem
        address, size = "reinterpret_cast<unsigned long long>({})", f"sizeof({x.dtype.ctype})"
        shift = f"{address.format(row)} / {size} % kVector"
        if self.plan.cut.has_unit:
            first = address.format(f"&{x.name}[0]")  # NVRTC 13.0 does not cast an Input of a template's Config
            shift = f"({first} / {size} % kVector + {offset}) % {self.unit}"
        return [
            Comment(
                "Peeled: elements in front of a row's first aligned unit and behind its last vector have a thread each."
            ),
            Let("const int", "shift", f"static_cast<int>({shift})"),
            Let("const int", "head", f"({self.unit} - shift) % {self.unit}"),
            Let("const int", "first_col", "head + row_thread * kVector"),
            Let("const int", "vectors", f"({self.cols} - head) / kVector"),
            Let("const int", "edge", "row_thread < head ? row_thread : row_thread + vectors * kVector"),
            Let("const bool", "has_edge", f"edge < {self.cols}"),
        ]

    def edge(self) -> list[Statement]:
        """The element outside of the whole vectors that this thread owns in every row."""
        plan = self.plan
        if plan.one_shift:
            x = self.first_elem.name
            slot = f"{self.first_tile} + block_row{self._apart}"
            offset = f"own_row * {x}_pitch"
            of = self.unit if plan.cut.has_unit else "the vector"
            first = f"min(static_cast<int>({slot}), {self.last})" if plan.rows_beside else self.first_tile
            return [
                Comment(f"The grid's stride is a multiple of {of}: all rows of this thread shift alike."),
                Let("const int", "own_row", first),
                *self.shift(f"{x} + {offset}", offset),
            ]
        if not plan.cut.edged or plan.cut.shifted:
            return []
        vectors = "vectors" if plan.problem.any_cols else "kVectors"
        return [
            Comment("The elements behind the last whole vector belong to a thread each."),
            Let("const int", "edge", f"row_thread + {vectors} * kVector"),
            Let("const bool", "has_edge", f"edge < {self.cols}"),
        ]
