"""One partial row per block; the last block at a tile of columns adds it, in a fixed order.

On an H200 that takes 1.5 to 1.8 times as long as two kernels, because all blocks arrive within a microsecond and the
last one adds nearly all (layernorm 4096x4096, 8192x768 and 4096x1024, rmsnorm 4096x4096, all bf16).
"""

from __future__ import annotations

from normgen.codegen.columns.partials import partial_row_line
from normgen.codegen.columns.sums import Finish
from normgen.codegen.module import Param, Source
from normgen.codegen.prelude import environment
from normgen.codegen.view import SectionList
from normgen.schedule.plan import TICKET_BYTES, last_tile_sums, last_tiles

LAST_TILE_IN_FLIGHT = 8  # partial rows that a thread adds in one trip of its loop


class LastTile(Finish):
    """partials_last_tile."""

    uses_scratch = True

    def params(self) -> list[Param]:
        behind = self.cells.sums.fixed_bytes
        return [
            Param(name="tickets", ctype="unsigned*", source=Source.WORKSPACE),
            Param(name="partials", ctype="float*", source=Source.WORKSPACE, offset=behind),
        ]

    def constants(self) -> list[tuple[str, str, str]]:
        problem = self.cells.plan.problem
        return [
            ("kRowSums", f"{len(self.cells.names)} * kPitch", "cells of a partial row"),
            ("kTileSums", str(last_tile_sums(problem)), "of them in a tile"),
            ("kTiles", str(last_tiles(problem)), ""),
        ]

    def hand_on(self, index: int, cell: str, value: str, *, walker: str) -> str:
        return partial_row_line(self.cells, index, cell, value, walker)

    def epilogue(self, out: SectionList) -> None:
        cells = self.cells
        text = (
            environment()
            .get_template("last_tile.cu.j2")
            .render(
                ticket_words=TICKET_BYTES // 4,
                in_flight=LAST_TILE_IN_FLIGHT,
                partial_rows=f"static_cast<int>({cells.access.walkers})",
                column=cells.column_of_cell,
                cells=cells.access.cols,
                outputs=[cells.write_lines(store, "total") for store in cells.stores],
            )
        )
        out.lines(*text.splitlines())
