"""Sums, products and parts of trees of the formula language (spec/formula.py), as a frozen program has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import TypeGuard

from normgen.spec.formula import Binary, Call, Cast, Expression, Name, Number, Power

ZERO, ONE = Number(Fraction(0)), Number(Fraction(1))


def minus(tree: Expression) -> Expression:
    """-tree, as a formula's sign is read: 0 - tree."""
    return Binary("-", ZERO, tree)


def is_minus(tree: Expression) -> TypeGuard[Binary]:
    """Whether it is -e, with e on its right."""
    return isinstance(tree, Binary) and tree.operator == "-" and tree.left == ZERO


def sum_of(terms: Iterable[tuple[str, Expression]]) -> Expression:
    """The sum of terms, each with the sign "+" or "-", from left to right."""
    (sign, found), *others = terms
    found = minus(found) if sign == "-" else found
    for sign, term in others:
        found = Binary(sign, found, term)
    return found


def chain(factors: Iterable[tuple[str, Expression]]) -> Expression:
    """The product of factors, each behind "*" or "/", from left to right; the first is multiplied."""
    (_, found), *others = factors
    for operator, factor in others:
        found = Binary(operator, found, factor)
    return found


def operands(tree: Expression, operators: str) -> list[tuple[str, Expression]]:
    """(operator, operand) of a `sum_of` where the operators are "+-", of a `chain` where they are "*/"."""
    if not isinstance(tree, Binary) or tree.operator not in operators:
        return [(operators[0], tree)]
    if is_minus(tree):
        return [("-", tree.right)]
    return [*operands(tree.left, operators), (tree.operator, tree.right)]


def replaced(tree: Expression, instead: Mapping[str, Expression]) -> Expression:
    """The tree with others in the place of names."""
    match tree:
        case Name(name=name):
            return instead.get(name, tree)
        case Binary(left=left, right=right):
            return replace(tree, left=replaced(left, instead), right=replaced(right, instead))
        case Power(base=base):
            return replace(tree, base=replaced(base, instead))
        case Cast(arg=arg):
            return replace(tree, arg=replaced(arg, instead))
        case Call(args=args):
            return replace(tree, args=tuple(replaced(arg, instead) for arg in args))
    return tree
