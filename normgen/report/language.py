"""Tables of the formula language for docs/language.md: derived from those that the reader and the emitter use."""

from __future__ import annotations

from pathlib import Path

from normgen.dtypes import DTYPES, DType
from normgen.report.techniques import markdown_table
from normgen.spec.functions import (
    CONDITIONS,
    CONSTANTS,
    ELEMENTWISE,
    PICKS,
    POSITIONS,
    REDUCTIONS,
    ROUNDINGS,
    SOURCES,
    TOTALS,
    Function,
)
from normgen.spec.spec import Role


def roles_part(_: Path) -> str:
    rows: list[tuple[str, ...]] = [(f"`{role.value}`", f"[{', '.join(role.kind.axes)}]", role.words) for role in Role]
    return markdown_table(("role", "shape", "what it is"), rows)


def functions_part(_: Path) -> str:
    """Reductions first; each with an optional size of groups."""
    reduced: list[tuple[str, ...]] = [(f"`{f.name}(x)` `{f.name}(x, G)`", f.words) for f in REDUCTIONS.values()]
    tables = (POSITIONS, PICKS, TOTALS, ELEMENTWISE, ROUNDINGS, SOURCES)
    others = [(f"`{_call(f)}`", f.words) for table in tables for f in table.values()]
    conditions = [(f"`{_condition(f)}`", f.words) for f in CONDITIONS.values()]
    names = [(f"`{name}`", words) for name, words in CONSTANTS.items()]
    return markdown_table(("written", "what it gives"), [*reduced, *others, *conditions, *names])


def dtypes_part(_: Path) -> str:
    head = ("dtype", "also", "bytes", "range", "rounding", "in CUDA headers", "from")
    return markdown_table(head, [_dtype(dtype) for dtype in DTYPES.values()])


def _call(function: Function) -> str:
    return f"{function.name}({', '.join(function.arguments)})"


def _condition(function: Function) -> str:
    return f"not {function.arguments[0]}" if function.takes == 1 else f" {function.name} ".join(function.arguments)


def _dtype(dtype: DType) -> tuple[str, ...]:
    ends = f"{dtype.least:.6g} to {dtype.largest:.6g}"
    rounding = "up" if dtype.rounds_up else "nearest even"
    rounding += (", saturates" if dtype.saturates else "") + (", NaN is 0" if dtype.is_integer else "")
    aliases = ", ".join(f"`{alias}`" for alias in dtype.aliases if alias != dtype.name)
    return (
        f"`{dtype.name}`",
        aliases,
        str(dtype.bytes),
        ends,
        rounding,
        f"`{dtype.cuda_ctype}`",
        f"sm_{dtype.least_arch}",
    )
