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

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.spec.formula import Call, Expression, children, parse_formula
from normgen.verify.check import column_parts, prepare
from normgen.verify.error_model import stored
from normgen.verify.rows import ALL, NON_FINITE, Inputs, as_large_as, draw_inputs, draw_rows
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


@lru_cache(maxsize=1024)
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


def finite_to(problem: Problem) -> tuple[str, ...]:
    """Up to which size a row of each elem input is finite under every schedule: "x: 2^58", others being ordinary.

    That is where all bounds are finite: beyond, an intermediate may overflow, of a sum of squares one of 2^128, and one
    schedule finds NaN, inf - inf, where another one finds 0. Said only of inputs that may be larger, and where ordinary
    rows have bounds at all.
    """
    sample = replace(problem.with_rows(1), accumulate=False, deterministic=False, any_cols=False)
    return _finite_to(replace(sample, rows_per_batch=min(1, problem.rows_per_batch)))


@lru_cache(maxsize=1024)
def _finite_to(problem: Problem) -> tuple[str, ...]:
    saved = {t.name for t in problem.spec.tensors if t.role.is_written}  # what they hold depends on the inputs
    read = [t for t in problem.tensors if not t.is_written and t.name not in saved]
    inputs = [t for t in read if t.kind.is_elem and not t.dtype.is_integer]
    found = []
    for tensor in inputs:
        least, most = 0, math.frexp(tensor.dtype.largest)[1] - 1
        if not _is_finite(problem, tensor, least) or _is_finite(problem, tensor, most):
            continue
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if _is_finite(problem, tensor, middle) else (least, middle)
        found.append(f"{tensor.name}: 2^{least}")
    return tuple(found)


def _is_finite(problem: Problem, tensor: TensorUse, exponent: int) -> bool:
    """Whether all results of a row of this size are bounded."""
    if tensor.name == problem.spec.inputs[0].name:
        inputs = draw_inputs(problem, (as_large_as(exponent),))
    else:
        inputs = draw_inputs(problem, ("normal",))
        drawn = draw_rows((as_large_as(exponent),), problem.cols, tensor.dtype, np.random.default_rng(0))
        inputs.arrays[tensor.name][...] = tensor.dtype.stored(drawn)
    return all(bool(np.isfinite(part.bound).all()) for part in prepare(problem, inputs).parts)
