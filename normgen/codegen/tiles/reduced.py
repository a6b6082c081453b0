"""Statistics of the result's rows: a block leaves those of its tile, and the block that comes last combines them all.

A thread reduces its part of a row of the tile in a register, the block's threads theirs in shared memory, and the last
block those of all blocks in the workspace, each in a fixed order: every run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from normgen.codegen.module import Param, Source
from normgen.codegen.printer import Printer
from normgen.codegen.reductions import Run, combine_into, identities
from normgen.codegen.statements import Comment, Do, For, Gap, If, Let, Set, Statement, loop, when
from normgen.codegen.tiles.access import TileAccess, read_one, write_one
from normgen.codegen.tiles.side import UNROLL
from normgen.program.ir import Load, Map, Reduce, Store
from normgen.schedule.plan import TICKET_BYTES
from normgen.schedule.tiles.cut import ReducedRows

IN_FLIGHT = 16  # partial results that a thread of the last block asks for at a time


class ReducedText:
    """The statements of a kernel's reductions of its result."""

    def __init__(self, access: TileAccess, reduced: ReducedRows) -> None:
        self.access, self.plan, self.reduced = access, access.plan, reduced
        self.runs = {reduce: Run(reduce, "_own") for reduce in reduced.reduces}

    def params(self) -> tuple[Param, ...]:
        """Its part of the workspace."""
        ticket = Param(name="ticket", ctype="unsigned*", source=Source.WORKSPACE)
        return ticket, Param(name="partials", ctype="float*", source=Source.WORKSPACE, offset=TICKET_BYTES)

    # ---- of a thread -------------------------------------------------------------------------------------------

    def start(self) -> list[Statement]:
        """Before the thread's rows: where its parts go, which takes the place of the slots."""
        found: list[Statement] = [Do("__syncthreads()", "nobody reads the slots any more")]
        start = "reinterpret_cast<float*>(dynamic_shared())"
        for name in self.reduced.names:
            found.append(Let("float* const", f"{name}_left", start))
            start = f"{name}_left + kTileN / kThreadN * kTileM"
        return found if self.plan.reads_last else found[1:]

    def start_row(self) -> list[Statement]:
        return [one for run in self.runs.values() for one in run.start()]

    def add(self, reduce: Reduce, names: Mapping[str, str]) -> list[Statement]:
        """An element enters."""
        return self.runs[reduce].step(names)

    def end_row(self) -> list[Statement]:
        return [Set(f"{name}_left[tn * kTileM + own_m(i)]", f"{name}_own") for name in self.reduced.names]

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
            parts = [f"{name}_left[part * kTileM + line]" for name in reduce.names]
            found += self._combined(reduce, "part", parts, UNROLL)
            tile = "n0 / kTileN" if self.plan.fragment.group > 1 else "blockIdx.x % blocks_n"
            found += [Set(self._cell(name, tile), f"{name}_all") for name in reduce.names]
        body = (Let("const int", "m", "m0 + line"), *when(self.access.inside({self.plan.cut.m: "m"}), *found))
        return For("for (int line = threadIdx.x; line < kTileM; line += kThreads)", body)

    def _finish(self) -> list[Statement]:
        """Every row's parts of all blocks, and what is made of them."""
        found: list[Statement] = []
        for reduce in self.reduced.reduces:
            parts = [f"__ldcg(&{self._cell(name, 'tile')})" for name in reduce.names]
            found += self._combined(reduce, "tile", parts, f"{UNROLL} {IN_FLIGHT}")
        at = {self.plan.cut.m: "m"}
        names = {name: f"{name}_all" for name in self.reduced.names}
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
        return [For("for (int m = threadIdx.x; m < rows; m += kThreads)", tuple(found))]

    def _combined(self, reduce: Reduce, index: str, others: Sequence[str], unroll: str) -> Sequence[Statement]:
        """Those of all threads, or of all blocks, in their order."""
        count = {"part": "kTileN / kThreadN", "tile": "blocks_n"}[index]
        own = [f"{name}_all" for name in reduce.names]
        start = [Let("float", name, one) for name, one in zip(own, identities(reduce), strict=True)]
        return [*start, loop(index, count, combine_into(reduce, own, others), unroll=unroll)]

    def _cell(self, name: str, tile: str) -> str:
        """That of row m's partial result of a tile: those of a component lie tile by tile."""
        number = self.reduced.names.index(name)
        line = f"{number} * blocks_n + {tile}" if number else tile
        return f"partials[static_cast<long long>({line}) * rows + m]"
