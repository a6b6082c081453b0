"""Expressions as text for people: `x - mean`, where sympy itself writes `-mean + x`."""

from __future__ import annotations

from typing import Any

import sympy as sp
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.str import StrPrinter

from normgen.program.functions import Condition, Opaque, name_of, power_of
from normgen.program.ordered import Ordered, steps


class _Printer(StrPrinter):  # type: ignore[misc]  # sympy has no types
    def _as_ordered_terms(self, expr: sp.Expr, order: str | None = None) -> list[Any]:
        terms = super()._as_ordered_terms(expr, order=order)
        return sorted(terms, key=lambda term: bool(term.could_extract_minus_sign()))

    def _print_Pow(self, expr: sp.Expr, rational: bool = False) -> str:
        if expr.exp == sp.Rational(-1, 2):
            return f"rsqrt({self._print(expr.base)})"
        return str(super()._print_Pow(expr, rational=rational))

    def _print_Ordered(self, expr: Ordered) -> str:
        (_, first), *others = steps(expr)
        shown = [sign + self.parenthesize(operand, expr.precedence, strict=False) for sign, operand in others]
        return "".join([self.parenthesize(first, expr.precedence), *shown])

    def _print_Function(self, expr: sp.Expr) -> str:
        if not isinstance(expr, Opaque):
            return str(super()._print_Function(expr))
        if isinstance(expr, power_of):
            base, exponent = (self.parenthesize(arg, PRECEDENCE["Func"], strict=True) for arg in expr.args)
            return f"{base}**{exponent}"
        name, args = name_of(expr) or type(expr).__name__, [str(self._print(arg)) for arg in expr.args]
        if not isinstance(expr, Condition):
            return f"{name}({', '.join(args)})"
        shown = [
            f"({s})" if arg.is_Add or isinstance(arg, Condition) else s for arg, s in zip(expr.args, args, strict=True)
        ]
        return f" {name} ".join(shown) if len(shown) > 1 else f"{name} {shown[0]}"

    def _print_Mul(self, expr: sp.Expr) -> str:
        """Sums first, as in `(x - mean)*rstd`; reciprocal square roots as factors, not as quotients."""
        factors = sp.Mul.make_args(expr)
        roots = [f for f in factors if f.is_Pow and f.exp == sp.Rational(-1, 2)]
        sums = [f for f in factors if f.is_Add]
        rest = sp.Mul(*(f for f in factors if f not in roots and f not in sums))
        if (not roots and not sums) or rest.could_extract_minus_sign() or (rest.is_number and rest != 1):
            return str(super()._print_Mul(expr))
        shown = [f"({self._print(f)})" for f in sums]
        quotient = str(super()._print_Mul(rest) if rest.is_Mul else self._print(rest))
        shown += [quotient] if rest != 1 and not quotient.startswith("1/") else []
        shown += [self._print(f) for f in roots]
        return "*".join(shown) + (quotient[1:] if quotient.startswith("1/") else "")


def show_expr(expr: sp.Expr) -> str:
    """One expression on one line; numbers without padding zeros."""
    return str(_Printer({"full_prec": False}).doprint(expr))
