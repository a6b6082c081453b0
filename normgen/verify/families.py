"""Which adversarial rows a problem is checked on, and its inputs.

A column output sums all rows, so that one row can hide the others. The gradient of a built-in norm cannot: its terms
are of the size of dy. In that of any formula they may grow with x (db = Σ dy |x|) or lose their bound (a temperature's
exponentials of rows near the largest number). Such a family is left out of the default rows: where, in the median
column, the error bound of its rows in the sum is not below the term of a single normal row, the check of that sum
would not see a normal row that is lost. A spec's accuracy contract says the same by name and goes before this rule.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from normgen.problem.problem import Problem
from normgen.verify.check import column_parts
from normgen.verify.error_model import stored
from normgen.verify.rows import ALL, NON_FINITE, Inputs, draw_inputs
from normgen.verify.sources import is_derived

SAMPLE_ROWS = 4
LARGEST_COLS = 1024  # of the sample: 0.1 s


def make_inputs(problem: Problem, *, seed: int = 0, families: tuple[str, ...] | None = None) -> Inputs:
    """`draw_inputs` of the chosen families, by default `default_families`."""
    return draw_inputs(problem, default_families(problem) if families is None else families, seed=seed)


def default_families(problem: Problem) -> tuple[str, ...]:
    """All of them; for a problem with column outputs, what one sum over rows can hold and the contract covers."""
    if not any(t.is_row_sum for t in problem.tensors):
        return ALL
    finite = tuple(name for name in ALL if name not in NON_FINITE)
    if problem.spec.accuracy_rows:
        return tuple(name for name in finite if name in problem.spec.accuracy_rows)
    return tuple(name for name in finite if name not in _hiding(_sample(problem))) if is_derived(problem) else finite


def _sample(problem: Problem) -> Problem:
    cols = min(problem.cols, LARGEST_COLS)
    return replace(problem, rows=SAMPLE_ROWS, cols=cols, pitch=cols, accumulate=False, deterministic=False)


@cache
def _hiding(problem: Problem) -> frozenset[str]:
    """Families whose rows hide a normal row in some column output."""
    normal = column_parts(problem, draw_inputs(problem, ("normal",)))
    seen = {name: float(np.median(part.size)) / SAMPLE_ROWS for name, part in normal.items()}
    found = set()
    for family in ALL:
        if family in ("normal", *NON_FINITE):
            continue
        parts = column_parts(problem, draw_inputs(problem, (family,)))
        for name, part in parts.items():
            bound = stored(part.bounded(SAMPLE_ROWS), problem.tensor(name).dtype)
            if not np.median(bound) < seen[name]:
                found.add(family)
    return frozenset(found)
