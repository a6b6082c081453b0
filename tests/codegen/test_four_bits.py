"""Elements of four bits, two a byte: their codes bit by bit, where they lie, what is refused; kernels that are wrong.

Codes are compared with ones that are found otherwise, by the middles between two numbers (`tests.presets.fp4`).
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import normgen
from normgen.choice.first import default_schedule
from normgen.codegen.library import files
from normgen.codegen.module import Module
from normgen.device import target
from normgen.dtypes import DTYPES, F4E2M1
from normgen.errors import UsageError
from normgen.measure.cpu_check import check_on_cpu, has_compiler
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load, parse
from normgen.verify.bounded import Bounded
from normgen.verify.error_model import Float32Error
from tests.codegen.digests import header_of
from tests.presets.fp4 import NUMBERS, codes, two_a_byte
from tests.samples import sized

H200 = target("h200")
WIDTHS = (2, 4, 8, 16, 32)
STATIC = """
name = "static_to_fp4"
[tensors]
x = { role = "input", dtypes = ["f32", "f16", "bf16", "f8e4m3"] }
q = { role = "output", dtypes = ["f4e2m1"] }
[formulas]
q = "x"
"""


@cache
def library(folder: Path) -> ctypes.CDLL:
    """The functions of the device library, compiled for the host."""
    packs = "".join(
        f"""extern "C" void pack{n}(const float* x, unsigned* bits, int count) {{
  for (int i = 0; i < count; ++i) {{
    float values[{n}];
    for (int k = 0; k < {n}; ++k) values[k] = x[i * {n} + k];
    Vec<float4_e2m1x2, {n}> vec = {{}};
    pack(vec, values);
    const int registers = Vec<float4_e2m1x2, {n}>::kRegisters;
    for (int r = 0; r < registers; ++r) bits[i * registers + r] = vec.bits[r];
  }}
}}
"""
        for n in WIDTHS
    )
    text = f"""#include <cmath>
#include <cstring>
#define __device__
#define __forceinline__ inline
// As PTX has it: of a NaN, signalling or not, the other number.
static float least(float a, float b) {{ return a != a ? b : b != b ? a : a < b ? a : b; }}
#define fminf least
static float __uint_as_float(unsigned bits) {{ float x; std::memcpy(&x, &bits, 4); return x; }}
static unsigned __float_as_uint(float x) {{ unsigned bits; std::memcpy(&bits, &x, 4); return bits; }}
template <typename T, int N> struct Vec;
{files()["float4_e2m1x2"].text}
extern "C" void codes(const float* x, unsigned char* found, int count) {{
  for (int i = 0; i < count; ++i) found[i] = float_to_e2m1(x[i]);
}}
extern "C" void numbers(const unsigned* bits, float* found, int count) {{
  for (int i = 0; i < count; ++i) found[i] = e2m1_to_float(bits[i]);
}}
{packs}"""
    source, made = folder / "four.cpp", folder / "four.so"
    source.write_text(text, encoding="utf-8")
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return ctypes.CDLL(str(made))


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return library(tmp_path_factory.mktemp("four"))


def call(function: Callable[..., object], *arrays: np.ndarray, count: int) -> None:
    function(*(ctypes.c_void_p(a.ctypes.data) for a in arrays), count)


def found_codes(four: ctypes.CDLL, x: np.ndarray) -> np.ndarray:
    found = np.empty(x.shape, np.uint8)
    call(four.codes, x, found, count=x.size)
    return found


def test_every_exponent_has_the_nearest_code_at_every_edge_of_its_mantissas(four: ctypes.CDLL) -> None:
    """All 512 signs and exponents, of zeros, subnormals, infinities and NaN too; around every eighth of a binade."""
    eighths = np.arange(8, dtype=np.int64) << 20
    mantissas = np.unique((eighths[:, None] + np.array([-2, -1, 0, 1, 2])).ravel() % (1 << 23))
    bits = (np.arange(512, dtype=np.int64)[:, None] << 23 | mantissas).astype(np.uint32).ravel()
    x = bits.view(np.float32)
    np.testing.assert_array_equal(found_codes(four, x), codes(x))


def test_millions_of_floats_have_the_nearest_code(four: ctypes.CDLL) -> None:
    """Any bits, and numbers from 2^-4 to 2^4, where codes differ."""
    rng = np.random.default_rng()
    for _ in range(sized(1, 10)):
        near = np.exp2(rng.uniform(-4, 4, 1 << 19)) * rng.choice([-1.0, 1.0], 1 << 19)
        some = rng.integers(0, 1 << 32, 1 << 19, dtype=np.uint64).astype(np.uint32).view(np.float32)
        x = np.concatenate([near.astype(np.float32), some])
        np.testing.assert_array_equal(found_codes(four, x), codes(x))


def test_every_code_is_its_number_and_is_found_again(four: ctypes.CDLL) -> None:
    """Also where a register holds further codes above it."""
    bits, found = np.arange(256, dtype=np.uint32), np.empty(256, np.float32)
    call(four.numbers, bits, found, count=256)
    np.testing.assert_array_equal(found.view(np.uint32), np.resize(NUMBERS, 256).view(np.uint32))
    np.testing.assert_array_equal(found_codes(four, NUMBERS), np.arange(16))


@pytest.mark.parametrize("width", WIDTHS)
def test_the_first_of_two_elements_lies_in_the_low_bits(four: ctypes.CDLL, width: int) -> None:
    x = np.random.default_rng(width).standard_normal((64, width)).astype(np.float32) * 3
    registers = max(1, width // 8)
    bits = np.zeros((64, registers), np.uint32)
    call(getattr(four, f"pack{width}"), x, bits, count=64)
    np.testing.assert_array_equal(bits.view(np.uint8)[:, : width // 2], two_a_byte(x))


def test_the_dtype_rounds_as_the_kernels_do() -> None:
    x = np.random.default_rng(0).standard_normal((100, 64)).astype(np.float32) * 4
    x[0, :7] = np.nan, np.inf, -np.inf, 5, 2.5, -0.25, 1e-30
    stored = F4E2M1.stored(x)
    np.testing.assert_array_equal(F4E2M1.in_units(stored), two_a_byte(x))
    np.testing.assert_array_equal(F4E2M1.by_element(two_a_byte(x)).view(np.uint8), stored.view(np.uint8))


def test_sizes_count_two_elements_a_byte() -> None:
    problem = problem_for(load("add_rmsnorm_to_nvfp4"), shape="64x4096", dtype="bf16", without=("y",), pitch=5120)
    q = problem.tensor("q")
    assert problem.shape_of(q) == (64, 2048)
    assert problem.pitch_of(q) == 2560
    assert q.width(problem.sizes) == 2048
    assert problem.row_alignment(q) == 16
    assert problem.compulsory_bytes == 64 * 4096 * 6 + 64 * 2048 + 64 * 256 + 2 * 4096 + 4
    assert (problem.packed, F4E2M1.bytes_of(10), F4E2M1.units(10)) == (2, 5, 5)


def test_vectors_are_whole_bytes() -> None:
    problem = problem_for(parse(STATIC), shape="64x96", dtype="f32")
    rule = "a thread writes whole bytes of 2 elements: vectors of these, edges = exact"
    assert refusal(problem, Schedule(vector=1, threads_per_row=32, rows_per_block=4), H200) == rule
    assert refusal(problem, Schedule(vector=2, threads_per_row=32, rows_per_block=4), H200) is None
    assert default_schedule(problem, H200).vector % 2 == 0
    short = problem_for(parse(STATIC), shape="64x40", dtype="bf16")  # rows of 20 bytes
    assert refusal(short, Schedule(vector=8, threads_per_row=4, rows_per_block=32), H200) is None
    uneven = problem_for(parse(STATIC), shape="64x98", dtype="f8e4m3")
    assert refusal(uneven, Schedule(vector=4, edges="peel", threads_per_row=16, rows_per_block=8), H200) == rule


READ = STATIC.replace('["f4e2m1"]', '["f32"]').replace('["f32", "f16", "bf16", "f8e4m3"]', '["f4e2m1"]')
REFUSED = {
    "an odd number of columns": (STATIC, {"shape": "8x33"}, "two f4e2m1 share a byte: cols and the pitch are even"),
    "an odd pitch": (STATIC, {"shape": "8x32", "pitch": 33}, "two f4e2m1 share a byte: cols and the pitch are even"),
    "any columns, no groups": (STATIC, {"shape": "8x32", "any_cols": True}, "in whole vectors: the spec has groups"),
    "an input": (READ, {"shape": "8x32", "dtype": "f4e2m1"}, "a format of outputs [rows, cols]: nothing reads it"),
    "a gradient": (STATIC, {"shape": "8x32", "direction": "backward"}, "a backward pass needs an output"),
}


@pytest.mark.parametrize(("text", "asked", "rule"), REFUSED.values(), ids=REFUSED.keys())
def test_what_has_no_whole_bytes_is_refused_with_a_sentence(text: str, asked: dict[str, object], rule: str) -> None:
    with pytest.raises(UsageError if "backward" not in asked.values() else Exception) as refused:
        problem_for(parse(text), **{"dtype": "f32", **asked})  # type: ignore[arg-type]
    assert rule in str(refused.value)


def test_tiles_are_of_scales_of_a_byte() -> None:
    with pytest.raises(UsageError, match="swizzled scales have a byte each"):
        problem_for(load("rmsnorm_to_fp8_group"), shape="8x128", dtype="bf16", layout={"scale": "swizzled"})


def test_a_cast_is_a_step_whose_place_is_known() -> None:
    """Where float32 may be on either side of a middle the error is the step; else there is none."""
    value = np.array([[2.4, 2.5, 2.6, -5.0, 7.0, 0.1]])
    found = Float32Error(cols=1).cast(Bounded(value, np.full(value.shape, 1e-6)), F4E2M1)
    np.testing.assert_array_equal(found.value, [[2.0, 2.0, 3.0, -4.0, 6.0, 0.0]])
    np.testing.assert_array_equal(found.error, [[0.0, 1.0, 0.0, 2.0, 0.0, 0.0]])
    np.testing.assert_array_equal(found.exact, [[True, False, True, False, True, True]])
    np.testing.assert_array_equal(Float32Error(cols=1).cast(Bounded(np.array([np.nan])), F4E2M1).value, [6.0])


def test_a_header_counts_bytes_and_says_so() -> None:
    """Whose pitches are refused, what the general kernel's vectors ask for, what a tile of scales is."""
    problem = problem_for(load("add_rmsnorm_to_nvfp4"), shape="64x512", dtype="bf16", layout={"scale": "swizzled"})
    header = header_of(problem, default_schedule(problem, H200))
    assert "__nv_fp4x2_e2m1* q, __nv_fp8_e4m3* scale" in header
    assert "q_pitch < cols / 2 || scale_pitch < (cols / 16 + 3) / 4 * 512ll" in " ".join(header.split())
    said = " ".join(header.replace("\n// ", " ").split())
    assert "q has 2 elements a byte, the first in the low four bits; its pitch counts bytes." in said
    assert "scale has 512 bytes for each 128 rows and four groups: group g of row r is byte 16 * (r % 32)" in said


# ---- handles -----------------------------------------------------------------------------------------------------


def test_a_handle_returns_bytes_and_takes_them() -> None:
    """Rows of two sizes; an output of the caller's with a pitch of its own, between whose rows nothing is written."""
    kernel = normgen.kernel("quantize_to_nvfp4", shape=64, dtype="f32", device="cpu")
    x = np.random.default_rng(1).standard_normal((3, 5, 64)).astype(np.float32)
    s = np.array([400.0], np.float32)
    q, scale = kernel(x, s)
    assert (q.dtype, q.shape, scale.dtype, scale.shape) == (np.uint8, (3, 5, 32), ml_dtypes.float8_e4m3fn, (3, 5, 4))
    factor = np.repeat(s / scale.astype(np.float32), 16, axis=-1)
    np.testing.assert_array_equal(q.reshape(15, 32), two_a_byte((x * factor).reshape(15, 64)))
    wide = np.full((15, 48), 0xA5, np.uint8)
    kernel(x.reshape(15, 64), s, q=wide[:, :32], scale=np.empty((15, 4), ml_dtypes.float8_e4m3fn))
    np.testing.assert_array_equal(wide[:, :32], q.reshape(15, 32))
    assert (wide[:, 32:] == 0xA5).all()


def test_a_handle_names_the_bytes_that_it_expects() -> None:
    kernel = normgen.kernel("quantize_to_mxfp4", shape=64, dtype="f32", device="cpu")
    x, scale = np.zeros((5, 64), np.float32), np.zeros((5, 2), ml_dtypes.float8_e8m0fnu)
    with pytest.raises(UsageError, match=r"wrong shape of 'q': expected \[.., cols / 2\] with cols / 2 = 32"):
        kernel(x, q=np.zeros((5, 64), np.uint8), scale=scale)
    for other in (np.int32, ml_dtypes.float4_e2m1fn):  # the latter has a byte for each element
        with pytest.raises(UsageError, match="wrong dtype of 'q': expected u8"):
            kernel(x, q=np.zeros((5, 32), other), scale=scale)


def test_a_handle_makes_and_takes_tiles_of_scales() -> None:
    kernel = normgen.kernel("quantize_to_nvfp4", shape=80, dtype="f32", device="cpu", layout={"scale": "swizzled"})
    x, s = np.random.default_rng(2).standard_normal((130, 80)).astype(np.float32), np.array([64.0], np.float32)
    q, scale = kernel(x, s)
    assert scale.shape == (256, 8)
    flat = np.full(2 * 2 * 512, 0xA5, np.uint8).view(ml_dtypes.float8_e4m3fn)
    kernel(x, s, q=np.empty_like(q), scale=flat)
    np.testing.assert_array_equal(flat.view(np.uint8), scale.reshape(-1).view(np.uint8))
    tiles = flat.view(np.uint8).reshape(2, 2, 32, 4, 4).transpose(0, 3, 2, 1, 4).reshape(256, 8)
    plain = normgen.kernel("quantize_to_nvfp4", shape=80, dtype="f32", device="cpu")(x, s)[1]
    np.testing.assert_array_equal(tiles[:130, :5], plain.view(np.uint8))
    assert not tiles[130:].any()
    assert not tiles[:, 5:].any()
    with pytest.raises(UsageError, match="wrong shape of 'scale': expected 2048 bytes, of 2 x 2 tiles"):
        kernel(x, s, q=np.empty_like(q), scale=flat[:1024])
    with pytest.raises(UsageError, match="wrong shape of 'scale': expected a multiple of 1024 bytes"):
        kernel(x, s, q=np.empty_like(q), scale=flat[:1000])


# ---- wrong kernels -----------------------------------------------------------------------------------------------

NV, MX, ADD, FLOOR, EVEN = (
    "quantize_to_nvfp4", "quantize_to_mxfp4", "add_rmsnorm_to_nvfp4", "ocp_quantize_to_mxfp4", "vllm_quantize_to_mxfp4",
)  # fmt: skip
SIZE = "const float size = fminf(fabsf(at_most), 6.0f);"
STEP = "own_group + step * kGroupStride"
UNROUNDED = "const float scale_inverse_g = 6.0f / (x_absmax_g * global_scale_value)"
WRONG = {
    "ties go up": (NV, SIZE, "const float size = fminf(fabsf(at_most) * 1.0000001f, 6.0f);"),
    "ties go down": (NV, SIZE, "const float size = fminf(fabsf(at_most) * 0.9999999f, 6.0f);"),
    "ties of powers of two go up": (MX, SIZE, "const float size = fminf(fabsf(at_most) * 1.0000001f, 6.0f);"),
    "nothing saturates": (FLOOR, SIZE, "const float size = fabsf(at_most);"),
    "numbers below 1 are rounded to halves of their power": (MX, "fmaxf(size, 1.0f)", "fmaxf(size, 0.5f)"),
    "the sign is lost": (MX, "(__float_as_uint(at_most) >> 28 & 8u)", "0u"),
    "the sign is another bit": (MX, ">> 28 & 8u", ">> 27 & 8u"),
    "what is rounded to is a quarter": (MX, "(22u << 23)", "(21u << 23)"),
    "codes of 4 and 6 are those of 2 and 3": (MX, "halves + (halves >> 22) - 2u * 149u", "halves + 4u"),
    "nibbles change places": (MX, "bits << (4 * (i % 8))", "bits << (4 * (i % 8 ^ 1))"),
    "codes overlap": (MX, "bits << (4 * (i % 8))", "bits << (3 * (i % 8))"),
    "elements lie twice as far apart": (
        MX,
        "static_cast<unsigned>(first_col + step * kStride) / 2",
        "first_col + step * kStride",
    ),
    "the scale of half a group": (NV, "reduce_group<kGroupVectors, Maximum", "reduce_group<1, Maximum"),
    "the scale of two groups": (NV, "reduce_group<kGroupVectors, Maximum", "reduce_group<2 * kGroupVectors, Maximum"),
    "the scale divides unrounded": (NV, "const float scale_inverse_g = 1.0f / scale_g", UNROUNDED),
    "the scale is that of 4": (NV, "global_scale_value / 6.0f", "global_scale_value / 4.0f"),
    "the global scale is left out of the factor": (NV, "global_scale_value * scale_inverse_g", "scale_inverse_g"),
    "a scale of 0 divides": (NV, "scale_g == 0.0f ? 0.0f : ", ""),
    "the scale is rounded down": (MX, "((bits & 0x7fffffu) > (exponent == 0u ? 0x400000u : 0u))", "0u"),
    "the scale is rounded up": (FLOOR, "up_g > amax_g ? up_g / 2.0f : up_g", "up_g"),
    "up from a half on": (EVEN, "0.875f * up_g", "0.75f * up_g"),
    "up above three quarters alone": (EVEN, "amax_g < 0.875f", "amax_g <= 0.875f"),
    "neighbouring scales change places": (ADD, f"scale_row[{STEP}]", f"scale_row[({STEP}) ^ 1]"),
    "the norm of what is stored": (ADD, "h_i * row_rstd", "rounded<bfloat16>(h_i) * row_rstd"),
}


def changed(module: Module, old: str, new: str) -> Module:
    assert module.text.count(old) == 1, module.text.count(old)
    return replace(module, text=module.text.replace(old, new))


def wrong_problem(op: str) -> Problem:
    """Of powers of two in f32, where what lies in the middle between two codes is drawn on purpose alone."""
    return problem_for(load(op), shape="46x256", dtype="f32" if op == MX else "bf16")


def emitted(problem: Problem) -> Module:
    return emit(problem, Schedule(threads_per_row=32, rows_per_block=4, vector=16 // problem.dtype.bytes))


@pytest.mark.parametrize(("op", "old", "new"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_kernel_of_four_bits_is_seen(op: str, old: str, new: str) -> None:
    problem = wrong_problem(op)
    assert not check_on_cpu(problem, changed(emitted(problem), old, new)).ok


@pytest.mark.parametrize("op", [NV, MX, ADD, FLOOR, EVEN])
def test_the_same_kernel_without_the_change_is_right(op: str) -> None:
    problem = wrong_problem(op)
    found = check_on_cpu(problem, emitted(problem))
    assert found.ok, found.summary


def test_names_of_the_format_lead_to_it() -> None:
    names = ("f4e2m1", "fp4", "float4_e2m1fn_x2", "torch.float4_e2m1fn_x2", ml_dtypes.float4_e2m1fn)
    assert {normgen.dtypes.dtype(name) for name in names} == {F4E2M1} == {DTYPES["f4e2m1"]}


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler builds the executor")
def test_every_nan_is_6_of_either_sign_and_signalling_too() -> None:
    text = 'name = "c"\n[tensors]\nx = "input"\ny = { role = "output", dtypes = ["f4e2m1"] }\n[formulas]\ny = "x"\n'
    bits = [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0xFFBFFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800000]
    x = np.array([bits], np.uint32).view(np.float32)
    y = normgen.kernel(text, shape=x.shape, device="cpu")(x)
    assert y.tolist() == [[0x77, 0x77, 0x77, 0xF7]]


@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler on this machine")
@pytest.mark.parametrize("division", ["ieee", "remainder"])
def test_groups_of_subnormal_numbers_have_the_quotients_of_their_formula(division: str) -> None:
    """Their scale is 2^-127, whose reciprocal by the hardware is infinite: zeros became NaN, the others the largest."""
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32) * np.float32(2.0**-128)
    x[:, ::3] = 0
    problem = problem_for(load("quantize_to_mxfp4"), shape="4x64", dtype="f32")
    schedule = default_schedule(problem, H200).varied(division=division)
    assert refusal(problem, schedule, H200) is None
    q, scale = normgen.kernel("quantize_to_mxfp4", shape=(4, 64), dtype="f32", device="cpu", schedule=schedule)(x)
    assert (np.asarray(scale).view(np.uint8) == 0).all()  # 2^-127
    np.testing.assert_array_equal(np.asarray(q).view(np.uint8), two_a_byte(x * np.float32(2.0**127)))
