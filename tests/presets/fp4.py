"""What the libraries compute in NVFP4 and MXFP4, operation by operation in float32, given the row statistic.

As `references`: which value is rounded to T and when, what a scale is computed from and how it is rounded, what becomes
of groups of zeros. A quotient of a library's approximate reciprocal is IEEE's here, as in its exact mode. Codes are
found by comparing with the middles between two of them, two a byte, the even column in the low four bits.
"""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tests.presets.references import ONE, QMAX, Array, Given, Values, _amax

SIXTH = ONE / np.float32(6)
LARGEST = np.float32(np.finfo(np.float32).max)
NUMBERS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)  # of each code
MIDDLES = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))


def codes(value: Array) -> npt.NDArray[np.uint8]:
    """The code of each number: as many middles as lie below it; a middle itself belongs to the even code."""
    size = np.abs(value)
    found = np.zeros(value.shape, np.uint8)
    for middle, is_above in MIDDLES:
        found += (size >= middle) if is_above else (size > middle)
    found = np.where(np.isnan(value), np.uint8(7), found | (np.signbit(value).astype(np.uint8) << 3))
    return found.astype(np.uint8)


def two_a_byte(value: Array) -> npt.NDArray[np.uint8]:
    found = codes(value)
    return found[:, ::2] | (found[:, 1::2] << 4)


def e4m3(value: Array) -> npt.NDArray[np.generic]:
    return np.clip(value, -QMAX, QMAX).astype(ml_dtypes.float8_e4m3fn)


def _nvfp4(value: Array, scale: npt.NDArray[np.generic], factor: Callable[[Array], Array]) -> Values:
    read = np.repeat(scale.astype(np.float32), 16, axis=1)
    return {"scale": scale, "q": two_a_byte((value * factor(read)).astype(np.float32))}


def _mxfp4(value: Array, exponent: npt.NDArray[np.int64], *, zero: npt.NDArray[np.bool_] | None = None) -> Values:
    """The scale 2^exponent of each group, as far as an f8e8m0 has it; times 0 where a group's factor is 0."""
    kept = np.clip(exponent, -127, 127)
    scaled = np.ldexp(value.astype(np.float64), -np.repeat(kept, 32, axis=1))
    scaled = scaled if zero is None else np.where(np.repeat(zero, 32, axis=1), 0.0 * value, scaled)
    with np.errstate(over="ignore"):
        q = two_a_byte(scaled.astype(np.float32))
    return {"scale": (kept + 127).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu), "q": q}


def _groups(value: Array, size: int) -> Array:
    return _amax(value, size)[:, ::size]


def _floor(value: Array) -> npt.NDArray[np.int64]:
    """The exponent of the power of two that is not above it; of 0 one below all."""
    mantissa, exponent = np.frexp(value.astype(np.float64))
    found = np.where(np.isinf(value), 128, exponent - 1)
    return np.where(mantissa == 0, -1000, found).astype(np.int64)


def _ceil(value: Array) -> npt.NDArray[np.int64]:
    mantissa, exponent = np.frexp(value.astype(np.float64))
    found = np.where(np.isinf(value), 128, exponent - (mantissa == 0.5))
    return np.where(mantissa == 0, -1000, found).astype(np.int64)


# ---- quantisation alone ------------------------------------------------------------------------------------------


def _flashinfer_nvfp4(given: Given, value: Array) -> Values:
    """e4m3(S * (amax * rcp(6))); min(1 / (sf * (1 / S)), FLT_MAX), 0 where amax is 0."""
    s, amax = given["global_scale"], _groups(value, 16)
    is_0 = np.repeat(amax == 0, 16, axis=1)
    return _nvfp4(
        value,
        e4m3(s * (amax * SIXTH)),
        lambda sf: np.where(is_0, np.float32(0), np.minimum(ONE / (sf * (ONE / s)), LARGEST)),
    )


def flashinfer_quantize_to_nvfp4(given: Given) -> Values:
    return _flashinfer_nvfp4(given, given["x"])


def flashinfer_silu_mul_to_nvfp4(given: Given) -> Values:
    """Given the gated value in T, whose exponential differs from library to library."""
    return _flashinfer_nvfp4(given, given["y"])


def _vllm_nvfp4(given: Given, value: Array) -> Values:
    """The same scale; 1 / (sf * (1 / S)), 0 where the scale is 0."""
    s = given["global_scale"]
    scale = e4m3(s * (_groups(value, 16) * SIXTH))
    return _nvfp4(value, scale, lambda sf: np.where(sf == 0, np.float32(0), ONE / (sf * (ONE / s))))


def vllm_quantize_to_nvfp4(given: Given) -> Values:
    return _vllm_nvfp4(given, given["x"])


def vllm_silu_mul_to_nvfp4(given: Given) -> Values:
    return _vllm_nvfp4(given, given["y"])


def te_quantize_to_nvfp4(given: Given) -> Values:
    """e4m3(amax * (S * (1 / 6))); min(1 / (sf * (1 / S)), FLT_MAX)."""
    s = given["global_scale"]
    scale = e4m3(_groups(given["x"], 16) * (s * SIXTH))
    return _nvfp4(given["x"], scale, lambda sf: np.minimum(ONE / (sf * (ONE / s)), LARGEST))


def flashinfer_quantize_to_mxfp4(given: Given) -> Values:
    amax = _groups(given["x"], 32)
    return _mxfp4(given["x"], _ceil(amax * SIXTH), zero=amax == 0)


def quack_quantize_to_mxfp4(given: Given) -> Values:
    return _mxfp4(given["x"], _ceil(_groups(given["x"], 32) / np.float32(6)))


def ocp_quantize_to_mxfp4(given: Given) -> Values:
    """floor(log2(amax)) less the exponent of the largest number, 2."""
    return _mxfp4(given["x"], _floor(_groups(given["x"], 32)) - 2)


def vllm_quantize_to_mxfp4(given: Given) -> Values:
    """A quarter of the last mantissa bit's worth is added to amax before its exponent is taken: up from 1.75 on."""
    amax = _groups(given["x"], 32)
    bits = amax.astype(np.float32).view(np.uint32) + np.uint32(1 << 21)
    return _mxfp4(given["x"], _floor((bits & np.uint32(0x7F800000)).view(np.float32)) - 2)


# ---- norms -------------------------------------------------------------------------------------------------------


def _flashinfer_norm_nvfp4(given: Given, y: Array, amax: Array) -> Values:
    """e4m3(min(S * amax * rcp(6), 448)); rcp(sf) * S, 0 where the scale is 0."""
    s = given["global_scale"]
    scale = e4m3(np.minimum(s * amax * SIXTH, QMAX))
    return _nvfp4(y, scale, lambda sf: np.where(sf == 0, np.float32(0), ONE / sf * s))


def _flashinfer_norm_mxfp4(y: Array, amax: Array) -> Values:
    exponent = _ceil(amax * SIXTH)
    return _mxfp4(y, exponent, zero=exponent <= -127)


def _of_rounded_product(given: Given, group: int) -> tuple[Array, Array]:
    """T(x * w) * s, and its largest magnitude from that of T(x * w)."""
    v = given.rounded(given["x"] * given["weight"])
    return v * given["rstd"], _groups(v, group) * given["rstd"]


def flashinfer_rmsnorm_to_nvfp4(given: Given) -> Values:
    return _flashinfer_norm_nvfp4(given, *_of_rounded_product(given, 16))


def flashinfer_rmsnorm_to_mxfp4(given: Given) -> Values:
    return _flashinfer_norm_mxfp4(*_of_rounded_product(given, 32))


def _of_rounded_sum(given: Given) -> tuple[Array, Values]:
    h = given.total
    return given.rounded(h) * given["rstd"] * given["weight"], {"h": h.astype(given.dtype)}


def flashinfer_add_rmsnorm_to_nvfp4(given: Given) -> Values:
    y, stored = _of_rounded_sum(given)
    return stored | _flashinfer_norm_nvfp4(given, y, _groups(y, 16))


def flashinfer_add_rmsnorm_to_mxfp4(given: Given) -> Values:
    y, stored = _of_rounded_sum(given)
    return stored | _flashinfer_norm_mxfp4(y, _groups(y, 32))


FP4: dict[str, Callable[[Given], Values]] = {
    function.__name__: function
    for function in (
        flashinfer_quantize_to_nvfp4,
        flashinfer_silu_mul_to_nvfp4,
        flashinfer_rmsnorm_to_nvfp4,
        flashinfer_add_rmsnorm_to_nvfp4,
        flashinfer_quantize_to_mxfp4,
        flashinfer_rmsnorm_to_mxfp4,
        flashinfer_add_rmsnorm_to_mxfp4,
        vllm_quantize_to_nvfp4,
        vllm_silu_mul_to_nvfp4,
        vllm_quantize_to_mxfp4,
        te_quantize_to_nvfp4,
        quack_quantize_to_mxfp4,
        ocp_quantize_to_mxfp4,
    )
}
