"""What a record, or a sweep, was asked: the question and the problem behind the key in its line; if it fits that."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from typing import Any

from normgen.device import TARGETS, Device, device_from
from normgen.errors import NormgenError, UsageError
from normgen.problem.problem import Problem, first_of
from normgen.problem.question import Direction, Question
from normgen.problem.words import options
from normgen.program.source import problem_for
from normgen.records.place import DEFAULT_PLACE, Place
from normgen.records.record import Record
from normgen.schedule.legality import refusal
from normgen.spec.spec import Spec

_LIMITS = ("shared_per_block", "shared_per_sm", "threads_per_sm", "registers_per_sm", "blocks_per_sm")


def tune_command(
    op: str, problem: Problem, *, place: Place = DEFAULT_PLACE, seed: int = 0, target: str | None = None
) -> str:
    """The command line that tunes a problem; only what differs from the defaults.

    op      the spec as the command line takes it: its name, or the path of its file
    target  the GPU to predict for, where none is used
    """
    shape, size, *rest = options(problem)
    words = ["normgen", "tune", shape, size, *(["--op", op] if op != "layernorm" else []), *rest]
    words += place.options()
    words += ["--seed", str(seed)] if seed else []
    words += ["--device", "cpu", "--target", target] if target else []
    return shlex.join(words)


def arguments_of(question: Question, spec: Spec) -> dict[str, Any]:
    """As `Problem.arguments`: the tensors of a question are those of a launch, by their names there: x, dx, dy."""
    stored = dict(question.dtypes)
    backward = question.direction is Direction.BACKWARD
    names = {t.name: n for t in spec.tensors for n in (f"d{t.name}", t.name) if n in stored}
    dtypes = {name: stored[n] for name, n in names.items()}
    given = [t.name for t in spec.tensors if not t.role.is_written]
    kept = {*(spec.saved if backward else ()), *(t.name for t in (*spec.outputs, *spec.statistics)), *given}
    without = sorted(t.name for t in spec.tensors if t.optional and t.name in kept and t.name not in names)
    asked_by = [name for name in given if f"d{name}" in stored]
    by_all = {n for n in given if spec.tensor(n).has_gradient} - {*without} == {*asked_by}
    gradients = asked_by if backward and not by_all else None
    return question.arguments(dtype=dtypes[first_of(spec, dtypes)], dtypes=dtypes, without=without, gradients=gradients)


def problem_of(key: Question, spec: Spec) -> Problem:
    """The problem of a record's question.

    Raises UsageError if the spec's text, or what it reads and writes, is another one today.
    """
    if key.spec_sha256 != spec.sha256:
        raise UsageError(
            f"a record of {key.op} must be of the present text of its spec",
            received=f"{key.rows} x {key.cols} of {key.spec_sha256[:12]}, the spec is {spec.sha256[:12]}",
        )
    problem = problem_for(spec, **arguments_of(key, spec))
    if problem.question != key:
        found = ", ".join(t.name for t in problem.tensors)
        received = ", ".join(key.present)
        raise UsageError(f"{key.op} {key.direction} takes {found}", received=f"a record of {received}")
    return problem


def why_unfit(record: Record, problem: Problem) -> str | None:
    """Why no kernel follows from a record of this problem, whatever its text; None where one does."""
    if record.excess:
        return f"its error is beyond its bound: {record.excess}"
    if other := _other_bytes(record, problem):
        return other
    illegal = refusal(problem, record.schedule, device_of(record))
    return f"its schedule is not legal: {illegal}" if illegal else None


def why_other(record: Record, problem: Problem) -> str | None:
    """Why the figures of a record are not of the question that it names; None where they are.

    problem  that question's, or one of the same spec
    """
    try:
        own = problem if record.problem == problem.question else problem_of(record.problem, problem.spec)
    except NormgenError as error:
        return f"its question is none of its spec: {error.received or error.rule}"
    return _other_bytes(record, own)


def _other_bytes(record: Record, problem: Problem) -> str | None:
    moved = _bytes_of_all(problem)
    if record.bytes in (moved, problem.compulsory_bytes):
        return None
    return f"its figures are another question's: it moved {record.bytes} bytes, this one {moved}"


def device_of(record: Record) -> Device:
    """The GPU of a record, with no limit beyond those of the models that are known of its architecture."""
    device = device_from(record.device)
    alike = [t for t in TARGETS.values() if t.arch == device.arch] or list(TARGETS.values())
    most = {name: max(getattr(t, name) for t in alike) for name in _LIMITS}
    return replace(device, **{name: min(getattr(device, name), limit) for name, limit in most.items()})


def _bytes_of_all(problem: Problem) -> int:
    """Every tensor once, whether or not the kernel reads it: records count bytes so, or as `compulsory_bytes`."""
    return sum(math.prod(problem.shape_of(t)) * t.dtype.bytes for t in problem.tensors)
