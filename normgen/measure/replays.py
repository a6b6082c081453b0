"""How a replay is made: how many buffer sets, what lies in one, how many launches, whether the L2 is emptied before."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.records.place import Context, Place, Setting

REPLAY_US = 1000.0  # 0.3 to 1 ms a replay is the custom; its end matters less the longer it is
# Between libraries, longer: a replay leaves up to an L2 of dirty lines, which whoever runs next writes back. In 0.5 ms
# that is up to 3 % of what an H200 moves, given to kernels whose stores stay in L2; in 4 ms it is below 0.4 %. The
# rmsnorm of 8192x4096 f32 went from 0.96 to 1.005 times as fast as torch.compile's by nothing else.
CONTEST_REPLAY_US = 4000.0
MAX_LAUNCHES = 512
ROUND_OVER_L2 = 3  # a round moves more than 3 x L2
SPACING = 256  # allocators hand out multiples of it
HOT_SETS = 4
HOT_SHARE = 0.4  # of the L2 that a hot chain may fill: 24 MiB of an H200's 60


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """Buffer sets of a problem for one place.

    sets      a launch uses set i % sets
    flushed   the sets together do not leave the L2, so it is emptied before every replay, untimed, and no replay
              uses a set twice
    replay_us  about how long a replay takes
    spills    hot, but one chain's bytes do not stay in the L2
    """

    sets: int
    flushed: bool
    replay_us: float = REPLAY_US
    spills: bool = False

    def launches(self, us: float) -> int:
        """Launches in one replay of a kernel, or links of a chain, that takes `us`.

        At least a round of all sets: a replay starts at set 0 again, and what it finds there must be gone from L2.
        """
        wanted = max(1, math.ceil(self.replay_us / max(us, 0.1)))
        if self.flushed:
            return min(wanted, self.sets)
        return max(min(wanted, MAX_LAUNCHES), self.sets)


def plan_of(
    kernel_bytes: int, chain_bytes: int, *, l2_bytes: int, place: Place, replay_us: float = REPLAY_US
) -> ReplayPlan:
    """The plan for sets of which a kernel moves `kernel_bytes` and its whole chain `chain_bytes`.

    Hot: as few as stay in the L2, one where a single one does not. Else what the kernels of a round move is more than
    3 x L2, or the L2 is flushed.
    """
    if place.setting is Setting.HOT:
        room = int(HOT_SHARE * l2_bytes)
        fitting = min(HOT_SETS, room // max(chain_bytes, 1))
        return ReplayPlan(sets=max(1, fitting), flushed=False, replay_us=replay_us, spills=fitting == 0)
    needed = ROUND_OVER_L2 * l2_bytes // max(kernel_bytes, 1) + 1
    flushed = needed > MAX_LAUNCHES
    return ReplayPlan(sets=min(needed, MAX_LAUNCHES), flushed=flushed, replay_us=replay_us)


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A part of a set: where it begins, and its bytes, both multiples of `SPACING`."""

    start: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class SetLayout:
    """What lies in a set: the tensors, what is written first, what nobody reads last; then what P copies from, and cold
    its target.

    offsets   of each tensor's first element
    slots     of each tensor; one that is written in place has the slot of the one it takes the place of
    source    as long as the main input, which it holds
    target    where P writes: the main input, or cold another slot as long
    kernel_bytes  of the tensors that the kernel reads or writes
    """

    offsets: dict[str, int]
    slots: dict[str, Slot]
    source: Slot
    target: Slot
    kernel_bytes: int
    bytes: int


def main_input(problem: Problem) -> TensorUse:
    """What a producer writes: the incoming gradient of a backward pass, else the first row input.

    Of those that the kernel reads, where it reads any.
    """
    inputs = [t for t in problem.row_inputs if t.is_read] or problem.row_inputs
    return next((t for t in inputs if t.of), inputs[0])


def consumed(problem: Problem) -> list[TensorUse]:
    """What a consumer reads: every [rows, cols] output, then every sum over rows; without either, all."""
    written = [t for t in problem.tensors if t.is_written]
    return [t for t in written if t.kind.is_elem] + [t for t in written if t.is_row_sum] or written


def extent(tensor: TensorUse, problem: Problem) -> int:
    """Bytes from a tensor's first element to the end of its last line, pitch included; a batch's matrix is many."""
    shape = problem.shape_of(tensor)
    lines = math.prod(shape[:-1]) // (problem.col_stride if tensor.kind.is_elem else 1)
    count = lines * problem.pitch_of(tensor) if tensor.kind.is_matrix else math.prod(shape)
    return count * tensor.dtype.bytes


def layout(problem: Problem, place: Place) -> SetLayout:
    """Where the tensors of a set lie, and what P needs.

    Tensors start on multiples of 256 as an allocator hands them out; in a problem that promises less than 16
    bytes they start an odd multiple of that behind, so that no luck with alignment is measured. What is written comes
    first, the [rows, cols] tensors ahead of the others; of what is read what is written in place, then the main input;
    what is idle, and not written in place, comes last.
    """
    main = main_input(problem)

    def shift(tensor: TensorUse) -> int:
        return max(problem.align, tensor.dtype.bytes) if problem.align < 16 else 0

    taken = {read for _, read in problem.in_place}

    def order(tensor: TensorUse) -> tuple[bool, ...]:
        rank = (tensor.name not in taken, tensor is not main, not tensor.kind.is_elem, not tensor.is_row_sum)
        return is_idle(tensor), not tensor.is_written, *rank

    def is_idle(tensor: TensorUse) -> bool:
        return tensor.idle and not tensor.under

    slots: dict[str, Slot] = {}
    at = 0
    for tensor in sorted(problem.passed_tensors, key=order):
        size = max(SPACING, -(-(extent(tensor, problem) + shift(tensor)) // SPACING) * SPACING)
        slots[tensor.name] = Slot(start=at, bytes=size)
        at += size
    slots |= {written: slots[read] for written, read in problem.in_place}
    kernel_bytes = at - sum(slots[t.name].bytes for t in problem.passed_tensors if is_idle(t))
    source = Slot(start=at, bytes=slots[main.name].bytes)
    target = slots[main.name]
    if place.context is not Context.ALONE:
        at += source.bytes
        if place.setting is Setting.COLD:
            target = Slot(start=at, bytes=source.bytes)
            at += target.bytes
    return SetLayout(
        offsets={t.name: slots[t.name].start + shift(t) for t in problem.tensors},
        slots=slots,
        source=source,
        target=target,
        kernel_bytes=kernel_bytes,
        bytes=at,
    )
