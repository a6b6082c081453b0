"""Lanes of one warp, or of a part of it: shuffles alone."""

from __future__ import annotations

from normgen.codegen.exchange.exchange import Exchange
from normgen.codegen.reductions import State
from normgen.codegen.statements import Do, Statement
from normgen.schedule.plan import WARP


class Lanes(Exchange):
    """Up to 32 threads a row."""

    shuffles = True
    function = "reduce_lanes"

    def by_any(self, condition: str) -> str:
        shares_warp = self.plan.schedule.threads_per_row < WARP
        return f"__any_sync(0xffffffffu, {condition})" if shares_warp else condition

    def combine(self, state: State, *, is_first: bool) -> list[Statement]:
        return [Do(f"{state.variable} = {self.function}<kThreadsPerRow>({state.variable})")]
