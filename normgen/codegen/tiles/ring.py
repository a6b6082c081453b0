"""A ring of stages between one thread that asks for tiles and warps that multiply them.

A stage is full when all bytes of its tiles have come, and free when each warp is done with it. The phases of a stage
end with parity 0 and 1 by turns, from round to round. Behind the products of a tile stages carry what is read for its
results, and these: where warps have made results, another thread has them stored, and then the stage is free.
"""

from __future__ import annotations

from collections.abc import Sequence

from normgen.codegen.statements import Do, For, If, Let, Set, Statement, function, loop

BARRIER = "unsigned long long"
NEXT = Do("next_stage()")


class Ring:
    """Its barriers lie behind the tiles in shared memory; `begin`: the first k of a block."""

    def __init__(self, start: str, begin: str, *, hands_on: bool) -> None:
        self.start, self.begin, self.hands_on = start, begin, hands_on

    def set_up(self) -> list[Statement]:
        init: list[Statement] = [
            Do("mbarrier_init(&full[stage], 1)"),
            Do("mbarrier_init(&empty[stage], kWarps)", "a lane of each warp that multiplies"),
        ]
        made: list[Statement] = []
        if self.hands_on:
            init.append(Do("mbarrier_init(&made[stage], kWarps)"))
            made.append(Let(f"{BARRIER}* const", "made", "empty + kStages"))
        return [
            Let(f"{BARRIER}* const", "full", f"reinterpret_cast<{BARRIER}*>({self.start})"),
            Let(f"{BARRIER}* const", "empty", "full + kStages"),
            *made,
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
        is_full = f"mbarrier_expect_bytes(&full[stage], {tile_bytes})" if copies else "mbarrier_arrive(&full[stage])"
        return [free, Do(is_full), *copies, NEXT]

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

    def consumed(self, over_k: For, sums: Sequence[str]) -> list[Statement]:
        """All products of a tile, into these arrays."""
        free = If("lane == 0", (Do("mbarrier_arrive(&empty[before])"),), alone=True)
        arrived = [Do(f"wgmma_arrived({name})") for name in sums]
        return [Do("int before = 0"), over_k, Do("wgmma_wait<0>()"), *arrived, free]

    def passed(self, made: Sequence[Statement]) -> list[Statement]:
        """What a stage holds for results is read, and results are made there."""
        what = "made" if self.hands_on else "empty"
        fence = [Do("shared_fence()")] if self.hands_on else []
        done = If("lane == 0", (Do(f"mbarrier_arrive(&{what}[stage])"),), alone=True)
        return [Do("mbarrier_wait(&full[stage], parity)"), *made, *fence, Do("__syncwarp()"), done, NEXT]

    def stored(self, copies: Sequence[Statement], *, warps: int) -> list[Statement]:
        """Results are stored by one thread beside; when all of so many warps know of them, the stage is free, as if
        each warp that multiplies were done with it.
        """
        stores: list[Statement] = [*copies, Do("tensor_stores_read()")] if copies else []
        arrivals = "beside == 0 ? kWarps - kBeside + 1 : 1" if warps > 1 else "kWarps"
        free = Do(f"mbarrier_arrive_for(&empty[stage], {arrivals})")
        by_one = If("beside == 0 && lane == 0", tuple(stores))
        by_each = If("lane == 0", (free,), alone=True)
        return [
            Do("mbarrier_wait(&made[stage], made_parity >> stage & 1)"),
            Set("made_parity", "1u << stage", "^="),
            *([by_one, by_each] if warps > 1 else [If("lane == 0", (*stores, free))]),
            NEXT,
        ]
