"""Several warps a row: shuffles within each, then every warp combines the warps' states from shared memory."""

from __future__ import annotations

from normgen.codegen.exchange.exchange import Exchange
from normgen.codegen.view import State


class Block(Exchange):
    """More than 32 threads a row, in one block."""

    function = "reduce_row"
    shares_slots = True
    frees_slots = True

    def constants(self) -> list[tuple[str, str, str]]:
        return [("kWarpsPerRow", "kThreadsPerRow / 32", "")]

    def slots(self, states: list[State]) -> tuple[str, ...]:
        twice = "[2]" if self.plan.double_slots else ""
        return self.declare(states, f"{twice}[{self.plan.schedule.rows_per_block}][kWarpsPerRow]")

    def set_up(self, states: list[State]) -> list[str]:
        return ["int parity = 0;"] if self.plan.double_slots else []

    def combine(self, state: State, *, is_first: bool) -> list[str]:
        slots = f"{state.variable}_slots[parity][slot]" if self.plan.double_slots else f"{state.variable}_slots[slot]"
        own_barrier = ", slot" if self.plan.row_barriers else ""
        return [f"{state.variable} = {self.tree}<kWarpsPerRow>({state.variable}, {slots}{own_barrier});"]

    def next_row(self) -> list[str]:
        return ["parity ^= 1;"] if self.plan.double_slots else []
