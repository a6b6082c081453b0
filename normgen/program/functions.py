"""What the functions of the formula language mean to sympy, and their derivatives.

sympy reasons about real numbers, which are neither NaN nor infinite: `x < x` is false to it and `x <= x` true, and it
would merge the branches of a `where`. So comparisons, branches and roundings to whole numbers are functions of our
own, which it neither evaluates nor rewrites. A condition is a number: 1 where it holds, else 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import sympy as sp

from normgen.dtypes import CASTS, F32, DType
from normgen.spec.functions import CALLS, Domain, Function
from normgen.spec.spec import Kind

Slope = Callable[[sp.Expr], tuple[sp.Expr, ...]]


class Opaque(sp.Function):  # type: ignore[misc]  # sympy has no types
    """A function of real numbers that sympy leaves alone."""

    is_extended_real = True

    @classmethod
    def eval(cls, *args: sp.Expr) -> None:
        """Nothing is evaluated, whatever the arguments."""

    @property
    def is_number(self) -> bool:
        """A call of constants is a call: the language folds arithmetic on numbers alone."""
        return False

    def could_extract_minus_sign(self) -> bool:
        return False


class Condition(Opaque):
    """1 where it holds, else 0."""


class less(Condition):
    """a < b"""


class less_equal(Condition):
    """a <= b"""


class greater(Condition):
    """a > b"""


class greater_equal(Condition):
    """a >= b"""


class equal(Condition):
    """a == b"""


class unequal(Condition):
    """a != b"""


class both(Condition):
    """a and b"""


class either(Condition):
    """a or b"""


class negation(Condition):
    """not a"""


class where(Opaque):
    """where(condition, a, b)"""


class clamp(Opaque):
    """minimum(maximum(x, low), high)"""


class divide(Opaque):
    """a / b by one division."""


class divide_by_remainder(Opaque):
    """a / b with 1 / b at hand, its third argument: what the product leaves of a corrects it. Passes write it alone."""


class reciprocal_approximate(Opaque):
    """1 / x, off by 1 ulp at most (PTX ISA, rcp.approx.f32). Passes write it alone."""


def quotient_in(
    product: Callable[..., sp.Expr],
    before: Sequence[sp.Expr],
    divisor: tuple[sp.Expr, sp.Expr],
    behind: Sequence[sp.Expr],
) -> sp.Expr:
    """`product` of what is divided and of what stands behind it; divisor: it, and its reciprocal."""
    divided = product(*before) if len(before) > 1 else before[0] if before else sp.Integer(1)
    quotient = divide_by_remainder(divided, *divisor)
    return product(quotient, *behind) if behind else quotient


class constant(Opaque):
    """x, without a gradient."""


class log1p(Opaque):
    """log(1 + x): sympy would write its sum with other terms of one."""


class expm1(Opaque):
    """exp(x) - 1, likewise."""


class power_of(Opaque):
    """power_of(x, p): x to the power of a number that is known at run time."""


class roll(Opaque):
    """roll(x, k): x of the column (col - k) % cols; x is a value of columns, or `col` itself."""


class floor(Opaque):
    """The largest whole number that is not above x."""


class ceil(Opaque):
    """The smallest whole number that is not below x."""


class rint(Opaque):
    """The nearest whole number, the even one of two."""


class sign(Opaque):
    """-1, 0 or 1, and 0 of NaN: sympy's own has 1 for its square, and leaves exp(x) out of a product's."""


class Named(sp.AtomicExpr):  # type: ignore[misc]
    """Something with a name that is no value of the program."""

    is_commutative = True
    is_extended_real = True
    is_number = False

    def __new__(cls, name: str) -> Self:
        found: Self = sp.AtomicExpr.__new__(cls)
        found.name = name
        return found

    def _hashable_content(self) -> tuple[str, ...]:
        return (self.name,)

    def _sympystr(self, _: Any) -> str:
        return str(self.name)


INFINITY = Named("inf")  # sympy's own infinity swallows what is added to it


class Index(Named):
    """The number of the row, of the column or along inner, from 0: a whole number that each place of a kernel knows."""

    @property
    def kind(self) -> Kind:
        return Kind.ROW if self == ROW else Kind.COL if self == COL else Kind.INNER


class Stored(Named):
    """A dtype, or the tensor whose dtype it is, until a problem says what that is."""


class cast(Opaque):
    """cast(x, Stored): x rounded to a dtype."""

    @property
    def dtype(self) -> DType:
        return CASTS[self.args[1].name]


ROW, COL, TERM = Index("row"), Index("col"), Index("term")


class remainder(Opaque):
    """index % n, of whole numbers: what is left of n rows or columns."""


# They jump, and some make a number of NaN: a comparison, a sign, a cast to whole numbers.
STEPS = (Condition, cast, constant, floor, ceil, rint, sign)


@dataclass(frozen=True)
class Meaning:
    """What sympy makes of a function of spec/functions.py, whose table has its texts.

    make   its sympy class
    slope  factors of the derivative by its argument; None: the derivative is 0, or has a rule of its own
    """

    make: Any
    slope: Slope | None = None


MEANINGS: dict[str, Meaning] = {
    "exp": Meaning(sp.exp, lambda f: (f,)),
    "log": Meaning(sp.log, lambda f: (sp.Pow(f.args[0], -1),)),
    "log1p": Meaning(log1p, lambda f: (sp.Pow(1 + f.args[0], -1),)),
    "expm1": Meaning(expm1, lambda f: (sp.exp(f.args[0]),)),
    "abs": Meaning(sp.Abs, lambda f: (sign(f.args[0]),)),
    "sign": Meaning(sign),
    "**": Meaning(power_of, lambda f: (f.args[1], power_of(f.args[0], f.args[1] - 1))),
    "tanh": Meaning(sp.tanh, lambda f: (1 - f**2,)),
    "erf": Meaning(sp.erf, lambda f: (2 / sp.sqrt(sp.pi), sp.exp(-(f.args[0] ** 2)))),
    "sin": Meaning(sp.sin, lambda f: (sp.cos(f.args[0]),)),
    "cos": Meaning(sp.cos, lambda f: (sp.Integer(-1), sp.sin(f.args[0]))),
    "floor": Meaning(floor),
    "ceil": Meaning(ceil),
    "round": Meaning(rint),
    "minimum": Meaning(sp.Min),
    "maximum": Meaning(sp.Max),
    "%": Meaning(remainder),
    "divide": Meaning(divide),
    "constant": Meaning(constant),
    "clamp": Meaning(clamp),
    "where": Meaning(where),
    "<": Meaning(less),
    "<=": Meaning(less_equal),
    ">": Meaning(greater),
    ">=": Meaning(greater_equal),
    "==": Meaning(equal),
    "!=": Meaning(unequal),
    "and": Meaning(both),
    "or": Meaning(either),
    "not": Meaning(negation),
}
NAMES: dict[Any, str] = {meaning.make: name for name, meaning in MEANINGS.items()} | {roll: "roll"}


# The classes of functions that are no number for every argument.
PARTIAL = tuple(meaning.make for name, meaning in MEANINGS.items() if CALLS[name].needs)


def with_dtypes(expr: sp.Expr, stored: Mapping[str, str], loads: Mapping[sp.Expr, str]) -> sp.Expr:
    """`expr` with the dtypes of tensors in the place of their names; of what is stored as it is cast, that alone.

    loads  the dtypes of what is read
    A cast to float32 stays: without it sympy would fold what is behind it.
    """

    def known(x: sp.Expr, to: Stored) -> sp.Expr:
        dtype = stored.get(to.name, to.name)
        return x if loads.get(x) == dtype != F32.name else cast(x, Stored(dtype))

    return expr.replace(cast, known)


def name_of(expr: sp.Expr) -> str | None:
    """The language's name of the function that `expr` is a call of; None where it is none."""
    return NAMES.get(type(expr))


def function_of(expr: sp.Expr) -> Function | None:
    """The function of the language that `expr` is a call of; None where it is none."""
    return CALLS.get(name_of(expr) or "")


def text_of(expr: sp.Expr) -> str:
    """The name, or the sign, that CUDA has for the function that `expr` is a call of; "" where it has none."""
    found = function_of(expr)
    return found.text if found else ""


def needs_of(expr: sp.Expr) -> list[tuple[sp.Expr, Domain]]:
    """The arguments of a call that must be of a domain for it to be a number: x of log(x), b of divide(a, b)."""
    found = function_of(expr)
    return [(expr.args[found.arguments.index(n)], domain) for n, domain in found.needs.items()] if found else []
