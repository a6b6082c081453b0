"""Reductions as monoids: state, identity, lift, combine. One tree implementation serves all of them.

A monoid's expressions are sympy over the symbols below; `Recipe.lets` names shared terms, so that the
emitted CUDA reads like hand-written code.

    lift     argument symbols `x`, `y`, ...            -> one expression per state component
    combine  symbols `a_<component>`, `b_<component>`  -> one expression per state component
    step     state components and argument symbols     -> the state after one more element

A state that is relative to a reference, as a softmax denominator is to the maximum, pays for each change of it. Such a
monoid has a `VectorStep` too: it finds the reference of a whole vector before it adds the first of its elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import sympy as sp

from normgen.program.functions import either, equal, unequal, where


def symbol(name: str) -> sp.Symbol:
    """The sympy symbol of a named value; every value is real."""
    return sp.Symbol(name, real=True)


@dataclass(frozen=True)
class Recipe:
    """`lets` in order, then one result per state component; a let may use the lets before it."""

    results: tuple[sp.Expr, ...]
    lets: tuple[tuple[str, sp.Expr], ...] = ()


@dataclass(frozen=True)
class VectorStep:
    """The state after a vector of elements, in two passes over them.

    reference  the name that the other expressions read it by
    start      state components                            -> the reference before the first element
    peek       the reference, argument symbols             -> the reference when it has seen one more element
    move       state components, the reference             -> the same state relative to the reference
    step       state components and argument symbols       -> the moved state after one more element
    added      a component that the step only adds to: a vector may add its own terms up before; "": there is none
    """

    reference: str
    start: Recipe
    peek: Recipe
    move: Recipe
    step: Recipe
    added: str = ""


@dataclass(frozen=True)
class Monoid:
    """An associative, commutative reduction (up to rounding)."""

    name: str
    args: tuple[str, ...]
    state: tuple[str, ...]
    identity: tuple[sp.Expr, ...]
    lift: Recipe
    combine: Recipe
    step: Recipe
    vector_step: VectorStep | None = None
    is_flat: bool = False  # its derivative is 0 wherever it has one
    doc: str = field(default="", compare=False)

    @property
    def is_idempotent(self) -> bool:
        """Whether a state combined with itself is itself, as the maximum's is: equal elements count once."""
        same = {symbol(f"b_{component}"): symbol(f"a_{component}") for component in self.state}
        states = tuple(symbol(f"a_{component}") for component in self.state)
        return not self.combine.lets and tuple(e.subs(same) for e in self.combine.results) == states


# sympy need not ask which of two symbols is larger: its answer, that nobody knows, took a tenth of a command's start.
_max, _min = partial(sp.Max, evaluate=False), partial(sp.Min, evaluate=False)
_a, _b, _x = symbol("a_value"), symbol("b_value"), symbol("x")
_value = symbol("value")
LOWEST = symbol("LOWEST")  # the most negative finite float32: an identity of max that survives subtraction


def _single(name: str, identity: sp.Expr, combine: sp.Expr, lift: sp.Expr, step: sp.Expr, doc: str) -> Monoid:
    return Monoid(
        name=name,
        args=("x",),
        state=("value",),
        identity=(identity,),
        lift=Recipe((lift,)),
        combine=Recipe((combine,)),
        step=Recipe((step,)),
        doc=doc,
    )


SUM = _single("sum", sp.Integer(0), _a + _b, _x, _value + _x, "Σ x")
MAX = _single("max", -sp.oo, _max(_a, _b), _x, _max(_value, _x), "max x")
MIN = _single("min", sp.oo, _min(_a, _b), _x, _min(_value, _x), "min x")
ABSMAX = _single("absmax", sp.Integer(0), _max(_a, _b), sp.Abs(_x), _max(_value, sp.Abs(_x)), "max |x|")


def _welford() -> Monoid:
    n, mean, m2 = symbol("n"), symbol("mean"), symbol("m2")
    na, ma, sa = symbol("a_n"), symbol("a_mean"), symbol("a_m2")
    nb, mb, sb = symbol("b_n"), symbol("b_mean"), symbol("b_m2")
    total, delta, new_mean, share = (symbol(s) for s in ("total", "delta", "new_mean", "share"))
    return Monoid(
        name="welford",
        args=("x",),
        state=("n", "mean", "m2"),
        identity=(sp.Integer(0),) * 3,
        lift=Recipe((sp.Integer(1), _x, sp.Integer(0))),
        combine=Recipe(
            (total, ma + delta * share, sa + sb + delta * delta * na * share),
            lets=(
                ("total", na + nb),
                ("delta", mb - ma),
                ("share", nb / _max(total, 1)),  # max: two empty states merge to an empty one
            ),
        ),
        step=Recipe(
            (total, new_mean, m2 + delta * (_x - new_mean)),
            lets=(("total", n + 1), ("delta", _x - mean), ("new_mean", mean + delta / total)),
        ),
        doc="(n, mean, M2): Welford 1962, merged by Chan, Golub and LeVeque 1983, eq. 2.1",
    )


def _online_softmax() -> Monoid:
    top, total = symbol("max"), symbol("sum")
    ta, tb, sa, sb = symbol("a_max"), symbol("b_max"), symbol("a_sum"), symbol("b_sum")
    new_max = symbol("new_max")
    return Monoid(
        name="online_softmax",
        args=("x",),
        state=("max", "sum"),
        identity=(LOWEST, sp.Integer(0)),
        lift=Recipe((_x, sp.Integer(1))),
        combine=Recipe(
            (new_max, sa * sp.exp(ta - new_max) + sb * sp.exp(tb - new_max)),
            lets=(("new_max", _max(ta, tb)),),
        ),
        step=Recipe(
            (new_max, total * sp.exp(top - new_max) + sp.exp(_x - new_max)),
            lets=(("new_max", _max(top, _x)),),
        ),
        vector_step=VectorStep(
            reference="new_max",
            start=Recipe((top,)),
            peek=Recipe((_max(new_max, _x),)),
            move=Recipe((new_max, total * sp.exp(top - new_max))),
            step=Recipe((top, total + sp.exp(_x - top))),
            added="sum",
        ),
        doc="(max, Σ exp(x - max)): Milakov and Gimelshein 2018, alg. 3; its sum moves to a new maximum once a vector",
    )


def _position(name: str, extremum: Callable[..., sp.Expr], worst: sp.Expr) -> Monoid:
    """(the first column that holds the extremum, the extremum): NaN is more extreme than all numbers, as in torch.

    Both sides of a tie are compared by their columns, so that elements and states combine in any order.
    """
    position, at, top = symbol("position"), symbol("at"), symbol("top")

    def merged(a: sp.Symbol, a_at: sp.Symbol, b: sp.Symbol, b_at: sp.Symbol) -> Recipe:
        first = _min(_where_top(a, top, a_at), _where_top(b, top, b_at))
        return Recipe((first, top), lets=(("top", extremum(a, b)),))

    return Monoid(
        name=name,
        args=("x", "at"),
        state=("position", "value"),
        identity=(sp.oo, worst),
        lift=Recipe((at, _x)),
        combine=merged(_a, symbol("a_position"), _b, symbol("b_position")),
        step=merged(_value, position, _x, at),
        is_flat=True,
        doc="(column, value) of the first largest, or smallest, element",
    )


def _where_top(value: sp.Expr, top: sp.Expr, position: sp.Expr) -> sp.Expr:
    """The position of a value that is the extremum, or NaN; else none that is ahead of it."""
    return where(either(equal(value, top), unequal(value, value)), position, sp.oo)


DOT = Monoid(
    name="dot",
    args=("x", "y"),
    state=("value",),
    identity=(sp.Integer(0),),
    lift=Recipe((_x * symbol("y"),)),
    combine=Recipe((_a + _b,)),
    step=Recipe((_value + _x * symbol("y"),)),
    doc="Σ x y over an axis that both sides have: a contraction",
)
WELFORD = _welford()
ONLINE_SOFTMAX = _online_softmax()
ARGMAX, ARGMIN = _position("argmax", _max, -sp.oo), _position("argmin", _min, sp.oo)
MONOIDS: dict[str, Monoid] = {m.name: m for m in (SUM, MAX, MIN, ABSMAX, ARGMAX, ARGMIN, WELFORD, ONLINE_SOFTMAX)}
