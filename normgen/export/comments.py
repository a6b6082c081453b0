"""Texts of specs and records as comments of a header, and formulas as they were understood."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import count

from normgen.spec.formula import Binary, Call, Cast, Expression, Name, Number, Power
from normgen.spec.functions import CONDITIONS, DOT

LONGEST_LINE = 4096
# How tightly a printed expression holds together.
_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _SIGN, _POWER, _ATOM = range(9)
_BINDING = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "%": _PRODUCT, "or": _OR, "and": _AND, "not": _NOT}


def comment_text(text: str) -> str:
    """The text as the rest of one `//` line, or as the inside of a comment in a line of code.

    Specs and records are written by others: a line break, a backslash at the end (also as the trigraph ??/) or `*/`
    would end the comment, and the compiler would read what follows.
    """
    shown = "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)
    shown = re.sub(r"\?(?=\?)", "? ", shown).replace("*/", "* /")
    if len(shown) > LONGEST_LINE:
        shown = shown[: LONGEST_LINE - 4] + " ..."
    return shown.rstrip(" \\")


def formula_text(expression: Expression) -> str:
    """The formula that parses to this tree, with no more brackets than it takes.

    A header shows the tree and not the spec's text: the kernel was made from the tree.
    """
    return _printed(expression)[0]


def _printed(expression: Expression) -> tuple[str, int]:
    match expression:
        case Name(name=name):
            return name, _ATOM
        case Number(value=value):
            return _number(value)
        case Cast(arg=arg, to=to):
            return f"cast({formula_text(arg)}, {to})", _ATOM
        case Call(function=function, args=(left, right)) if function == DOT:
            return f"{_at_least(_PRODUCT, left)} @ {_at_least(_PRODUCT + 1, right)}", _PRODUCT
        case Call(function="not", args=(arg,)):
            return f"not {_at_least(_NOT, arg)}", _NOT
        case Call(function=function, args=(left, right)) if function in CONDITIONS:
            binding = _BINDING.get(function, _COMPARISON)
            least = binding + (binding == _COMPARISON)  # a < b < c is another tree than (a < b) < c
            return f"{_at_least(least, left)} {function} {_at_least(binding + 1, right)}", binding
        case Call(function=function, args=args):
            return f"{function}({', '.join(map(formula_text, args))})", _ATOM
        case Power(base=base, exponent=exponent):
            return f"{_at_least(_ATOM, base)}**{_at_least(_SIGN, Number(exponent))}", _POWER
        case Binary(operator="-", left=Number(value=zero), right=right) if zero == 0:
            return f"-{_at_least(_SIGN, right)}", _SIGN
        case Binary(operator=operator, left=left, right=right):
            binding = _BINDING[operator]
            return f"{_at_least(binding, left)} {operator} {_at_least(binding + 1, right)}", binding


def _at_least(binding: int, expression: Expression) -> str:
    """In brackets unless it holds together as tightly as that."""
    text, own = _printed(expression)
    return text if own >= binding else f"({text})"


def _number(value: Fraction) -> tuple[str, int]:
    """As a decimal where that is exact: 0.1 is one tenth; else as the quotient that the parser folds."""
    top, bottom = value.numerator, value.denominator
    if pow(10, bottom.bit_length(), bottom) == 0:
        text = _decimal(value)
        return text, _SIGN if top < 0 else _ATOM
    is_long = max(abs(top), bottom) > 2**126  # the parser takes no constant that float32 cannot hold
    scale = Fraction(10) ** (len(str(bottom)) - (abs(value) < 1)) if is_long else Fraction(1)
    return f"{_decimal(top / scale)} / {_decimal(bottom / scale)}", _PRODUCT


def _decimal(value: Fraction) -> str:
    """Every digit of a number whose digits end."""
    places = next(n for n in count() if 10**n % value.denominator == 0)
    digits = str(abs(value.numerator) * 10**places // value.denominator).zfill(places + 1)
    whole, rest = (digits[:-places], "." + digits[-places:]) if places else (digits, "")
    return f"{'-' * (value < 0)}{whole}{rest}"
