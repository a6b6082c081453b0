"""The maximum of a softmax that moves while its products are summed.

    y = Σ exp(z - max z) v        r = -largest number, y = 0;  for each tile of k:  r' = max(r, z of the tile),
                                  y = y exp(r - r') + Σ exp(z - r') v,  r = r'

The state (r, Σ exp(z - r), Σ exp(z - r) v) is the monoid `online_softmax` with one component more, which is a block's
tile of the result. So all that is summed over k must be made of exp(z - max z) as a factor, or not know the maximum.
A factor may be rounded, as those of tensor cores are: exp(z - r) is 1 at most, and rounds to within as large a share of
itself about each maximum so far. So each term is rounded once, by whichever r it meets.
A row of nothing but -inf has the sums 0 where those about -inf are NaN: what is stored of them must be NaN either way,
as the quotient 0 / 0 is. Where it is not, or the maximum itself shows, the sum of the exponentials themselves tells
such a row from all others: it is 1 or more of these. Then the kernel puts -inf and NaN there.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from normgen.dtypes import DTYPES
from normgen.errors import ProgramError
from normgen.problem.problem import Problem
from normgen.program.functions import ROW
from normgen.program.ir import Load, Map, Reduce, Store, used_names
from normgen.program.monoid import MAX, SUM
from normgen.program.trees import is_minus, operands, replaced
from normgen.schedule.tiles.cut import Contraction, contraction
from normgen.spec.formula import Binary, Call, Cast, Expression, Name, Number, Power
from normgen.spec.functions import INFINITY

_ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_REAL = ("exp", "exp_approximate", "log", "abs", "tanh", "erf", "sin", "cos", "maximum", "minimum")  # NaN of NaN
_RULE = "softmax = online moves a maximum while products are summed"


@dataclass(frozen=True)
class Moving:
    """The maximum, the function that its exponentials are of, and the names of the sums that move with it.

    hidden  the sum that is 0 of a row of nothing but -inf alone, if the kernel has to ask
    last    of a row, the last k whose number is not -inf, whatever is read: a whole number; None: no such bound
    """

    top: Reduce
    exponential: str
    dots: tuple[str, ...]
    sums: tuple[str, ...]
    hidden: str
    last: Expression | None


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
    is_all = len(moved) == len((*cut.sums, *cut.riding))  # what does not know the maximum sums other terms, too
    return Moving(top, exponential, dots, sums, hidden, _last_of(cut, top) if is_all else None)


def moves(cut: Contraction) -> bool:
    """Whether it is such a softmax."""
    try:
        moving_maximum(cut)
    except ProgramError:
        return False
    return True


def leaves_out(problem: Problem) -> bool:
    """Whether a kernel of the problem may leave out terms behind the last one of each row."""
    try:
        return moving_maximum(contraction(problem)).last is not None
    except ProgramError:  # of no product, or of none of a softmax
        return False


def _last_of(cut: Contraction, top: Reduce) -> Expression | None:
    """e of a maximum of where(term <= e, number, -inf), where e is made of the row's number alone."""
    maps = {step.name: step.expr for step in cut.ahead[0].maps}
    tree = replaced(top.args[0], maps)
    if not isinstance(tree, Call) or tree.function != "where" or (cut.m, cut.k) != ("rows", "inner"):
        return None
    condition, _, other = tree.args
    is_hidden = is_minus(other) and isinstance(other, Binary) and other.right == Name(INFINITY)
    match condition:
        case Call("<=", (Call(function="int", args=(Name("term"),)), Call(function="int", args=(last,)))) if is_hidden:
            return last if last.names <= {ROW.name} else None
    return None


def _shown(cut: Contraction, top: str, moved: frozenset[str], hidden: str = "") -> str:
    """What of a row of nothing but -inf the epilogue would show wrongly: its maximum, or what is not NaN of 0 sums.

    hidden  the sum that is NaN there
    """
    values: dict[str, float | None] = {**dict.fromkeys(moved, 0.0), **({hidden: math.nan} if hidden else {})}
    for statement in cut.epilogue:
        if top in used_names(statement) and not isinstance(statement, Load):
            return ", and the maximum itself is not kept"
        if isinstance(statement, Map):
            values[statement.name] = _value(statement.expr, values)
        if isinstance(statement, Store) and moved & _read(cut, statement.value):
            value = values.get(statement.value)
            if value is None or not math.isnan(value):
                return f": of a row of -inf they are 0, and '{statement.tensor}' must be NaN of these"
    return ""


def _value(tree: Expression, values: Mapping[str, float | None]) -> float | None:
    """The tree's number where some values are known; None: it may be any, and 0 times any is 0."""
    match tree:
        case Number(value=number):
            return float(number)
        case Name(name=name):
            return math.inf if name == INFINITY else values.get(name)
        case Binary(operator=way) if way in "+-*/":
            a, b = _value(tree.left, values), _value(tree.right, values)
            known = [value for value in (a, b) if value is not None]
            if any(map(math.isnan, known)):
                return math.nan
            if way == "/" and b == 0.0:
                return math.nan if a == 0.0 else None if a is None else math.copysign(math.inf, a)
            if way in "*/" and a == 0.0 and b not in (math.inf, -math.inf):
                return 0.0
            if way == "*" and b == 0.0 and a not in (math.inf, -math.inf):
                return 0.0
            return None if a is None or b is None else _ARITHMETIC[way](a, b)
        case Power(base=base, exponent=exponent):
            found = _value(base, values)
            if found == 0.0 and exponent < 0:
                return math.inf
            return found if found is None or found <= 0.0 or math.isnan(found) else found ** float(exponent)
        case Call(function=function, args=args) if function in _REAL:
            known = [value for arg in args if (value := _value(arg, values)) is not None]
            return math.nan if any(map(math.isnan, known)) else None
    return None


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
        self.top = top.names[0]
        self.argument = Counter(operands(top.args[0], "+-"))
        self.functions: set[str] = set()
        self.maps: dict[str, Expression] = {}  # what is made of the maximum, with that in the place of names
        for step in cut.left.maps:
            expr = replaced(step.expr, self.maps)
            if self.top in expr.names:
                self.maps[step.name] = expr

    def is_in(self, expr: Expression, *, of_sum: bool = True) -> bool:
        """Raises ProgramError where the maximum is elsewhere in it, or what it is a part of is no sum."""
        whole = replaced(expr, self.maps)
        if self.top not in whole.names:
            return False
        parts = list(_factors(whole))
        own = [call for way, part in parts if way == "*" and (call := self._own(part))]
        if not of_sum or len(own) != 1 or sum(self.top in part.names for _, part in parts) > 1:
            raise ProgramError(f"{_RULE}: what reads it is a sum of exp(z - max(z)), or of multiples of that")
        self.functions.add(own[0].function)
        return True

    def is_bare(self, expr: Expression) -> bool:
        """Whether it is exp(z - max z)."""
        return self._own(replaced(expr, self.maps)) is not None

    def _own(self, part: Expression) -> Call | None:
        """The call, if a factor is one of exp(z - max z), or such a call rounded to fewer digits, not to a grid."""
        call = part.arg if isinstance(part, Cast) and not DTYPES[part.to].is_coarse else part
        if not isinstance(call, Call) or call.function not in ("exp", "exp_approximate"):
            return None
        is_own = Counter(operands(call.args[0], "+-")) == self.argument + Counter([("-", Name(self.top))])
        return call if is_own else None


def _factors(tree: Expression) -> Iterator[tuple[str, Expression]]:
    """The factors of a product, those of brackets in it too: (operator, factor)."""
    for way, part in operands(tree.right if is_minus(tree) else tree, "*/"):
        is_product = (isinstance(part, Binary) and part.operator in "*/") or is_minus(part)
        yield from _factors(part) if way == "*" and is_product else [(way, part)]
