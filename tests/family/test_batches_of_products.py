"""Products with a matrix for each batch, and softmax times V, against numpy by hand: no formula is read here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import normgen
from normgen.cpu import find_compiler
from normgen.knobs import Copy, Hold, SoftmaxMethod
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import list_specs

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
Array = NDArray[Any]
ROWS, INNER, COLS, SCALE = 20, 44, 24, 0.125
TILE = Schedule(hold=Hold.SHARED, copy=Copy.DIRECT, stages=2, vector=4, tile_m=16, tile_n=32, tile_k=8, thread_m=2)
OPS = ("bmm", "softmax_v", "masked_softmax_v", "causal_softmax_v")
WAYS = {"ahead": TILE.varied(thread_n=4), "online": TILE.varied(thread_n=4, softmax=SoftmaxMethod.ONLINE)}


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def handle(op: str, **asked: Any) -> Any:
    return normgen.kernel(op, shape=(3, ROWS, COLS), inner=INNER, device="cpu", **asked)


def weights(z: Array) -> Array:
    with np.errstate(invalid="ignore"):
        e = np.exp(z - z.max(axis=-1, keepdims=True))
        return np.asarray(e / e.sum(axis=-1, keepdims=True))


def scores(batches: int, rows: int) -> Array:
    """Maxima that move in every tile, that are there from the start, that come last; -inf in runs, and all over."""
    s = 8 * drawn(batches, rows, INNER)
    ramp = np.arange(INNER, dtype=np.float32)
    s[:, 1], s[:, 2] = 4 * ramp, -4 * ramp
    s[:, 3, -1] = 100
    s[:, 4, :20] = s[:, 5, 9:] = -np.inf
    s[:, 6], s[:, 7] = 3.0, -np.inf
    s[:, 8, 30] = 1e4
    return s


@pytest.mark.parametrize("batches", [(3,), (2, 2), (1,)], ids=str)
def test_each_batch_is_multiplied_by_its_matrix(batches: tuple[int, ...]) -> None:
    x, w = drawn(*batches, ROWS, INNER), drawn(*batches, INNER, COLS)
    y = handle("bmm")(x, w)
    assert y.shape == (*batches, ROWS, COLS)
    np.testing.assert_allclose(y, x.astype(np.float64) @ w, rtol=1e-5, atol=1e-5)


def test_the_gradients_of_a_batch_are_made_of_its_rows_alone() -> None:
    x, w, dy = drawn(3, ROWS, INNER), drawn(3, INNER, COLS), drawn(3, ROWS, COLS)
    given = {"x": x, "w": w, "dy": dy}
    want = {"x": dy.astype(np.float64) @ w.transpose(0, 2, 1), "w": x.astype(np.float64).transpose(0, 2, 1) @ dy}
    for name in want:
        kernel = handle("bmm", direction="backward", gradients=(name,))
        found = kernel(**{t.name: given[t.name] for t in kernel.problem.tensors if not t.is_written})
        np.testing.assert_allclose(found, want[name], rtol=1e-5, atol=1e-5)


def test_each_row_of_a_batch_has_the_statistics_of_its_result(tmp_path: Path) -> None:
    """No tile has rows of two batches, and each finds the place of its rows among those of all."""
    spec = tmp_path / "bmm_rms.toml"
    text = (list_specs()["bmm"]).read_text()
    text = text.replace("[formulas]", 'rms = "row_output"\ntop = "row_output"\n[formulas]')
    spec.write_text(text + 'rms = "sqrt(mean(y * y))"\ntop = "max(y)"\n')
    x, w = drawn(3, ROWS, INNER), drawn(3, INNER, COLS)
    asked = {"shape": (3, ROWS, COLS), "inner": INNER, "device": "cpu", "schedule": TILE.varied(thread_n=4, tile_n=16)}
    y, rms, top = normgen.kernel(str(spec), **asked)(x, w)
    want = x.astype(np.float64) @ w
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rms, np.sqrt((want**2).mean(axis=-1)), rtol=1e-5)
    np.testing.assert_allclose(top, want.max(axis=-1), rtol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_a_softmax_times_v_is_that_of_numpy(way: str) -> None:
    s, v = scores(3, ROWS), drawn(3, INNER, COLS)
    y, row_max, row_sum = handle("softmax_v", schedule=WAYS[way])(s, v, scale=SCALE)
    z = SCALE * s.astype(np.float64)
    want = weights(z) @ v
    assert np.isnan(want[:, 7]).all(), "a row of nothing but -inf has no weights"
    np.testing.assert_allclose(y, want, rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(row_max, (SCALE * s).max(-1))
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(row_sum, np.exp(z - z.max(-1, keepdims=True)).sum(-1), rtol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_the_gradients_of_a_softmax_times_v_are_kernels_of_what_it_saves(way: str) -> None:
    s, v, dy = scores(3, ROWS), drawn(3, INNER, COLS), drawn(3, ROWS, COLS)
    s[:, 7] = 0.5
    kept = dict(
        zip(("y", "row_max", "row_sum"), handle("softmax_v", schedule=WAYS[way])(s, v, scale=SCALE), strict=True)
    )
    p, upstream = weights(SCALE * s.astype(np.float64)), dy @ v.astype(np.float64).transpose(0, 2, 1)
    want = {"s": SCALE * p * (upstream - (upstream * p).sum(-1, keepdims=True)), "v": p.transpose(0, 2, 1) @ dy}
    for name in want:
        kernel = handle("softmax_v", direction="backward", gradients=(name,))
        given = {"s": s, "v": v, "dy": dy, **kept}
        found = kernel(**{t.name: given[t.name] for t in kernel.problem.tensors if not t.is_written}, scale=SCALE)
        np.testing.assert_allclose(found, want[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_a_mask_hides_what_it_hides_in_numpy(way: str) -> None:
    s, v = scores(3, ROWS), drawn(3, INNER, COLS)
    mask = np.where(drawn(3, ROWS, INNER, seed=1) > 0, np.float32(-np.inf), np.float32(0.5))
    mask[:, 9], mask[:, 10, 1:] = -np.inf, -np.inf
    y, *_ = handle("masked_softmax_v", schedule=WAYS[way])(s, mask, v, scale=SCALE)
    want = weights(SCALE * s.astype(np.float64) + mask) @ v
    assert np.isnan(want[:, 9]).all()
    assert np.isfinite(want[:, 10]).any()
    np.testing.assert_allclose(y, want, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_a_causal_row_ends_at_the_diagonal_of_its_square(way: str) -> None:
    s, v = scores(3, INNER), drawn(3, INNER, COLS)
    s[:, 5] = drawn(INNER)
    s[:, 7] = drawn(INNER)
    y, *_ = handle("causal_softmax_v", schedule=WAYS[way])(s, v, scale=SCALE)
    later = np.arange(INNER) > np.arange(INNER)[:, np.newaxis]
    want = weights(np.where(later, -np.inf, SCALE * s.astype(np.float64))) @ v
    np.testing.assert_allclose(y, want, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(y[:, 0], v[:, 0], rtol=1e-6)


def test_16_bit_scores_are_summed_in_float32() -> None:
    s, v = drawn(3, ROWS, INNER).astype(np.float16), drawn(3, INNER, COLS).astype(np.float16)
    y, *_ = handle("softmax_v", dtype="f16", schedule=WAYS["online"])(s, v, scale=SCALE)
    want = (weights(SCALE * s.astype(np.float64)) @ v.astype(np.float64)).astype(np.float16)
    np.testing.assert_allclose(y.astype(np.float64), want, rtol=1e-3, atol=1e-4)
