"""Blocks of the grid share a row, as many as are resident: they exchange states through memory.

Where a cluster of 16 blocks reads a row of 4 M elements for as long as its 16 SMs can, all SMs read it here. The blocks
of a group walk rows together, so that a launch has no more blocks than are resident at a time: each waits for the
others (a cooperative launch, which the driver refuses where they are not).
"""

from __future__ import annotations

from normgen.codegen.exchange.exchange import Exchange
from normgen.codegen.module import Param, Source
from normgen.codegen.reductions import State
from normgen.codegen.statements import Comment, Do, Gap, Let, Set, Statement, constant, setting
from normgen.schedule.plan import TICKET_BYTES, Plan

ARRIVALS, STATES = "arrivals", "states"


class Grid(Exchange):
    """A counter and two sets of states for each group of blocks: library/exchange_grid.cuh."""

    shuffles = True
    frees_slots = True

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        assert plan.meeting is not None
        self.meeting = plan.meeting

    @property
    def behind(self) -> int:
        """Bytes of the workspace that all blocks share: counters, then those of sums over rows."""
        return self.meeting.fixed_bytes + (self.plan.sums.fixed_bytes if self.plan.sums else 0)

    def params(self) -> list[Param]:
        return [
            Param(name=ARRIVALS, ctype="unsigned*", source=Source.WORKSPACE),
            Param(name=STATES, ctype="float*", source=Source.WORKSPACE, offset=self.behind),
        ]

    def constants(self) -> list[Let]:
        summed = self.plan.sums.block_bytes // 4 if self.plan.sums else 0
        return [
            constant("kWarps", "kThreads / 32"),
            constant("kStateWords", str(self.meeting.words), "numbers of the largest state that blocks exchange"),
            setting("kSummedWords", summed, "numbers that a block leaves of its sums over rows, before all states"),
            constant("kCounterWords", str(TICKET_BYTES // 4), "from one group's counter to the next"),
        ]

    def slots(self, states: list[State]) -> list[Statement]:
        return self.declare(states, "[kWarps + 1]")

    def set_up(self, states: list[State]) -> list[Statement]:
        sets = f"{STATES} + static_cast<long long>(gridDim.x) * kSummedWords"
        return [
            Comment("The blocks of a group share rows; they are numbered by their parts."),
            Let("const int", "part", "blockIdx.x % kParts"),
            Let("const int", "group", "blockIdx.x / kParts"),
            Let("unsigned*", "counter", f"{ARRIVALS} + group * kCounterWords"),
            Let("float*", "sets", f"{sets} + group * 2 * kParts * kStateWords", "two sets of states"),
            Do("unsigned exchanges = 0"),
        ]

    def combine(self, state: State, *, is_first: bool) -> list[Statement]:
        variable = state.variable
        place = f"reinterpret_cast<{state.type}*>(sets + exchanges % 2 * kParts * kStateWords)"
        call = f"exchange_grid<kWarps, kParts>({variable}, {variable}_slots, {place}, counter, part, exchanges)"
        return [Set(variable, call), Do("++exchanges")]

    def leave(self) -> list[Statement]:
        return [Gap(), Do("leave_grid<kParts>(counter, part, exchanges)")]
