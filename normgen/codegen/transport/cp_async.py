"""cp.async: a thread copies its own vectors to its own slots; waiting for its copies is all it needs."""

from __future__ import annotations

from normgen.codegen.access import Access
from normgen.codegen.transport.ring import fetch_head
from normgen.codegen.transport.transport import Slots, fetched_pointers, guarded
from normgen.codegen.view import Loop, SectionList


class CpAsync:
    """copy = cp_async."""

    elected: str = ""
    commit: tuple[str, ...] = ("cp_async_commit();",)
    proves_arrival: bool = False

    def __init__(self, access: Access) -> None:
        self.access = access
        self.plan = access.plan
        self.slots = Slots(access)

    def constants(self) -> list[tuple[str, str, str]]:
        return []

    def shared_lines(self) -> tuple[str, ...]:
        return ()

    def set_up(self, out: SectionList) -> None:
        pass

    def _copies(self) -> list[str]:
        """The copies of one step."""
        at = self.access.vector_site.at
        lines = [f"copy_async<kVector>({self.slots.of(ld.name)}, {ld.name}_row + {at});" for ld in self.plan.held]
        return [*self.access.column_line(lines), *lines]

    def fetch_lines(self) -> list[str]:
        who = "// Each thread copies its own vectors to its own slots, so that no barrier is needed to read them."
        return [
            *fetch_head(self.access, who),
            *fetched_pointers(self.access, self.plan.held),
            "  #pragma unroll",
            "  for (int step = 0; step < kSteps; ++step) {",
            "    const int vector = lane + step * kThreadsPerRow;",
            *("    " + line for line in guarded(self.access, self._copies())),
            "  }",
            "};",
        ]

    def copy_row(self, out: SectionList) -> None:
        span = self.access.spans[-1]
        out.loop(
            Loop(
                comment="Each thread copies its own vectors to its own slots of shared memory.",
                unroll=span.unroll,
                guard=self.access.guard,
                head=tuple(self._copies()),
                first=span.first,
                edge=self.access.edge_reads("{}_edge"),
            )
        )
        out.lines(*self.commit)

    def wait_line(self) -> str:
        return f"cp_async_wait<{'kStages - 1' if self.plan.is_staged else '0'}>();"

    def counters(self) -> list[str]:
        return ["int stage = 0;"] if self.plan.is_staged else []

    def next_stage(self) -> list[str]:
        return ["stage = (stage + 1) % kStages;"] if self.plan.is_staged else []
