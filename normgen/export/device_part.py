"""The device part of a header: what of the device library its kernels need, the Configs, each strategy's kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from normgen.codegen.library import File, in_order, needed
from normgen.codegen.module import KernelEntry
from normgen.codegen.parts import Parts, legend_lines, short_names
from normgen.codegen.statements import identifiers
from normgen.codegen.templates import tidy
from normgen.pipeline import answered, emit_parts
from normgen.problem.problem import Problem
from normgen.schedule.schedule import Schedule

SIZES = "// What a tuned shape is: the sizes and hints of its kernel. In kernels:"


@dataclass(frozen=True, kw_only=True)
class CompiledProblem:
    """One problem under one schedule."""

    problem: Problem
    schedule: Schedule
    parts: Parts

    @property
    def main(self) -> KernelEntry:
        return self.parts.kernels[0]

    def signatures(self) -> dict[str, tuple[str, ...]]:
        """The types of each kernel's parameters."""
        return {k.name: types for k, types in zip(self.parts.kernels, self.parts.signatures, strict=True)}

    @property
    def zeroed_bytes(self) -> int:
        """The part of the workspace that a launch finds zeroed, less what grows with cols or batches."""
        if self.problem.sums_batches:
            return self.parts.workspace.fixed
        return self.parts.workspace.fixed - self._column_bytes

    @property
    def batch_bytes(self) -> int:
        """What each batch adds to that part, less what grows with cols."""
        return self.parts.workspace.batch - self._column_bytes

    @property
    def _column_bytes(self) -> int:
        pitch = -(-self.problem.cols // 32) * 32
        return self.parts.workspace.column * pitch


@dataclass(frozen=True, kw_only=True)
class DevicePart:
    """`kernels` in the order they were asked for: equal texts are one, and may differ in how they are launched."""

    kernels: tuple[CompiledProblem, ...]
    library: tuple[File, ...]
    text: str
    min_arch: int

    @property
    def is_of_one_arch(self) -> bool:
        """Whether kernels have instructions of one architecture alone."""
        return any(file.is_of_one_arch for file in self.library)

    def option(self, arch: int) -> str:
        """What nvcc is told of the target; -arch=sm_90a has a pass for sm_90, too."""
        return f"-gencode arch=compute_{arch}a,code=sm_{arch}a" if self.is_of_one_arch else f"-arch=sm_{arch}"

    @property
    def signatures(self) -> dict[str, tuple[str, ...]]:
        """The types of each template's parameters, as nvcc compares them: with __restrict__."""
        return {name: types for c in self.kernels for name, types in c.signatures().items()}

    @property
    def chains(self) -> dict[str, str]:
        """Of each Config the part that the types of parameters depend on."""
        return {c.main.config: c.parts.chain for c in self.kernels}

    @property
    def signature_library(self) -> tuple[File, ...]:
        """The files of the library that the types of parameters need."""
        return tuple(needed(identifiers(" ".join([*self.chains.values(), *sum(self.signatures.values(), ())]))))


def device_part(wanted: Sequence[tuple[Problem, Schedule]]) -> DevicePart:
    """The text of all wanted kernels, each printed once."""
    compiled: list[CompiledProblem] = []
    named: dict[str, str] = {}
    for problem, schedule in wanted:
        problem = answered(problem, schedule)
        parts = emit_parts(problem, schedule).told_apart(named)
        compiled.append(CompiledProblem(problem=problem, schedule=schedule, parts=parts))
    short = short_names([c.parts for c in compiled])
    compiled = [replace(c, parts=c.parts.renamed(short)) for c in compiled]
    library = _library(compiled)
    types = dict.fromkeys(text for c in compiled for text in c.parts.every_type)
    strategies = dict.fromkeys(text for c in compiled for text in c.parts.texts)
    configs = dict.fromkeys(c.parts.config.text for c in compiled)
    legend = legend_lines(found for c in compiled for found in c.parts.legend)
    return DevicePart(
        kernels=tuple(compiled),
        library=tuple(library),
        text=tidy("\n".join([SIZES, *legend, *configs, "", *types, "", *strategies])),
        min_arch=max(c.parts.min_arch for c in compiled),
    )


def _library(compiled: Iterable[CompiledProblem]) -> list[File]:
    """The files that some kernel needs."""
    found = {file.name: file for c in compiled for file in c.parts.library}
    return in_order(found.values())
