"""Forty wrong kernels that were written from emitted texts alone, before their writer had read what the check does.

The classes of the other modules grew with the check. These tell what it finds of mistakes that nobody had in mind: 37
were killed at their first run (2026-11-26; of one, whose text did not compile, the first that did). The others were the
row number of 16 bits, a maximum by a scale without its sign, and a lowest finite number taken for -inf; for the last
two kinds the check has rows of its own since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from normgen.codegen.module import Module
from normgen.device import target
from normgen.ladder.points import read_schedule
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.spec.reader import load

FIRST_KILLED = 37  # at their first run


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """A text in a kernel of an operation that is replaced by a wrong one.

    mistake   what sort of mistake it is
    schedule  a point, then the knobs that differ
    place     which of its occurrences is replaced, from 0; None: all
    shows     on what input the kernel is wrong
    """

    mistake: str
    op: str
    shape: str
    old: str
    new: str
    shows: str
    dtype: str = "f32"
    options: Mapping[str, Any] = field(default_factory=dict)
    schedule: str = "default"
    place: int | None = None

    @cached_property
    def problem(self) -> Problem:
        return problem_for(load(self.op), shape=self.shape, dtype=self.dtype, **self.options)

    @cached_property
    def right(self) -> Module:
        return emit(self.problem, read_schedule(self.problem, target("h200"), self.schedule))

    def wrong(self) -> Module:
        """The module with the wrong text. Raises LookupError where the right one is no more."""
        parts = self.right.text.split(self.old)
        if len(parts) <= (self.place or 0) + 1:
            raise LookupError(f"{self.op} has no such text any more: {self.old}")
        if self.place is None:
            return replace(self.right, text=self.new.join(parts))
        first, others = parts[: self.place + 1], parts[self.place + 1 :]
        return replace(self.right, text=self.old.join(first) + self.new + self.old.join(others))


FRESH: dict[str, Fresh] = {
    "ce_any_negative_ignored": Fresh(
        mistake="scalar of the call not asked",
        op="cross_entropy",
        shape="64x1000",
        dtype="bf16",
        old="static_cast<float>(row_label != ignore_index)",
        new="static_cast<float>(row_label >= 0.0f)",
        shows=(
            "every negative label is ignored: label -5 with ignore_index -100 must give NaN, "
            "ignore_index = 3 must ignore label 3"
        ),
    ),
    "ce_label_equals_cols": Fresh(
        mistake="bound of an index off by one",
        op="cross_entropy",
        shape="64x1000",
        old="0.0f <= row_label && row_label < kCols",
        new="0.0f <= row_label && row_label <= kCols",
        shows="label == cols is no column: NaN, not a finite loss",
    ),
    "ce_smoothing_without_guard": Fresh(
        mistake="0 times infinity",
        op="cross_entropy",
        shape="64x1000",
        old=("label_smoothing > 0.0f ? label_smoothing * (logf(pass2.row_sum) - row_smooth_part) : 0.0f"),
        new="label_smoothing * (logf(pass2.row_sum) - row_smooth_part)",
        shows="smoothing 0 and a logit of -inf (a masked word): 0 * inf is NaN, the loss is finite",
    ),
    "ce_bwd_z_loss_of_ignored": Fresh(
        mistake="an ignored row gets something",
        op="cross_entropy",
        shape="64x1000",
        options={"direction": "backward"},
        old="(row_is_counted != 0.0f ? row_loss_part : 0.0f)",
        new="row_loss_part",
        shows="z_loss != 0 and an ignored label: its gradient must be 0 but for dlse",
    ),
    "ce_bwd_dlse_of_ignored": Fresh(
        mistake="an ignored row loses something",
        op="cross_entropy",
        shape="64x1000",
        options={"direction": "backward"},
        old="row_dlse / pass2.row_sum",
        new="row_dlse * row_is_counted / pass2.row_sum",
        shows="the gradient by lse flows for an ignored label as well",
    ),
    "dropout_seed_of_32_bits": Fresh(
        mistake="seed cut to 32 bits",
        op="dropout_add_rmsnorm",
        shape="64x1000",
        dtype="bf16",
        old="seed.bits[0], seed.bits[1]",
        new="seed.bits[0], 0u",
        shows="a seed from 2^32 on draws what its low half draws",
    ),
    "dropout_keeps_above_p": Fresh(
        mistake="tie at a threshold",
        op="dropout_add_rmsnorm",
        shape="64x1000",
        dtype="bf16",
        old="keep_random_i >= p",
        new="keep_random_i > p",
        shows=(
            "an element whose number is p exactly is kept: p = one of the numbers that a row draws "
            "(a multiple of 2^-24)"
        ),
    ),
    "dropout_row_of_16_bits": Fresh(
        mistake="row number cut to 16 bits",
        op="dropout_add_rmsnorm",
        shape="64x1000",
        options={"direction": "backward"},
        old="random_numbers<kVector>(seed_value, valid_row,",
        new="random_numbers<kVector>(seed_value, valid_row & 0xffff,",
        shows="rows from 65536 on draw the numbers of earlier rows: 70000 rows",
    ),
    "dropout_product_for_select": Fresh(
        mistake="0 times infinity",
        op="dropout_add_rmsnorm",
        shape="64x1000",
        old="(keep_i != 0.0f ? x_i * scale : 0.0f)",
        new="keep_i * (x_i * scale)",
        shows="a dropped element of inf, or p = 1 (scale inf), is NaN instead of 0",
    ),
    "ln_offset_of_32_bits": Fresh(
        mistake="offset of 32 bits",
        op="layernorm",
        shape="64x1000",
        old="x + valid_row * x_pitch",
        new="x + valid_row * static_cast<int>(x_pitch)",
        shows="row times pitch beyond 2^31: 8 rows of pitch 2^29",
    ),
    "ln_null_of_the_other": Fresh(
        mistake="null test of another pointer",
        op="layernorm",
        shape="64x1000",
        old="if (rstd != nullptr) rstd[row]",
        new="if (mean != nullptr) rstd[row]",
        shows="mean null and rstd asked: rstd stays unwritten; the other way round: a store at null",
    ),
    "ce_idle_team_stores": Fresh(
        mistake="store beyond the last row",
        op="cross_entropy",
        shape="64x1000",
        schedule="plain,threads_per_row=32,rows_per_block=4",
        old="if (row_thread == 0 && active) {",
        new="if (row_thread == 0) {",
        shows="rows = 5: three idle teams store loss and lse of rows 5 to 7",
    ),
    "ln_guard_never": Fresh(
        mistake="cancellation no more guarded",
        op="layernorm",
        shape="64x1000",
        schedule="default,variance=guarded",
        old="0.75f * pass1.x_squares",
        new="0.0f * pass1.x_squares",
        shows="rows whose mean is far above their spread (1e4 +- 1): variance is what rounding left",
    ),
    "rms_eps_as_floor": Fresh(
        mistake="eps joined in another way",
        op="rmsnorm",
        shape="64x1000",
        schedule="plain",
        old="rsqrtf(eps + Division::of(pass1.x_squares, kCols))",
        new="rsqrtf(fmaxf(eps, Division::of(pass1.x_squares, kCols)))",
        shows="mean of squares near eps, or a large eps: factor sqrt(2)",
    ),
    "softmax_start_of_max": Fresh(
        mistake="finite number for -infinity",
        op="softmax",
        shape="64x1001",
        schedule="plain,softmax=online",
        old="{-3.402823466e+38f, 0.0f}",
        new="{-1.0e30f, 0.0f}",
        shows="rows all below -1e30: the sum is 0, y is inf or NaN",
    ),
    "fp8_group_floor_at_zero_only": Fresh(
        mistake="floor only where 0",
        op="quantize_to_fp8_group",
        shape="64x1024",
        dtype="bf16",
        old="maximum(amax_min, x_absmax_g)",
        new="(x_absmax_g == 0.0f ? amax_min : x_absmax_g)",
        shows=(
            "a group whose largest magnitude lies between 0 and amax_min; any amax_min of the caller above a group's"
        ),
    ),
    "kl_infinity_left_out": Fresh(
        mistake="infinity swallowed",
        op="kl_div",
        shape="64x1000",
        old="target_i > 0.0f ?",
        new="target_i > 0.0f && x_i > __int_as_float(0xff800000) ?",
        shows="x = -inf where target > 0: the divergence is +inf, not finite",
    ),
    "mask_of_lowest_finite": Fresh(
        mistake="finite number for -infinity",
        op="safe_masked_softmax",
        shape="64x1000",
        old="static_cast<float>(pass1.row_max == __int_as_float(0xff800000))",
        new="static_cast<float>(pass1.row_max <= -3.0e38f)",
        shows="a row masked by finfo.min everywhere is a uniform softmax; the mutant adds 1 to its sum",
    ),
    "causal_row_within_batch": Fresh(
        mistake="row number of the batch",
        op="causal_softmax_v",
        shape="160x64",
        options={"inner": 80, "batches": 4},
        old="(m0 + m) % kInner",
        new="(m0 + m - rows_begin) % kInner",
        shows="batches of 40 rows with inner = 80: the diagonal is counted from row 0 of the tensor",
    ),
    "swiglu_limit_of_default": Fresh(
        mistake="default of a scalar written in",
        op="swiglu_clamped",
        shape="64x1000",
        dtype="bf16",
        old="maximum(up_i, -limit)",
        new="maximum(up_i, -7.0f)",
        shows="limit = 2 and up = -5",
    ),
    "swiglu_nan_clamped": Fresh(
        mistake="NaN swallowed",
        op="swiglu_clamped",
        shape="64x1000",
        old="minimum(maximum(up_i, -limit), limit)",
        new="fminf(fmaxf(up_i, -limit), limit)",
        shows="up = NaN gives -limit",
    ),
    "sink_not_in_max": Fresh(
        mistake="overflow of an unshifted exponential",
        op="softmax_sink",
        shape="64x1000",
        options={"direction": "backward"},
        old="maximum(row_sink, pass1.x_max)",
        new="pass1.x_max",
        shows="sink above the row's largest by more than 88: inf / inf; dsink is NaN",
    ),
    "adaln_last_batch_whole": Fresh(
        mistake="last batch shorter",
        op="adaln",
        shape="4x16x100",
        options={"direction": "backward"},
        old="rows - batch_start < rows_per_batch ? rows : batch_start + rows_per_batch",
        new="batch_start + rows_per_batch",
        shows="rows = 62 in batches of 16: rows 62 and 63 are read, written and added",
    ),
    "heads_a_power_of_two": Fresh(
        mistake="count taken for a power of two",
        op="head_layernorm",
        shape="16x4x100",
        dtype="f16",
        old="valid_row - quotient(valid_row, batches_inverse) * batches",
        new="valid_row & (batches - 1)",
        shows="6 heads: the weights of others",
    ),
    "linear_reads_past_inner": Fresh(
        mistake="padding read",
        op="linear",
        shape="100x96",
        options={"inner": 80},
        old="m0 + m < rows && (kWholeK || k0 + k < kInner)",
        new="m0 + m < rows",
        shows=(
            "NaN between a row's end and its pitch (or in the next row): NaN times the zeros of w; "
            "beyond the last row's end"
        ),
    ),
    "bmm_rows_of_next_batch": Fresh(
        mistake="batch boundary within a tile",
        op="bmm",
        shape="4x50x96",
        dtype="f16",
        options={"inner": 80},
        old="rows_begin + min(rows - rows_begin, rows_per_batch)",
        new="rows",
        shows=("50 rows in tiles of 16 or more: the last tile writes rows of the next batch with the wrong matrix"),
    ),
    "bmm_offset_of_32_bits": Fresh(
        mistake="offset of 32 bits",
        op="bmm",
        shape="4x50x96",
        dtype="f16",
        options={"inner": 80},
        old="(static_cast<long long>(batch) * kInner + (k0 + k)) * w_pitch",
        new="static_cast<int>((batch * kInner + k0 + k) * w_pitch)",
        shows="matrices beyond 2^31 elements: pitch 2^24 and 320 lines",
    ),
    "softmax_v_padding_in_max": Fresh(
        mistake="padding takes part",
        op="softmax_v",
        shape="2x50x64",
        dtype="f32",
        options={"inner": 80},
        old="if (inside_m[step]) {",
        new="if (true) {",
        shows=(
            "rows whose scores are all below -100 with inner 80 in tiles of 32: the padding's 0 is "
            "the largest, all underflows"
        ),
    ),
    "causal_scale_without_sign": Fresh(
        mistake="sign of a scalar",
        op="causal_softmax",
        shape="2x80x80",
        old="x_i * scale",
        new="x_i * fabsf(scale)",
        place=0,
        shows=("scale = -1 and scores of 100: the maximum is of other numbers, exp overflows or underflows"),
    ),
    "fp8_token_floor_below_bound": Fresh(
        mistake="order of two clamps",
        op="vllm_rmsnorm_to_fp8_token",
        shape="64x1024",
        dtype="bf16",
        old=("maximum(__fdiv_rn(minimum(scale_ub_value, pass2.y_absmax), 448.0f), 4.359654017857143e-06f)"),
        new=(
            "minimum(maximum(__fdiv_rn(pass2.y_absmax, 448.0f), 4.359654017857143e-06f), "
            "__fdiv_rn(scale_ub_value, 448.0f))"
        ),
        shows="scale_ub below 448 * 4.36e-6 = 0.00195: the floor must win",
    ),
    "copies_waited_for_too_late": Fresh(
        mistake="asynchronous copies not waited for",
        op="layernorm",
        shape="640x1024",
        schedule=("plain,persistent=1,copy=cp_async,hold=shared,stages=3,vector=4,rows_per_block=2,threads_per_row=64"),
        old="cp_async_wait<kStages - 1>()",
        new="cp_async_wait<kStages>()",
        shows="the row may not have arrived: what lay there before is read",
    ),
    "residual_read_after_store": Fresh(
        mistake="a tensor in place read after it is written",
        op="add_rmsnorm",
        shape="64x1000",
        dtype="bf16",
        options={"in_place": {"h": "residual"}},
        schedule="plain,vector=4",
        old=(
            "y_values[i] = h_i * row_rstd * weight_i;\n"
            "      }\n"
            "      Vec<bfloat16, kVector> h_vec;\n"
            "      pack(h_vec, h_values);\n"
            "      if (active) write<Store>(residual_row + first_col + step * kStride, h_vec);"
        ),
        new=(
            "}\n"
            "      Vec<bfloat16, kVector> h_vec;\n"
            "      pack(h_vec, h_values);\n"
            "      if (active) write<Store>(residual_row + first_col + step * kStride, h_vec);\n"
            "      for (int i = 0; i < kVector; ++i) {\n"
            "        y_values[i] = (element(x_vec, i) + element(read_first<kVector>(residual_row + "
            "first_col + step * kStride), i)) * row_rstd *\n"
            "            element(weight_vec, i);\n"
            "      }"
        ),
        shows="residual is h by then: x is added twice",
    ),
    "label_of_32_bits": Fresh(
        mistake="index cut to 32 bits",
        op="cross_entropy",
        shape="64x1000",
        old="return static_cast<float>(static_cast<long long>(bits));",
        new="return static_cast<float>(static_cast<int>(bits));",
        shows="label = 2^32 + 3 is no column: NaN, not the loss of column 3",
    ),
    "ln_var_nan_to_zero": Fresh(
        mistake="NaN swallowed",
        op="layernorm",
        shape="64x1000",
        old=("maximum(pass2.x_shifted_squares - row_x_shifted_mean * row_x_shifted_mean * kCols, 0.0f)"),
        new="fmaxf(pass2.x_shifted_squares - row_x_shifted_mean * row_x_shifted_mean * kCols, 0.0f)",
        shows="a row with NaN: rstd is NaN, the mutant writes 1 / sqrt(eps)",
    ),
    "division_of_infinity": Fresh(
        mistake="infinity in a rewritten division",
        op="quantize_to_fp8_group",
        shape="64x1024",
        dtype="bf16",
        old="return fabsf(left) <= 3.402823466e38f ? fmaf(left, inverse, product) : product;",
        new="return fmaf(left, inverse, product);",
        shows="a group with an infinity: scale is inf, the mutant gives NaN",
    ),
    "f16_saturates": Fresh(
        mistake="overflow saturates",
        op="gemma_rmsnorm",
        shape="64x1000",
        dtype="f16",
        old="pack(y_vec, y_values);",
        new=(
            "for (int i = 0; i < kVector; ++i) y_values[i] = y_values[i] > 65504.0f ? 65504.0f : "
            "y_values[i] < -65504.0f ? -65504.0f : y_values[i];\n"
            "      pack(y_vec, y_values);"
        ),
        shows="weight = 6e4 and a value above 2: f16 is inf, not 65504",
    ),
    "clamp_gradient_at_tie": Fresh(
        mistake="tie at a threshold",
        op="swiglu_clamped",
        shape="64x1000",
        options={"direction": "backward"},
        old="gate_i <= limit",
        new="gate_i < limit",
        shows="gate == limit exactly: the gradient passes",
    ),
    "sums_left_for_next_call": Fresh(
        mistake="workspace left dirty",
        op="rmsnorm",
        shape="64x1000",
        options={"direction": "backward", "accumulate": True},
        schedule="plain,columns=atomic",
        old="sums[cell] = 0.0f;",
        new="",
        shows="the second call on the same workspace adds the first one's sums",
    ),
    "idle_block_leaves_partial": Fresh(
        mistake="workspace not written",
        op="full_sum",
        shape="64x1000",
        old="  // The threads of the block add their totals in a fixed order.",
        new=("  if (blockIdx.x * kRowsPerBlock >= rows) return;\n"),
        shows="fewer rows than blocks: the finishing kernel adds what lay in the workspace",
    ),
    "mask_scaled_too": Fresh(
        mistake="scalar applied to too much",
        op="masked_softmax",
        shape="64x1000",
        schedule="plain",
        old="x_i * scale + spec_mask_i",
        new="(x_i + spec_mask_i) * scale",
        shows="a finite mask, such as a position bias, and scale != 1",
    ),
}
SURVIVE = ("dropout_row_of_16_bits",)  # rows are summed, and columns are many: no call has as many rows
