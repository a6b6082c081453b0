"""How the threads of a row combine their states: what every technique offers."""

from __future__ import annotations

from normgen.codegen.module import Param
from normgen.codegen.reductions import State
from normgen.codegen.statements import Do, Let, Statement
from normgen.schedule.plan import Plan

STARTED = "a block may write to another only once that one has started"


class Exchange:
    """Threads that combine with nobody: a thread owns a row, or the program reduces no row.

    The other techniques override what they do. `frees_slots` says that all threads of a row pass a barrier in each
    exchange, `shuffles` that lanes exchange states by shuffles.
    """

    frees_slots = False
    shuffles = False

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def params(self) -> list[Param]:
        """Its parts of the workspace, whose zeroed part begins with those of the exchange."""
        return []

    def constants(self) -> list[Let]:
        return []

    def slots(self, states: list[State]) -> list[Statement]:
        """Shared memory."""
        return []

    def set_up(self, states: list[State]) -> list[Statement]:
        """Before the row loop."""
        return []

    def settle(self) -> list[Statement]:
        """Before the row loop, after everything else."""
        return []

    def announce(self) -> list[Statement]:
        """Within a row, before the first look."""
        return []

    def combine(self, state: State, *, is_first: bool) -> list[Statement]:
        """The thread's state becomes the row's."""
        return []

    def by_any(self, condition: str) -> str:
        """Whether the condition, which a row's threads agree on, holds for any row that takes part in this exchange."""
        return condition

    def next_row(self) -> list[Statement]:
        """At the end of a row."""
        return []

    def leave(self) -> list[Statement]:
        """After the row loop."""
        return []

    def declare(self, states: list[State], size: str) -> list[Statement]:
        """A state's slots for each row of a block: an array of `size`."""
        return [Do(f"__shared__ {st.type} {st.variable}_slots{size}") for st in states]
