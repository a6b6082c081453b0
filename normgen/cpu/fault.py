"""Faults a run can show, with the kernel's line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from normgen.codegen.module import Module
from normgen.cpu.library import FaultRecord
from normgen.cpu.symbols import Frame, Lookup


class FaultKind(StrEnum):
    OUT_OF_BOUNDS = "out_of_bounds"
    MISALIGNED = "misaligned"
    UNINITIALISED_SHARED = "uninitialised_shared"
    SHARED_RACE = "shared_race"
    DIVERGENT_BARRIER = "divergent_barrier"
    DEADLOCK = "deadlock"
    TIMEOUT = "timeout"
    OUT_OF_BOUNDS_SHARED = "out_of_bounds_shared"
    TOO_EARLY = "too_early"
    MBARRIER = "mbarrier"  # used with no barrier since its initialisation, or initialised while in use
    MISSING_FENCE = "missing_fence"
    GLOBAL_RACE = "global_race"  # of two blocks of a launch, or of two writes by threads of a block
    UNAWAITED = "unawaited"  # a thread or a block ends while its copy to shared memory is on its way


_KINDS = tuple(FaultKind)  # in the order of the runtime's enum
_INDEX_OUT_OF_ARRAY = len(_KINDS)
_WAITS = {
    -1: "have exited",
    0: "are between barriers",
    1: "wait in __syncthreads",
    2: "wait in a warp collective",
    3: "wait in a named barrier",
    4: "wait for the cluster",
    5: "wait for an mbarrier",
    6: "wait for a counter in memory",
}
_COLLECTIVE = re.compile(r"\b(?:__\w+_sync|__syncthreads|named_barrier)\b|\b\w+::(?:\w+::)*reduce\b|\b\w+\.shfl\w*")
_SHARED_ARRAY = re.compile(r"__shared__[^;=]*?(\w+)\s*\[")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing a kernel must not do.

    line       line of Module.text, from 1; 0 when it could not be found
    line_text  that line
    called_from  lines of the calls that led there, from the innermost outwards
    block, thread  blockIdx.x and threadIdx.x of the first thread seen doing it; -1 when none is to blame
    """

    kind: FaultKind
    kernel: str
    line: int
    line_text: str
    message: str
    called_from: tuple[int, ...] = ()
    block: int = -1
    thread: int = -1

    def __str__(self) -> str:
        where = f"{self.kernel}, line {self.line}" if self.line else f"{self.kernel}, line unknown"
        calls = "".join(f", called from line {line}" for line in self.called_from)
        who = f" [block {self.block}, thread {self.thread}]" if self.thread >= 0 else ""
        return f"{self.kind}: {where}{calls}: {self.message}{who}\n    {self.line_text.strip()}"


def make_faults(
    records: Sequence[FaultRecord], *, module: Module, kernel: str, text_file: str, lookup: Lookup
) -> tuple[Fault, ...]:
    """The runtime's records with lines; one fault for each kind and line."""
    wanted = [pc for record in records for pc in _pcs(record)]
    frames = lookup(wanted) if wanted else {}
    lines = module.text.split("\n")
    found: dict[tuple[FaultKind, int], Fault] = {}
    for record in records:
        chain = frames.get(record.pc, ())
        other = frames.get(record.other_pc, ())
        if record.other_pc and chain and _places(chain) == _places(other):
            continue  # the compiler copied one call to two places
        text_lines = [frame.line for frame in chain if frame.file == text_file]
        line = text_lines[0] if text_lines else 0
        line_text = lines[line - 1] if 0 < line <= len(lines) else ""
        groups = "; ".join(
            _group(group.wait, group.threads, _text_line(frames.get(group.pc, ()), text_file))
            for group in record.groups[: record.group_count]
        )
        earlier = _text_line(frames.get(record.earlier_pc, ()), text_file)
        others = [frame.line for frame in other if frame.file == text_file]
        met = f"{_call(text_lines, lines)} met {_call(others, lines)}" if other else ""
        notes = [*filter(None, (met, f"the earlier access is at line {earlier}" if earlier else "", groups))]
        message = record.message.decode(errors="replace")
        fault = Fault(
            kind=_kind(record.kind, module.text, line_text),
            kernel=kernel,
            line=line,
            line_text=line_text,
            message=f"{message} ({'; '.join(notes)})" if notes else message,
            called_from=tuple(text_lines[1:]),
            block=record.block,
            thread=record.thread,
        )
        found.setdefault((fault.kind, fault.line), fault)
    return tuple(found.values())


def _pcs(record: FaultRecord) -> list[int]:
    groups = [group.pc for group in record.groups[: record.group_count]]
    return [pc for pc in (record.pc, record.other_pc, record.earlier_pc, *groups) if pc]


def _places(chain: Sequence[Frame]) -> list[tuple[str, int]]:
    return [(frame.file, frame.line) for frame in chain]


def _text_line(chain: Sequence[Frame], text_file: str) -> int:
    """The innermost line of the module's own text; helpers of the shim lie further in."""
    return next((frame.line for frame in chain if frame.file == text_file), 0)


def _call(places: Sequence[int], lines: Sequence[str]) -> str:
    """`__shfl_xor_sync at line 5, called from line 12`, of the lines of a call, innermost first."""
    if not places:
        return "a call at an unknown line"
    name = _COLLECTIVE.search(lines[places[0] - 1])
    return ", called from ".join(
        [f"{name[0] if name else 'a call'} at line {places[0]}", *(f"line {n}" for n in places[1:])]
    )


def _group(wait: int, threads: int, line: int) -> str:
    return f"{threads} threads {_WAITS[wait]}" + (f" at line {line}" if line else "")


def _kind(code: int, text: str, line_text: str) -> FaultKind:
    if code != _INDEX_OUT_OF_ARRAY:
        return _KINDS[code]
    names = set(_SHARED_ARRAY.findall(text))
    in_line = set(re.findall(r"\b(\w+)\s*\[", line_text))
    return FaultKind.OUT_OF_BOUNDS_SHARED if names & in_line else FaultKind.OUT_OF_BOUNDS
