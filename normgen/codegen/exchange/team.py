"""Teams: the threads that share a row, as a type of the device library that Config names.

Lanes of a warp, a block, several warps of a block and the blocks of a cluster run one text.
"""

from __future__ import annotations

from normgen.codegen.exchange.exchange import Exchange
from normgen.codegen.reductions import State
from normgen.codegen.statements import Do, Let, Set, Statement, TypeSetting, constant, type_setting
from normgen.schedule.plan import ExchangeWay as Way
from normgen.schedule.plan import Plan

COOPERATIVE = (Way.COOPERATIVE_WARP, Way.COOPERATIVE_BLOCK)


def team_setting(plan: Plan) -> TypeSetting:
    """The team of a kernel's Config; `Threads` where its threads combine in no way of the library's teams."""
    s, way = plan.schedule, plan.exchange
    sizes = [s.threads_per_row, s.rows_per_block]
    kind = "Threads"
    reads = s.reduce_with.is_short
    if way is Way.CLUSTER:
        kind, sizes = "BroadcastCluster" if reads else "ClusterTeam", [s.cluster, s.threads]
    elif reads and way is Way.BLOCK:
        kind, sizes = "BroadcastBlock", sizes[:1]
    elif way in (Way.LANES, Way.COOPERATIVE_WARP):
        kind = "Lanes"
    elif way in (Way.BLOCK, Way.COOPERATIVE_BLOCK):
        kind, sizes = ("Beside", sizes) if plan.idle_rows else ("Block", sizes[:1])
    named = ["OwnTile"] if way in COOPERATIVE else []
    arguments = [*map(str, sizes), *named]
    return type_setting("Team", f"{kind}<{', '.join(arguments)}>", _members(plan, kind == "Lanes", named))


def _members(plan: Plan, is_lanes: bool, named: list[str]) -> dict[str, str]:
    """What the functions of a team are, as its type says (library/threads.cuh, lanes.cuh, cluster_team.cuh)."""
    s = plan.schedule
    in_cluster = plan.exchange is Way.CLUSTER
    is_alone = s.rows_per_block == 1
    found = {
        "Team::kSize": str(s.cluster * s.threads if in_cluster else s.threads_per_row),
        "Team::kRows": str(s.rows_per_block),
        "Team::row_thread": "threadIdx.x" if is_alone else "threadIdx.x % kThreadsPerRow",
        "Team::block_row": "0" if is_alone else "threadIdx.x / kThreadsPerRow",
        "Team::tile": f"blockIdx.x / {s.cluster}" if in_cluster else "blockIdx.x",
        "Team::announce": "cluster_arrive_relaxed()" if in_cluster else "",
        "Team::meet": "cluster_wait()" if in_cluster else "",
    }
    if in_cluster:
        found["Team::row_thread"] = f"cluster_rank() * {s.threads} + threadIdx.x"
    if is_alone:
        found["Team::row"] = "{0}"
    if is_lanes:
        found["Team::reduce"] = f"reduce_lanes<{', '.join(['kThreadsPerRow', *named])}>({{0}})"
        found["Team::template Slots"] = ""
    return found


def team_constants(plan: Plan) -> list[Let]:
    return [
        team_setting(plan),
        constant("kThreadsPerRow", "Team::kSize"),
        constant("kRowsPerBlock", "Team::kRows"),
    ]


class Team(Exchange):
    """A way to combine that is a type of the library."""

    shuffles = True

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.frees_slots = plan.exchange not in (Way.LANES, Way.COOPERATIVE_WARP)

    def slots(self, states: list[State]) -> list[Statement]:
        twice = "[2]" if self.plan.double_slots else ""
        return [Do(f"__shared__ typename Team::template Slots<{st.type}> {st.variable}_slots{twice}") for st in states]

    def set_up(self, states: list[State]) -> list[Statement]:
        return [Do("int parity = 0")] if self.plan.double_slots else []

    def announce(self) -> list[Statement]:
        return [] if self.plan.loops_rows else [Do("Team::announce()")]

    def combine(self, state: State, *, is_first: bool) -> list[Statement]:
        slots = f"{state.variable}_slots{'[parity]' if self.plan.double_slots else ''}"
        meet = [Do("Team::meet()")] if is_first and not self.plan.loops_rows else []
        return [*meet, Set(state.variable, f"Team::reduce({state.variable}, {slots})")]

    def by_any(self, condition: str) -> str:
        return f"kThreadsPerRow < 32 ? __any_sync(0xffffffffu, {condition}) : {condition}"

    def next_row(self) -> list[Statement]:
        return [Do("parity ^= 1")] if self.plan.double_slots else []
