"""The maximum of a softmax that moves while its products are summed.

    y = Σ exp(z - max z) v        r = -largest number, y = 0;  for each tile of k:  r' = max(r, z of the tile),
                                  y = y exp(r - r') + Σ exp(z - r') v,  r = r'

The state (r, Σ exp(z - r), Σ exp(z - r) v) is the monoid `online_softmax` with one component more, which is a block's
tile of the result. So all that is summed over k must be made of exp(z - max z) as a factor, or not know the maximum.
A row of nothing but -inf has the sums 0 where those about -inf are NaN: what is stored of them must be NaN either way,
as the quotient 0 / 0 is. Where it is not, or the maximum itself shows, the sum of the exponentials themselves tells
such a row from all others: it is 1 or more of these. Then the kernel puts -inf and NaN there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy as sp

from normgen.errors import ProgramError
from normgen.program.ir import Load, Map, Reduce, Store, used_names
from normgen.program.monoid import MAX, SUM, symbol
from normgen.program.ordered import Ordered, opened, steps
from normgen.program.rewrites.approximate import exp_approximate
from normgen.schedule.tiles.plan import Contraction

_RULE = "softmax = online moves a maximum while products are summed"


@dataclass(frozen=True)
class Moving:
    """The maximum, the function that its exponentials are of, and the names of the sums that move with it.

    hidden  the sum that is 0 of a row of nothing but -inf alone, if the kernel has to ask
    """

    top: Reduce
    exponential: Any
    dots: tuple[str, ...]
    sums: tuple[str, ...]
    hidden: str


@lru_cache(maxsize=1024)
def moving_maximum(cut: Contraction) -> Moving:
    """Raises ProgramError where the products are none of a softmax, or show what only a look ahead finds."""
    ahead = [reduce for look in cut.ahead for reduce in look.riding]
    if len(ahead) != 1 or ahead[0].monoid.name != MAX.name:
        raise ProgramError(f"{_RULE}: their side waits for one maximum of its rows, and for nothing else")
    if cut.reduced:
        raise ProgramError(f"{_RULE}, of which nothing is reduced")
    (top,) = ahead
    found = _Exponentials(cut, top)
    dots = tuple(r.names[0] for r in cut.sums if found.is_in(next(arg for arg in r.args if arg in cut.left.slots)))
    sums = tuple(r.names[0] for r in cut.left.riding if found.is_in(r.args[0], of_sum=r.monoid.name == SUM.name))
    moved = frozenset((*dots, *sums))
    hidden = ""
    if why := _shown(cut, top.names[0], moved):
        bare = (r.names[0] for r in cut.left.riding if r.monoid.name == SUM.name and found.is_bare(r.args[0]))
        hidden = next(bare, "")
        why = _shown(cut, "", moved, hidden) if hidden else why
        if why:
            raise ProgramError(f"{_RULE}{why}")
    (exponential,) = found.functions
    return Moving(top, exponential, dots, sums, hidden)


def moves(cut: Contraction) -> bool:
    """Whether it is such a softmax."""
    try:
        moving_maximum(cut)
    except ProgramError:
        return False
    return True


def _shown(cut: Contraction, top: str, moved: frozenset[str], hidden: str = "") -> str:
    """What of a row of nothing but -inf the epilogue would show wrongly: its maximum, or what is not NaN of 0 sums.

    hidden  the sum that is NaN there
    """
    zeros: dict[sp.Symbol, sp.Expr] = {symbol(name): sp.Integer(0) for name in moved}
    zeros |= {symbol(hidden): sp.nan} if hidden else {}
    values: dict[sp.Symbol, sp.Expr] = {}
    for statement in cut.epilogue:
        if top in used_names(statement) and not isinstance(statement, Load):
            return ", and the maximum itself is not kept"
        if isinstance(statement, Map):
            values[symbol(statement.name)] = opened(statement.expr).xreplace(values | zeros)
        if isinstance(statement, Store):
            value = (values | zeros).get(symbol(statement.value), sp.Symbol(statement.value))
            if moved & _read(cut, statement.value) and value is not sp.nan:
                return f": of a row of -inf they are 0, and '{statement.tensor}' must be NaN of these"
    return ""


def _read(cut: Contraction, value: str) -> set[str]:
    """All that a value of the epilogue is made of."""
    read = {value}
    for statement in reversed(cut.epilogue):
        if isinstance(statement, Map) and statement.name in read:
            read |= used_names(statement)
    return read


class _Exponentials:
    """Whether what is summed has exp(z - max z) as a factor, and of which function."""

    def __init__(self, cut: Contraction, top: Reduce) -> None:
        self.top, self.argument = symbol(top.names[0]), top.args[0]
        self.maps = {symbol(m.name): m.expr for m in cut.left.maps}
        self.functions: set[Any] = set()

    def is_in(self, expr: sp.Expr, *, of_sum: bool = True) -> bool:
        """Raises ProgramError where the maximum is elsewhere in it, or what it is a part of is no sum."""
        whole = self._opened(expr)
        if not whole.has(self.top):
            return False
        parts = list(steps(whole)) if isinstance(whole, Ordered) else [("*", e) for e in sp.Mul.make_args(whole)]
        own = [part for way, part in parts if way == "*" and self._is_own(part)]
        if not of_sum or len(own) != 1 or sum(part.has(self.top) for _, part in parts) > 1:
            raise ProgramError(f"{_RULE}: what reads it is a sum of exp(z - max(z)), or of multiples of that")
        self.functions.add(own[0].func)
        return True

    def is_bare(self, expr: sp.Expr) -> bool:
        """Whether it is exp(z - max z)."""
        return self._is_own(self._opened(expr))

    def _opened(self, expr: sp.Expr) -> sp.Expr:
        """With what is made of the maximum in the place of names."""
        while found := {s for s in expr.free_symbols & self.maps.keys() if self._knows(s)}:
            expr = expr.xreplace({s: self.maps[s] for s in found})
        return expr

    def _knows(self, name: sp.Symbol) -> bool:
        expr = self.maps[name]
        return bool(expr.has(self.top)) or any(self._knows(s) for s in expr.free_symbols & self.maps.keys())

    def _is_own(self, part: sp.Expr) -> bool:
        return part.func in (sp.exp, exp_approximate) and part.args[0] + self.top == self.argument
