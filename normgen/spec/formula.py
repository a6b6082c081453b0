"""Formula text -> ast -> allow-list -> a small expression tree.

A formula is never evaluated as Python: `ast.parse` only reads it, and every node that is not listed here is
refused with file, line and column.

    number  name  e + e  e - e  e * e  e / e  e % e  -e  e ** number  e ** scalar  function(e[, e])
    cast(e, dtype or tensor)
    e @ e
    reduction(e)  reduction(e, columns of a group)  take(e, index)  roll(e, columns)
    random(seed)
    e < e  e <= e  e > e  e >= e  e == e  e != e  e and e  e or e  not e

Kernels compute it in this order: left to right, brackets first, products as written. The functions, and the names
that every formula knows (`cols`, `inner`, `inf`, `row`, `col`), stand in `spec/functions.py`.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from normgen.errors import SpecError, did_you_mean
from normgen.spec.functions import (
    CAST,
    COLS,
    CONSTANTS,
    DOT,
    FUNCTIONS,
    INFINITY,
    INNER,
    POWER,
    REDUCTIONS,
    ROLL,
    TERM,
    TOTAL,
)
from normgen.spec.instead import (
    AXES,
    instead_of_axis,
    instead_of_form,
    instead_of_function,
    instead_of_method,
    instead_of_two,
)

LONGEST_TEXT = 2000
DEEPEST_TREE = 100
DEEPEST_SPEC = 128  # levels, counted through the formulas that a formula names
LARGEST_EXPONENT = 64
LARGEST_GROUP = 128  # what the lanes of a warp own, 16 bytes each of float32
_LARGEST_NUMBER = Fraction(2) ** 127
_DECIMAL = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE](?P<exponent>[+-]?\d+))?")
_FLOAT32 = "a constant must fit float32"
_RANGE = "the largest is 2^127, some 1.7e38, the smallest its reciprocal; inf is a name: write inf, or -inf"
_PARTS = "give a part a name of its own: each line under [formulas] is a formula that others may read"
_READ_AS = 'a formula is one expression, such as y = "x * rsqrt(mean(x * x) + eps)"'


class Node:
    """A part of a tree."""

    @cached_property
    def names(self) -> frozenset[str]:
        """What it reads, but for CONSTANTS."""
        return frozenset().union(*(child.names for child in children(self)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Number(Node):
    """A constant, exact: `0.1` is one tenth."""

    value: Fraction
    column: int = 0


@dataclass(frozen=True)
class Name(Node):
    """A tensor, a scalar, another formula or one of CONSTANTS."""

    name: str
    column: int = 0

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset() if self.name in CONSTANTS else frozenset((self.name,))


@dataclass(frozen=True)
class Binary(Node):
    """`left operator right` with operator + - * / %."""

    operator: str
    left: Expression
    right: Expression
    column: int = 0


@dataclass(frozen=True)
class Power(Node):
    """`base ** exponent`; the exponent is a constant. By a scalar it is a Call of POWER."""

    base: Expression
    exponent: Fraction
    column: int = 0


@dataclass(frozen=True)
class Call(Node):
    """One of FUNCTIONS, CONDITIONS, POWERS or PRODUCTS."""

    function: str
    args: tuple[Expression, ...]
    column: int = 0


@dataclass(frozen=True)
class Cast(Node):
    """`cast(arg, to)`: arg rounded to a dtype, or to the dtype that a tensor is stored in."""

    arg: Expression
    to: str
    column: int = 0


Expression = Number | Name | Binary | Power | Call | Cast

_OPERATORS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Mod: "%"}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_KNOWN_FORM = "a formula is made of numbers, names, + - * / % ** @, comparisons, brackets and the known functions"


def children(expression: Expression) -> tuple[Expression, ...]:
    """The direct operands."""
    match expression:
        case Binary(left=left, right=right):
            return (left, right)
        case Power(base=inner) | Cast(arg=inner):
            return (inner,)
        case Call(args=args):
            return args
        case _:
            return ()


def nodes(expression: Expression) -> Iterator[Expression]:
    """Every part of a tree, itself first, in reading order."""
    yield expression
    for child in children(expression):
        yield from nodes(child)


def group_of(expression: Expression) -> int:
    """The columns of a group that a reduction runs over; 0 of one over whole rows, and of any other expression."""
    match expression:
        case Call(function=function, args=(_, Number(value=size))) if function in REDUCTIONS:
            return int(size)
    return 0


@dataclass(frozen=True)
class Roll:
    """How far a row is rolled: share * cols + by columns, of which a row has a whole number, less than cols."""

    share: Fraction
    by: int

    def __neg__(self) -> Roll:
        return Roll(-self.share, -self.by)


def roll_of(expression: Expression) -> Roll | None:
    """How far `roll(e, k)` rolls a row; None of any other expression."""
    match expression:
        case Call(function=function, args=(_, columns)) if function == ROLL:
            share, by = _in_cols(columns) or (Fraction(0), Fraction(0))
            return Roll(share, int(by))
    return None


def _in_cols(expression: Expression) -> tuple[Fraction, Fraction] | None:
    """(a, b) of a * cols + b; None of what is none."""
    match expression:
        case Number(value=value):
            return Fraction(0), value
        case Name(name=name) if name == COLS:
            return Fraction(1), Fraction(0)
        case Binary(operator=operator, left=left, right=right):
            (a, b), (c, d) = (_in_cols(e) or (None, None) for e in (left, right))
            if a is None or b is None or c is None or d is None:
                return None
            if operator in "+-":
                sign = 1 if operator == "+" else -1
                return a + sign * c, b + sign * d
            if operator == "*" and not (a and c):
                return a * d + c * b, b * d
            if operator == "/" and not c and d:
                return a / d, b / d
    return None


def constant_of(expression: Expression) -> float | None:
    """The number that the expression is; None of one that is to be computed."""
    match expression:
        case Number(value=value):
            return float(value)
        case Name(name=name) if name == INFINITY:
            return math.inf
    return None


def totalled(expression: Expression) -> Expression | None:
    """e of `total(e)`; None of any other expression."""
    match expression:
        case Call(function=function, args=(arg,)) if function == TOTAL:
            return arg
    return None


def is_dot(expression: Expression) -> bool:
    """Whether it is `a @ b`."""
    return isinstance(expression, Call) and expression.function == DOT


def pointed(text: str, column: int) -> str:
    """A formula's text as an error shows it, with a caret below a column."""
    return f"{text}\n{' ' * (len('  received: ') + column)}^"


def names_in(expression: Expression) -> Iterator[Name]:
    """Every name that is read, in reading order, `cols` included."""
    return (node for node in nodes(expression) if isinstance(node, Name))


def depth_of(expression: Expression) -> int:
    """Levels of a tree; a name or a number has one."""
    return 1 + max(map(depth_of, children(expression)), default=0)


def parse_formula(text: str, *, file: str = "<formula>", line: int | None = None) -> Expression:
    """The expression tree of one formula's right-hand side.

    Errors: SpecError with file, line and column for anything outside the allow-list.
    """
    return _Parser(text, file, line).parse()


class _Parser:
    def __init__(self, text: str, file: str, line: int | None) -> None:
        self.text = " ".join(text.split("\n"))
        self.file = file
        self.line = line

    def parse(self) -> Expression:
        if len(self.text) > LONGEST_TEXT:
            raise self.error(
                f"a formula has at most {LONGEST_TEXT} characters", 0, received=f"{len(self.text)}", hint=_PARTS
            )
        stripped = self.text.lstrip()
        offset = len(self.text) - len(stripped)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # of `1or x`, which no formula may hold either; else it lands on stderr
                tree = ast.parse(stripped, mode="eval")
        except SyntaxError as error:
            column = offset + (error.offset or 1) - 1
            raise self.error(f"a formula must be readable ({error.msg})", column, hint=_READ_AS) from None
        except (ValueError, RecursionError, MemoryError, Warning):
            raise self.error("a formula must be readable", 0, hint=_PARTS) from None
        self.offset = offset
        return self.expression(tree.body, 0)

    def error(self, rule: str, column: int, *, received: str | None = None, hint: str | None = None) -> SpecError:
        shown = received if received is not None else pointed(self.text, column)
        where = f"{rule} (column {column + 1} of the formula)"
        return SpecError(where, file=self.file, line=self.line, received=shown, hint=hint)

    def expression(self, node: ast.expr, depth: int) -> Expression:
        # ast counts columns in UTF-8 bytes; names and operators are ASCII, so the two agree on every legal formula.
        at = self.offset + node.col_offset
        if depth > DEEPEST_TREE:
            raise self.error(f"a formula nests at most {DEEPEST_TREE} levels", 0, hint=_PARTS)
        match node:
            case ast.Constant(value=bool() | str() | bytes() | complex() | None):
                hint = "write 1 for true and 0 for false; a comparison is a condition by itself"
                raise self.error("a constant is a number", at, hint=hint)
            case ast.Constant(value=int() | float()):
                return self.number(node, at)
            case ast.Name(id=name):
                return Name(name, at)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.expression(operand, depth + 1)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _fold(Binary("-", Number(Fraction(0), at), self.expression(operand, depth + 1), at))
            case ast.BinOp(op=ast.Pow()):
                return self.power(node, depth, at)
            case ast.BinOp(op=ast.MatMult(), left=left, right=right):
                operator = self.text.find("@", self.offset + (left.end_col_offset or 0))
                sides = (self.expression(left, depth + 1), self.expression(right, depth + 1))
                return Call(DOT, sides, max(at, operator))
            case ast.BinOp(op=op) if type(op) in _OPERATORS:
                return self.binary(node, depth, at)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return Call("not", (self.expression(operand, depth + 1),), at)
            case ast.BoolOp(op=op, values=values):
                name = "and" if isinstance(op, ast.And) else "or"
                return self.joined(name, [self.expression(value, depth + 1) for value in values], at)
            case ast.Compare():
                return self.comparison(node, depth, at)
            case ast.Call():
                return self.call(node, depth, at)
            case _:
                raise self.error(_KNOWN_FORM, at, hint=instead_of_form(node))

    def number(self, node: ast.Constant, at: int) -> Number:
        written = (ast.get_source_segment(self.text[self.offset :], node) or "").replace("_", "")
        decimal = _DECIMAL.fullmatch(written)
        if decimal is None:
            raise self.error("a number is decimal", at, hint="such as 2, 0.5 or 1e-5")
        # Fraction writes all digits of 1e999999999 out, and a formula has no room for the zeros that would undo them.
        if len((decimal["exponent"] or "").lstrip("+-0")) > len(str(LONGEST_TEXT)):
            raise self.error(_FLOAT32, at, hint=_RANGE)
        return Number(self.bounded(Fraction(written), at), at)

    def bounded(self, value: Fraction, at: int) -> Fraction:
        if abs(value) > _LARGEST_NUMBER or (value and abs(value) < 1 / _LARGEST_NUMBER):
            raise self.error(_FLOAT32, at, hint=_RANGE)
        return value

    def binary(self, node: ast.BinOp, depth: int, at: int) -> Expression:
        left, right = self.expression(node.left, depth + 1), self.expression(node.right, depth + 1)
        operator = _OPERATORS[type(node.op)]
        if operator in "/%" and isinstance(right, Number) and right.value == 0:
            raise self.error(
                "a formula does not divide by the constant 0", at, hint="inf is a name: write inf, or -inf"
            )
        if operator == "%":
            return self.remainder(left, right, at)
        found = _fold(Binary(operator, left, right, at))
        if isinstance(found, Number):
            self.bounded(found.value, at)
        return found

    def over_groups(self, node: ast.Call, function: str, depth: int, at: int) -> Expression:
        """max(x, 128): over groups of 128 columns."""
        size = self.expression(node.args[1], depth + 1)
        sizes = [1 << power for power in range(1, LARGEST_GROUP.bit_length())]
        if not isinstance(size, Number) or size.value not in sizes:
            where = self.offset + node.args[1].col_offset
            hint = instead_of_two(function, node) or instead_of_axis(function, node)
            hint = hint or f"such as {function}(x, 32)"
            raise self.error(f"the columns of a group are a power of two from 2 to {LARGEST_GROUP}", where, hint=hint)
        return Call(function, (self.expression(node.args[0], depth + 1), size), at)

    def joined(self, name: str, parts: list[Expression], at: int) -> Expression:
        found = parts[0]
        for part in parts[1:]:
            found = Call(name, (found, part), at)
        return found

    def comparison(self, node: ast.Compare, depth: int, at: int) -> Expression:
        """`a < b <= c` is `a < b and b <= c`."""
        operands = [self.expression(operand, depth + 1) for operand in (node.left, *node.comparators)]
        found: list[Expression] = []
        for op, left, right in zip(node.ops, operands, operands[1:], strict=False):
            if type(op) not in _COMPARISONS:
                raise self.error(_KNOWN_FORM, at, hint="known comparisons: < <= > >= == !=")
            found.append(Call(_COMPARISONS[type(op)], (left, right), at))
        return self.joined("and", found, at)

    def remainder(self, left: Expression, right: Expression, at: int) -> Expression:
        if not (isinstance(left, Name) and left.name in ("row", "col", TERM)):
            hint = "the remainder of other numbers is x - n * floor(x / n)"
            raise self.error(f"'%' takes the remainder of row, col or {TERM}", at, hint=hint)
        is_whole = isinstance(right, Number) and right.value.denominator == 1 and 0 < right.value < 2**31
        lengths = [Name(length, getattr(right, "column", 0)) for length in (COLS, INNER)]
        if not is_whole and right not in lengths:
            hint = "the remainder of another number n is x - n * floor(x / n)"
            raise self.error("'%' divides by cols, by inner or by a whole number", at, hint=hint)
        return Binary("%", left, right, at)

    def power(self, node: ast.BinOp, depth: int, at: int) -> Expression:
        base, exponent = self.expression(node.left, depth + 1), self.expression(node.right, depth + 1)
        if not isinstance(exponent, Number) and not isinstance(base, Number):
            return Call(POWER, (base, exponent), at)  # what it is made of, `kinds` knows
        if isinstance(base, Number):
            hint = "write the constant's value; 2 ** x is exp(x * 0.6931471805599453)"
            raise self.error("the base of a power contains a name", at, hint=hint)
        assert isinstance(exponent, Number), "any other exponent has returned"
        if abs(exponent.value) > LARGEST_EXPONENT:
            hint = "write a power of a power, (x ** 64) ** 2, or exp(p * log(x)) where x > 0"
            rule = f"an exponent is at most {LARGEST_EXPONENT}"
            raise self.error(rule, self.offset + node.right.col_offset, hint=hint)
        return Power(base, exponent.value, at)

    def call(self, node: ast.Call, depth: int, at: int) -> Expression:
        if not isinstance(node.func, ast.Name):
            hint = instead_of_method(node) or did_you_mean("", FUNCTIONS)
            raise self.error("only the known functions can be called", at, hint=hint)
        function = node.func.id
        if function == CAST and len(node.args) == 2 and not node.keywords:
            if not isinstance(to := node.args[1], ast.Name):
                hint = "cast(x, bf16), or cast(x, y) for the dtype that y is stored in"
                where = self.offset + node.args[1].col_offset
                raise self.error("cast(e, to) names a dtype or a tensor", where, hint=hint)
            return Cast(self.expression(node.args[0], depth + 1), to.id, at)
        if function not in FUNCTIONS:
            along = instead_of_axis(function, node)
            hint = along or instead_of_function(function) or did_you_mean(function, FUNCTIONS)
            raise self.error(f"unknown function '{function}'", at, hint=hint)
        takes = FUNCTIONS[function].takes
        is_grouped = len(node.args) == 2 and isinstance(node.args[1], ast.Constant)
        if function in REDUCTIONS and is_grouped and not node.keywords:
            return self.over_groups(node, function, depth, at)
        if node.keywords or len(node.args) != takes:
            known = FUNCTIONS[function]
            asked = f"{function}({', '.join(known.arguments)}) is {known.words}"
            asked = AXES if function in REDUCTIONS and node.keywords else asked
            asked = instead_of_two(function, node) or instead_of_axis(function, node) or asked
            raise self.error(f"{function} takes {takes} argument{'s' if takes > 1 else ''}", at, hint=asked)
        found = Call(function, tuple(self.expression(arg, depth + 1) for arg in node.args), at)
        if function == ROLL:
            self.check_roll(found, self.offset + node.args[1].col_offset)
        return found

    def check_roll(self, call: Call, at: int) -> None:
        """Raises SpecError unless `roll(e, k)` rolls a row by a known number of columns, fewer than it has."""
        found, hint = _in_cols(call.args[1]), "such as roll(x, 1), roll(x, -1), roll(x, cols / 2)"
        if found is None or found[1].denominator != 1:
            raise self.error(f"the k of {ROLL}(x, k) is made of whole numbers and cols", at, hint=hint)
        share, by = found
        if abs(share) > 1 or (abs(share) == 1 and share * by >= 0) or abs(by) >= 2**31:
            raise self.error(f"{ROLL}(x, k) rolls a row by less than cols", at, hint=hint)


def _fold(expression: Binary) -> Expression:
    """Arithmetic on constants is done now and exactly."""
    match expression:
        case Binary(operator=operator, left=Number(value=left), right=Number(value=right), column=column):
            results = {"+": left + right, "-": left - right, "*": left * right}
            return Number(left / right if operator == "/" else results[operator], column)
        case _:
            return expression
