"""The steps of a run on the CPU executor: who touched which element, in the order in which it happened."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from normgen.cpu.library import LaunchArguments, LaunchReport, TracedStep
from normgen.cpu.tensors import ArenaTensor
from normgen.errors import UsageError

SHARED = "shared"  # the place of a step in shared memory; tensors have their names
CAPACITY = 1 << 18  # steps of a launch


class StepKind(StrEnum):
    """What a thread does in a step; the kinds of runtime.h, by number in `_KINDS`."""

    READ = "read"
    WRITE = "write"
    ADD = "add"  # an atomic
    COPY = "copy"  # asynchronous, from global to shared memory
    PREFETCH = "prefetch"
    SHUFFLE = "shuffle"
    WAIT = "wait"  # for the kernels in front
    TRIGGER = "trigger"  # the next kernel may start


_KINDS = {
    1: StepKind.READ,
    2: StepKind.WRITE,
    4: StepKind.ADD,
    8: StepKind.COPY,
    9: StepKind.PREFETCH,
    10: StepKind.SHUFFLE,
    11: StepKind.WAIT,
    12: StepKind.TRIGGER,
}


@dataclass(frozen=True, kw_only=True)
class TraceStep:
    """One step of one thread.

    kernel        number of the kernel in its module
    place         a tensor, `shared`, or nothing
    row, col      of a tensor's first element touched; of shared memory: 0 and the byte address
    count         elements; of shared memory: bytes
    source        the thread of the block whose value a shuffle takes
    """

    kernel: int
    block: int
    thread: int
    kind: StepKind
    place: str = ""
    row: int = 0
    col: int = 0
    count: int = 0
    source: int = 0


def room_for_steps(launch: LaunchArguments) -> None:
    """Have the launch write its steps."""
    launch.trace = (TracedStep * CAPACITY)()
    launch.trace_capacity = CAPACITY


def steps_of(
    kernel: int, launch: LaunchArguments, report: LaunchReport, placed: Mapping[str, ArenaTensor]
) -> list[TraceStep]:
    """What a launch with room for steps did. Raises UsageError if there were more steps than room."""
    if report.traced > CAPACITY:
        raise UsageError(f"a traced launch takes at most {CAPACITY} steps", received=f"{report.traced} steps")
    tensors = sorted(placed.values(), key=lambda tensor: tensor.address)
    starts = [tensor.address for tensor in tensors]
    found = (_step(kernel, launch.trace[i], tensors, starts) for i in range(report.traced))
    return [step for step in found if step is not None]


def _step(kernel: int, one: TracedStep, tensors: Sequence[ArenaTensor], starts: Sequence[int]) -> TraceStep | None:
    """The step of a line; None for a read of a constant in the program's image."""
    kind = _KINDS[one.kind]
    who = {"kernel": kernel, "block": one.block, "thread": one.thread}
    if kind in (StepKind.SHUFFLE, StepKind.WAIT, StepKind.TRIGGER):
        return TraceStep(**who, kind=kind, source=one.other)
    if one.other:  # the runtime says so of shared memory
        return TraceStep(**who, kind=kind, place=SHARED, col=one.address, count=one.bytes)
    number = bisect.bisect_right(starts, one.address) - 1
    tensor = tensors[number] if number >= 0 else None
    offset = one.address - tensor.address if tensor is not None else 0
    if tensor is None or offset >= tensor.rows * tensor.pitch_bytes:
        return None
    row, within = divmod(offset, tensor.pitch_bytes)
    size = tensor.original.itemsize
    return TraceStep(**who, kind=kind, place=tensor.name, row=row, col=within // size, count=one.bytes // size)
