"""sympy expressions -> CUDA C in float32.

sympy's own C printer emits double literals, `pow` and its canonical term order; this one knows three
precedence levels, `f` suffixes, `rsqrtf`, whole powers as products, and puts terms in the order in which
the program defines their values, so that `(x - mean) * rstd * weight + bias` is printed as it was written.
An ordered product is printed in its own order and with its own brackets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import sympy as sp

from normgen.dtypes import F32
from normgen.errors import ProgramError
from normgen.program.functions import (
    COL,
    INFINITY,
    ROW,
    TERM,
    Condition,
    Index,
    both,
    cast,
    clamp,
    constant,
    divide,
    divide_by_remainder,
    either,
    equal,
    name_of,
    negation,
    power_of,
    reciprocal_approximate,
    remainder,
    roll,
    sign,
    text_of,
    unequal,
    where,
)
from normgen.program.ir import COLS, SIZES
from normgen.program.ordered import Ordered, steps
from normgen.program.rewrites.approximate import exp_approximate

CHOICE, SUM, PRODUCT, ATOM = 0, 1, 2, 3  # how tightly a piece of text binds
LONGEST_PRODUCT = 4  # factors of a power that is written out


def place_of(name: str) -> str:
    """The key, among the names of values, of a column's place in a vector: of `col` itself, or of the column named."""
    return f"place of {name}"


def float_literal(value: float) -> str:
    """A float32 literal that reads back to the same float32 value: 0.0f, 1e-05f, 0.044715f."""
    text = repr(float(value))
    return text + "f" if any(c in text for c in ".en") else text + ".0f"


class Printer:
    """Prints expressions with `names`: symbol name -> C text. The order of `names` orders terms and factors."""

    infinity, minus_infinity = "__int_as_float(0x7f800000)", "__int_as_float(0xff800000)"

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names
        self._rank = {name: i for i, name in enumerate(names)}

    def text(self, expr: sp.Expr) -> str:
        return self._print(expr)[0]

    def operand(self, expr: sp.Expr, level: int) -> str:
        """`expr` as an operand of an operator that binds at `level`."""
        text, binds = self._print(expr)
        return text if binds >= level else f"({text})"

    def _order(self, expr: sp.Expr) -> tuple[int, ...]:
        ranks = sorted(self._rank.get(s.name, len(self._rank)) for s in expr.free_symbols)
        return (*ranks, len(self._rank))

    def _print(self, expr: sp.Expr) -> tuple[str, int]:
        if isinstance(expr, sp.Symbol):
            return self._symbol(expr), ATOM
        if isinstance(expr, Index | remainder | roll):
            return f"static_cast<float>({self.integer(expr)})", ATOM
        if expr in (sp.oo, INFINITY):
            return self.infinity, ATOM
        if expr in (-sp.oo, -INFINITY):
            return self.minus_infinity, ATOM
        if isinstance(expr, sp.NumberSymbol):  # of gradients, where algebra makes e of exp(x/x)
            return self._number(sp.Float(float(expr))), ATOM
        if isinstance(expr, sp.Number):
            text = self._number(expr)
            return (text, ATOM) if expr >= 0 else (text, PRODUCT)
        if isinstance(expr, sp.Add):
            return self._sum(expr), SUM
        if isinstance(expr, Ordered):
            return self._ordered(expr), PRODUCT
        if isinstance(expr, sp.Mul):
            return self._product(expr), PRODUCT
        if isinstance(expr, sp.Pow):
            return self._power(expr.base, expr.exp)
        if isinstance(expr, sp.Max | sp.Min):
            return self._extremum(expr), ATOM
        if isinstance(expr, sign):
            argument = self.operand(expr.args[0], ATOM)
            return f"static_cast<float>(({argument} > 0.0f) - ({argument} < 0.0f))", ATOM
        if isinstance(expr, cast) and expr.dtype is F32:
            return self._print(expr.args[0])
        if isinstance(expr, cast):
            return f"rounded<{expr.dtype.ctype}>({self.text(expr.args[0])})", ATOM
        if isinstance(expr, power_of):
            return f"powf({self.text(expr.args[0])}, {self.text(expr.args[1])})", ATOM
        if isinstance(expr, constant):
            return self._print(expr.args[0])
        if isinstance(expr, divide):
            return f"__fdiv_rn({self.text(expr.args[0])}, {self.text(expr.args[1])})", ATOM
        if isinstance(expr, divide_by_remainder):
            above, below, inverse = expr.args
            known = f"1.0f / {self.operand(below, ATOM)}" if inverse == 1 / below else self.text(inverse)
            return f"divide_by_remainder({self.text(above)}, {self.text(below)}, {known})", ATOM
        if isinstance(expr, clamp):
            x, low, high = map(self.text, expr.args)
            return f"minimum(maximum({x}, {low}), {high})", ATOM
        if isinstance(expr, Condition):
            return f"static_cast<float>({self.condition(expr)})", ATOM
        if isinstance(expr, where):
            condition, chosen, other = expr.args
            first, second = self._floats([(chosen, SUM), (other, SUM)])
            return f"{self.condition(condition)} ? {first} : {second}", CHOICE
        return f"{self.function(expr)}({self.text(expr.args[0])})", ATOM

    def _floats(self, operands: Sequence[tuple[sp.Expr, int]]) -> list[str]:
        """Operands of one operator, in their order, each with the level at which it binds. The first is made a float
        where both of the first two are lengths of axes: their product is beyond an int, their quotient a fraction."""
        texts = [self.operand(e, level) for e, level in operands]
        if all(e in SIZES for e, _ in operands[:2]) and len(operands) > 1:
            texts[0] = self.float_of(texts[0])
        return texts

    def float_of(self, whole: str) -> str:
        return f"static_cast<float>({whole})"

    def function(self, expr: sp.Expr) -> str:
        """The name of the function that `expr` is a call of."""
        is_approximate = isinstance(expr, exp_approximate | reciprocal_approximate)
        found = type(expr).__name__ if is_approximate else text_of(expr)
        if not found:
            raise ProgramError("the printer does not know this function", received=str(expr))
        return found

    def condition(self, expr: sp.Expr) -> str:
        """`expr` as a bool: a condition as it is written, another number as one that is not 0."""
        if not isinstance(expr, Condition):
            return f"{self.operand(expr, SUM)} != 0.0f"
        if isinstance(expr, negation):
            return f"!({self.condition(expr.args[0])})"
        if isinstance(expr, both | either):
            parts = [(arg, self.condition(arg)) for arg in expr.args]
            shown = [f"({text})" if isinstance(arg, both | either) else text for arg, text in parts]
        elif places := self._places(expr):
            shown = places
        elif expr.atoms(Index) and all(map(self.integer, expr.args)):
            shown = [self.integer(arg) for arg in expr.args]
        else:
            shown = [self.operand(arg, SUM) for arg in expr.args]
        return f" {text_of(expr)} ".join(shown)

    def _places(self, expr: Condition) -> list[str]:
        """Both sides of `col == label`, counted from a vector's first column: the compiler knows one of them."""
        if not isinstance(expr, equal | unequal) or COL not in expr.args:
            return []
        places = [self.names.get(place_of(arg.name), "") if arg.is_Symbol or arg == COL else "" for arg in expr.args]
        return places if all(places) else []

    def integer(self, expr: sp.Expr) -> str:
        """`expr` in whole numbers: an index, its remainder, sums of those and of constants; else ""."""
        if isinstance(expr, Index) or expr in SIZES:
            return self.names[expr.name]
        if isinstance(expr, sp.Integer):
            return str(expr)
        if isinstance(expr, roll):
            column, by = self.integer(expr.args[0]), self.columns(-expr.args[1])
            return f"rolled_column({column}, {by}, {self.names[COLS.name]})" if column else ""
        if isinstance(expr, remainder):
            return f"{self.integer(expr.args[0])} % {self.integer(expr.args[1])}"
        if not expr.is_Add:
            return ""
        terms = sorted(expr.args, key=lambda term: bool(term.could_extract_minus_sign()))
        texts = [self.integer(-term if term.could_extract_minus_sign() else term) for term in terms]
        signs = [" - " if term.could_extract_minus_sign() else " + " for term in terms]
        return "".join(map("".join, zip(signs, texts, strict=True)))[3:] if all(texts) and signs[0] == " + " else ""

    def columns(self, by: sp.Expr) -> str:
        """So many columns, share * cols + number: a row has a whole number of them."""
        share, cols = by.coeff(COLS), self.names[COLS.name]
        number, share = int(by - share * COLS), share % 1  # a whole row more, or less, is the same
        if share == 0:
            return str(number)
        text = f"{cols} / {share.q} * {share.p}".removesuffix(" * 1")
        return f"{text} {'-' if number < 0 else '+'} {abs(number)}" if number else text

    def _number(self, value: sp.Number) -> str:
        return float_literal(float(value))

    def _symbol(self, expr: sp.Symbol) -> str:
        if expr.name not in self.names:
            raise ProgramError("a value has no C name here: it is used before its look", received=expr.name)
        return self.names[expr.name]

    def _sum(self, expr: sp.Add) -> str:
        terms = sorted(expr.args, key=lambda t: (t.could_extract_minus_sign(), self._order(t)))
        out = ""
        negatives = [term.could_extract_minus_sign() for term in terms]
        texts = self._floats([(-t if negative else t, PRODUCT) for t, negative in zip(terms, negatives, strict=True)])
        for text, negative in zip(texts, negatives, strict=True):
            if not out:
                out = f"-{text}" if negative else text
            else:
                out += f" - {text}" if negative else f" + {text}"
        return out

    def _product(self, expr: sp.Mul) -> str:
        if expr.could_extract_minus_sign():
            inner = self.operand(-expr, ATOM if isinstance(-expr, sp.Add) else PRODUCT)
            return f"-({inner})" if inner.startswith("-") else f"-{inner}"  # --x would count down
        above: list[sp.Expr] = []
        below: list[sp.Expr] = []
        for factor in expr.args:
            if isinstance(factor, sp.Pow) and factor.exp.is_Integer and factor.exp < 0:
                below.append(factor.base ** (-factor.exp))
            elif isinstance(factor, sp.Rational) and not factor.is_Integer and factor.p == 1:
                below.append(sp.Integer(factor.q))
            else:
                above.append(factor)
        factors = [(f, ATOM if isinstance(f, Ordered) else PRODUCT) for f in sorted(above, key=self._factor_order)]
        texts = self._floats([*factors, *((f, ATOM) for f in sorted(below, key=self._factor_order))])
        return " / ".join([" * ".join(texts[: len(factors)]) or "1.0f", *texts[len(factors) :]])

    def _ordered(self, expr: Ordered) -> str:
        (_, first), *others = steps(expr)
        texts = self._floats([(first, PRODUCT), *((e, ATOM) for _, e in others)])
        return texts[0] + "".join(f" {way} {text}" for (way, _), text in zip(others, texts[1:], strict=True))

    def _factor_order(self, factor: sp.Expr) -> tuple[int, ...]:
        return (0 if factor.is_Number else 1, *self._order(factor))

    def _power(self, base: sp.Expr, exponent: sp.Expr) -> tuple[str, int]:
        if exponent == sp.Rational(1, 2):
            return f"sqrtf({self.text(base)})", ATOM
        if exponent == sp.Rational(-1, 2):
            return f"rsqrtf({self.text(base)})", ATOM
        if exponent == -1:
            return f"1.0f / {self.operand(base, ATOM)}", PRODUCT
        if exponent.is_Integer and exponent > LONGEST_PRODUCT:
            return f"power<{exponent}>({self.text(base)})", ATOM  # by repeated squaring
        if exponent.is_Integer and exponent > 1:
            return " * ".join(self._floats([(base, ATOM)] * int(exponent))), PRODUCT
        if exponent.is_Integer and exponent < -1:
            return f"1.0f / ({self.text(base ** (-exponent))})", PRODUCT
        if (2 * exponent).is_Integer and not exponent.is_Integer:
            root = sp.Rational(1 if exponent > 0 else -1, 2)
            rest = base ** (exponent - root)
            return f"{self.operand(sp.Pow(base, root), PRODUCT)} * {self.operand(rest, ATOM)}", PRODUCT
        if exponent.is_Rational and (exponent.q & (exponent.q - 1)) == 0:  # of gradients: the root of a root
            return self._power(sp.sqrt(base), 2 * exponent)
        if exponent.is_number:
            return f"powf({self.text(base)}, {float_literal(float(exponent))})", ATOM
        raise ProgramError("an exponent is a number", received=f"{base}**{exponent}")

    def _extremum(self, expr: sp.Max | sp.Min) -> str:
        call = "maximum" if isinstance(expr, sp.Max) else "minimum"  # unlike fmaxf they keep NaN
        args = sorted(expr.args, key=self._order)
        out = self.text(args[0])
        for arg in args[1:]:
            out = f"{call}({out}, {self.text(arg)})"
        return out


class FormulaPrinter(Printer):
    """Prints expressions for a comment: x**2, sqrt(v), 0.5. The names are the author's, in the order given."""

    infinity, minus_infinity = "inf", "-inf"

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__({name: name for name in (*names, ROW.name, COL.name, TERM.name, *map(str, SIZES))})

    def float_of(self, whole: str) -> str:
        return whole

    def _print(self, expr: sp.Expr) -> tuple[str, int]:
        if isinstance(expr, Index | remainder):
            return self.integer(expr), PRODUCT
        if isinstance(expr, power_of):
            return f"{self.operand(expr.args[0], ATOM)}**{self.operand(expr.args[1], ATOM)}", PRODUCT
        if isinstance(expr, roll):
            return f"roll({', '.join(map(self.text, expr.args))})", ATOM
        if isinstance(expr, where):
            texts = self.condition(expr.args[0]), *map(self.text, expr.args[1:])
            return f"where({', '.join(texts)})", ATOM
        if isinstance(expr, cast):
            return f"cast({self.text(expr.args[0])}, {expr.dtype})", ATOM
        if isinstance(expr, divide_by_remainder):
            return self._print(expr.args[0] / expr.args[1])
        if isinstance(expr, sign | clamp | divide):
            return f"{name_of(expr)}({', '.join(map(self.text, expr.args))})", ATOM
        return (self.condition(expr), CHOICE) if isinstance(expr, Condition) else super()._print(expr)

    def function(self, expr: sp.Expr) -> str:
        return name_of(expr) or super().function(expr)

    def _number(self, value: sp.Number) -> str:
        return str(value) if value.is_Integer else repr(float(value))

    def _power(self, base: sp.Expr, exponent: sp.Expr) -> tuple[str, int]:
        root = {sp.Rational(1, 2): "sqrt", sp.Rational(-1, 2): "rsqrt"}.get(exponent)
        if root:
            return f"{root}({self.text(base)})", ATOM
        return f"{self.operand(base, ATOM)}**{self.operand(exponent, ATOM)}", PRODUCT

    def _symbol(self, expr: sp.Symbol) -> str:
        return str(self.names.get(expr.name, expr.name))
