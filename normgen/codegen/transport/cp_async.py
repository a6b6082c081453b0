"""cp.async: a thread copies its own vectors to its own slots; waiting for its copies is all it needs."""

from __future__ import annotations

from normgen.codegen.access import Access
from normgen.codegen.statements import Comment, Do, Let, Set, Statement, function
from normgen.codegen.transport.ring import fetch_parameters
from normgen.codegen.transport.transport import Slots, fetched
from normgen.codegen.walk import Walk


class CpAsync:
    """copy = cp_async."""

    elected: str = ""
    commit: tuple[Statement, ...] = (Do("cp_async_commit()"),)
    proves_arrival: bool = False

    def __init__(self, access: Access) -> None:
        self.access = access
        self.plan = access.plan
        self.slots = Slots(access)

    def constants(self) -> list[Let]:
        return []

    def shared(self) -> list[Statement]:
        return []

    def set_up(self) -> list[Statement]:
        return []

    def _copies(self) -> list[Statement]:
        """The copies of one step."""
        at = self.access.vector_site.place
        return [Do(f"copy_async<kVector>({self.slots.of(ld.name)}, {ld.name}_row + {at})") for ld in self.plan.held]

    def fetch(self) -> list[Statement]:
        body = [*fetched(self.access), *Walk(head=self._copies()).statements(self.access)]
        return [
            Comment("Each thread copies its own vectors to its own slots, so that no barrier is needed to read them."),
            function("fetch", fetch_parameters(self.access), body),
        ]

    def copy_row(self) -> list[Statement]:
        copies = Walk(
            comment="Each thread copies its own vectors to its own slots of shared memory.",
            head=self._copies(),
            edge=self.access.edge_reads("{}_edge"),
            span=self.access.spans[-1],
        )
        return [*copies.statements(self.access), *self.commit]

    def wait(self) -> list[Statement]:
        return [Do(f"cp_async_wait<{'kStages - 1' if self.plan.is_staged else '0'}>()")]

    def counters(self) -> list[Statement]:
        return [Do("int stage = 0")] if self.plan.is_staged else []

    def next_stage(self) -> list[Statement]:
        return [Set("stage", "(stage + 1) % kStages")] if self.plan.is_staged else []
