"""How the threads of a row combine their states: what every technique offers."""

from __future__ import annotations

from normgen.codegen.view import State
from normgen.schedule.plan import UNEVEN, Plan

STARTED = "a block may write to another only once that one has started"


class Exchange:
    """Threads that combine with nobody: a thread owns a row, or the program reduces no row.

    The other techniques override what they do. `function` is the device library's tree, `shares_slots` says that a
    thread must know which row of its block is its own, `frees_slots` that all threads of a row pass a barrier in each
    exchange.
    """

    function = ""
    shares_slots = False
    frees_slots = False
    headers: tuple[str, ...] = ()  # of CUDA, that its functions need

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def constants(self) -> list[tuple[str, str, str]]:
        return []

    def slots(self, states: list[State]) -> tuple[str, ...]:
        """Shared memory."""
        return ()

    def set_up(self, states: list[State]) -> list[str]:
        """Before the row loop."""
        return []

    def settle(self) -> list[str]:
        """Before the row loop, after everything else."""
        return []

    def announce(self) -> list[str]:
        """Within a row, before the first look."""
        return []

    def combine(self, state: State, *, is_first: bool) -> list[str]:
        """The thread's state becomes the row's."""
        return []

    def next_row(self) -> list[str]:
        """At the end of a row."""
        return []

    @property
    def tree(self) -> str:
        """The device library's function that combines states, in its form for their number."""
        return self.function.replace("_", f"_{UNEVEN}", 1) if self.plan.is_uneven else self.function

    def declare(self, states: list[State], size: str) -> tuple[str, ...]:
        return tuple(f"__shared__ {st.type} {st.variable}_slots{size};" for st in states)
