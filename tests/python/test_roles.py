"""Handles of kernels with values for rows, groups and the whole: on numpy arrays, by the emitted text."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import normgen
from normgen.errors import UsageError

NORM = """
name = "norm_to_8_bits"
[tensors]
x = "input"
weight = "parameter"
gain = "scalar_input"
y = { role = "output", optional = true }
q = { role = "output", dtypes = ["f8e4m3"] }
scale = "group_statistic"
[formulas]
y = "x * rsqrt(mean(x * x) + 1e-6) * weight * gain"
scale = "maximum(absmax(y, 64), 1e-4) / 448"
q = "y / scale"
"""
LOSS = """
name = "cross_entropy"
[tensors]
x = "input"
label = { role = "row_input", dtypes = ["i64"] }
loss = "row_output"
[formulas]
top = "max(x)"
loss = "top + log(sum(exp(x - top))) - sum(where(col == label, x, 0))"
"""
RNG = np.random.default_rng(2)


@pytest.fixture
def norm(tmp_path):
    file = tmp_path / "norm_to_8_bits.toml"
    file.write_text(NORM)
    return normgen.kernel(str(file), shape=(5, 256), dtype="bf16", device="cpu")


def normalised(x: np.ndarray, gain: float) -> np.ndarray:
    wide = x.astype(np.float64)
    return gain * wide / np.sqrt((wide * wide).mean(axis=1, keepdims=True) + 1e-6)


@pytest.mark.parametrize("first", [0, 4])
def test_a_norm_to_8_bits_returns_its_groups_scales(norm, first: int) -> None:
    """Rows between others of a wider array, too: the lanes of a warp own a group wherever vectors of 2 are aligned."""
    wide = RNG.standard_normal((5, 300)).astype(ml_dtypes.bfloat16)
    x = wide[:, first : first + 256] if first else np.ascontiguousarray(wide[:, :256])
    y, q, scale = norm(x, weight=np.ones(256, ml_dtypes.bfloat16), gain=np.array([2.0], np.float32))
    assert scale.shape == (5, 4)
    assert q.dtype == ml_dtypes.float8_e4m3fn
    want = normalised(x, 2.0)
    np.testing.assert_allclose(y.astype(np.float64), want, rtol=2**-8)
    np.testing.assert_allclose(scale, np.abs(want).reshape(5, 4, 64).max(axis=2) / 448, rtol=1e-5)
    back = q.astype(np.float64) * np.repeat(scale, 64, axis=1)
    assert np.max(np.abs(back - want)) <= np.abs(want).max() * 2**-4


def test_rows_that_no_warp_can_own_are_refused(norm) -> None:
    wide = np.zeros((5, 300), ml_dtypes.bfloat16)
    with pytest.raises(UsageError, match="rows of x do not start at multiples of 4 bytes"):
        norm(wide[:, 3:259], weight=np.ones(256, ml_dtypes.bfloat16), gain=np.array([1.0], np.float32))


def test_a_scalar_input_is_one_number(norm) -> None:
    x = np.zeros((5, 256), ml_dtypes.bfloat16)
    with pytest.raises(UsageError, match="one number"):
        norm(x, weight=np.ones(256, ml_dtypes.bfloat16), gain=np.ones(3, np.float32))


def test_a_loss_by_label_and_its_gradient(tmp_path) -> None:
    file = tmp_path / "cross_entropy.toml"
    file.write_text(LOSS)
    x, label = RNG.standard_normal((6, 40)).astype(np.float32), RNG.integers(0, 40, 6)
    loss = normgen.kernel(str(file), shape=(6, 40), device="cpu")(x, label=label)
    share = np.exp(x.astype(np.float64))
    share /= share.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(loss, -np.log(share[np.arange(6), label]), rtol=1e-5)
    gradient = normgen.kernel(str(file), shape=(6, 40), direction="backward", device="cpu")
    dx = gradient(np.full(6, 0.5, np.float32), x=x, label=label)
    np.testing.assert_allclose(dx, 0.5 * (share - np.eye(40)[label]), atol=1e-6)


def test_the_sum_of_all_elements_is_one_number() -> None:
    """Of no row too, and of rows between others of a wider array, which the general kernel adds."""
    total = normgen.kernel("full_sum", shape=(5, 96), device="cpu")
    wide = RNG.standard_normal((5, 101)).astype(np.float32)
    for x in (wide[:, 3:99], np.ascontiguousarray(wide[:, :96]), wide[:0, :96]):
        found = total(x)
        assert found.shape == ()
        np.testing.assert_allclose(found, x.astype(np.float64).sum(), rtol=1e-5, atol=1e-5)
    gradient = normgen.kernel("full_sum", shape=(5, 96), direction="backward", device="cpu")
    assert (gradient(np.array(2.5, np.float32), x=wide[:, :96].copy()) == 2.5).all()


def test_a_learned_scalar_has_a_gradient_that_may_be_added_to() -> None:
    x, dy = RNG.standard_normal((2, 7, 96)).astype(np.float32)
    weight, alpha = RNG.standard_normal(96).astype(np.float32), np.array(0.5, np.float32)
    asked = {"shape": (7, 96), "direction": "backward", "device": "cpu"}
    slope = dy * weight / np.cosh(0.5 * x.astype(np.float64)) ** 2
    dx, dweight, _, dalpha = normgen.kernel("dyt", **asked)(dy, x=x, alpha=alpha, weight=weight)
    assert dalpha.shape == ()
    np.testing.assert_allclose(dx, 0.5 * slope, atol=1e-6)
    np.testing.assert_allclose(dweight, (dy * np.tanh(0.5 * x.astype(np.float64))).sum(axis=0), atol=1e-5)
    np.testing.assert_allclose(dalpha, (slope * x).sum(), rtol=1e-5)
    more = normgen.kernel("dyt", accumulate=True, gradients=["alpha"], **asked)
    more(dy, x=x, alpha=alpha, weight=weight, dalpha=dalpha)
    np.testing.assert_allclose(dalpha, 2 * (slope * x).sum(), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_a_label_that_is_no_column_makes_its_row_nan_and_no_other(dtype: type, smoothing: float) -> None:
    """Loss and gradient, of the derived backward pass and of the pass that writes both; an ignored row stays 0."""
    cols, far = 37, 2**40 if dtype is np.int64 else 2**31 - 1
    label = np.array([3, -1, cols, -100, -7, far, cols - 1, 0], dtype)
    is_column, is_ignored = (label >= 0) & (label < cols), label == -100
    x = RNG.standard_normal((len(label), cols)).astype(np.float32)
    share = np.exp(x.astype(np.float64))
    share /= share.sum(axis=1, keepdims=True)
    target = (1 - smoothing) * np.eye(cols)[np.where(is_column, label, 0)] + smoothing / cols
    want = np.where(is_ignored, 0, np.where(is_column, -(target * np.log(share)).sum(axis=1), np.nan))
    gradient = np.where(is_ignored[:, None], 0, np.where(is_column[:, None], share - target, np.nan))

    options = {"shape": x.shape, "dtypes": {"label": np.dtype(dtype).name.replace("int", "i")}, "device": "cpu"}
    named = {"label_smoothing": smoothing}
    ones, zeros = np.ones(len(label), np.float32), np.zeros(len(label), np.float32)
    loss, lse = normgen.kernel("cross_entropy", **options)(x, label, **named)
    np.testing.assert_allclose(loss, want, rtol=1e-5)
    assert np.isfinite(lse).all()
    dx = normgen.kernel("cross_entropy", direction="backward", **options)(ones, zeros, x, label, **named)
    np.testing.assert_allclose(dx, gradient, atol=1e-6)
    both = normgen.kernel("cross_entropy_grad", **options)
    dlogits, losses, _ = both(x, label, np.full(1, 0.5, np.float32), **named)
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    np.testing.assert_allclose(dlogits, 0.5 * gradient, atol=1e-6)
    dlogits, *_ = both(x, label, np.full(1, np.inf, np.float32), **named)  # 1 / 0: no label counts
    np.testing.assert_array_equal(dlogits[is_ignored], 0)
