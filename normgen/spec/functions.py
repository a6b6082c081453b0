"""The functions of the formula language: one table of names, arguments and words.

What a function computes in a kernel, its derivative and its text stand in `program/functions.py`; the oracle has its
own float64 reference of each in `verify/interpret.py` and its own bound in `verify/error_model.py`. A test holds the
four tables together.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Function:
    """`name(arguments)`; `words` say what it gives, for the reference of the language."""

    name: str
    arguments: tuple[str, ...]
    words: str

    @property
    def takes(self) -> int:
        return len(self.arguments)


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

ELEMENTWISE = _table(
    Function("exp", _X, "e to the power x"),
    Function("log", _X, "the natural logarithm"),
    Function("log1p", _X, "log(1 + x), which keeps the digits of an x near 0"),
    Function("expm1", _X, "exp(x) - 1, which keeps the digits of an x near 0"),
    Function("sqrt", _X, "the square root"),
    Function("rsqrt", _X, "1 / sqrt(x)"),
    Function("abs", _X, "|x|; its derivative at 0 is 0"),
    Function("sign", _X, "-1, 0 or 1, and 0 for NaN; its derivative is 0"),
    Function("sigmoid", _X, "1 / (1 + exp(-x))"),
    Function("tanh", _X, "the hyperbolic tangent"),
    Function("erf", _X, "the error function"),
    Function("sin", _X, "the sine of x radians"),
    Function("cos", _X, "the cosine of x radians"),
    Function("floor", _X, "the largest whole number that is not above x; its derivative is 0"),
    Function("ceil", _X, "the smallest whole number that is not below x; its derivative is 0"),
    Function("round", _X, "the nearest whole number, the even one of two; its derivative is 0"),
    Function("minimum", ("a", "b"), "the smaller one; NaN if one is NaN; equal ones share the gradient"),
    Function("maximum", ("a", "b"), "the larger one; NaN if one is NaN; equal ones share the gradient"),
    Function("divide", ("a", "b"), "a / b as one division: a kernel may compute a / b as a product with 1 / b"),
    Function("constant", _X, "x, which the backward pass takes for a constant"),
    Function(
        "clamp",
        ("x", "low", "high"),
        "minimum(maximum(x, low), high); its gradient is that of x where low <= x <= high",
    ),
    Function(
        "where",
        ("condition", "a", "b"),
        "a where the condition is not 0, else b; the other one may be NaN, and has no gradient there",
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
    Function("<", ("a", "b"), "whether a is less; not if one is NaN"),
    Function("<=", ("a", "b"), "whether a is less or equal; not if one is NaN"),
    Function(">", ("a", "b"), "whether a is greater; not if one is NaN"),
    Function(">=", ("a", "b"), "whether a is greater or equal; not if one is NaN"),
    Function("==", ("a", "b"), "whether the two are equal; not if one is NaN"),
    Function("!=", ("a", "b"), "whether the two differ; so does NaN from all numbers"),
    Function("and", ("a", "b"), "whether neither is 0"),
    Function("or", ("a", "b"), "whether one is not 0"),
    Function("not", ("a",), "whether it is 0"),
)

# A power whose exponent is known at run time, of every row the same; one by a number is a node of its own.
POWER = "**"
POWERS = _table(
    Function(
        POWER,
        ("x", "p"),
        "x to the power p, made of numbers and [scalars]; by a scalar NaN where x < 0 and p is no whole number; its "
        "gradient p * x ** (p - 1) is by x alone",
    ),
)

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
