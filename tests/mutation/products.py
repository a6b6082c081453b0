"""Wrong lines of products of matrices: of the tiles themselves, and of what a caller may vary beside them.

Their kernels are changed by these classes alone.
"""

from __future__ import annotations

from normgen.dtypes import F32
from tests.codegen.kernels import Named, named
from tests.mutation.classes import MutationClass
from tests.mutation.varied import READ, scalar

SMALL: dict[str, object] = {"tile_m": 16, "tile_n": 16, "tile_k": 8, "thread_m": 2, "thread_n": 1, "vector": 1}
TILES: dict[str, object] = {**SMALL, "hold": "shared", "stages": 2}
ONE_SLOT: dict[str, object] = {**SMALL, "hold": "shared", "stages": 1}
AHEAD: dict[str, object] = {**ONE_SLOT, "copy": "cp_async", "stages": 3}
RELOAD: dict[str, object] = {**SMALL, "hold": "reload"}
PIECES: dict[str, object] = {**ONE_SLOT, "tile_m": 64, "thread_m": 8, "tile_n": 32, "thread_n": 8}

PRODUCT_CASES: dict[str, Named] = {
    "linear_copied": named("linear", "96x40", "f32", AHEAD, inner=21),
    "linear_any_cols": named("linear", "96x40", "f32", PIECES, inner=21, any_cols=True),
    "linear_dx": named(
        "linear", "96x40", "bf16", {**TILES, "tile_k": 16}, inner=21, direction="backward", gradients=["x"]
    ),
    "linear_dw": named("linear", "96x40", "f32", TILES, inner=21, direction="backward", gradients=["w"]),
    "gelu": named("linear_bias_gelu", "96x40", "f32", TILES, inner=21),
    "gelu_bf16": named("linear_bias_gelu", "96x40", "bf16", RELOAD, inner=21),
    "swiglu": named("linear_swiglu", "96x40", "f32", ONE_SLOT, inner=21),
    "swiglu_copied": named("linear_swiglu", "96x40", "f32", AHEAD, inner=21),
    "bmm_dx": named("bmm", "3x30x40", "f32", {**TILES, "tile_k": 16}, inner=21, direction="backward", gradients=["x"]),
    "bmm_dw": named("bmm", "3x30x40", "f32", AHEAD, inner=21, direction="backward", gradients=["w"]),
    "masked_v_online": named("masked_softmax_v", "3x30x40", "f32", {**ONE_SLOT, "softmax": "online"}, inner=21),
    "causal_v_online": named(
        "causal_softmax_v", "3x30x40", "bf16", {**PIECES, "softmax": "online"}, inner=21, any_cols=True
    ),
    "softmax_v_any_cols": named("softmax_v", "3x30x40", "f32", PIECES, inner=21, any_cols=True),
    "norm_linear": named("rmsnorm_linear", "96x40", "f32", TILES, inner=21),
    "norm_linear_copied": named("rmsnorm_linear", "96x40", "f32", AHEAD, inner=21),
    "norm_linear_bf16": named("rmsnorm_linear", "96x40", "bf16", RELOAD, inner=21),
    "linear_rms": named("linear_add_rms", "96x40", "f32", TILES, inner=21),
    "linear_rms_bf16": named("linear_add_rms", "96x40", "bf16", RELOAD, inner=21),
    "linear_rms_pieces": named("linear_add_rms", "96x40", "f32", PIECES, inner=21),
    "linear_residual": named("linear_add", "96x40", "f32", TILES, inner=21),
    # A matrix for each batch of rows, and sides that wait for their rows.
    "batches": named("bmm", "3x30x40", "f32", TILES, inner=21),
    "batches_copied": named("bmm", "3x30x40", "f32", AHEAD, inner=21),
    "batches_bf16": named("bmm", "3x30x40", "bf16", RELOAD, inner=21),
    "batches_any_cols": named("bmm", "3x30x40", "f32", PIECES, inner=21, any_cols=True),
    "softmax_v_online": named("softmax_v", "3x30x40", "f32", {**TILES, "softmax": "online"}, inner=21),
    "softmax_v_ahead": named("softmax_v", "3x30x40", "f32", AHEAD, inner=21),
    "masked_v_bf16": named("masked_softmax_v", "3x30x40", "bf16", TILES, inner=21),
    "causal_v_reload": named("causal_softmax_v", "3x30x40", "f32", RELOAD, inner=21),
}
PARAMETER = r"(const float (?:bias|weight)_\w+ = )([^;]*element\([^;]*);"
RESIDUAL = r"(const float residual_\w+ = )(element\([^;]*\));"
SIDE = r"(const float (?:x|w|w_gate|w_up|dy)_i = )([^;]*element\([^;]*);"
GELU = r"0\.5f \* z_e \* \(erff\([^()]*\) \+ 1\.0f\)"


def has_one_product(kernel: Named) -> bool:
    """Of the product of two a tiny row leaves something only where both matrices are huge."""
    return kernel.problem.spec.name != "linear_swiglu"


C = MutationClass
PRODUCTS: tuple[MutationClass, ...] = (
    # Tiles.
    C("tile_barrier", "a barrier is left out", r"__syncthreads\(\);", ""),
    C("tile_edge_m", "no edge of m where a side is read", r"m0 \+ m < rows(_end)?", "true"),
    C("tile_edge_n", "no edge of n where a side is read", r"\(kWholeN \|\| n0 \+ n < kCols\)|n0 \+ n < cols", "true"),
    C(
        "tile_edge_k",
        "no edge of k where a side is read",
        r"\(kWholeK \|\| k0 \+ k < (kInner|kCols)\)|k0 \+ k < (inner|rows(_end)?)",
        "true",
    ),
    C("tile_edge_one_more", "an edge one further on", r"\b(k0 \+ k|n0 \+ n|m0 \+ m) < (\w+)(?=[ )])", r"\1 < \2 + 1"),
    C("tile_edge_one_less", "an edge one before", r"\b(k0 \+ k|n0 \+ n|m0 \+ m) < (\w+)(?=[ )])", r"\1 < \2 - 1"),
    C("tile_result_edge_m", "results behind the last line of m", r"if \(m < (rows(_end)?|kInner|inner)\)", "if (true)"),
    C("tile_result_edge_n", "results behind the last line of n", r"if \((kWholeN \|\| )?n < \w+\)", "if (true)"),
    C(
        "tile_fill",
        "a fill of both sides that counts",
        r"(?s)(filled<\w+, kVector>\()0\.0f(\).*filled<\w+, kVector>\()0\.0f",
        r"\g<1>1.0f\g<2>1.0f",
    ),
    C(
        "tile_reload_fill",
        "an edge of a side that each thread reads",
        r"const bool inside = [^;]*(rows(_end)?|kCols);",
        "const bool inside = true;",
    ),
    C("tile_next", "the first tile again", r"fetch\(k0 \+ kTileK\)", "fetch(k0)"),
    C("tile_last", "the last tile is left out", r"(\w+) - k0 > kTileK\)", r"\1 - k0 > 2 * kTileK)"),
    C("tile_stage", "a stage that does not move", r"stage \+ 1 < kStages \? stage \+ 1 : 0", "stage"),
    C("tile_stage_ahead", "one slot too few in flight", r"cp_async_wait<kStages - 2>", "cp_async_wait<kStages - 1>"),
    C("tile_stage_overwritten", "the slot that is read is filled", r"stage > 0 \? stage - 1 : kStages - 1", "stage"),
    C("tile_commit", "a group of copies without an end", r"cp_async_commit\(\);", ""),
    C(
        "tile_swap_threads",
        "a thread's place by the other side",
        r"lane / (\(2 \* |2 % )kLanesN",
        r"lane / \1kLanesM",
    ),
    C(
        "tile_swap_tm_tn",
        "a piece of the other axis",
        r"kPitch(M|N) \+ (tm|tn) \* kPiece[MN], ",
        lambda m: m[0].replace("tm", "t_").replace("tn", "tm").replace("t_", "tn"),
    ),
    C(
        "tile_swap_blocks",
        "a block's place by the other axis",
        r"blockIdx\.x (/|%) blocks_n",
        lambda m: f"blockIdx.x {'%' if m[1] == '/' else '/'} blocks_n",
    ),
    C(
        "tile_pieces",
        "pieces that lie side by side",
        r"kPieceM \* kApartM \+",
        "kPieceM * kPieceM +",
        lambda kernel: kernel.schedule.thread_m > 4,
    ),
    C("tile_slot_line", "a line of a slot without its gap", r"\* kPitch(M|N) \+ (m|n)\]", r"* kTile\1 + \2]"),
    C(
        "tile_slot_place",
        "the place in a slot is that of the next vector",
        r"\(stage \* kTile([KMN]) \+ ([kmn])\)",
        r"(stage * kTile\1 + \2 + 1)",
    ),
    C(
        "tile_line",
        "a line of another length",
        r"(vector|threadIdx\.x) / kLine(M|N) \+",
        lambda m: f"{m[1]} / kLine{'N' if m[2] == 'M' else 'M'} +",
    ),
    C("tile_pitch", "lines that lie side by side", r"\* (x|w|dy)_pitch", r"* kTileK"),
    C("tile_result_pitch", "lines of the result side by side", r"\* (y|dx|dw)_pitch", r"* kTileN"),
    C(
        "tile_axis",
        "the wrong axis in an address",
        r"(?<![\w)] \* )(\(m0 \+ m\)|\(k0 \+ k\)|\(n0 \+ n\)|\b[mkn]) \* (\w+_pitch) \+ ([\w+ ]+?)(?=\)| :|,)",
        lambda m: f"({m[3]}) * {m[2]} + {m[1]}",
    ),
    C(
        "tile_product",
        "the product of the last two",
        r"fmaf\((\w+\[i\](?:\[e\])?), (\w+\[[je]\]), (\w+)\[i\]\[j\]\)",
        r"(\1 * \2)",
    ),
    C("tile_one_product", "terms of one line", r"fmaf\((\w+)\[i\]((?:\[e\])?),", r"fmaf(\1[0]\2,"),
    C("tile_other_sum", "the sum of another column", r"_sum\[i\]\[j \+ e\]", "_sum[i][0]"),
    C("tile_rider_edge", "statistics by every block of columns", r"n0 == 0 && tn == 0", "tn == 1"),
    C("tile_rider_dropped", "one part of a statistic", r"line < kTileK / kVector", "line < kTileK / kVector - 1"),
    C("tile_rider_twice", "squares of the scaled", r"\+= x_i \* x_i", "+= x_i * weight_i"),
    C("tile_rider_weight", "the scale is left out", r"x_i \* weight_i", "x_i"),
    # A matrix for each batch of rows, whose last one may be shorter.
    C("batch_matrix", "the matrix of the first batch", r"<long long>\(batch\) \*", "<long long>(0) *"),
    C("batch_end", "a batch that ends with the last row", r"rows_begin \+ min\([^;]*\);", "rows;"),
    C("batch_last", "a last batch as long as the others", r"min\(rows - rows_begin, (rows_per_batch)\)", r"\1"),
    C("batch_begin", "all batches begin with the first row", r"rows_begin \+ blockIdx", "blockIdx"),
    C("batch_terms", "terms from the first row on", r"(k = |k0 = )rows_begin", r"\g<1>0"),
    C("batch_tile", "a tile's number among those of all batches", r"blocks_n % blocks_m \*", "blocks_n *"),
    C("batch_number", "neighbours in the grid are of other batches", r"/ blocks_n / blocks_m", "% blocks_m"),
    # A softmax of the left side.
    C("max_ahead_lane", "a maximum of half a warp", r"lanes = 16;", "lanes = 8;"),
    C(
        "max_ahead_share",
        "a maximum of one vector a lane",
        r"k < (kInner|inner); k \+= 32 \*",
        r"k < 32 && k < \1; k += 32 *",
    ),
    C("max_ahead_line", "the maximum of the next line", r"_found\[m\]", "_found[(m + 1) % kTileM]"),
    C("max_start", "a maximum of at least 0", r"(_max_own\[step\] = )-3\.4\d*e\+38f", r"\g<1>0.0f"),
    C("max_fill", "a maximum of what fills a tile", r"if \(inside_m\[step\]\) \{", "if (true) {"),
    C("max_lanes", "a maximum of half a line's threads", r"lanes < kLineM;", "lanes < kLineM / 2;"),
    C("max_of_tile", "the maximum of a tile alone", r"_seen = row_max_own\[step\];", "_seen = -3.4e+38f;"),
    C("max_sum_stays", "a sum about an old maximum", r"(row_sum_own\[step\]) \*= row_max_moved;", ""),
    C("max_result_stays", "a result about an old maximum", r"_sum\[i\]\[j\] \*= row_max_moved;", "_sum[i][j] *= 1.0f;"),
    C("max_moves_little", "a result that moves only by much", r"_moved != 1\.0f", "_moved < 0.5f"),
    C("max_moves_first", "the first line's move for all of a thread's", r"= moved\[own_m\(i\)\]", "= moved[own_m(0)]"),
    # Reductions of the result.
    C("result_own_place", "a part in another line", r"\[tn \* kTileM \+ own_m\(i\)\] =", "[tn * kTileM + i] ="),
    C("result_own_thread", "a part in another's place", r"\[tn \* (kTileM \+ own_m\(i\)\] =)", r"[tm * \1"),
    C("result_one_part", "the first part of a line, again", r"\[part \* kTileM \+ line\]", "[line]"),
    C("result_parts", "a part less", r"part < kTileN / kThreadN", "part < kTileN / kThreadN - 1"),
    C(
        "result_place",
        "all blocks leave theirs in one place",
        r"long>\(blockIdx\.x % blocks_n\) \* rows",
        "long>(0) * rows",
    ),
    C("result_tiles", "a tile less", r"tile < blocks_n", "tile < blocks_n - 1"),
    C("result_one_tile", "the first tile, again", r"long>\(tile\) \* rows", "long>(0) * rows"),
    C("result_first", "the first block does it", r"takes_last_ticket\(ticket, is_last\)", "blockIdx.x == 0"),
    C("result_ticket", "a ticket that nobody takes back", r"\*ticket = 0;", "*ticket += 0;"),
    C("result_row", "the statistic of the next row", r"rstd \+ m, rstd_m", "rstd + (m + 1) % rows, rstd_m"),
    C("result_mean", "a mean over what is summed", r"/ kCols \+ eps", "/ kInner + eps"),
    C("result_squares", "magnitudes for squares", r"\+= h_e \* h_e", "+= fabsf(h_e)"),
    # What a caller varies.
    C("eps_of_norm_default", "a scalar's default in its place", READ, scalar("{1}")),
    C("eps_of_norm_doubled", "twice a scalar", READ, scalar("(2.0f * {0})")),
    C("eps_of_norm_at_most_1", "a scalar that is cut at 1", READ, scalar("fminf({0}, 1.0f)")),
    C("eps_of_norm_left_out", "no scalar", READ, scalar("0.0f")),
    C("inner_mean", "a mean over the columns", r"/ kInner \+ eps", "/ kCols + eps"),
    C("side_absolute", "a side without its sign", SIDE, r"\1fabsf(\2);"),
    C("side_clamped", "a side is cut where it is large", SIDE, r"\1(fabsf(\2) > 16.0f ? 16.0f : \2);"),
    C("side_cut_far", "a side is cut where it is very large", SIDE, r"\1(fabsf(\2) > 1e6f ? 1e6f : \2);"),
    C("side_infinite", "a side without infinities", SIDE, r"\1fminf(fmaxf(\2, -3e38f), 3e38f);"),
    C("side_without_nan", "a side without NaN", SIDE, r"\1((\2) == (\2) ? (\2) : 0.0f);"),
    C(
        "side_flushed",
        "a side that is 0 where it is tiny",
        SIDE,
        r"\1(fabsf(\2) < 1e-30f ? 0.0f : \2);",
        has_one_product,
    ),
    C("side_zero_is_one", "0 of a side is 1", SIDE, r"\1((\2) == 0.0f ? 1.0f : \2);"),
    C(
        "side_of_bf16",
        "a side rounded as bf16",
        SIDE,
        r"\1__uint_as_float(__float_as_uint(\2) & 0xffff0000u);",
        lambda kernel: kernel.problem.dtype is F32,
    ),
    C("bias_absolute", "a bias without its sign", PARAMETER, r"\1fabsf(\2);"),
    C("bias_positive", "a bias is not negative", PARAMETER, r"\1fmaxf(\2, 0.0f);"),
    C("bias_zero_is_one", "0 of a bias is 1", PARAMETER, r"\1((\2) == 0.0f ? 1.0f : (\2));"),
    C("bias_one_is_zero", "1 of a bias is 0", PARAMETER, r"\1((\2) == 1.0f ? 0.0f : (\2));"),
    C("bias_clamped", "a bias is cut where it is large", PARAMETER, r"\1fminf(fmaxf(\2, -2.0f), 2.0f);"),
    C("bias_infinite", "a bias without infinities", PARAMETER, r"\1fminf(fmaxf(\2, -3e38f), 3e38f);"),
    C("bias_left_out", "no bias", PARAMETER, r"\g<1>0.0f;"),
    C("residual_absolute", "a residual without its sign", RESIDUAL, r"\1fabsf(\2);"),
    C("residual_clamped", "a residual is cut where it is large", RESIDUAL, r"\1fminf(fmaxf(\2, -8.0f), 8.0f);"),
    C(
        "residual_cut_far",
        "a residual is cut where it is very large",
        RESIDUAL,
        r"\1fminf(fmaxf(\2, -1000.0f), 1000.0f);",
    ),
    C("residual_zero_is_one", "0 of a residual is 1", RESIDUAL, r"\1((\2) == 0.0f ? 1.0f : (\2));"),
    C("residual_one_is_zero", "1 of a residual is 0", RESIDUAL, r"\1((\2) == 1.0f ? 0.0f : (\2));"),
    C("residual_without_nan", "a residual without NaN", RESIDUAL, r"\1((\2) == (\2) ? (\2) : 0.0f);"),
    C(
        "gelu_is_relu_far",
        "the positive part where it is large",
        GELU,
        r"(fabsf(z_e) > 4.0f ? fmaxf(z_e, 0.0f) : \g<0>)",
    ),
    C("gelu_is_relu", "the positive part", GELU, r"(fabsf(z_e) > 2.0f ? fmaxf(z_e, 0.0f) : \g<0>)"),
    C(
        "gelu_of_tanh",
        "the approximation by tanh",
        GELU,
        "(0.5f * z_e * (tanhf(0.7978845608f * (z_e + 0.044715f * z_e * z_e * z_e)) + 1.0f))",
    ),
    C(
        "gelu_slope",
        "its slope at 0 is that of the result's half",
        r"\* z_e \* \(erff",
        "* (z_e + 0.01f * fabsf(z_e)) * (erff",
    ),
    C(
        "sigmoid_of_products_cut",
        "a sigmoid that ends",
        r"expf\(-(gate_sum\[i\]\[j \+ e\])\)",
        r"expf(-fmaxf(\1, -8.0f))",
    ),
    C("up_clamped", "the other factor is cut", r"\* (up_sum\[i\]\[j \+ e\]);", r"* fminf(\1, 8.0f);"),
)
