"""Blocks of a cluster share a row: warps exchange states through distributed shared memory (sm_90)."""

from __future__ import annotations

from normgen.codegen.exchange.exchange import STARTED, Exchange
from normgen.codegen.reductions import State
from normgen.codegen.statements import Do, If, Set, Statement, loop


class ClusterWalk(Exchange):
    """Clusters that walk rows: an mbarrier counts the states that arrive, and two sets of slots take turns."""

    shuffles = True
    frees_slots = True

    def slots(self, states: list[State]) -> list[Statement]:
        full = [Do(f"__shared__ unsigned long long {st.variable}_full[2]") for st in states]
        return [*self.declare(states, "[2][kCluster * kWarps]"), *full]

    def set_up(self, states: list[State]) -> list[Statement]:
        barriers = [loop("i", "2", [Do(f"mbarrier_init(&{st.variable}_full[i], 1)")]) for st in states]
        return [
            Do("unsigned trip = 0"),
            If("threadIdx.x == 0", (*barriers, Do("mbarrier_cluster_fence()"))),
            Do("cluster_arrive()", STARTED),
        ]

    def settle(self) -> list[Statement]:
        return [Do("cluster_wait()")]

    def combine(self, state: State, *, is_first: bool) -> list[Statement]:
        variable = state.variable
        slots = f"{variable}_slots, {variable}_full"
        return [Set(variable, f"exchange_cluster<kWarps, kCluster>({variable}, {slots}, trip)")]

    def next_row(self) -> list[Statement]:
        return [Do("++trip")]
