"""The class of a program: which frame of a kernel computes it.

What depends on the frame is looked up by it: legality's rules, the space, defaults, the cost model, what a record of
another shape is worth, and the source of the kernels.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

from normgen.problem.problem import Problem
from normgen.program.ir import RowProgram
from normgen.program.source import written_program


class ProgramClass(StrEnum):
    """rows: a team of threads owns a row, and looks at it once more than its longest chain of reductions is long."""

    ROWS = "rows"


def program_class(program: RowProgram) -> ProgramClass:  # noqa: ARG001
    """Every program that the language can say is one of rows."""
    return ProgramClass.ROWS


@lru_cache(maxsize=1024)
def class_of(problem: Problem) -> ProgramClass:
    """The class of the problem's program: no rewrite changes it."""
    return program_class(written_program(problem))
