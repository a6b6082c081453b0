"""The device part of a header: what several kernels share printed once, then the kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain, count
from operator import or_

from normgen.codegen import prelude
from normgen.codegen.module import Kernel
from normgen.codegen.parts import Parts
from normgen.codegen.view import State
from normgen.pipeline import emit_parts
from normgen.problem.problem import Problem
from normgen.program.rewrites.reductions import applicable
from normgen.program.source import written_program
from normgen.schedule.schedule import Schedule

Shape = tuple[tuple[object, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One problem under one schedule, and the namespace its kernels stand in ("" or "welford::")."""

    problem: Problem
    schedule: Schedule
    parts: Parts
    scope: str = ""

    @property
    def main(self) -> Kernel:
        return self.parts.kernels[0]

    @property
    def zeroed_bytes(self) -> int:
        """The part of the workspace that a launch finds zeroed, less what grows with cols."""
        pitch = -(-self.problem.cols // 32) * 32
        return self.parts.workspace_fixed_bytes - self.parts.workspace_column_bytes * pitch


@dataclass(kw_only=True)
class Family:
    """Kernels whose looks have the same states: they share the states' structs and functions."""

    name: str
    states: tuple[State, ...]
    members: list[Compiled] = field(default_factory=list)

    def text(self) -> str:
        shuffles = any(prelude.shuffles(m.parts.method) for m in self.members)
        states = prelude.states_text(self.states, shuffles=shuffles) if self.states else ""
        kernels = [m.parts.kernels_text.replace('extern "C" __global__', "NORMGEN_KERNEL") for m in self.members]
        return "\n\n".join([states, *kernels])


@dataclass(frozen=True, kw_only=True)
class DevicePart:
    """`kernels` in the order they were asked for; equal ones are one object."""

    kernels: tuple[Compiled, ...]
    text: str
    headers: tuple[str, ...]
    min_arch: int


def device_part(wanted: Sequence[tuple[Problem, Schedule]]) -> DevicePart:
    """The text of all wanted kernels, each printed once."""
    emitted: dict[str, Compiled] = {}
    names = []
    for problem, schedule in wanted:
        parts = emit_parts(problem, schedule)
        names.append(parts.kernels[0].name)
        emitted.setdefault(names[-1], Compiled(problem=problem, schedule=schedule, parts=parts))
    families = _families(emitted.values())
    if len(families) > 1:
        scopes = {m.main.name: f"{f.name}::" for f in families for m in f.members}
        emitted = {name: _scoped(c, scopes[name]) for name, c in emitted.items()}
    text = _text([c.parts for c in emitted.values()], families)
    return DevicePart(
        kernels=tuple(emitted[name] for name in names),
        text=text,
        headers=tuple(sorted({h for c in emitted.values() for h in c.parts.headers})),
        min_arch=max(c.parts.min_arch for c in emitted.values()),
    )


def _scoped(compiled: Compiled, scope: str) -> Compiled:
    return Compiled(problem=compiled.problem, schedule=compiled.schedule, parts=compiled.parts, scope=scope)


def _families(compiled: Iterable[Compiled]) -> list[Family]:
    """By what the states are, not by what their comments say; named by the rewrite that made them."""
    found: dict[Shape, Family] = {}
    for one in compiled:
        shape = tuple((s.type, s.components, s.combine_lets, s.combine) for s in one.parts.states)
        if shape not in found:
            taken = {f.name for f in found.values()}
            found[shape] = Family(name=_family_name(one, taken), states=one.parts.states)
        found[shape].members.append(one)
    return list(found.values())


def _family_name(compiled: Compiled, taken: set[str]) -> str:
    """The rewrites' names where the program has a choice (sum_of_squares, online), then what tells it from others."""
    choices = applicable(written_program(compiled.problem))
    chosen = [str(getattr(compiled.schedule, knob)) for knob, values in choices.items() if len(values) > 1]
    name = "_".join(chosen) or "as_written"
    absent = "".join(f"_without_{tensor}" for tensor in compiled.problem.absent)
    candidates = chain([name, name + absent], (f"{name}{absent}_{number}" for number in count(2)))
    return next(candidate for candidate in candidates if candidate not in taken)


def _text(parts: Sequence[Parts], families: Sequence[Family]) -> str:
    vectors = reduce(or_, (p.vectors for p in parts)).text()
    trees = prelude.trees_text({p.method for p in parts})
    pieces = [vectors, trees]
    for family in families:
        name = family.name
        opening, closing = (f"namespace {name} {{", f"}}  // namespace {name}") if len(families) > 1 else ("", "")
        pieces += [opening, family.text(), closing]
    text = "\n\n".join(pieces)
    dtypes = sorted({name for p in parts for name in p.dtypes})
    return prelude.tidy(prelude.instructions_of(text, dtypes) + "\n\n" + text)
