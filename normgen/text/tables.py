"""Tables and figures as plain text, for people."""

from __future__ import annotations

import math
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; all but the first and last are right-aligned."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    last = len(header) - 1

    def cell(text: str, i: int) -> str:
        return text.rjust(widths[i]) if 0 < i < last else text.ljust(widths[i])

    return "\n".join("  ".join(cell(text, i) for i, text in enumerate(line)).rstrip() for line in lines)


def filled(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table without the columns that no row fills; the first and the last one stay."""
    last = len(header) - 1
    kept = [i for i in range(len(header)) if i in (0, last) or any(row[i] not in ("", "-") for row in rows)]
    return table([header[i] for i in kept], [[row[i] for i in kept] for row in rows])


def figure(value: float | None, digits: int = 4) -> str:
    """A number with that many significant digits, without an exponent; `-` for None; nan and inf as they are."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    before = len(str(int(abs(value))))
    return f"{value:.{max(0, digits - before)}f}"
