"""How the scales of groups of columns lie in memory: values [rows, groups] in the order that their reader wants."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

WORD = 4  # scales of one byte in a 32-bit word
TMA_BYTES = 16  # that bulk copies of tensors want lines to be a multiple of


class ScaleLayout(StrEnum):
    """The order of [rows, groups] in memory, which is lines of elements, `pitch` elements apart.

    row_major     a line for each row
    column_major  a line for each group, of one element a row
    packed        a line for each four groups, of one 32-bit word a row: a byte each, that of the first group lowest,
                  and bytes of 0 where the last line has fewer than four groups
    """

    ROW_MAJOR = "row_major"
    COLUMN_MAJOR = "column_major"
    PACKED = "packed"

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

    def shape(self, rows: int, groups: int) -> tuple[int, int]:
        """Lines, and the elements of one."""
        match self:
            case ScaleLayout.ROW_MAJOR:
                return rows, groups
            case ScaleLayout.COLUMN_MAJOR:
                return groups, rows
            case ScaleLayout.PACKED:
                return -(-groups // WORD), WORD * rows

    def pitch(self, rows: int, groups: int, element_bytes: int) -> int:
        """The pitch where nobody says another one: rows lie side by side, lines of rows start at every 16th byte."""
        _, width = self.shape(rows, groups)
        step = 1 if self is ScaleLayout.ROW_MAJOR else TMA_BYTES // element_bytes
        return -(-width // step) * step

    def by_row(self, memory: Any) -> Any:
        """The values of lines in memory, [rows, groups]; packed, behind them the bytes that belong to no group."""
        match self:
            case ScaleLayout.ROW_MAJOR:
                return memory
            case ScaleLayout.COLUMN_MAJOR:
                return memory.T
            case ScaleLayout.PACKED:
                lines, width = memory.shape
                words = memory.reshape(lines, width // WORD, WORD)
                return words.swapaxes(0, 1).reshape(width // WORD, lines * WORD)
