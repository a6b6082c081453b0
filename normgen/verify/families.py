"""Which adversarial rows a problem is checked on, and its inputs.

A column output sums all rows, so that one row can hide the others. The gradient of a built-in norm cannot: its terms
are of the size of dy. In that of any formula they may grow with x (db = Σ dy |x|) or lose their bound (a temperature's
exponentials of rows near the largest number). Such a family is left out of the default rows: where, in the median
column, the error bound of its rows in the sum is not below the term of a single normal row, the check of that sum
would not see a normal row that is lost. A spec's accuracy contract says the same by name and goes before this rule.

Masked rows, the lowest finite number of the dtype, are for formulas that take a row's maximum, as a softmax does: in
any other its squares and sums overflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from normgen.problem.problem import Problem
from normgen.spec.formula import Call, Expression, children, parse_formula
from normgen.verify.check import column_parts
from normgen.verify.contraction.sides import HARMLESS, WHOLE, by_inner, reads_saved, summed
from normgen.verify.error_model import stored
from normgen.verify.rows import ALL, NON_FINITE, Inputs, draw_inputs
from normgen.verify.sources import is_derived

SAMPLE_ROWS = 4
LARGEST_COLS = 1024  # of the sample: 0.1 s


def make_inputs(
    problem: Problem,
    *,
    seed: int = 0,
    families: tuple[str, ...] | None = None,
    pitches: Mapping[str, int] | None = None,
) -> Inputs:
    """`draw_inputs` of the chosen families, by default `default_families`."""
    if families is not None:
        return draw_inputs(problem, families, seed=seed, pitches=pitches)
    chosen = default_families(problem)
    left_out = tuple(name for name in fitting_families(problem) if name not in chosen)
    return replace(draw_inputs(problem, chosen, seed=seed, pitches=pitches), left_out=left_out)


def default_families(problem: Problem) -> tuple[str, ...]:
    """Those that fit its formulas; of a problem with column outputs, what one sum over rows can hold."""
    fitting = fitting_families(problem)
    if summed(problem) is not None:
        return HARMLESS if by_inner(problem) and reads_saved(problem) else (*fitting, WHOLE)
    if not problem.sums_rows:
        return fitting
    finite = tuple(name for name in fitting if name not in NON_FINITE)
    if problem.spec.accuracy_rows:
        return tuple(name for name in finite if name in problem.spec.accuracy_rows)
    hides = is_derived(problem) or problem.totals
    return tuple(name for name in finite if name not in _hiding(_sample(problem))) if hides else finite


def fitting_families(problem: Problem) -> tuple[str, ...]:
    """All rows, masked ones only where a formula takes the row's maximum."""
    has_maximum = any(_takes_maximum(parse_formula(formula.text)) for formula in problem.spec.formulas)
    return tuple(name for name in ALL if has_maximum or name != "masked")


def _takes_maximum(tree: Expression) -> bool:
    return (isinstance(tree, Call) and tree.function in ("max", "argmax")) or any(map(_takes_maximum, children(tree)))


def _sample(problem: Problem) -> Problem:
    cols = min(problem.cols, LARGEST_COLS)
    return replace(problem, rows=SAMPLE_ROWS, cols=cols, pitch=cols, accumulate=False, deterministic=False)


@cache
def _hiding(problem: Problem) -> frozenset[str]:
    """Families whose rows hide a normal row in some column output."""
    normal = column_parts(problem, draw_inputs(problem, ("normal",)))
    told = {name: part.size > 0 for name, part in normal.items()}  # of columns that add anything at all
    seen = {n: float(np.median(part.size[told[n]])) / SAMPLE_ROWS for n, part in normal.items() if told[n].any()}
    found = set()
    for family in fitting_families(problem):
        if family in ("normal", *NON_FINITE):
            continue
        parts = column_parts(problem, draw_inputs(problem, (family,)))
        for name, part in parts.items():
            bound = stored(part.bounded(SAMPLE_ROWS), problem.tensor(name).dtype)
            if name in seen and not np.median(bound[told[name]]) < seen[name]:
                found.add(family)
    return frozenset(found)
