"""The order in which tiles of the result come: which one a block owns, or goes to."""

from __future__ import annotations

from normgen.codegen.statements import Comment, Do, For, Let, Set, Statement, function
from normgen.codegen.tiles.access import TileAccess


class Raster:
    """Tiles of a few lines follow each other column by column; of one line along n."""

    def __init__(self, access: TileAccess) -> None:
        self.access, self.plan = access, access.plan

    @property
    def tile(self) -> str:
        """The number of a block's tile."""
        return "blockIdx.x" if self.plan.parts == 1 else "blockIdx.x / kParts"

    def counts(self, length: str) -> list[Statement]:
        """Tiles along both axes; `length`: of m."""
        n = self.access.size(self.plan.cut.n)
        return [
            Let("const int", "blocks_n", f"({n} + kTileN - 1) / kTileN"),
            Let("const int", "blocks_m", f"({length} + kTileM - 1) / kTileM"),
        ]

    def of_block(self) -> list[Statement]:
        """Where the one tile of a block starts."""
        m = self.plan.cut.m
        if not self.plan.in_batches:
            place = self.grouped(self.tile, "") if self.plan.fragment.group > 1 else self.by_lines("")
            return [*self.counts(self.access.size(m)), *place]
        first = "rows_begin + " if m == "rows" else ""
        tile = f"{self.tile} % (blocks_m * blocks_n)"
        return [
            *self.counts("rows_per_batch" if m == "rows" else self.access.size(m)),
            Let("const int", "batch", f"{self.tile} / blocks_n / blocks_m"),
            Let("const int", "rows_begin", "batch * rows_per_batch"),
            Let("const int", "rows_end", "rows_begin + min(rows - rows_begin, rows_per_batch)", "of the batch"),
            *(self.grouped(tile, first) if self.plan.fragment.group > 1 else self.by_lines(first)),
        ]

    def walk(self) -> list[Statement]:
        """What takes a block from tile to tile: the last SM that is done has as few more as may be."""
        m0, n0 = self._in_group("")
        found = [*self._group(), Set("m0", m0), Set("n0", n0)]
        return [
            *self.counts(self.access.size(self.plan.cut.m)),
            Let("const int", "tiles", "blocks_m * blocks_n"),
            Do("int m0 = 0, n0 = 0"),
            function("go_to", "int tile", [Comment(GROUPED), *found]),
        ]

    def over_tiles(self, body: list[Statement]) -> list[Statement]:
        """What a block does with each of its tiles: one, where it shares that with others."""
        if self.plan.parts > 1:
            return body
        head = "for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x)"
        return [For(head, (Do("go_to(tile)"), *body))]

    def by_lines(self, first: str) -> list[Statement]:
        """Tiles follow each other along n."""
        of_batch = " % blocks_m" if self.plan.in_batches else ""
        return [
            Let("const int", "m0", f"{first}{self.tile} / blocks_n{of_batch} * kTileM"),
            Let("const int", "n0", f"{self.tile} % blocks_n * kTileN"),
        ]

    def grouped(self, tile: str, first: str) -> list[Statement]:
        """Lines of tiles follow each other in groups, each column by column."""
        m0, n0 = self._in_group(first)
        place = [Let("const int", "m0", m0), Let("const int", "n0", n0)]
        return [Comment(GROUPED), Let("const int", "tile", tile), *self._group(), *place]

    def _group(self) -> list[Statement]:
        return [
            Let("const int", "group_m", "tile / (kGroup * blocks_n) * kGroup"),
            Let("const int", "lines", "min(blocks_m - group_m, kGroup)"),
        ]

    def _in_group(self, first: str) -> tuple[str, str]:
        """Where a tile starts along m and along n."""
        m0 = f"{first}(group_m + tile % (kGroup * blocks_n) % lines) * kTileM"
        return m0, "tile % (kGroup * blocks_n) / lines * kTileN"


GROUPED = "Tiles of kGroup lines follow each other by columns: blocks that run together share sides in L2."
