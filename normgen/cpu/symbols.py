"""From code addresses to lines, by addr2line (binutils) or llvm's; asked only when there is a fault."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_TOOLS = ("addr2line", "llvm-addr2line")
_SEARCH_BYTES = 160


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One level of an inlined call chain."""

    function: str
    file: str  # without its folder
    line: int


Lookup = Callable[[Iterable[int]], Mapping[int, tuple[Frame, ...]]]


def find_frames(image: Path, return_addresses: Iterable[int], *, text_file: str) -> dict[int, tuple[Frame, ...]]:
    """The call chain of each address, innermost first; empty without a tool that can tell.

    A chain is good when it has a line of `text_file`.
    """
    frames = _ask(image, return_addresses)
    for address, chain in list(frames.items()):
        if _is_known(chain, text_file):
            continue
        # The optimiser left this instruction without a line: the closest one before it has to do.
        before = _ask(image, range(max(2, address - _SEARCH_BYTES), address))
        known = [found for found, near in sorted(before.items()) if _is_known(near, text_file)]
        if known:
            frames[address] = before[known[-1]]
    return frames


def _is_known(chain: Iterable[Frame], text_file: str) -> bool:
    return any(frame.line and frame.file == text_file for frame in chain)


def _ask(image: Path, return_addresses: Iterable[int]) -> dict[int, tuple[Frame, ...]]:
    addresses = sorted(set(return_addresses))
    tool = next((path for path in map(shutil.which, _TOOLS) if path), None)
    if tool is None or not addresses:
        return {}
    command = [tool, "-e", str(image), "-a", "-i", "-f", *(hex(address - 1) for address in addresses)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    frames: dict[int, tuple[Frame, ...]] = {}
    lines = answer.stdout.splitlines()
    position = 0
    while position < len(lines):
        address = int(lines[position], 16) + 1
        position += 1
        chain = []
        while position + 1 < len(lines) and not lines[position].startswith("0x"):
            chain.append(_frame(lines[position], lines[position + 1]))
            position += 2
        frames[address] = tuple(chain)
    return frames


def _frame(function: str, place: str) -> Frame:
    file, _, line = place.split(" ")[0].rpartition(":")
    return Frame(function=function, file=Path(file).name, line=int(line) if line.isdigit() else 0)
