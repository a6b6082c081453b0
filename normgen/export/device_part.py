"""The device part of a header: the device library that its kernels need, each strategy's kernel, and the Configs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from normgen.codegen.library import File, in_order
from normgen.codegen.module import Kernel
from normgen.codegen.parts import Parts, headers_of
from normgen.codegen.templates import tidy
from normgen.pipeline import emit_parts
from normgen.problem.problem import Problem
from normgen.schedule.schedule import Schedule

SIZES = "// What a tuned shape is: the sizes and hints of its kernel."


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One problem under one schedule."""

    problem: Problem
    schedule: Schedule
    parts: Parts

    @property
    def main(self) -> Kernel:
        return self.parts.kernels[0]

    @property
    def zeroed_bytes(self) -> int:
        """The part of the workspace that a launch finds zeroed, less what grows with cols."""
        pitch = -(-self.problem.cols // 32) * 32
        return self.parts.workspace_fixed_bytes - self.parts.workspace_column_bytes * pitch


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
        names.append(parts.kernels[0].expression)
        emitted.setdefault(names[-1], Compiled(problem=problem, schedule=schedule, parts=parts))
    library = _library(emitted.values())
    strategies = dict.fromkeys(c.parts.text for c in emitted.values())
    configs = dict.fromkeys(c.parts.config.text for c in emitted.values())
    return DevicePart(
        kernels=tuple(emitted[name] for name in names),
        text=tidy("\n".join([*(file.text for file in library), SIZES, *configs, "", *strategies])),
        headers=headers_of(library),
        min_arch=max(c.parts.min_arch for c in emitted.values()),
    )


def _library(compiled: Iterable[Compiled]) -> list[File]:
    """The files that some kernel needs."""
    found = {file.name: file for c in compiled for file in c.parts.library}
    return in_order(found.values())
