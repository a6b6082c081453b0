"""The device library: `library/*.cuh`, and what `instructions` writes; CUDA C that reads and compiles by itself.

A file includes the files that it calls, and no header of CUDA. What a kernel needs follows from the identifiers that
its statements read. Files with inline PTX are hardware: in their place the CPU executor has functions of those names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from normgen.codegen import instructions
from normgen.codegen.module import OF_ONE_ARCH

_HEAD, _INCLUDE = "#pragma once  // ", '#include "'


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of the library, without its head and its include lines.

    needs    the files that it includes, in their order
    defines  the functions and types that its head says it defines
    """

    name: str
    text: str
    needs: tuple[str, ...]
    defines: frozenset[str]

    @property
    def is_hardware(self) -> bool:
        """Whether only a GPU runs it: inline PTX, or shared memory whose size the launch decides."""
        return "asm" in self.text or "extern __shared__" in self.text

    @property
    def is_of_one_arch(self) -> bool:
        """Whether later architectures do not have its instructions."""
        return OF_ONE_ARCH in self.text


@cache
def files() -> dict[str, File]:
    """The library by file name without `.cuh`."""
    folder = resources.files("normgen.codegen") / "library"
    texts = {p.name.removesuffix(".cuh"): p.read_text(encoding="utf-8") for p in folder.iterdir()} | instructions.made()
    return {name: _file(name, texts[name]) for name in sorted(texts) if not name.startswith((".", "_"))}


def _file(name: str, text: str) -> File:
    head, *lines = text.splitlines()
    included = [line for line in lines if line.startswith(_INCLUDE)]
    return File(
        name=name,
        text="\n".join(line for line in lines if line not in included).strip("\n") + "\n",
        needs=tuple(line.split('"')[1].removesuffix(".cuh") for line in included),
        defines=frozenset(head.removeprefix(_HEAD).split(", ")),
    )


@cache
def _homes() -> dict[str, str]:
    """The file of each function and type: of overloads the first, of a stored type that of its name."""
    found: dict[str, str] = {}
    for file in in_order(files().values()):
        for defined in file.defines:
            found.setdefault(defined, file.name)
    return found | {name: name for name in files() if name in found}


def needed(identifiers: Iterable[str]) -> list[File]:
    """The files that define these functions and types, and those that they include, each behind what it needs."""
    homes = _homes()
    return in_order(files()[homes[name]] for name in identifiers if name in homes)


def in_order(wanted: Iterable[File]) -> list[File]:
    """The files and those that they include, each behind what it needs; hardware first."""
    ordered: dict[str, File] = {}

    def add(file: File) -> None:
        if file.name not in ordered:
            for other in file.needs:
                add(files()[other])
            ordered[file.name] = file

    for file in sorted(wanted, key=lambda file: file.name):
        add(file)
    return sorted(ordered.values(), key=lambda file: not file.is_hardware)
