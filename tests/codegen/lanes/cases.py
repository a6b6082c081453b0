"""Problems of rows side by side, each with a schedule: every operation, both directions, all places, ragged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from normgen.codegen.module import Module
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule, changed
from normgen.spec.reader import load


@dataclass(frozen=True, kw_only=True)
class Case:
    """`beside` rows side by side of `shape` = [rows, cols]."""

    op: str
    shape: str
    beside: int
    knobs: str
    asked: dict[str, Any] = field(default_factory=dict)

    @property
    def problem(self) -> Problem:
        return problem_for(load(self.op), shape=self.shape, col_stride=self.beside, **self.asked)

    @property
    def schedule(self) -> Schedule:
        return changed(Schedule(), self.knobs)

    @property
    def module(self) -> Module:
        return emit(self.problem, self.schedule)


BACKWARD, F16, BF16 = {"direction": "backward"}, {"dtype": "f16"}, {"dtype": "bf16"}
HELD, SHARED, AGAIN = "hold=registers unroll=0", "hold=shared unroll=4", "hold=reload unroll=2"
CASES = {
    "held, lanes combine": Case(
        op="layernorm", shape="48x23", beside=12, knobs=f"threads_per_row=16 rows_per_block=8 vector=2 {HELD}"
    ),
    "a warp of parts": Case(op="softmax", shape="24x50", beside=4, knobs=f"threads_per_row=8 rows_per_block=4 {HELD}"),
    "one thread a row": Case(
        op="softmax", shape="40x13", beside=20, knobs=f"threads_per_row=1 rows_per_block=32 vector=4 {AGAIN}"
    ),
    "warps combine": Case(
        op="log_softmax", shape="49x19", beside=7, knobs=f"threads_per_row=4 rows_per_block=32 {SHARED}"
    ),
    "online": Case(
        op="softmax",
        shape="48x83",
        beside=24,
        knobs=f"threads_per_row=16 rows_per_block=8 vector=8 softmax=online {AGAIN}",
        asked=BF16,
    ),
    "sums of rows": Case(
        op="row_max_sum",
        shape="32x65",
        beside=16,
        knobs="threads_per_row=16 rows_per_block=4 vector=8 hold=reload unroll=8",
        asked=F16,
    ),
    "labels": Case(
        op="cross_entropy", shape="28x21", beside=14, knobs=f"threads_per_row=8 rows_per_block=16 vector=2 {HELD}"
    ),
    "labels, backward": Case(
        op="cross_entropy",
        shape="28x21",
        beside=7,
        knobs=f"threads_per_row=8 rows_per_block=16 {AGAIN}",
        asked=BACKWARD,
    ),
    "masks": Case(
        op="masked_softmax", shape="24x18", beside=12, knobs=f"threads_per_row=8 rows_per_block=4 vector=4 {HELD}"
    ),
    "random numbers": Case(
        op="dropout_add_rmsnorm", shape="24x10", beside=4, knobs=f"threads_per_row=2 rows_per_block=16 vector=4 {HELD}"
    ),
    "in place": Case(
        op="add_rmsnorm",
        shape="24x18",
        beside=4,
        knobs=f"threads_per_row=4 rows_per_block=8 vector=4 {SHARED}",
        asked={"in_place": {"h": "residual"}},
    ),
    "welford": Case(
        op="layernorm",
        shape="40x23",
        beside=5,
        knobs=f"threads_per_row=4 rows_per_block=16 variance=welford {AGAIN}",
    ),
    "guarded, lanes combine": Case(
        op="layernorm",
        shape="40x23",
        beside=10,
        knobs=f"threads_per_row=8 rows_per_block=8 vector=2 variance=guarded {AGAIN}",
    ),
    "guarded": Case(
        op="layernorm",
        shape="40x23",
        beside=10,
        knobs=f"threads_per_row=4 rows_per_block=32 variance=guarded {HELD}",
        asked=BF16,
    ),
    "corrected": Case(
        op="layernorm",
        shape="40x23",
        beside=10,
        knobs=f"threads_per_row=2 rows_per_block=16 vector=2 variance=corrected_two_pass {HELD}",
        asked=BF16,
    ),
    "gradients of parameters": Case(
        op="layernorm",
        shape="48x21",
        beside=6,
        knobs=f"threads_per_row=4 rows_per_block=32 vector=2 persistent=1 {HELD}",
        asked=BACKWARD,
    ),
    "gradients, one look": Case(
        op="rmsnorm",
        shape="70x19",
        beside=5,
        knobs=f"threads_per_row=8 rows_per_block=32 persistent=1 {SHARED}",
        asked=BACKWARD,
    ),
    "gradients are added": Case(
        op="rmsnorm",
        shape="36x19",
        beside=12,
        knobs=f"threads_per_row=4 rows_per_block=32 vector=4 persistent=1 {AGAIN}",
        asked=BACKWARD | BF16 | {"accumulate": True},
    ),
    "backward": Case(
        op="softmax",
        shape="48x20",
        beside=8,
        knobs=f"threads_per_row=8 rows_per_block=8 vector=4 {HELD}",
        asked=BACKWARD | F16,
    ),
}
