"""Several warps a row: shuffles within each, then every warp combines the warps' states from shared memory."""

from __future__ import annotations

from normgen.codegen.exchange.exchange import Exchange
from normgen.codegen.reductions import State
from normgen.codegen.statements import Do, Let, Statement, constant


class Block(Exchange):
    """More than 32 threads a row, in one block."""

    shuffles = True
    function = "reduce_row"
    frees_slots = True

    def constants(self) -> list[Let]:
        return [constant("kWarpsPerRow", "kThreadsPerRow / 32")]

    def slots(self, states: list[State]) -> list[Statement]:
        twice = "[2]" if self.plan.double_slots else ""
        rows = "[kRowsPerBlock]" if self.plan.idle_rows else ""
        return self.declare(states, f"{twice}{rows}[kWarpsPerRow]")

    def set_up(self, states: list[State]) -> list[Statement]:
        return [Do("int parity = 0")] if self.plan.double_slots else []

    def combine(self, state: State, *, is_first: bool) -> list[Statement]:
        slots = f"{state.variable}_slots"
        slots += "[parity]" if self.plan.double_slots else ""
        slots += "[slot]" if self.plan.idle_rows else ""
        tree, own = (f"{self.function}_beside", ", slot") if self.plan.idle_rows else (self.function, "")
        return [Do(f"{state.variable} = {tree}<kWarpsPerRow>({state.variable}, {slots}{own})")]

    def next_row(self) -> list[Statement]:
        return [Do("parity ^= 1")] if self.plan.double_slots else []
