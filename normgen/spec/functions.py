"""The functions of the formula language: one table of what is known of each, and of its names in other languages.

`program/functions.py` adds what sympy is needed for, a class and a derivative. The oracle has its own float64 reference
of each in `verify/interpret.py`, and its own bound in `verify/error_model.py`. A test holds the tables together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any


class Domain(Enum):
    """A set of real numbers."""

    POSITIVE = auto()
    NOT_NEGATIVE = auto()
    NOT_ZERO = auto()
    ABOVE_MINUS_ONE = auto()


class Rounding(Enum):
    """What a function makes of numbers that a dtype holds: a rounded one, one that it holds too, a whole number."""

    ROUNDS = auto()
    EXACT = auto()
    WHOLE = auto()


@dataclass(frozen=True)
class Function:
    """`name(arguments)`.

    words       what it gives, for the reference of the language
    text        its name in CUDA, or its sign; "" where the printer writes it in a way of its own
    torch       its name in torch; "" where ours is no single function there
    jax         its name in jax, `numpy.exp`; "" likewise
    aten        the operation of torch.ops.aten that is this function, whatever it is given
    needs       what arguments must be for the result to be a number
    gives       what the result is, whatever the arguments are
    keeps_sign  whether gradients may rely on the result having the argument's sign
    rounding    what the result of numbers that a dtype holds is
    """

    name: str
    arguments: tuple[str, ...]
    words: str
    text: str = ""
    torch: str = ""
    jax: str = ""
    aten: str = ""
    needs: Mapping[str, Domain] = field(default_factory=dict)
    gives: Domain | None = None
    keeps_sign: bool = False
    rounding: Rounding = Rounding.ROUNDS

    @property
    def takes(self) -> int:
        return len(self.arguments)


def _alike(name: str, arguments: tuple[str, ...], words: str, **others: Any) -> Function:
    """A function that CUDA calls so with an f, and torch and JAX so, unless others are given."""
    names = {"text": f"{name}f", "torch": name, "jax": f"numpy.{name}", "aten": name}
    return Function(name, arguments, words, **{**names, **others})


def _compares(sign: str, torch: str, jax: str, words: str) -> Function:
    return Function(
        sign, ("a", "b"), words, text=sign, torch=torch, jax=f"numpy.{jax}", aten=torch, rounding=Rounding.WHOLE
    )


def _table(*functions: Function) -> dict[str, Function]:
    return {function.name: function for function in functions}


_X = ("x",)

REDUCTIONS = _table(
    Function("sum", _X, "the sum of x over the columns of a row; of an x [rows, inner] over inner, and so below"),
    Function("mean", _X, "sum(x) / cols, or / inner"),
    Function("max", _X, "the largest x of a row; NaN if one is NaN"),
    Function("min", _X, "the smallest x of a row; NaN if one is NaN"),
    Function("absmax", _X, "the largest |x| of a row; NaN if one is NaN"),
)

# Reductions of whole rows: their values are columns, or are found by one.
POSITIONS = _table(
    Function("argmax", _X, "the column of the first largest x of a row, or of its first NaN; its derivative is 0"),
    Function("argmin", _X, "the column of the first smallest x of a row, or of its first NaN; its derivative is 0"),
)
TAKE = "take"
PICKS = _table(
    Function(TAKE, ("x", "index"), "x in the column `index`, a value of the row: sum(where(col == index, x, 0))"),
)

ROLL = "roll"
MOVES = _table(
    Function(
        ROLL,
        ("x", "k"),
        "x of the column (col - k) % cols: k columns further to the right, around the row's end; k is made of whole "
        "numbers and cols",
    ),
)

_EXACT, _WHOLE = Rounding.EXACT, Rounding.WHOLE
_AB = ("a", "b")

ELEMENTWISE = _table(
    _alike("exp", _X, "e to the power x", gives=Domain.POSITIVE),
    _alike("log", _X, "the natural logarithm", needs={"x": Domain.POSITIVE}),
    _alike(
        "log1p",
        _X,
        "log(1 + x), which keeps the digits of an x near 0",
        needs={"x": Domain.ABOVE_MINUS_ONE},
        keeps_sign=True,
    ),
    _alike("expm1", _X, "exp(x) - 1, which keeps the digits of an x near 0", keeps_sign=True),
    _alike("sqrt", _X, "the square root", text="", needs={"x": Domain.NOT_NEGATIVE}),
    _alike("rsqrt", _X, "1 / sqrt(x)", text="", jax="lax.rsqrt", needs={"x": Domain.POSITIVE}),
    _alike("abs", _X, "|x|; its derivative at 0 is 0", text="fabsf", gives=Domain.NOT_NEGATIVE, rounding=_EXACT),
    _alike("sign", _X, "-1, 0 or 1, and 0 for NaN; its derivative is 0", text="", rounding=_WHOLE),
    _alike("sigmoid", _X, "1 / (1 + exp(-x))", text="", jax="nn.sigmoid"),
    _alike("tanh", _X, "the hyperbolic tangent"),
    _alike("erf", _X, "the error function", jax="lax.erf"),
    _alike("sin", _X, "the sine of x radians"),
    _alike("cos", _X, "the cosine of x radians"),
    _alike("floor", _X, "the largest whole number that is not above x; its derivative is 0", rounding=_WHOLE),
    _alike("ceil", _X, "the smallest whole number that is not below x; its derivative is 0", rounding=_WHOLE),
    _alike(
        "round", _X, "the nearest whole number, the even one of two; its derivative is 0", text="rintf", rounding=_WHOLE
    ),
    _alike(
        "minimum", _AB, "the smaller one; NaN if one is NaN; equal ones share the gradient", text="", rounding=_EXACT
    ),
    _alike(
        "maximum", _AB, "the larger one; NaN if one is NaN; equal ones share the gradient", text="", rounding=_EXACT
    ),
    Function(
        "divide",
        _AB,
        "a / b as one division: a kernel may compute a / b as a product with 1 / b",
        needs={"b": Domain.NOT_ZERO},
    ),
    Function(
        "constant",
        _X,
        "x, which the backward pass takes for a constant",
        jax="lax.stop_gradient",
        aten="detach",
        rounding=_EXACT,
    ),
    Function(
        "clamp",
        ("x", "low", "high"),
        "minimum(maximum(x, low), high); its gradient is that of x where low <= x <= high",
        rounding=_EXACT,
    ),
    Function(
        "where",
        ("condition", "a", "b"),
        "a where the condition is not 0, else b; the other one may be NaN, and has no gradient there",
        aten="where",
        rounding=_EXACT,
    ),
)

CAST = "cast"
ROUNDINGS = _table(
    Function(CAST, ("x", "to"), "x rounded to a dtype, or to that of a tensor; its derivative is 1 (straight-through)"),
)

RANDOM = "random"
SOURCES = _table(
    Function(RANDOM, ("seed",), "a random number of its own for each element, uniform in [0, 1); its derivative is 0"),
)
TOTAL = "total"
TOTALS = _table(Function(TOTAL, _X, "the sum of x over all rows and, of an x with columns, these: a scalar output"))

ROW_REDUCTIONS = REDUCTIONS | POSITIONS | PICKS
FUNCTIONS = ROW_REDUCTIONS | MOVES | TOTALS | ELEMENTWISE | ROUNDINGS | SOURCES

# What operators of conditions are called in the tree of a formula. A condition is 1 where it holds, else 0.
CONDITIONS = _table(
    _compares("<", "lt", "less", "whether a is less; not if one is NaN"),
    _compares("<=", "le", "less_equal", "whether a is less or equal; not if one is NaN"),
    _compares(">", "gt", "greater", "whether a is greater; not if one is NaN"),
    _compares(">=", "ge", "greater_equal", "whether a is greater or equal; not if one is NaN"),
    _compares("==", "eq", "equal", "whether the two are equal; not if one is NaN"),
    _compares("!=", "ne", "not_equal", "whether the two differ; so does NaN from all numbers"),
    Function("and", _AB, "whether neither is 0", text="&&", aten="logical_and", rounding=_EXACT),
    Function("or", _AB, "whether one is not 0", text="||", aten="logical_or", rounding=_EXACT),
    Function("not", ("a",), "whether it is 0", text="!", rounding=_EXACT),
)

# A power whose exponent is known at run time, of every row the same; one by a number is a node of its own.
POWER = "**"
POWERS = _table(
    Function(
        POWER,
        ("x", "p"),
        "x to the power p, made of numbers and [scalars]; by a scalar NaN where x < 0 and p is no whole number; its "
        "gradient p * x ** (p - 1) is by x alone",
        torch="pow",
        jax="numpy.power",
        needs={"x": Domain.POSITIVE},
    ),
)

# What is left of the number of a row or column.
REMAINDERS = _table(Function("%", ("index", "n"), "what is left of n", torch="fmod", jax="numpy.fmod", rounding=_EXACT))

# All that give a value of an element from values of it: what a kernel's expressions call.
CALLS = ELEMENTWISE | CONDITIONS | POWERS | REMAINDERS

# A product of matrices, written `a @ b`.
DOT = "dot"
PRODUCTS = _table(
    Function(DOT, ("a", "b"), "the sum of a * b over the one axis, inner or cols, that both have"),
)

COLS, INNER, TERM, INFINITY = "cols", "inner", "term", "inf"
CONSTANTS = {
    COLS: "the length of a row",
    INNER: "the length of the axis that `a @ b` sums, of a spec with a tensor that has it",
    INFINITY: "infinity",
    "row": "the number of the row, from 0; `row % n` is exact for any number of rows",
    "col": "the number of the column, from 0",
    TERM: "the number along inner of a term that `a @ b` sums, from 0; `row % inner` numbers rows as often",
}
