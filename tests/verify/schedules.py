"""What schedules compute, emulated operation by operation in numpy float32; x: [rows, cols] float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

F = NDArray[np.float32]
Sum = Callable[[F], F]
f32 = np.float32


def serial(t: F) -> F:
    """One thread a row: one chain of additions."""
    total = np.zeros(len(t), f32)
    for column in np.ascontiguousarray(t.T):
        total += column
    return total[:, None]


def tree(t: F) -> F:
    """Halves added to each other down to one."""
    width = 1 << max(0, t.shape[1] - 1).bit_length()
    t = np.pad(t, ((0, 0), (0, width - t.shape[1])))
    while width > 1:
        width //= 2
        t = t[:, :width] + t[:, width:]
    return t


def lanes(t: F) -> F:
    """A warp a row: 32 strided chains, then the shuffle tree."""
    t = np.pad(t, ((0, 0), (0, -t.shape[1] % 32)))
    steps = t.reshape(len(t), -1, 32)
    total = np.zeros((len(t), 32), f32)
    for k in range(steps.shape[1]):
        total += steps[:, k]
    return tree(total)


SUMS: dict[str, Sum] = {"serial": serial, "tree": tree, "lanes": lanes}


def rsqrt(x: F) -> F:
    return f32(1) / np.sqrt(x)


def two_pass(x: F, add: Sum) -> tuple[F, F]:
    n = f32(x.shape[1])
    mean = add(x) / n
    centred = x - mean
    return mean, add(centred * centred) / n


def about(x: F, pivot: F, add: Sum) -> tuple[F, F]:
    """Mean and variance by the differences from a pivot."""
    n, d = f32(x.shape[1]), x - pivot
    offset = add(d) / n
    return pivot + offset, np.maximum(add(d * d) - n * (offset * offset), f32(0)) / n


def corrected_two_pass(x: F, add: Sum) -> tuple[F, F]:
    """A mean within half the standard deviation stays that of the sum."""
    n = f32(x.shape[1])
    rough = add(x) / n
    corrected, var = about(x, rough, add)
    is_far = 4 * n * (rough * rough) > add((x - rough) * (x - rough))
    return np.where(is_far, corrected, rough), var


def guarded(x: F, add: Sum) -> tuple[F, F]:
    """The variance by the sum of squares where at most a quarter of it cancels."""
    n, squares = f32(x.shape[1]), add(x * x)
    mean = add(x) / n
    left = squares - n * (mean * mean)
    is_spared = left - f32(0.75) * squares >= 0
    corrected, again = about(x, mean, add)
    return np.where(is_spared, mean, corrected), np.where(is_spared, left / n, again)


def sum_of_squares(x: F, add: Sum) -> tuple[F, F]:
    n = f32(x.shape[1])
    mean = add(x) / n
    return mean, np.maximum(add(x * x) / n - mean * mean, f32(0))


def shifted(x: F, add: Sum) -> tuple[F, F]:
    cols = x.shape[1]
    return about(x, np.median(x[:, [0, cols // 2, cols - 1]], axis=1, keepdims=True), add)


def welford(x: F, _: Sum) -> tuple[F, F]:
    """One chain of Welford steps a row."""
    mean, m2 = np.zeros(len(x), f32), np.zeros(len(x), f32)
    for k, column in enumerate(np.ascontiguousarray(x.T), 1):
        delta = column - mean
        mean = mean + delta / f32(k)
        m2 = m2 + delta * (column - mean)
    return mean[:, None], (m2 / f32(x.shape[1]))[:, None]


def welford_lanes(x: F, _: Sum) -> tuple[F, F]:
    """32 strided Welford chains, merged by Chan's formula in a tree."""
    rows, cols = x.shape
    groups = [x[:, lane::32] for lane in range(min(32, cols))]
    states = []
    for group in groups:
        mean, var = welford(group, serial)
        states.append((f32(group.shape[1]), mean, var * f32(group.shape[1])))
    states += [(f32(0), np.zeros((rows, 1), f32), np.zeros((rows, 1), f32))] * (32 - len(states))
    while len(states) > 1:
        half = len(states) // 2
        states = [_merge(a, b) for a, b in zip(states[:half], states[half:], strict=True)]
    n, mean, m2 = states[0]
    return mean, m2 / n


def _merge(a: tuple[f32, F, F], b: tuple[f32, F, F]) -> tuple[f32, F, F]:
    total = a[0] + b[0]
    delta, share = b[1] - a[1], b[0] / max(total, f32(1))
    return total, a[1] + delta * share, a[2] + b[2] + delta * delta * a[0] * share


VARIANCES = {
    "two_pass": two_pass,
    "corrected_two_pass": corrected_two_pass,
    "guarded": guarded,
    "shifted": shifted,
    "welford": welford,
    "welford_lanes": welford_lanes,
    "sum_of_squares": sum_of_squares,
}


def layernorm(inputs: dict[str, F], eps: float, variance: str, add: Sum) -> dict[str, F]:
    x = inputs["x"]
    mean, var = VARIANCES[variance](x, add)
    rstd = rsqrt(var + f32(eps))
    y = (x - mean) * rstd * inputs["weight"] + inputs["bias"]
    return {"y": y, "mean": mean[:, 0], "rstd": rstd[:, 0]}


def rmsnorm(inputs: dict[str, F], eps: float, add: Sum) -> dict[str, F]:
    x = inputs["x"]
    rstd = rsqrt(add(x * x) * (f32(1) / f32(x.shape[1])) + f32(eps))
    return {"y": x * (rstd * inputs["weight"]), "rstd": rstd[:, 0]}


def softmax(inputs: dict[str, F], add: Sum) -> dict[str, F]:
    x = inputs["x"]
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return {"y": e * (f32(1) / add(e))}


def online_softmax(inputs: dict[str, F], _: Sum) -> dict[str, F]:
    """One chain of online steps a row; the lowest finite float32 stands for an empty maximum."""
    x = inputs["x"]
    top, total = np.full(len(x), np.finfo(f32).min, f32), np.zeros(len(x), f32)
    for column in np.ascontiguousarray(x.T):
        new = np.where(np.isnan(column), column, np.maximum(top, column))
        total = total * np.exp(top - new) + np.exp(column - new)
        top = new
    return {"y": np.exp(x - top[:, None]) / total[:, None]}


def log_softmax(inputs: dict[str, F], add: Sum) -> dict[str, F]:
    x = inputs["x"]
    top = x.max(axis=1, keepdims=True)
    return {"y": x - top - np.log(add(np.exp(x - top)))}


def layernorm_backward(inputs: dict[str, F], add: Sum) -> dict[str, F]:
    n, dy, rstd = f32(inputs["x"].shape[1]), inputs["dy"], inputs["rstd"][:, None]
    xhat = (inputs["x"] - inputs["mean"][:, None]) * rstd
    wdy = dy * inputs["weight"]
    dx = rstd * (wdy - add(wdy) / n - xhat * (add(wdy * xhat) / n))
    return {"dx": dx, "dweight": serial((dy * xhat).T.copy())[:, 0], "dbias": tree(dy.T.copy())[:, 0]}


def rmsnorm_backward(inputs: dict[str, F], add: Sum) -> dict[str, F]:
    """The row factor pulled out of the reduction: Σ wdy x, times rstd² / n."""
    x, dy, rstd = inputs["x"], inputs["dy"], inputs["rstd"][:, None]
    wdy = dy * inputs["weight"]
    inner = add(wdy * x) * rstd * rstd / f32(x.shape[1])
    return {"dx": rstd * (wdy - x * inner), "dweight": serial((dy * (x * rstd)).T.copy())[:, 0]}


def softmax_backward(inputs: dict[str, F], add: Sum) -> dict[str, F]:
    dy, y = inputs["dy"], inputs["y"]
    return {"dx": y * (dy - add(dy * y))}


def log_softmax_backward(inputs: dict[str, F], add: Sum) -> dict[str, F]:
    dy, y = inputs["dy"], inputs["y"]
    return {"dx": dy - np.exp(y) * add(dy)}
