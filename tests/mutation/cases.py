"""The kernels that are mutated: small problems under schedules that, together, use every technique of the emitter."""

from __future__ import annotations

from typing import Any

from tests.codegen.kernels import Named, named

HELD = {"hold": "registers", "unroll": 0}
AHEAD = {"persistent": 2, "stages": 2, "params": "kept", **HELD}
BULK_RING = {"hold": "shared", "copy": "bulk", "unroll": 1, "persistent": 2}
CP_ASYNC_RING = {"hold": "shared", "copy": "cp_async", "unroll": 1, "persistent": 2}


def forward(op: str, shape: str, dtype: str, knobs: dict[str, Any], **more: Any) -> Named:
    return named(op, shape, dtype, knobs, **more)


def backward(op: str, shape: str, dtype: str, knobs: dict[str, Any], **more: Any) -> Named:
    return named(op, shape, dtype, knobs, direction="backward", **more)


def team(threads_per_row: int, rows_per_block: int, vector: int, **knobs: Any) -> dict[str, Any]:
    return {"threads_per_row": threads_per_row, "rows_per_block": rows_per_block, "vector": vector, **knobs}


CASES: dict[str, Named] = {
    # who owns a row, and how its threads combine
    "thread_sum": forward("row_sum", "4096x24", "f32", team(1, 128, 4)),
    "lanes_softmax": forward("softmax", "4096x60", "bf16", team(8, 16, 4, **HELD)),
    "warp_layernorm": forward("layernorm", "4096x384", "f32", team(32, 4, 4, store="streaming", **HELD)),
    "block_rmsnorm": forward(
        "rmsnorm", "4096x1024", "bf16", team(64, 2, 8, params="early", **HELD), dtypes={"weight": "f32", "y": "f32"}
    ),
    "uneven_layernorm": forward("layernorm", "4096x384", "f32", team(96, 2, 4, **HELD)),
    "uneven_cluster": forward("layernorm", "4096x1536", "bf16", team(96, 1, 4, cluster=2, **HELD)),
    "tree_layernorm": forward("layernorm", "4096x320", "f32", team(64, 2, 2, reduce_with="shared_tree")),
    "groups_layernorm": forward(
        "layernorm", "4096x512", "f32", team(128, 1, 2, reduce_with="cooperative_groups", hold="shared", unroll=1)
    ),
    "short_to_int8": forward(
        "layernorm_to_int8", "4096x768", "bf16", team(96, 1, 4, reduce_with="short_chains", params="early", **HELD)
    ),
    "cluster_layernorm": forward("layernorm", "4096x1024", "bf16", team(64, 1, 4, cluster=2, **HELD)),
    "cluster_softmax_ring": forward(
        "softmax", "4096x1024", "bf16", team(32, 1, 8, cluster=2, softmax="online", stages=2, **BULK_RING)
    ),
    # how statistics are computed
    "welford_masked": forward(
        "layernorm", "4096x123", "f16", team(32, 1, 2, edges="masked", variance="welford"), pitch=124
    ),
    "corrected_block": forward(
        "layernorm", "4096x512", "f32", team(64, 1, 4, variance="corrected_two_pass", **HELD)
    ),
    "guarded_lanes": forward("layernorm", "4096x96", "f32", team(8, 4, 4, variance="guarded", **HELD)),
    "shifted_block": forward("layernorm", "4096x1024", "bf16", team(64, 1, 4, variance="shifted", **HELD)),
    "guarded_block": forward("layernorm", "4096x512", "bf16", team(64, 1, 4, variance="guarded", **HELD)),
    "corrected_cluster": forward(
        "layernorm", "4096x764", "f32", team(32, 1, 4, cluster=2, variance="corrected_two_pass", **HELD)
    ),
    "shifted_any_cols": forward(
        "layernorm", "4096x198", "f32", team(32, 4, 2, edges="masked", variance="shifted"), any_cols=True, pitch=200
    ),
    "left_out_statistics": forward(
        "layernorm", "4096x384", "bf16", team(32, 4, 4, statistics="left_out", blocks_per_sm=4, **HELD),
        without=["mean", "rstd"],
    ),
    "max_sum_hybrid": forward("row_max_sum", "4096x6144", "f32", team(32, 1, 4, hold="hybrid", unroll=1)),
    "approximate_softmax": forward("softmax", "4096x256", "f32", team(32, 2, 4, arithmetic="approximate", **HELD)),
    "groups_of_columns": forward(
        "silu_mul_to_fp8_group", "4096x512", "bf16", team(32, 1, 8, division="remainder", **HELD)
    ),
    # edges, lengths at run time, chained launches
    "peeled_any_cols": forward(
        "log_softmax", "4096x333", "bf16",
        team(64, 1, 8, edges="peel", softmax="online", load="no_allocate"), any_cols=True, align=2,
    ),
    "masked_any_cols": forward("rmsnorm", "4096x198", "bf16", team(32, 4, 4, edges="masked"), any_cols=True, pitch=200),
    "chained_rmsnorm": forward(
        "rmsnorm", "4096x1024", "bf16", team(128, 1, 8, params="early", dependent_launch="loads", **HELD),
        without=["rstd"], stable_parameters=True,
    ),
    "early_at_start": forward(
        "rmsnorm", "4096x512", "bf16",
        team(64, 1, 8, params="prefetched", dependent_launch="start", row_order="descending", **HELD),
        stable_parameters=True,
    ),
    # outputs that are exact in float32
    "exact_sum": forward("add_rmsnorm", "4096x256", "bf16", team(32, 2, 8, **HELD)),
    "exact_fp8": forward("quantize_to_fp8_group", "4096x256", "bf16", team(32, 2, 8, **HELD)),
    "exact_int8": forward(
        "quantize_to_int8_token", "4096x256", "f32", team(32, 2, 4, **HELD), without=["scale_ub"]
    ),
    # how rows arrive
    "ahead_layernorm": forward("layernorm", "4096x256", "f32", team(32, 2, 4, **AHEAD)),
    "kept_layernorm": forward(
        "layernorm", "4096x253", "bf16",
        team(32, 2, 4, keep="values", edges="peel", division="remainder", **AHEAD), align=2,
    ),
    "packed_rmsnorm": forward(
        "rmsnorm", "4096x512", "bf16", team(32, 2, 8, **(AHEAD | {"params": "packed", "row_order": "descending"}))
    ),
    "cp_async_layernorm": forward(
        "layernorm", "4096x256", "f32", team(32, 2, 4, stages=3, row_order="descending", **CP_ASYNC_RING)
    ),
    "cp_async_peel": forward(
        "softmax", "4096x259", "f32", team(32, 2, 4, edges="peel", stages=2, **CP_ASYNC_RING), align=4
    ),
    "bulk_rmsnorm": forward("rmsnorm", "4096x512", "bf16", team(32, 2, 8, stages=2, **BULK_RING)),
    # backward: how columns are summed
    "two_kernels": backward(
        "layernorm", "4096x384", "bf16", team(32, 2, 4, columns="partials_two_kernels", **AHEAD)
    ),
    "two_kernels_cluster": backward(
        "layernorm", "4096x1024", "bf16", team(64, 1, 8, cluster=2, dependent_launch="end", **AHEAD)
    ),
    "last_tile": backward(
        "rmsnorm", "4096x384", "f32", team(64, 1, 2, persistent=4, columns="partials_last_tile", **HELD)
    ),
    "register_atomic": backward(
        "layernorm", "4096x256", "f32", team(16, 4, 4, persistent=2, columns="register_atomic", **HELD)
    ),
    "shared_atomic": backward(
        "rmsnorm", "4096x320", "f32", team(32, 2, 2, persistent=2, columns="shared_atomic", **HELD)
    ),
    "atomic_peeled": backward(
        "layernorm", "4096x261", "f32", team(32, 2, 4, edges="peel", columns="atomic"), any_cols=True, align=4
    ),
    "atomic_in_order": backward(
        "layernorm", "4096x256", "f32", team(64, 1, 4, persistent=2, columns="atomic", **HELD), deterministic=True
    ),
    "early_partner": backward(
        "layernorm", "4096x384", "f32",
        team(32, 2, 4, persistent=2, columns="partials_two_kernels", dependent_launch="on", **HELD),
    ),
    "accumulate_masked": backward(
        "rmsnorm", "4096x198", "f16", team(32, 1, 4, edges="masked", persistent=2, **HELD), pitch=200, accumulate=True
    ),
    # backward: how rows arrive
    "bulk_backward": backward(
        "rmsnorm", "4096x512", "bf16",
        team(32, 2, 8, stages=3, **(BULK_RING | {"hold": "registers", "unroll": 0}), params="kept"),
    ),
    "cp_async_backward": backward(
        "layernorm", "4096x256", "f32", team(32, 2, 4, stages=2, **(CP_ASYNC_RING | {"unroll": 0}))
    ),
    "softmax_backward": backward("softmax", "4096x264", "f16", team(32, 4, 4, **HELD)),
}  # fmt: skip
