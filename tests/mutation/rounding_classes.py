"""Ways in which a kernel is made wrong that only show at a rounding or in a NaN.

What is stored is rounded twice, ties to the wrong side, clipped, or flushed; a guard spares rows that it must not; a
NaN is lost where rows are added up.
"""

from __future__ import annotations

from tests.codegen.kernels import Named
from tests.mutation.classes import MutationClass

C = MutationClass
BITS = "__float_as_uint({0})"
THROUGH_BF16 = "__uint_as_float(({bits} + 0x7fffu + ({bits} >> 16 & 1u)) & 0xffff0000u)"
THROUGH_F16 = "__uint_as_float(({bits} + 0xfffu + ({bits} >> 13 & 1u)) & 0xffffe000u)"
AWAY = "__uint_as_float({bits} + 1u)"  # what lies in the middle lies beyond it
TOWARDS_0 = "__uint_as_float({bits} - ({bits} != 0u))"
STORED = r"(floats_to_(?:e4m3x2|int8x2|bfloat162|half2))\((values\[i\]), (values\[i \+ 1\])"
OF_8_BITS = STORED.replace("e4m3x2|int8x2|bfloat162|half2", "e4m3x2|int8x2")
OF_16_BITS = STORED.replace("e4m3x2|int8x2|bfloat162|half2", "bfloat162|half2")
COLUMN_SUM = r"(?<![\w.])(\w+_sum\[step\]\[i\] \+=) ([^;]+);"
ADDED_IN_MEMORY = r"(atomicAdd\((?:sums|column_sums) \+ [^,;]*i,) ([^;]+)\);"


def each(template: str) -> str:
    """Both of the values that are stored together, as the template changes them."""
    low, high = (template.replace("{bits}", BITS.format(value)).replace("{0}", value) for value in (r"\2", r"\3"))
    return rf"\1({low}, {high}"


def exact(kernel: Named) -> bool:
    """Some output is a value that float32 holds: a sum of two inputs, a quotient by a power of two."""
    return kernel.problem.spec.name in ("add_rmsnorm", "quantize_to_fp8_group", "quantize_to_int8_token")


def sums_rows(kernel: Named) -> bool:
    return kernel.problem.sums_rows


def f16(kernel: Named) -> bool:
    return any(t.is_written and t.dtype.name == "f16" for t in kernel.problem.tensors)


ROUNDINGS = (
    C("stored_through_bf16", "8 bits are rounded to bf16 before", OF_8_BITS, each(THROUGH_BF16)),
    C("stored_through_f16", "8 bits are rounded to 11 bits before", OF_8_BITS, each(THROUGH_F16)),
    C("stored_through_12_bits", "16 bits are rounded to 11 bits before", OF_16_BITS, each(THROUGH_F16),
      lambda kernel: not f16(kernel)),
    C("ties_away", "ties away from zero", STORED, each(AWAY), exact),
    C("ties_towards_0", "ties towards zero", STORED, each(TOWARDS_0), exact),
    C("flushed_in_f16", "subnormal numbers of f16 become 0",
      OF_16_BITS, each("fabsf({0}) < 6.103515625e-05f ? 0.0f : {0}"), f16),
    C("guard_of_a_fiftieth", "rows of six deviations are spared", r"- 0\.75f \* ", "- 0.02f * "),
    C("guard_of_a_thousandth", "rows of thirty deviations are spared", r"- 0\.75f \* ", "- 0.001f * "),
)  # fmt: skip

NOT_A_NUMBER = (
    C("nan_not_added", "a NaN is 0 in a sum over rows", COLUMN_SUM, r"\1 (\2) == (\2) ? (\2) : 0.0f;", sums_rows),
    C("nan_not_added_in_memory", "a NaN is 0 in a sum over rows", ADDED_IN_MEMORY,
      r"\1 (\2) == (\2) ? (\2) : 0.0f);", sums_rows),
    C("nan_read_as_0", "a NaN that is read is 0", r"(const float (?:dy|up)_i =) (element\([^;]+\));",
      r"\1 \2 == \2 ? \2 : 0.0f;"),
    C("infinity_read_as_largest", "an infinity that is read is the largest number",
      r"(const float (?:dy|up)_i =) (element\([^;]+\));", r"\1 fminf(\2, 3.402823466e+38f);"),
    C("nan_of_total_dropped", "a NaN is 0 where partial sums are added up",
      r"(sums\[warp % 4\] \+=) ([^;]+);", r"\1 \2 == \2 ? \2 : 0.0f;", sums_rows),
)  # fmt: skip

ROUNDING_CLASSES: tuple[MutationClass, ...] = (*ROUNDINGS, *NOT_A_NUMBER)
