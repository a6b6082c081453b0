"""Costly terms that a program writes more than once, computed once under a name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import sympy as sp

from normgen.program.functions import Condition, clamp, sign, where
from normgen.program.gradient.normalised import fresh
from normgen.program.ir import Load, Map, Random, Reduce, Statement, Store, kind_of, used_exprs
from normgen.program.monoid import symbol
from normgen.program.ordered import is_product
from normgen.spec.spec import Kind

_CHEAP = (sp.Max, sp.Min, sp.Abs, sign, Condition, clamp, where)


def share_terms(statements: list[Statement], kinds: dict[str, Kind], taken: set[str]) -> list[Statement]:
    """The statements with every function and division that occurs twice as a map of its own.

    Products and sums are left: they cost no more than the register that would hold them.
    """
    shared = list(statements)
    while (term := _repeated(shared)) is not None:
        shared = _with_name(shared, term, kinds, taken)
    return shared


def term_name(term: sp.Expr) -> str:
    """A readable name of an expression: exp_x_minus_top, sigmoid_g, x_minus_mean."""
    if term.is_Symbol:
        return str(term.name)
    if term.is_number:
        return str(term) if term.is_Integer and term >= 0 else ""
    if _sigmoid_argument(term) is not None:
        return f"sigmoid_{term_name(_sigmoid_argument(term))}"
    if term.is_Add:
        terms = sorted(term.args, key=lambda t: (t.could_extract_minus_sign(), t.is_number, str(t)))
        words = [("minus_" if t.could_extract_minus_sign() else "plus_") + term_name(abs_term(t)) for t in terms]
        return "_".join(words).removeprefix("plus_").rstrip("_")
    if is_product(term):
        return "_".join(filter(None, map(term_name, term.args)))
    if term.is_Pow:
        return f"{term_name(term.base)}_power" if term.exp != -1 else f"inv_{term_name(term.base)}"
    return "_".join([type(term).__name__.lower(), *map(term_name, term.args)])


def abs_term(term: sp.Expr) -> sp.Expr:
    """The term without its minus sign."""
    return -term if term.could_extract_minus_sign() else term


def _sigmoid_argument(term: sp.Expr) -> sp.Expr | None:
    """u of 1 / (1 + exp(-u))"""
    if term.is_Pow and term.exp == -1 and term.base.is_Add and sp.Integer(1) in term.base.args:
        rest = term.base - 1
        return -rest.args[0] if isinstance(rest, sp.exp) else None
    return None


def _terms(expr: sp.Expr) -> Iterator[sp.Expr]:
    for node in sp.preorder_traversal(expr):
        is_function = node.is_Function and not isinstance(node, _CHEAP)
        if (is_function or (node.is_Pow and node.exp.is_negative)) and not node.is_number:
            yield node


def _repeated(statements: list[Statement]) -> sp.Expr | None:
    """The largest costly term that occurs more than once, its own map included.

    Not one beside its own name: v - round(x) would be v - v, which is 0 to sympy.
    """
    names = {s.expr: symbol(s.name) for s in statements if isinstance(s, Map)}
    terms = [(t, e) for s in statements for e in used_exprs(s) for t in _terms(e)]
    beside = {t for t, e in terms if t in names and names[t] in e.free_symbols}
    counts = Counter(t for t, _ in terms)
    repeated = [t for t, n in counts.items() if n > 1 and t not in beside and not _is_row_division(t)]
    return max(repeated, key=lambda t: (t.count_ops(), str(t)), default=None)


def _is_row_division(term: sp.Expr) -> bool:
    """1/s and 1/cols alone: a division is written x / s."""
    return bool(term.is_Pow and term.base.is_Symbol)


def _with_name(statements: list[Statement], term: sp.Expr, kinds: dict[str, Kind], taken: set[str]) -> list[Statement]:
    """`term` replaced by its map: an existing one, moved up to its first use, or a new one."""
    own = next((s for s in statements if isinstance(s, Map) and s.expr == term), None)
    statement = own or Map(fresh(term_name(term), taken), kind_of(term, kinds), term)
    kinds[statement.name] = statement.kind
    replacement = {term: symbol(statement.name)}
    result: list[Statement] = []
    is_written = False
    for old in statements:
        if old is own:
            if not is_written:
                result.append(statement)
            is_written = True
            continue
        new = replaced(old, replacement)
        if new != old and not is_written:
            result.append(statement)
            is_written = True
        result.append(new)
    return result


def replaced(statement: Statement, replacement: Mapping[sp.Expr, sp.Symbol]) -> Statement:
    """The statement with terms of its formulas replaced."""
    match statement:
        case Map(name=name, kind=kind, expr=expr):
            return Map(name, kind, expr.xreplace(replacement))
        case Reduce(args=args):
            return replace(statement, args=tuple(arg.xreplace(replacement) for arg in args))
        case Load() | Random() | Store():
            return statement
