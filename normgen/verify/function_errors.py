"""How far a function's float32 value may be from the exact one: of its own rounding, and of its arguments' errors.

The rules for branches. A comparison, a sign and a rounding to a whole number jump, and a schedule may be on either
side of a jump that lies within REARRANGED times the error of what is compared. There the bound is the whole jump, as
is that of `where` between its two branches. Elsewhere conditions are exact.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import F32
from normgen.verify.bounded import FLUSHED, REARRANGED, Bounded, plus, relative, rounded, unknown
from normgen.verify.interpret import Array

Truth = NDArray[np.bool_]

WHOLE: dict[str, Callable[[Array], Array]] = {"floor": np.floor, "ceil": np.ceil, "round": np.rint}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
CONDITIONS = (*COMPARISONS, "and", "or", "not")
JUMPS = (*WHOLE, *CONDITIONS, "sign")  # functions whose derivative is 0 wherever they have one


def function(name: str, value: Array, args: tuple[Bounded, ...]) -> Bounded:
    """A function's exact `value` at the exact values of its arguments, with its bound and least value."""
    return _function(name, value, args).from_least(_least(name, args))


def _function(name: str, value: Array, args: tuple[Bounded, ...]) -> Bounded:
    arg = args[0]
    if name in ("minimum", "maximum"):
        errors = [x.error for x in args if x.error is not None]
        found = Bounded(value, functools.reduce(np.maximum, errors) if errors else None)
        return either_zero(found, *(x.value for x in args))
    if name in ("abs", "constant"):
        return Bounded(value, arg.error, exact=arg.exact, is_loose=arg.is_loose)
    if name == "sign":
        turns = _may_turn(arg)
        return Bounded(value, None if turns is None else np.where(turns, 2.0, 0.0))
    if name == "%":
        return Bounded(value, is_whole=True)
    if name in WHOLE:
        return Bounded(value, _jumps(WHOLE[name], arg, value))
    if name in CONDITIONS:
        return Bounded(value, _as_error(_unsure(name, args)))
    if name == "where":
        return _where(value, *args)
    if name == "**":
        return _power(value, *args)
    found = rounded(value, _propagated(name, arg, value), _roundings(name, arg.value), of=(arg,))
    if name in ("log", "rsqrt") or (name == "sqrt" and np.any(arg.least < 0)):
        found = unknown(found, arg.may_be_0)
    return Bounded(found.value, found.error + FLUSHED) if name == "exp" and found.error is not None else found


def either_zero(found: Bounded, *values: Array, axis: int | None = None) -> Bounded:
    """An extremum of 0 and -0, elements of `values` or all along an axis, is either: a quotient by it inf or -inf."""
    if not any(np.any((v == 0) & np.signbit(v)) for v in values):
        return found
    sides = [functools.reduce(np.logical_or, [(v == 0) & (np.signbit(v) == s) for v in values]) for s in (True, False)]
    below, above = sides if axis is None else (side.any(axis=axis, keepdims=True) for side in sides)
    is_either = (found.value == 0) & below & above
    return replace(found, error=plus(found.error, np.where(is_either, FLUSHED, 0.0))) if np.any(is_either) else found


def _jumps(of: Callable[[Array], Array], a: Bounded, value: Array) -> Array | None:
    """How far the whole number may be off."""
    if a.error is None:
        return None
    reach = REARRANGED * a.error
    off = np.maximum(of(a.value + reach) - value, value - of(a.value - reach))
    told = np.isfinite(reach)
    return np.where(told & ~np.isfinite(a.value), 0.0, np.where(told, off, np.inf))


def _power(value: Array, base: Bounded, exponent: Bounded) -> Bounded:
    """powf is good to 4 ulp (CUDA C++ Programming Guide), which are 8 u |v|, and what the errors of its arguments add.

    d log(x**p) = p dx / x + log(x) dp: of a base off by r |x| the power is off by (1 - r)^-|p|, of an exponent by
    e^(|log x| e). Of a base that may have the other sign, or be 0, and so is off by half of itself or more, nothing is
    said: the power may be NaN, or infinite.
    """
    x, p = base.value, exponent.value
    if base.error is None and exponent.error is None:
        return rounded(value, None, 8.0)
    grown: Array = np.zeros(())
    if base.error is not None:
        off = relative(base.error, x)
        grown = np.where(off < 0.5, -np.abs(p) * np.log1p(-np.minimum(off, 0.5)), np.inf)
    if exponent.error is not None:
        told = (np.abs(x) > 0) & (np.abs(x) < np.inf)
        grown = grown + np.abs(np.log(np.where(told, np.abs(x), 1.0))) * exponent.error
    size = np.where(grown == 0, 0.0, np.abs(value))  # an infinite power of an exact base is exact
    carried = np.where(np.isfinite(grown), size * np.expm1(grown), np.inf)
    return rounded(value, carried, 8.0, of=(base, exponent))


def _as_error(unsure: Truth | None) -> Array | None:
    return None if unsure is None else np.where(unsure, 1.0, 0.0)


def _may_turn(a: Bounded) -> Truth | None:
    """Where a schedule may find 0 for a number or a number for 0; None: nowhere."""
    return None if (error := a.known_error) is None else _within(a.value, error)


def _within(apart: Array, error: Array) -> Truth:
    """Where two values so far apart may be equal; an error that is not known is as large as may be."""
    return np.asarray((error != 0) & ~(np.abs(apart) > REARRANGED * error) & ~np.isnan(apart))


def _unsure(name: str, args: tuple[Bounded, ...]) -> Truth | None:
    """Where a schedule may decide the condition either way."""
    if name in COMPARISONS:
        a, b = args
        error = plus(a.known_error, b.known_error)
        if error is None:
            return None
        is_nan = np.isnan(a.value) | np.isnan(b.value)  # inf - inf is not: it may be any two numbers
        return _within(np.where(np.isinf(error) & ~is_nan, 0.0, a.value - b.value), error)
    turns = [_may_turn(arg) for arg in args]
    if all(turn is None for turn in turns):
        return None
    found = functools.reduce(np.logical_or, (turn for turn in turns if turn is not None))
    if name == "not":
        return np.asarray(found)
    for arg, turn in zip(args, turns, strict=True):  # one that is surely 0 decides an `and`, a number an `or`
        decides = (arg.value == 0) if name == "and" else (arg.value != 0)
        found = found & ~(decides if turn is None else decides & ~turn)
    return np.asarray(found)


def _is_exact(a: Bounded) -> Truth:
    """Where every schedule finds the value, and takes it apart nowhere."""
    if a.error is None:
        return np.asarray(True)
    return np.asarray(False) if a.exact is None or a.is_loose else a.exact


def _where(value: Array, condition: Bounded, a: Bounded, b: Bounded) -> Bounded:
    unsure, holds = _may_turn(condition), condition.value != 0
    if a.error is None and b.error is None and unsure is None:
        return Bounded(value)
    own, other = (np.zeros(()) if e.error is None else e.error for e in (a, b))
    own, other = np.where(holds, own, other), np.where(holds, other, own)
    exact = np.broadcast_to(np.where(holds, *map(_is_exact, (a, b))), value.shape)
    if unsure is None or not unsure.any():
        return Bounded(value, np.broadcast_to(own, value.shape), exact=exact if exact.any() else None)
    apart = np.where(a.value == b.value, 0.0, np.abs(a.value - b.value))
    lost = unsure & ~np.isfinite(apart)
    error = np.where(unsure & ~lost, np.maximum(own, np.nan_to_num(apart) + other), own)
    found = Bounded(value, np.broadcast_to(error, value.shape), exact=exact & ~unsure)
    return unknown(found, np.broadcast_to(lost, value.shape))


def _least(name: str, args: tuple[Bounded, ...]) -> Array | float:
    least = args[0].least
    match name:
        case "maximum":
            return np.maximum(least, args[1].least)
        case "minimum":
            return np.minimum(least, args[1].least)
        case "where":
            return np.minimum(args[1].least, args[2].least)
        case "exp":
            x, e = args[0].value, args[0].error
            if e is None:
                return 0.0
            found = np.nan_to_num(np.exp(x - REARRANGED * e) * (1 - 2.0**-10), posinf=0.0)
            return np.where(found < FLUSHED, 0.0, found)  # float32 may find 0
        case "sqrt":
            return np.sqrt(np.maximum(least, 0.0))
        case "log1p":
            return np.where(np.asarray(least) >= 0, 0.0, -math.inf)
        case "expm1":
            return np.where(np.asarray(least) >= 0, 0.0, -1.0)
        case "abs" | "rsqrt" | "sigmoid":
            return 0.0
        case "**":
            return np.where(np.asarray(least) >= 0, 0.0, -math.inf)
    return 0.0 if name in CONDITIONS else -math.inf


def _roundings(name: str, x: Array) -> float | Array:
    """Roundings of u |f(x)| each: twice the ulp of the programming guide."""
    if name == "exp":
        return 2 * (2 + 1.173 * np.minimum(np.abs(x), 120.0))  # beyond 120 the result is 0 or inf
    return {
        "log": 2.0,
        "log1p": 2.0,
        "expm1": 2.0,
        "sqrt": 2.0,
        "rsqrt": 4.0,
        "tanh": 4.0,
        "erf": 4.0,
        "sin": 4.0,
        "cos": 4.0,
    }[name]


def _propagated(name: str, a: Bounded, value: Array) -> Array | None:
    """The error of f(a) that comes from the error of a."""
    x, e = a.value, a.error
    if e is None:
        return None
    match name:
        case "exp" | "expm1":
            # inf - inf says nothing; the largest logarithm of a float32 is 88.7
            moved = np.exp(x + e) - value if name == "exp" else np.exp(x) * np.expm1(e)
            grown = np.where(np.isinf(value) & (x - REARRANGED * e < 89), np.inf, moved)
            return np.where(np.isneginf(x) & (e < np.inf), 0.0, grown)
        case "log" | "log1p":
            off = relative(e, x if name == "log" else 1 + x)
            return np.where(off < 0.5, -np.log1p(-np.minimum(off, 0.5)), np.inf)
        case "sqrt":
            return np.minimum(np.sqrt(e), e / np.sqrt(np.maximum(x, F32.smallest_subnormal)))
        case "rsqrt":
            off = relative(e, x)
            # (1 - r)^-1/2 - 1 up to r = 1/2; beyond that the tangent there, so that the bound goes on growing.
            exact = np.expm1(-0.5 * np.log1p(-np.minimum(off, 0.5)))
            return np.where(np.isinf(x), 0.0, value * (exact + np.sqrt(2.0) * np.maximum(off - 0.5, 0.0)))
        case "erf":
            return e * (2 / math.sqrt(math.pi))
        case "sin" | "cos":
            return np.where(e < np.inf, np.minimum(e, 2.0), np.inf)  # of no number there is no sine
    return e  # tanh: |f'| <= 1
