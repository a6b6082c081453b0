"""One partial row per block; the last block at a tile of columns adds it, in a fixed order.

On an H200 that takes 1.5 to 1.8 times as long as two kernels, because all blocks arrive within a microsecond and the
last one adds nearly all (layernorm 4096x4096, 8192x768 and 4096x1024, rmsnorm 4096x4096, all bf16).
"""

from __future__ import annotations

from normgen.codegen.columns.partials import PartialRows
from normgen.codegen.module import Param, Source
from normgen.codegen.statements import Comment, Do, Gap, If, Let, Statement, constant, function, setting
from normgen.schedule.plan import TICKET_BYTES, last_tile_sums, last_tiles

LAST_TILE_IN_FLIGHT = 8  # partial rows that a thread adds in one trip of its loop (library/last_tile.cuh)


class LastTile(PartialRows):
    """partials_last_tile."""

    def params(self) -> list[Param]:
        behind = self.cells.sums.fixed_bytes
        return [
            Param(name="tickets", ctype="unsigned*", source=Source.WORKSPACE),
            Param(name="partials", ctype="float*", source=Source.WORKSPACE, offset=behind),
        ]

    def constants(self) -> list[Let]:
        problem = self.cells.plan.problem
        return [
            setting("kTileSums", last_tile_sums(problem), "cells of a tile that one block adds"),
            setting("kTiles", last_tiles(problem), "tiles of a partial row"),
            constant("kTicketWords", str(TICKET_BYTES // 4), "from one tile's ticket to the next"),
        ]

    def epilogue(self) -> list[Statement]:
        cells = self.cells
        return [
            Gap(),
            Comment("The last block to arrive at a tile of columns adds the partial rows there."),
            Do("__shared__ bool is_last"),
            Let("float*", "scratch", f"reinterpret_cast<float*>({cells.shared})"),
            *(self._finish_columns() if cells.stores else []),
            *(self._finish_totals() if cells.totals else []),
        ]

    def _finish_columns(self) -> list[Statement]:
        cells = self.cells
        write: list[Statement] = [
            Let("const int", "cell", "sum % kPitch"),
            Let("const int", "column", cells.column_of_cell),
            If("cell >= kCols", (Do("return"),), alone=True),
        ]
        for index, store in enumerate(cells.stores):
            of_this = f"sum / kPitch == {index}" if len(cells.stores) > 1 else ""
            write += [If(of_this, tuple(cells.write(store, "total")))] if of_this else cells.write(store, "total")
        rows = f"static_cast<int>({cells.access.walkers})"
        sizes = "kThreads, kTiles, kTileSums, kTensors * kPitch, kTicketWords"
        return [
            function("write_total", "int sum, float total", write),
            Do(f"finish_last_tiles<{sizes}>(tickets, is_last, partials, {rows}, scratch, write_total)"),
        ]

    def _finish_totals(self) -> list[Statement]:
        """The totals are one more tile, with a ticket of its own."""
        cells = self.cells
        ticket = "tickets + kTiles * kTicketWords" if cells.stores else "tickets"
        rows = f"{self.totals('gridDim.x')}, static_cast<int>(gridDim.x)"
        sizes = "kThreads, 1, kTotalPitch, kTotalPitch, kTicketWords"
        return [
            function("write_number", "int index, float total", cells.write_totals("index", "total")),
            Do(f"finish_last_tiles<{sizes}>({ticket}, is_last, {rows}, scratch, write_number)"),
        ]
