"""Products of the derived gradients in the order of the chain rule over the author's product.

    y = x * a * b * c     d a = ((dy * c) * b) * x,   d c = dy * ((x * a) * b)

The gradient of a factor is the gradient of y, times what stands behind the factor, last one first, times the product
before it. Every value on the way is one of the forward's, or the gradient of one: it overflows only where that does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import sympy as sp

from normgen.program.gradient.monomials import expression, factors, multiplied, raised
from normgen.program.ir import Map, Reduce, Statement, used_exprs
from normgen.program.ordered import Ordered

Powers = Mapping[sp.Expr, sp.Rational]


def in_chain_order(
    statements: Iterable[Statement], forward: Iterable[Statement], cotangents: Iterable[sp.Symbol]
) -> list[Statement]:
    """The backward statements, each product with a cotangent ordered by the author's product that it derives."""
    products = [n for s in forward for e in used_exprs(s) for n in _outermost(e)]
    order = _Order(products=tuple(dict.fromkeys(products)), cotangents=frozenset(cotangents))
    return [order.statement(s) for s in statements]


def _outermost(expr: sp.Expr) -> Iterator[Ordered]:
    if isinstance(expr, Ordered):
        yield expr
        return
    for arg in expr.args:
        yield from _outermost(arg)


def _leaves(node: sp.Expr) -> tuple[sp.Expr, ...]:
    return tuple(leaf for arg in node.args for leaf in _leaves(arg)) if isinstance(node, Ordered) else (node,)


def _chain(node: sp.Expr, pivot: sp.Expr, *, is_missing: bool) -> list[sp.Expr]:
    """What the gradient of `node` is multiplied by on its way to the leaf `pivot`."""
    if not isinstance(node, Ordered):
        return [] if is_missing else [node]
    at = next(i for i, child in enumerate(node.args) if pivot in _leaves(child))
    is_inside = is_missing or isinstance(node.args[at], Ordered)
    before = node.args[: at if is_inside else at + 1]
    bracket = [Ordered(*before)] if len(before) > 1 else list(before)
    inner = _chain(node.args[at], pivot, is_missing=is_missing) if is_inside else []
    return [*reversed(node.args[at + 1 :]), *bracket, *inner]


@dataclass(frozen=True, kw_only=True)
class _Order:
    products: tuple[Ordered, ...]
    cotangents: frozenset[sp.Symbol]

    def statement(self, statement: Statement) -> Statement:
        match statement:
            case Map(expr=expr):
                return replace(statement, expr=self.expr(expr))
            case Reduce(args=args):
                return replace(statement, args=tuple(map(self.expr, args)))
            case _:
                return statement

    def expr(self, expr: sp.Expr) -> sp.Expr:
        if not expr.args or isinstance(expr, Ordered):
            return expr
        found = self.ordered(expr) if expr.is_Mul and self.cotangents & set(expr.args) else None
        if found is None:
            return expr.func(*map(self.expr, expr.args))
        number, operands = found
        return number * Ordered(*map(self.expr, operands))

    def ordered(self, expr: sp.Expr) -> tuple[sp.Expr, list[sp.Expr]] | None:
        """The number and the operands of a product with a cotangent, or None if no author's product gives an order."""
        number, powers = factors(expr)
        derived = [(len(_leaves(n)), n) for n in self.products if len(self._missing(n, powers)) <= 1]
        if not derived:
            return None
        node = max(derived, key=lambda found: found[0])[1]
        missing = self._missing(node, powers)
        inside = [*(Counter(_leaves(node)) - Counter(missing)).elements()]
        taken = multiplied(*({base: exponent} for base, exponent in (leaf.as_base_exp() for leaf in inside)))
        rest = {a: p for a, p in multiplied(powers, raised(taken, sp.Integer(-1))).items() if p != 0}
        pivot = next(iter(missing), None) or next((n for n in inside if n.as_base_exp()[0] in rest), inside[0])
        lead = [a for a in rest if a in self.cotangents]
        tail = [expression({a: p}) for a, p in rest.items() if a not in self.cotangents]
        operands = [*lead, *_chain(node, pivot, is_missing=bool(missing)), *tail]
        return (number, operands) if len(operands) > 2 or any(isinstance(o, Ordered) for o in operands) else None

    def _missing(self, node: Ordered, powers: Powers) -> list[sp.Expr]:
        """Leaves that the product does not hold beside those before them: of (b * b) * (b * b) b**3 lacks one pair."""
        left, missing = dict(powers), []
        for leaf in _leaves(node):
            base, exponent = leaf.as_base_exp()
            if left.get(base, 0) * exponent > 0 and abs(left[base]) >= abs(exponent):
                left[base] -= exponent
            else:
                missing.append(leaf)
        return missing
