"""The headers of one function for several GPUs -> the file that picks among them at run time.

nvcc compiles a program once for each arch that it is asked for, and the driver loads what fits the device. The file
asks the runtime which of these passes the code for the current device comes from (`cudaFuncAttributes::ptxVersion`,
as NVIDIA CUB does) and not what the device is: a program that was compiled for fewer archs than the set has still
gets the kernels that are in it. In that pass the header of the newest arch up to the pass's own has its kernels, the
others have empty ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from normgen.codegen.spelling import Spelling
from normgen.codegen.templates import tidy
from normgen.export.banner import untuned
from normgen.export.groups import HeaderGroup
from normgen.export.header import Halves, environment, set_guard
from normgen.export.host_part import HostPart


@dataclass(frozen=True, kw_only=True)
class HeaderOfArch:
    """One header of a set, and what is said of it."""

    arch: int
    file_name: str
    said: str


def set_text(members: Sequence[Halves]) -> str:
    """The text of the file for headers that differ in their arch alone, in the order of their archs."""
    group = members[0].group
    parts = tuple(
        HeaderOfArch(arch=g.arch, file_name=g.file_name, said=_said(g)) for g in (one.group for one in members)
    )
    passes = [f"-gencode arch=compute_{arch},code=sm_{arch}" for arch in group.archs]

    def printed(host: HostPart) -> str:
        return (
            environment()
            .get_template("set.cu.j2")
            .render(
                file_name=group.set_name,
                name=group.name,
                op=group.problem.spec.name,
                asked=",".join(f"sm{arch}" for arch in group.archs),
                guard=set_guard(group),
                command=["nvcc -std=c++17", *passes],
                parts=parts,
                host=host,
            )
        )

    marked = members[0].host  # its functions have the signatures of all
    return tidy(printed(Spelling(printed(marked)).within(marked)))


def _said(group: HeaderGroup) -> str:
    count = len(group.entries)
    return f"{count} tuned shape{'s' * (count != 1)}" if count else untuned(group)
