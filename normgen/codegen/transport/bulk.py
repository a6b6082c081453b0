"""cp.async.bulk: one thread a row asks the copy engine for the row; an mbarrier counts the bytes that arrive.

Reading is generic, a bulk copy writes by the async proxy: a barrier orders earlier reads before it, and no proxy fence
is needed, because the threads never write to the slots.
"""

from __future__ import annotations

from normgen.codegen.access import Access
from normgen.codegen.statements import Comment, Do, If, Let, Set, Statement, constant, function, loop
from normgen.codegen.transport.ring import fetch_parameters
from normgen.codegen.transport.transport import Slots, fetched
from normgen.knobs import LoadHint

POLICIES = (LoadHint.EVICT_FIRST, LoadHint.EVICT_LAST)  # hints that the copy engine knows
HELD = "kHeldSteps * kThreadsPerRow * kVector"  # columns of a hybrid row that wait in registers
SET_UP = "others wait only for a barrier that is set up"


class Bulk:
    """copy = bulk."""

    commit: tuple[Statement, ...] = ()
    proves_arrival: bool = True

    def __init__(self, access: Access) -> None:
        self.access = access
        self.plan = access.plan
        self.side_by_side = self.plan.idle_rows
        self.slots = Slots(access, by_row=self.side_by_side)
        self.elected = "row_thread == 0" if self.side_by_side else "threadIdx.x == 0"
        load = self.plan.schedule.load
        self.load = "bulk_load_by<Load>" if load in POLICIES else "bulk_load"

    def constants(self) -> list[Let]:
        if self.plan.cut.shifted:
            return []
        held = f" - {HELD}" if self.plan.is_hybrid else ""
        return [constant("kCopiedCols", f"kCols{held}", "columns of a row that the copy engine brings")]

    def shared(self) -> list[Statement]:
        size = ("[kStages]" if self.plan.is_staged else "") + ("[kRowsPerBlock]" if self.side_by_side else "")
        return [Do(f"__shared__ unsigned long long arrived{size}")]

    @property
    def _barrier(self) -> str:
        return "&arrived" + ("[stage]" if self.plan.is_staged else "") + ("[block_row]" if self.side_by_side else "")

    def _copies(self) -> list[Statement]:
        """What the elected thread of a row does: whole vectors of a shifted row, whose edge is read by its lanes."""
        ctypes = [self.access.ctype(load.name) for load in self.plan.held]
        size = " + ".join(f"sizeof({ctype})" for ctype in ctypes)
        size = f"({size})" if len(ctypes) > 1 else size
        if self.plan.schedule.row_blocks > 1:
            return self._part_copies(size)
        found: list[Statement] = []
        if self.plan.cut.shifted:
            less, more = (f" - {HELD}", f" + {HELD}") if self.plan.is_hybrid else ("", "")
            start, cols = f" + head{more}", "copied_cols"
            found.append(Let("const int", cols, f"vectors * kVector{less}"))
        else:
            start, cols = " + kCols - kCopiedCols" if self.plan.is_hybrid else "", "kCopiedCols"
        found.append(Do(f"mbarrier_expect_bytes({self._barrier}, {cols} * {size})"))
        row = "stage * kRowsPerBlock + block_row" if self.plan.is_staged else "block_row"
        row = row if self.side_by_side else "stage" if self.plan.is_staged else ""
        row = f" + ({row}) * {self.slots.steps} * kThreadsPerRow * kVector" if row else ""
        for load, ctype in zip(self.plan.held, ctypes, strict=True):
            to, source = f"{load.name}_shared{row}", f"{load.name}_row{start}"
            found.append(Do(f"{self.load}({to}, {source}, {cols} * sizeof({ctype}), {self._barrier})"))
        return found

    def _part_copies(self, size: str) -> list[Statement]:
        """Of blocks that share a row each owns a stretch of it in every step."""
        first_step = "kHeldSteps" if self.plan.is_hybrid else "0"
        in_cluster = self.plan.schedule.cluster > 1
        number = "kCluster + static_cast<int>(cluster_rank())" if in_cluster else "kParts + part"
        first = Let("const int", "first", f"(step * {number}) * kThreads")
        owned = If("first < kVectors", (Set("own_vectors", "min(kThreads, kVectors - first)", "+="),), alone=True)
        slots = f"(stage * kSteps + {self.slots.step})" if self.plan.is_staged else self.slots.step
        copies: list[Statement] = [
            first,
            If("first >= kVectors", (Do("break"),), alone=True),
            Let("const int", "count", "min(kThreads, kVectors - first) * kVector"),
        ]
        for load in self.plan.held:
            to = f"{load.name}_shared + {slots} * kThreads * kVector"
            count = f"count * sizeof({self.access.ctype(load.name)})"
            copies.append(Do(f"{self.load}({to}, {load.name}_row + first * kVector, {count}, {self._barrier})"))
        return [
            Do("int own_vectors = 0"),
            loop("step", "kSteps", [first, owned], first=first_step),
            Do(f"mbarrier_expect_bytes({self._barrier}, own_vectors * kVector * {size})"),
            loop("step", "kSteps", copies, first=first_step),
        ]

    def set_up(self) -> list[Statement]:
        """Before the first copy."""
        start: Statement = Do(f"mbarrier_init({self._barrier}, 1)")
        start = loop("stage", "kStages", [start]) if self.plan.is_staged else start
        return [If(self.elected, (start, Do("mbarrier_fence()"))), Do("__syncthreads()", SET_UP)]

    def fetch(self) -> list[Statement]:
        return [
            Comment("One thread asks for a row; the slot's barrier counts down the bytes that arrive."),
            function("fetch", fetch_parameters(self.access), [*fetched(self.access), *self._copies()]),
        ]

    def copy_row(self) -> list[Statement]:
        start = (Do(f"mbarrier_init({self._barrier}, 1)"), Do("mbarrier_fence()"), *self._copies())
        return [
            Comment("One thread asks for a row; the barrier counts down the bytes that arrive."),
            If(self.elected, start),
            Do("__syncthreads()", SET_UP),
            *([If("has_edge", self.access.edge_reads("{}_edge"))] if self.plan.cut.edged else []),
        ]

    def wait(self) -> list[Statement]:
        return [Do(f"mbarrier_wait({self._barrier}, {'phase' if self.plan.copies_ahead else '0'})")]

    def counters(self) -> list[Statement]:
        stage = [Do("int stage = 0")] if self.plan.is_staged else []
        return [*stage, Do("unsigned phase = 0")]

    def next_stage(self) -> list[Statement]:
        if not self.plan.is_staged:
            return [Do("phase ^= 1")]
        return [If("++stage == kStages", (Set("stage", "0"), Do("phase ^= 1")))]
