"""How the threads of a row combine: one file for each technique, behind the protocol of `exchange.Exchange`."""

from __future__ import annotations

from normgen.codegen.exchange.block import Block
from normgen.codegen.exchange.cluster import Cluster, ClusterWalk
from normgen.codegen.exchange.cooperative import CooperativeBlock, CooperativeLanes
from normgen.codegen.exchange.exchange import Exchange
from normgen.codegen.exchange.lanes import Lanes
from normgen.codegen.exchange.tree import Tree
from normgen.schedule import plan as planned
from normgen.schedule.plan import Plan

WAYS: dict[planned.Exchange, type[Exchange]] = {
    planned.Exchange.NONE: Exchange,
    planned.Exchange.LANES: Lanes,
    planned.Exchange.BLOCK: Block,
    planned.Exchange.TREE: Tree,
    planned.Exchange.COOPERATIVE_WARP: CooperativeLanes,
    planned.Exchange.COOPERATIVE_BLOCK: CooperativeBlock,
    planned.Exchange.CLUSTER: Cluster,
    planned.Exchange.CLUSTER_WALK: ClusterWalk,
}


def exchange_of(plan: Plan) -> Exchange:
    """The technique of a kernel."""
    return WAYS[plan.exchange](plan)
