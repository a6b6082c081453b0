"""A ring of stages between one thread that asks for tiles and warps that multiply them.

A stage is full when all bytes of its tiles have come, and free when each warp is done with it. The phases of a stage
end with parity 0 and 1 by turns, from round to round.
"""

from __future__ import annotations

from collections.abc import Sequence

from normgen.codegen.statements import Do, For, If, Let, Set, Statement, function, loop

BARRIER = "unsigned long long"
NEXT = Do("next_stage()")


class Ring:
    """Its barriers lie behind the tiles in shared memory; `begin`: the first k of a block."""

    def __init__(self, start: str, begin: str) -> None:
        self.start, self.begin = start, begin

    def set_up(self) -> list[Statement]:
        init: list[Statement] = [
            Do("mbarrier_init(&full[stage], 1)"),
            Do("mbarrier_init(&empty[stage], kWarps)", "a lane of each warp that multiplies"),
        ]
        return [
            Let(f"{BARRIER}* const", "full", f"reinterpret_cast<{BARRIER}*>({self.start})"),
            Let(f"{BARRIER}* const", "empty", "full + kStages"),
            If("threadIdx.x == 0", (loop("stage", "kStages", init), Do("mbarrier_fence()"))),
            Do("__syncthreads()"),
        ]

    def state(self) -> list[Statement]:
        """Where a thread is in the ring."""
        further = [Set("parity", "stage == kStages - 1", "^="), Set("stage", "stage + 1 < kStages ? stage + 1 : 0")]
        return [Do("int stage = 0"), Do("unsigned parity = 0"), function("next_stage", "", further)]

    def filled(self, tile_bytes: str, copies: Sequence[Statement]) -> list[Statement]:
        """A stage is filled anew when it is free: before the first round all are."""
        free = Do("mbarrier_wait(&empty[stage], parity ^ 1)")
        return [free, Do(f"mbarrier_expect_bytes(&full[stage], {tile_bytes})"), *copies, NEXT]

    def multiplied(self, products: Sequence[Statement]) -> list[Statement]:
        """Products of one stage are under way while those of the stage before end, which is free then."""
        free = If(f"lane == 0 && k0 > {self.begin}", (Do("mbarrier_arrive(&empty[before])"),), alone=True)
        return [
            Do("mbarrier_wait(&full[stage], parity)"),
            Do("wgmma_fence()"),
            *products,
            Do("wgmma_commit()"),
            Do("wgmma_wait<1>()"),
            free,
            Set("before", "stage"),
            NEXT,
        ]

    def consumed(self, over_k: For) -> list[Statement]:
        free = If("lane == 0", (Do("mbarrier_arrive(&empty[before])"),), alone=True)
        return [Do("int before = 0"), over_k, Do("wgmma_wait<0>()"), free]
