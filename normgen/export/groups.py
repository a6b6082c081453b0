"""Records -> groups: what goes into one header, and the problem each record was tuned for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

from normgen.device import Device, device_from
from normgen.errors import UsageError
from normgen.export.proof import SpecOf, require_proven, require_usable
from normgen.files.private import to_stderr
from normgen.problem.problem import Problem
from normgen.problem.question import PLAIN_ALIGN, Direction, Question
from normgen.problem.words import header_stem
from normgen.program.source import problem_for
from normgen.records.nearest import place_rank
from normgen.records.place import DEFAULT_PLACE
from normgen.records.questions import problem_of
from normgen.records.record import Record
from normgen.schedule.plan import alignment_of
from normgen.spec.spec import Role, Spec


@dataclass(frozen=True, kw_only=True)
class TunedShape:
    """One tuned shape: its record and the problem the record names."""

    record: Record
    problem: Problem

    @property
    def device(self) -> Device:
        return device_from(self.record.device)

    @property
    def vector_align(self) -> int:
        """Bytes every row start and every column parameter must be a multiple of."""
        return alignment_of(self.problem, self.record.schedule)

    def order(self) -> tuple[object, ...]:
        """Cols, rows, the fewest tensors and the widest accesses first; equal ones by what stands in the record.

        The dispatch takes the first of equally near ones: a call without a statistic gets what was tuned without it.
        """
        key = self.record.problem
        return (key.cols, key.inner, key.rows, -len(self.problem.absent), -self.vector_align, key.pitch, -key.align)


@dataclass(frozen=True, kw_only=True)
class HeaderGroup:
    """Everything of one header.

    name      layernorm_fwd_f32: header, namespace and launch function are named after it
    problem   with every optional parameter there: its tensors are the launch function's arguments
    optional  parameters (inputs) that may be null; tuned kernels are compiled with or without each of them
    nullable  optional statistics that a kernel may have been compiled without
    entries   the tuned shapes; none in a header of a set whose arch has no record: it has general kernels
    archs     all archs of the set that the header belongs to, ascending; none for a header by itself
    suffix    of the file's name
    """

    name: str
    arch: int
    problem: Problem
    optional: tuple[str, ...]
    nullable: tuple[str, ...]
    entries: tuple[TunedShape, ...]
    archs: tuple[int, ...] = ()
    suffix: str = "cu"

    @property
    def file_name(self) -> str:
        return f"{self.name}_sm{self.arch}.{self.suffix}"

    @property
    def set_name(self) -> str:
        """The name of the file that picks among the headers of a set."""
        return f"{self.name}.{self.suffix}"

    def absent_bits(self, problem: Problem) -> int:
        """Bit i: tensor i of `optional` + `nullable` is compiled out."""
        return sum(1 << i for i, name in enumerate((*self.optional, *self.nullable)) if name in problem.absent)

    @cached_property
    def general(self) -> tuple[Problem, ...]:
        """Any number of columns: a problem that takes null for what may be null.

        With an optional tensor that must not be null, one for each set of absent ones, in the order of their bits.
        """
        general = self._any_cols()
        may_be_null = {name for t in general.tensors for name in (t.name, t.of) if t.may_be_null}
        if may_be_null.issuperset(self.optional):
            return (general,)
        subsets = (s for n in range(len(self.optional) + 1) for s in combinations(self.optional, n))
        return tuple(sorted(map(self._any_cols, subsets), key=self.absent_bits))

    def _any_cols(self, without: Sequence[str] = ()) -> Problem:
        align = max(t.dtype.bytes for t in self.problem.tensors)
        return rebuilt(self.problem, without=(*self.problem.absent, *without), align=align)


def rebuilt(problem: Problem, *, without: Sequence[str], align: int) -> Problem:
    """The same problem for any cols, without some tensors. An odd pitch promises nothing about row starts."""
    whole = problem.spec.whole_cols
    cols = -(-1024 // whole) * whole
    sizes = {"shape": (1, cols), "inner": cols if problem.inner else None, "batches": None}
    dtypes = {name: dtype for name, dtype in problem.named_dtypes.items() if name not in without}
    layout = {"pitch": cols + (2 if cols % 2 else problem.packed), "align": align}
    general = {"dtypes": dtypes, "without": without, "any_cols": True, "stable_parameters": False}
    return problem_for(problem.spec, **problem.arguments() | sizes | layout | general)


CALLED = "calls it from Python; `normgen export --cubin` writes its machine code"


class NoHeaderError(UsageError):
    """No header is made of such kernels."""


def leaving_problem(record: Record, spec: Spec) -> Problem:
    """The problem a record was tuned for.

    Raises UsageError if the spec has changed since; VerificationError for a kernel that was not compared with the
    reference as it is emitted today.
    """
    require_usable(record)
    problem = problem_of(record.problem, spec)
    require_proven(record, problem)
    return problem


def require_general(problem: Problem) -> None:
    """Raises NoHeaderError of a problem whose header could not have a kernel for any number of columns."""
    rule = "a header has a kernel for any number of columns, and there is none of "
    if problem.col_stride > 1:
        hint = f"normgen.kernel(axis=) {CALLED}"
        raise NoHeaderError(f"{rule}rows side by side", received=str(problem), hint=hint)
    if problem.packed > 1 and not problem.spec.group:
        rule += "elements that share a byte, without groups of columns"
        hint = f"a spec with groups of columns has one; normgen.kernel {CALLED}"
        raise NoHeaderError(rule, received=str(problem), hint=hint)


def header_problem(record: Record, spec: Spec) -> Problem:
    """As `leaving_problem`, of a record that may stand in a header. Raises NoHeaderError of another one."""
    require_usable(record)
    require_general(problem_of(record.problem, spec))
    return leaving_problem(record, spec)


def has_header(record: Record, spec: Spec) -> bool:
    """Whether a header may take a record's kernel."""
    return _why_none(record, spec) is None


def _why_none(record: Record, spec: Spec) -> NoHeaderError | None:
    """A record of another spec has none either, which is said where records leave."""
    try:
        require_general(problem_of(record.problem, spec))
    except NoHeaderError as error:
        return error
    except UsageError:
        return None
    return None


def with_header(records: Sequence[Record], spec_of: SpecOf) -> list[Record]:
    """Those that a header takes; the others are told of on stderr. Raises NoHeaderError where none of some is."""
    reasons = [_why_none(record, spec_of(record)) for record in records]
    refused = [error for error in reasons if error is not None]
    if refused and len(refused) == len(records):
        raise refused[0]
    for error in refused:
        to_stderr(f"no header of {error.received}: {error.rule}; {error.hint}")
    return [record for record, error in zip(records, reasons, strict=True) if error is None]


def header_name(problem: Problem) -> str:
    """layernorm_fwd_f32: of the header that a problem's kernels stand in."""
    return header_stem(_base(problem))


def groups_of(
    records: Iterable[Record], spec_of: SpecOf, archs: Sequence[int] = (), *, suffix: str = "cu"
) -> list[HeaderGroup]:
    """One group per operation, direction, dtypes and arch, in the order of their file names.

    With `archs`, only of these, and one for each of them wherever one of them has a record.

    Raises UsageError for records that one header cannot serve.
    """
    by_slot: dict[tuple[str, int], list[TunedShape]] = {}
    bases: dict[str, Problem] = {}
    for record in records:
        entry = TunedShape(record=record, problem=header_problem(record, spec_of(record)))
        base = _base(entry.problem)
        name, arch = header_stem(base), entry.device.arch
        if archs and arch not in archs:
            continue
        if bases.setdefault(name, base).spec.sha256 != base.spec.sha256:
            received = " and ".join(f"{one.spec.file} (sha256:{one.spec.sha256[:12]})" for one in (bases[name], base))
            hint = "give one of them another name, or another folder"
            raise UsageError(f"a header named {name} is of one spec", received=received, hint=hint)
        if bases[name].tensors != base.tensors:
            raise UsageError("one header stores each tensor in one dtype", received=str(record.problem.dtypes))
        by_slot.setdefault((name, arch), []).append(entry)
    slots = [(name, arch) for name in bases for arch in archs] if archs else list(by_slot)
    found = [_group(slot, bases[slot[0]], by_slot.get(slot, []), tuple(sorted(archs))) for slot in sorted(slots)]
    return [replace(group, suffix=suffix) for group in found]


def _group(slot: tuple[str, int], base: Problem, entries: list[TunedShape], archs: tuple[int, ...]) -> HeaderGroup:
    """The best entry of each problem: measured before predicted, in place before alone, then by device name."""

    def preference(entry: TunedShape) -> tuple[object, ...]:
        record = entry.record
        rank = place_rank(record.place, DEFAULT_PLACE)
        return not record.measured, rank is None, rank or 0, entry.device.name, record.schedule.key

    best: dict[Question, TunedShape] = {}
    for entry in sorted(entries, key=preference):
        best.setdefault(entry.record.problem, entry)
    optional = tuple(
        t.name
        for t in base.spec.tensors
        if t.optional
        and not t.role.is_written
        and t.name in base.named_dtypes
        and t.name not in (base.gradients or ())
        and not base.is_overwritten(t.name)
    )
    nullable = tuple(t.name for t in base.tensors if t.nullable)
    chosen = sorted(best.values(), key=lambda e: (*e.order(), e.record.schedule.key))
    name, arch = slot
    _check_orders(base, chosen)
    return HeaderGroup(
        name=name,
        arch=arch,
        problem=base,
        optional=optional,
        nullable=nullable,
        entries=tuple(chosen),
        archs=archs,
    )


def _check_orders(base: Problem, entries: Sequence[TunedShape]) -> None:
    """Raises UsageError for batch-invariant kernels of equal columns that reduce rows in different orders."""
    orders: dict[tuple[int, int], set[object]] = {}
    for entry in entries if base.batch_invariant else ():
        orders.setdefault((entry.problem.cols, entry.problem.inner), set()).add(entry.record.schedule.order)
    several = [cols for cols, found in orders.items() if len(found) > 1]
    if several:
        cols = several[0][0]
        rule = "the batch-invariant kernels of a header reduce rows of equal columns in one order"
        raise UsageError(rule, received=f"several for {cols} columns", hint="`normgen tune --rows` keeps to one")


def _base(problem: Problem) -> Problem:
    """The problem with every optional parameter (forward: and statistic) there: the launch function's arguments.

    A parameter that a record leaves out is stored like the tensor it follows, or like the first input. An output that
    it leaves out is none of the function's: no kernel would write it.
    """
    left_out = (Role.OUTPUT, *([Role.STATISTIC] if problem.direction is Direction.BACKWARD else []))
    without = tuple(n for n in problem.absent if problem.spec.tensor(n).role in left_out)
    plain = {"without": without, "pitch": problem.cols * problem.col_stride, "align": PLAIN_ALIGN}
    base = problem_for(problem.spec, **problem.arguments() | plain).with_rows(1)
    return replace(base, cols=1, pitch=1, inner=min(1, base.inner))
