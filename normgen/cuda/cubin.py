"""A compiled module: its machine code, and what each kernel needs by the assembler's report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from normgen.codegen.module import KernelEntry


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one kernel needs, as ptxas reports it; bytes are per thread, shared memory per block."""

    registers: int
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    stack_bytes: int = 0
    static_shared_bytes: int = 0
    barriers: int = 0

    @property
    def spill_bytes(self) -> int:
        """Bytes a thread stores to and loads from its spill slots, once over the text."""
        return self.spill_store_bytes + self.spill_load_bytes


@dataclass(frozen=True, kw_only=True)
class Cubin:
    """Machine code of one module for one arch; `resources` is by kernel name."""

    data: bytes = field(repr=False)
    arch: int
    resources: Mapping[str, Resources] = field(hash=False)
    log: str
    seconds: float
    nvrtc_version: tuple[int, int]
    key: str
    cached: bool = False


def symbol_of(kernel: KernelEntry, entries: Iterable[str]) -> str:
    """The entry of machine code that a kernel is, of those that there are; "" if it is not among them.

    A template's instance has the Itanium ABI's name: the lengths and names of the template and of its argument.
    """
    if not kernel.config:
        return kernel.name if kernel.name in set(entries) else ""
    words = (f"{len(kernel.name)}{kernel.name}I", f"{len(kernel.config)}{kernel.config}E")
    return next((entry for entry in entries if all(word in entry for word in words)), "")


def entries_of(data: bytes) -> list[str]:
    """The entries of machine code: each has a section of its own."""
    return [name.decode() for name in re.findall(rb"\x00\.text\.(\w+)(?=\x00)", data)]


_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_FUNCTION = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse_resources(log: str) -> dict[str, Resources]:
    """Resources by kernel, from the lines `ptxas -v` writes into NVRTC's log.

    A function that was not inlined has its own stack and spills; they are charged to every kernel,
    because each of them may call it.
    """
    found: dict[str, Resources] = {}
    shared_calls = Resources(registers=0)
    entry = function = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            entry = match[1]
            found[entry] = Resources(registers=0)
        elif match := _FUNCTION.search(line):
            function = match[1]
        elif match := _STACK.search(line):
            stack, stores, loads = map(int, match.groups())
            if function in found:
                found[function] = _spilling(found[function], stack, stores, loads)
            else:
                shared_calls = _spilling(shared_calls, stack, stores, loads)
        elif (match := _USED.search(line)) and entry:
            found[entry] = replace(
                found[entry],
                registers=int(match[1]),
                barriers=_number(_BARRIERS, line),
                static_shared_bytes=_number(_SHARED, line),
            )
    calls = (shared_calls.stack_bytes, shared_calls.spill_store_bytes, shared_calls.spill_load_bytes)
    return {name: _spilling(own, *calls) for name, own in found.items()}


def _spilling(base: Resources, stack: int, stores: int, loads: int) -> Resources:
    return replace(
        base,
        stack_bytes=base.stack_bytes + stack,
        spill_store_bytes=base.spill_store_bytes + stores,
        spill_load_bytes=base.spill_load_bytes + loads,
    )


def _number(pattern: re.Pattern[str], line: str) -> int:
    match = pattern.search(line)
    return int(match[1]) if match else 0
