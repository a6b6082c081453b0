"""An expression tree as the text of a formula: what `parse_formula` reads back as the same tree."""

from __future__ import annotations

from fractions import Fraction

from normgen.spec.formula import Binary, Call, Cast, Expression, Name, Number, Power
from normgen.spec.functions import CONDITIONS, DOT, POWER

# How tightly each form binds, as in Python.
_OR, _AND, _NOT, _COMPARED, _SUM, _PRODUCT, _SIGNED, _POWER, _WHOLE = range(9)
_OF_OPERATORS = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "%": _PRODUCT, "or": _OR, "and": _AND}


def written(expression: Expression) -> str:
    """The formula's text, with the brackets that its order of operations needs and no others."""
    return _written(expression)[0]


def number(value: float) -> Expression:
    """A Python number as a formula has it: in the decimal digits that Python prints. Infinity is a name."""
    if value in (float("inf"), -float("inf")):
        return Name("inf") if value > 0 else minus(Name("inf"))
    return Number(Fraction(repr(value)))


def minus(expression: Expression) -> Expression:
    if isinstance(expression, Number):
        return Number(-expression.value)
    return Binary("-", Number(Fraction(0)), expression)


def _written(expression: Expression) -> tuple[str, int]:
    match expression:
        case Number(value=value) if value < 0:
            return f"-{_within(Number(-value), _SIGNED)}", _SIGNED
        case Number(value=value) if Fraction(_digits(value)) != value:  # 1 / 3: arithmetic on constants is exact
            return f"{value.numerator} / {value.denominator}", _PRODUCT
        case Number(value=value):
            return _digits(value), _WHOLE
        case Name(name=name):
            return name, _WHOLE
        case Binary(operator="-", left=Number(value=Fraction(numerator=0)), right=right):
            return f"-{_within(right, _SIGNED)}", _SIGNED
        case Binary(operator=operator, left=left, right=right):
            binds = _OF_OPERATORS[operator]
            return f"{_within(left, binds)} {operator} {_within(right, binds + 1)}", binds
        case Power(base=base, exponent=exponent):
            sign = "-" if exponent < 0 else ""
            return f"{_within(base, _WHOLE)}**{sign}{_digits(abs(exponent))}", _POWER
        case Cast(arg=arg, to=to):
            return f"cast({written(arg)}, {to})", _WHOLE
        case Call(function=function, args=(left, right)) if function == DOT:
            return f"{_within(left, _PRODUCT)} @ {_within(right, _PRODUCT + 1)}", _PRODUCT
        case Call(function=function, args=(base, exponent)) if function == POWER:
            return f"{_within(base, _WHOLE)}**{_within(exponent, _WHOLE)}", _POWER
        case Call(function="not", args=(arg,)):
            return f"not {_within(arg, _COMPARED)}", _NOT
        case Call(function=function, args=(left, right)) if function in CONDITIONS:
            binds = _OF_OPERATORS.get(function, _COMPARED)
            # a < b < c is another thing than (a < b) < c
            left_text = _within(left, binds if binds != _COMPARED else _SUM)
            return f"{left_text} {function} {_within(right, binds + 1)}", binds
        case Call(function=function, args=args):
            return f"{function}({', '.join(map(written, args))})", _WHOLE
    raise TypeError(expression)


def _within(expression: Expression, least: int) -> str:
    text, binds = _written(expression)
    return text if binds >= least else f"({text})"


def _digits(value: Fraction) -> str:
    """The fewest decimal digits that give its float64."""
    if value.denominator == 1 and value < 10**15:
        return str(value.numerator)
    return repr(float(value))
