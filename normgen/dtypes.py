"""The number formats a tensor may be stored in. Arithmetic is always float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from normgen.errors import UsageError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class DType:
    """A stored number format. How CUDA text converts it stands in the device library's file of the name `ctype`.

    cuda_ctype, header  its name in the public signature of an exported header, and the CUDA header that has it
    ctype, word         its name in emitted CUDA text; and in vectors of specs and banners: half in half8
    scalar_type         the numpy (or ml_dtypes) scalar with the same bits; `torch` is torch's name of it
    dlpack              type code and bits
    unit_roundoff       half the distance from 1 to the next number: u = 2^-p for p significant bits
    smallest_normal     from where on that relative error no longer holds
    """

    name: str
    aliases: tuple[str, ...]
    bytes: int
    ctype: str
    word: str
    cuda_ctype: str
    header: str = ""
    scalar_type: type
    torch: str
    dlpack: tuple[int, int]
    unit_roundoff: float
    largest: float
    smallest_normal: float
    smallest_subnormal: float

    @property
    def numpy(self) -> Any:
        """The numpy dtype with the same bits."""
        return np.dtype(self.scalar_type)

    def holds(self, value: float) -> bool:
        """Whether the value is neither infinite, NaN nor lost as 0 in this format."""
        return value == 0 or self.smallest_subnormal <= abs(value) <= self.largest

    def __str__(self) -> str:
        return self.name


F32 = DType(
    name="f32",
    aliases=("float32", "float"),
    bytes=4,
    ctype="float",
    word="float",
    cuda_ctype="float",
    scalar_type=np.float32,
    torch="float32",
    dlpack=(2, 32),
    unit_roundoff=2.0**-24,
    largest=float(np.finfo(np.float32).max),
    smallest_normal=2.0**-126,
    smallest_subnormal=2.0**-149,
)
F16 = DType(
    name="f16",
    aliases=("float16", "half"),
    bytes=2,
    ctype="float16",
    word="half",
    cuda_ctype="__half",
    header="cuda_fp16.h",
    scalar_type=np.float16,
    torch="float16",
    dlpack=(2, 16),
    unit_roundoff=2.0**-11,
    largest=65504.0,
    smallest_normal=2.0**-14,
    smallest_subnormal=2.0**-24,
)
BF16 = DType(
    name="bf16",
    aliases=("bfloat16",),
    bytes=2,
    ctype="bfloat16",
    word="bfloat16",
    cuda_ctype="__nv_bfloat16",
    header="cuda_bf16.h",
    scalar_type=ml_dtypes.bfloat16,
    torch="bfloat16",
    dlpack=(4, 16),
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
