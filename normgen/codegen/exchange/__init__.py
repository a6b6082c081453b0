"""How the threads of a row combine: one file for each technique, behind the protocol of `exchange.Exchange`."""

from __future__ import annotations

from normgen.codegen.exchange.cluster import ClusterWalk
from normgen.codegen.exchange.exchange import Exchange
from normgen.codegen.exchange.grid import Grid
from normgen.codegen.exchange.team import Team
from normgen.codegen.exchange.tree import Tree
from normgen.schedule import plan as planned
from normgen.schedule.plan import Plan

WAYS: dict[planned.Exchange, type[Exchange]] = {
    planned.Exchange.NONE: Exchange,
    planned.Exchange.LANES: Team,
    planned.Exchange.BLOCK: Team,
    planned.Exchange.TREE: Tree,
    planned.Exchange.COOPERATIVE_WARP: Team,
    planned.Exchange.COOPERATIVE_BLOCK: Team,
    planned.Exchange.CLUSTER: Team,
    planned.Exchange.CLUSTER_WALK: ClusterWalk,
    planned.Exchange.GRID: Grid,
}


def exchange_of(plan: Plan) -> Exchange:
    """The technique of a kernel."""
    return WAYS[plan.exchange](plan)
