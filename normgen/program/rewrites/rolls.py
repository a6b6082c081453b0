"""What is rolled is computed of rolled loads.

    map n = x * rstd * w; map n_rolled = roll(n, k)   ->   load x_rolled = x[col - k]; load w_rolled = w[col - k];
                                                           map n_rolled = x_rolled * rstd * w_rolled

A roll distributes over what is computed of each element by itself, and leaves the row's values alone. Then no thread
needs what another one has computed: a row is read at other columns, which the caches hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import sympy as sp

from normgen.errors import ProgramError
from normgen.program.cleanup import without_dead_code
from normgen.program.functions import COL, roll
from normgen.program.ir import COLS, Load, Map, Reduce, RowProgram, Statement, defined_names, free_name, value_kinds
from normgen.program.monoid import symbol


def is_rolled(program: RowProgram) -> bool:
    """Whether a value of the program is rolled."""
    return any(m.expr.has(roll) for m in program.maps)


def rolls_to_loads(program: RowProgram) -> RowProgram:
    """The program with every rolled value computed of rolled loads."""
    moving = _Moving(program)
    for statement in program.statements:
        moving.visit(statement)
    return without_dead_code(replace(program, statements=(*moving.loads, *moving.statements)))


def columns(roll_by: sp.Expr) -> sp.Expr:
    """By how many columns, with the share of cols between 0 and 1: a whole row more, or less, is the same."""
    share = roll_by.coeff(COLS)
    return sp.expand(roll_by - share * COLS) + share % 1 * COLS


def rolled_columns(expr: sp.Expr, by: sp.Expr) -> dict[sp.Expr, sp.Expr]:
    """What takes the place of the number of the column, and of rolled ones, in an expression that is rolled."""
    found = {r: columns(r.args[1] + by) for r in expr.atoms(roll) if r.args[0] == COL} | {COL: by}
    return {old: roll(COL, new) if new != 0 else COL for old, new in found.items()}


@dataclass
class _Moving:
    program: RowProgram
    loads: list[Load] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    known: dict[str, Statement] = field(default_factory=dict)
    instead: dict[sp.Symbol, sp.Expr] = field(default_factory=dict)  # of a map that is a rolled value, that value
    moved: dict[tuple[str, sp.Expr], sp.Symbol] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kinds = value_kinds(self.program)

    def visit(self, statement: Statement) -> None:
        for name in defined_names(statement):
            self.known[name] = statement
        match statement:
            case Load():
                self.loads.append(statement)
            case Map(name=name, expr=roll(args=(value, by))) if value.is_Symbol:
                self.instead[symbol(name)] = found = self.of(value.name, by, name)
                if found.name != name:  # it may be stored under its own name
                    self.statements.append(replace(statement, expr=found))
            case Map(expr=expr):
                self.statements.append(replace(statement, expr=expr.xreplace(self.instead)))
            case Reduce(args=args):
                self.statements.append(replace(statement, args=tuple(a.xreplace(self.instead) for a in args)))
            case _:
                self.statements.append(statement)

    def of(self, name: str, by: sp.Expr, called: str = "") -> sp.Symbol:
        """The value of that name, rolled; a new one is `called` so."""
        by = columns(by)
        if by == 0:
            return symbol(name)
        if (name, by) not in self.moved:
            called = called or free_name(f"{name}_rolled", self.kinds)
            self.moved[name, by] = self.rolled(name, self.known[name], by, called)
        return self.moved[name, by]

    def rolled(self, name: str, statement: Statement, by: sp.Expr, called: str) -> sp.Symbol:
        match statement:
            case Load(of="", kind=kind):
                load = replace(statement, name=called, of=name, roll=by)
                self.loads.append(load)
                self.kinds[load.name] = kind
                return symbol(load.name)
            case Map(expr=roll(args=(value, own))) if value.is_Symbol:
                return self.of(value.name, own + by, called)
            case Map(kind=kind, expr=expr):
                self.kinds[called] = kind
                found = Map(called, kind, self.expr(expr, by))
                self.statements.append(found)
                return symbol(found.name)
        rule = "roll moves what is made of tensors, column by column: not random numbers, nor values of groups"
        hint = "store what is rolled, or what rolls it; a spec of its own has the other part"
        raise ProgramError(rule, received=f"{name} in {self.program.name}", hint=hint)

    def expr(self, expr: sp.Expr, by: sp.Expr) -> sp.Expr:
        """An expression with its values of columns, and the number of the column, rolled."""
        values = sorted(expr.free_symbols, key=str)
        names = {v: self.of(v.name, by) for v in values if v != COLS and self.kinds[v.name].within_row}
        if not expr.has(COL):
            return expr.xreplace(names)
        return expr.xreplace({**names, **rolled_columns(expr, by)})
