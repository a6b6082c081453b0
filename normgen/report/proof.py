"""What a check varies, as tables for docs/proof.md: derived from the code that varies it."""

from __future__ import annotations

from pathlib import Path

from normgen.measure.calls import FAR_ROW
from normgen.program.source import problem_for
from normgen.report.techniques import markdown_table
from normgen.spec.reader import list_specs, load
from normgen.verify import ALL, families_apart, families_of, scalar_values
from normgen.verify.contraction.sides import PRODUCT_PARAMETERS_ARE, RIGHT
from normgen.verify.varied.values import (
    BEYOND_IS,
    EXTREMES_ARE,
    INDICES,
    NOT_VARIED,
    PARAMETERS_ARE,
    as_text,
    of_tensor,
)

ROWS, COLS = 64, 256  # of the problems whose values are shown: they depend on neither


def varied_part(_: Path) -> str:
    """What takes which values, what is not varied, and the values of each operation."""
    extremes = [f"`{name}`: {words}" for name, words in EXTREMES_ARE.items()]
    rows: list[tuple[str, ...]] = [
        ("another input, a gradient that comes in", "rows", "; ".join(extremes)),
        (
            "a label",
            "rows",
            f"{', '.join(f'`{name}`' for name in INDICES)} (`2^30` where its dtype has no larger one), and each scalar "
            "that it is compared with",
        ),
        ("a parameter", "columns", "; ".join(PARAMETERS_ARE)),
        ("a parameter of a product of matrices", "columns, or inner", "the same; " + ", ".join(PRODUCT_PARAMETERS_ARE)),
        ("the right side of a product", "columns of the result", ", ".join(f"`{name}`" for name in RIGHT)),
        ("a parameter, or one number on the device", "calls", f"of a size at which {BEYOND_IS}"),
        ("one number on the device", "calls", "of either sign"),
        (
            "a run-time scalar",
            "calls",
            "its default, and for each operation what the second table says: the first two values with every family of "
            "rows, others, small and large, with rows that tell them; a random number that it is compared with",
        ),
        ("the number of a row", "calls", f"the last ones of more than {FAR_ROW}, where columns are few"),
        ("an optional input, a statistic", "calls", "null, where the kernel takes that, in any number of columns too"),
    ]
    table = markdown_table(("what", "along", "values"), rows)
    others = "\n".join(f"* {said}" for said in NOT_VARIED)
    return f"{table}\nNot varied:\n\n{others}\n\n{_operations()}"


def _operations() -> str:
    """The values of scalars, and the families of rows beside those of the first input, of every forward operation."""
    rows: list[tuple[str, ...]] = []
    for name, file in sorted(list_specs().items()):
        spec = load(file)
        problem = problem_for(spec, shape=(ROWS, COLS), inner=COLS if spec.has_inner else None)
        values = [as_text(n, v) for n, found in scalar_values(problem).items() for v in found]
        others = [f for f in families_of(problem) if f not in ALL and (not problem.inner or of_tensor(f))] + [
            f for g in families_apart(problem) for f in g
        ]
        if values or others:
            rows.append((f"`{name}`", ", ".join(values), ", ".join(others)))
    return markdown_table(("operation", "scalars", "rows of other inputs"), rows)
