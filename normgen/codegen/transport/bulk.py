"""cp.async.bulk: one thread a row asks the copy engine for the row; an mbarrier counts the bytes that arrive.

Reading is generic, a bulk copy writes by the async proxy: a barrier orders earlier reads before it, and no proxy fence
is needed, because the threads never write to the slots.
"""

from __future__ import annotations

from normgen.codegen.access import Access
from normgen.codegen.prelude import POLICIES
from normgen.codegen.transport.ring import fetch_head
from normgen.codegen.transport.transport import Slots, fetched_pointers
from normgen.codegen.view import SectionList


class Bulk:
    """copy = bulk."""

    commit: tuple[str, ...] = ()
    proves_arrival: bool = True

    def __init__(self, access: Access) -> None:
        self.access = access
        self.plan = access.plan
        self.side_by_side = self.plan.idle_rows
        self.slots = Slots(access, by_row=self.side_by_side)
        self.elected = "lane == 0" if self.side_by_side else "threadIdx.x == 0"
        load = self.plan.schedule.load
        self.load = f"bulk_load_{load}" if load in POLICIES else "bulk_load"

    def constants(self) -> list[tuple[str, str, str]]:
        held = " - kHeldSteps * kThreadsPerRow * kVector" if self.plan.is_hybrid else ""
        return [("kCopiedCols", f"kCols{held}", "of a row that the copy engine brings")]

    def shared_lines(self) -> tuple[str, ...]:
        size = ("[kStages]" if self.plan.is_staged else "") + ("[kRowsPerBlock]" if self.side_by_side else "")
        return (f"__shared__ unsigned long long arrived{size};",)

    @property
    def _barrier(self) -> str:
        return "&arrived" + ("[stage]" if self.plan.is_staged else "") + ("[slot]" if self.side_by_side else "")

    def _copies(self) -> list[str]:
        """What the elected thread of a row does."""
        ctypes = [self.access.ctype(load.name) for load in self.plan.held]
        size = " + ".join(f"sizeof({ctype})" for ctype in ctypes)
        size = f"({size})" if len(ctypes) > 1 else size
        if self.plan.schedule.row_blocks > 1:
            return self._part_copies(size)
        lines = [f"mbarrier_expect_bytes({self._barrier}, kCopiedCols * {size});"]
        row = "stage * kRowsPerBlock + slot" if self.plan.is_staged else "slot"
        row = row if self.side_by_side else "stage" if self.plan.is_staged else ""
        row = f" + ({row}) * {self.slots.steps} * kThreadsPerRow * kVector" if row else ""
        start = " + kCols - kCopiedCols" if self.plan.is_hybrid else ""
        for load, ctype in zip(self.plan.held, ctypes, strict=True):
            to, source = f"{load.name}_shared{row}", f"{load.name}_row{start}"
            lines.append(f"{self.load}({to}, {source}, kCopiedCols * sizeof({ctype}), {self._barrier});")
        return lines

    def _part_copies(self, size: str) -> list[str]:
        """A block of a cluster owns a stretch of the row in every step."""
        first_step = "kHeldSteps" if self.plan.is_hybrid else "0"
        stretch = [
            f"for (int step = {first_step}; step < kSteps; ++step) {{",
            "  const int first = (step * kCluster + static_cast<int>(cluster_rank())) * kThreads;",
        ]
        lines = [
            "int own_vectors = 0;",
            *stretch,
            "  if (first < kVectors) own_vectors += min(kThreads, kVectors - first);",
            "}",
            f"mbarrier_expect_bytes({self._barrier}, own_vectors * kVector * {size});",
            *stretch,
            "  if (first >= kVectors) break;",
            "  const int count = min(kThreads, kVectors - first) * kVector;",
        ]
        slots = f"(stage * kSteps + {self.slots.step})" if self.plan.is_staged else self.slots.step
        for load in self.plan.held:
            to = f"{load.name}_shared + {slots} * kThreads * kVector"
            source = f"{load.name}_row + first * kVector"
            count = f"count * sizeof({self.access.ctype(load.name)})"
            lines.append(f"  {self.load}({to}, {source}, {count}, {self._barrier});")
        return [*lines, "}"]

    def set_up(self, out: SectionList) -> None:
        stages = "for (int stage = 0; stage < kStages; ++stage) " if self.plan.is_staged else ""
        out.lines(
            f"if ({self.elected}) {{",
            f"  {stages}mbarrier_init({self._barrier}, 1);",
            "  mbarrier_fence();",
            "}",
            "__syncthreads();  // others wait only for a barrier that is set up",
        )

    def fetch_lines(self) -> list[str]:
        who = "// One thread a row asks for it; the slot's barrier counts down the bytes that arrive."
        return [
            *fetch_head(self.access, who),
            *fetched_pointers(self.access, self.plan.held),
            *("  " + line for line in self._copies()),
            "};",
        ]

    def copy_row(self, out: SectionList) -> None:
        out.lines(
            "// One thread a row asks for it; the barrier counts down the bytes that arrive.",
            f"if ({self.elected}) {{",
            f"  mbarrier_init({self._barrier}, 1);",
            "  mbarrier_fence();",
            *("  " + line for line in self._copies()),
            "}",
            "__syncthreads();  // others wait only for a barrier that is set up",
        )

    def wait_line(self) -> str:
        return f"mbarrier_wait({self._barrier}, {'phase' if self.plan.copies_ahead else '0'});"

    def counters(self) -> list[str]:
        return ["int stage = 0;", "unsigned phase = 0;"] if self.plan.is_staged else ["unsigned phase = 0;"]

    def next_stage(self) -> list[str]:
        return ["if (++stage == kStages) { stage = 0; phase ^= 1; }"] if self.plan.is_staged else ["phase ^= 1;"]
