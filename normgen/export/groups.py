"""Records -> groups: what goes into one header, and the problem each record was tuned for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from normgen.device import Device, device_from
from normgen.dtypes import F32
from normgen.errors import UsageError
from normgen.files.names import Part, name_part
from normgen.problem.problem import Direction, Problem
from normgen.program.source import problem_for
from normgen.records.record import Cache, ProblemKey, Record
from normgen.schedule.plan import alignment_of
from normgen.spec.spec import Role, Spec

SpecOf = Callable[[str], Spec]


@dataclass(frozen=True, kw_only=True)
class Entry:
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
        return (key.cols, key.rows, -len(self.problem.absent), -self.vector_align, key.pitch, -key.align)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Everything of one header.

    name      layernorm_fwd_f32: header, namespace and launch function are named after it
    problem   with every optional parameter there: its tensors are the launch function's arguments
    optional  parameters (inputs) that may be null; kernels are compiled with or without each of them
    nullable  optional statistics that a kernel may have been compiled without
    """

    name: str
    arch: int
    problem: Problem
    optional: tuple[str, ...]
    nullable: tuple[str, ...]
    entries: tuple[Entry, ...]

    @property
    def file_name(self) -> str:
        return f"{self.name}_sm{self.arch}.cu"

    def absent_bits(self, problem: Problem) -> int:
        """Bit i: tensor i of `optional` + `nullable` is compiled out."""
        return sum(1 << i for i, name in enumerate((*self.optional, *self.nullable)) if name in problem.absent)

    def fallbacks(self) -> list[Problem]:
        """Any number of columns: one problem per set of absent parameters, in the order of their bits."""
        subsets = [s for n in range(len(self.optional) + 1) for s in combinations(self.optional, n)]
        problems = [
            rebuilt(
                self.problem,
                without=(*self.problem.absent, *subset),
                align=max(t.dtype.bytes for t in self.problem.tensors),
            )
            for subset in subsets
        ]
        return sorted(problems, key=self.absent_bits)


def rebuilt(problem: Problem, *, without: Sequence[str], align: int) -> Problem:
    """The same problem for any cols, without some tensors. An odd pitch promises nothing about row starts."""
    forward = [t for t in problem.spec.tensors if problem.present & {t.name, f"d{t.name}"}]
    dtypes = {t.name: _stored(problem, t.name) for t in forward if t.name not in without}
    cols = 1024
    return problem_for(
        problem.spec,
        shape=(1, cols),
        dtype=problem.dtype.name,
        dtypes=dtypes,
        direction=problem.direction.value,
        without=tuple(without),
        pitch=cols + 1,
        align=align,
        any_cols=True,
        gradients=problem.gradients,
        accumulate=problem.accumulate,
        deterministic=problem.deterministic,
    )


def _stored(problem: Problem, name: str) -> str:
    return next(t.dtype.name for t in problem.tensors if t.name in (name, f"d{name}"))


def problem_of(record: Record, spec: Spec) -> Problem:
    """The problem a record was tuned for. Raises UsageError if the spec has changed since, or it fits no header."""
    key = record.problem
    name_part(Part.OP, key.op)
    if key.spec_sha256 != spec.sha256:
        raise UsageError(
            f"a record of {key.op} must be of the present text of its spec",
            received=f"{key.rows} x {key.cols} of {key.spec_sha256[:12]}, the spec is {spec.sha256[:12]}",
            hint=f"run it again: {record.command}",
        )
    if not record.outcome.is_usable or key.any_cols:
        raise UsageError("a header holds usable kernels of fixed cols", received=f"{record.outcome}: {record.schedule}")
    stored = dict(key.dtypes)
    names = {t.name: n for t in spec.tensors for n in (f"d{t.name}", t.name) if n in stored}
    backward = key.direction == Direction.BACKWARD
    kept = {*(spec.saved if backward else ()), *(t.name for t in spec.statistics)}
    optional = [t.name for t in spec.tensors if t.optional and (t.name in kept or t.role in _GIVEN)]
    problem = problem_for(
        spec,
        shape=(key.rows, key.cols),
        dtype=stored[names[spec.inputs[0].name]],
        dtypes={name: stored[n] for name, n in names.items()},
        direction=key.direction,
        without=[name for name in optional if name not in names],
        pitch=key.pitch,
        align=key.align,
        gradients=_gradients(key, spec),
        accumulate=key.accumulate,
        deterministic=key.deterministic,
        stable_parameters=key.stable_parameters,
    )
    if ProblemKey.of(problem) != key:
        found = ", ".join(t.name for t in problem.tensors)
        received = ", ".join(stored)
        raise UsageError(f"a header of {key.op} {key.direction} takes {found}", received=f"a record of {received}")
    return problem


def _gradients(key: ProblemKey, spec: Spec) -> list[str] | None:
    """What a backward record differentiates by."""
    backward = key.direction == Direction.BACKWARD
    return [t.name for t in spec.tensors if t.role in _GIVEN and f"d{t.name}" in key.present] if backward else None


_GIVEN = (Role.PARAMETER, Role.INPUT)


def groups_of(records: Iterable[Record], spec_of: SpecOf) -> list[Group]:
    """One group per operation, direction, dtypes and arch, in the order of their file names."""
    by_name: dict[tuple[str, int], list[Entry]] = {}
    bases: dict[tuple[str, int], Problem] = {}
    for record in records:
        entry = Entry(record=record, problem=problem_of(record, spec_of(record.problem.op)))
        base = _base(entry.problem)
        slot = (_name(base), entry.device.arch)
        if bases.setdefault(slot, base).tensors != base.tensors:
            raise UsageError("one header stores each tensor in one dtype", received=str(record.problem.dtypes))
        by_name.setdefault(slot, []).append(entry)
    return [_group(slot, bases[slot], by_name[slot]) for slot in sorted(by_name)]


def _group(slot: tuple[str, int], base: Problem, entries: list[Entry]) -> Group:
    """The best entry of each problem: measured before predicted, cold before hot, then by device name."""

    def preference(entry: Entry) -> tuple[object, ...]:
        record = entry.record
        return not record.measured, record.cache is not Cache.COLD, entry.device.name, record.schedule.key

    best: dict[ProblemKey, Entry] = {}
    for entry in sorted(entries, key=preference):
        best.setdefault(entry.record.problem, entry)
    optional = tuple(
        t.name
        for t in base.spec.tensors
        if t.optional
        and t.role in _GIVEN
        and base.present & {t.name, f"d{t.name}"}
        and t.name not in (base.gradients or ())
    )
    nullable = tuple(t.name for t in base.tensors if t.nullable)
    chosen = sorted(best.values(), key=lambda e: (*e.order(), e.record.schedule.key))
    name, arch = slot
    return Group(name=name, arch=arch, problem=base, optional=optional, nullable=nullable, entries=tuple(chosen))


def _base(problem: Problem) -> Problem:
    """The problem with every optional parameter (forward: and statistic) there: the launch function's arguments.

    A parameter that a record leaves out is stored like the tensor it follows, or like the first input.
    """
    backward = problem.direction is Direction.BACKWARD
    without = [n for n in problem.absent if backward and problem.spec.tensor(n).role is Role.STATISTIC]
    given = [t for t in problem.spec.tensors if problem.present & {t.name, f"d{t.name}"}]
    full = problem_for(
        problem.spec,
        shape=(problem.rows, problem.cols),
        dtype=problem.dtype.name,
        dtypes={t.name: _stored(problem, t.name) for t in given},
        direction=problem.direction.value,
        without=without,
        gradients=problem.gradients,
        accumulate=problem.accumulate,
        deterministic=problem.deterministic,
        stable_parameters=problem.stable_parameters,
    )
    return replace(full, rows=1, cols=1, pitch=1)


def _name(base: Problem) -> str:
    """layernorm_fwd_bf16, with whatever makes another signature named after it: _weight_f32, _accumulate."""
    default = problem_for(
        base.spec,
        shape=(1, 1),
        dtype=base.dtype.name,
        direction=base.direction.value,
        without=base.absent,
        gradients=base.gradients,
    )
    usual = {t.name: t.dtype for t in default.tensors}
    others = {t.name: t.dtype for t in base.tensors if usual.get(t.name, F32) != t.dtype}
    if base.direction is Direction.BACKWARD:  # a gradient is stored like its tensor: name the pair once
        others = {n: d for n, d in others.items() if not (n.startswith("d") and n[1:] in others)}
    parts = [base.name, *(f"{n}_{d.name}" for n, d in others.items()), *(f"without_{n}" for n in base.absent)]
    parts += ["only", *(f"d{name}" for name in base.gradients)] if base.gradients else []
    promises = ("accumulate", "deterministic", "stable_parameters")
    return "_".join([*parts, *(name for name in promises if getattr(base, name))])
