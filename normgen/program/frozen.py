"""sympy's expressions -> trees of the formula language, in the order in which kernels compute and print.

To sympy a sum, a product and an extremum are sets. Behind the passes the order of their parts is fixed, once: that in
which the program defines what they read, so that `(x - mean) * rstd * weight + bias` stays as it was written. An
ordered product keeps its own order and brackets. What plans and prints a program knows no sympy.

The trees are those of spec/formula.py, with three functions beside the language's:

    float(e)     a whole number, as an index is, or a condition, as a number
    int(e)       one side of a comparison of whole numbers
    brackets(e)  a product that is the first factor of another one
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

import sympy as sp

from normgen.dtypes import F32
from normgen.errors import ProgramError
from normgen.program.functions import (
    INFINITY,
    Condition,
    Index,
    both,
    cast,
    constant,
    divide_by_remainder,
    either,
    name_of,
    negation,
    reciprocal_approximate,
    remainder,
    roll,
    where,
)
from normgen.program.ir import COLS, SIZES, Guard, Load, Map, Reduce, RowProgram, Statement, is_row_reduce, value_kinds
from normgen.program.monoid import LOWEST, Recipe, symbol
from normgen.program.ordered import Ordered, steps
from normgen.program.rewrites.approximate import exp_approximate
from normgen.program.trees import ONE, ZERO, chain, minus, operands, sum_of
from normgen.spec.formula import Binary, Call, Cast, Expression, Name, Number, Power, Roll
from normgen.spec.functions import ROLL

FLOAT, INT, BRACKETS = "float", "int", "brackets"
LONGEST_PRODUCT = 4  # factors of a power that is written out
OWN = "@"  # in front of a name of a recipe: no value of a program has it
TERM = "term"
S = TypeVar("S", bound=Statement)
Symbols = Mapping[sp.Symbol, sp.Expr]


class Order:
    """Makes trees whose terms and factors stand in the order of the names that they read."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = dict.fromkeys(names)
        self._rank = {name: number for number, name in enumerate(self.names)}

    def _key(self, expr: sp.Expr) -> tuple[int, ...]:
        last = len(self._rank)
        return (*sorted(self._rank.get(s.name, last) for s in expr.free_symbols), last)

    # ---- expressions -------------------------------------------------------------------------------------------

    def tree(self, expr: sp.Expr) -> Expression:
        """Raises ProgramError for what has no text in float32."""
        if isinstance(expr, sp.Symbol):
            return Name(expr.name)
        if expr in (sp.oo, INFINITY):
            return Name(INFINITY.name)
        if expr in (-sp.oo, -INFINITY):
            return minus(Name(INFINITY.name))
        if isinstance(expr, sp.Number | sp.NumberSymbol):  # e of gradients, where algebra makes it of exp(x/x)
            return Number(_fraction(expr))
        if isinstance(expr, sp.Add):
            return self._sum(expr)
        if isinstance(expr, Ordered):
            ways, factors = zip(*steps(expr), strict=True)
            return chain(zip(ways, self._floats(factors), strict=True))
        if isinstance(expr, sp.Mul):
            return self._product(expr)
        if isinstance(expr, sp.Pow):
            if not expr.exp.is_number:
                raise ProgramError("an exponent is a number", received=f"{expr.base}**{expr.exp}")
            return Power(self.tree(expr.base), _fraction(expr.exp))
        return self._call(expr)

    def _call(self, expr: sp.Expr) -> Expression:
        if isinstance(expr, Index | remainder | roll):
            return Call(FLOAT, (self._known_whole(expr),))
        if isinstance(expr, sp.Max | sp.Min):
            name = "maximum" if isinstance(expr, sp.Max) else "minimum"
            found, *others = (self.tree(arg) for arg in sorted(expr.args, key=self._key))
            for other in others:
                found = Call(name, (found, other))
            return found
        if isinstance(expr, cast):
            return Cast(self.tree(expr.args[0]), expr.dtype.name)
        if isinstance(expr, constant):
            return self.tree(expr.args[0])
        if isinstance(expr, Condition):
            return Call(FLOAT, (self.condition(expr),))
        if isinstance(expr, where):
            condition, *branches = expr.args
            return Call("where", (self.condition(condition), *self._floats(branches)))
        if isinstance(expr, divide_by_remainder):
            above, below, inverse = expr.args
            divisor = self.tree(below)
            known = Binary("/", ONE, divisor) if inverse == 1 / below else self.tree(inverse)
            return Call("divide_by_remainder", (self.tree(above), divisor, known))
        return Call(_called(expr), tuple(map(self.tree, expr.args)))

    def condition(self, expr: sp.Expr) -> Expression:
        """`expr` as a condition: another number is one where it is not 0."""
        if not isinstance(expr, Condition):
            return Call("!=", (self.tree(expr), ZERO))
        name = _called(expr)
        if isinstance(expr, negation | both | either):
            return Call(name, tuple(map(self.condition, expr.args)))
        whole = [self._whole(arg) for arg in expr.args] if expr.atoms(Index) else [None]
        if None not in whole:
            return Call(name, tuple(Call(INT, (tree,)) for tree in whole if tree))
        return Call(name, tuple(map(self.tree, expr.args)))

    def _whole(self, expr: sp.Expr) -> Expression | None:
        """`expr` in whole numbers: an index, its remainder, sums of those and of constants; None of any other."""
        if isinstance(expr, Index) or expr in SIZES:
            return Name(expr.name)
        if isinstance(expr, sp.Integer):
            return Number(_fraction(expr))
        if isinstance(expr, roll):
            column = self._whole(expr.args[0])
            return column and Call(ROLL, (column, self.tree(expr.args[1])))
        if isinstance(expr, remainder):
            return Binary("%", self._known_whole(expr.args[0]), self._known_whole(expr.args[1]))
        terms = sorted(map(_signed, expr.args), key=lambda term: term[0]) if expr.is_Add else []
        found = [(sign, tree) for sign, term in terms if (tree := self._whole(term))]
        return sum_of(found) if found and len(found) == len(terms) and found[0][0] == "+" else None

    def _known_whole(self, expr: sp.Expr) -> Expression:
        found = self._whole(expr)
        if found is None:
            raise ProgramError("an index is a whole number", received=str(expr))
        return found

    def _floats(self, exprs: Sequence[sp.Expr]) -> list[Expression]:
        """Operands of one operator. The first is made a float where both of the first two are lengths of axes: their
        product is beyond an int, their quotient a fraction."""
        found = [self.tree(expr) for expr in exprs]
        if len(exprs) > 1 and all(expr in SIZES for expr in exprs[:2]):
            found[0] = Call(FLOAT, (found[0],))
        return found

    def _sum(self, expr: sp.Add) -> Expression:
        terms = sorted(map(_signed, expr.args), key=lambda term: (term[0], self._key(term[1])))
        return sum_of(zip((sign for sign, _ in terms), self._floats([term for _, term in terms]), strict=True))

    def _product(self, expr: sp.Mul) -> Expression:
        if expr.could_extract_minus_sign():
            return minus(self.tree(-expr))
        above: list[sp.Expr] = []
        below: list[sp.Expr] = []
        for factor in expr.args:
            if isinstance(factor, sp.Pow) and factor.exp.is_Integer and factor.exp < 0:
                below.append(factor.base ** (-factor.exp))
            elif isinstance(factor, sp.Rational) and not factor.is_Integer and factor.p == 1:
                below.append(sp.Integer(factor.q))
            else:
                above.append(factor)
        above, below = (sorted(found, key=lambda f: (not f.is_Number, self._key(f))) for found in (above, below))
        ordered = [*(above or [sp.Integer(1)]), *below]
        trees = self._floats(ordered)
        factors = [("*", trees[0])] if not above else []
        for factor, tree in zip(above, trees, strict=False):
            factors += self._factors(factor, tree)
        first = factors[0][1]
        if isinstance(first, Binary) and first.operator in "*/":
            factors[0] = ("*", Call(BRACKETS, (first,)))
        return chain([*factors, *(("/", divisor) for divisor in trees[max(1, len(above)) :])])

    def _factors(self, expr: sp.Expr, tree: Expression) -> list[tuple[str, Expression]]:
        """What a factor brings to a product: of another one of sympy's, or of a power that is written out, several."""
        if isinstance(tree, Cast) and tree.to == F32.name:  # no rounding, and no brackets
            return operands(tree.arg, "*/")
        if not expr.is_Pow or not expr.exp.is_Rational:
            return [("*", tree)]
        base, exponent = expr.base, expr.exp
        if exponent.is_Integer and 1 < exponent <= LONGEST_PRODUCT:
            return [("*", factor) for factor in self._floats([base] * int(exponent))]
        if exponent.q == 2 and abs(exponent.p) > 1:
            root = sp.Rational(1 if exponent > 0 else -1, 2)
            return [("*", self.tree(sp.Pow(base, root))), ("*", self.tree(base ** (exponent - root)))]
        if exponent.q > 2 and exponent.q & (exponent.q - 1) == 0:  # of gradients: the root of a root
            return self._factors(sp.Pow(sp.sqrt(base), 2 * exponent, evaluate=False), tree)
        return [("*", tree)]

    # ---- statements --------------------------------------------------------------------------------------------

    def statement(self, statement: S) -> S:
        """The statement with trees for expressions."""
        found: Any = statement
        match statement:
            case Load(roll=by) if by is not None:
                share = by.coeff(COLS)
                found = replace(statement, roll=Roll(_fraction(share), int(by - share * COLS)))
            case Map(expr=expr):
                found = replace(statement, expr=self.tree(expr))
            case Reduce():
                found = self.reduce(statement)
        return found  # type: ignore[no-any-return]

    def reduce(self, reduce: Reduce) -> Reduce:
        """The reduction, its recipes with the arguments in their places and OWN in front of their own names.

        An argument that a recipe reads more than once is its first let.
        """
        monoid, guard, vector = reduce.monoid, reduce.guard, reduce.monoid.vector_step
        own = _own(*monoid.state)
        if vector is not None:
            known = own | _own(vector.reference)
            vector = replace(
                vector,
                start=self._recipe(vector.start, own),
                peek=self._step(reduce, vector.peek, known),
                move=self._recipe(vector.move, known),
                step=self._step(reduce, vector.step, known),
            )
        frozen_monoid = replace(
            monoid,
            identity=tuple(map(self.tree, monoid.identity)),
            combine=self._recipe(monoid.combine, _own(*(f"{side}_{name}" for side in "ab" for name in monoid.state))),
            step=self._step(reduce, monoid.step, own),
            vector_step=vector,
        )
        if guard is not None:
            guard = Guard(self.tree(guard.margin), tuple(map(self.tree, guard.instead)))
        return replace(reduce, args=tuple(map(self.tree, reduce.args)), monoid=frozen_monoid, guard=guard)

    def _step(self, reduce: Reduce, recipe: Recipe, own: Symbols) -> Recipe:
        """A recipe that reads the reduction's arguments."""
        terms: list[tuple[str, sp.Expr]] = []
        arguments: dict[sp.Symbol, sp.Expr] = {}
        for name, expr in zip(reduce.monoid.args, reduce.args, strict=True):
            arguments[symbol(name)] = expr
            if not (expr.is_Symbol or (_uses(recipe, symbol(name)) <= 1 and _is_kept(recipe, expr))):
                terms.append((TERM, expr))
                arguments |= {symbol(name): symbol(f"{OWN}{TERM}")}
        return self._recipe(recipe, own, arguments, terms)

    def _recipe(
        self,
        recipe: Recipe,
        own: Symbols,
        arguments: Symbols | None = None,
        terms: Sequence[tuple[str, sp.Expr]] = (),
    ) -> Recipe:
        renamed = {**own, **(arguments or {})}
        lets = list(terms)
        for name, expr in recipe.lets:
            lets.append((name, expr.xreplace(renamed)))
            renamed |= _own(name)
        locals_ = [f"{OWN}{name}" for name, _ in lets]
        inside = Order([LOWEST.name, *(s.name for s in own.values()), *self.names, *locals_])
        results = tuple(inside.tree(expr.xreplace(renamed)) for expr in recipe.results)
        return Recipe(results, tuple((name, inside.tree(expr)) for name, expr in lets))


@lru_cache(maxsize=256)  # thousands of schedules share a few programs
def frozen(program: RowProgram) -> RowProgram:
    """The program with trees for expressions: elements come first in sums and products, parameters of columns last.

    What a reduction of rows reduces is only said of it in a comment, where they come as they are defined: a kernel
    computes it within the recipes.
    """
    kinds = value_kinds(program)
    elems = [name for name, kind in kinds.items() if kind.is_elem]
    columns = [name for name, kind in kinds.items() if kind.by_col and not kind.by_row]
    others = [name for name in kinds if name not in {*elems, *columns}]
    order = Order([LOWEST.name, *elems, *others, COLS.name, *columns])
    said = Order([*elems, *kinds, *map(str, SIZES)])

    def each(statement: Statement) -> Statement:
        if isinstance(statement, Reduce) and is_row_reduce(statement):
            return replace(order.reduce(statement), args=tuple(map(said.tree, statement.args)))
        return order.statement(statement)

    return replace(program, statements=tuple(map(each, program.statements)))


def _fraction(number: sp.Expr) -> Fraction:
    exact = number.is_Rational
    return Fraction(int(number.p), int(number.q)) if exact else Fraction(float(number))


def _signed(term: sp.Expr) -> tuple[str, sp.Expr]:
    """("+", it), or ("-", what is subtracted): in this order "+" comes first."""
    return ("-", -term) if term.could_extract_minus_sign() else ("+", term)


def _called(expr: sp.Expr) -> str:
    is_approximate = isinstance(expr, exp_approximate | reciprocal_approximate)
    name = type(expr).__name__ if is_approximate else name_of(expr)
    if not name:
        raise ProgramError("the printer does not know this function", received=str(expr))
    return name


def _own(*names: str) -> dict[sp.Symbol, sp.Expr]:
    return {symbol(name): symbol(f"{OWN}{name}") for name in names}


def _uses(recipe: Recipe, argument: sp.Symbol) -> int:
    exprs = [*recipe.results, *(e for _, e in recipe.lets)]
    return sum(e.count(argument) for e in exprs)


def _is_kept(recipe: Recipe, expr: sp.Expr) -> bool:
    """Whether the expression stands in the recipe as it is.

    sympy writes |exp(z)| with the real part of z, and has no extremum of what it takes for complex: log(minimum(0, b)).
    """
    if expr.is_extended_real:
        return True
    refused = (sp.Abs, sp.Min, sp.Max) if expr.is_extended_real is False else (sp.Abs,)
    return not any(e.has(*refused) for e in recipe.results)
