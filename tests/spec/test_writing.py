"""An expression's text is read back as the same expression."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from normgen.spec.formula import Binary, Call, Cast, Expression, Name, Number, Power, children, parse_formula
from normgen.spec.reader import list_presets, list_specs, load
from normgen.spec.writing import written


def shape(expression: Expression) -> str:
    """A tree without the places in a text."""
    return re.sub(r", column=\d+|column=\d+", "", repr(expression))


@pytest.mark.parametrize("name", [*list_specs(), *list_presets()])
def test_every_formula_that_ships_is_read_back_as_itself(name: str) -> None:
    for formula in load(name).formulas:
        tree = parse_formula(formula.text)
        assert shape(parse_formula(written(tree))) == shape(tree)


X, Y, Z = Name("x"), Name("y"), Name("z")
CASES = [
    (Binary("-", X, Binary("-", Y, Z)), "x - (y - z)"),
    (Binary("-", Binary("-", X, Y), Z), "x - y - z"),
    (Binary("*", X, Binary("/", Y, Z)), "x * (y / z)"),
    (Binary("*", Binary("+", X, Y), Z), "(x + y) * z"),
    (Power(Power(X, Fraction(2)), Fraction(-1, 2)), "(x**2)**-0.5"),
    (Power(Binary("-", Number(Fraction(0)), X), Fraction(2)), "(-x)**2"),
    (Binary("-", Number(Fraction(0)), Power(X, Fraction(2))), "-x**2"),
    (Binary("*", X, Number(Fraction(-1, 4))), "x * -0.25"),
    (Call("<", (Call("<", (X, Y)), Z)), "(x < y) < z"),
    (Call("and", (Call("or", (X, Y)), Call("not", (Call("==", (X, Z)),)))), "(x or y) and not x == z"),
    (Call("not", (Call("and", (X, Y)),)), "not (x and y)"),
    (Cast(Binary("+", X, Y), "bf16"), "cast(x + y, bf16)"),
    (Binary("+", X, Number(Fraction("1e-6"))), "x + 1e-06"),
]


@pytest.mark.parametrize(("tree", "text"), CASES, ids=[text for _, text in CASES])
def test_brackets_stand_where_the_order_needs_them(tree: Expression, text: str) -> None:
    assert written(tree) == text
    read = parse_formula(text)
    assert [shape(child) for child in children(read)] == [shape(child) for child in children(tree)]
    assert shape(read) == shape(tree)
