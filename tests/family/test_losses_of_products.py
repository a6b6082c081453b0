"""Losses of a linear layer's logits, by kernels on the CPU executor, beside float64: no formula of ours in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normgen
from normgen.device import TARGETS
from normgen.errors import SpecError
from normgen.measure.cpu_check import has_compiler
from normgen.program.source import problem_for
from normgen.schedule.space import space
from normgen.spec.reader import load, parse

needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
H200 = TARGETS["h200"]
SIZES = [(5, 100, 33), (37, 301, 72), (130, 520, 136), (1, 1, 1), (64, 50, 264)]
NUMBERS = {"label_smoothing": 0.1, "z_loss": 0.03}


def drawn(rows: int, cols: int, inner: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(rows + cols + inner)
    x, w = (rng.normal(size=(n, inner)).astype(np.float16) / 4 for n in (rows, cols))
    label = rng.integers(0, cols, rows)
    label[rows // 2] = -100
    return x, w, label


def logits(x: Any, w: Any) -> tuple[Any, Any]:
    """With the log of the sum of their exponentials."""
    z = x.astype(np.float64) @ w.astype(np.float64).T
    top = z.max(axis=1, keepdims=True)
    return z, (top + np.log(np.exp(z - top).sum(axis=1, keepdims=True)))[:, 0]


@needs_compiler
@pytest.mark.parametrize(("rows", "cols", "inner"), SIZES)
@pytest.mark.parametrize("numbers", [{}, NUMBERS], ids=["plain", "smoothed"])
def test_loss_and_its_gradient_by_the_logits(rows: int, cols: int, inner: int, numbers: dict[str, float]) -> None:
    x, w, label = drawn(rows, cols, inner)
    z, lse = logits(x, w)
    counts = label != -100
    smoothing, z_loss = numbers.get("label_smoothing", 0.0), numbers.get("z_loss", 0.0)
    right = z[np.arange(rows), np.where(counts, label, 0)]
    expected = lse - (1 - smoothing) * right - smoothing * z.mean(axis=1) + z_loss * lse**2
    made = normgen.kernel("linear_cross_entropy", shape=(rows, cols), inner=inner, dtype="f16", device="cpu")
    loss, found = made(x, w, label, **numbers)
    np.testing.assert_allclose(found, lse, rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(loss, np.where(counts, expected, 0), rtol=1e-5, atol=1e-5)

    first = cols // 3
    own, dloss = w[first:], np.linspace(-1, 2, rows, dtype=np.float32)
    wanted = (np.arange(first, cols) == label[:, None]) * (1 - smoothing) + smoothing / cols
    slope = np.exp(z[:, first:] - lse[:, None]) * (1 + 2 * z_loss * lse)[:, None] - wanted
    shape = (rows, cols - first)
    made = normgen.kernel("linear_cross_entropy_grad", shape=shape, inner=inner, dtype="f16", device="cpu")
    dlogits = made(x, own, label, lse.astype(np.float32), dloss, first=first, classes=cols, **numbers)
    exact = np.where(counts[:, None], dloss[:, None] * slope, 0)
    np.testing.assert_allclose(dlogits.astype(np.float64), exact, rtol=1.5e-3, atol=4e-6)


@needs_compiler
def test_a_label_that_is_no_class_is_nan_and_a_row_of_minus_infinities_too() -> None:
    x, w, label = drawn(7, 40, 16)
    label[:2] = 40, -3
    x[4], w[:, 0] = 0, 1
    x[4, 0] = -np.inf
    made = normgen.kernel("linear_cross_entropy", shape=(7, 40), inner=16, dtype="f16", device="cpu")
    loss, lse = made(x, w, label)
    assert np.isnan(loss[[0, 1, 4]]).all()
    assert np.isfinite(loss[[2, 3, 5, 6]]).all()
    assert np.isnan(lse[4])


def test_there_are_tiles_of_tensor_cores_for_them() -> None:
    for op in ("linear_cross_entropy", "linear_cross_entropy_grad"):
        legal = space(problem_for(load(op), shape="4096x50257", inner=4096, dtype="bf16"), H200).legal
        assert {str(s.fragment) for s in legal} >= {"mma"}, op


CHAINED = """
name = "spread"
[tensors]
x = { role = "input", axes = ["rows", "inner"] }
w = { role = "parameter", axes = ["inner", "cols"] }
s = "row_output"
[formulas]
z = "x @ w"
s = "sum((z - max(z)) * z)"
"""


def test_other_chains_of_reductions_are_refused_with_their_formula() -> None:
    with pytest.raises(SpecError, match="waits for another one") as found:
        space(problem_for(parse(CHAINED), shape="8x16", inner=8), H200)
    assert "<spec>:9" in str(found.value)
