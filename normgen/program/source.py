"""Problem -> RowProgram, and the backward problem whose tensors the derived program names."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from typing import Unpack

from normgen.errors import ProgramError, SpecError, UsageError, did_you_mean
from normgen.problem.problem import Problem, check_flow, make_problem
from normgen.problem.question import Asked, Direction, check_kinds
from normgen.program.functions import with_dtypes
from normgen.program.gradient.differentiate import GradientTensor, backward_tensors, differentiate
from normgen.program.ir import Load, Map, Reduce, RowProgram, Statement, is_stage, stage_of
from normgen.program.lower import formula_of, load_of, lower
from normgen.program.monoid import symbol
from normgen.spec.spec import Spec


@lru_cache(maxsize=1024)
def written_program(problem: Problem) -> RowProgram:
    """The problem's program as its author wrote it (backward: as derived from that), before any rewrite."""
    spec = problem.spec
    present = frozenset(t.name for t in spec.tensors) - set(problem.absent)
    forward = _with_dtypes(_lowered(spec, present), problem)
    if problem.direction is Direction.FORWARD:
        return forward
    written = {t.name for t in problem.tensors if t.is_written}
    unread = _unread(spec, present, forward)
    given = _cotangents(spec, present)
    wrt = tuple(load.name for load in (*forward.loads, *unread) if f"d{load.name}" in written)
    computed = {t.name for t in (*spec.outputs, *spec.statistics)}
    saved = tuple(t.name for t in problem.tensors if t.name in computed and not t.is_written)
    return _derived(forward, wrt, saved, given, problem.accumulate, unread)


# Problems of other shapes and dtypes have the same few programs, and a derivation takes longer than a kernel's text.
@lru_cache(maxsize=256)
def _lowered(spec: Spec, present: frozenset[str]) -> RowProgram:
    return lower(spec, present=present)


@lru_cache(maxsize=256)
def _derived(
    forward: RowProgram,
    wrt: tuple[str, ...],
    saved: tuple[str, ...],
    given: tuple[str, ...],
    accumulate: bool,
    unread: tuple[Load, ...],
) -> RowProgram:
    return differentiate(forward, wrt=wrt, saved=saved, cotangents=given, accumulate=accumulate, unread=unread)


def _with_dtypes(program: RowProgram, problem: Problem) -> RowProgram:
    """The program with the dtypes that its casts name by a tensor."""
    stored = problem.stored_dtypes
    factors = program.loads if program.dots else ()  # as they are stored, they need not pass through registers
    loads = {symbol(load.name): stored[load.tensor] for load in factors if load.tensor in stored}
    statements: list[Statement] = []
    for statement in program.statements:
        match statement:
            case Map(expr=expr):
                statement = replace(statement, expr=with_dtypes(expr, stored, loads))
            case Reduce(args=args):
                statement = replace(statement, args=tuple(with_dtypes(arg, stored, loads) for arg in args))
        statements.append(statement)
    return replace(program, statements=tuple(statements))


@lru_cache(maxsize=1024)
def kernel_problem(problem: Problem) -> Problem:
    """The problem whose kernel answers this one: as asked, with the absent statistics that cost a kernel nothing.

    The caller may pass a statistic as null, and the kernel then does not store it. So one kernel, and one record,
    serves callers with and without it, unless the statistic needs a reduction or an input of its own.
    """
    there = [t.name for t in problem.spec.statistics if t.name in problem.absent and t.optional]
    for name in there if problem.direction is Direction.FORWARD else ():
        without = tuple(n for n in problem.absent if n != name)
        fuller = problem_for(problem.spec, **problem.arguments() | {"without": without})
        if _row_work(fuller) == _row_work(problem):
            problem = fuller
    return problem


def _row_work(problem: Problem) -> tuple[frozenset[str], frozenset[str]]:
    """What a row's statistics are made of: the tensors read and the values reduced."""
    program = written_program(problem)
    return frozenset(ld.name for ld in program.loads), frozenset(
        n for r in program.reduces if is_stage(r) for n in r.names
    )


@lru_cache(maxsize=1024)
def stages_of(problem: Problem) -> int:
    """The longest chain of dependent row reductions in the program as its author wrote it."""
    program = written_program(problem)
    stages = stage_of(program)
    return max((stages[name] for reduce in program.row_reduces for name in reduce.names), default=0)


def _unread(spec: Spec, present: Collection[str], forward: RowProgram) -> tuple[Load, ...]:
    """Inputs and parameters that only absent statistics read: they are there, and their gradients are 0."""
    loaded = {ld.name for ld in forward.loads}
    given = (t for t in spec.tensors if not t.role.is_written and t.has_gradient and t.name in present)
    return tuple(load_of(t) for t in given if t.name not in loaded)


def _cotangents(spec: Spec, present: Collection[str]) -> tuple[str, ...]:
    """The outputs whose gradients are given."""
    return tuple(t.name for t in spec.outputs if t.has_gradient and t.name in present)


def with_line(error: ProgramError, spec: Spec, present: frozenset[str]) -> ProgramError | SpecError:
    """A refusal with the line of the formula that it is about; as it is, if no formula or the compiler is to blame.

    What no formula of a product names, such as the gradient of one, is about the first product.
    """
    formula = formula_of(spec, error.value, present=present) if error.value and error.hint else None
    if formula is None and error.hint:
        formula = next((f for f in spec.formulas if "@" in f.text), None)
    if formula is None:
        return error
    file = spec.file or spec.name
    return SpecError(error.rule, file=file, line=formula.line, received=error.received, hint=error.hint)


@lru_cache(maxsize=256)
def _gradient_tensors(
    spec: Spec, there: frozenset[str], saved: tuple[str, ...], gradients: tuple[str, ...] | None
) -> tuple[GradientTensor, ...]:
    """The tensors of a backward problem: derived once for all its shapes and dtypes, on which they do not depend."""
    forward = _lowered(spec, there)
    unread = _unread(spec, there, forward)
    loaded = tuple(load.name for load in (*forward.loads, *unread))
    wrt = tuple(n for n in loaded if spec.tensor(n).has_gradient) if gradients is None else gradients
    if unknown := [name for name in wrt if name not in loaded]:
        rule = f"spec '{spec.name}' has gradients by the inputs and parameters that are there"
        raise UsageError(rule, received=unknown[0], hint=did_you_mean(unknown[0], loaded))
    try:
        return backward_tensors(forward, saved, wrt=wrt, cotangents=_cotangents(spec, there), unread=unread)
    except ProgramError as error:
        raise with_line(error, spec, there) from None


def with_null(problem: Problem, names: Collection[str]) -> Problem:
    """What a kernel of any columns answers where these optional tensors are null: the problem without them.

    Its rows are in as many batches, whether or not a tensor of batches is left: the kernel is told so.
    """
    asked = problem.arguments() | {
        "without": sorted({*problem.absent, *names}),
        "dtypes": {name: dtype for name, dtype in problem.named_dtypes.items() if name not in names},
        "gradients": None if problem.gradients is None else [n for n in problem.gradients if n not in names],
    }
    found = problem_for(problem.spec, **asked)
    here = {t.name: t for t in found.tensors}
    # What only a gradient that is not asked for needs is passed all the same, as the kernel's own problem has it.
    inputs = {t.name: replace(t, idle=True) for t in problem.tensors if not t.is_written and t.name not in names}
    tensors = tuple(here.get(t.name) or inputs[t.name] for t in problem.tensors if t.name in here or t.name in inputs)
    found = replace(found, tensors=tensors)
    return replace(found, rows=problem.rows, rows_per_batch=problem.rows_per_batch, any_cols=problem.any_cols)


def problem_for(
    spec: Spec,
    *,
    shape: str | int | tuple[int, ...],
    saved: Collection[str] | None = None,
    any_cols: bool = False,
    **question: Unpack[Asked],
) -> Problem:
    """As `make_problem`; a backward problem reads exactly the tensors its derived program loads.

    saved     forward values the backward pass is given (default: what the spec saves)
    question  dtype, direction, without, ...: see `Asked`

    Errors: UsageError for names and sizes that do not fit; SpecError as `check_flow`, and for a formula without a
    derivative; ProgramError for a gradient with a constant that no float32 holds.

    Raises UsageError for arguments that do not fit the direction.
    """
    check_kinds(question)
    direction, gradients = question.get("direction", "forward"), question.get("gradients")
    if direction != Direction.BACKWARD:
        if gradients is not None or saved is not None or question.get("accumulate"):
            raise UsageError("gradients, saved and accumulate belong to the backward direction", received=direction)
        problem = make_problem(spec, shape=shape, any_cols=any_cols, **question)
        return _with_idle(problem, {load.name for load in _lowered(spec, problem.present).loads})
    check_flow(spec, question.get("without", ()))
    there = frozenset(t.name for t in spec.tensors) - set(question.get("without", ()))
    kept = tuple(n for n in (spec.saved if saved is None else saved) if n in there)
    tensors = _gradient_tensors(spec, there, kept, None if gradients is None else tuple(gradients))
    backward = question.copy()
    backward["gradients"] = [t.of for t in tensors if t.is_written]
    reads = [t.name for t in tensors if not t.is_written and t.name in there]
    if not any(t.kind.by_row and t.kind.within_row for t in tensors if not t.is_written):
        reads.append(spec.inputs[0].name)  # it says how many rows there are: dx of sum(x) reads none
    batched = [t for t in tensors if t.kind.by_batch]
    if batched and all(t.is_written for t in batched):
        reads.append(batched[0].of)  # it says how many batches there are: dshift reads none
    stored = [t for t in tensors if t.is_written and t.kind.is_elem]
    equal = {tuple(other.of for other in stored if other.value == t.value) for t in stored}
    problem = make_problem(spec, shape=shape, any_cols=any_cols, reads=reads, equal=equal, **backward)
    return _with_idle(problem, {t.name for t in tensors if not t.is_written})


def _with_idle(problem: Problem, loaded: Collection[str]) -> Problem:
    """The problem, with what its program does not load said to be idle."""
    idle = [t.name for t in problem.tensors if not t.is_written and t.name not in loaded]
    if not idle:
        return problem
    return replace(problem, tensors=tuple(replace(t, idle=t.name in idle) for t in problem.tensors))
