"""What the libraries compute, operation by operation in float32, given the row statistic of the kernel.

Each is written from the library's description: which value is rounded to T, the dtype of the row, and when; whether a
scale divides or its reciprocal multiplies; how small a scale may be; what becomes of NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Values = dict[str, npt.NDArray[np.generic]]
ONE = np.float32(1)
QMAX = np.float32(448)


@dataclass(frozen=True)
class Given:
    """What a call gets, in float32: tensors by name, `rstd` as [rows, 1]; T, and the weight's dtype."""

    values: Mapping[str, Array]
    dtype: npt.DTypeLike
    weight_dtype: npt.DTypeLike

    def __getitem__(self, name: str) -> Array:
        return self.values[name]

    def rounded(self, value: Array) -> Array:
        return value.astype(self.dtype).astype(np.float32)

    @property
    def total(self) -> Array:
        return self["x"] + self["residual"]


def _grouped(value: Array, group: int) -> Array:
    return value.reshape(len(value), -1, group)


def _amax(value: Array, group: int) -> Array:
    """The largest magnitude: of each row, or of each `group` columns, once for each column."""
    if not group:
        return np.abs(value).max(axis=1, keepdims=True)
    found = np.abs(_grouped(value, group)).max(axis=2)
    return np.repeat(found, group, axis=1)


def _fp8(value: Array) -> npt.NDArray[np.generic]:
    """Round to nearest even, saturating; NaN stays NaN."""
    return np.clip(value, -QMAX, QMAX).astype(ml_dtypes.float8_e4m3fn)


def _fp8_or_largest(value: Array) -> npt.NDArray[np.generic]:
    """fmax(-448, fmin(v, 448)), in which NaN becomes 448."""
    return np.fmax(-QMAX, np.fmin(value, QMAX)).astype(ml_dtypes.float8_e4m3fn)


def _int8(value: Array) -> npt.NDArray[np.generic]:
    return np.clip(np.rint(value), -128, 127).astype(np.int8)


def _scales(value: Array, group: int) -> Array:
    return value[:, ::group] if group else value[:, 0]


def _norm_in_t(given: Given, row: Array) -> Array:
    """T(x * s) * w in T."""
    return given.rounded(given.rounded(row * given["rstd"]) * given["weight"])


# ---- plain norms -------------------------------------------------------------------------------------------------


def flashinfer_rmsnorm(given: Given) -> Values:
    return {"y": (given["x"] * given["rstd"] * given["weight"]).astype(given.dtype)}


def flashinfer_fused_add_rmsnorm(given: Given) -> Values:
    h = given.total
    return {"h": h.astype(given.dtype), "y": (h * given["rstd"] * given["weight"]).astype(given.dtype)}


def flashinfer_gemma_rmsnorm(given: Given) -> Values:
    h = given.total
    return {"h": h.astype(given.dtype), "y": (h * given["rstd"] * (ONE + given["weight"])).astype(given.dtype)}


def hf_llama(given: Given) -> Values:
    """hidden_states = residual + x in T; weight * (hidden_states.float() * s).to(T)."""
    h = given.rounded(given.total)
    y = given["weight"] * given.rounded(h * given["rstd"])
    return {"h": h.astype(given.dtype), "y": y.astype(given.dtype)}


# ---- vLLM --------------------------------------------------------------------------------------------------------


def vllm_add_rmsnorm(given: Given) -> Values:
    h = given.rounded(given.total)
    return {"h": h.astype(given.dtype), "y": _norm_in_t(given, h).astype(given.dtype)}


def _vllm_ir_norm(given: Given, row: Array) -> npt.NDArray[np.generic]:
    """x.to(weight.dtype) * weight, whose product has the weight's dtype too, and then .to(orig_dtype)."""
    scaled = row * given["rstd"]
    if "weight" in given.values:
        scaled = scaled.astype(given.weight_dtype).astype(np.float32) * given["weight"]
        scaled = scaled.astype(given.weight_dtype).astype(np.float32)
    return scaled.astype(given.dtype)


def vllm_ir_rmsnorm(given: Given) -> Values:
    return {"y": _vllm_ir_norm(given, given["x"])}


def vllm_ir_add_rmsnorm(given: Given) -> Values:
    return {"h": given.total.astype(given.dtype), "y": _vllm_ir_norm(given, given.total)}


def _vllm_static(given: Given, row: Array) -> npt.NDArray[np.generic]:
    return _fp8_or_largest(_norm_in_t(given, row) * (ONE / given["scale"]))


def vllm_rmsnorm_to_fp8(given: Given) -> Values:
    return {"q": _vllm_static(given, given["x"])}


def vllm_add_rmsnorm_to_fp8(given: Given) -> Values:
    h = given.rounded(given.total)
    return {"h": h.astype(given.dtype), "q": _vllm_static(given, h)}


def _vllm_dynamic(given: Given, row: Array, group: int = 0) -> Values:
    y = _norm_in_t(given, row)
    least = ONE / np.float32(448 * 512)
    scale = np.maximum(np.minimum(_amax(y, group), given["scale_ub"]) / QMAX, least)
    return {"scale": _scales(scale, group), "q": _fp8(y / scale)}


def vllm_rmsnorm_to_fp8_token(given: Given) -> Values:
    return _vllm_dynamic(given, given["x"])


def vllm_add_rmsnorm_to_fp8_token(given: Given) -> Values:
    return {"h": given.total.astype(given.dtype), **_vllm_dynamic(given, given.total)}


def vllm_rmsnorm_to_fp8_group(given: Given) -> Values:
    return _vllm_dynamic(given, given["x"], 128)


def vllm_add_rmsnorm_to_fp8_group(given: Given) -> Values:
    return {"h": given.total.astype(given.dtype), **_vllm_dynamic(given, given.total, 128)}


def vllm_rmsnorm_to_int8_token(given: Given) -> Values:
    y = _norm_in_t(given, given["x"])
    scale = np.maximum(_amax(y, 0) / np.float32(127), np.finfo(np.float32).eps)
    return {"scale": scale[:, 0], "q": _int8(y * (ONE / scale))}


def vllm_quantize_to_fp8_group(given: Given) -> Values:
    scale = np.maximum(_amax(given["x"], 128), np.float32(1e-10)) / QMAX
    return {"scale": scale[:, ::128], "q": _fp8(given["x"] / scale)}


def vllm_quantize_to_int8_group(given: Given) -> Values:
    scale = np.maximum(_amax(given["x"], 128), np.float32(1e-10)) / np.float32(127)
    return {"scale": scale[:, ::128], "q": _int8(given["x"] / scale)}


# ---- FlashInfer --------------------------------------------------------------------------------------------------


def flashinfer_rmsnorm_to_fp8(given: Given) -> Values:
    y = given["x"] * given["rstd"] * given["weight"]
    return {"q": _fp8_or_largest(y * (ONE / given["scale"]))}


def flashinfer_add_rmsnorm_to_fp8(given: Given) -> Values:
    y = given.total * given["rstd"] * given["weight"]
    return {"h": given.total.astype(given.dtype), "q": _fp8_or_largest(y * (ONE / given["scale"]))}


def flashinfer_quantize_to_fp8_group(given: Given) -> Values:
    scale = np.maximum(_amax(given["x"], 128), np.float32(1e-10)) / QMAX
    return {"scale": scale[:, ::128], "q": _fp8(given["x"] * (ONE / scale))}


def flashinfer_quantize_to_int8_group(given: Given) -> Values:
    scale = np.maximum(_amax(given["x"], 128), np.float32(1e-10)) / np.float32(127)
    code = np.floor(given["x"] * (ONE / scale) + np.float32(0.5))
    return {"scale": scale[:, ::128], "q": np.clip(code, -128, 127).astype(np.int8)}


def _power_at_least(value: Array) -> Array:
    """The least power of two that is not below a positive number; 2^-127 is the least of all."""
    mantissa, exponent = np.frexp(value)
    power = np.where(mantissa == np.float32(0.5), exponent - 1, exponent)
    return np.ldexp(ONE, np.clip(power, -127, 127)).astype(np.float32)


def flashinfer_quantize_to_mxfp8(given: Given) -> Values:
    amax = _amax(given["x"], 32)
    scale = _power_at_least(np.where(amax > 0, amax * (ONE / QMAX), np.float32(2.0**-127)))
    q = np.where(amax > 0, given["x"] * (ONE / scale), np.float32(0))
    return {"scale": scale[:, ::32].astype(ml_dtypes.float8_e8m0fnu), "q": _fp8(q)}


# ---- Transformer Engine, DeepGEMM, TileKernels, QuACK ------------------------------------------------------------


def te_rmsnorm_to_fp8(given: Given) -> Values:
    y = given["x"] * given["rstd"] * given["weight"]
    return {"amax": np.abs(y).max(axis=1), "q": _fp8(y * given["scale"])}


def te_quantize_to_fp8_group(given: Given) -> Values:
    """scale = 448 / amax with its mantissa cut off; 1 where amax is 0."""
    amax = _amax(given["x"], 128)
    exact = np.where(amax > 0, np.minimum(QMAX / np.where(amax > 0, amax, ONE), np.finfo(np.float32).max), ONE)
    scale = (exact.astype(np.float32).view(np.uint32) & np.uint32(0x7F800000)).view(np.float32)
    return {"scale_inv": (ONE / scale)[:, ::128], "q": _fp8(given["x"] * scale)}


def deepgemm_quantize_to_fp8_group(given: Given) -> Values:
    scale = np.maximum(_amax(given["x"], 128), np.float32(1e-4)) / QMAX
    return {"scale": scale[:, ::128], "q": _fp8(given["x"] * (ONE / scale))}


def tilekernels_quantize_to_fp8_group(given: Given) -> Values:
    """The factor is 448 / amax, and no reciprocal of the scale."""
    amax = np.maximum(_amax(given["x"], 128), np.float32(1e-4))
    return {"scale": (amax / QMAX)[:, ::128], "q": _fp8(given["x"] * (QMAX / amax))}


def _mxfp8(given: Given, ratio: Array) -> Values:
    scale = _power_at_least(np.maximum(ratio, np.float32(2.0**-127)))
    return {"scale": scale[:, ::32].astype(ml_dtypes.float8_e8m0fnu), "q": _fp8(given["x"] * (ONE / scale))}


def quack_quantize_to_mxfp8(given: Given) -> Values:
    return _mxfp8(given, _amax(given["x"], 32) / QMAX)


def te_quantize_to_mxfp8(given: Given) -> Values:
    return _mxfp8(given, _amax(given["x"], 32) * (ONE / QMAX))


# ---- SGLang ------------------------------------------------------------------------------------------------------


def sglang_add_rmsnorm_to_fp8_token(given: Given) -> Values:
    h = given.total
    y = h * given["rstd"] * given["weight"]
    scale = np.maximum(_amax(y, 0), np.float32(1e-10)) / QMAX
    stored = {"h": h.astype(given.dtype), "y": y.astype(given.dtype), "scale": scale[:, 0]}
    return {**stored, "q": _fp8(y * (ONE / scale))}


# ---- what exponentials and error functions are in, which differ from library to library ---------------------------


def _vllm_ir_sparse(given: Given, gelu: Callable[[Array], Array]) -> Values:
    """relu(gate - (mean + std * multiplier)), its GELU, times up: each step in T."""
    least = given.rounded(given.rounded(given["mean"]) + given.rounded(given["std"] * given["std_multiplier"]))
    z = np.maximum(given.rounded(given["gate"] - least), np.float32(0))
    return {"y": (given.rounded(gelu(z)) * given["up"]).astype(given.dtype)}


def vllm_ir_gelu_mul_sparse(given: Given) -> Values:
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return _vllm_ir_sparse(given, lambda z: (0.5 * z * (1 + erf(z * math.sqrt(0.5)))).astype(np.float32))


def vllm_ir_gelu_tanh_mul_sparse(given: Given) -> Values:
    def gelu(z: Array) -> Array:
        wide = z.astype(np.float64)
        return (0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))).astype(np.float32)

    return _vllm_ir_sparse(given, gelu)


# The library's operation, by the preset that rounds where it does; some elements are one unit of T off.
CLOSE: dict[str, Callable[[Given], Values]] = {
    "vllm_ir_gelu_mul_sparse": vllm_ir_gelu_mul_sparse,
    "vllm_ir_gelu_tanh_mul_sparse": vllm_ir_gelu_tanh_mul_sparse,
}


# The library's operation, by the spec that has its bits: a preset of its own, or one that ships for all.
BITS: dict[str, Callable[[Given], Values]] = {
    "rmsnorm": flashinfer_rmsnorm,
    "add_rmsnorm": flashinfer_fused_add_rmsnorm,
    "gemma_rmsnorm": flashinfer_gemma_rmsnorm,
    "llama_rmsnorm": hf_llama,
    **{
        function.__name__: function
        for function in (
            vllm_add_rmsnorm,
            vllm_ir_rmsnorm,
            vllm_ir_add_rmsnorm,
            vllm_rmsnorm_to_fp8,
            vllm_add_rmsnorm_to_fp8,
            vllm_rmsnorm_to_fp8_token,
            vllm_add_rmsnorm_to_fp8_token,
            vllm_rmsnorm_to_fp8_group,
            vllm_add_rmsnorm_to_fp8_group,
            vllm_rmsnorm_to_int8_token,
            vllm_quantize_to_fp8_group,
            vllm_quantize_to_int8_group,
            flashinfer_rmsnorm_to_fp8,
            flashinfer_add_rmsnorm_to_fp8,
            flashinfer_quantize_to_fp8_group,
            flashinfer_quantize_to_int8_group,
            flashinfer_quantize_to_mxfp8,
            te_rmsnorm_to_fp8,
            te_quantize_to_fp8_group,
            te_quantize_to_mxfp8,
            deepgemm_quantize_to_fp8_group,
            tilekernels_quantize_to_fp8_group,
            quack_quantize_to_mxfp8,
            sglang_add_rmsnorm_to_fp8_token,
        )
    },
}
