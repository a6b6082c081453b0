"""Trees of the formula language as text, in the dialect of CUDA C in float32 and in that of a comment.

The order, and the brackets that change a result, stand in the tree; a printer knows what each operator and function
is called, and how tightly it binds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from normgen.dtypes import CASTS, F32
from normgen.errors import ProgramError
from normgen.program.frozen import BRACKETS, FLOAT, INT, LONGEST_PRODUCT
from normgen.program.trees import is_minus
from normgen.spec.formula import Binary, Call, Cast, Expression, Name, Number, Power, Roll, roll_of
from normgen.spec.functions import CALLS, COLS, CONSTANTS, INFINITY, INNER, POWER, ROLL

CHOICE, SUM, PRODUCT, ATOM = 0, 1, 2, 3  # how tightly a piece of text binds
COL, SIZES = "col", (COLS, INNER)
INFINITE, MINUS_INFINITE = "__int_as_float(0x7f800000)", "__int_as_float(0xff800000)"
_COMPARED = ("<", "<=", ">", ">=", "==", "!=")
_JOINED = {"and": "&&", "or": "||"}
_HALF = Fraction(1, 2)


def place_of(name: str) -> str:
    """The key, among the names of values, of a column's place in a vector: of `col` itself, or of the column named."""
    return f"place of {name}"


def float_literal(value: float) -> str:
    """What reads back to the same float32 value: 0.0f, 1e-05f, 0.044715f."""
    if math.isinf(value):
        return INFINITE if value > 0 else MINUS_INFINITE
    text = repr(float(value))
    return text + "f" if any(c in text for c in ".en") else text + ".0f"


def is_condition(tree: Expression) -> bool:
    return isinstance(tree, Call) and tree.function in (*_COMPARED, *_JOINED, "not")


class Printer:
    """Prints trees in CUDA C with `names`: name of a value -> C text."""

    infinity, minus_infinity = INFINITE, MINUS_INFINITE

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def text(self, tree: Expression) -> str:
        return self._print(tree)[0]

    def operand(self, tree: Expression, level: int) -> str:
        """The tree as an operand of an operator that binds at `level`."""
        text, binds = self._print(tree)
        return text if binds >= level else f"({text})"

    def _print(self, tree: Expression) -> tuple[str, int]:
        match tree:
            case Name(name=name):
                return self.infinity if name == INFINITY else self.name(name), ATOM
            case Number(value=value):
                return self.number(value), ATOM if value >= 0 else PRODUCT
            case Binary() if is_minus(tree):
                if tree.right == Name(INFINITY):
                    return self.minus_infinity, ATOM
                inner = self.operand(tree.right, PRODUCT)
                return f"-({inner})" if inner.startswith("-") else f"-{inner}", PRODUCT  # --x would count down
            case Binary(operator="+" | "-"):
                return f"{self.operand(tree.left, SUM)} {tree.operator} {self.operand(tree.right, PRODUCT)}", SUM
            case Binary(operator="*" | "/"):
                return f"{self.operand(tree.left, PRODUCT)} {tree.operator} {self.operand(tree.right, ATOM)}", PRODUCT
            case Power(base=base, exponent=exponent):
                return self.power(base, exponent)
            case Cast(arg=arg, to=to):
                return self._print(arg) if to == F32.name else (f"rounded<{CASTS[to].ctype}>({self.text(arg)})", ATOM)
            case Call():
                return self.call(tree)
        raise ProgramError("the printer does not know this operator", received=str(tree))

    def name(self, name: str) -> str:
        if name not in self.names:
            raise ProgramError("a value has no C name here: it is used before its look", received=name)
        return self.names[name]

    def number(self, value: Fraction) -> str:
        return float_literal(float(value))

    def float_of(self, whole: str) -> str:
        return f"static_cast<float>({whole})"

    def call(self, tree: Call) -> tuple[str, int]:
        if tree.function == "where":
            first, second = (self.operand(branch, SUM) for branch in tree.args[1:])
            return f"{self.condition(tree.args[0])} ? {first} : {second}", CHOICE
        if tree.function == FLOAT:
            [arg] = tree.args
            return self.float_of(self.condition(arg) if is_condition(arg) else self.whole(arg)), ATOM
        if tree.function == BRACKETS:
            return f"({self.text(tree.args[0])})", ATOM
        if tree.function == "sign":
            argument = self.operand(tree.args[0], ATOM)
            return f"static_cast<float>(({argument} > 0.0f) - ({argument} < 0.0f))", ATOM
        args = [self.text(arg) for arg in tree.args]
        if tree.function == "clamp":
            return f"minimum(maximum({args[0]}, {args[1]}), {args[2]})", ATOM
        return f"{self.function(tree.function)}({', '.join(args)})", ATOM

    def function(self, name: str) -> str:
        """What the function of that name is called."""
        special = {POWER: "powf", "divide": "__fdiv_rn"}.get(name)
        return special or (CALLS[name].text if name in CALLS else "") or name

    def condition(self, tree: Expression) -> str:
        """The tree as a bool."""
        assert isinstance(tree, Call)
        if tree.function == "not":
            return f"!({self.condition(tree.args[0])})"
        if symbol := _JOINED.get(tree.function):
            parts = [(self.condition(arg), isinstance(arg, Call) and arg.function in _JOINED) for arg in tree.args]
            return f" {symbol} ".join(f"({text})" if is_joined else text for text, is_joined in parts)
        return f" {tree.function} ".join(self._places(tree) or [self.side(arg) for arg in tree.args])

    def side(self, tree: Expression) -> str:
        """One side of a comparison."""
        is_whole = isinstance(tree, Call) and tree.function == INT
        return self.whole(tree.args[0]) if isinstance(tree, Call) and is_whole else self.operand(tree, SUM)

    def _places(self, tree: Call) -> list[str]:
        """Both sides of `col == label`, counted from a vector's first column: the compiler knows one of them."""
        col = Call(FLOAT, (Name(COL),))
        if tree.function not in ("==", "!=") or col not in tree.args:
            return []
        names = [COL if arg == col else arg.name if isinstance(arg, Name) else "" for arg in tree.args]
        places = [self.names.get(place_of(name), "") for name in names]
        return places if all(places) else []

    def whole(self, tree: Expression) -> str:
        """The tree in whole numbers: of indices, lengths and constants."""
        match tree:
            case Name(name=name):
                return self.names[name]
            case Number(value=value):
                return str(value)
            case Call(function=function, args=(column, _)) if function == ROLL:
                roll = roll_of(tree)
                assert roll is not None
                return f"rolled_column({self.whole(column)}, {self.columns(-roll)}, {self.names[COLS]})"
            case Binary():
                return f"{self.whole(tree.left)} {tree.operator} {self.whole(tree.right)}"
        raise ProgramError("an index is a whole number", received=str(tree))

    def columns(self, by: Roll) -> str:
        """So many columns: a row has a whole number of them."""
        share, cols = by.share % 1, self.names[COLS]  # a whole row more, or less, is the same
        if share == 0:
            return str(by.by)
        text = f"{cols} / {share.denominator} * {share.numerator}".removesuffix(" * 1")
        return f"{text} {'-' if by.by < 0 else '+'} {abs(by.by)}" if by.by else text

    def power(self, base: Expression, exponent: Fraction) -> tuple[str, int]:
        if abs(exponent) == _HALF:
            return f"{'sqrtf' if exponent > 0 else 'rsqrtf'}({self.text(base)})", ATOM
        if exponent == -1:
            return f"1.0f / {self.operand(base, ATOM)}", PRODUCT
        if exponent.denominator == 1:
            if exponent < 0:
                return f"1.0f / ({self.power(base, -exponent)[0]})", PRODUCT
            if exponent > LONGEST_PRODUCT:
                return f"power<{exponent}>({self.text(base)})", ATOM  # by repeated squaring
            factors = [self.operand(base, ATOM)] * int(exponent)
            if isinstance(base, Name) and base.name in SIZES:
                factors[0] = self.float_of(factors[0])
            return " * ".join(factors), PRODUCT
        if exponent.denominator == 2:
            root = _HALF if exponent > 0 else -_HALF
            rest = Power(base, exponent - root) if exponent - root != 1 else base
            return f"{self.operand(Power(base, root), PRODUCT)} * {self.operand(rest, ATOM)}", PRODUCT
        if exponent.denominator & (exponent.denominator - 1) == 0:  # of gradients: the root of a root
            return self.power(Power(base, _HALF), 2 * exponent)
        return f"powf({self.text(base)}, {float_literal(float(exponent))})", ATOM


class FormulaPrinter(Printer):
    """Prints trees for a comment: x**2, sqrt(v), 0.5. The names are the author's."""

    infinity, minus_infinity = "inf", "-inf"

    def __init__(self) -> None:
        super().__init__({name: name for name in CONSTANTS})

    def name(self, name: str) -> str:
        return name

    def number(self, value: Fraction) -> str:
        return str(value) if value.denominator == 1 else repr(float(value))

    def float_of(self, whole: str) -> str:
        return whole

    def _print(self, tree: Expression) -> tuple[str, int]:
        match tree:
            case Cast(arg=arg, to=to):
                return f"cast({self.text(arg)}, {to})", ATOM
            case Binary(operator="*"):
                return self.product(tree), PRODUCT
        return super()._print(tree)

    def product(self, tree: Binary) -> str:
        """A product whose equal neighbours are one power."""
        base, exponent, rest = tree.right, 1, tree.left
        while isinstance(rest, Binary) and rest.operator == "*" and rest.right == base:
            rest, exponent = rest.left, exponent + 1
        if rest == base:
            return self.power(base, Fraction(exponent + 1))[0]
        last = self.operand(base, ATOM) if exponent == 1 else self.power(base, Fraction(exponent))[0]
        return f"{self.operand(rest, PRODUCT)} * {last}"

    def call(self, tree: Call) -> tuple[str, int]:
        match tree:
            case Call(function=function, args=args) if function == POWER:
                return "**".join(self.operand(arg, ATOM) for arg in args), PRODUCT
            case Call(function="where", args=(condition, *branches)):
                return f"where({', '.join([self.condition(condition), *map(self.text, branches)])})", ATOM
            case Call(function="divide_by_remainder", args=(above, below, _)):
                return self._print(Binary("/", above, below))
            case Call(function=function, args=[Call(function=rolled) as roll]) if function == FLOAT and rolled == ROLL:
                return f"roll({', '.join(map(self.text, roll.args))})", ATOM
            case Call(function=function, args=(arg,)) if function == FLOAT:
                if is_condition(arg):
                    return self.condition(arg), CHOICE
                return self.whole(arg), ATOM if isinstance(arg, Name) else PRODUCT
            case Call(function="sign" | "clamp"):
                return f"{tree.function}({', '.join(map(self.text, tree.args))})", ATOM
        return super().call(tree)

    def function(self, name: str) -> str:
        return name

    def power(self, base: Expression, exponent: Fraction) -> tuple[str, int]:
        if abs(exponent) == _HALF:
            return f"{'sqrt' if exponent > 0 else 'rsqrt'}({self.text(base)})", ATOM
        return f"{self.operand(base, ATOM)}**{self.operand(Number(exponent), ATOM)}", PRODUCT
