"""Exponentials by the hardware's power of two: a last rewrite, of expressions and of the monoids' recipes.

What divides by an exponential, as a sigmoid does, multiplies by the hardware's reciprocal: an IEEE division of each
element is ten instructions and a branch (swiglu of bf16 rows: 50 instructions an element become 13).
"""

from __future__ import annotations

from dataclasses import replace

import sympy as sp

from normgen.program.functions import reciprocal_approximate
from normgen.program.ir import Map, Reduce, RowProgram, Statement
from normgen.program.monoid import Monoid, Recipe


class exp_approximate(sp.Function):  # type: ignore[misc]  # sympy has no types
    """e^x, off by 2 + 1.2 |x| ulp at most; 0 where that is subnormal."""


def has_exponentials(program: RowProgram) -> bool:
    """Whether any value of the program is an exponential."""
    return approximate_exponentials(program) != program


def approximate_exponentials(program: RowProgram) -> RowProgram:
    """The program with `exp_approximate` in place of every `exp`, and reciprocals of what has exponentials likewise."""
    return replace(program, statements=tuple(_statement(s) for s in program.statements))


def _statement(statement: Statement) -> Statement:
    if isinstance(statement, Map):
        return replace(statement, expr=_of(statement.expr))
    if isinstance(statement, Reduce):
        return replace(statement, args=tuple(map(_of, statement.args)), monoid=_monoid(statement.monoid))
    return statement


def _monoid(monoid: Monoid) -> Monoid:
    by_vector = monoid.vector_step
    if by_vector is not None:
        by_vector = replace(by_vector, move=_recipe(by_vector.move), step=_recipe(by_vector.step))
    return replace(monoid, combine=_recipe(monoid.combine), step=_recipe(monoid.step), vector_step=by_vector)


def _recipe(recipe: Recipe) -> Recipe:
    lets = tuple((name, _of(expr)) for name, expr in recipe.lets)
    return replace(recipe, results=tuple(map(_of, recipe.results)), lets=lets)


def _of(expr: sp.Expr) -> sp.Expr:
    return expr.replace(sp.exp, exp_approximate).replace(_divides_by_exponential, _by_reciprocal)


def _divides_by_exponential(expr: sp.Expr) -> bool:
    return bool(expr.is_Pow and expr.exp.is_Integer and expr.exp < 0 and expr.base.has(exp_approximate))


def _by_reciprocal(power: sp.Expr) -> sp.Expr:
    return reciprocal_approximate(power.base) ** -power.exp
