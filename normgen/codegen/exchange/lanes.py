"""Lanes of one warp, or of a part of it: shuffles alone."""

from __future__ import annotations

from normgen.codegen.exchange.exchange import Exchange
from normgen.codegen.reductions import State
from normgen.codegen.statements import Do, Statement


class Lanes(Exchange):
    """Up to 32 threads a row."""

    shuffles = True
    function = "reduce_lanes"

    def combine(self, state: State, *, is_first: bool) -> list[Statement]:
        return [Do(f"{state.variable} = {self.function}<kThreadsPerRow>({state.variable})")]
