"""Formulas evaluated straight from their text, with no compiler in between.

A formula is parsed with Python's `ast`, checked against an allow-list and walked. The walk is generic over an
`Arithmetic`: `Float64` gives values, `error_model.Float32Error` gives values together with error bounds.
Nothing here imports `normgen.program`, so that a mistake of the compiler cannot repeat itself in its own check.

Shapes: elem [rows, cols], row [rows, 1], col [1, cols], scalar []; along inner see `contraction.product`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import CASTS, F32, DType
from normgen.errors import SpecError, did_you_mean
from normgen.spec.spec import Formula, Kind, Role, Spec
from normgen.verify.contraction.product import AXIS, WITH_INNER, in_lines, leading, product, summed_axis
from normgen.verify.philox import uniform

Array = NDArray[np.float64]
V = TypeVar("V")

# Of a row: what is compared of each element, and which of them it is.
EXTREMA: Mapping[str, tuple[Callable[[Array], Array], Callable[..., Array]]] = {
    "max": (np.asarray, np.max),
    "min": (np.asarray, np.min),
    "absmax": (np.abs, np.max),
}
REDUCTIONS = ("sum", "mean", *EXTREMA)  # over the row, one argument
POSITIONS: Mapping[str, Callable[..., Any]] = {"argmax": np.argmax, "argmin": np.argmin}  # the first one; of NaN, too
FUNCTIONS = {
    **dict.fromkeys(("exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "abs", "sign", "sigmoid"), 1),
    **dict.fromkeys(("tanh", "erf", "sin", "cos"), 1),
    **dict.fromkeys(("floor", "ceil", "round", "constant"), 1),
    **dict.fromkeys(("minimum", "maximum", "divide"), 2),
    **dict.fromkeys(("clamp", "where"), 3),
}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
LARGEST_EXPONENT = 64


class Arithmetic(Protocol[V]):
    """What the walk needs of a number system."""

    def constant(self, value: float) -> V: ...
    def add(self, a: V, b: V) -> V: ...
    def subtract(self, a: V, b: V) -> V: ...
    def multiply(self, a: V, b: V) -> V: ...
    def divide(self, a: V, b: V) -> V: ...
    def negate(self, a: V) -> V: ...
    def power(self, base: V, exponent: float) -> V: ...
    def call(self, name: str, *args: V) -> V: ...
    def named(self, a: V) -> V: ...
    def cast(self, a: V, dtype: DType) -> V: ...
    def in_any_order(self, above: list[V], below: list[V], found: V) -> V: ...
    def reduce(self, name: str, arg: V, group: int = 0) -> V: ...
    def roll(self, arg: V, share: Fraction, by: int) -> V: ...
    def sum_rows(self, arg: V, row: V | None = None) -> V: ...
    def dot(self, a: V, b: V, over: Kind | None = None) -> V: ...


def erf(x: Array) -> Array:
    """The error function in float64: its Taylor series below 2, the continued fraction of erfc above.

    Abramowitz and Stegun 7.1.6 and 7.1.14; both agree with `math.erf` to 1e-15.
    """
    size = np.minimum(np.abs(x), 6.0)  # erf(6) rounds to 1
    near = np.minimum(size, 2.0)
    term = np.array(near)
    total = np.array(near)
    for k in range(1, 60):
        term = term * (2 * near * near) / (2 * k + 1)
        total = total + term
    below = 2 / np.sqrt(np.pi) * np.exp(-near * near) * total
    far = np.maximum(size, 2.0)
    tail = np.array(far)
    for k in range(120, 0, -1):
        tail = far + (k / 2) / tail
    above = 1 - np.exp(-far * far) / (np.sqrt(np.pi) * tail)
    return np.asarray(np.sign(x) * np.where(size < 2.0, below, above), dtype=np.float64)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))  # never overflows
    return np.asarray(np.where(x >= 0, 1 / (1 + e), e / (1 + e)))


_CONDITIONS: dict[str, Callable[..., Any]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
}


def _truth(holds: Callable[..., Any]) -> Callable[..., Array]:
    """1 where it holds, else 0."""
    return lambda *args: np.asarray(holds(*args), dtype=np.float64)


_FLOAT64: dict[str, Callable[..., Any]] = {
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "abs": np.abs,
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "erf": erf,
    "sin": np.sin,
    "cos": np.cos,
    "divide": np.divide,
    "constant": np.asarray,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "sign": lambda x: np.nan_to_num(np.sign(x)),  # a tie has no side, nor has NaN
    "%": np.fmod,
    "**": lambda x, p: np.power(np.where((p % 1 != 0) & ((x == 0) | np.isneginf(x)), np.abs(x), x), p),  # C's pow
    "clamp": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "where": lambda condition, a, b: np.where(condition != 0, a, b),
    **{name: _truth(holds) for name, holds in _CONDITIONS.items()},
}


@dataclass(frozen=True, kw_only=True)
class Float64:
    """Plain float64 arithmetic on rows of `cols` elements."""

    cols: int

    def constant(self, value: float) -> Array:
        return np.asarray(value, dtype=np.float64)

    def add(self, a: Array, b: Array) -> Array:
        return a + b

    def subtract(self, a: Array, b: Array) -> Array:
        return a - b

    def multiply(self, a: Array, b: Array) -> Array:
        return a * b

    def divide(self, a: Array, b: Array) -> Array:
        return a / b

    def negate(self, a: Array) -> Array:
        return -a

    def power(self, base: Array, exponent: float) -> Array:
        """A half is a square root, also of -inf, whose power by C's `pow` is a number."""
        if exponent % 1 != 0.5:
            return np.asarray(base**exponent)
        root = np.sqrt(base)
        return np.asarray(root * base ** (exponent - 0.5) if exponent > 0 else base ** (exponent + 0.5) / root)

    def call(self, name: str, *args: Array) -> Array:
        return np.asarray(_FLOAT64[name](*args))

    def named(self, a: Array) -> Array:
        """The value of a formula, which others read by its name."""
        return a

    def cast(self, a: Array, dtype: DType) -> Array:
        """The exact value, within the dtype's range: a rounding is an error of the kernel, which its bound covers."""
        return np.asarray(dtype.within(a))

    def in_any_order(self, above: list[Array], below: list[Array], found: Array) -> Array:  # noqa: ARG002
        """`found`, the product of the factors above over those below, however they were ordered."""
        return found

    def reduce(self, name: str, arg: Array, group: int = 0) -> Array:
        """Over the row; over groups of its columns, each of which then has its group's value.

        Of a value along inner over that axis.
        """
        if arg.ndim == WITH_INNER:
            found = Float64(cols=len(arg)).reduce(name, in_lines(arg))
            return found.reshape(arg.shape[1:])
        row = spread_over_row(arg, self.cols)
        if group:
            found = Float64(cols=group).reduce(name, row.reshape(-1, group))
            return np.repeat(found, group, axis=1).reshape(row.shape)
        if name in POSITIONS:
            return np.asarray(POSITIONS[name](row, axis=-1, keepdims=True), dtype=np.float64)
        if name in EXTREMA:
            of, extremum = EXTREMA[name]
            return np.asarray(extremum(of(row), axis=-1, keepdims=True))
        total = row.sum(axis=-1, keepdims=True)
        return np.asarray(total / self.cols if name == "mean" else total)

    def roll(self, arg: Array, share: Fraction, by: int) -> Array:
        """Along the row, by a share of its columns and `by` of them; a value of the whole row stays."""
        return np.roll(arg, columns_of(share, by, self.cols), axis=-1) if arg.ndim else arg

    def sum_rows(self, arg: Array, row: Array | None = None) -> Array:
        """Over all rows; `row` has their numbers, [rows, 1]: a value of no row is summed as often."""
        every = arg if row is None or arg.ndim == WITH_INNER else spread_over_rows(arg, len(row))
        return np.asarray(every.sum(axis=AXIS[Kind.ROW], keepdims=True))

    def dot(self, a: Array, b: Array, over: Kind | None = None) -> Array:
        """Σ a b over an axis; None: the one of inner and cols that both have, as in a formula."""
        return product(a, b, over or summed_axis(a, b))


def columns_of(share: Fraction, by: int, cols: int) -> int:
    """share * cols + by. Raises ValueError where a row has no such share."""
    found = share * cols + by
    if found.denominator != 1:
        raise ValueError(f"a row of {cols} columns has no {share} of them")
    return int(found)


def spread_over_row(arg: Array, cols: int) -> Array:
    """`arg` with its last axis widened to cols: a reduction of a row or scalar value still has cols terms."""
    shape = arg.shape if arg.ndim else (1, 1)
    return np.broadcast_to(arg, (*shape[:-1], cols))


def spread_over_rows(arg: Array, rows: int) -> Array:
    """`arg` with its first axis widened to rows: [rows, cols or 1]."""
    return np.broadcast_to(arg, (rows, arg.shape[-1] if arg.ndim else 1))


@dataclass
class Evaluation(Generic[V]):
    """Formulas by name over known values; a formula is evaluated when its name is first asked for.

    Raises SpecError for anything outside the allow-list, unknown names and cycles.
    """

    arithmetic: Arithmetic[V]
    formulas: Mapping[str, Formula]
    known: dict[str, V]
    file: str = "formula"
    dtypes: Mapping[str, str] = field(default_factory=dict)  # of tensors, for casts to them
    _open: list[str] = field(default_factory=list)

    def value(self, name: str) -> V:
        if name in self.known:
            return self.known[name]
        if name not in self.formulas:
            names = (*self.known, *self.formulas)
            raise self._error("unknown name in a formula", received=name, hint=did_you_mean(name, names))
        if name in self._open:
            raise self._error("formulas may not use each other in a circle", received=" -> ".join([*self._open, name]))
        self._open.append(name)
        self.known[name] = self.arithmetic.named(self._walk(parse(self.formulas[name], self.file)))
        self._open.pop()
        return self.known[name]

    def column_term(self, name: str) -> V:
        """t of a formula `sum_rows(t)`: what a sum over rows that come in blocks adds up."""
        match parse(self.formulas[name], self.file):
            case ast.Call(func=ast.Name(id="sum_rows"), args=[term]):
                return self._walk(term)
        raise self._error("a column output's formula is one sum_rows(...)", received=self.formulas[name].text)

    def total_term(self, name: str) -> tuple[V, bool]:
        """t of a formula `sum_rows(t)` or `sum_rows(sum(t))`, and whether it is the latter, which adds elements."""
        match parse(self.formulas[name], self.file):
            case ast.Call(args=[ast.Call(func=ast.Name(id="sum"), args=[term])]):
                return self._walk(term), True
        return self.column_term(name), False

    def _error(self, rule: str, *, received: str, hint: str | None = None) -> SpecError:
        line = self.formulas[self._open[-1]].line if self._open else 0
        return SpecError(rule, file=self.file, line=line or None, received=received, hint=hint)

    def _walk(self, node: ast.expr) -> V:
        do = self.arithmetic
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                return do.constant(float(number))
            case ast.Name(id=name):
                return self.value(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return do.negate(self._walk(operand))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return do.call("not", self._walk(operand))
            case ast.BoolOp(op=op, values=values):
                name = "and" if isinstance(op, ast.And) else "or"
                return functools.reduce(lambda a, b: do.call(name, a, b), map(self._walk, values))
            case ast.Compare():
                return self._compare(node)
            case ast.BinOp(left=left, op=ast.Pow(), right=right) if any(
                isinstance(part, ast.Name) for part in ast.walk(right)
            ):
                return do.call("**", self._walk(left), self._scalar(right))
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                return do.power(self._walk(left), self._exponent(right))
            case ast.BinOp(left=left, op=ast.MatMult(), right=right):
                return self._product(node, self._walk(left), self._walk(right))
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, self._walk(left), self._walk(right))
            case ast.Call(func=ast.Name(id="cast"), args=[arg, ast.Name(id=to)], keywords=[]):
                return do.cast(self._walk(arg), CASTS[to if to in CASTS else self.dtypes.get(to, F32.name)])
            case ast.Call(func=ast.Name(id="random"), keywords=[]) if self._open:
                (name, formula) = (self._open[-1], self.formulas[self._open[-1]])
                places = [call.col_offset for call in _draws(parse(formula, self.file))]
                return self.value(f"random {name} {places.index(node.col_offset)}")
            case ast.Call(func=ast.Name(id="roll"), args=[arg, columns], keywords=[]):
                share, by = self._columns(columns)
                return do.roll(self._walk(arg), share, int(by))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._call(name, args)
        raise self._error(
            "a formula is made of numbers, names, + - * / ** and known functions", received=ast.unparse(node)
        )

    def _binary(self, op: ast.operator, a: V, b: V) -> V:
        do = self.arithmetic
        match op:
            case ast.Add():
                return do.add(a, b)
            case ast.Sub():
                return do.subtract(a, b)
            case ast.Mult():
                return do.multiply(a, b)
            case ast.Div():
                return do.divide(a, b)
            case ast.Mod():
                return do.call("%", a, b)
        raise self._error("a formula is made of + - * / ** @", received=type(op).__name__)

    def _product(self, node: ast.expr, a: V, b: V) -> V:
        try:
            return self.arithmetic.dot(a, b)
        except ValueError as error:
            raise self._error(str(error), received=ast.unparse(node)) from error

    def _compare(self, node: ast.Compare) -> V:
        """a < b <= c is a < b and b <= c."""
        do = self.arithmetic
        operands = [self._walk(operand) for operand in (node.left, *node.comparators)]
        found = []
        for op, a, b in zip(node.ops, operands, operands[1:], strict=False):
            name = _COMPARISONS.get(type(op))
            if name is None:
                raise self._error("a comparison is one of < <= > >= == !=", received=ast.unparse(node))
            found.append(do.call(name, a, b))
        return functools.reduce(lambda a, b: do.call("and", a, b), found)

    def _call(self, name: str, args: list[ast.expr]) -> V:
        one = {**dict.fromkeys((*REDUCTIONS, *POSITIONS, "sum_rows"), 1), "take": 2, **FUNCTIONS}
        if name not in one:
            raise self._error("unknown function in a formula", received=name, hint=did_you_mean(name, one))
        if len(args) != one[name] and not (name in REDUCTIONS and len(args) == 2 and _group(args[1])):
            raise self._error(f"'{name}' takes {one[name]} argument(s)", received=str(len(args)))
        values = [self._walk(arg) for arg in args]
        if name in REDUCTIONS:
            size = _group(args[1]) if len(args) == 2 else 0
            return self.arithmetic.reduce(name, values[0], size) if size else self.arithmetic.reduce(name, values[0])
        if name in POSITIONS:
            return self.arithmetic.reduce(name, values[0])
        if name == "take":
            return self._taken(*values)
        if name == "sum_rows":
            return self.arithmetic.sum_rows(values[0], self.known.get("row"))
        return self.arithmetic.call(name, *values)

    def _taken(self, x: V, index: V) -> V:
        """x in the column that the index names; 0 where there is none."""
        do = self.arithmetic
        is_there = do.call("==", self.value("col"), index)
        return do.reduce("sum", do.call("where", is_there, x, do.constant(0.0)))

    def _columns(self, node: ast.expr) -> tuple[Fraction, Fraction]:
        """(a, b) of a * cols + b."""
        match node:
            case ast.Constant(value=int() | float() as number):
                return Fraction(0), Fraction(str(number))
            case ast.Name(id="cols"):
                return Fraction(1), Fraction(0)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                share, by = self._columns(operand)
                return -share, -by
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._columns(operand)
            case ast.BinOp(left=left, op=op, right=right):
                (a, b), (c, d) = self._columns(left), self._columns(right)
                match op:
                    case ast.Add():
                        return a + c, b + d
                    case ast.Sub():
                        return a - c, b - d
                    case ast.Mult() if not (a and c):
                        return a * d + b * c, b * d
                    case ast.Div() if d and not c:
                        return a / d, b / d
        raise self._error("the k of roll(x, k) is made of numbers and cols", received=ast.unparse(node))

    def _scalar(self, node: ast.expr) -> V:
        """An exponent that is the same in every row and column."""
        found = self._walk(node)
        shown: Any = found
        if np.ndim(getattr(shown, "value", shown)):
            raise self._error("an exponent is made of numbers and scalars", received=ast.unparse(node))
        return found

    def _exponent(self, node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int() | float() as number) if abs(number) <= LARGEST_EXPONENT:
                return float(number)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self._exponent(operand)
            case ast.BinOp(left=left, op=ast.Div(), right=right) if divisor := self._exponent(right):
                return self._exponent(left) / divisor
        raise self._error(f"an exponent is a number up to {LARGEST_EXPONENT}", received=ast.unparse(node))


def _group(size: ast.expr) -> int:
    """The columns of a group; 0 for what is no size."""
    return size.value if isinstance(size, ast.Constant) and type(size.value) is int and size.value > 0 else 0


def parse(formula: Formula, file: str = "formula") -> ast.expr:
    """The expression of one formula; SpecError when it is not one Python expression."""
    try:
        return ast.parse(formula.text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError) as error:
        raise SpecError(
            "a formula is one expression",
            file=file,
            line=formula.line or None,
            received=f"{formula.name} = {formula.text} ({error})",
        ) from error


def formula_table(formulas: Iterable[Formula | tuple[str, str]]) -> dict[str, Formula]:
    """Formulas by name, from Formula objects or (name, text) pairs."""
    made = (f if isinstance(f, Formula) else Formula(name=f[0], text=f[1]) for f in formulas)
    return {f.name: f for f in made}


def spec_formulas(spec: Spec, given: Iterable[str]) -> dict[str, Formula]:
    """The spec's formulas, and `absent` formulas for the optional tensors that are not given.

    A total is said in sums: `total(e)` is `sum_rows(e)` of row values and `sum_rows(sum(e))` of elements.
    """
    here = set(given)
    absent = [
        Formula(name=t.name, text=t.absent, line=t.line)
        for t in spec.tensors
        if t.absent is not None and t.name not in here
    ]
    totals = {t.name for t in spec.tensors if t.role is Role.SCALAR_OUTPUT}
    written = (_in_sums(spec, f) if f.name in totals else f for f in spec.formulas)
    return formula_table([*absent, *written])


def _in_sums(spec: Spec, formula: Formula) -> Formula:
    match parse(formula, spec.file or spec.name):
        case ast.Call(func=ast.Name(id="total"), args=[term]):
            text = ast.unparse(term)
            return replace(formula, text=f"sum_rows({f'sum({text})' if formula.name in spec.elem_totals else text})")
    raise SpecError("a scalar output's formula is one total(...)", file=spec.file, received=formula.text)


def as_values(inputs: Mapping[str, Any], cols: int, scalars: Mapping[str, float]) -> dict[str, Array]:
    """Inputs as float64 arrays of kind shapes: elem as it is; a vector of a row statistic must be [rows, 1]."""
    values = {name: np.asarray(value).astype(np.float64) for name, value in inputs.items()}
    values |= {name: np.asarray(float(value)) for name, value in scalars.items()}
    rows = len(next((value for value in values.values() if value.ndim == 2), ()))
    return values | constants(np.arange(rows), cols)


def constants(rows: NDArray[Any], cols: int, inner: int = 0, *, terms: NDArray[Any] | None = None) -> dict[str, Array]:
    """What every formula knows in rows of these numbers; `inner` where there is that axis, of which all, or `terms`."""
    row, col = rows.astype(np.float64)[:, None], np.arange(cols, dtype=np.float64)[None, :]
    lengths = {"cols": np.asarray(float(cols))} | ({"inner": np.asarray(float(inner))} if inner else {})
    along = np.arange(inner) if terms is None else terms
    indices = {"term": along.astype(np.float64)[:, None, None]} if inner else {}
    return {**lengths, **indices, "inf": np.asarray(np.inf), "row": row, "col": col}


def drawn(spec: Spec, seeds: Mapping[str, int], rows: NDArray[Any], cols: int) -> dict[str, Array]:
    """The random numbers of these rows, under the names by which walks know them.

    A call of random(seed) has a number, counted through the formulas, then the `absent` ones, in the order of the file.
    """
    texts = [(f.name, f.text) for f in spec.formulas] + [(t.name, t.absent) for t in spec.tensors if t.absent]
    found: dict[str, Array] = {}
    number = 0
    for name, text in texts if seeds else ():
        for place, call in enumerate(_draws(parse(Formula(name=name, text=text)))):
            seed = next(arg.id for arg in call.args if isinstance(arg, ast.Name))
            if seed in seeds:
                found[f"random {name} {place}"] = found[f"random {number}"] = uniform(seeds[seed], rows, cols, number)
            number += 1
    return found


def seeds_of(spec: Spec, inputs: Mapping[str, Any]) -> dict[str, int]:
    """The bits of the seeds that are given."""
    return {t.name: int(np.asarray(inputs[t.name]).reshape(-1)[0]) for t in spec.seeds if t.name in inputs}


def _draws(tree: ast.expr) -> list[ast.Call]:
    """The calls of random(seed), in reading order."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "random"]
    return sorted(found, key=lambda call: call.col_offset)


def interpret(
    spec: Spec,
    inputs: Mapping[str, Any],
    scalars: Mapping[str, float] | None = None,
    *,
    names: Iterable[str] | None = None,
    rows: NDArray[np.intp] | None = None,
) -> dict[str, Array]:
    """The spec's written tensors (or the formulas in `names`) in float64, forward.

    inputs: x: [rows, cols], parameters: [cols], of batches: [batches, cols], each of equally many rows, of heads:
    [heads, cols], whose rows take turns, or [batches], [heads]; with cols / G for groups of columns that share a value,
    or with a value for each column all the same. Of a matrix for each batch there is one: its rows are those of that
    batch. Missing optional tensors take their `absent` formula. `rows`: the numbers of the rows, where these are some
    of more.
    Returns elem outputs [rows, cols], row statistics [rows] and scalar outputs [].
    """
    shape, inner = _shape_of(spec, inputs), 0
    if spec.has_inner:
        inputs, inner = _along_inner(spec, inputs)
    here = [t for t in spec.tensors if t.group and t.name in inputs]
    grouped = [t for t in here if np.shape(inputs[t.name])[-1:] not in ((), shape[-1:])]
    inputs = {**inputs, **{t.name: np.repeat(inputs[t.name], t.group, axis=-1) for t in grouped}}
    by_batch = {t.name for t in spec.tensors if t.kind.by_batch and not t.kind.by_inner}
    of_batch = {name: np.asarray(value) for name, value in inputs.items() if name in by_batch}
    repeated = {n: _each_row(value, shape[0], in_turn=spec.has_heads) for n, value in of_batch.items()}
    repeated = {n: value if value.ndim > 1 else value[:, None] for n, value in repeated.items()}
    known = as_values({**inputs, **repeated}, shape[-1], {**dict(spec.scalars), **(scalars or {})})
    numbers = np.arange(shape[0]) if rows is None else rows
    known |= constants(numbers, shape[-1], inner)
    known |= drawn(spec, seeds_of(spec, inputs), numbers, shape[-1])
    walk = Evaluation(Float64(cols=shape[-1]), spec_formulas(spec, inputs), known, file=spec.file or spec.name)
    wanted = list(names) if names is not None else [t.name for t in (*spec.outputs, *spec.statistics)]
    with np.errstate(all="ignore"):
        found = {name: walk.value(name) for name in wanted}
    kinds = {t.name: t.kind for t in spec.tensors}
    return {name: _in_kind_shape(value, shape, kinds.get(name, Kind.ELEM)) for name, value in found.items()}


def _shape_of(spec: Spec, inputs: Mapping[str, Any]) -> tuple[int, ...]:
    """[rows, cols]."""
    if not spec.has_inner:
        return np.shape(inputs[spec.inputs[0].name])
    sizes = {
        axis: size
        for t in spec.tensors
        if t.name in inputs
        for axis, size in zip(t.axes or t.kind.axes, np.shape(inputs[t.name]), strict=True)
    }
    return sizes["rows"], sizes["cols"]


def _along_inner(spec: Spec, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """The inputs in the shapes of their kinds, and the length of inner."""
    found, inner = dict(inputs), 0
    for tensor in (t for t in spec.tensors if t.name in inputs and not t.group and t.role is not Role.SEED):
        found[tensor.name] = leading(np.asarray(inputs[tensor.name]), tensor.axes or tensor.kind.axes)
        inner = len(found[tensor.name]) if tensor.kind.by_inner else inner
    return found, inner


def _each_row(value: Array, rows: int, *, in_turn: bool) -> Array:
    """What each row has of a value of batches, one behind the other, or of heads, which take turns."""
    share = np.arange(rows) % max(1, len(value)) if in_turn else np.arange(rows) // max(1, rows // max(1, len(value)))
    return np.asarray(value[share])


def _in_kind_shape(value: Array, shape: tuple[int, ...], kind: Kind) -> Array:
    if kind is Kind.SCALAR:
        return np.array(value).reshape(())
    if kind.is_row:
        return np.array(np.broadcast_to(value, (*shape[:-1], 1))[..., 0])
    return np.array(np.broadcast_to(value, shape)) if value.ndim != 2 or value.shape[-1] == shape[-1] else value[..., 0]
