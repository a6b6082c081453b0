"""Lanes of one warp, or of a part of it: shuffles alone."""

from __future__ import annotations

from normgen.codegen.exchange.exchange import Exchange
from normgen.codegen.view import State


class Lanes(Exchange):
    """Up to 32 threads a row."""

    function = "reduce_lanes"

    def combine(self, state: State, *, is_first: bool) -> list[str]:
        return [f"{state.variable} = {self.tree}<kThreadsPerRow>({state.variable});"]
