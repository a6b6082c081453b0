"""The same trees by CUDA's cooperative groups."""

from __future__ import annotations

from normgen.codegen.exchange.block import Block
from normgen.codegen.exchange.lanes import Lanes


class CooperativeLanes(Lanes):
    """Up to 32 threads a row."""

    function = "reduce_tile"
    shuffles = False


class CooperativeBlock(Block):
    """More than 32 threads a row."""

    function = "reduce_tiles"
    shuffles = False
