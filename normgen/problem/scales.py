"""How the scales of groups of columns lie in memory: values [rows, groups] in the order that their reader wants."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

WORD = 4  # scales of one byte in a 32-bit word
TILE_ROWS, TILE_BYTES = 128, 512  # of a tile of WORD groups
TMA_BYTES = 16  # that bulk copies of tensors want lines to be a multiple of


class ScaleLayout(StrEnum):
    """The order of [rows, groups] in memory, which is lines of elements, `pitch` elements apart.

    row_major     a line for each row
    column_major  a line for each group, of one element a row
    packed        a line for each four groups, of one 32-bit word a row: a byte each, that of the first group lowest,
                  and bytes of 0 where the last line has fewer than four groups
    swizzled      a line for each 128 rows, of 512 bytes for each four groups, as tensor cores read them: group g of row
                  r in byte 16 (r % 32) + 4 (r % 128 / 32) + g % 4, and bytes of 0 where there is no row or group
    """

    ROW_MAJOR = "row_major"
    COLUMN_MAJOR = "column_major"
    PACKED = "packed"
    SWIZZLED = "swizzled"

    @property
    def axes(self) -> tuple[str, ...]:
        """What the memory's sizes count, the pitch leading along the first."""
        match self:
            case ScaleLayout.ROW_MAJOR:
                return "rows", "groups"
            case ScaleLayout.COLUMN_MAJOR:
                return "groups", "rows"
            case ScaleLayout.PACKED:
                return f"groups / {WORD}", "rows", str(WORD)
            case ScaleLayout.SWIZZLED:
                return f"rows / {TILE_ROWS}", f"groups / {WORD}", "32", "4", str(WORD)

    def shape(self, rows: int, groups: int) -> tuple[int, int]:
        """Lines, and the elements of one."""
        match self:
            case ScaleLayout.ROW_MAJOR:
                return rows, groups
            case ScaleLayout.COLUMN_MAJOR:
                return groups, rows
            case ScaleLayout.PACKED:
                return -(-groups // WORD), WORD * rows
            case ScaleLayout.SWIZZLED:
                return -(-rows // TILE_ROWS), TILE_BYTES * -(-groups // WORD)

    def width(self, groups: int) -> int:
        """The values that memory has of a row: of its groups, and zeros where these end within a word."""
        return -(-groups // WORD) * WORD if self.is_in_words else groups

    @property
    def is_in_words(self) -> bool:
        """Whether four groups, of a byte each, lie side by side."""
        return self in (ScaleLayout.PACKED, ScaleLayout.SWIZZLED)

    def pitch(self, rows: int, groups: int, element_bytes: int) -> int:
        """The pitch where nobody says another one: rows lie side by side, lines of rows start at every 16th byte."""
        _, width = self.shape(rows, groups)
        step = TMA_BYTES // element_bytes if self in (ScaleLayout.COLUMN_MAJOR, ScaleLayout.PACKED) else 1
        return -(-width // step) * step

    def by_row(self, memory: Any) -> Any:
        """The values of lines in memory, [rows, groups]; of words, with the bytes that belong to no row or group."""
        match self:
            case ScaleLayout.ROW_MAJOR:
                return memory
            case ScaleLayout.COLUMN_MAJOR:
                return memory.T
            case ScaleLayout.PACKED:
                lines, width = memory.shape
                words = memory.reshape(lines, width // WORD, WORD)
                return words.swapaxes(0, 1).reshape(width // WORD, lines * WORD)
            case ScaleLayout.SWIZZLED:
                lines, width = memory.shape
                tiles = memory.reshape(lines, width // TILE_BYTES, 32, 4, WORD)
                return tiles.transpose(0, 3, 2, 1, 4).reshape(lines * TILE_ROWS, width // TILE_BYTES * WORD)
