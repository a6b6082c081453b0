"""The number formats a tensor may be stored in. Arithmetic is always float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from normgen.errors import UsageError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class DType:
    """A stored number format.

    `unit_roundoff` is half the distance from 1 to the next number (u = 2^-p for p significant bits);
    `smallest_normal` bounds from where on that relative error no longer holds.
    """

    name: str
    bytes: int
    ctype: str  # its name in emitted CUDA text
    cuda_ctype: str  # its name in the public signature of an exported header
    aliases: tuple[str, ...]
    unit_roundoff: float
    largest: float
    smallest_normal: float
    smallest_subnormal: float

    @property
    def numpy(self) -> Any:
        """The numpy (or ml_dtypes) dtype with the same bits."""
        scalar_types: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
        return np.dtype(scalar_types[self.name])

    def __str__(self) -> str:
        return self.name


F32 = DType(
    name="f32",
    bytes=4,
    ctype="float",
    cuda_ctype="float",
    aliases=("float32", "float"),
    unit_roundoff=2.0**-24,
    largest=float(np.finfo(np.float32).max),
    smallest_normal=2.0**-126,
    smallest_subnormal=2.0**-149,
)
F16 = DType(
    name="f16",
    bytes=2,
    ctype="float16",
    cuda_ctype="__half",
    aliases=("float16", "half"),
    unit_roundoff=2.0**-11,
    largest=65504.0,
    smallest_normal=2.0**-14,
    smallest_subnormal=2.0**-24,
)
BF16 = DType(
    name="bf16",
    bytes=2,
    ctype="bfloat16",
    cuda_ctype="__nv_bfloat16",
    aliases=("bfloat16",),
    unit_roundoff=2.0**-8,
    largest=(2 - 2.0**-7) * 2.0**127,
    smallest_normal=2.0**-126,
    smallest_subnormal=2.0**-133,
)

DTYPES: dict[str, DType] = {d.name: d for d in (F32, F16, BF16)}
_BY_ALIAS = {alias: d for d in DTYPES.values() for alias in (d.name, *d.aliases)}


def dtype(name: str) -> DType:
    """The dtype of that name or alias ("f32", "float32", "bfloat16", ...)."""
    found = _BY_ALIAS.get(name.lower())
    if found is None:
        raise UsageError("unknown dtype", received=name, hint=did_you_mean(name, DTYPES))
    return found
