"""A program with other names for its values, tensors and scalars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from normgen.program.ir import Expr, Guard, Load, Map, Random, Reduce, RowProgram, Statement, Store, value_kinds
from normgen.program.monoid import symbol


def renamed(program: RowProgram, name_of: Callable[[str], str]) -> RowProgram:
    """The same computation; what a monoid calls its own terms stays."""
    symbols = {symbol(name): symbol(name_of(name)) for name in value_kinds(program)}

    def each(exprs: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(expr.xreplace(symbols) for expr in exprs)

    def one(statement: Statement) -> Statement:
        match statement:
            case Load(name=name, of=of, index=index):
                of, index = (name_of(other) if other else "" for other in (of, index))
                return replace(statement, name=name_of(name), of=of, index=index)
            case Random(name=name, seed=seed):
                return replace(statement, name=name_of(name), seed=name_of(seed))
            case Reduce(names=names, args=args, guard=guard):
                found = guard and Guard(guard.margin.xreplace(symbols), each(guard.instead))
                return replace(statement, names=tuple(map(name_of, names)), args=each(args), guard=found)
            case Map(name=name, expr=expr):
                return replace(statement, name=name_of(name), expr=expr.xreplace(symbols))
            case Store(tensor=tensor, value=value):
                return replace(statement, tensor=name_of(tensor), value=name_of(value))

    statements = tuple(map(one, program.statements))
    return replace(program, statements=statements, scalars=tuple(map(name_of, program.scalars)))
