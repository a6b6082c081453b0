"""Which adversarial rows a problem is checked on, and its inputs.

A column output sums all rows, so that one row can hide the others. The gradient of a built-in norm cannot: its terms
are of the size of dy. In that of any formula they may grow with x (db = Σ dy |x|) or lose their bound (a temperature's
exponentials of rows near the largest number). Such a family is left out of the default rows: where, in the median
column, the error bound of its rows in the sum is not below the term of a single normal row, the check of that sum
would not see a normal row that is lost. A spec's accuracy contract says the same by name and goes before this rule.

Masked rows, the lowest finite number of the dtype, are for formulas that take a row's maximum, as a softmax does: in
any other its squares and sums overflow.

Then come the rows in which another input is at an extreme (`varied/values.py`), in calls of their own where rows are
summed. The values of scalars, and whether parameters may be negative, are found here too: where rows are not finite
that are so at the defaults, the formula is not meant for such values.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.problem.tensors import TensorUse, tensors_in_place
from normgen.spec.formula import Call, Expression, children, parse_formula
from normgen.spec.spec import Spec
from normgen.verify.bounded import NOTHING
from normgen.verify.check import Part, column_parts, prepare
from normgen.verify.contraction.sides import HARMLESS, OF_MAXIMUM, WHOLE, by_inner, factors, reads_saved, summed
from normgen.verify.derivative_proof import proven_program
from normgen.verify.error_model import ColumnSum, stored, sums_of_groups
from normgen.verify.interpret import Array
from normgen.verify.rows import (
    ALL,
    FAMILY_ROWS,
    NON_FINITE,
    TIES_OF_4,
    Inputs,
    as_large_as,
    draw_inputs,
    draw_rows,
)
from normgen.verify.sources import is_derived
from normgen.verify.varied.values import MASKS, ORDINARY, candidates, extremes, is_covered, label_scalars, of_tensor

SAMPLE_ROWS = 4
LARGEST_COLS = 1024  # of the sample: 0.1 s
LARGEST_NARROW = 1e6  # of dtypes that rows of ordinary numbers may leave: f16, and those of 8 bits
BEYOND = ("mixed_sign", "normal")  # rows in which results come to it: of one magnitude, and of many
SMALL_COLS = 48  # of the sample that tells whether values of scalars and parameters have a bound


def make_inputs(
    problem: Problem,
    *,
    seed: int = 0,
    families: tuple[str, ...] | None = None,
    pitches: Mapping[str, int] | None = None,
    scalars: Mapping[str, float] | None = None,
    ends: str = "",
    signed: Collection[str] = (),
    sizes: Mapping[str, float] | None = None,
    numbers: NDArray[np.intp] | None = None,
    is_tied: bool = False,
) -> Inputs:
    """`draw_inputs` of the chosen families; by default of all `families_of` the problem, with `signed_parameters`."""
    chosen, left_out = families, tuple[str, ...]()
    if chosen is None:
        chosen, signed = families_of(problem), signed or signed_parameters(problem)
        left_out = tuple(name for name in fitting_families(problem) if name not in chosen)
    drawn = draw_inputs(
        problem,
        chosen,
        seed=seed,
        pitches=pitches,
        scalars=scalars,
        ends=ends,
        signed=signed,
        sizes=sizes,
        numbers=numbers,
        is_tied=is_tied,
    )
    return replace(drawn, left_out=left_out)


def families_of(problem: Problem) -> tuple[str, ...]:
    """The families of rows of a plain call: of the first input, then those with another input at an extreme.

    The latter not where rows are summed: their size would widen the bound of the sum for all others.
    """
    return (*default_families(problem), *(() if problem.sums_rows else _extremes(problem)))


def families_apart(problem: Problem) -> list[tuple[str, ...]]:
    """Of a sum over rows, the families with another input at an extreme, for calls of their own.

    Those that can stand in one sum come first, together; each of the others is alone.
    """
    found = tuple(name for name in _extremes(problem) if is_covered(problem, name)) if problem.sums_rows else ()
    if not found:
        return []
    hiding = _hiding(_sample(problem), found)
    alone = [name for name in found if name in hiding or name.partition(" ")[2] in MASKS]
    together = tuple(name for name in found if name not in alone)
    return [*([together] if together else []), *((name,) for name in alone)]


def family_rows(problem: Problem) -> int:
    """Rows with two of every family, and no fewer than a problem of one input has."""
    return max(FAMILY_ROWS, 2 * len(families_of(problem)))


def _extremes(problem: Problem) -> tuple[str, ...]:
    """Not where lines are those of inner: beside its sides such a product reads nothing along them.

    A factor that may leave a product's sum is not 0: a formula may divide by it, and infinities inside meet.
    """
    if by_inner(problem):
        return ()
    leaving = factors(problem) if summed(problem) else frozenset()
    found = extremes(problem, takes_maximum=_has_maximum(problem.spec))
    return tuple(name for name in found if of_tensor(name) not in leaving or name.split()[1] in ("thirties", "huge"))


def default_families(problem: Problem) -> tuple[str, ...]:
    """Those that fit its formulas; of a problem with column outputs, what one sum over rows can hold."""
    fitting = fitting_families(problem)
    if summed(problem) is not None:
        of_maximum = tuple(OF_MAXIMUM) if _has_maximum(problem.spec) else ()
        return HARMLESS if by_inner(problem) and reads_saved(problem) else (*fitting, WHOLE, *of_maximum)
    if not problem.sums_rows:
        return fitting
    finite = tuple(name for name in fitting if name not in NON_FINITE)
    if problem.spec.accuracy_rows:
        return tuple(name for name in finite if name in problem.spec.accuracy_rows)
    hides = is_derived(problem) or problem.totals
    return tuple(name for name in finite if name not in _hiding(_sample(problem), finite)) if hides else finite


def fitting_families(problem: Problem) -> tuple[str, ...]:
    """All rows, masked ones only where a formula takes the row's maximum, ties of 4 bits where these are written."""
    found = tuple(name for name in ALL if name != "masked" or _has_maximum(problem.spec))
    return (*found, TIES_OF_4) if any(t.dtype.packed > 1 for t in problem.elem_tensors) else found


@lru_cache(maxsize=1024)
def _has_maximum(spec: Spec) -> bool:
    return any(_takes_maximum(parse_formula(formula.text)) for formula in spec.formulas)


def _takes_maximum(tree: Expression) -> bool:
    return (isinstance(tree, Call) and tree.function in ("max", "argmax")) or any(map(_takes_maximum, children(tree)))


def _sample(problem: Problem) -> Problem:
    whole = problem.spec.whole_cols
    cols = min(problem.cols, max(1, LARGEST_COLS // whole) * whole)
    return replace(problem, rows=SAMPLE_ROWS, cols=cols, pitch=cols, accumulate=False, deterministic=False)


@lru_cache(maxsize=1024)
def _hiding(problem: Problem, families: tuple[str, ...]) -> frozenset[str]:
    """Those families whose rows hide a normal row in some column output."""
    signed = signed_parameters(problem)
    normal = column_parts(problem, draw_inputs(problem, (ORDINARY,), signed=signed))
    groups = {name: problem.tensor(name).group for name in normal}
    sizes = {name: _row_size(part, groups[name]) for name, part in normal.items()}
    told = {name: size > 0 for name, size in sizes.items()}  # of columns, or groups, that add anything at all
    seen = {name: float(np.median(size[told[name]])) for name, size in sizes.items() if told[name].any()}
    found = set()
    for family in families:
        if family in (ORDINARY, *NON_FINITE):
            continue
        parts = column_parts(problem, draw_inputs(problem, (family,), signed=signed))
        for name, part in parts.items():
            group = groups[name]
            found_sums = sums_of_groups(part, SAMPLE_ROWS, group) if group else part.bounded(SAMPLE_ROWS)
            bound = stored(found_sums, problem.tensor(name).dtype)
            if name in seen and not np.median(bound[told[name]]) < seen[name]:
                found.add(family)
    return frozenset(found)


def _row_size(part: ColumnSum, group: int) -> Array:
    """About what one of the sample's rows adds to each column; to each group, whose columns differ in their signs."""
    size = part.size / SAMPLE_ROWS
    return np.sqrt(np.square(size).reshape(len(size), -1, group).sum(axis=-1)) if group else size


def finite_to(problem: Problem) -> tuple[str, ...]:
    """Up to which size a row of each elem input is finite under every schedule: "x: 2^58", others being ordinary.

    That is where all bounds are finite: beyond, an intermediate may overflow, of a sum of squares one of 2^128, and one
    schedule finds NaN, inf - inf, where another one finds 0. Said only of inputs that may be larger, and where ordinary
    rows have bounds at all.
    """
    if problem.inner:
        return ()
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


def scalar_values(problem: Problem) -> dict[str, tuple[float, ...]]:
    """The further values of each scalar that the reference depends on, its default not among them.

    Without ranges in the spec those at which every family of rows stays finite; there may be none.
    """
    return dict(_scalar_values(_small(problem)))


def signed_parameters(problem: Problem) -> tuple[str, ...]:
    """The parameters and numbers on the device that may be negative: rows stay finite."""
    return _signed(_small(problem))


def parameters(problem: Problem) -> tuple[str, ...]:
    """What is read and the same for every row, or for those of a batch, and no whole number or matrix."""
    read = (t for t in problem.tensors if not t.is_written and not t.kind.by_row)
    return tuple(t.name for t in read if not (t.dtype.is_integer or t.kind.is_shared_matrix))


def _small(problem: Problem) -> Problem:
    """A few rows and columns of the same formulas."""
    whole = problem.spec.whole_cols
    cols = min(problem.cols, max(1, SMALL_COLS // whole) * whole)
    small = replace(problem, rows=SAMPLE_ROWS, rows_per_batch=min(1, problem.rows_per_batch), cols=cols, pitch=cols)
    small = replace(small, inner=min(problem.inner, SMALL_COLS))
    tensors = tensors_in_place(problem.tensors, {})
    return replace(small, tensors=tensors, accumulate=False, deterministic=False, stable_parameters=False)


@lru_cache(maxsize=1024)
def _scalar_values(problem: Problem) -> tuple[tuple[str, tuple[float, ...]], ...]:
    signed, ranges = signed_parameters(problem), dict(problem.spec.scalar_ranges)
    families = tuple(f for f in (*fitting_families(problem), *_extremes(problem)) if f not in NON_FINITE)
    is_of_inner = by_inner(problem)
    problem = replace(problem, inner=len(families)) if is_of_inner else problem.with_rows(len(families))
    drawn = draw_inputs(problem, families, signed=signed)  # saved values are those of the default in every case
    usual = _Bounds(problem, drawn)
    read = dict(problem.spec.scalars)  # a spec has no scalar that no output depends on
    if problem.direction is Direction.BACKWARD:
        read = dict.fromkeys(proven_program(problem).scalars, 0.0) if is_derived(problem) else {}
    labels = {name for names in label_scalars(problem.spec, problem.tensors).values() for name in names}
    found = []
    for name, values in candidates(problem).items():
        others = {v: _Bounds(problem, replace(drawn, scalars=drawn.scalars | {name: v})) for v in values}
        if name in read or any(usual.differs_from(other) for other in others.values()):
            is_free = name in ranges or name in labels  # a row whose label was ignored may be one of no column
            kept = values if is_free else tuple(v for v, other in others.items() if usual.kept_by(other))
            found.append((name, kept))
    return tuple(found)


@lru_cache(maxsize=1024)
def _signed(problem: Problem) -> tuple[str, ...]:
    names = parameters(problem)
    if not names:
        return ()
    usual = _Bounds(problem, draw_inputs(problem, (ORDINARY,)))
    if usual.kept_by(_Bounds(problem, draw_inputs(problem, (ORDINARY,), signed=names))):
        return names
    alone = {name: _Bounds(problem, draw_inputs(problem, (ORDINARY,), signed=(name,))) for name in names}
    return tuple(name for name, bounds in alone.items() if usual.kept_by(bounds))


def may_tie(problem: Problem) -> bool:
    """Whether what is stored in 8 bits may be a number that is added, alone or divided by one on the device.

    Float32 holds it then, whatever else the formula has, so that a tie between two numbers of 8 bits is one.
    """
    if problem.inner or not any(t.is_written and t.kind.is_elem and t.dtype.bytes == 1 for t in problem.tensors):
        return False
    small = _small(problem)
    inputs = draw_inputs(small, (ORDINARY,), is_tied=True)
    with np.errstate(all="ignore"):
        parts = [part for part in prepare(small, inputs).parts if part.tensor.dtype.bytes == 1]
    return any(bool(((part.bound == NOTHING) & (part.want != 0)).any()) for part in parts)


def beyond_stored(problem: Problem) -> dict[str, float]:
    """The parameter, and its size, at which an output of rows comes to the largest number of its dtype; else nothing.

    A norm's rows are of size 1, whatever its input is: alone a weight, or a scale, takes them to where f16 has
    infinities and 8 bits saturate.
    """
    return dict(_beyond_stored(_small(problem))) if not problem.inner and parameters(problem) else {}


@lru_cache(maxsize=1024)
def _beyond_stored(problem: Problem) -> tuple[tuple[str, float], ...]:
    for tensor in problem.tensors:
        if not (tensor.is_written and tensor.kind.is_elem and tensor.dtype.largest < LARGEST_NARROW):
            continue
        for name in parameters(problem):
            usual = _size_of(problem, tensor, {name: 1.0})
            sizes = (tensor.dtype.largest / usual, usual / tensor.dtype.largest) if usual else ()
            for size in (min(size, problem.tensor(name).dtype.largest) for size in sizes):
                if _reaches(problem, tensor, {name: size}):
                    return ((name, size),)
    return ()


def _size_of(problem: Problem, tensor: TensorUse, sizes: Mapping[str, float]) -> float:
    """The median magnitude of an output in rows of one magnitude; 0 where it is not finite."""
    with np.errstate(all="ignore"):
        found = _elements(problem, tensor, sizes)
    return float(np.median(found)) if np.isfinite(found).all() else 0.0


def _reaches(problem: Problem, tensor: TensorUse, sizes: Mapping[str, float]) -> bool:
    """Whether some of its elements are beyond the largest number, and some are below."""
    with np.errstate(all="ignore"):
        is_beyond = _elements(problem, tensor, sizes) >= tensor.dtype.largest
    return bool(0 < is_beyond.mean() < 1)


def _elements(problem: Problem, tensor: TensorUse, sizes: Mapping[str, float]) -> Array:
    drawn = draw_inputs(problem, BEYOND, sizes=sizes)
    parts = [part.want for part in prepare(problem, drawn).parts if part.tensor.name == tensor.name]
    return np.asarray(np.abs(np.concatenate(parts)))


class _Bounds:
    """What the reference says of all rows: the share of finite elements of each, and of bounded elements of all."""

    def __init__(self, problem: Problem, inputs: Inputs) -> None:
        with np.errstate(all="ignore"):
            self.parts: tuple[Part, ...] = prepare(problem, inputs).parts
        self.finite = [np.isfinite(part.want).mean(axis=1) for part in self.parts]
        told = sum(int((np.isfinite(part.want) & (part.bound < np.inf)).sum()) for part in self.parts)
        self.bounded = told / max(1, sum(part.want.size for part in self.parts))

    def kept_by(self, other: _Bounds) -> bool:
        """Whether no row loses most of its values, nor all rows most of their bounds."""
        is_finite = (bool(np.all(b >= a / 2)) for a, b in zip(self.finite, other.finite, strict=True))
        return other.bounded >= self.bounded / 2 and all(is_finite)

    def differs_from(self, other: _Bounds) -> bool:
        return any(
            not np.array_equal(a.want, b.want, equal_nan=True) for a, b in zip(self.parts, other.parts, strict=True)
        )
