"""torch's operations in the language: what each makes of expressions, one element of a row at a time.

Operations that are not here are said by torch as others that are, or are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

from normgen.spec.formula import Binary, Call, Expression, Name, Number, Power
from normgen.spec.functions import CALLS, Function, Rounding
from normgen.spec.writing import minus, number

E = Expression

ONE, HALF = Number(Fraction(1)), Number(Fraction(1, 2))
LOST = 17  # from there on float32 loses exp(-z) beside z
ZERO, MINUS_ONE, TWENTY = Number(Fraction(0)), Number(Fraction(-1)), Number(Fraction(20))


def call(function: str, *args: E) -> E:
    return Call(function, args)


def called(function: Function) -> Callable[..., E]:
    """A call of a function that torch has too, of as many arguments as ours takes."""

    def make(*args: E) -> E:
        if len(args) != function.takes:
            raise TypeError(f"{function.name} takes {function.takes} arguments, here {len(args)}")
        return Call(function.name, args)

    return make


def of(rounding: Rounding) -> Iterator[str]:
    return (function.aten for function in CALLS.values() if function.aten and function.rounding is rounding)


def binary(operator: str) -> Callable[[E, E], E]:
    return lambda a, b: Binary(operator, a, b)


def scaled(operator: str) -> Callable[..., E]:
    """a + alpha * b, a - alpha * b."""
    return lambda a, b, alpha=ONE: Binary(operator, a, b if alpha == ONE else Binary("*", alpha, b))


def product(a: E, b: E) -> E:
    return Binary("*", a, b)


def plus(a: E, b: E) -> E:
    return Binary("+", a, b)


def power(base: E, exponent: E) -> E:
    if not isinstance(exponent, Number):
        found = call("exp", product(exponent, call("log", base)))
        nan = Binary("-", Name("inf"), Name("inf"))  # of what is below 0: an exponent of rows is no whole number to it
        zero = call("where", call("==", exponent, ZERO), ONE, call("where", call("==", base, ZERO), ZERO, nan))
        return call("where", call(">", base, ZERO), found, zero)
    special = {
        Fraction(1): base,
        Fraction(1, 2): call("sqrt", base),
        Fraction(-1, 2): call("rsqrt", base),
        Fraction(-1): Binary("/", ONE, base),
    }
    return special.get(exponent.value, Power(base, exponent.value))


def negated(condition: E) -> E:
    match condition:
        case Call(function="==", args=args):
            return Call("!=", args)
        case Call(function="!=", args=args):
            return Call("==", args)
        case Call(function="not", args=(arg,)):
            return arg
    return call("not", condition)


def clamped(x: E, low: E | None = None, high: E | None = None) -> E:
    return call("clamp", x, low or minus(Name("inf")), high or Name("inf"))


def gelu(x: E, approximate: str = "none") -> E:
    half = product(HALF, x)
    if approximate == "none":
        return product(half, plus(ONE, call("erf", product(x, number(math.sqrt(0.5))))))
    inner = product(number(math.sqrt(2 / math.pi)), plus(x, product(number(0.044715), Power(x, Fraction(3)))))
    return product(half, plus(ONE, call("tanh", inner)))


def divided(a: E, b: E, rounding_mode: str | None = None) -> E:
    quotient = Binary("/", a, b)
    if rounding_mode == "floor":
        return call("floor", quotient)
    return truncated(quotient) if rounding_mode == "trunc" else quotient


def truncated(x: E) -> E:
    return call("where", call("<", x, ZERO), call("ceil", x), call("floor", x))


def remainder(a: E, b: E) -> E:
    return Binary("-", a, product(b, call("floor", Binary("/", a, b))))


_LOG2 = number(math.log(2))

# Of expressions, and of None and texts where the operation takes them. By the names of torch.ops.aten.
ELEMENTWISE: dict[str, Callable[..., E]] = {
    **{function.aten: called(function) for function in CALLS.values() if function.aten},
    "add": scaled("+"),
    "sub": scaled("-"),
    "rsub": lambda a, b, alpha=ONE: scaled("-")(b, a, alpha),
    "mul": product,
    "div": divided,
    "neg": minus,
    "pow": power,
    "square": lambda x: Power(x, Fraction(2)),
    "reciprocal": lambda x: Binary("/", ONE, x),
    "sgn": lambda x: call("sign", x),
    "trunc": truncated,
    "remainder": remainder,
    "exp2": lambda x: call("exp", product(x, _LOG2)),
    "log2": lambda x: Binary("/", call("log", x), _LOG2),
    "log10": lambda x: Binary("/", call("log", x), number(math.log(10))),
    "tan": lambda x: Binary("/", call("sin", x), call("cos", x)),
    "silu": lambda x: product(x, call("sigmoid", x)),
    "gelu": gelu,
    "relu": lambda x: call("where", call("<=", x, ZERO), ZERO, x),
    "clamp": clamped,
    "clamp_min": lambda x, low: clamped(x, low),
    "clamp_max": lambda x, high: clamped(x, None, high),
    # No gradient goes through either limit itself.
    "hardtanh": lambda x, low=MINUS_ONE, high=ONE: call(
        "where", call("<=", x, low), low, call("where", call(">=", x, high), high, x)
    ),
    "masked_fill": lambda x, mask, value: call("where", mask, value, x),
    "logical_not": negated,
    "isnan": lambda x: call("!=", x, x),
}
OF_CONDITIONS = {"bitwise_not": "logical_not", "bitwise_and": "logical_and", "bitwise_or": "logical_or"}
# What no rounding changes: the result is one of the arguments, or its opposite, or a condition.
EXACT = {"neg", "relu", "clamp", "clamp_min", "clamp_max", "masked_fill", *of(Rounding.EXACT)}
WHOLE = {"trunc", "sgn", "isnan", *of(Rounding.WHOLE)}


def power_of(base: E, exponent: E) -> E:
    """A constant to the power of an expression."""
    if isinstance(base, Number) and base.value > 0:
        return call("exp", product(exponent, number(math.log(base.value))))
    raise ValueError("the base of a power is positive where the exponent is no constant")


# Of a row: what `reduce` makes of an expression, by torch's name of the reduction.
REDUCTIONS: dict[str, Callable[[E], E]] = {
    "sum": lambda x: call("sum", x),
    "mean": lambda x: call("mean", x),
    "amax": lambda x: call("max", x),
    "amin": lambda x: call("min", x),
    "argmax": lambda x: call("argmax", x),
    "argmin": lambda x: call("argmin", x),
    "any": lambda x: call("max", x),
    "all": lambda x: call("min", x),
}


Let = Callable[[E, str], E]  # gives an expression a name, so that it is computed once


def softmax(x: E, let: Let) -> E:
    e = let(call("exp", _shifted(x, let)), "e")
    return Binary("/", e, call("sum", e))


def log_softmax(x: E, let: Let) -> E:
    shifted = _shifted(x, let)
    return Binary("-", shifted, let(call("log", call("sum", call("exp", shifted))), "log_sum"))


def logsumexp(x: E, let: Let) -> E:
    top = _top(x, let)
    found = plus(top, call("log", call("sum", call("exp", Binary("-", x, top)))))
    return call("where", call("<", call("abs", top), Name("inf")), found, top)


def softplus(x: E, beta: E = ONE, threshold: E = TWENTY, *, let: Let) -> E:
    z = x if beta == ONE else let(product(x, beta), "z")
    found = plus(call("maximum", z, ZERO), call("log1p", call("exp", minus(call("abs", z)))))
    found = found if beta == ONE else Binary("/", found, beta)
    if isinstance(threshold, Number) and threshold.value >= LOST:
        return found
    return call("where", call(">", z, threshold), x, found)


def _shifted(x: E, let: Let) -> E:
    return let(Binary("-", x, _top(x, let)), "shifted")


def _top(x: E, let: Let) -> E:
    """The largest of a row, which takes no part in the derivative: it cancels out."""
    return let(call("constant", call("max", x)), "top")


def layer_norm(x: E, weight: E | None, bias: E | None, eps: E, let: Let) -> E:
    centred = let(Binary("-", x, let(call("mean", x), "mean")), "centred")
    found = product(centred, let(call("rsqrt", plus(variance(centred), eps)), "rstd"))
    found = found if weight is None else product(found, weight)
    return found if bias is None else plus(found, bias)


def rms_norm(x: E, weight: E | None, eps: E, let: Let) -> E:
    found = product(x, let(call("rsqrt", plus(variance(x), eps)), "rstd"))
    return found if weight is None else product(found, weight)


def variance(centred: E, correction: float = 0, length: str = "cols") -> E:
    """Of what has the mean 0, of so many elements."""
    square = Power(centred, Fraction(2))
    if correction == 0:
        return call("mean", square)
    return Binary("/", call("sum", square), Binary("-", Name(length), number(correction)))


def root(x: E) -> E:
    """The root of a sum of squares: torch's gradient of it is 0 where it is 0."""
    return call("where", call("==", x, ZERO), ZERO, call("sqrt", x))


def norm(x: E, order: float, let: Let) -> E:
    if order == 2:
        return root(let(call("sum", Power(x, Fraction(2))), "squares"))
    if order == 1:
        return call("sum", call("abs", x))
    if order == math.inf:
        return call("absmax", x)
    raise ValueError("a norm is that of order 1, 2 or inf")
