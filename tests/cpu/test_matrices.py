"""Matrix instructions on the CPU executor: which lane has what, what tensor cores cut off, and what warps do wrong."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from normgen.codegen.module import Module
from normgen.cpu import build, find_compiler
from tests.cpu.cases import kernel, module, pointer

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
BOTH = [("bf16", ml_dtypes.bfloat16), ("f16", np.float16)]


def product(kind: str, *, left: str = "false", right: str = "true", change: tuple[str, str] = ("", "")) -> Module:
    """y += x w of 16 x 16 and 16 x 8; x lies by lines of 16, w by lines of 8, or both turned."""
    x_line = "x_tile + (lane % 16) * 16 + lane / 16 * 8"
    if left == "true":
        x_line = "x_tile + (lane / 16 * 8 + lane % 8) * 16 + lane / 8 % 2 * 8"
    w_line = "w_tile + (lane % 16) * 8" if right == "true" else "w_tile + lane % 8 * 16 + lane / 8 % 2 * 8"
    text = f"""
extern "C" __global__ void __launch_bounds__(32) product(
    float* __restrict__ y, const unsigned short* __restrict__ x, const unsigned short* __restrict__ w) {{
  __shared__ alignas(16) unsigned short x_tile[256];
  __shared__ alignas(16) unsigned short w_tile[128];
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32) x_tile[i] = x[i];
  for (int i = lane; i < 128; i += 32) w_tile[i] = w[i];
  __syncwarp();
  unsigned left[4], right[4];
  read_matrices<{left}>({x_line}, left);
  read_matrices<{right}>({w_line}, right);
  float upper[2], lower[2];
  for (int i = 0; i < 2; ++i) {{
    upper[i] = y[lane / 4 * 8 + lane % 4 * 2 + i];
    lower[i] = y[(lane / 4 + 8) * 8 + lane % 4 * 2 + i];
  }}
  mma_{kind}(left, right, upper, lower);
  for (int i = 0; i < 2; ++i) {{
    y[lane / 4 * 8 + lane % 4 * 2 + i] = upper[i];
    y[(lane / 4 + 8) * 8 + lane % 4 * 2 + i] = lower[i];
  }}
}}
"""
    assert change[0] in text
    params = [pointer("y", "float*"), pointer("x", "const unsigned short*"), pointer("w", "const unsigned short*")]
    return module(text.replace(*change), kernel("product", params, threads=32, blocks=1))


def ran(made: Module, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> tuple[str, ...]:
    bits = {"x": x.view(np.uint16).reshape(1, -1), "w": w.view(np.uint16).reshape(1, -1), "y": y.reshape(1, -1)}
    return tuple(str(fault) for fault in build(made).run(bits, rows=1, cols=256).faults)


@pytest.mark.parametrize(("kind", "dtype"), BOTH)
@pytest.mark.parametrize("left", ["false", "true"])
@pytest.mark.parametrize("right", ["false", "true"])
def test_a_product_of_whole_numbers_is_exact_in_every_order(kind: str, dtype: type, left: str, right: str) -> None:
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-8, 8, shape).astype(dtype) for shape in ((16, 16), (16, 8)))
    y = rng.integers(-100, 100, (16, 8)).astype(np.float32)
    wanted = y + x.astype(np.float32) @ w.astype(np.float32)
    given = np.ascontiguousarray(x.T if left == "true" else x), np.ascontiguousarray(w if right == "true" else w.T)
    assert not ran(product(kind, left=left, right=right), *given, y)
    np.testing.assert_array_equal(y, wanted)


def test_what_lies_behind_the_largest_addend_is_cut_off_not_rounded() -> None:
    """2^24 and 15 times 1.5: each loses its half, where round to nearest would keep them or make 2 of them."""
    x, w = np.zeros((16, 16), ml_dtypes.bfloat16), np.zeros((16, 8), ml_dtypes.bfloat16)
    x[0, 0], x[0, 1:] = 2**12, 1.5
    w[0], w[1:] = 2**12, 1
    y = np.zeros((16, 8), np.float32)
    assert not ran(product("bf16"), x, w, y)
    assert (y[0] == 2**24 + 14).all()  # 7 whole ones, cut to an even number, then 8 more
    y = np.full((16, 8), -(2.0**24), np.float32)
    assert not ran(product("bf16"), x, w, y)
    assert (y[0] == 7 + 8 * 1.5).all(), "and where the largest have gone, nothing is cut"


def test_what_is_not_finite_follows_the_rules() -> None:
    x, w = np.zeros((16, 16), np.float16), np.ones((16, 8), np.float16)
    x[0, 3], x[1, 3], x[2, :2], x[3, 4] = np.inf, np.nan, (np.inf, -np.inf), np.inf
    w[4, 0] = 0
    y = np.zeros((16, 8), np.float32)
    assert not ran(product("f16"), x, w, y)
    assert np.isposinf(y[0]).all()
    assert np.isnan(y[1:3]).all()
    assert np.isnan(y[3, 0])
    assert np.isposinf(y[3, 1:]).all()


WRONG = {
    "before anyone wrote": ("for (int i = lane; i < 256; i += 32) x_tile[i] = x[i];", ""),
    "race": ("__syncwarp();", ""),
    "multiple of": ("x_tile + (lane % 16) * 16", "x_tile + 1 + (lane % 16) * 16"),
    "bytes": ("w_tile + (lane % 16) * 8", "w_tile + lane * 8"),
    "outside shared": ("w_tile + (lane % 16) * 8", "w + (lane % 16) * 8"),
    "all lanes": ("__syncwarp();", "__syncwarp(); if (lane == 31) return;"),
    "not all of them reach": ("mma_bf16", "if (lane < 16) read_matrices<false>(x_tile, left); else mma_bf16"),
}


@pytest.mark.parametrize("said", WRONG)
def test_what_a_warp_does_wrong_is_a_fault(said: str) -> None:
    x, w, y = np.zeros((16, 16), np.float16), np.zeros((16, 8), np.float16), np.zeros((16, 8), np.float32)
    faults = ran(product("bf16", change=WRONG[said]), x, w, y)
    assert faults
    assert said in faults[0] or said == "race"
