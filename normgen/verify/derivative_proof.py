"""Is the derived backward program the derivative of the forward formula? Proven on numbers before it is trusted.

The formula of a spec is all that its author wrote, so it alone says what is right. With L = Σ dy y, a row of x and
random directions d, the derived gradient must satisfy <dx, d> = dL(x + h d)/dh at h = 0, row by row, and dweight the
same over all rows. The left side is `ProgramWalk` over the derived program, the right side Richardson's extrapolation
of central differences of the formula as `interpret` walks it, both in float64. How far the two may be apart:

* Extrapolation. D(h) = (L(h) - L(-h)) / 2h = L' + c2 h² + c4 h⁴ + ...; with steps h, h/4, h/16,
  A(h) = (16 D(h/4) - D(h)) / 15 is free of c2 and B = (256 A(h/4) - A(h)) / 255 of c4. The error of B is at most
  |B - A(h)|, the error of the coarser one, some 255 times that of A(h/4) (as Ridders 1982 does, Adv. Eng. Softw. 4).
* What the steps straddle. The even part (L(h) + L(-h)) / 2, extrapolated as D is, must give L itself. A pole nearer
  than h, or a wave shorter than it, leaves both series looking smooth and this one off by as much as it adds to L, say
  m: a slope at steps of h misses m / h of it or more. So m has to be rounding, or next to nothing beside
  (L(h) + L(-h)) / 2 - L, or small beside it and fading with h until it is one of these.
* What no step resolves, such as sin(1e9 x), agrees at some step by chance. A finer step that leaves more open than its
  roundings explain says that of all coarser ones. No slope is called wrong that the chain rule, in numbers, finds too.
* Rounding. x, the parameters and d are multiples of 2^-20 and h is a power of two, so x ± h d is exact. L(±h) is off
  by E at most, D(h) by E/h, A and B by their weighted sums. E is the bound of the error model for the loss and for
  <dx, d>, whose roundings all are multiples of u: it holds for float64 with u = 2^-53 in the place of 2^-24. Bounds
  that end somewhere, as that of a sine does at 2, are no such multiples and go on growing here (`_Linear`).

Of the steps 2^-4 ... 2^-22 every row takes those with the smallest bound. A row does not count along a direction
where at every step the formula is not finite, jumps or bends: a comparison, an abs, minimum or maximum changes its
branch between x - h d and x + h d, or compares what may be anything, such as 1 / (x - x) (row maxima need no such
care: `differentiate` demands that their cotangent cancels). Nor does one where the chain rule has no number: tanh(inf
* x) is 1, its derivative 0 times inf. Nor does one whose bound says nothing, being over `RESOLUTION` of the slope or
the loss. One where a function jumps within the roundings of float32 may agree, but is never called wrong. If no row
is left, inputs of one sign are drawn, above 0 and then below, for formulas such as log(x) and the root of x / sum(x);
after that the derivative counts as unproven, which is an error too (not at the problem's own cols, of which a single
one may leave a formula without a value, and not at other values of scalars than their defaults).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import F32, DType
from normgen.errors import VerificationError
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse, tensors_in_place
from normgen.program.ir import RowProgram
from normgen.program.source import written_program
from normgen.spec.spec import Formula, Kind
from normgen.verify.bounded import Bounded, whole
from normgen.verify.contraction.product import WITH_INNER, product, summed_axis
from normgen.verify.error_model import Float32Error
from normgen.verify.function_errors import JUMPS
from normgen.verify.interpret import (
    EXTREMA,
    POSITIONS,
    Array,
    Evaluation,
    Float64,
    constants,
    drawn,
    spec_formulas,
    spread_over_row,
    spread_over_rows,
)
from normgen.verify.program_walk import ProgramWalk, V
from normgen.verify.rows import Pen, of_rows
from normgen.verify.varied.values import FULL_VALUES, as_text, candidates, combinations

ROWS, COLS, INNER = 7, 33, 20
ROWS_PER_BATCH = 3  # the last batch is shorter
LARGEST_COLS = 4096  # the problem's own cols are proven too up to here: 0.2 s a spec
LARGEST_MATRIX = 1 << 16  # elements of [inner, cols], where there is inner
DIRECTIONS = 2
STEPS = tuple(2.0**-k for k in range(4, 24, 2))
GRID = 2.0**20
FLOAT64 = 2.0**-53 / F32.unit_roundoff  # bounds are proportional to the unit roundoff
LARGEST_NOISE = 8  # times the noise of B: what roundings can add to |B - A(h)| and to m / h together
RESOLUTION = 2.0**-10  # a slope counts when it is told to three digits
LOSS = "the loss"  # no formula can have this name


@dataclass(frozen=True, kw_only=True)
class Slope:
    """A derivative of L along one direction: as derived, by differences, and how far apart the two may be."""

    tensor: str
    shape: tuple[int, int]
    row: int  # -1: all rows
    derived: float
    differences: float
    bound: float

    @property
    def ok(self) -> bool:
        return abs(self.derived - self.differences) <= self.bound

    def __str__(self) -> str:
        where = "all rows" if self.row < 0 else f"row {self.row}"
        size = f"{self.shape[0]} x {self.shape[1]}"
        numbers = f"derived {self.derived:.12g}, by differences {self.differences:.12g} ± {self.bound:.3g}"
        return f"<d{self.tensor}, d> for {where} of {size}: {numbers}"


def proven_program(problem: Problem) -> RowProgram:
    """The program of a backward problem as derived, once it is proven against the forward formula.

    Raises VerificationError when the two disagree, with spec, formula and numbers, or when nothing can be said.
    """
    plain = replace(
        problem,
        tensors=tensors_in_place(problem.tensors, {}),
        rows=ROWS,
        rows_per_batch=ROWS_PER_BATCH if problem.rows_per_batch else 0,
        pitch=problem.cols,
        accumulate=False,
        deterministic=False,
        stable_parameters=False,
    )
    return _proven(plain)


@lru_cache(maxsize=1024)
def _proven(problem: Problem) -> RowProgram:
    program = written_program(problem)
    prove(problem, program)
    return program


def prove(problem: Problem, program: RowProgram) -> tuple[Slope, ...]:
    """Every slope that was compared, at 7 x 33, or some whole groups, and at the problem's own cols.

    At 7 x 33 further values of the scalars are proven, too, each in one of few combinations.
    Raises as `proven_program`.
    """
    whole = problem.spec.whole_cols
    plain = max(-(-COLS // whole), min(3, LARGEST_COLS // whole)) * whole  # several groups where that is quick
    is_own = problem.cols <= LARGEST_COLS and problem.cols * problem.inner <= LARGEST_MATRIX
    widths = [(plain, min(INNER, problem.inner * INNER)), *([(problem.cols, problem.inner)] if is_own else [])]
    found: list[Slope] = []
    points: list[tuple[int, int, Mapping[str, float]]] = [(*width, {}) for width in dict.fromkeys(widths)]
    points += [(*widths[0], scalars) for scalars in _other_scalars(problem)]
    for cols, inner, scalars in points:
        small = replace(problem, rows=ROWS, cols=cols, pitch=cols, inner=inner)
        for name in _differentiated(small):
            slopes = list(_slopes(small, program, name, scalars))
            if not slopes and cols == plain and not scalars:
                rule = f"the derived d{name} of spec '{problem.spec.name}' cannot be proven"
                nowhere = f"no row of {ROWS} x {cols} random ones where the formula is finite and smooth"
                hint = "a gradient is proven near numbers of a normal distribution; there the formula must have a slope"
                raise VerificationError(rule, received=nowhere, hint=hint)
            if wrong := [slope for slope in slopes if not slope.ok]:
                rule = f"the derived d{name} of spec '{problem.spec.name}' is not the derivative of its formula"
                where = "".join(f", {as_text(n, value)}" for n, value in scalars.items())
                raise _error(problem, program, rule, f"{wrong[0]}{where} ({len(wrong)} of {len(slopes)} are wrong)")
            found += slopes
    return tuple(found)


def _other_scalars(problem: Problem) -> list[dict[str, float]]:
    """Further values of the scalars, of their default's sign: of the others it is not known that rows are finite."""
    ranges, defaults = dict(problem.spec.scalar_ranges), dict(problem.spec.scalars)
    values = {
        name: tuple(v for v in found if name in ranges or v * defaults[name] > 0 or (not defaults[name] and v > 0))
        for name, found in candidates(problem).items()
    }
    return combinations(values)[: min(FULL_VALUES, max(map(len, values.values()), default=0))]


def _differentiated(problem: Problem) -> tuple[str, ...]:
    return tuple(t.name for t in problem.spec.tensors if f"d{t.name}" in problem.results)


def _error(problem: Problem, program: RowProgram, rule: str, received: str) -> VerificationError:
    formulas = "\n".join(f"    {f.name} = {f.text}" for f in problem.spec.formulas)
    where = problem.spec.file or problem.spec.name
    hint = f"this is a fault of normgen, not of {where}; report it with these:\n{formulas}\n{program}"
    return VerificationError(rule, received=received, hint=hint)


def _slopes(problem: Problem, program: RowProgram, name: str, scalars: Mapping[str, float]) -> Iterator[Slope]:
    """The slopes along random directions of one input or parameter, at these values of scalars."""
    rng = np.random.default_rng([problem.cols, *name.encode()])
    found: list[Slope] = []
    for signs in ((0,), (1, -1)):  # a formula may be a number where all inputs have one sign: a root of x / sum(x)
        for sign in signs:
            base = _draw(problem, rng, sign=sign)
            forward = _Forward(problem=problem, base=base, scalars={**dict(problem.spec.scalars), **scalars})
            for _ in range(1 if scalars else DIRECTIONS):
                direction = _on_grid(rng.standard_normal(base[name].shape))
                found += forward.compared(program, name, direction)
        if found:
            break
    return iter(found)


def _proven_kind(kind: Kind) -> Kind:
    """A matrix of each batch is proven as that of one: the rows of a product of two batches never meet."""
    return kind.of_batch if kind.is_batch_matrix else kind


def _on_grid(value: Array) -> Array:
    return np.asarray(np.rint(value * GRID) / GRID)


def _draw(problem: Problem, rng: np.random.Generator, *, sign: int) -> dict[str, Array]:
    """The forward's inputs and parameters, and dy, in kind shapes; inputs of one sign, or of both where it is 0."""
    spec, rows = problem.spec, np.arange(problem.rows)
    problem = replace(problem, rows_per_batch=ROWS_PER_BATCH)  # also of tensors that only the forward reads
    drawn: dict[str, Array] = {}
    read = [t for t in spec.tensors if not t.role.is_written and t.name not in problem.absent]
    uses = [TensorUse(name=t.name, kind=_proven_kind(t.kind), dtype=F32, is_written=False, group=t.group) for t in read]
    uses += [t for t in problem.tensors if t.name in {f"d{o.name}" for o in spec.outputs}]
    inputs = {t.name for t in read if t.kind.by_row}
    pen = Pen(problem=replace(problem, inner=0), of_row=("normal",) * problem.rows, rng=rng)
    for use in uses:
        side = use.kind.broadcast_shape(problem.sizes) if use.kind.by_inner else None
        value = rng.standard_normal(side) if side else pen.draw(use)
        value = sign * (np.abs(value) + 0.5) if sign and use.name in inputs else value
        value = of_rows(value, use, problem, rows) if use.kind.by_batch or use.kind.is_spread else value
        drawn[use.name] = _on_grid(value.reshape(use.kind.broadcast_shape(problem.sizes)))
    return drawn


@dataclass(frozen=True, kw_only=True)
class _Branches(Float64):
    """Float64 that also notes which branch every function that jumps or bends takes, and holds constants."""

    noted: list[Array] = field(default_factory=list)
    held: list[Array] = field(default_factory=list)  # what `constant` and `cast` have of the point itself
    is_moved: bool = False

    def cast(self, a: Array, dtype: DType) -> Array:
        """Its value at the point itself, and from there the derivative 1, saturated or not."""
        found, here = self._held(super().cast(a, dtype)), self._held(a)
        if not self.is_moved or (a.ndim == 0 and np.array_equal(a, here, equal_nan=True)):
            return found  # also of an infinite number of the formula; inf - x may have moved
        return found + (a - here)

    def call(self, name: str, *args: Array) -> Array:
        found = super().call(name, *args)
        if name == "constant":
            return self._held(found)
        if name in ("abs", "minimum", "maximum"):
            self.noted.append(np.sign(args[0] if name == "abs" else args[0] - args[1]))
        elif name == "clamp":
            x, low, high = args
            self.noted.extend(np.sign(apart) for apart in (x - low, x - high, low - high))
        elif name in JUMPS or name == "where":
            self.noted.append(found if name in JUMPS else np.asarray(args[0] != 0, dtype=np.float64))
        return found

    def _held(self, value: Array) -> Array:
        """The value at the point itself, wherever this walk is."""
        if self.is_moved:
            return self.held.pop(0)
        self.held.append(value)
        return value

    def reduce(self, name: str, arg: Array, group: int = 0) -> Array:
        found = super().reduce(name, arg, group)
        if name in POSITIONS:
            self.noted.append(found)
        return found


@dataclass(frozen=True, kw_only=True)
class _Linear(Float32Error):
    """The error model with bounds that grow as the unit roundoff does, or faster, so that float64 has its share."""

    def call(self, name: str, *args: Bounded) -> Bounded:
        found, error = super().call(name, *args), args[0].error
        if name not in ("sin", "cos", "sqrt") or error is None or found.error is None:
            return found
        slope = 0.5 / np.sqrt(np.maximum(args[0].value, 0.0)) if name == "sqrt" else 1.0
        return replace(found, error=np.fmax(found.error, np.where(error > 0, error * slope, 0.0)))

    def cast(self, a: Bounded, dtype: DType) -> Bounded:
        found = super().cast(a, dtype)
        if a.error is None or found.error is None or np.all(a.least >= a.value):  # a constant does not move
            return found
        return replace(found, error=np.fmax(found.error, a.error))


@dataclass(frozen=True, kw_only=True)
class _Loose(_Linear):
    """The error model, which also notes where a function jumps that may be on either side for all that is known.

    near  where it may for what float32 rounds, as ceil(a / (a / 3)) does: algebra may be on the other side
    """

    noted: list[NDArray[np.bool_]] = field(default_factory=list)
    near: list[NDArray[np.bool_]] = field(default_factory=list)

    def call(self, name: str, *args: Bounded) -> Bounded:
        decides = args if name in JUMPS else args[: name == "where"]
        self.noted.extend(np.isinf(a.error) & np.isfinite(a.value) for a in decides if a.error is not None)
        found = super().call(name, *args)
        if name in JUMPS and found.error is not None:
            self.near.append(np.asarray(found.error > 0))
        return found


@dataclass(frozen=True)
class _Dual:
    """A value and its derivative along the direction; None: it does not depend on what is moved."""

    value: Array
    slope: Array | None = None


@dataclass(frozen=True, kw_only=True)
class _ChainRule:
    """Values in float64 with their derivatives by the chain rule, factor by factor: 0 times an infinite one is NaN."""

    plain: Float64

    def constant(self, value: float) -> _Dual:
        return _Dual(self.plain.constant(value))

    def add(self, a: _Dual, b: _Dual) -> _Dual:
        return _Dual(a.value + b.value, _sum((a.slope, 1.0), (b.slope, 1.0)))

    def subtract(self, a: _Dual, b: _Dual) -> _Dual:
        return _Dual(a.value - b.value, _sum((a.slope, 1.0), (b.slope, -1.0)))

    def multiply(self, a: _Dual, b: _Dual) -> _Dual:
        return _Dual(a.value * b.value, _sum((a.slope, b.value), (b.slope, a.value)))

    def divide(self, a: _Dual, b: _Dual) -> _Dual:
        value = a.value / b.value
        return _Dual(value, _sum((a.slope, 1 / b.value), (b.slope, -value / b.value)))

    def negate(self, a: _Dual) -> _Dual:
        return _Dual(-a.value, _sum((a.slope, -1.0)))

    def power(self, base: _Dual, exponent: float) -> _Dual:
        local = exponent * self.plain.power(base.value, exponent - 1) if exponent else 0.0
        return _Dual(self.plain.power(base.value, exponent), _sum((base.slope, local)))

    def call(self, name: str, *args: _Dual) -> _Dual:
        value = self.plain.call(name, *(a.value for a in args))
        if name == "divide":
            return self.divide(*args)
        if name == "where":
            condition, a, b = args
            slopes = (np.zeros(()) if e.slope is None else e.slope for e in (a, b))
            return _Dual(value, None if a.slope is b.slope is None else np.where(condition.value != 0, *slopes))
        locals_ = _SLOPES[name](value, *(a.value for a in args)) if name in _SLOPES else ()
        return _Dual(value, _sum(*zip((a.slope for a in args), locals_, strict=False)))

    def named(self, a: _Dual) -> _Dual:
        return a

    def cast(self, a: _Dual, dtype: DType) -> _Dual:
        return _Dual(self.plain.cast(a.value, dtype), a.slope)

    def in_any_order(self, above: list[_Dual], below: list[_Dual], found: _Dual) -> _Dual:  # noqa: ARG002
        return found

    def reduce(self, name: str, arg: _Dual, group: int = 0) -> _Dual:
        value = self.plain.reduce(name, arg.value, group)
        if arg.slope is None or name in POSITIONS:
            return _Dual(value)
        if name in EXTREMA:
            of, _ = EXTREMA[name]
            share = np.where(of(arg.value) == value, arg.slope, 0.0)  # their mean or sum: whether it is finite counts
            return _Dual(value, self.plain.reduce("sum", share, group))
        return _Dual(value, self.plain.reduce(name, arg.slope, group))

    def roll(self, arg: _Dual, share: Fraction, by: int) -> _Dual:
        slope = None if arg.slope is None else self.plain.roll(np.asarray(arg.slope), share, by)
        return _Dual(self.plain.roll(arg.value, share, by), slope)

    def sum_rows(self, arg: _Dual, row: _Dual | None = None) -> _Dual:
        raise NotImplementedError("a loss is made of rows")

    def dot(self, a: _Dual, b: _Dual, over: Kind | None = None) -> _Dual:
        over = over or summed_axis(a.value, b.value)
        slope: Array | None = None
        if a.slope is not None:
            slope = product(np.broadcast_to(a.slope, a.value.shape), b.value, over)
        if b.slope is not None:
            moved = product(a.value, np.broadcast_to(b.slope, b.value.shape), over)
            slope = moved if slope is None else slope + moved
        return _Dual(product(a.value, b.value, over), slope)


def _sum(*terms: tuple[Array | None, Array | float]) -> Array | None:
    """The sum of slopes, each times its local derivative."""
    found = [np.asarray(slope * local) for slope, local in terms if slope is not None]
    return functools.reduce(np.add, found) if found else None


def _halves(a: Array, b: Array) -> tuple[Array, Array]:
    ahead = (1 + np.nan_to_num(np.sign(a - b))) / 2
    return ahead, 1 - ahead


# The derivatives by each argument; of what is not here they are 0.
_SLOPES: dict[str, Callable[..., tuple[Array, ...]]] = {
    "exp": lambda y, _: (y,),
    "log": lambda _, x: (1 / x,),
    "log1p": lambda _, x: (1 / (1 + x),),
    "expm1": lambda _, x: (np.exp(x),),
    "sqrt": lambda y, _: (0.5 / y,),
    "rsqrt": lambda y, x: (-0.5 * y / x,),
    "abs": lambda _, x: (np.sign(x),),
    "sigmoid": lambda y, _: (y * (1 - y),),
    "tanh": lambda y, _: (1 - y * y,),
    "erf": lambda _, x: (2 / math.sqrt(math.pi) * np.exp(-x * x),),
    "sin": lambda _, x: (np.cos(x),),
    "cos": lambda _, x: (-np.sin(x),),
    "maximum": lambda _, a, b: _halves(a, b),
    "minimum": lambda _, a, b: _halves(b, a),
    "**": lambda _, x, p: (p * np.power(x, p - 1),),
    "clamp": lambda _, x, low, high: (
        1.0 * ((low <= x) & (x <= high)),
        1.0 * ((x < low) & (low <= high)),
        1.0 * ((x > high) | (low > high)),
    ),
}


@dataclass(frozen=True, kw_only=True)
class _Forward:
    """L of every row around one point, [rows, 1]."""

    problem: Problem
    base: Mapping[str, Array]
    scalars: Mapping[str, float]
    formulas: dict[str, Formula] = field(init=False)

    def __post_init__(self) -> None:
        spec = self.problem.spec
        formulas = dict(spec_formulas(spec, self.base))
        given = [t for t in spec.outputs if f"d{t.name}" in self.base]
        terms = []
        for tensor in given:  # of a total, what the row adds
            text = tensor.name
            if tensor.kind is Kind.SCALAR:
                text = formulas[tensor.name].text.removeprefix("sum_rows")
            formulas[f"{LOSS} by {tensor.name}"] = Formula(name=tensor.name, text=f"d{tensor.name} * {text}")
            terms.append(f"sum(d{tensor.name} * {text})" if tensor.kind.is_elem else f"d{tensor.name} * {text}")
        formulas[LOSS] = Formula(name=LOSS, text=" + ".join(terms))
        object.__setattr__(self, "formulas", formulas)

    def numbers(self) -> dict[str, Array]:
        scalars = {name: np.asarray(float(np.float32(value))) for name, value in self.scalars.items()}
        rows, cols = np.arange(self.problem.rows), self.problem.cols
        seeds = {t.name: number for number, t in enumerate(self.problem.spec.seeds, start=1)}
        return {**scalars, **constants(rows, cols, self.problem.inner), **drawn(self.problem.spec, seeds, rows, cols)}

    def at(self, values: Mapping[str, Array], held: list[Array] | None = None) -> tuple[Array, _Branches]:
        """L around the point, and what was noted on the way; `held` are the constants at the point itself."""
        arithmetic = _Branches(cols=self.problem.cols, held=list(held or ()), is_moved=held is not None)
        walk = Evaluation(arithmetic, self.formulas, {**values, **self.numbers()}, file=self.problem.spec.file)
        return self._by_row(walk.value(LOSS)), arithmetic

    def bounded(self, arithmetic: Float32Error | None = None) -> Evaluation[Bounded]:
        known = {name: Bounded(value) for name, value in self.base.items()}
        known |= {name: whole(value) for name, value in self.numbers().items()}
        arithmetic = arithmetic or _Linear(cols=self.problem.cols)
        return Evaluation(arithmetic, self.formulas, known, file=self.problem.spec.file)

    def _by_row(self, value: Array) -> Array:
        return np.array(np.broadcast_to(value, (self.problem.rows, 1)))

    def compared(self, program: RowProgram, name: str, direction: Array) -> list[Slope]:
        """The derived slopes of the rows that count, beside their differences: not those that may be anything."""
        with np.errstate(all="ignore"):
            slope, bound, clear = self._differences(name, direction)
            size = np.maximum(np.abs(slope), self._loss_size())
            told = (bound <= RESOLUTION * size) & np.isfinite(size) & np.isfinite(slope)
            chained = self._by_chain_rule(name, direction)
            told &= np.isfinite(chained)
            kept = np.flatnonzero(told[:, 0])
            if not kept.size:
                return []
            found = self._derived(program, name, direction, kept)
        slope, bound, clear, chained = slope[kept], bound[kept], clear[kept], chained[kept]
        rows = kept.tolist()
        if direction.shape[-2] == 1:  # a parameter: one gradient of all rows
            slope, bound, rows = slope.sum(axis=0, keepdims=True), bound.sum(axis=0, keepdims=True), [-1]
            clear, chained = np.asarray(clear.all(axis=0, keepdims=True)), chained.sum(axis=0, keepdims=True)
        rounding = np.zeros(1) if found.error is None else FLOAT64 * found.error
        bound = bound + rounding
        bound = np.where(np.isnan(bound) & np.isfinite(found.value), np.inf, bound)  # 0 times no bound
        shape = (self.problem.rows, self.problem.cols)
        slopes = [
            Slope(tensor=name, shape=shape, row=row, derived=float(a), differences=float(b), bound=float(e))
            for row, a, b, e in zip(rows, found.value[:, 0], slope[:, 0], bound[:, 0], strict=True)
        ]
        clear = clear & ~(np.abs(found.value - chained) <= 2 * rounding)  # no step resolved that slope
        if any(value <= 0 for value in self.scalars.values()):  # a gradient takes them for what keeps from 0
            clear = clear & ~np.isnan(found.value)
        slopes = [one for one, is_clear in zip(slopes, clear[:, 0].tolist(), strict=True) if is_clear or one.ok]
        if told_of := [one for one in slopes if not np.isinf(one.bound)]:
            return told_of
        # The model bounds none where elements are chosen that lie near each other; then those count that agree, but
        # none is called wrong.
        near = [replace(one, bound=float(RESOLUTION * size.max())) for one in slopes]
        return [one for one in near if one.ok]

    def _by_chain_rule(self, name: str, direction: Array) -> Array:
        """The slope of every row, [rows, 1], as far as products of derivatives say it."""
        known = {n: _Dual(value) for n, value in {**self.base, **self.numbers()}.items()}
        known[name] = _Dual(self.base[name], direction)
        walk = Evaluation(_ChainRule(plain=Float64(cols=self.problem.cols)), self.formulas, known)
        slope = walk.value(LOSS).slope
        return self._by_row(np.zeros(1) if slope is None else slope)

    def _loss_size(self) -> Array:
        walk = self.bounded()
        given = [t.name for t in self.problem.spec.outputs if f"d{t.name}" in self.base]
        terms = (spread_over_rows(walk.value(f"{LOSS} by {n}").value, self.problem.rows) for n in given)
        return np.asarray(sum(np.abs(term).sum(axis=1, keepdims=True) for term in terms))

    def _differences(self, name: str, direction: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
        """Slope and bound of every row by extrapolated differences, each [rows, 1]; inf where a row does not count.

        And whether no function jumps so near that what algebra wrote otherwise may be on the other side.
        """
        loose = _Loose(cols=self.problem.cols)
        loss = self.bounded(loose).value(LOSS)
        sure, clear = (self._unbent(at, [np.zeros(()) for _ in at]) for at in (loose.noted, loose.near))
        error = self._by_row(FLOAT64 * (loss.error if loss.error is not None else np.zeros(1)))
        loss_here, here = self.at(self.base)
        slopes, evens, noises, smooth = [], [], [], []
        for h in STEPS:
            ahead, on = self.at({**self.base, name: self.base[name] + h * direction}, here.held)
            behind, off = self.at({**self.base, name: self.base[name] - h * direction}, here.held)
            slopes.append((ahead - behind) / (2 * h))
            evens.append((ahead - loss_here) / 2 + (behind - loss_here) / 2)
            noises.append(error / h)
            smooth.append(self._unbent(here.noted, on.noted) & self._unbent(here.noted, off.noted))
        best, least = self._by_row(np.zeros(1)), self._by_row(np.full(1, np.inf))
        unresolved = missed_finer = self._by_row(np.zeros(1))
        was_even = self._by_row(np.zeros(1)) > 0
        for at in reversed(range(len(STEPS) - 2)):
            value, apart, noise = _extrapolated(slopes[at : at + 3], noises[at : at + 3])
            missed, _, _ = _extrapolated(evens[at : at + 3], noises[at : at + 3])
            apart = apart + np.abs(missed) / STEPS[at + 2]
            unresolved = np.fmax(unresolved, apart - LARGEST_NOISE * noise)
            bound = np.maximum(apart, unresolved) + noise
            counts = sure & smooth[at] & smooth[at + 1] & smooth[at + 2] & np.isfinite(bound)
            missed, is_even = np.abs(missed), np.abs(missed) <= LARGEST_NOISE * STEPS[at + 2] * noise
            share = missed / np.abs(evens[at])
            is_even |= was_even & (share <= RESOLUTION) & (missed_finer <= missed / 4) | (share <= RESOLUTION**2)
            counts &= is_even
            was_even, missed_finer = is_even, missed
            bound = np.where(counts, bound, np.inf)
            best, least = np.where(bound < least, value, best), np.minimum(bound, least)
        return best, least, clear

    def _unbent(self, before: Sequence[NDArray[Any]], after: Sequence[NDArray[Any]]) -> NDArray[np.bool_]:
        """[rows, 1]: whether every branch is the same."""
        same = self._by_row(np.ones(1)) > 0
        for a, b in zip(before, after, strict=True):
            alike = a == b
            in_rows = alike.all(axis=0) if np.ndim(alike) == WITH_INNER else alike
            same &= spread_over_row(in_rows, self.problem.cols).all(axis=1, keepdims=True)
        return same

    def _derived(self, program: RowProgram, name: str, direction: Array, rows: NDArray[np.intp]) -> Bounded:
        """<d name, d> of the derived program on these rows: [len(rows), 1], or [1, 1] of a parameter.

        The value is that of float64, which takes the branches that the formula takes there; the error model takes a
        finite number for what it does not know, and with it another branch.
        """
        total = self.problem.rows
        in_kept = functools.partial(_taken, rows=rows, total=total)
        along = in_kept(direction) if direction.shape[-2] == total else direction
        bounded, numbers = self.bounded(), self.numbers()
        exact = Evaluation(Float64(cols=self.problem.cols), self.formulas, {**self.base, **numbers})
        in_rows = {n: in_kept(v) if v.ndim and v.shape[-2] == total else v for n, v in numbers.items()}
        known = {n: whole(value) for n, value in in_rows.items()}
        values: dict[str, Array] = dict(in_rows)
        for load in program.loads:
            found, value = bounded.value(load.name), exact.value(load.name)
            varies = load.kind.by_row or _proven_kind(load.kind).by_batch
            known[load.name] = found.each(in_kept) if varies else found
            values[load.name] = in_kept(value) if varies else value
        result = self.problem.results[f"d{name}"]
        has_columns = along.shape[-1] > 1  # d of a row value has none
        loose = ProgramWalk(_Linear(cols=self.problem.cols), program, known)
        tight = ProgramWalk(Float64(cols=self.problem.cols), program, values)
        of_batches = _proven_kind(
            self.problem.tensor(result).kind
        ).by_batch  # each row has a direction of its own, and what it adds
        axes = {"of_batches": of_batches, "has_inner": along.ndim == WITH_INNER, "has_columns": has_columns}
        error = _along(loose, result, Bounded(along), **axes).error
        return Bounded(_along(tight, result, along, **axes), error)


def _along(
    walk: ProgramWalk[V], gradient: str, direction: V, *, of_batches: bool, has_inner: bool, has_columns: bool
) -> V:
    """<gradient, direction> of each row."""
    derived = walk.column_term(gradient) if of_batches else walk.value(gradient)
    product = walk.arithmetic.multiply(derived, direction)
    product = walk.arithmetic.reduce("sum", product) if has_inner else product
    return walk.arithmetic.reduce("sum", product) if has_columns else product


def _taken(value: NDArray[Any], rows: NDArray[np.intp], total: int) -> NDArray[Any]:
    if value.ndim == WITH_INNER:
        return np.broadcast_to(value, (len(value), total, value.shape[-1]))[:, rows]
    return np.broadcast_to(value, (total, *value.shape[1:]))[rows] if value.ndim == 2 else value


def _extrapolated(slopes: list[Array], noises: list[Array]) -> tuple[Array, Array, Array]:
    """B of the module's docstring from D(h), D(h/4), D(h/16), how far it is from A(h), and what its roundings add."""
    coarse, fine = ((16 * slopes[i + 1] - slopes[i]) / 15 for i in (0, 1))
    noise_coarse, noise_fine = ((16 * noises[i + 1] + noises[i]) / 15 for i in (0, 1))
    best = (256 * fine - coarse) / 255
    return best, np.abs(best - coarse), (256 * noise_fine + noise_coarse) / 255
