"""A softmax whose mask leaves nothing of a row: 0, and a gradient of 0."""

from __future__ import annotations

import numpy as np
import pytest

import normgen

SPEC = "safe_masked_softmax"


@pytest.mark.parametrize("cols", [7, 300, 5000])
def test_a_row_that_the_mask_hides_is_0_and_its_gradient_too(cols: int) -> None:
    random = np.random.default_rng(cols)
    x, dy = (random.standard_normal((5, cols), dtype=np.float32) for _ in range(2))
    mask = np.where(random.random((5, cols)) < 0.5, -np.inf, 0).astype(np.float32)
    mask[1], mask[3], mask[4] = -np.inf, -np.inf, 0
    mask[3, 2] = 0

    y = normgen.kernel(SPEC, shape=(5, cols), device="cpu")(x, mask)
    assert (y[1] == 0).all()
    assert y[3, 2] == 1
    np.testing.assert_allclose(y.sum(axis=1), [1, 0, 1, 1, 1], atol=1e-5)
    plain = normgen.kernel("masked_softmax", shape=(5, cols), device="cpu")(x, mask)
    assert np.isnan(plain[1]).all()
    np.testing.assert_allclose(y[[0, 2, 3, 4]], plain[[0, 2, 3, 4]], rtol=1e-5)

    dx, dmask = normgen.kernel(SPEC, shape=(5, cols), direction="backward", device="cpu")(dy=dy, x=x, mask=mask)
    assert (dx[1] == 0).all()
    assert (dmask[1] == 0).all()
    wide = y.astype(np.float64)
    want = wide * (dy - (dy * wide).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(dx, want, atol=1e-6)
    np.testing.assert_allclose(dmask, want, atol=1e-6)
