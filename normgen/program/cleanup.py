"""Dead code removal: what no store needs is not computed, and what nothing reads is not loaded."""

from __future__ import annotations

from dataclasses import replace

from normgen.program.ir import RowProgram, Statement, Store, defined_names, used_names


def without_dead_code(program: RowProgram) -> RowProgram:
    """The statements and scalars that the stores depend on, in the same order."""
    needed: set[str] = set()
    kept: list[Statement] = []
    for statement in reversed(program.statements):
        if isinstance(statement, Store) or needed.intersection(defined_names(statement)):
            needed |= used_names(statement)
            kept.append(statement)
    scalars = tuple(name for name in program.scalars if name in needed)
    return replace(program, statements=tuple(reversed(kept)), scalars=scalars)
