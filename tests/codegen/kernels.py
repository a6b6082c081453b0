"""Named kernels: one of every kind the emitter writes, for tests of the text itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

from normgen.codegen.module import Module
from normgen.device import target
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load


@dataclass(frozen=True, kw_only=True)
class Named:
    """A problem and a schedule that is legal for it."""

    problem: Problem
    schedule: Schedule

    def module(self) -> Module:
        assert refusal(self.problem, self.schedule, target("h200")) is None
        return emit(self.problem, self.schedule)


def named(op: str, shape: str, dtype: str, knobs: dict[str, object], **more: object) -> Named:
    return Named(problem=problem_for(load(op), shape=shape, dtype=dtype, **more), schedule=Schedule(**knobs))


IN_REGISTERS = {"hold": "registers", "unroll": 0}
KERNELS = {
    "thread_per_row": named(
        "row_sum", "4096x8", "f32", {"threads_per_row": 1, "rows_per_block": 128, "vector": 4, "hold": "reload"}
    ),
    "sub_warp_per_row": named(
        "softmax", "4096x60", "bf16", {"threads_per_row": 8, "rows_per_block": 16, "vector": 4, **IN_REGISTERS}
    ),
    "warp_per_row": named(
        "layernorm",
        "8x1024x768",
        "f32",
        {"threads_per_row": 32, "rows_per_block": 4, "vector": 4, "store": "streaming", **IN_REGISTERS},
    ),
    "block_per_row": named(
        "rmsnorm", "4096x4096", "bf16", {"threads_per_row": 256, "vector": 8, "params": "early", **IN_REGISTERS}
    ),
    "dependent_launch": named(
        "rmsnorm",
        "16x4096",
        "bf16",
        {"threads_per_row": 256, "vector": 8, "params": "early", "dependent_launch": "loads", **IN_REGISTERS},
        without=["rstd"],
        stable_parameters=True,
    ),
    "kept_values": named(
        "layernorm",
        "16384x1023",
        "bf16",
        {
            **{"threads_per_row": 32, "rows_per_block": 2, "vector": 4, "edges": "peel", "persistent": 8, "stages": 2},
            **{"keep": "values", "params": "packed", **IN_REGISTERS},
        },
    ),
    "groups_of_columns": named(
        "silu_mul_to_fp8_group",
        "4096x6144",
        "bf16",
        {"threads_per_row": 256, "parts": 3, "vector": 8, "arithmetic": "approximate", **IN_REGISTERS},
    ),
    "in_place": named(
        "rmsnorm",
        "4096x1024",
        "bf16",
        {"threads_per_row": 128, "vector": 8, "hold": "reload", "load": "evict_first"},
        without=["rstd"],
        in_place={"y": "x"},
    ),
    "shared_tree": named(
        "layernorm",
        "8x1024x768",
        "f32",
        {"threads_per_row": 256, "reduce_with": "shared_tree", "variance": "sum_of_squares"},
    ),
    "cooperative_groups": named(
        "layernorm",
        "8x1024x768",
        "f32",
        {"threads_per_row": 128, "reduce_with": "cooperative_groups", "vector": 2, "hold": "shared", "unroll": 1},
    ),
    "guarded": named(
        "layernorm",
        "8x1024x768",
        "bf16",
        {"threads_per_row": 16, "rows_per_block": 8, "vector": 8, "variance": "guarded", **IN_REGISTERS},
    ),
    "welford_masked": named(
        "layernorm", "5x123", "f16", {"threads_per_row": 32, "vector": 2, "edges": "masked", "variance": "welford"},
        pitch=124,
    ),
    "online_peeled_any_cols": named(
        "log_softmax",
        "16x1001",
        "bf16",
        {"threads_per_row": 128, "vector": 8, "edges": "peel", "softmax": "online", "load": "no_allocate"},
        any_cols=True,
        align=2,
    ),
    "backward_persistent": named(
        "layernorm",
        "8192x768",
        "bf16",
        {
            **{"threads_per_row": 32, "rows_per_block": 4, "vector": 8, "persistent": 2, "stages": 2},
            **{"params": "kept", "columns": "partials_two_kernels", **IN_REGISTERS},
        },
        direction="backward",
    ),
    "backward_clusters": named(
        "layernorm",
        "4096x4096",
        "bf16",
        {
            **{"threads_per_row": 128, "cluster": 2, "vector": 8, "persistent": 2, "stages": 2, "params": "kept"},
            **IN_REGISTERS,
        },
        direction="backward",
    ),
    "backward_last_tile": named(
        "rmsnorm",
        "8192x768",
        "f32",
        {
            **{"threads_per_row": 64, "vector": 4, "persistent": 4, "columns": "partials_last_tile"},
            **IN_REGISTERS,
        },
        direction="backward",
    ),
}  # fmt: skip


def has_row_barriers_in(text: str) -> bool:
    """Whether the rows of a block wait at a barrier each, by a kernel's text and the sizes of its Config."""
    least, team = re.search(r"kWarps >= (\d+)\) named_barrier\(", text), re.search(r"Team = Beside<(\d+)", text)
    return least is not None and team is not None and int(team[1]) >= 32 * int(least[1])
