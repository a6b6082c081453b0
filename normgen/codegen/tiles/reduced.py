"""Statistics of the result's rows: a block leaves those of its tile, and the block that comes last combines them all.

A thread reduces its part of a row of the tile in a register, the block's threads theirs in shared memory, and the last
block those of all blocks in the workspace, each in a fixed order: every run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from normgen.codegen.module import Param, Source
from normgen.codegen.printer import Printer
from normgen.codegen.reductions import single_combine, single_identity, single_step
from normgen.codegen.statements import Comment, Do, For, Gap, If, Let, Set, Statement, loop, when
from normgen.codegen.tiles.access import TileAccess, read_one, write_one
from normgen.codegen.tiles.side import UNROLL
from normgen.program.ir import Load, Map, Reduce, Store
from normgen.schedule.tiles.cut import ReducedRows

IN_FLIGHT = 16  # partial results that a thread of the last block asks for at a time


class ReducedText:
    """The statements of a kernel's reductions of its result."""

    def __init__(self, access: TileAccess, reduced: ReducedRows) -> None:
        self.access, self.plan, self.reduced = access, access.plan, reduced

    def params(self) -> tuple[Param, ...]:
        """Its part of the workspace."""
        return self._params("ticket")

    def _params(self, tickets: str) -> tuple[Param, ...]:
        behind = self.plan.fragment.ticket_bytes
        partials = Param(name="partials", ctype="float*", source=Source.WORKSPACE, offset=behind)
        return Param(name=tickets, ctype="unsigned*", source=Source.WORKSPACE), partials

    # ---- of a thread -------------------------------------------------------------------------------------------

    def start(self) -> list[Statement]:
        """Before the thread's rows: where its parts go, which takes the place of the slots."""
        found: list[Statement] = [Do("__syncthreads()", "nobody reads the slots any more")]
        start = "reinterpret_cast<float*>(dynamic_shared())"
        for reduce in self.reduced.reduces:
            found.append(Let("float* const", f"{reduce.names[0]}_left", start))
            start = f"{reduce.names[0]}_left + kTileN / kThreadN * kTileM"
        return found if self.plan.reads_last else found[1:]

    def start_row(self) -> list[Statement]:
        return [Do(f"float {r.names[0]}_own = {single_identity(r)}") for r in self.reduced.reduces]

    def add(self, reduce: Reduce, names: Mapping[str, str]) -> list[Statement]:
        """An element enters."""
        return single_step(reduce, f"{reduce.names[0]}_own", names, prefix=f"{reduce.names[0]}_")

    def end_row(self) -> list[Statement]:
        return [Set(f"{r.names[0]}_left[tn * kTileM + own_m(i)]", f"{r.names[0]}_own") for r in self.reduced.reduces]

    # ---- of a block, and of all --------------------------------------------------------------------------------

    def statements(self) -> list[Statement]:
        """Behind the thread's rows."""
        finish = (*self._finish(), If("threadIdx.x == 0", (Set("*ticket", "0"),), alone=True))
        return [
            Do("__syncthreads()"),
            self._hand_on(),
            Gap(),
            Comment("The last block to arrive combines what all have left, and leaves the ticket for the next call."),
            Do("__shared__ bool is_last"),
            Do("__threadfence()"),
            If("takes_last_ticket(ticket, is_last)", finish),
        ]

    def _hand_on(self) -> Statement:
        """The block's parts of each row of its tile become one."""
        found: list[Statement] = []
        for reduce in self.reduced.reduces:
            found += self._combined(reduce, "part", f"{reduce.names[0]}_left[part * kTileM + line]", UNROLL)
            tile = "n0 / kTileN" if self.plan.fragment.group > 1 else "blockIdx.x % blocks_n"
            found.append(Set(self._cell(reduce, tile), f"{reduce.names[0]}_all"))
        body = (Let("const int", "m", "m0 + line"), *when(self.access.inside({self.plan.cut.m: "m"}), *found))
        return For("for (int line = threadIdx.x; line < kTileM; line += kThreads)", body)

    def _finish(self) -> list[Statement]:
        """Every row's parts of all blocks, and what is made of them."""
        found: list[Statement] = []
        for reduce in self.reduced.reduces:
            found += self._combined(reduce, "tile", f"__ldcg(&{self._cell(reduce, 'tile')})", f"{UNROLL} {IN_FLIGHT}")
        return [For("for (int m = threadIdx.x; m < rows; m += kThreads)", (*found, *self._made()))]

    def _made(self) -> list[Statement]:
        """What is made of a row's reductions."""
        found: list[Statement] = []
        at = {self.plan.cut.m: "m"}
        names = {r.names[0]: f"{r.names[0]}_all" for r in self.reduced.reduces}
        values = (step for step in self.reduced.finish if isinstance(step, Load | Map))
        names |= {value.name: f"{value.name}_{'m' if value.kind.axes else 'value'}" for value in values}
        names |= self.access.numbers(at)
        for step in self.reduced.finish:
            match step:
                case Load(name=name, kind=kind) if kind.axes:
                    found.append(Let("const float", names[name], read_one(self.access, step.tensor, at)))
                case Map(name=name, kind=kind, expr=expr) if kind.axes:
                    found.append(Let("const float", names[name], Printer(names).text(expr)))
                case Store(value=value):
                    found += write_one(self.access, step, at, names[value])
        return found

    def _combined(self, reduce: Reduce, index: str, other: str, unroll: str) -> Sequence[Statement]:
        """Those of all threads, or of all blocks, in their order."""
        count = {"part": "kTileN / kThreadN", "tile": "blocks_n"}[index]
        combined = single_combine(reduce, f"{reduce.names[0]}_all", other)
        start = Let("float", f"{reduce.names[0]}_all", single_identity(reduce))
        return [start, loop(index, count, combined, unroll=unroll)]

    def _cell(self, reduce: Reduce, tile: str) -> str:
        """That of row m's partial result of a tile: those of a reduction lie tile by tile."""
        number = self.reduced.reduces.index(reduce)
        line = f"{number} * blocks_n + {tile}" if number else tile
        return f"partials[static_cast<long long>({line}) * rows + m]"


class ReducedByTiles(ReducedText):
    """The same of teams, whose warps have whole lines of a tile.

    The warps beside the one that asks for tiles count what has come of a line of tiles, or of several that share
    tickets, each for every third 32 of their rows: who counts the last tile combines these.
    """

    def params(self) -> tuple[Param, ...]:
        return self._params("tickets")

    def start(self) -> list[Statement]:
        """Before a tile's passes."""
        parts: list[Statement] = [Do(f"float {r.names[0]}_own[kThreadM]") for r in self.reduced.reduces]
        sets = [Set(f"{r.names[0]}_own[i]", single_identity(r)) for r in self.reduced.reduces]
        return [*parts, loop("i", "kThreadM", sets, unroll=UNROLL)]

    def add(self, reduce: Reduce, names: Mapping[str, str]) -> list[Statement]:
        return single_step(reduce, f"{reduce.names[0]}_own[i]", names, prefix=f"{reduce.names[0]}_")

    def leave(self) -> list[Statement]:
        """With the last pass of a tile: four lanes share a line."""
        inside = self.access.inside({self.plan.cut.m: "m"})
        left: list[Statement] = [Let("const int", "m", "m0 + own_m(i)")]
        for reduce in self.reduced.reduces:
            own = f"{reduce.names[0]}_own[i]"
            other = Let("const float", "other", f"__shfl_xor_sync(0xffffffffu, {own}, lanes)")
            combined = single_combine(reduce, own, "other")
            left.append(For("for (int lanes = 1; lanes < 4; lanes *= 2)", (other, *combined), UNROLL))
        cells = [Set(self._cell(r, "n0 / kTileN"), f"{r.names[0]}_own[i]") for r in self.reduced.reduces]
        left.append(If(f"tn == 0 && {inside}", tuple(cells), alone=len(cells) == 1))
        return [If("pass + 1 == kTileN / kPassN", (loop("i", "kThreadM", left, unroll=UNROLL),))]

    def statements(self) -> list[Statement]:
        """Of the warps beside, behind a tile."""
        last = "takes_last_ticket_of(&tickets[line * kBeside + beside], lines * blocks_n)"
        return [
            Comment("The last to count a line of tiles combines what all have left there."),
            Let("const int", "line", "m0 / kTileM % kTickets"),
            Let("const int", "lines", "(blocks_m - line + kTickets - 1) / kTickets"),
            If(last, tuple(self._finish())),
        ]

    def _finish(self) -> list[Statement]:
        found: list[Statement] = []
        for reduce in self.reduced.reduces:
            found += self._combined(reduce, "tile", f"__ldcg(&{self._cell(reduce, 'tile')})", f"{UNROLL} 8")
        end = f"min(first + kTileM, {self.access.size(self.plan.cut.m)})"
        head = f"for (int m = first + 32 * beside + lane; m < {end}; m += 32 * kBeside)"
        body = For(head, (*found, *self._made()))
        return [For("for (int first = line * kTileM; first < rows; first += kTickets * kTileM)", (body,))]
