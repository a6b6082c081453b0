"""Names for what several statements compute of each element: a value that has one can wait between looks.

`x - mean` of a variance and of the output behind it, `exp(x - max)` of a softmax's sum and of its output.
"""

from __future__ import annotations

from collections import Counter

import sympy as sp

from normgen.program.functions import Condition, Index
from normgen.program.gradient.normalised import fresh
from normgen.program.gradient.shared_terms import replaced, term_name
from normgen.program.ir import Map, RowProgram, Statement, check, kind_of, used_exprs, value_kinds
from normgen.program.monoid import symbol
from normgen.spec.spec import Kind


def name_kept_values(program: RowProgram) -> RowProgram:
    """Every term of elements that two statements write becomes a map in front of the first, largest terms first."""
    kinds = value_kinds(check(program))
    statements = list(program.statements)
    while (term := _repeated(statements, kinds)) is not None:
        name = fresh(term_name(term), {*kinds, *program.scalars})
        kinds[name] = Kind.ELEM
        first = next(i for i, s in enumerate(statements) if term in _terms(s, kinds))
        known = {term: symbol(name)}
        statements = [replaced(s, known) for s in statements]
        statements.insert(first, Map(name, Kind.ELEM, term))
    return check(RowProgram(program.name, tuple(statements), program.scalars))


def _repeated(statements: list[Statement], kinds: dict[str, Kind]) -> sp.Expr | None:
    """The largest term that two statements compute."""
    counts = Counter(term for s in statements for term in _terms(s, kinds))
    return max((t for t, n in counts.items() if n > 1), key=lambda t: (t.count_ops(), str(t)), default=None)


def _terms(statement: Statement, kinds: dict[str, Kind]) -> set[sp.Expr]:
    """What it computes of each element, each term once; a condition costs no more than the register of its result."""
    return {
        term
        for expr in used_exprs(statement)
        for term in sp.preorder_traversal(expr)
        if term.args and not isinstance(term, Condition | Index) and kind_of(term, kinds).is_elem
    }
