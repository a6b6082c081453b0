"""Wrong lines that show only where a caller goes to an end: thresholds, ties, row numbers, what is stored, null.

A scalar is small or large; a number lies exactly at a limit, or in the middle between two that are stored; rows are
more than 2^16; a result is larger than what is stored; an optional parameter or a statistic is null.
"""

from __future__ import annotations

from tests.codegen.kernels import Named, named
from tests.mutation.classes import MutationClass
from tests.mutation.varied import HELD, READ, READ_OF_ANY_SIZE, TEAM, read, scalar

MASKED: dict[str, object] = {**TEAM, "edges": "masked"}

END_CASES: dict[str, Named] = {
    "static_int8": named("layernorm_to_int8", "4096x128", "bf16", HELD),
    "narrow": named("layernorm", "4096x96", "f16", HELD),
    "narrow_modulated": named("adaln", "8x512x96", "f16", TEAM),
    "general": named("layernorm", "4096x96", "bf16", MASKED, any_cols=True),
    "general_residual": named("add_rmsnorm", "4096x96", "f32", MASKED, any_cols=True),
}

HALF2, E4M3, INT8 = (rf"floats_to_{name}x?2\((values\[i\]), (values\[i \+ 1\])" for name in ("half", "e4m3", "int8"))
ROW = r"valid_row \*"
ROW_OF_16_BITS = r"(valid_row & 0xffff) *"


def has_few_columns(kernel: Named) -> bool:
    """Whether it has as few columns as calls with more than 2^16 rows have, and sums no rows."""
    return kernel.problem.cols <= 255 and not kernel.problem.sums_rows


def to_int8(kernel: Named) -> bool:
    return kernel.problem.spec.name == "layernorm_to_int8"


def both(template: str) -> str:
    """Both of the values that are stored together, as the template changes them, behind their function's name."""
    return template.replace("{0}", r"\1") + ", " + template.replace("{0}", r"\2")


C = MutationClass
ENDS: tuple[MutationClass, ...] = (
    C("scalar_small_is_default", "a small scalar counts for its default", READ,
      scalar("(fabsf({0}) < 0.02f ? {1} : {0})")),
    C("scalar_small_is_0", "a small scalar counts for nothing", read("eps", "amax_min"),
      scalar("(fabsf({0}) < 0.02f ? 0.0f : {0})")),
    C("scalar_cut_far", "a scalar that is cut far above its default", READ_OF_ANY_SIZE, scalar("fminf({0}, 50.0f)")),
    C("branch_of_threshold", "a branch that small scalars do not take", r"label_smoothing > 0\.0f",
      "label_smoothing > 0.05f"),
    C("drawn_tie", "a random number that is the share is not kept", r"(keep_random_i) >= p", r"\1 > p"),
    C("drawn_tie_near", "a random number next to the share is kept", r"(keep_random_i) >= p",
      r"\1 + 5.96046448e-08f >= p"),
    C("drawn_of_16_bits", "random numbers by 16 bits of the row", r"seed_value, valid_row",
      "seed_value, valid_row & 0xffff"),
    C("modulo_of_16_bits", "16 bits of a row modulo the columns", r"valid_row % kCols", "(valid_row & 0xffff) % kCols"),
    C("batch_of_16_bits", "the batch or the head by 16 bits of the row", r"quotient\(valid_row, ",
      "quotient(valid_row & 0xffff, "),
    C("row_value_of_16_bits", "a value of a row by 16 bits of it", r"\b(label|sink)\[valid_row\]",
      r"\1[valid_row & 0xffff]"),
    C("statistic_of_16_bits", "a statistic lands where 16 bits of the row say",
      r"\b(mean|rstd|scale|loss|lse)\[row\] =", r"\1[row & 0xffff] =", has_few_columns),
    C("read_of_16_bits", "a row is read where 16 bits of it say", rf"(const \w+\* \w+_row = \w+ \+ ){ROW}",
      rf"\1{ROW_OF_16_BITS}", has_few_columns),
    C("written_of_16_bits", "a row is written where 16 bits of it say", rf"(\n  \w+\* \w+_row = \w+ \+ ){ROW}",
      rf"\1{ROW_OF_16_BITS}", has_few_columns),
    C("limit_open_below", "a lower limit itself has no slope", r"(-limit|__int_as_float\(0xff800000\)) <= (\w+_i) &&",
      r"\1 < \2 &&"),
    C("limit_open_above", "an upper limit itself has no slope", r"(\w+_i) <= limit \?", r"\1 < limit ?"),
    C("label_0_is_none", "column 0 is no label", r"0\.0f <= row_label", "0.0f < row_label"),
    C("f16_saturates", "f16 has its largest number for an infinity", HALF2,
      "floats_to_half2(" + both("({0} > 65504.0f ? 65504.0f : {0})")),
    C("f16_saturates_below", "f16 has its least number for an infinity", HALF2,
      "floats_to_half2(" + both("({0} < -65504.0f ? -65504.0f : {0})")),
    C("f16_early", "f16 has an infinity before it is due", HALF2,
      "floats_to_half2(" + both("({0} > 65000.0f ? 2.0f * {0} : {0})")),
    C("f16_late", "f16 has its largest number beyond its end", HALF2,
      "floats_to_half2(" + both("({0} > 65504.0f && {0} < 65600.0f ? 65504.0f : {0})")),
    C("fp8_early", "fp8 saturates at 240", E4M3, "floats_to_e4m3x2(" + both("({0} > 240.0f ? 240.0f : {0})")),
    C("fp8_nan_beyond", "fp8 has NaN beyond its end", E4M3,
      "floats_to_e4m3x2(" + both("({0} > 480.0f ? __int_as_float(0x7fc00000) : {0})")),
    C("int8_symmetric", "int8 has no -128", INT8, "floats_to_int8x2(" + both("({0} < -127.0f ? -127.0f : {0})")),
    C("int8_early", "int8 saturates at 126", INT8, "floats_to_int8x2(" + both("({0} > 126.0f ? 126.0f : {0})")),
    C("int8_ties_away", "a tie away from zero", INT8,
      "floats_to_int8x2(" + both("__uint_as_float(__float_as_uint({0}) + 1u)"), to_int8),
    C("int8_ties_towards_0", "a tie towards zero", INT8, "floats_to_int8x2(" + both("(0.99999994f * {0})"), to_int8),
    C("null_is_another_number", "another number for a parameter that is null",
      r"filled<float, (\w+)>\((1|0)\.0f\)", r"filled<float, \1>(0.5f)"),
    C("null_is_read", "a parameter that is null is read", r"(weight|bias) != nullptr \?", "true ?"),
    C("never_read", "a parameter that is there is taken for null", r"(weight|bias) != nullptr \?", "false ?"),
    C("null_is_written", "a statistic that is null is written", r"if \((mean|rstd) != nullptr\)", "if (true)"),
)  # fmt: skip
