"""A tree in shared memory: every thread leaves its state there, and half of the rest combine in each step."""

from __future__ import annotations

from normgen.codegen.exchange.exchange import Exchange
from normgen.codegen.view import State
from normgen.schedule.plan import WARP, Plan


class Tree(Exchange):
    """Any number of threads a row."""

    function = "reduce_tree"
    shares_slots = True

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.frees_slots = plan.schedule.threads_per_row > WARP  # within a warp no block barrier is needed

    def slots(self, states: list[State]) -> tuple[str, ...]:
        return self.declare(states, f"[{self.plan.schedule.rows_per_block}][kThreadsPerRow]")

    def combine(self, state: State, *, is_first: bool) -> list[str]:
        variable = state.variable
        return [f"{variable} = {self.tree}<kThreadsPerRow>({variable}, {variable}_slots[slot]);"]
