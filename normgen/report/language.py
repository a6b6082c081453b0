"""Tables of the formula language for docs/language.md: derived from those that the reader and the emitter use."""

from __future__ import annotations

from pathlib import Path

from normgen.bench.accuracy.bits import Bits
from normgen.dtypes import DTYPES, DType
from normgen.report.techniques import markdown_table
from normgen.spec.functions import (
    CONDITIONS,
    CONSTANTS,
    ELEMENTWISE,
    MOVES,
    PICKS,
    POSITIONS,
    POWERS,
    PRODUCTS,
    REDUCTIONS,
    ROUNDINGS,
    SOURCES,
    TOTALS,
    Function,
)
from normgen.spec.spec import Role
from normgen.trials.file import read


def roles_part(_: Path) -> str:
    rows: list[tuple[str, ...]] = [(f"`{role.value}`", f"[{', '.join(role.kind.axes)}]", role.words) for role in Role]
    return markdown_table(("role", "shape", "what it is"), rows)


def functions_part(_: Path) -> str:
    """Reductions first; each with an optional size of groups."""
    reduced: list[tuple[str, ...]] = [(f"`{f.name}(x)` `{f.name}(x, G)`", f.words) for f in REDUCTIONS.values()]
    tables = (POSITIONS, PICKS, MOVES, TOTALS, ELEMENTWISE, ROUNDINGS, SOURCES)
    others = [(f"`{_call(f)}`", f.words) for table in tables for f in table.values()]
    conditions = [(f"`{_condition(f)}`", f.words) for f in CONDITIONS.values()]
    conditions += [(f"`{' ** '.join(f.arguments)}`", f.words) for f in POWERS.values()]
    products = [(f"`{' @ '.join(f.arguments)}`", f.words) for f in PRODUCTS.values()]
    names = [(f"`{name}`", words) for name, words in CONSTANTS.items()]
    return markdown_table(("written", "what it gives"), [*reduced, *others, *conditions, *products, *names])


def dtypes_part(_: Path) -> str:
    head = ("dtype", "also", "bytes", "range", "rounding", "in CUDA headers", "from")
    return markdown_table(head, [_dtype(dtype) for dtype in DTYPES.values()])


def bits_part(root: Path) -> str:
    """The presets beside the libraries themselves: what share of each output's elements has other bits."""
    files = sorted((root / "generated" / "evidence").glob("presets_*.json"))
    if not files:
        return "No run is published yet.\n"
    return "\n".join(_bits(read(Bits, file)) for file in files)


def _bits(run: Bits) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items()))
    how = f"{run.where}, seed {run.options['seed']}, {run.values:.3g} values each"
    where = f"{how}; {versions or 'no library installed'}.\n\n"
    rows: list[tuple[str, ...]] = []
    for one in run.found:
        shares = [f"{n} {d.differing} of {d.of} ({100 * d.share:.3g} %)" for n, d in one.outputs.items()]
        library = one.library + (f" `{one.function}`" if one.function else "")
        rows.append((f"`{one.spec}`", library, ", ".join(shares) or f"not run: {one.note}"))
    return where + markdown_table(("spec", "library", "elements with other bits"), rows)


def _call(function: Function) -> str:
    return f"{function.name}({', '.join(function.arguments)})"


def _condition(function: Function) -> str:
    return f"not {function.arguments[0]}" if function.takes == 1 else f" {function.name} ".join(function.arguments)


def _dtype(dtype: DType) -> tuple[str, ...]:
    ends = f"{dtype.least:.6g} to {dtype.largest:.6g}"
    rounding = "up" if dtype.rounds_up else "nearest even"
    rounding += ", saturates" if dtype.saturates else ""
    rounding += "" if dtype.for_nan is None else f", NaN is {dtype.for_nan:g}"
    aliases = ", ".join(f"`{alias}`" for alias in dtype.aliases if alias != dtype.name)
    return (
        f"`{dtype.name}`",
        aliases,
        str(dtype.bytes) if dtype.packed == 1 else f"{dtype.bytes} of {dtype.packed}",
        ends,
        rounding,
        f"`{dtype.cuda_ctype}`",
        f"sm_{dtype.least_arch}",
    )
