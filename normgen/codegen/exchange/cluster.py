"""Blocks of a cluster share a row: warps exchange states through distributed shared memory (sm_90)."""

from __future__ import annotations

from normgen.codegen.exchange.exchange import STARTED, Exchange
from normgen.codegen.view import State


class Cluster(Exchange):
    """A cluster for each row: a cluster barrier around the exchange."""

    function = "reduce_cluster"
    frees_slots = True

    def slots(self, states: list[State]) -> tuple[str, ...]:
        return self.declare(states, "[kCluster * kWarps]")

    def announce(self) -> list[str]:
        return [f"cluster_arrive();  // {STARTED}"]

    def combine(self, state: State, *, is_first: bool) -> list[str]:
        variable = state.variable
        line = f"{variable} = {self.tree}<kWarps, kCluster>({variable}, {variable}_slots);"
        return ["cluster_wait();", line] if is_first else [line]


class ClusterWalk(Exchange):
    """Clusters that walk rows: an mbarrier counts the states that arrive, and two sets of slots take turns."""

    function = "exchange_cluster"
    frees_slots = True

    def slots(self, states: list[State]) -> tuple[str, ...]:
        full = [f"__shared__ unsigned long long {st.variable}_full[2];" for st in states]
        return (*self.declare(states, "[2][kCluster * kWarps]"), *full)

    def set_up(self, states: list[State]) -> list[str]:
        barriers = [f"{st.variable}_full + {i}" for st in states for i in range(2)]
        return [
            "unsigned trip = 0;",
            "if (threadIdx.x == 0) {",
            *(f"  mbarrier_init({barrier}, 1);" for barrier in barriers),
            "  mbarrier_cluster_fence();",
            "}",
            f"cluster_arrive();  // {STARTED}",
        ]

    def settle(self) -> list[str]:
        return ["cluster_wait();"]

    def combine(self, state: State, *, is_first: bool) -> list[str]:
        variable = state.variable
        places = f"{variable}_slots[trip % 2], &{variable}_full[trip % 2], trip / 2 % 2"
        return [f"{variable} = {self.tree}<kWarps, kCluster>({variable}, {places});"]

    def next_row(self) -> list[str]:
        return ["++trip;"]
