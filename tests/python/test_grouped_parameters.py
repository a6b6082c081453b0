"""Handles of kernels with parameters for each group of columns: on numpy arrays, by the emitted text."""

from __future__ import annotations

import numpy as np
import pytest

import normgen
from normgen.errors import UsageError
from tests.codegen.test_grouped_parameters import of, reference

COLS, GROUP = 120, 20
RNG = np.random.default_rng(7)
EACH = np.arange(COLS) // GROUP
NORM = of("batch_parameter", GROUP)


@pytest.fixture(scope="module")
def norm():
    return normgen.kernel(NORM, shape=(4, 3, COLS), present=("weight",), device="cpu")


def arrays(batches: int, rows: int) -> tuple[np.ndarray, ...]:
    """x, weight, bias and scale, whose rows lie apart."""
    wide = RNG.standard_normal((batches, COLS // GROUP + 3)).astype(np.float32)
    x = RNG.standard_normal((batches, rows, COLS)).astype(np.float32)
    weight, bias = (RNG.standard_normal(size).astype(np.float32) for size in (COLS // GROUP, COLS))
    return x, weight, bias, wide[:, : COLS // GROUP]


@pytest.mark.parametrize(("batches", "rows"), [(4, 3), (1, 5), (7, 1), (2, 9)])
def test_each_batch_has_a_scale_for_each_group(norm, batches: int, rows: int) -> None:
    """A batch for each row, and one for all of them; the rows of x may lie anywhere, which is another kernel's."""
    x, weight, bias, scale = arrays(batches, rows)
    y, rms = norm(x, weight, bias, scale)
    each = np.repeat(scale, rows, axis=0)[:, EACH].astype(np.float64)
    want, wanted_rms = reference(x.reshape(-1, COLS).astype(np.float64), each, weight[EACH], bias)
    np.testing.assert_allclose(y.reshape(-1, COLS), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(rms.reshape(-1, 1), wanted_rms, rtol=1e-5)
    apart = np.zeros((batches, rows, COLS + 1), np.float32)
    apart[..., 1:] = x
    np.testing.assert_allclose(norm(apart[..., 1:], weight, bias, scale)[0], y, rtol=1e-5, atol=1e-5)
    dy, backward = (
        np.ones_like(x),
        normgen.kernel(NORM, shape=(4, 3, COLS), direction="backward", present=("weight",), device="cpu"),
    )
    given = {"dy": dy, "x": x, "weight": weight, "scale": scale, "rms": rms}
    dx, dweight, dbias, dscale = backward(**given)
    near = (
        reference(x.reshape(-1, COLS).astype(np.float64) + sign * 1e-5, each, weight[EACH], bias)[0].sum(1)
        for sign in (1.0, -1.0)
    )
    up, down = near
    np.testing.assert_allclose(dx.reshape(-1, COLS).sum(1), (up - down) / 2e-5, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(dbias, np.full(COLS, batches * rows), rtol=1e-6)
    by_weight = ((want - bias) / weight[EACH]).sum(axis=0).reshape(-1, GROUP).sum(axis=1)
    np.testing.assert_allclose(dweight, by_weight, rtol=1e-3, atol=1e-3)
    assert dscale.shape == scale.shape
    for batch, group in np.ndindex(scale.shape):
        step = 1e-4 * np.outer(np.repeat(np.arange(batches), rows) == batch, group == EACH)
        up, down = (
            reference(x.reshape(-1, COLS).astype(np.float64), each + sign * step, weight[EACH], bias)[0].sum()
            for sign in (1.0, -1.0)
        )
        np.testing.assert_allclose(dscale[batch, group], (up - down) / 2e-4, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("wrong", "rule", "received"),
    [
        ({"weight": np.ones(COLS, np.float32)}, r"wrong shape of 'weight': expected \[cols / 20\] = \(6,\)", "(120,)"),
        ({"scale": np.ones((4, COLS), np.float32)}, r"\[.., cols / 20\] with cols / 20 = 6", "(4, 120)"),
        ({"scale": np.ones((5, 6), np.float32)}, "the batches have equally many rows", "12 rows, 5 batches of 'scale'"),
        ({"scale": np.ones((4, 12), np.float32)[:, ::2]}, "contiguous columns", "strides (12, 2)"),
    ],
)
def test_what_does_not_fit_is_refused(norm, wrong: dict[str, np.ndarray], rule: str, received: str) -> None:
    x, weight, bias, scale = arrays(4, 3)
    given = {"x": x, "weight": weight, "bias": bias, "scale": scale, **wrong}
    with pytest.raises(UsageError, match=rule) as refused:
        norm(**given)
    assert refused.value.received == received
