"""Gradients against central differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from normgen.verify.interpret import Array


def finite_difference_check(
    forward: Callable[[dict[str, Array]], Array],
    inputs: Mapping[str, Array],
    upstream: Array,
    grads: Mapping[str, Array],
    *,
    step: float = 1e-3,
    directions: int = 8,
    seed: int = 0,
) -> dict[str, float]:
    """How far gradients are from central differences of L = Σ upstream * forward(inputs), per input.

    Along random directions v: (8 (L(h) - L(-h)) - (L(2h) - L(-2h))) / 12h against <grad, v>, an error of O(h⁴)
    (Abramowitz and Stegun 25.3.6). Every second direction moves one element only, so that an error in one place
    is not averaged away. The result is relative to the norm of the gradient (or 1 where that is less).
    """
    rng = np.random.default_rng(seed)
    base = {name: np.asarray(value, dtype=np.float64) for name, value in inputs.items()}

    def loss(name: str, move: Array) -> float:
        return float(np.sum(upstream * forward({**base, name: base[name] + move})))

    worst = dict.fromkeys(grads, 0.0)
    for name, grad in grads.items():
        scale = max(1.0, float(np.linalg.norm(grad)))
        for k in range(directions):
            v = rng.standard_normal(base[name].shape)
            if k % 2:
                v = np.where(np.arange(v.size).reshape(v.shape) == rng.integers(v.size), 1.0, 0.0)
            near = loss(name, step * v) - loss(name, -step * v)
            far = loss(name, 2 * step * v) - loss(name, -2 * step * v)
            slope = (8 * near - far) / (12 * step)
            worst[name] = max(worst[name], abs(slope - float(np.sum(grad * v))) / scale)
    return worst
