"""Which records leave: the kernel of each is legal today, and what was compared with the reference is today's text.

A record says what its kernel was when it was made; whoever exports it gets the kernel that is emitted today. So the
record is held against today's code: the question is one of the spec, the schedule is legal, the text is the one that
was compared, and every tensor's error is within its bound. That it was compared is the record's word. Where the text
alone is another one, because the emitter or a built-in spec has changed since, `proven` compares the kernel again, on
the CPU executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from normgen.cuda.compiler import identity_of
from normgen.errors import NormgenError, UsageError, VerificationError
from normgen.files.names import NamePart, name_part
from normgen.files.private import to_stderr
from normgen.measure.cpu_check import check_on_cpu, why_unchecked
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.records.questions import problem_of, why_unfit
from normgen.records.record import Record
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import is_built_in
from normgen.spec.spec import Spec
from normgen.verify import prove_derivative

CHECKED_ELEMENTS = 1 << 20  # of a call on the CPU executor: more takes 1 to 3 s, and the record says it was not made
RULE = "a kernel leaves only as it was compared with the reference"

SpecOf = Callable[[Record], Spec]


@dataclass(frozen=True, kw_only=True)
class RefusedRecord:
    """A record that does not leave, and why."""

    record: Record
    why: str

    @staticmethod
    def of(record: Record, error: NormgenError) -> RefusedRecord:
        """Of the error that refuses it: what was received says all where the rule is the one of this module."""
        parts = (error.received,) if error.rule == RULE else (error.rule, error.received)
        return RefusedRecord(record=record, why=": ".join(filter(None, parts)))

    def __str__(self) -> str:
        key = self.record.problem
        return f"refused: {key.op} {key.direction} {key.rows} x {key.cols}: {self.why}"


@dataclass(frozen=True, kw_only=True)
class SortedOut:
    """What became of records: those that leave, each beside what was given, and those that do not."""

    pairs: tuple[tuple[Record, Record], ...]
    refused: tuple[RefusedRecord, ...]

    @property
    def records(self) -> list[Record]:
        """Those that leave, as they were proven."""
        return [record for _, record in self.pairs]


@lru_cache(maxsize=4096)
def text_today(problem: Problem, schedule: Schedule) -> str:
    """The identity of the kernel's text today. Raises UsageError where the emitter refuses the schedule."""
    return identity_of(emit(problem, schedule))


def why_unproven(record: Record, problem: Problem) -> str | None:
    """Why a record that is fit does not show that its kernel is right; None where it does."""
    unchecked = [t.name for t in problem.tensors if t.is_written and t.name not in record.error]
    if record.verified is None or unchecked:
        return "its kernel was not compared with the reference"
    if not (record.verified.compared and any(record.verified.rows) and record.verified.families):
        return "its kernel was compared on no rows"
    if record.verified.unbounded >= 1:
        return "its kernel was compared where any value passes: no element has a finite bound"
    if (record.verified.text or record.text) != text_today(problem, record.schedule):
        return "its kernel is emitted as another text today than the one that was compared"
    return None


def require_usable(record: Record) -> None:
    """Raises UsageError for a record of no kernel that can stand in a header."""
    name_part(NamePart.OP, record.problem.op)
    if not record.outcome.is_usable or record.problem.any_cols:
        raise UsageError("a header holds usable kernels of fixed cols", received=f"{record.outcome}: {record.schedule}")


def require_proven(record: Record, problem: Problem) -> None:
    """Raises VerificationError for a record whose kernel does not leave."""
    if why := why_unfit(record, problem):
        raise VerificationError(RULE, received=why)
    if why := why_unproven(record, problem):
        hint = "`normgen export` proves again what is of an older text"
        raise VerificationError(RULE, received=why, hint=hint)


def proven(record: Record, spec: Spec, *, tell: Callable[[str], None] = to_stderr) -> Record:
    """The record, proven again on the CPU executor where the kernel or the built-in spec has another text today.

    Its times stay those of the text that was timed (`Record.text`).

    Errors: UsageError for a record of another question than its spec's, or of no usable kernel.

    Raises VerificationError for one whose kernel is unfit, or wrong, or cannot be compared here.
    """
    problem = _fit(record, spec)
    key, why = problem.question, why_unproven(record, problem)
    if key == record.problem and why is None:
        return record
    if cannot := why_unchecked(problem):
        raise VerificationError(RULE, received=f"{why}, and cannot be here: {cannot}")
    tell(f"proven again on the CPU executor: {problem} {record.schedule}")
    prove_derivative(problem)
    found = check_on_cpu(problem, emit(problem, record.schedule), most_elements=CHECKED_ELEMENTS)
    if found.verified is None:
        said = "; ".join(line.strip() for line in found.summary.splitlines()[:2])
        raise VerificationError(RULE, received=f"its kernel is wrong today: {said}")
    now = text_today(problem, record.schedule)
    verified = replace(found.verified, text=now if now != record.text else "")
    return replace(record, problem=key, error=found.error, verified=verified)


def is_fit(record: Record, spec_of: SpecOf) -> bool:
    """Whether `proven` takes the record, or proves it again where its kernel is still right."""
    try:
        return why_unchecked(_fit(record, spec_of(record))) is None
    except NormgenError:
        return False


def _fit(record: Record, spec: Spec) -> Problem:
    """The problem of a record today. Raises as `proven`, of all that another comparison would not mend."""
    require_usable(record)
    key = record.problem
    if not record.spec and is_built_in(spec):  # the text of a built-in spec is today's
        key = replace(key, spec_sha256=spec.sha256)
    problem = problem_of(key, spec)
    if why := why_unfit(record, problem):
        raise VerificationError(RULE, received=why)
    return problem


def sorted_out(records: Iterable[Record], spec_of: SpecOf, *, tell: Callable[[str], None] = to_stderr) -> SortedOut:
    """What `proven` makes of each record, and those that it refuses."""
    pairs: list[tuple[Record, Record]] = []
    refused: list[RefusedRecord] = []
    for record in records:
        try:
            pairs.append((record, proven(record, spec_of(record), tell=tell)))
        except NormgenError as error:
            refused.append(RefusedRecord.of(record, error))
    return SortedOut(pairs=tuple(pairs), refused=tuple(refused))


def require_all(refused: Sequence[RefusedRecord]) -> None:
    """Raises VerificationError that names every record which did not leave."""
    if refused:
        raise VerificationError(RULE, received="\n".join(map(str, refused)), hint="the records stay where they are")
