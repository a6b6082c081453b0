"""How the threads of a row combine: one file for each technique, behind the protocol of `exchange.Exchange`."""

from __future__ import annotations

from normgen.codegen.exchange.cluster import ClusterWalk
from normgen.codegen.exchange.exchange import Exchange
from normgen.codegen.exchange.grid import Grid
from normgen.codegen.exchange.team import Team
from normgen.codegen.exchange.tree import Tree
from normgen.schedule import plan as planned
from normgen.schedule.plan import Plan

WAYS: dict[planned.ExchangeWay, type[Exchange]] = {
    planned.ExchangeWay.NONE: Exchange,
    planned.ExchangeWay.LANES: Team,
    planned.ExchangeWay.BLOCK: Team,
    planned.ExchangeWay.TREE: Tree,
    planned.ExchangeWay.COOPERATIVE_WARP: Team,
    planned.ExchangeWay.COOPERATIVE_BLOCK: Team,
    planned.ExchangeWay.CLUSTER: Team,
    planned.ExchangeWay.CLUSTER_WALK: ClusterWalk,
    planned.ExchangeWay.GRID: Grid,
}


def exchange_of(plan: Plan) -> Exchange:
    """The technique of a kernel."""
    return WAYS[plan.exchange](plan)
