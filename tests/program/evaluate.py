"""RowPrograms on numpy arrays: what a program means, with nothing about threads.

elem values are [rows, cols], row values [rows, 1], col values [1, cols] while the program runs; results come
back as [rows, cols], [rows] and [cols]. Values with the axis inner have it in front: left [inner, rows, 1], matrix
[inner, 1, cols], inner [inner, 1, 1]; they are given and come back as [rows, inner], [inner, cols] and [inner].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import sympy as sp

from normgen.errors import ProgramError, did_you_mean
from normgen.program.functions import (
    COL,
    INFINITY,
    ROW,
    TERM,
    Index,
    Stored,
    cast,
    divide_by_remainder,
    name_of,
    reciprocal_approximate,
    roll,
)
from normgen.program.ir import COLS, INNER, Column, Load, Map, Random, Reduce, RowProgram, Store, kind_of, value_kinds
from normgen.program.monoid import LOWEST, Monoid, Recipe, symbol
from normgen.program.ordered import Ordered, steps
from normgen.spec.spec import Kind, Sizes

Array = npt.NDArray[Any]


def evaluate(
    program: RowProgram,
    inputs: Mapping[str, npt.ArrayLike],
    scalars: Mapping[str, float] | None = None,
    *,
    dtype: npt.DTypeLike = np.float64,
    keep_all: bool = False,
) -> dict[str, Array]:
    """Run `program` in `dtype` arithmetic and return what it stores, by tensor name.

    inputs    every loaded tensor: elem [rows, cols], row [rows], col [cols], left [rows, inner], matrix [inner, cols],
              inner [inner], batches [batches, cols], each of equally
              many rows, or heads [heads, cols], with cols / G for groups of columns that share a value; a number of
              each batch or head as each row has it, [rows]; random
              numbers [rows, cols] by the name of their value; and, for a store that accumulates, the tensor's value
              before
    scalars   the program's run-time numbers
    keep_all  also return every value of the program by its name
    Errors: ProgramError when an input or a scalar is missing.
    """
    run = _Run(program, inputs, scalars or {}, np.dtype(dtype))
    stored: dict[str, Array] = {}
    with np.errstate(all="ignore"):  # inf and NaN are results like any other here
        for statement in program.statements:
            match statement:
                case Load(of=of, index=index) if index:
                    run.values[symbol(statement.name)] = run.taken(of, run.values[symbol(index)])
                case Load(name=name, kind=kind, of=of, roll=sp.Expr() as columns, group=group):
                    found = np.roll(run.given(of, kind, group), int(columns.subs(COLS, run.cols)), axis=-1)
                    run.values[symbol(name)] = found
                case Load(name=name, kind=kind, of=of, column=column, group=group):
                    found = run.element(of, column, group) if of else run.given(name, kind, group)
                    run.values[symbol(name)] = found
                case Random(name=name, kind=kind):
                    run.values[symbol(name)] = run.given(name, kind)
                case Map(name=name, expr=expr):
                    run.values[symbol(name)] = evaluate_expr(expr, run.values)
                case Reduce():
                    run.reduce(statement)
                case Store(tensor=tensor, value=value, kind=kind, accumulate=accumulate):
                    result = run.full(run.values[symbol(value)], kind)
                    stored[tensor] = result + run.given(tensor, kind).reshape(result.shape) if accumulate else result
    if keep_all:
        kinds = value_kinds(program)
        values = {s.name: v for s, v in run.values.items() if s.name in kinds}
        return {n: run.full(v, k) if (k := kinds[n]) is not Kind.SCALAR else v for n, v in values.items()} | stored
    return stored


class _Run:
    """The values so far, and the size they have."""

    def __init__(
        self,
        program: RowProgram,
        inputs: Mapping[str, npt.ArrayLike],
        scalars: Mapping[str, float],
        dtype: np.dtype[Any],
    ) -> None:
        self.inputs = inputs
        self.kinds = value_kinds(program)
        self.dtype = dtype
        self.sizes = _sizes(program, inputs)
        self.rows, self.cols = self.sizes.rows, self.sizes.cols
        self.group = next((r.group for r in program.reduces if r.group), 0)
        of_batches = [ld.name for ld in program.loads if ld.kind.by_batch]
        self.in_turn = any(ld.kind.by_head for ld in program.loads)
        self.batches = max(1, len(_find(inputs, of_batches[0], "tensor"))) if of_batches else 1
        lowest = np.finfo(np.float32).min
        self.values: dict[sp.Symbol, Array] = {COLS: np.asarray(self.cols, dtype), LOWEST: np.asarray(lowest, dtype)}
        self.values[INNER] = np.asarray(self.sizes.inner, dtype)
        self.values[ROW] = np.arange(self.rows, dtype=dtype)[:, None]
        self.values[COL] = np.arange(self.cols, dtype=dtype)[None, :]
        self.values[TERM] = np.arange(self.sizes.inner, dtype=dtype)[:, None, None]
        for name in program.scalars:
            self.values[symbol(name)] = np.asarray(_find(scalars, name, "scalar"), dtype)

    def given(self, name: str, kind: Kind, group: int = 0) -> Array:
        found = self.tensor(name, group)
        if kind.by_inner and kind.by_row:
            found = found.T
        return (self.of_batches(found) if kind.by_batch else found).reshape(self.shape(kind))

    def tensor(self, name: str, group: int) -> Array:
        """A tensor as it is given, the value of a group of columns once for each of them."""
        found = np.asarray(_find(self.inputs, name, "tensor"), self.dtype)
        return np.repeat(found, group, axis=-1) if group else found

    def of_batches(self, found: Array) -> Array:
        """[rows, cols] of a tensor of batches, [batches, cols], or of heads, whose rows take turns."""
        times = self.rows // max(1, len(found))
        return np.tile(found, (times, 1)) if self.in_turn else np.repeat(found, times, axis=0)

    def element(self, name: str, column: Column, group: int) -> Array:
        """One element of each row of a tensor, [rows, 1]."""
        tensor = np.atleast_2d(self.tensor(name, group))
        tensor = self.of_batches(tensor) if len(tensor) > 1 else tensor
        return np.asarray(np.broadcast_to(tensor[:, [column.of(self.cols)]], (self.rows, 1)))

    def taken(self, name: str, index: Array) -> Array:
        """The element of each row in the column that `index` names, else 0: [rows, 1]."""
        found = np.where(self.values[COL] == index, np.atleast_2d(np.asarray(_find(self.inputs, name, "tensor"))), 0)
        return np.asarray(found.sum(axis=1, keepdims=True), self.dtype)

    def shape(self, kind: Kind) -> tuple[int, ...]:
        return kind.broadcast_shape(self.sizes)

    def full(self, value: Array, kind: Kind) -> Array:
        """The value at its tensor's shape: elem [rows, cols], row [rows], col [cols]; of batches as each row has it."""
        found = np.broadcast_to(value, self.shape(kind)).copy()
        if kind.by_inner:
            return (found[..., 0].T if kind.by_row else found).reshape(kind.shape(self.sizes))
        return (
            found[:, :: self.group]
            if kind.is_groups
            else found.reshape(kind.shape(Sizes(self.rows, self.cols, batches=self.rows)))
        )

    def reduce(self, statement: Reduce) -> None:
        args = [evaluate_expr(arg, self.values) for arg in statement.args]
        if statement.is_dot or statement.is_of_side:
            axis = ("inner", "rows", "cols").index(*statement.over.axes)
            (found,) = reduce_axis(statement.monoid, [np.array(arg) for arg in np.broadcast_arrays(*args)], axis)
            self.values[symbol(statement.names[0])] = found[0] if axis == 0 else found
            return
        if statement.kind is Kind.INNER:
            left = np.broadcast_to(args[0], (*np.shape(args[0])[:1], self.rows, 1))
            self.values[symbol(statement.names[0])] = left.sum(axis=1, keepdims=True)
            return
        if statement.kind is Kind.SCALAR:
            width = self.cols if kind_of(statement.args[0], self.kinds).within_row else 1
            self.values[symbol(statement.names[0])] = np.sum(np.broadcast_to(args[0], (self.rows, width)))
            return
        elems = [np.broadcast_to(arg, (self.rows, self.cols)) for arg in args]
        if statement.group:
            grouped = [e.reshape(self.rows * self.cols // statement.group, statement.group) for e in elems]
            (found,) = reduce_axis(statement.monoid, grouped, 1)
            self.values[symbol(statement.names[0])] = np.broadcast_to(found, grouped[0].shape).reshape(elems[0].shape)
            return
        if statement.kind.by_batch:
            sizes = (self.batches, self.rows // self.batches)
            sizes, axis = (sizes[::-1], 0) if self.in_turn else (sizes, 1)
            (elem,) = (e.reshape(*sizes, self.cols) for e in elems)
            self.values[symbol(statement.names[0])] = self.of_batches(elem.sum(axis=axis))
            return
        results = reduce_axis(statement.monoid, elems, 1 if statement.kind.by_row else 0)
        if guard := statement.guard:
            is_spared = evaluate_expr(guard.margin, self.values) >= 0
            instead = (evaluate_expr(value, self.values) for value in guard.instead)
            results = tuple(np.where(is_spared, v, r) for v, r in zip(instead, results, strict=True))
        for name, result in zip(statement.names, results, strict=True):
            self.values[symbol(name)] = result


def _find(known: Mapping[str, Any], name: str, noun: str) -> Any:
    if name not in known:
        raise ProgramError(f"every {noun} of a program needs a value", received=name, hint=did_you_mean(name, known))
    return known[name]


def _sizes(program: RowProgram, inputs: Mapping[str, npt.ArrayLike]) -> Sizes:
    found: dict[str, int] = {}
    for load in program.loads:
        if load.kind.is_elem or load.kind.by_inner:
            found |= zip(load.kind.axes, np.shape(_find(inputs, load.name, "tensor")), strict=True)
    if found.keys() >= {"rows", "cols"}:
        return Sizes(**found)
    for given in inputs.values():  # d sum(x) / dx is 1 whatever x is: the program loads none of it
        if len(np.shape(given)) == 2:
            return Sizes(*np.shape(given))
    raise ProgramError("a program needs an elem load to know its size", received=program.name)


def reduce_axis(monoid: Monoid, args: list[Array], axis: int) -> tuple[Array, ...]:
    """The monoid's reduction of [rows, cols] arguments over one axis, which stays with length 1.

    A balanced tree of the monoid's own `combine`; sums use numpy's pairwise sum.
    """
    if monoid.name == "sum":
        return (np.sum(args[0], axis=axis, keepdims=True),)
    dtype = args[0].dtype
    constants = {LOWEST: np.asarray(np.finfo(np.float32).min, dtype)}
    moved = [np.moveaxis(arg, axis, 0) for arg in args]
    lifted = _apply(monoid.lift, {symbol(n): a for n, a in zip(monoid.args, moved, strict=True)} | constants)
    state = [np.broadcast_to(part, moved[0].shape).astype(dtype) for part in lifted]
    identity = [np.asarray(evaluate_expr(e, constants), dtype) for e in monoid.identity]
    while state[0].shape[0] != 1:
        if state[0].shape[0] % 2 or state[0].shape[0] == 0:
            pad = [np.broadcast_to(i, (1, *s.shape[1:])) for i, s in zip(identity, state, strict=True)]
            state = [np.concatenate([s, p]) for s, p in zip(state, pad, strict=True)]
            continue
        pairs: dict[sp.Symbol, Array] = dict(constants)
        for component, part in zip(monoid.state, state, strict=True):
            pairs[symbol(f"a_{component}")], pairs[symbol(f"b_{component}")] = part[0::2], part[1::2]
        state = list(_apply(monoid.combine, pairs))
    return tuple(np.moveaxis(part, 0, axis) for part in state)


def _apply(recipe: Recipe, values: Mapping[sp.Symbol, Array]) -> tuple[Array, ...]:
    known = dict(values)
    for name, expr in recipe.lets:
        known[symbol(name)] = evaluate_expr(expr, known)
    return tuple(evaluate_expr(expr, known) for expr in recipe.results)


def evaluate_expr(expr: sp.Expr, values: Mapping[sp.Symbol, Array]) -> Array:
    """One expression, operation by operation in sympy's argument order, in the dtype of the values."""
    dtype = next((v.dtype for v in values.values()), np.dtype(np.float64))
    if expr.is_Symbol or isinstance(expr, Index):
        if expr not in values:
            _find({s.name: v for s, v in values.items()}, expr.name, "value")
        found: Array = values[expr]
        return found
    if expr.is_number or expr == INFINITY:
        return np.asarray(np.inf if expr == INFINITY else float(expr), dtype)
    if isinstance(expr, Ordered):
        return _ordered([(sign, evaluate_expr(operand, values)) for sign, operand in steps(expr)])
    args = [evaluate_expr(arg, values) for arg in expr.args if not isinstance(arg, Stored)]
    if isinstance(expr, roll):
        return np.roll(args[0], int(args[1]), axis=-1)
    if expr.is_Pow:
        return _power(args[0], expr.exp, args[1])
    if expr.is_Add or expr.is_Mul or isinstance(expr, sp.Max | sp.Min):
        operation: Callable[..., Array] = np.add if expr.is_Add else np.multiply if expr.is_Mul else value_of(expr)
        return functools.reduce(operation, args)
    return value_of(expr)(*args)


def _ordered(operands: list[tuple[str, Array]]) -> Array:
    (_, result), *others = operands
    for sign, operand in others:
        result = np.asarray(result * operand if sign == "*" else result / operand)
    return result


def _power(base: Array, exponent: sp.Expr, value: Array) -> Array:
    """Powers as a kernel computes them: products, 1/x and square roots where they fit."""
    one = np.ones((), base.dtype)
    if exponent == sp.Rational(-1, 2):
        return np.asarray(one / np.sqrt(base))
    if exponent == sp.Rational(1, 2):
        return np.asarray(np.sqrt(base))
    if exponent.is_Integer and 0 < abs(int(exponent)) <= 4:
        product = base
        for _ in range(abs(int(exponent)) - 1):
            product = product * base
        return np.asarray(product if exponent > 0 else one / product)
    return np.asarray(np.power(base, value))


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x), x.dtype)


def _sign(x: Array) -> Array:
    return np.asarray(np.where(np.isnan(x), 0, np.sign(x)), x.dtype)


def _where(condition: Array, a: Array, b: Array) -> Array:
    return np.asarray(np.where(condition != 0, a, b))


def _condition(holds: Callable[..., Any]) -> Callable[..., Array]:
    return lambda *args: np.asarray(holds(*args), np.result_type(*args))


VALUES: dict[str, Callable[..., Array]] = {
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "abs": np.abs,
    "sign": _sign,
    "tanh": np.tanh,
    "erf": _erf,
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "%": np.fmod,
    "**": lambda x, p: np.where(np.isneginf(x) & (p % 1 != 0), np.power(np.inf, p), np.power(x, p)),
    "divide": np.divide,
    "constant": np.asarray,
    "clamp": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "where": _where,
    "<": _condition(np.less),
    "<=": _condition(np.less_equal),
    ">": _condition(np.greater),
    ">=": _condition(np.greater_equal),
    "==": _condition(np.equal),
    "!=": _condition(np.not_equal),
    "and": _condition(np.logical_and),
    "or": _condition(np.logical_or),
    "not": _condition(np.logical_not),
}


def value_of(expr: sp.Expr) -> Callable[..., Array]:
    """The numpy function that `expr` is a call of. ProgramError for one that the language does not have."""
    if isinstance(expr, cast):
        return lambda x: np.asarray(expr.dtype.stored(x).astype(x.dtype))
    if isinstance(expr, divide_by_remainder):
        return lambda a, b, _: np.asarray(np.divide(a, b))
    if isinstance(expr, reciprocal_approximate):
        return lambda x: np.asarray(1 / x)
    name = name_of(expr)
    if name is None:
        raise ProgramError(f"the function {type(expr).__name__} cannot be evaluated", received=str(expr))
    return VALUES[name]
