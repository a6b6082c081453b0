"""Handles of kernels with parameters for each batch of rows: on numpy arrays, by the emitted text."""

from __future__ import annotations

import numpy as np
import pytest

import normgen
from normgen.errors import UsageError

BATCHES, TOKENS, COLS = 3, 5, 96
RNG = np.random.default_rng(5)


@pytest.fixture(scope="module")
def adaln():
    return normgen.kernel("adaln", shape=(BATCHES, TOKENS, COLS), present=(), device="cpu")


def arrays(*shape: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, and scale and shift as a DiT block has them: two of the six parts of one projection."""
    parts = RNG.standard_normal((shape[0], 6 * COLS)).astype(np.float32)
    return RNG.standard_normal(shape).astype(np.float32), parts[:, COLS : 2 * COLS], parts[:, 4 * COLS : 5 * COLS]


def normalised(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(x - mean) / std and 1 / std in float64."""
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)
    return centred * rstd, rstd


@pytest.mark.parametrize("tokens", [TOKENS, 1, 7])
def test_each_batch_has_its_own_scale_and_shift(adaln, tokens: int) -> None:
    """Rows and batches are those of the call, not of the kernel."""
    x, scale, shift = arrays(4, tokens, COLS)
    want = normalised(x)[0] * (1 + scale[:, None].astype(np.float64)) + shift[:, None]
    y = adaln(x, scale, shift)
    assert y.shape == x.shape
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(adaln(x.reshape(-1, COLS), scale[:, None], shift=shift), y.reshape(-1, COLS))


def test_one_batch_is_for_all_rows(adaln) -> None:
    x, scale, shift = arrays(4, TOKENS, COLS)
    np.testing.assert_array_equal(adaln(x, scale[:1], shift[:1])[2], adaln(x[2:3], scale[:1], shift[:1])[0])


def test_rows_that_start_anywhere_take_the_general_kernel(adaln) -> None:
    x, scale, shift = arrays(BATCHES, TOKENS, COLS)
    wide = np.zeros((BATCHES, COLS + 3), np.float32)
    wide[:, 1 : COLS + 1] = scale
    want = normalised(x)[0] * (1 + scale[:, None].astype(np.float64)) + shift[:, None]
    np.testing.assert_allclose(adaln(x, wide[:, 1 : COLS + 1], shift), want, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def gradients():
    shape = (BATCHES, TOKENS, COLS)
    return normgen.kernel("adaln", shape=shape, direction="backward", present=("mean", "rstd"), device="cpu")


@pytest.mark.parametrize(("batches", "tokens"), [(BATCHES, TOKENS), (7, 1), (1, 40), (2, 9)])
@pytest.mark.parametrize("shifted", [False, True], ids=["aligned", "anywhere"])
def test_gradients_are_those_of_each_batch(gradients, batches: int, tokens: int, shifted: bool) -> None:
    x, scale, _ = arrays(batches, tokens, COLS)
    if shifted:
        wide = np.zeros((batches, COLS + 3), np.float32)
        wide[:, 1 : COLS + 1] = scale
        scale = wide[:, 1 : COLS + 1]
    dy = RNG.standard_normal(x.shape).astype(np.float32)
    xhat, rstd = normalised(x)
    mean = x.astype(np.float64).mean(axis=-1).astype(np.float32)
    dx, dscale, dshift = gradients(dy, x, scale, mean=mean, rstd=rstd[..., 0].astype(np.float32))
    wide_dy = dy.astype(np.float64)
    wdy = wide_dy * (1 + scale[:, None].astype(np.float64))
    along = (wdy * xhat).mean(axis=-1, keepdims=True)
    np.testing.assert_allclose(dx, rstd * (wdy - wdy.mean(axis=-1, keepdims=True) - xhat * along), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dscale, (wide_dy * xhat).sum(axis=1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dshift, wide_dy.sum(axis=1), rtol=1e-4, atol=1e-5)


def test_gradients_may_lie_apart(gradients) -> None:
    """As parts of the gradient of one projection, whose other parts stay as they are."""
    x, scale, _ = arrays(BATCHES, TOKENS, COLS)
    dy, statistic = RNG.standard_normal(x.shape).astype(np.float32), np.ones((BATCHES, TOKENS), np.float32)
    own = gradients(dy, x, scale, mean=statistic, rstd=statistic)
    parts = np.full((BATCHES, 6 * COLS), 7, np.float32)
    dx, dscale, dshift = np.empty_like(x), parts[:, COLS : 2 * COLS], parts[:, 4 * COLS : 5 * COLS]
    gradients(dy, x, scale, mean=statistic, rstd=statistic, dx=dx, dscale=dscale, dshift=dshift)
    for got, want in zip((dx, dscale, dshift), own, strict=True):
        np.testing.assert_array_equal(got, want)
    assert (parts[:, :COLS] == 7).all()
    assert (parts[:, 2 * COLS : 4 * COLS] == 7).all()


def test_the_sum_over_no_rows_is_zero() -> None:
    by_shift = normgen.kernel("adaln", shape=(2, 4, COLS), direction="backward", gradients=["shift"], device="cpu")
    empty, shift = np.zeros((2, 0, COLS), np.float32), np.ones((2, COLS), np.float32)
    np.testing.assert_array_equal(by_shift(empty, shift), np.zeros((2, COLS), np.float32))
    assert by_shift(np.zeros((0, 4, COLS), np.float32), np.zeros((0, COLS), np.float32)).shape == (0, COLS)


def test_no_rows_have_no_batches(adaln) -> None:
    empty = np.zeros((0, COLS), np.float32)
    assert adaln(empty.reshape(0, TOKENS, COLS), empty, empty).shape == (0, TOKENS, COLS)


def test_batches_that_do_not_fit_are_refused(adaln) -> None:
    x, scale, shift = arrays(4, 10, COLS)
    with pytest.raises(UsageError, match="same number of batches") as refused:
        adaln(x, scale, shift[:2])
    assert refused.value.received == "scale 4, shift 2"
    with pytest.raises(UsageError, match="equally many rows"):
        adaln(x, scale[:3], shift[:3])
    five = np.zeros((5, COLS), np.float32)
    with pytest.raises(UsageError, match="the batches are the first sizes"):
        adaln(x, five, five)
    assert adaln(x.reshape(40, COLS), five, five).shape == (40, COLS)


def test_an_output_that_meets_a_batch_parameter_is_refused(adaln) -> None:
    x, scale, shift = arrays(BATCHES, 1, COLS)
    with pytest.raises(UsageError, match="must not share memory") as refused:
        adaln(x, scale, shift, out=scale[:, None])
    assert refused.value.received == "'y' and 'scale' at one address"


def test_an_output_in_the_gaps_of_a_batch_parameter_is_allowed(adaln) -> None:
    """The rows of scale, 2 x COLS apart, and those of y between them share no byte."""
    x, _, shift = arrays(BATCHES, 1, COLS)
    both = np.zeros((BATCHES, 2 * COLS), np.float32)
    adaln(x.reshape(BATCHES, COLS), both[:, :COLS], shift, out=both[:, COLS:])
    np.testing.assert_allclose(both[:, COLS:], normalised(x)[0].reshape(BATCHES, COLS) + shift, rtol=1e-5, atol=1e-5)
