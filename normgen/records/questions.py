"""What a record, or a sweep, was asked: the question and the problem behind the key in its line."""

from __future__ import annotations

import shlex

from normgen.errors import UsageError
from normgen.problem.problem import Problem, first_dtype, said_dtypes
from normgen.problem.question import Direction, Question
from normgen.program.source import problem_for
from normgen.records.place import DEFAULT_PLACE, Place
from normgen.records.record import ProblemKey
from normgen.spec.spec import Spec


def tune_command(
    op: str, problem: Problem, *, place: Place = DEFAULT_PLACE, seed: int = 0, target: str | None = None
) -> str:
    """The command line that tunes a problem; only what differs from the defaults.

    op      the spec as the command line takes it: its name, or the path of its file
    target  the GPU to predict for, where none is used
    """
    asked = problem.question
    shape, size, *rest = asked.options(said_dtypes(problem.spec, asked))
    words = ["normgen", "tune", shape, size, *(["--op", op] if op != "layernorm" else []), *rest]
    words += place.options()
    words += ["--seed", str(seed)] if seed else []
    words += ["--device", "cpu", "--target", target] if target else []
    return shlex.join(words)


def question_of(key: ProblemKey, spec: Spec) -> Question:
    """The question of a key, whose dtypes are by the names of the launch's tensors: x, dx, dy."""
    stored = dict(key.dtypes)
    backward = key.direction == Direction.BACKWARD
    names = {t.name: n for t in spec.tensors for n in (f"d{t.name}", t.name) if n in stored}
    dtypes = {name: stored[n] for name, n in names.items()}
    given = [t.name for t in spec.tensors if not t.role.is_written]
    kept = {*(spec.saved if backward else ()), *(t.name for t in (*spec.outputs, *spec.statistics)), *given}
    without = tuple(sorted(t.name for t in spec.tensors if t.optional and t.name in kept and t.name not in names))
    asked_by = tuple(name for name in given if f"d{name}" in stored)
    by_all = {n for n in given if spec.tensor(n).has_gradient} - {*without} == {*asked_by}
    return Question(
        op=key.op,
        rows=key.rows,
        cols=key.cols,
        dtype=first_dtype(spec, dtypes),
        dtypes=tuple(dtypes.items()),
        direction=Direction(key.direction),
        without=without,
        gradients=asked_by if backward and not by_all else None,
        pitch=key.pitch,
        align=key.align,
        any_cols=key.any_cols,
        accumulate=key.accumulate,
        deterministic=key.deterministic,
        batch_invariant=key.batch_invariant,
        stable_parameters=key.stable_parameters,
        in_place=key.in_place,
        layout=key.layout,
        batches=key.batches,
        inner=key.inner,
    )


def problem_of(key: ProblemKey, spec: Spec) -> Problem:
    """The problem of a key. Raises UsageError if the spec's text, or what it reads and writes, is another one today."""
    if key.spec_sha256 != spec.sha256:
        raise UsageError(
            f"a record of {key.op} must be of the present text of its spec",
            received=f"{key.rows} x {key.cols} of {key.spec_sha256[:12]}, the spec is {spec.sha256[:12]}",
        )
    problem = problem_for(spec, **question_of(key, spec).arguments())
    if ProblemKey.of(problem) != key:
        found = ", ".join(t.name for t in problem.tensors)
        received = ", ".join(key.present)
        raise UsageError(f"{key.op} {key.direction} takes {found}", received=f"a record of {received}")
    return problem
