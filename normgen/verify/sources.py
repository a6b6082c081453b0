"""What says how a problem's written tensors come about: formulas, or a proven derived program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from normgen.problem.problem import Problem
from normgen.problem.question import Direction
from normgen.spec.spec import Formula
from normgen.verify.bounded import Bounded
from normgen.verify.derivative_proof import proven_program
from normgen.verify.error_model import Float32Error
from normgen.verify.interpret import Evaluation, formula_table, spec_formulas
from normgen.verify.program_walk import ProgramWalk, ValueWalk
from normgen.verify.reference import backward_formulas

Formulas = Iterable[Formula | tuple[str, str]]
OpenWalk = Callable[[Float32Error, dict[str, Bounded]], ValueWalk[Bounded]]


def walk_opener(problem: Problem, given: Collection[str], formulas: Formulas | None = None) -> OpenWalk:
    """How to walk over one block of rows, from the `given` tensors.

    forward   the spec's formulas, and `formulas` that say more
    backward  `formulas`; else those of a built-in spec, by hand; else the derived program, proven first

    Raises VerificationError when the derived program is not the derivative of the spec's formula.
    """
    spec = problem.spec
    is_backward = problem.direction is Direction.BACKWARD
    said = backward_formulas(spec) if is_backward and formulas is None else formulas
    if is_backward and said is None:
        program = proven_program(problem)
        return lambda arithmetic, known: ProgramWalk(arithmetic, program, known)
    # Backward: the forward's formulas say what was not saved, and what absent tensors stand for.
    table = {**spec_formulas(spec, given), **formula_table(said or ())}
    return lambda arithmetic, known: Evaluation(
        arithmetic, table, known, file=spec.file or spec.name, dtypes=problem.stored_dtypes
    )


def prove_derivative(problem: Problem) -> None:
    """Prove the derived program now where `check` would rely on it. Raises VerificationError."""
    if is_derived(problem):
        proven_program(problem)


def is_derived(problem: Problem) -> bool:
    """Whether the derived program says what is right: backward, and no built-in spec."""
    return problem.direction is Direction.BACKWARD and backward_formulas(problem.spec) is None
