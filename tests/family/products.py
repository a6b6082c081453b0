"""Products of matrices in float64 numpy, written from the papers and torch's pages: no formula of a spec is read here.

    FORWARD[op](tensors, scalars)   -> written tensors
    BACKWARD[op](tensors, scalars)  -> the gradient of every input and parameter, for dy

x: [rows, inner]; w, w_gate, w_up: [inner, cols]; weight: [inner]; bias: [cols]; residual, y, dy: [rows, cols];
rstd: [rows]. A tensor that is absent is not in `tensors`.
"""

from __future__ import annotations

import math

import numpy as np

from tests.family.references import Array, Function, Scalars, Tensors, silu, silu_slope

erf = np.vectorize(math.erf, otypes=[np.float64])


def linear(t: Tensors, _: Scalars) -> dict[str, Array]:
    """torch.nn.functional.linear, whose weight is turned."""
    return {"y": t["x"] @ t["w"] + t.get("bias", 0.0)}


def linear_backward(t: Tensors, _: Scalars) -> dict[str, Array]:
    return {"dx": t["dy"] @ t["w"].T, "dw": t["x"].T @ t["dy"], "dbias": t["dy"].sum(axis=0)}


def nearest_tf32(x: Array) -> Array:
    """Of a float32 the 10 bits of fraction that are nearest, of two the even ones: PTX ISA, cvt.rn.tf32.f32."""
    bits = x.astype(np.float32).view(np.uint32)
    near = ((bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000).view(np.float32)
    return np.asarray(np.where(np.isnan(x), x, near.astype(np.float64)))


def linear_tf32(t: Tensors, s: Scalars) -> dict[str, Array]:
    """torch.nn.functional.linear with allow_tf32, where each factor is rounded to nearest."""
    return linear({**t, "x": nearest_tf32(t["x"]), "w": nearest_tf32(t["w"])}, s)


def linear_tf32_backward(t: Tensors, s: Scalars) -> dict[str, Array]:
    """Straight through the roundings."""
    return linear_backward({**t, "x": nearest_tf32(t["x"]), "w": nearest_tf32(t["w"])}, s)


def linear_add(t: Tensors, s: Scalars) -> dict[str, Array]:
    """torch.addmm of a residual."""
    return {"y": linear(t, s)["y"] + t["residual"]}


def linear_add_backward(t: Tensors, s: Scalars) -> dict[str, Array]:
    return {**linear_backward(t, s), "dresidual": t["dy"]}


def linear_add_rms(t: Tensors, s: Scalars) -> dict[str, Array]:
    """torch.addmm of a residual, and the factor of torch.nn.functional.rms_norm of it."""
    h = linear_add(t, s)["y"]
    return {"h": h, "rstd": 1 / np.sqrt((h**2).mean(axis=1) + s["eps"])}


def linear_add_rms_backward(t: Tensors, s: Scalars) -> dict[str, Array]:
    """d rstd / dh = -rstd³ h / cols."""
    made = linear_add_rms(t, s)
    slope = made["rstd"][:, None] ** 3 * made["h"] / t["w"].shape[1]
    return linear_add_backward({**t, "dy": t["dh"] - t["drstd"][:, None] * slope}, s)


def linear_bias_gelu(t: Tensors, s: Scalars) -> dict[str, Array]:
    """GELU(z) = z Φ(z), Hendrycks and Gimpel 2016; torch.nn.functional.gelu of approximate = none."""
    z = linear(t, s)["y"]
    return {"y": z * 0.5 * (1 + erf(z / math.sqrt(2)))}


def linear_bias_gelu_backward(t: Tensors, s: Scalars) -> dict[str, Array]:
    """GELU'(z) = Φ(z) + z φ(z)."""
    z = linear(t, s)["y"]
    slope = 0.5 * (1 + erf(z / math.sqrt(2))) + z * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    return linear_backward({**t, "dy": t["dy"] * slope}, s)


def linear_swiglu(t: Tensors, _: Scalars) -> dict[str, Array]:
    """SwiGLU(x) = SiLU(x W) * x V without biases, Shazeer 2020, eq. 6."""
    return {"y": silu(t["x"] @ t["w_gate"]) * (t["x"] @ t["w_up"])}


def linear_swiglu_backward(t: Tensors, _: Scalars) -> dict[str, Array]:
    gate, up = t["x"] @ t["w_gate"], t["x"] @ t["w_up"]
    dgate, dup = t["dy"] * up * silu_slope(gate), t["dy"] * silu(gate)
    return {
        "dx": dgate @ t["w_gate"].T + dup @ t["w_up"].T,
        "dw_gate": t["x"].T @ dgate,
        "dw_up": t["x"].T @ dup,
    }


def linear_swiglu_to_fp8_group(t: Tensors, s: Scalars) -> dict[str, Array]:
    """The activation's quantisation of DeepSeek-V3, section 3.3: tiles of 1 x 128, the largest of each at 448."""
    y = linear_swiglu(t, s)["y"]
    amax = np.abs(y.reshape(len(y), -1, 128)).max(axis=2)
    scale = np.maximum(amax, s["amax_min"]) / 448
    return {"scale": scale, "q": y / np.repeat(scale, 128, axis=1)}


def rmsnorm_linear(t: Tensors, s: Scalars) -> dict[str, Array]:
    """torch.nn.functional.rms_norm, then a linear layer."""
    rstd = 1 / np.sqrt((t["x"] ** 2).mean(axis=1, keepdims=True) + s["eps"])
    return {"rstd": rstd[:, 0], "y": (t["x"] * rstd * t.get("weight", 1.0)) @ t["w"]}


def rmsnorm_linear_backward(t: Tensors, s: Scalars) -> dict[str, Array]:
    """That of the norm, of what the linear layer gives back: dn = dy w^T."""
    rstd = 1 / np.sqrt((t["x"] ** 2).mean(axis=1, keepdims=True) + s["eps"])
    weight, dn = t.get("weight", 1.0), t["dy"] @ t["w"].T
    xhat, scaled = t["x"] * rstd, dn * weight
    return {
        "dx": rstd * (scaled - xhat * (scaled * xhat).mean(axis=1, keepdims=True)),
        "dweight": (dn * xhat).sum(axis=0),
        "dw": (xhat * weight).T @ t["dy"],
    }


def linear_cross_entropy(t: Tensors, s: Scalars) -> dict[str, Array]:
    """torch.nn.functional.cross_entropy of a linear layer's logits, and PaLM's z-loss."""
    z, label = t["x"] @ t["w"], t["label"].astype(np.int64)
    lse = np.logaddexp.reduce(z, axis=1)
    counts, is_column = label != s["ignore_index"], (label >= 0) & (label < z.shape[1])
    right = z[np.arange(len(z)), np.where(is_column, label, 0)]
    smoothing = s["label_smoothing"]
    found = lse - (1 - smoothing) * right - smoothing * z.mean(axis=1) + s["z_loss"] * lse**2
    return {"lse": lse, "loss": np.where(counts, np.where(is_column, found, np.nan), 0)}


def linear_cross_entropy_grad(t: Tensors, s: Scalars) -> dict[str, Array]:
    """softmax(z) less what is wanted, of the classes from `first` on."""
    z, label, lse, dloss = t["x"] @ t["w"], t["label"].astype(np.float64), t["lse"][:, None], t["dloss"][:, None]
    smoothing, classes = s["label_smoothing"], s["classes"]
    wanted = (np.arange(z.shape[1]) == (label - s["first"])[:, None]) * (1 - smoothing) + smoothing / classes
    found = dloss * (np.exp(z - lse) * (1 + 2 * s["z_loss"] * lse) - wanted)
    is_column = ((label >= 0) & (label < classes))[:, None]
    return {"dlogits": np.where((label == s["ignore_index"])[:, None], 0, np.where(is_column, found, np.nan))}


FORWARD: dict[str, Function] = {
    "linear": linear,
    "linear_add": linear_add,
    "linear_add_rms": linear_add_rms,
    "linear_bias_gelu": linear_bias_gelu,
    "linear_cross_entropy": linear_cross_entropy,
    "linear_cross_entropy_grad": linear_cross_entropy_grad,
    "linear_swiglu": linear_swiglu,
    "linear_swiglu_to_fp8_group": linear_swiglu_to_fp8_group,
    "linear_tf32": linear_tf32,
    "rmsnorm_linear": rmsnorm_linear,
}
BACKWARD: dict[str, Function] = {
    "linear": linear_backward,
    "linear_add": linear_add_backward,
    "linear_add_rms": linear_add_rms_backward,
    "linear_bias_gelu": linear_bias_gelu_backward,
    "linear_swiglu": linear_swiglu_backward,
    "linear_tf32": linear_tf32_backward,
    "rmsnorm_linear": rmsnorm_linear_backward,
}
