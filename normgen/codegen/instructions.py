"""Functions of the device library whose text is too regular to be written by hand: instructions of many registers."""

from __future__ import annotations

import textwrap

WGMMA_COLUMNS = range(64, 257, 32)
_WGMMA = {"bf16": ("bf16", 16, ", 0, 0"), "f16": ("f16", 16, ", 0, 0"), "tf32": ("TF32", 8, "")}
_PARAMETERS = "float* sums, const void* left, const void* right, bool more"
_WIDTH = 120


def made() -> dict[str, str]:
    """Files of the library by name, as they would stand in its folder."""
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
            *(_of_columns(dtype, deep, ends, columns) for columns in WGMMA_COLUMNS),
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
