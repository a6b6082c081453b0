"""How a replay is made: how many buffer sets, how many launches, whether the cache is emptied in between."""

from __future__ import annotations

import math
from dataclasses import dataclass

from normgen.problem.problem import Problem, TensorUse
from normgen.records.record import Cache

REPLAY_US = 1000.0  # 0.3 to 1 ms a replay is the custom; its end matters less the longer it is
# Between libraries, longer: a replay leaves up to an L2 of dirty lines, which whoever runs next writes back. In 0.5 ms
# that is up to 3 % of what an H200 moves, given to kernels whose stores stay in L2; in 4 ms it is below 0.4 %. The
# rmsnorm of 8192x4096 f32 went from 0.96 to 1.005 times as fast as torch.compile's by nothing else.
CONTEST_REPLAY_US = 4000.0
MAX_LAUNCHES = 512
ROUND_OVER_L2 = 3  # a round moves more than 3 x L2
SPACING = 256  # allocators hand out multiples of it


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Buffer sets of a problem for one cache policy.

    sets      a launch uses set i % sets
    flushed   the sets together do not leave the L2, so it is emptied before every replay, untimed, and no replay
              uses a set twice
    replay_us  about how long a replay takes
    """

    sets: int
    flushed: bool
    replay_us: float = REPLAY_US

    def launches(self, us: float) -> int:
        """Launches in one replay of a kernel that takes `us`.

        At least a round of all sets: a replay starts at set 0 again, and what it finds there must be gone from L2.
        """
        wanted = max(1, math.ceil(self.replay_us / max(us, 0.1)))
        if self.flushed:
            return min(wanted, self.sets)
        return max(min(wanted, MAX_LAUNCHES), self.sets)


def plan_of(set_bytes: int, *, l2_bytes: int, cache: Cache, replay_us: float = REPLAY_US) -> Plan:
    """The plan for sets of that many bytes: one set when hot, else a round of more than 3 x L2 or a flush."""
    if cache is Cache.HOT:
        return Plan(sets=1, flushed=False, replay_us=replay_us)
    needed = ROUND_OVER_L2 * l2_bytes // max(set_bytes, 1) + 1
    flushed = needed > MAX_LAUNCHES
    return Plan(sets=min(needed, MAX_LAUNCHES), flushed=flushed, replay_us=replay_us)


def extent(tensor: TensorUse, problem: Problem) -> int:
    """Bytes from a tensor's first element to the end of its last row, pitch included."""
    width = problem.pitch if tensor.kind.is_elem else problem.cols
    return math.prod(tensor.kind.shape(problem.rows, width)) * tensor.dtype.bytes


def layout(problem: Problem) -> tuple[dict[str, int], int]:
    """Offset of every tensor in a set, and the set's bytes.

    Tensors start on multiples of 256 as an allocator hands them out; in a problem that promises less than 16
    bytes they start an odd multiple of that behind, so that no luck with alignment is measured.
    """
    shift = problem.align if problem.align < 16 else 0
    offsets: dict[str, int] = {}
    at = 0
    for tensor in problem.tensors:
        offsets[tensor.name] = at + shift
        at += -(-(extent(tensor, problem) + shift) // SPACING) * SPACING
    return offsets, max(at, SPACING)
