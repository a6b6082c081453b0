"""The device library: `library/*.cuh`, and what `made` writes; CUDA C that reads and compiles by itself.

A file includes the files that it calls, and no header of CUDA. What a kernel needs follows from the identifiers that
its statements read. Files with inline PTX are hardware: in their place the CPU executor has functions of those names.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from normgen.codegen.module import OF_ONE_ARCH

_HEAD, _INCLUDE = "#pragma once  // ", '#include "'
_WGMMA_COLUMNS = range(64, 257, 32)
_WGMMA = {"bf16": ("bf16", 16, ", 0, 0"), "f16": ("f16", 16, ", 0, 0"), "tf32": ("TF32", 8, "")}
_PARAMETERS = "float* sums, const void* left, const void* right, bool more"
_WIDTH = 120


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
    texts = {p.name.removesuffix(".cuh"): p.read_text(encoding="utf-8") for p in folder.iterdir()} | made()
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


def made() -> dict[str, str]:
    """Files of the library, by name, whose text is too regular to be written by hand."""
    return {f"wgmma_{dtype}": _wgmma(dtype, *facts) for dtype, facts in _WGMMA.items()}


def _wgmma(dtype: str, said: str, deep: int, ends: str) -> str:
    """`ends`: behind the signs of both sides, whether they are transposed, which 16 bits can be."""
    said = (
        f"Four warps multiply 64 lines and kColumns lines of {deep} factors in {said}, both in shared memory, and add "
        "the products to 64 x kColumns sums, or put them in their place. A lane has four of these for each 8 columns: "
        "two side by side, from 2 (lane % 4) on, of line 16 (warp % 4) + lane / 4, and the same 8 lines further on."
    )
    return "\n".join(
        [
            f"#pragma once  // wgmma_{dtype}\n",
            '#include "wgmma.cuh"\n',
            *textwrap.wrap(said, _WIDTH, initial_indent="// ", subsequent_indent="// "),
            "template <int kColumns>",
            f"__device__ __forceinline__ void wgmma_{dtype}({_PARAMETERS}) {{",
            '  static_assert(kColumns % 32 == 0 && kColumns >= 64 && kColumns <= 256, "columns of a wgmma");',
            "  const unsigned long long a = wgmma_lines(left), b = wgmma_lines(right);",
            *(_of_columns(dtype, deep, ends, columns) for columns in _WGMMA_COLUMNS),
            "}\n",
        ]
    )


def _of_columns(dtype: str, deep: int, ends: str, columns: int) -> str:
    count = columns // 2  # sums of a lane
    registers = _filled(
        [f"%{i}," for i in range(count - 1)] + [f"%{count - 1}}}, "], " " * 8 + '"', " " * 8 + '"', '"', '"'
    )
    sums = _filled(
        [f'"+f"(sums[{i}]),' for i in range(count - 1)] + [f'"+f"(sums[{count - 1}])'], " " * 8 + ": ", " " * 10, ""
    )
    return "\n".join(
        [
            f"  if constexpr (kColumns == {columns}) {{",
            f'    asm volatile("{{\\n.reg .pred more;\\nsetp.ne.b32 more, %{count + 2}, 0;\\n"',
            f'        "wgmma.mma_async.sync.aligned.m64n{columns}k{deep}.f32.{dtype}.{dtype} {{"',
            registers,
            f'        "%{count}, %{count + 1}, more, 1, 1{ends};\\n}}"',
            sums,
            '        : "l"(a), "l"(b), "r"(static_cast<int>(more)));',
            "  }",
        ]
    )


def _filled(parts: list[str], first: str, further: str, end: str, closed: str = "") -> str:
    """Parts side by side in lines as long as fit; `closed`: what ends each line but the last, which `end` ends."""
    lines, line = [], first
    for i, part in enumerate(parts):
        behind = end if i + 1 == len(parts) else closed
        space = "" if line in (first, further) else " "
        if len(line) + len(space + part + behind) > _WIDTH and space:
            lines.append(line + closed)
            line, space = further, ""
        line += space + part
    return "\n".join([*lines, line + end])
