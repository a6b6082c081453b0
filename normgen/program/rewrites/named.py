"""Formulas away from a column that a row value names, as a label: what most of a row's columns compute."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import sympy as sp

from normgen.program.functions import COL, equal, where


def named_columns(exprs: Iterable[sp.Expr], numbers: Collection[str]) -> list[str]:
    """The row values of whole numbers `numbers` whose column alone has other values than the rest of its row."""
    conditions = [condition for expr in exprs for condition in expr.atoms(equal)]
    return [number for number in numbers if any(_names(condition, [number]) for condition in conditions)]


def away_from(numbers: Collection[str], expr: sp.Expr) -> sp.Expr:
    """The expression in a column that none of the row values names: col == label does not hold."""
    while found := {w: w.args[2] for w in expr.atoms(where) if _names(w.args[0], numbers)}:
        expr = expr.xreplace(found)
    return expr.xreplace({c: sp.S.Zero for c in expr.atoms(equal) if _names(c, numbers)})


def _names(condition: sp.Basic, numbers: Collection[str]) -> bool:
    """Whether it is col == one of the row values."""
    args = condition.args
    return isinstance(condition, equal) and COL in args and any(a.is_Symbol and a.name in numbers for a in args)
