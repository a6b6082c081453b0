"""Where formulas compare: the values at which a comparison, a clamp or a rounding of an input turns over.

`x < limit` and `x <= limit` differ in one value of x, the limit itself, which no random row has. So rows of the family
"x edges" hold it in every second element, and what float32 or the input's dtype has next to it, below and above, in
others. A limit is what the operand that is not the input comes to: from numbers of the formula and run-time scalars.
Solved for the input are sums, differences, products and quotients by such values, through the formulas that they are
named by. A comparison with a random number is met from the other side: the scalar takes a number that was drawn.

Not found are limits that depend on another tensor, and inputs behind a reduction or another function.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache

import numpy as np

from normgen.dtypes import DType
from normgen.spec.formula import Binary, Call, Expression, Name, Number, constant_of, nodes, parse_formula
from normgen.spec.functions import RANDOM
from normgen.spec.spec import Spec
from normgen.verify.interpret import Array

COMPARED = ("<", "<=", ">", ">=", "==", "!=", "minimum", "maximum")
# Of functions of one argument: where their results step or turn over.
TURNS: dict[str, tuple[float, ...]] = {
    "abs": (0.0,),
    "sign": (0.0,),
    "floor": (0.0, 1.0, -1.0, 2.0, -2.0, 17.0),
    "ceil": (0.0, 1.0, -1.0, 2.0, -2.0, 17.0),
    "round": (0.5, 1.5, -0.5, -1.5, 2.5, -16.5),
}
MOST_NUMBERS = 256  # among which the one is looked for
FAR = 6.0  # binades about a limit in which the other elements lie


@lru_cache(maxsize=1024)
def _trees(spec: Spec) -> dict[str, Expression]:
    """Every formula by its name; what stands for an absent tensor under the tensor's."""
    texts = [(f.name, f.text) for f in spec.formulas] + [(t.name, t.absent) for t in spec.tensors if t.absent]
    return {name: parse_formula(text) for name, text in texts}


def limits(spec: Spec, tensor: str, scalars: Mapping[str, float]) -> tuple[float, ...]:
    """The finite values of an input at which some formula turns over, at these values of scalars."""
    found = {
        value: None
        for operand, other in _compared(spec)
        if (limit := _value(spec, other, scalars)) is not None
        for name, value in _solved(spec, operand, limit, scalars)
        if name == tensor and math.isfinite(value)
    }
    return tuple(found)


def _compared(spec: Spec) -> Iterator[tuple[Expression, Expression]]:
    """(operand, what it is compared with), each pair both ways."""
    for tree in _trees(spec).values():
        for node in nodes(tree):
            match node:
                case Call(function="clamp", args=(operand, low, high)):
                    yield from ((operand, low), (operand, high))
                case Call(function=function, args=(left, right)) if function in COMPARED:
                    yield from ((left, right), (right, left))
                case Call(function=function, args=(operand,)) if function in TURNS:
                    yield from ((operand, Number(value=Fraction(turn))) for turn in TURNS[function])


def _value(spec: Spec, tree: Expression, scalars: Mapping[str, float]) -> float | None:
    """What numbers and scalars come to; None of anything else."""
    constant = constant_of(tree)
    if constant is not None:
        return constant
    match tree:
        case Name(name=name) if name in scalars:
            return scalars[name]
        case Name(name=name) if name in _formulas(spec):
            return _value(spec, _trees(spec)[name], scalars)
        case Binary(operator=operator, left=left, right=right) if operator in "+-*/":
            a, b = _value(spec, left, scalars), _value(spec, right, scalars)
            return None if a is None or b is None else _result(operator, a, b)
    return None


def _formulas(spec: Spec) -> frozenset[str]:
    return frozenset(f.name for f in spec.formulas)


def _result(operator: str, a: float, b: float) -> float:
    with np.errstate(all="ignore"):
        left, right = np.float64(a), np.float64(b)
        results = {"+": left + right, "-": left - right, "*": left * right, "/": left / right}
        return float(results[operator])


def _solved(spec: Spec, operand: Expression, limit: float, scalars: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """(input, its value) where the operand comes to the limit."""
    match operand:
        case Name(name=name) if name in _formulas(spec):
            yield from _solved(spec, _trees(spec)[name], limit, scalars)
        case Name(name=name) if name not in scalars:
            yield name, limit
        case Binary(operator=operator, left=left, right=right) if operator in "+-*/":
            b = _value(spec, right, scalars)
            if b is not None:
                inverse = {"+": "-", "-": "+", "*": "/", "/": "*"}[operator]
                yield from _solved(spec, left, _result(inverse, limit, b), scalars)
            elif (a := _value(spec, left, scalars)) is not None:
                swapped = {"+": ("-", limit, a), "-": ("-", a, limit), "*": ("/", limit, a), "/": ("/", a, limit)}
                yield from _solved(spec, right, _result(*swapped[operator]), scalars)


def draw_edges(found: tuple[float, ...], rng: np.random.Generator, rows: int, cols: int, dtype: DType) -> Array:
    """[rows, cols]: half of them limits, an eighth next to one on each side, others some binades about one."""
    limit = rng.choice(np.array(found), (rows, cols))
    size = np.where(limit == 0, 1.0, np.abs(limit))
    step = np.where(limit == 0, dtype.smallest_normal, 2 * dtype.unit_roundoff * np.abs(limit))
    lot = rng.random((rows, cols))
    far = size * 2.0 ** rng.uniform(-FAR, FAR, (rows, cols)) * rng.choice([-1.0, 1.0], (rows, cols))
    near = np.where(lot < 5 / 8, limit + step, limit - step)
    return np.asarray(np.where(lot < 1 / 2, limit, np.where(lot < 3 / 4, near, far)))


def tied_scalars(spec: Spec) -> dict[str, Expression]:
    """The scalars that a random number is compared with, alone or as a part of a sum or product with numbers."""
    names = {name for name, _ in spec.scalars}
    found: dict[str, Expression] = {}
    for operand, other in _compared(spec):
        if _is_random(spec, operand):
            read = {node.name for node in nodes(other) if isinstance(node, Name)}
            if len(read) == 1 and read <= names:
                found.setdefault(read.pop(), other)
    return found


def _is_random(spec: Spec, tree: Expression) -> bool:
    match tree:
        case Call(function=function):
            return function == RANDOM
        case Name(name=name) if name in _formulas(spec):
            return _is_random(spec, _trees(spec)[name])
    return False


def count_draws(spec: Spec) -> int:
    """The calls of random(seed) in all formulas."""
    found = (node for tree in _trees(spec).values() for node in nodes(tree) if isinstance(node, Call))
    return sum(node.function == RANDOM for node in found)


def tied_value(spec: Spec, scalar: str, numbers: Array, *, is_small: bool = False) -> float:
    """The value of the scalar nearest to its default at which one of these random numbers is the one it is held to.

    is_small  the one nearest to 0. The default where float32 has no such value.
    """
    tree, usual = tied_scalars(spec)[scalar], dict(spec.scalars)[scalar]
    numbers = numbers.reshape(-1)[:MOST_NUMBERS]
    solved = [value for number in numbers.tolist() for name, value in _solved(spec, tree, number, {}) if name == scalar]
    exact = [value for value in solved if float(np.float32(value)) == value and value != usual]
    near = 0.0 if is_small else usual
    return min(exact, key=lambda value: abs(value - near), default=usual)
