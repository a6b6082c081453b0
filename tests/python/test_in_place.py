"""Handles whose outputs take the place of inputs, and of gradients that are stored once: on numpy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normgen
from normgen.errors import UsageError
from normgen.python.handle import Kernel
from tests.python.devices import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER
ADD_RMSNORM = """
name = "add_rmsnorm"
[tensors]
x = "input"
residual = "input"
weight = "parameter"
h = "output"
y = "output"
[formulas]
h = "x + residual"
y = "h * rsqrt(mean(h * h) + 1e-6) * weight"
"""
RNG = np.random.default_rng(3)
WEIGHT = np.linspace(0.5, 1.5, 64, dtype=np.float32)


@pytest.fixture
def made(tmp_path: Path) -> Any:
    file = tmp_path / "add_rmsnorm.toml"
    file.write_text(ADD_RMSNORM)

    def kernel(**asked: Any) -> Kernel:
        return normgen.kernel(str(file), shape=(5, 64), device="cpu", **asked)

    return kernel


def rows(count: int = 5, cols: int = 64) -> np.ndarray[Any, Any]:
    return RNG.standard_normal((count, cols)).astype(np.float32)


def normalised(h: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(h / np.sqrt((h * h).mean(axis=1, keepdims=True) + 1e-6) * WEIGHT)


def test_the_call_overwrites_an_array_and_returns_it(made: Any) -> None:
    x, residual = rows(), rows()
    want = x + residual
    h, y = made(in_place={"h": "residual"})(x, residual, WEIGHT)
    assert h is residual
    np.testing.assert_array_equal(residual, want)
    np.testing.assert_allclose(y, normalised(want), rtol=1e-5)


def test_with_every_output_in_place_nothing_is_allocated(made: Any) -> None:
    x, residual = rows(7), rows(7)
    want = x + residual
    h, y = made(in_place={"h": "residual", "y": "x"})(x, residual, WEIGHT)
    assert h is residual
    assert y is x
    np.testing.assert_allclose(x, normalised(want), rtol=1e-5)


def test_out_is_the_first_output_that_is_not_in_place(made: Any) -> None:
    x, residual, y = rows(), rows(), rows()
    kernel = made(in_place={"h": "residual"})
    want = normalised(x + residual)
    assert kernel(x, residual, WEIGHT, out=y)[1] is y
    np.testing.assert_allclose(y, want, rtol=1e-5)
    with pytest.raises(UsageError, match="unknown name"):
        made(in_place={"h": "residual", "y": "x"})(x, residual, WEIGHT, out=y)


def test_a_general_kernel_is_in_place_too(made: Any) -> None:
    wide = rows(5, 71)
    x, residual = rows(), wide[:, 3:67]
    beside, want = wide.copy(), x + residual
    h, y = made(in_place={"h": "residual"})(x, residual, WEIGHT)
    assert h is residual
    np.testing.assert_array_equal(residual, want)
    np.testing.assert_array_equal(wide[:, :3], beside[:, :3])
    np.testing.assert_array_equal(wide[:, 67:], beside[:, 67:])
    np.testing.assert_allclose(y, normalised(want), rtol=1e-5)


def test_an_output_in_place_has_no_array_of_its_own(made: Any) -> None:
    kernel = made(in_place={"h": "residual"})
    with pytest.raises(UsageError, match="'h' has no array of its own: 'residual' holds it"):
        kernel(rows(), rows(), WEIGHT, h=rows(), y=rows())


def test_what_is_overwritten_can_be_written(made: Any) -> None:
    residual = rows()
    residual.flags.writeable = False
    with pytest.raises(UsageError, match="wrong access of 'residual'"):
        made(in_place={"h": "residual"})(rows(), residual, WEIGHT)


def test_memory_that_is_shared_without_a_word_is_refused(made: Any) -> None:
    memory = rows(6)
    with pytest.raises(UsageError, match="must not share memory") as refused:
        made()(memory[:5], rows(), WEIGHT, h=memory[:5], y=rows())
    assert refused.value.hint is not None
    assert "in_place={'h': 'x'}" in refused.value.hint
    kernel = made(in_place={"h": "residual"})
    for x, y in ((memory[1:], rows()), (memory[:5], rows()), (rows(), memory[1:])):
        with pytest.raises(UsageError, match="must not share memory"):
            kernel(x, memory[:5], WEIGHT, y=y)


def test_equal_gradients_are_one_array(made: Any) -> None:
    backward = made(direction="backward")
    dh, dy, x, residual = (rows() for _ in range(4))
    dx, dresidual, dweight = backward(dh, dy, x, residual, WEIGHT)
    assert dx is dresidual
    alone = made(direction="backward", gradients=("residual",))(dh, dy, x, residual, WEIGHT)
    np.testing.assert_allclose(alone, dx, rtol=1e-4, atol=1e-6)
    h = x + residual
    scale = 1 / np.sqrt((h * h).mean(axis=1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(dweight, (dy * h * scale).sum(axis=0), rtol=1e-4, atol=1e-5)
    wdy = dy * WEIGHT
    want = dh + scale * (wdy - h * scale**2 * (wdy * h).mean(axis=1, keepdims=True))
    np.testing.assert_allclose(dx, want, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="'dresidual' has no array of its own: 'dx' holds it"):
        backward(dh, dy, x, residual, WEIGHT, dx=rows(), dresidual=rows(), dweight=WEIGHT.copy())


def test_a_gradient_takes_the_place_of_the_one_that_comes_in(made: Any) -> None:
    dh, dy, x, residual = (rows() for _ in range(4))
    want = made(direction="backward")(dh, dy, x, residual, WEIGHT)[0]
    dx, dresidual, _ = made(direction="backward", in_place={"dx": "dy"})(dh, dy, x, residual, WEIGHT)
    assert dx is dy
    assert dresidual is dy
    np.testing.assert_array_equal(dy, want)
