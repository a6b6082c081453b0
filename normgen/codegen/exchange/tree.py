"""A tree in shared memory: every thread leaves its state there, and half of the rest combine in each step."""

from __future__ import annotations

from normgen.codegen.exchange.exchange import Exchange
from normgen.codegen.reductions import State
from normgen.codegen.statements import Set, Statement
from normgen.schedule.plan import WARP, Plan


class Tree(Exchange):
    """Any number of threads a row."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.frees_slots = plan.schedule.threads_per_row > WARP  # within a warp no block barrier is needed

    def slots(self, states: list[State]) -> list[Statement]:
        rows = "[kRowsPerBlock]" if self.plan.idle_rows else ""
        return self.declare(states, f"{rows}[kThreadsPerRow]")

    def combine(self, state: State, *, is_first: bool) -> list[Statement]:
        slots = f"{state.variable}_slots{'[block_row]' if self.plan.idle_rows else ''}"
        return [Set(state.variable, f"reduce_tree<kThreadsPerRow>({state.variable}, {slots})")]
