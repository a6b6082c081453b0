"""Handles of kernels with parameters for each head: on numpy arrays, by the emitted text."""

from __future__ import annotations

import numpy as np
import pytest

import normgen
from normgen.errors import UsageError
from normgen.spec.reader import parse
from tests.codegen.test_heads import derivative, reference

TOKENS, HEADS, COLS = 5, 3, 96
RNG = np.random.default_rng(7)
CHANNELS = parse("""
    name = "channels"
    [tensors]
    x = "input"
    weight = "head_input"
    y = "output"
    [formulas]
    y = "(x - mean(x)) * rsqrt(mean((x - mean(x))**2) + 1e-5) * weight"
    """)


@pytest.fixture(scope="module")
def norm():
    return normgen.kernel("head_layernorm", shape=(TOKENS, HEADS, COLS), present=("bias",), device="cpu")


def arrays(tokens: int, heads: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, weight and bias; the rows of bias lie apart."""
    wide = RNG.standard_normal((heads, COLS + 32)).astype(np.float32)
    x = RNG.standard_normal((tokens, heads, COLS)).astype(np.float32)
    return x, RNG.standard_normal((heads, COLS)).astype(np.float32), wide[:, :COLS]


@pytest.mark.parametrize(("tokens", "heads"), [(TOKENS, HEADS), (1, 8), (7, 1), (2, 9)])
def test_each_head_has_its_own_weight(norm, tokens: int, heads: int) -> None:
    """Rows and heads are those of the call, not of the kernel; queries may be a part of a projection."""
    x, weight, bias = arrays(tokens, heads)
    y = norm(x, weight, bias)
    assert y.shape == x.shape
    np.testing.assert_allclose(y, reference(x.astype(np.float64), weight, bias), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(norm(x.reshape(-1, COLS), weight, bias), y.reshape(-1, COLS))
    projection = np.zeros((tokens, heads, 2 * COLS), np.float32)
    projection[..., COLS:] = x
    np.testing.assert_array_equal(norm(projection[..., COLS:], weight, bias), y)


@pytest.mark.parametrize(("tokens", "heads"), [(TOKENS, HEADS), (1, 7), (40, 1), (9, 2)])
def test_gradients_are_those_of_each_head(tokens: int, heads: int) -> None:
    shape = (TOKENS, HEADS, COLS)
    backward = normgen.kernel("head_layernorm", shape=shape, direction="backward", present=("bias",), device="cpu")
    x, weight, _ = arrays(tokens, heads)
    dy = RNG.standard_normal(x.shape).astype(np.float32)
    want = derivative(*(a.astype(np.float64) for a in (dy, x, weight)))
    for got, exact in zip(backward(dy, x, weight), want, strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5)


def test_the_sum_over_no_rows_is_zero() -> None:
    asked = {"direction": "backward", "gradients": ["bias"], "present": ("bias",), "device": "cpu"}
    by_bias = normgen.kernel("head_layernorm", shape=(4, 2, COLS), **asked)
    empty, bias = np.zeros((0, 2, COLS), np.float32), np.ones((2, COLS), np.float32)
    np.testing.assert_array_equal(by_bias(empty, bias), np.zeros((2, COLS), np.float32))


def test_a_channel_has_one_weight() -> None:
    """Instance normalisation: the rows of [samples, channels, pixels] are the channels in turn."""
    kernel = normgen.kernel(CHANNELS, shape=(2, 6, COLS), device="cpu")
    x, weight = RNG.standard_normal((2, 6, COLS)).astype(np.float32), RNG.standard_normal(6).astype(np.float32)
    want = reference(x.astype(np.float64), weight[:, None], np.zeros(()))
    np.testing.assert_allclose(kernel(x, weight), want, rtol=1e-5, atol=1e-5)
    with pytest.raises(UsageError, match="the heads have equally many rows"):
        kernel(x, weight[:5])


def test_heads_that_do_not_fit_are_refused(norm) -> None:
    x, weight, bias = arrays(4, 10)
    with pytest.raises(UsageError, match="same number of heads") as refused:
        norm(x, weight, bias[:2])
    assert refused.value.received == "weight 10, bias 2"
    four = np.zeros((4, COLS), np.float32)
    with pytest.raises(UsageError, match="the heads are the last sizes of an array of rows"):
        norm(x, four, four)
    assert norm(x.reshape(40, COLS), four, four).shape == (40, COLS)
