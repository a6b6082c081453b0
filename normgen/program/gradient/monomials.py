"""Sums of power products: the form in which gradients are added, compared and cancelled.

    3 * rstd**2 * (x - mean) - y / cols   ->   {((rstd, 2), (x - mean, 1)): 3, ((cols, -1), (y, 1)): -1}

An atom is any sympy expression that is not a product: a sum such as `x - mean` is one atom and is never
expanded, because x*r - mean*r loses the digits that x - mean keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import sympy as sp

Monomial = tuple[tuple[sp.Expr, sp.Rational], ...]
Poly = dict[Monomial, sp.Expr]
Product = tuple[sp.Expr, Mapping[sp.Expr, sp.Rational]]  # number, atom -> exponent

UNIT: Monomial = ()


def monomial(powers: Mapping[sp.Expr, sp.Rational]) -> Monomial:
    """The sorted form of atom -> exponent; equal products are equal monomials."""
    return tuple(sorted(((a, p) for a, p in powers.items() if p != 0), key=lambda factor: _text(factor[0])))


@lru_cache(maxsize=4096)
def _text(atom: sp.Expr) -> str:
    """An atom as sympy prints it, which takes a third of a derivation if it is done at every comparison."""
    return str(atom)


def factors(expr: sp.Expr) -> Product:
    """A product's number and its atoms with their constant exponents."""
    number: sp.Expr = sp.Integer(1)
    powers: dict[sp.Expr, sp.Rational] = {}
    for factor in sp.Mul.make_args(expr):
        if factor.is_number:
            number = number * factor
            continue
        has_power = factor.is_Pow and factor.exp.is_Rational
        base, exponent = (factor.base, factor.exp) if has_power else (factor, sp.Integer(1))
        powers[base] = powers.get(base, sp.Integer(0)) + exponent
    return number, powers


def expression(powers: Mapping[sp.Expr, sp.Rational] | Monomial) -> sp.Expr:
    """The sympy product of atom -> exponent."""
    pairs = powers.items() if isinstance(powers, Mapping) else powers
    return sp.Mul(*(sp.Pow(atom, exponent) for atom, exponent in pairs))


def add_into(target: Poly, poly: Poly) -> None:
    """target += poly; terms that cancel vanish."""
    for term, number in poly.items():
        total = target.get(term, sp.Integer(0)) + number
        if total == 0:
            target.pop(term, None)
        else:
            target[term] = total


def multiplied(*products: Mapping[sp.Expr, sp.Rational] | Monomial) -> dict[sp.Expr, sp.Rational]:
    """The product of products, as atom -> exponent."""
    powers: dict[sp.Expr, sp.Rational] = {}
    for product in products:
        for atom, exponent in product.items() if isinstance(product, Mapping) else product:
            powers[atom] = powers.get(atom, sp.Integer(0)) + exponent
    return powers


def raised(powers: Mapping[sp.Expr, sp.Rational] | Monomial, exponent: sp.Rational) -> dict[sp.Expr, sp.Rational]:
    """Each exponent times `exponent`."""
    pairs = powers.items() if isinstance(powers, Mapping) else powers
    return {atom: power * exponent for atom, power in pairs}


def common_factor(terms: Iterable[Monomial]) -> Monomial:
    """The largest product that divides every term without leaving a new division behind.

    An atom counts only where every term has it with the same sign: r/s - t/s has 1/s in common.
    """
    listed = [dict(term) for term in terms]
    shared: dict[sp.Expr, sp.Rational] = {}
    for atom in listed[0] if listed else {}:
        exponents = [term.get(atom, sp.Integer(0)) for term in listed]
        if all(e > 0 for e in exponents):
            shared[atom] = min(exponents)
        elif all(e < 0 for e in exponents):
            shared[atom] = max(exponents)
    return monomial(shared)
