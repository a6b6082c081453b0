"""sympy expressions -> CUDA C in float32.

sympy's own C printer emits double literals, `pow` and its canonical term order; this one knows three
precedence levels, `f` suffixes, `rsqrtf`, whole powers as products, and puts terms in the order in which
the program defines their values, so that `(x - mean) * rstd * weight + bias` is printed as it was written.
An ordered product is printed in its own order and with its own brackets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

import sympy as sp

from normgen.errors import ProgramError
from normgen.program.ordered import Ordered, steps
from normgen.program.rewrites.approximate import exp_approximate

SUM, PRODUCT, ATOM = 1, 2, 3  # how tightly a piece of text binds
LONGEST_PRODUCT = 4  # factors of a power that is written out


def float_literal(value: float) -> str:
    """A float32 literal that reads back to the same float32 value: 0.0f, 1e-05f, 0.044715f."""
    text = repr(float(value))
    return text + "f" if any(c in text for c in ".en") else text + ".0f"


class Printer:
    """Prints expressions with `names`: symbol name -> C text. The order of `names` orders terms and factors."""

    functions: ClassVar[dict[type, str]] = {
        sp.exp: "expf",
        exp_approximate: "exp_approximate",
        sp.log: "logf",
        sp.Abs: "fabsf",
        sp.tanh: "tanhf",
        sp.erf: "erff",
    }

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
        if expr is sp.oo:
            return "__int_as_float(0x7f800000)", ATOM
        if expr is -sp.oo:
            return "__int_as_float(0xff800000)", ATOM
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
        if isinstance(expr, sp.sign):  # of the subgradients of |x| and of the elementwise maximum
            argument = self.operand(expr.args[0], ATOM)
            return f"static_cast<float>(({argument} > 0.0f) - ({argument} < 0.0f))", ATOM
        name = self.functions.get(type(expr))
        if name is None:
            raise ProgramError("the printer does not know this function", received=str(expr))
        return f"{name}({self.text(expr.args[0])})", ATOM

    def _number(self, value: sp.Number) -> str:
        return float_literal(float(value))

    def _symbol(self, expr: sp.Symbol) -> str:
        if expr.name not in self.names:
            raise ProgramError("a value has no C name here: it is used before its look", received=expr.name)
        return self.names[expr.name]

    def _sum(self, expr: sp.Add) -> str:
        terms = sorted(expr.args, key=lambda t: (t.could_extract_minus_sign(), self._order(t)))
        out = ""
        for term in terms:
            negative = term.could_extract_minus_sign()
            text = self.operand(-term if negative else term, PRODUCT)
            if not out:
                out = f"-{text}" if negative else text
            else:
                out += f" - {text}" if negative else f" + {text}"
        return out

    def _product(self, expr: sp.Mul) -> str:
        if expr.could_extract_minus_sign():
            return "-" + self.operand(-expr, ATOM if isinstance(-expr, sp.Add) else PRODUCT)
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
        numerator = " * ".join(self.operand(f, level) for f, level in factors) or "1.0f"
        if not below:
            return numerator
        return " / ".join([numerator, *(self.operand(f, ATOM) for f in sorted(below, key=self._factor_order))])

    def _ordered(self, expr: Ordered) -> str:
        (_, first), *others = steps(expr)
        return self.operand(first, PRODUCT) + "".join(f" {sign} {self.operand(e, ATOM)}" for sign, e in others)

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
            return " * ".join([self.operand(base, ATOM)] * int(exponent)), PRODUCT
        if exponent.is_Integer and exponent < -1:
            return f"1.0f / ({self.text(base ** (-exponent))})", PRODUCT
        if (2 * exponent).is_Integer and not exponent.is_Integer:
            root = sp.Rational(1 if exponent > 0 else -1, 2)
            rest = base ** (exponent - root)
            return f"{self.operand(sp.Pow(base, root), PRODUCT)} * {self.operand(rest, ATOM)}", PRODUCT
        if exponent.is_Rational and (exponent.q & (exponent.q - 1)) == 0:  # of gradients: the root of a root
            return self._power(sp.sqrt(base), 2 * exponent)
        raise ProgramError("powers must be whole numbers or halves", received=f"{base}**{exponent}")

    def _extremum(self, expr: sp.Max | sp.Min) -> str:
        call = "maximum" if isinstance(expr, sp.Max) else "minimum"  # unlike fmaxf they keep NaN
        args = sorted(expr.args, key=self._order)
        out = self.text(args[0])
        for arg in args[1:]:
            out = f"{call}({out}, {self.text(arg)})"
        return out


class FormulaPrinter(Printer):
    """Prints expressions for a comment: x**2, sqrt(v), 0.5. The names are the author's, in the order given."""

    functions: ClassVar = {kind: name.removesuffix("f") for kind, name in Printer.functions.items()}

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__({name: name for name in names})

    def _number(self, value: sp.Number) -> str:
        return str(value) if value.is_Integer else repr(float(value))

    def _power(self, base: sp.Expr, exponent: sp.Expr) -> tuple[str, int]:
        root = {sp.Rational(1, 2): "sqrt", sp.Rational(-1, 2): "rsqrt"}.get(exponent)
        if root:
            return f"{root}({self.text(base)})", ATOM
        return f"{self.operand(base, ATOM)}**{self.operand(exponent, ATOM)}", PRODUCT

    def _symbol(self, expr: sp.Symbol) -> str:
        return str(self.names.get(expr.name, expr.name))
