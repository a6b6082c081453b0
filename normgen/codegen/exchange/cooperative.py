"""The same trees by the shuffles of CUDA's cooperative groups, which name only the lanes of a tile."""

from __future__ import annotations

from normgen.codegen.exchange.block import Block
from normgen.codegen.exchange.lanes import Lanes


class CooperativeLanes(Lanes):
    """Up to 32 threads a row."""

    function = "reduce_tile"


class CooperativeBlock(Block):
    """More than 32 threads a row."""

    function = "reduce_tiles"
