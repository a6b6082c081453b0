"""What the libraries compute, in float64, written from their descriptions: no formula of a spec is read here.

    FORWARD[op](tensors, scalars)   -> written tensors
    BACKWARD[op](tensors, scalars)  -> gradients; saved tensors are taken as they were given

Elem tensors are [rows, cols], values of rows [rows, 1], of columns [1, cols], of groups [rows, cols / 128], single
numbers [1, 1]. A tensor that is absent is not in `tensors`. `scalars["stored"]` rounds to the dtype of the first input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Tensors = Mapping[str, Array]
Scalars = Mapping[str, Any]
Function = Callable[[Tensors, Scalars], dict[str, Array]]

FP8, INT8 = 448.0, 127.0
GROUP = 128


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    """torch.nn.functional.silu."""
    return x * sigmoid(x)


def silu_slope(x: Array) -> Array:
    return sigmoid(x) * (1 + x * (1 - sigmoid(x)))


def row_mean(x: Array) -> Array:
    return x.mean(axis=1, keepdims=True)


def row_sum(x: Array) -> Array:
    return x.sum(axis=1, keepdims=True)


def over_rows(x: Array) -> Array:
    return x.sum(axis=0, keepdims=True)


def rms(x: Array, eps: float) -> Array:
    return 1 / np.sqrt(row_mean(np.square(x)) + eps)


# The norms of FlashInfer, QuACK, Gemma, Hugging Face, Mamba 2 and FasterTransformer.


def add_rmsnorm(t: Tensors, s: Scalars) -> dict[str, Array]:
    """FlashInfer's fused_add_rmsnorm: the float32 sum is normalised, and stored for the next layer."""
    total = t["x"] + t["residual"]
    rstd = rms(total, s["eps"])
    return {"h": total, "rstd": rstd, "y": total * rstd * t.get("weight", 1.0)}


def gemma_rmsnorm(t: Tensors, s: Scalars) -> dict[str, Array]:
    """FlashInfer's gemma_rmsnorm and gemma_fused_add_rmsnorm: the weight is stored less 1."""
    total = t["x"] + t.get("residual", 0.0)
    rstd = rms(total, s["eps"])
    return {"h": total, "rstd": rstd, "y": total * rstd * (1 + t["weight"])}


def llama_rmsnorm(t: Tensors, s: Scalars) -> dict[str, Array]:
    """LlamaRMSNorm of transformers: hidden.to(input_dtype) before the weight; the residual is added in that dtype."""
    total = s["stored"](t["x"] + t.get("residual", 0.0))
    rstd = rms(total, s["eps"])
    return {"h": total, "rstd": rstd, "y": s["stored"](total * rstd) * t.get("weight", 1.0)}


def gate_rmsnorm(t: Tensors, s: Scalars) -> dict[str, Array]:
    """mamba_ssm rmsnorm_fn(x, weight, None, z, norm_before_gate=False)."""
    gated = t["x"] * silu(t["z"])
    rstd = rms(gated, s["eps"])
    return {"rstd": rstd, "y": gated * rstd * t.get("weight", 1.0)}


def rmsnorm_gate(t: Tensors, s: Scalars) -> dict[str, Array]:
    """mamba_ssm rmsnorm_fn(x, weight, None, z, norm_before_gate=True)."""
    rstd = rms(t["x"], s["eps"])
    return {"rstd": rstd, "y": t["x"] * rstd * t.get("weight", 1.0) * silu(t["z"])}


def add_layernorm(t: Tensors, s: Scalars) -> dict[str, Array]:
    """FasterTransformer's addBiasResidualLayerNorm: layer output + its bias + one or two residuals, then LayerNorm."""
    total = t["x"] + t.get("x_bias", 0.0) + t["residual"] + t.get("residual2", 0.0)
    mean = row_mean(total)
    rstd = 1 / np.sqrt(row_mean(np.square(total - mean)) + s["eps"])
    y = (total - mean) * rstd * t.get("weight", 1.0) + t.get("bias", 0.0)
    return {"h": total, "mean": mean, "rstd": rstd, "y": y}


def rms_gradient(d: Array, x: Array, rstd: Array) -> Array:
    """Of x in x rstd, for the gradient d of that product."""
    return rstd * d - x * rstd**3 * row_mean(d * x)


def add_rmsnorm_backward(t: Tensors, _: Scalars) -> dict[str, Array]:
    d = rms_gradient(t["dy"] * t.get("weight", 1.0), t["h"], t["rstd"]) + t["dh"]
    return {"dx": d, "dresidual": d, "dweight": over_rows(t["dy"] * t["h"] * t["rstd"])}


def gemma_rmsnorm_backward(t: Tensors, _: Scalars) -> dict[str, Array]:
    d = rms_gradient(t["dy"] * (1 + t["weight"]), t["h"], t["rstd"]) + t["dh"]
    return {"dx": d, "dresidual": d, "dweight": over_rows(t["dy"] * t["h"] * t["rstd"])}


def llama_rmsnorm_backward(t: Tensors, s: Scalars) -> dict[str, Array]:
    """The roundings pass a gradient on; that of the weight meets the rounded row."""
    d = rms_gradient(t["dy"] * t.get("weight", 1.0), t["h"], t["rstd"]) + t["dh"]
    return {"dx": d, "dresidual": d, "dweight": over_rows(t["dy"] * s["stored"](t["h"] * t["rstd"]))}


def gate_rmsnorm_backward(t: Tensors, _: Scalars) -> dict[str, Array]:
    gated = t["x"] * silu(t["z"])
    d = rms_gradient(t["dy"] * t.get("weight", 1.0), gated, t["rstd"])
    dweight = over_rows(t["dy"] * gated * t["rstd"])
    return {"dx": d * silu(t["z"]), "dz": d * t["x"] * silu_slope(t["z"]), "dweight": dweight}


def rmsnorm_gate_backward(t: Tensors, _: Scalars) -> dict[str, Array]:
    normed, weight = t["x"] * t["rstd"], t.get("weight", 1.0)
    dnormed = t["dy"] * silu(t["z"])
    return {
        "dx": rms_gradient(dnormed * weight, t["x"], t["rstd"]),
        "dz": t["dy"] * normed * weight * silu_slope(t["z"]),
        "dweight": over_rows(dnormed * normed),
    }


def add_layernorm_backward(t: Tensors, _: Scalars) -> dict[str, Array]:
    """With xhat = (h - mean) rstd: rstd (d - mean(d) - xhat mean(d xhat)), and what the sum itself was given."""
    xhat = (t["h"] - t["mean"]) * t["rstd"]
    d = t["dy"] * t.get("weight", 1.0)
    d = t["rstd"] * (d - row_mean(d) - xhat * row_mean(d * xhat)) + t["dh"]
    columns = {"dx_bias": over_rows(d), "dweight": over_rows(t["dy"] * xhat), "dbias": over_rows(t["dy"])}
    return {"dx": d, "dresidual": d, "dresidual2": d, **columns}


# Activations: gate and up come as two tensors.

_erf = np.vectorize(math.erf, otypes=[np.float64])


def normal_cdf(x: Array) -> Array:
    return 0.5 * (1 + _erf(x / math.sqrt(2)))


def normal_pdf(x: Array) -> Array:
    return np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def gelu_tanh(x: Array) -> tuple[Array, Array]:
    """torch's gelu(approximate="tanh") and its slope."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    half = 0.5 * (1 + np.tanh(inner))
    return x * half, half + 0.5 * x * (1 - np.tanh(inner) ** 2) * slope


def swiglu(t: Tensors, _: Scalars) -> dict[str, Array]:
    """FlashInfer's silu_and_mul: one rounding."""
    return {"y": silu(t["gate"]) * t["up"]}


def swiglu_backward(t: Tensors, _: Scalars) -> dict[str, Array]:
    return {"dgate": t["dy"] * t["up"] * silu_slope(t["gate"]), "dup": t["dy"] * silu(t["gate"])}


def geglu(t: Tensors, _: Scalars) -> dict[str, Array]:
    return {"y": t["gate"] * normal_cdf(t["gate"]) * t["up"]}


def geglu_backward(t: Tensors, _: Scalars) -> dict[str, Array]:
    slope = normal_cdf(t["gate"]) + t["gate"] * normal_pdf(t["gate"])
    return {"dgate": t["dy"] * t["up"] * slope, "dup": t["dy"] * t["gate"] * normal_cdf(t["gate"])}


def geglu_tanh(t: Tensors, _: Scalars) -> dict[str, Array]:
    return {"y": gelu_tanh(t["gate"])[0] * t["up"]}


def geglu_tanh_backward(t: Tensors, _: Scalars) -> dict[str, Array]:
    value, slope = gelu_tanh(t["gate"])
    return {"dgate": t["dy"] * t["up"] * slope, "dup": t["dy"] * value}


def swiglu_clamped(t: Tensors, s: Scalars) -> dict[str, Array]:
    """gpt-oss: gate.clamp(max=limit), up.clamp(-limit, limit); (up + 1) gate sigmoid(alpha gate)."""
    gate = np.minimum(t["gate"], s["limit"])
    up = np.minimum(np.maximum(t["up"], -s["limit"]), s["limit"])
    return {"y": (up + s["shift"]) * gate * sigmoid(s["alpha"] * gate)}


def swiglu_clamped_backward(t: Tensors, s: Scalars) -> dict[str, Array]:
    """torch's clamp passes a gradient at its ends, and none beyond; a row with a NaN is NaN there."""
    gate = np.minimum(t["gate"], s["limit"])
    up = np.minimum(np.maximum(t["up"], -s["limit"]), s["limit"])
    share = sigmoid(s["alpha"] * gate)
    slope = share * (1 + s["alpha"] * gate * (1 - share))
    dgate = t["dy"] * (up + s["shift"]) * slope * (t["gate"] <= s["limit"])
    dup = t["dy"] * gate * share * (np.abs(t["up"]) <= s["limit"])
    return {"dgate": dgate, "dup": dup}


# Softmaxes and losses.


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / row_sum(e)


def softmax_gradient(dy: Array, y: Array) -> Array:
    return y * (dy - row_sum(dy * y))


def masked_softmax(t: Tensors, s: Scalars) -> dict[str, Array]:
    return {"y": softmax(t["x"] * s["scale"] + t.get("mask", 0.0))}


def safe_masked_softmax(t: Tensors, s: Scalars) -> dict[str, Array]:
    z = s["scale"] * t["x"] + t.get("mask", 0.0)
    hidden = z.max(axis=1, keepdims=True) == -np.inf
    return {"y": np.where(hidden, 0.0, softmax(np.where(hidden, 0.0, z)))}


def safe_masked_softmax_backward(t: Tensors, s: Scalars) -> dict[str, Array]:
    d = softmax_gradient(t["dy"], safe_masked_softmax(t, s)["y"])
    return {"dx": s["scale"] * d, "dmask": d}


def masked_softmax_backward(t: Tensors, s: Scalars) -> dict[str, Array]:
    d = softmax_gradient(t["dy"], t["y"])
    return {"dx": s["scale"] * d, "dmask": d}


def causal_softmax(t: Tensors, s: Scalars) -> dict[str, Array]:
    """Megatron's scaled_upper_triang_masked_softmax, of matrices that lie one below the other."""
    rows, cols = t["x"].shape
    mask = np.tri(cols)[np.arange(rows) % cols] != 0
    return {"y": softmax(np.where(mask, t["x"] * s["scale"], -np.inf))}


def causal_softmax_backward(t: Tensors, s: Scalars) -> dict[str, Array]:
    rows, cols = t["dy"].shape
    mask = np.tri(cols)[np.arange(rows) % cols] != 0
    return {"dx": mask * s["scale"] * softmax_gradient(t["dy"], t["y"])}


def softmax_sink(t: Tensors, _: Scalars) -> dict[str, Array]:
    """gpt-oss: softmax of the row with its sink behind it, which is then cut off."""
    return {"y": softmax(np.concatenate([t["x"], t["sink"]], axis=1))[:, :-1]}


def softmax_sink_backward(t: Tensors, _: Scalars) -> dict[str, Array]:
    """The sink's own gradient is 0 upstream: it takes part in the sum alone."""
    dot = row_sum(t["dy"] * t["y"])
    sink = softmax(np.concatenate([t["x"], t["sink"]], axis=1))[:, -1:]
    return {"dx": t["y"] * (t["dy"] - dot), "dsink": -sink * dot}


def log_softmax(x: Array) -> tuple[Array, Array]:
    top = x.max(axis=1, keepdims=True)
    log_total = np.log(row_sum(np.exp(x - top)))
    return (x - top) - log_total, top + log_total


def cross_entropy(t: Tensors, s: Scalars) -> dict[str, Array]:
    """torch's cross_entropy(reduction="none", label_smoothing=...), and Liger's z-loss on top.

    A label that is no column, and not the ignored one, is the caller's fault, where torch ends the program: NaN.
    """
    rows, cols = t["x"].shape
    logp, lse = log_softmax(t["x"])
    label = t["label"].reshape(-1).astype(int)
    is_column = (label >= 0) & (label < cols)
    picked = np.where(is_column, logp[np.arange(rows), np.where(is_column, label, 0)], np.nan)[:, None]
    smoothing = s["label_smoothing"]
    smooth = -smoothing * row_mean(logp) if smoothing else 0.0
    loss = -(1 - smoothing) * picked + smooth + s["z_loss"] * lse**2
    return {"loss": np.where(t["label"] == s["ignore_index"], 0.0, loss), "lse": lse}


def by_logits(t: Tensors, s: Scalars) -> Array:
    """d loss / d x."""
    _, lse = log_softmax(t["x"])
    cols = t["x"].shape[1]
    wanted = np.full_like(t["x"], s["label_smoothing"] / cols)
    wanted += np.where(np.arange(cols) == t["label"], 1 - s["label_smoothing"], 0.0)
    found = softmax(t["x"]) * (1 + 2 * s["z_loss"] * lse) - wanted
    found = np.where((t["label"] >= 0) & (t["label"] < cols), found, np.nan)
    return np.where(t["label"] == s["ignore_index"], 0.0, found)


def cross_entropy_grad(t: Tensors, s: Scalars) -> dict[str, Array]:
    """Liger's cross_entropy_forward, which leaves the gradient of the mean in the place of the logits."""
    scale = t.get("grad_scale", 1.0)
    dlogits = np.where(t["label"] == s["ignore_index"], 0.0, by_logits(t, s) * scale)
    return {**cross_entropy(t, s), "dlogits": dlogits}


def cross_entropy_backward(t: Tensors, s: Scalars) -> dict[str, Array]:
    is_counted = t["label"] != s["ignore_index"]
    return {"dx": np.where(is_counted, t["dloss"] * by_logits(t, s), 0.0) + t["dlse"] * softmax(t["x"])}


def cross_entropy_total(t: Tensors, s: Scalars) -> dict[str, Array]:
    return {"total_loss": cross_entropy(t, s)["loss"].sum(), "counted": (t["label"] != s["ignore_index"]).sum()}


def cross_entropy_total_backward(t: Tensors, s: Scalars) -> dict[str, Array]:
    return {"dx": np.where(t["label"] != s["ignore_index"], t["dtotal_loss"] * by_logits(t, s), 0.0)}


def kl_div(t: Tensors, _: Scalars) -> dict[str, Array]:
    """torch's kl_div(x, target, reduction="none") summed along a row: nothing where the target is 0."""
    target = np.where(t["target"] > 0, t["target"], 1.0)
    return {"loss": row_sum(np.where(t["target"] > 0, target * (np.log(target) - t["x"]), 0.0))}


def kl_div_backward(t: Tensors, _: Scalars) -> dict[str, Array]:
    target = np.where(t["target"] > 0, t["target"], 1.0)
    dx, dtarget = -t["dloss"] * target, t["dloss"] * (np.log(target) - t["x"] + 1)
    return {"dx": np.where(t["target"] > 0, dx, 0.0), "dtarget": np.where(t["target"] > 0, dtarget, 0.0)}


# Quantisers: q is what is rounded to a code, within the range of its format.


def static(y: Array, t: Tensors) -> dict[str, Array]:
    return {"q": y / t["scale"]}


def per_token(y: Array, t: Tensors, s: Scalars, top: float) -> dict[str, Array]:
    """vLLM's dynamic_per_token_quant: the bound before the division; a floor of the largest magnitude."""
    amax = np.abs(y).max(axis=1, keepdims=True)
    amax = np.minimum(amax, t["scale_ub"]) if "scale_ub" in t else amax
    scale = np.maximum(amax, s["amax_min"]) / top
    return {"y": y, "scale": scale, "q": y / scale}


def per_group(y: Array, s: Scalars, top: float) -> dict[str, Array]:
    """per_token_group_quant of vLLM, SGLang and FlashInfer; DeepGEMM's per_token_cast_to_fp8 with its own floor."""
    rows, cols = y.shape
    amax = np.abs(y.reshape(rows, cols // GROUP, GROUP)).max(axis=2)
    scale = np.maximum(amax, s["amax_min"]) / top
    return {"y": y, "scale": scale, "q": y / np.repeat(scale, GROUP, axis=1)}


def rmsnorm(t: Tensors, s: Scalars) -> Array:
    return t["x"] * rms(t["x"], s["eps"]) * t.get("weight", 1.0)


def layernorm(t: Tensors, s: Scalars) -> Array:
    centred = t["x"] - row_mean(t["x"])
    rstd = 1 / np.sqrt(row_mean(np.square(centred)) + s["eps"])
    return centred * rstd * t.get("weight", 1.0) + t.get("bias", 0.0)


def _groups(y: Array, size: int) -> tuple[Array, Array]:
    """The rows by group, [rows, groups, size], and the largest magnitude of each, [rows, groups, 1]."""
    groups = y.reshape(len(y), -1, size)
    return groups, np.abs(groups).max(axis=2, keepdims=True)


def nvfp4(y: Array, t: Tensors) -> dict[str, Array]:
    """A scale is rounded as it is stored; a group whose scale is 0 is 0."""
    groups, amax = _groups(y, 16)
    scale = np.clip(amax * t["global_scale"] / 6, -FP8, FP8).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    q = groups * np.where(scale == 0, 0.0, t["global_scale"] / scale)
    return {"y": y, "scale": scale[..., 0], "q": q.reshape(y.shape)}


def mxfp4(y: Array) -> dict[str, Array]:
    """A scale is the power of two that is not below amax / 6, from 2^-127 to 2^127; a group of zeros is 0."""
    groups, amax = _groups(y, 32)
    scale = np.exp2(np.clip(np.ceil(np.log2(np.where(amax > 0, amax, 1.0) / 6)), -127, 127))
    scale = np.where(amax > 0, scale, np.where(np.isnan(amax), np.nan, 2.0**-127))
    q = groups * np.where(amax == 0, 0.0, 1 / scale)
    return {"y": y, "scale": scale[..., 0], "q": q.reshape(y.shape)}


def _added(quantised: Callable[[Array, Tensors, Scalars], dict[str, Array]]) -> Function:
    def run(t: Tensors, s: Scalars) -> dict[str, Array]:
        normed = add_rmsnorm(t, s)
        return {"h": normed["h"], **quantised(normed["y"], t, s)}

    return run


FORWARD: dict[str, Function] = {
    "add_rmsnorm": add_rmsnorm,
    "gemma_rmsnorm": gemma_rmsnorm,
    "llama_rmsnorm": llama_rmsnorm,
    "gate_rmsnorm": gate_rmsnorm,
    "rmsnorm_gate": rmsnorm_gate,
    "add_layernorm": add_layernorm,
    "swiglu": swiglu,
    "geglu": geglu,
    "geglu_tanh": geglu_tanh,
    "swiglu_clamped": swiglu_clamped,
    "masked_softmax": masked_softmax,
    "safe_masked_softmax": safe_masked_softmax,
    "causal_softmax": causal_softmax,
    "softmax_sink": softmax_sink,
    "cross_entropy": cross_entropy,
    "cross_entropy_grad": cross_entropy_grad,
    "cross_entropy_total": cross_entropy_total,
    "kl_div": kl_div,
    "rmsnorm_to_fp8": lambda t, s: static(rmsnorm(t, s), t),
    "rmsnorm_to_fp8_token": lambda t, s: per_token(rmsnorm(t, s), t, s, FP8),
    "rmsnorm_to_int8_token": lambda t, s: per_token(rmsnorm(t, s), t, s, INT8),
    "rmsnorm_to_fp8_group": lambda t, s: per_group(rmsnorm(t, s), s, FP8),
    "add_rmsnorm_to_fp8_token": _added(lambda y, t, s: per_token(y, t, s, FP8)),
    "add_rmsnorm_to_fp8_group": _added(lambda y, _, s: per_group(y, s, FP8)),
    "layernorm_to_int8": lambda t, s: static(layernorm(t, s), t),
    "layernorm_to_int8_token": lambda t, s: per_token(layernorm(t, s), t, s, INT8),
    "silu_mul_to_fp8_token": lambda t, s: per_token(swiglu(t, s)["y"], t, s, FP8),
    "silu_mul_to_fp8_group": lambda t, s: per_group(swiglu(t, s)["y"], s, FP8),
    "quantize_to_fp8_token": lambda t, s: per_token(t["x"], t, s, FP8),
    "quantize_to_fp8_group": lambda t, s: per_group(t["x"], s, FP8),
    "quantize_to_int8_token": lambda t, s: per_token(t["x"], t, s, INT8),
    "quantize_to_int8_group": lambda t, s: per_group(t["x"], s, INT8),
    "quantize_to_nvfp4": lambda t, _: nvfp4(t["x"], t),
    "quantize_to_mxfp4": lambda t, _: mxfp4(t["x"]),
    "rmsnorm_to_nvfp4": lambda t, s: nvfp4(rmsnorm(t, s), t),
    "rmsnorm_to_mxfp4": lambda t, s: mxfp4(rmsnorm(t, s)),
    "add_rmsnorm_to_nvfp4": _added(lambda y, t, _: nvfp4(y, t)),
    "add_rmsnorm_to_mxfp4": _added(lambda y, _, __: mxfp4(y)),
    "layernorm_to_nvfp4": lambda t, s: nvfp4(layernorm(t, s), t),
    "layernorm_to_mxfp4": lambda t, s: mxfp4(layernorm(t, s)),
    "silu_mul_to_nvfp4": lambda t, s: nvfp4(swiglu(t, s)["y"], t),
    "silu_mul_to_mxfp4": lambda t, s: mxfp4(swiglu(t, s)["y"]),
}
BACKWARD: dict[str, Function] = {
    "add_rmsnorm": add_rmsnorm_backward,
    "gemma_rmsnorm": gemma_rmsnorm_backward,
    "llama_rmsnorm": llama_rmsnorm_backward,
    "gate_rmsnorm": gate_rmsnorm_backward,
    "rmsnorm_gate": rmsnorm_gate_backward,
    "add_layernorm": add_layernorm_backward,
    "swiglu": swiglu_backward,
    "geglu": geglu_backward,
    "geglu_tanh": geglu_tanh_backward,
    "swiglu_clamped": swiglu_clamped_backward,
    "masked_softmax": masked_softmax_backward,
    "safe_masked_softmax": safe_masked_softmax_backward,
    "causal_softmax": causal_softmax_backward,
    "softmax_sink": softmax_sink_backward,
    "cross_entropy": cross_entropy_backward,
    "cross_entropy_total": cross_entropy_total_backward,
    "kl_div": kl_div_backward,
}
