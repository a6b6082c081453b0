"""Wrong lines that show only where a caller varies what it may: scalars, labels, signs, other inputs, numbers of rows.

The kernels here are changed by these classes alone, so that the mutants of the other classes stay the ones they were.
"""

from __future__ import annotations

import functools
import re

from normgen.spec.reader import load
from tests.codegen.kernels import Named, named
from tests.mutation.classes import MutationClass, Rewrite

TEAM: dict[str, object] = {"threads_per_row": 32, "rows_per_block": 4, "vector": 2}
HELD: dict[str, object] = {**TEAM, "hold": "registers", "unroll": 0}

VARIED_CASES: dict[str, Named] = {
    "labels": named("cross_entropy", "4096x96", "f32", TEAM),
    "labels_bf16": named("cross_entropy", "4096x200", "bf16", HELD, dtypes={"label": "i32"}),
    "label_gradient": named("cross_entropy_grad", "4096x96", "f32", TEAM),
    "masked": named("masked_softmax", "4096x96", "f32", TEAM),
    "causal": named("causal_softmax", "4096x48", "f32", TEAM),
    "causal_bf16": named("causal_softmax", "4096x64", "bf16", HELD),
    "clamped": named("swiglu_clamped", "4096x96", "f32", TEAM),
    "clamped_backward": named("swiglu_clamped", "4096x96", "bf16", TEAM, direction="backward"),
    "dropout": named("dropout_add_rmsnorm", "4096x96", "f32", TEAM),
    "dropout_backward": named(
        "dropout_add_rmsnorm", "4096x96", "f32", {**HELD, "persistent": 2}, direction="backward", without=["weight"]
    ),
    "targets": named("kl_div", "4096x96", "f32", TEAM),
    "gated": named("gate_rmsnorm", "4096x96", "bf16", HELD),
    "tanh": named("dyt", "4096x96", "f32", TEAM),
    "modulated": named("adaln", "8x512x96", "f32", TEAM),
    "of_heads": named("head_layernorm", "512x8x96", "bf16", HELD),
    "static_scale": named("rmsnorm_to_fp8", "4096x128", "bf16", HELD),
    "token_scale": named("quantize_to_fp8_token", "4096x128", "bf16", HELD),
    "sink": named("softmax_sink", "4096x96", "f32", TEAM),
    "residuals": named("add_layernorm", "4096x96", "f32", TEAM),
    "gemma": named("gemma_rmsnorm", "4096x96", "bf16", HELD),
}

SCALARS = ("eps", "limit", "alpha", "shift", "p", "scale", "label_smoothing", "z_loss", "ignore_index", "amax_min")
SHARES = ("p",)  # of 1
POSITIVE = ("eps", "amax_min")  # below 0 no row of zeros has a value


def read(*left_out: str, before: str = "") -> str:
    """Where a kernel reads one of the scalars; `before`: what stands in front of it, as a regular expression."""
    names = "|".join(name for name in SCALARS if name not in left_out)
    return rf"(?<!float )(?<!const ){before}\b({names})\b(?![\w\[(]| =)"


READ, READ_OF_ANY_SIZE = read(), read(*SHARES)
READ_OF_ANY_SIGN = read(*POSITIVE, before="(?<!-)")  # the lower end of a clamp is nothing where the upper one is below
OTHERS = "residual2?|z|up|spec_mask|dy|dh|target"
OTHER = rf"(const float (?:{OTHERS})_i = )(element\([^;]*\));"
OTHER_NOT_OF_A_SHIFT = OTHER + r"(?!\n[^\n]*\n[^\n]*maximum\(pass)"  # that of an exponential cancels
PARAMETER = r"(const float (?:weight|bias|x_bias|spec_scale|shift|scale)_i = )(element\([^;]*\));"
LABEL = r"(const float row_label = )(row_value\([^;]*\));"
ON_DEVICE = r"(= )((?:grad_scale|scale|scale_ub|alpha)\[0\])(?=;)"


@functools.cache
def _scalars(text: str) -> dict[str, float]:
    """The scalars of the kernel's operation that are its arguments, with their defaults."""
    ((name, *_),) = re.findall(r"\n(\w+?)_(fwd|bwd)_\w+\(\n", text)[:1]
    return {n: value for n, value in load(name).scalars if re.search(rf"float {n}\b[,)]", text)}


def scalar(template: str) -> Rewrite:
    """A rewrite of the places that read a scalar: `{0}` is its name, `{1}` its default."""

    def rewritten(match: re.Match[str]) -> str:
        defaults = _scalars(match.string)
        return template.format(match[1], f"{defaults[match[1]]!r}f") if match[1] in defaults else match[0]

    return rewritten


def other_scalar(match: re.Match[str]) -> str:
    """The next scalar of the kernel, where it has several."""
    names = list(_scalars(match.string))
    return names[(names.index(match[1]) + 1) % len(names)] if match[1] in names else match[0]


def of_two_words(kernel: Named) -> bool:
    return any(t.name == "label" and t.dtype.bytes == 8 for t in kernel.problem.tensors)


def cut_to(word: str) -> str:
    """The lower bits of a label."""
    return rf"\1static_cast<float>(static_cast<{word}>(static_cast<long long>(\2)));"


C = MutationClass
VARIED: tuple[MutationClass, ...] = (
    C("scalar_default", "a scalar's default in its place", READ, scalar("{1}")),
    C("scalar_doubled", "twice a scalar", READ, scalar("(2.0f * {0})")),
    C("scalar_absolute", "a scalar without its sign", READ_OF_ANY_SIGN, scalar("fabsf({0})")),
    C("scalar_at_most_1", "a scalar that is cut at 1", READ_OF_ANY_SIZE, scalar("fminf({0}, 1.0f)")),
    C("scalar_whole", "a scalar cut to a whole number", READ, scalar("static_cast<float>(static_cast<int>({0}))")),
    C("scalar_near_default", "a scalar at most half off its default", READ,
      scalar("fminf(fmaxf({0}, {1} - 0.5f * fabsf({1})), {1} + 0.5f * fabsf({1}))")),
    C("scalar_of_another", "another scalar", READ, other_scalar),
    C("branch_never", "what a scalar switches on is left out", r"label_smoothing > 0\.0f", "false"),
    C("branch_always", "what a scalar switches off is computed", r"label_smoothing > 0\.0f", "true"),
    C("branch_of_size", "a branch by the size", r"label_smoothing > 0\.0f", "label_smoothing != 0.0f"),
    C("share_dropped", "the rest of a share", r"\(1\.0f - (label_smoothing|p)\)", "1.0f"),
    C("share_of_half", "half of a share", r"\(1\.0f - (label_smoothing|p)\)", r"(1.0f - 0.5f * \1)"),
    C("penalty_dropped", "a penalty is left out", r"z_loss \* row_lse", "0.0f"),
    C("penalty_factor", "the factor of a penalty", r"2\.0f \* z_loss", "z_loss"),
    C("others_of_columns", "what the other columns share", r"Division::of\(([^,]*label_smoothing), kCols\)", r"\1"),
    C("ignored_counted", "an ignored row counts", r"row_is_counted != 0\.0f \?", "true ?"),
    C("ignored_by_sign", "negative labels are ignored", r"row_label != ignore_index", "row_label >= 0.0f"),
    C("ignored_low", "labels up to the ignored one are ignored", r"row_label != ignore_index",
      "row_label > ignore_index"),
    C("ignored_inverted", "the other rows are ignored", r"row_label != ignore_index", "row_label == ignore_index"),
    C("label_upper_word", "the upper word of a label is dropped", LABEL, cut_to("int"), of_two_words),
    C("label_of_16_bits", "a label of 16 bits", LABEL, cut_to("short")),
    C("label_cut", "a label behind the last column is the last column", LABEL, r"\1fminf(\2, kCols - 1.0f);"),
    C("label_from_0", "a negative label is column 0", LABEL, r"\1fmaxf(\2, 0.0f);"),
    C("label_absolute", "a label without its sign", LABEL, r"\1fabsf(\2);"),
    C("label_from_the_end", "-1 is the last column", LABEL, r"\1(\2 == -1.0f ? kCols - 1.0f : \2);"),
    C("label_bound", "a column too many has a label", r"(taken\(\w+, row_label, kCols)\)", r"\1 + 1)"),
    C("label_bound_low", "the last column has no label", r"(taken\(\w+, row_label, kCols)\)", r"\1 - 1)"),
    C("other_clamped", "another input is cut where it is large", OTHER, r"\1fminf(fmaxf(\2, -8.0f), 8.0f);"),
    C("other_cut_far", "another input is cut where it is very large", OTHER,
      r"\1fminf(fmaxf(\2, -1000.0f), 1000.0f);"),
    C("other_not_below", "-inf of another input leaks", OTHER, r"\1fmaxf(\2, -20.0f);"),
    C("other_zero_is_one", "0 of another input is 1", OTHER_NOT_OF_A_SHIFT, r"\1(\2 == 0.0f ? 1.0f : \2);"),
    C("other_one_is_zero", "1 of another input is 0", OTHER_NOT_OF_A_SHIFT, r"\1(\2 == 1.0f ? 0.0f : \2);"),
    C("other_absolute", "another input without its sign", OTHER, r"\1fabsf(\2);"),
    C("parameter_absolute", "a parameter without its sign", PARAMETER, r"\1fabsf(\2);"),
    C("parameter_positive", "a parameter is not negative", PARAMETER, r"\1fmaxf(\2, 0.0f);"),
    C("parameter_zero_is_one", "0 of a parameter is 1", PARAMETER, r"\1(\2 == 0.0f ? 1.0f : \2);"),
    C("parameter_one_is_zero", "1 of a parameter is 0", PARAMETER, r"\1(\2 == 1.0f ? 0.0f : \2);"),
    C("number_absolute", "a number on the device without its sign", ON_DEVICE, r"\1fabsf(\2)"),
    C("number_is_one", "1 for a number on the device", ON_DEVICE, r"\g<1>1.0f"),
    C("target_of_zero", "the logarithm of 0 times 0", r"target_i > 0\.0f", "target_i >= 0.0f"),
    C("target_of_one", "what is all in one column counts for nothing", r"target_i > 0\.0f",
      "target_i > 0.0f && target_i != 1.0f"),
    C("target_small", "small targets count for nothing", r"target_i > 0\.0f", "target_i > 0.01f"),
    C("rows_unbounded", "row numbers not modulo the columns", r"valid_row % kCols", "valid_row"),
    C("rows_modulo_more", "row numbers modulo one more", r"valid_row % kCols", "valid_row % (kCols + 1)"),
    C("rows_modulo_once", "row numbers wrap once", r"valid_row % kCols",
      "(valid_row < kCols ? valid_row : valid_row - kCols + 1)"),
    C("clamp_below_dropped", "no lower end", r"maximum\(up_i, -limit\)", "up_i"),
    C("clamp_above_dropped", "no upper end", r"minimum\((maximum\(\w+_i, [^()]*(?:\([^()]*\))?\)), limit\)", r"\1"),
    C("clamp_slope", "a slope beyond the ends", r"(-limit|__int_as_float\(0xff800000\)) <= (\w+_i) && \2 <= limit",
      "true"),
    C("clamp_slope_above", "a slope above the upper end", r"(\w+_i) <= limit \?", "true ?"),
    C("sink_dropped", "a logit that is not written", r"expf\(row_sink - row_top\) \+ ", ""),
    C("sink_not_largest", "a maximum without the sink", r"maximum\(row_sink, (pass1\.x_max)\)", r"\1"),
    C("largest_unbounded", "no upper end of a scale", r"minimum\(scale_ub_value, (pass1\.x_absmax)\)", r"\1"),
    C("least_unbounded", "no lower end of a scale", r"maximum\(amax_min, (minimum\([^()]*\))\)", r"\1"),
    C("sigmoid_cut", "a sigmoid that ends", r"expf\(-(\w+_i)(?= \*|\))", r"expf(-fmaxf(\1, -10.0f)"),
    C("residual_twice", "a residual twice", r"\b(residual_i)(?= \+|;)(?<!float residual_i)", r"(\1 + \1)"),
)  # fmt: skip
