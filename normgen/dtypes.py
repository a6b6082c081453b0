"""The number formats a tensor may be stored in. Arithmetic is always float32, where whole numbers are exact to 2^24."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from normgen.errors import UsageError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class DType:
    """A stored number format. How CUDA text converts it stands in the device library's file of the name `ctype`.

    bytes       of an element, or of the `packed` neighbouring ones that share them, the first in the lowest bits
    cuda_ctype, header  its name in the public signature of an exported header, and the CUDA header that has it
    ctype, word         its name in emitted CUDA text; and in vectors of specs and banners: half in half8
    scalar_type         the numpy (or ml_dtypes) scalar with the same bits; `torch` is torch's name of it
    dlpack              type code and bits
    unit_roundoff       half the distance from 1 to the next number: u = 2^-p for p significant bits
    smallest_normal     from where on that relative error no longer holds
    rounds_up           holds powers of two alone, to which values are rounded up: scales of microscaling formats
    for_nan             the number that stands for NaN in a format that has none
    of_f32              its numbers are some of float32's, and held as these: formulas cast to it, nothing is stored so
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
    lowest: float | None = None
    saturates: bool = False
    is_integer: bool = False
    rounds_up: bool = False
    for_nan: float | None = None
    of_f32: bool = False
    packed: int = 1
    least_arch: int = 75

    def __hash__(self) -> int:
        return hash(self.name)  # of what is looked up by problems and tensors it is a part

    @property
    def poison(self) -> float:
        """What an output holds before a kernel writes it: NaN, else a number that results seldom have."""
        if self.for_nan is None:
            return math.nan
        return self.least or self.largest

    def bytes_of(self, elements: int) -> int:
        """The bytes of so many neighbouring elements, which are whole bytes."""
        return elements * self.bytes // self.packed

    def units(self, elements: int) -> int:
        """What an array in memory counts of so many neighbouring elements: themselves, or the bytes that they share."""
        return elements // self.packed

    @property
    def of_array(self) -> DType:
        """The dtype of an array in memory, of `units`: u8 of elements that share a byte."""
        return self if self.packed == 1 else U8

    def in_units(self, values: Any) -> Any:
        """Stored values [.., elements] as an array in memory has them, [.., units]."""
        if self.packed == 1:
            return values
        codes = values.view(np.uint8).reshape(*values.shape[:-1], -1, self.packed)
        return (codes[..., 0] & 15) | codes[..., 1] << 4

    def by_element(self, memory: Any) -> Any:
        """The stored values [.., elements] of an array in memory."""
        if self.packed == 1:
            return memory
        codes = np.stack((memory & 15, memory >> 4), axis=-1)
        return codes.reshape(*memory.shape[:-1], -1).view(self.numpy)

    @property
    def least(self) -> float:
        """The lowest number."""
        return -self.largest if self.lowest is None else self.lowest

    def within(self, values: Any) -> Any:
        """Exact float64 values as far as they can be stored: not yet rounded, but saturated, and `for_nan` for NaN.

        Where the dtype rounds up, the power of two: that is no small error, but a step, whose place is known.
        """
        if not self.saturates:
            return values
        found = np.clip(values, self.least, self.largest)
        if self.rounds_up:
            mantissa, exponent = np.frexp(found)
            return np.where(np.asarray(values) >= 0, np.ldexp(1.0, exponent - (mantissa == 0.5)), np.nan)
        return found if self.for_nan is None else np.where(np.isnan(found), self.for_nan, found)

    @property
    def is_coarse(self) -> bool:
        """Whether its numbers are so far apart that most float32 results round to a known one: 8 bits, or fewer.

        Of float32's own numbers too, though there are more of them: what is cast is mostly as it was read.
        """
        return (self.saturates or self.of_f32) and not self.is_integer

    def cast(self, values: Any) -> Any:
        """What `within` finds, and of a coarse dtype the number that it is rounded to, in float64."""
        return self.stored(values).astype(np.float64) if self.is_coarse and not self.rounds_up else self.within(values)

    def moved(self, values: Any, error: Any, least: Any = -math.inf) -> Any:
        """How far `cast` can lie from that of the values where these are off by `error`, but not below `least`.

        inf where a dtype without a sign may find NaN for a number, or a number for NaN.
        """
        if not self.is_coarse:
            return error
        found, low, high = self.cast(values), np.maximum(values - error, least), values + error
        if not self.rounds_up:
            top, bottom = self.cast(high), self.cast(low)
            moved = np.where(top == bottom, 0.0, np.fmax(top - found, found - bottom))  # of infinities too
            return np.where(np.isinf(error), np.inf, moved)
        moved = np.maximum(self.within(high) - found, found - self.within(np.maximum(low, 0.0)))
        return np.where((low < 0) & (high >= 0) | np.isinf(error), np.inf, moved)

    def stored(self, values: Any) -> Any:
        """The values as an array of this dtype: rounded to nearest even, saturated where the dtype saturates."""
        found = self.within(np.asarray(values, dtype=np.float64))
        if self.of_f32:
            found = self._nearest(found)
        return (np.rint(found) if self.is_integer else found).astype(self.numpy)

    def _nearest(self, values: Any) -> Any:
        """The numbers of the format that are nearest, of two the even one; infinite beyond the largest."""
        least = math.frexp(self.smallest_normal)[1]
        spacing = np.ldexp(self.unit_roundoff, np.maximum(np.frexp(values)[1], least))
        found = np.rint(values / spacing) * spacing
        return np.where(np.abs(found) > self.largest, np.copysign(np.inf, found), found)

    @property
    def numpy(self) -> Any:
        """The numpy dtype with the same bits."""
        return np.dtype(self.scalar_type)

    def holds(self, value: float) -> bool:
        """Whether the value is neither infinite, NaN nor lost as 0 in this format."""
        return value == 0 or self.smallest_subnormal <= abs(value) <= self.largest

    def has(self, value: float) -> bool:
        """Whether a number of this format is exactly the value."""
        return not self.is_integer and float(self.stored(value)) == value

    def __str__(self) -> str:
        return self.name


F32 = DType(
    name="f32",
    aliases=("float32", "float", "fp32"),
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
    aliases=("float16", "half", "fp16"),
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
    aliases=("bfloat16", "nv_bfloat16"),
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


def _float8(name: str, *aliases: str, bits: int, largest: float, bias: int, scalar: type, dlpack: int) -> DType:
    """`bits` significant bits; the exponent of the smallest normal number is 1 - bias."""
    return DType(
        name=f"f8{name}",
        aliases=(*aliases, name, f"fp8_{name}"),
        bytes=1,
        ctype=f"float8_{name}",
        word=f"{name}x",
        cuda_ctype=f"__nv_fp8_{name}",
        header="cuda_fp8.h",
        scalar_type=scalar,
        torch=aliases[0],
        dlpack=(dlpack, 8),
        unit_roundoff=2.0**-bits,
        largest=largest,
        smallest_normal=2.0 ** (1 - bias),
        smallest_subnormal=2.0 ** (2 - bias - bits),
        saturates=True,
        least_arch=89,
    )


# Micikevicius et al. 2022, FP8 formats for deep learning, arXiv:2209.05433, table 1.
F8E4M3 = _float8("e4m3", "float8_e4m3fn", bits=4, largest=448.0, bias=7, scalar=ml_dtypes.float8_e4m3fn, dlpack=10)
F8E5M2 = _float8("e5m2", "float8_e5m2", bits=3, largest=57344.0, bias=15, scalar=ml_dtypes.float8_e5m2, dlpack=12)

# Open Compute Project, Microscaling formats v1.0 (2023), 5.4.1: an exponent of 8 bits, neither sign nor zero.
F8E8M0 = DType(
    name="f8e8m0",
    aliases=("float8_e8m0fnu", "e8m0", "ue8m0", "fp8_e8m0"),
    bytes=1,
    ctype="float8_e8m0",
    word="e8m0x",
    cuda_ctype="__nv_fp8_e8m0",
    header="cuda_fp8.h",
    scalar_type=ml_dtypes.float8_e8m0fnu,
    torch="float8_e8m0fnu",
    dlpack=(14, 8),
    unit_roundoff=0.0,
    largest=2.0**127,
    smallest_normal=2.0**-127,
    smallest_subnormal=2.0**-127,
    lowest=2.0**-127,
    saturates=True,
    rounds_up=True,
)

# The same, 5.3.3: neither NaN nor infinity. NaN becomes 6, as cvt.rn.satfinite.e2m1x2.f32 has it (PTX ISA 8.6).
F4E2M1 = DType(
    name="f4e2m1",
    aliases=("float4_e2m1fn", "float4_e2m1fn_x2", "e2m1", "fp4_e2m1", "fp4"),
    bytes=1,
    packed=2,
    ctype="float4_e2m1x2",
    word="e2m1x",
    cuda_ctype="__nv_fp4x2_e2m1",
    header="cuda_fp4.h",
    scalar_type=ml_dtypes.float4_e2m1fn,
    torch="float4_e2m1fn_x2",
    dlpack=(17, 4),
    unit_roundoff=2.0**-2,
    largest=6.0,
    smallest_normal=1.0,
    smallest_subnormal=0.5,
    saturates=True,
    for_nan=6.0,
)


def _integer(name: str, *aliases: str, size: int, ctype: str, word: str, cuda: str, scalar: type, code: int) -> DType:
    info = None if scalar is np.bool_ else np.iinfo(scalar)
    return DType(
        name=name,
        aliases=aliases,
        bytes=size,
        ctype=ctype,
        word=word,
        cuda_ctype=cuda,
        scalar_type=scalar,
        torch=aliases[0],
        dlpack=(code, 8 * size),
        unit_roundoff=0.0,
        largest=min(float(info.max), 2.0**63 - 2.0**10) if info else 1.0,  # what float64 holds
        smallest_normal=1.0,
        smallest_subnormal=1.0,
        lowest=float(info.min) if info else 0.0,
        saturates=True,
        for_nan=0.0,
        is_integer=True,
    )


I8 = _integer("i8", "int8", size=1, ctype="int8", word="char", cuda="signed char", scalar=np.int8, code=0)
U8 = _integer("u8", "uint8", size=1, ctype="uint8", word="uchar", cuda="unsigned char", scalar=np.uint8, code=1)
BOOL = _integer("bool", "bool", size=1, ctype="boolean", word="bool", cuda="bool", scalar=np.bool_, code=6)
I32 = _integer("i32", "int32", "int", size=4, ctype="int32", word="int", cuda="int", scalar=np.int32, code=0)
I64 = _integer("i64", "int64", "long", size=8, ctype="int64", word="long", cuda="long long", scalar=np.int64, code=0)

# NVIDIA A100 Tensor Core GPU architecture (2020): what tensor cores read of a float32 is its sign, exponent and the
# first 10 of 23 bits of its fraction.
TF32 = DType(
    name="tf32",
    aliases=("tfloat32",),
    bytes=4,
    ctype="tfloat32",
    word="tfloat",
    cuda_ctype="float",
    scalar_type=np.float32,
    torch="float32",
    dlpack=(2, 32),
    unit_roundoff=2.0**-11,
    largest=(2 - 2.0**-10) * 2.0**127,
    smallest_normal=2.0**-126,
    smallest_subnormal=2.0**-136,
    of_f32=True,
)

FLOATS = (F32, F16, BF16)  # what a tensor may be stored as unless its spec says otherwise
DTYPES: dict[str, DType] = {d.name: d for d in (*FLOATS, F8E4M3, F8E5M2, F8E8M0, F4E2M1, I8, U8, BOOL, I32, I64)}
CASTS = DTYPES | {TF32.name: TF32}  # what a formula may round to
_BY_ALIAS = {alias: d for d in DTYPES.values() for alias in (d.name, *d.aliases, d.cuda_ctype)}


def dtype(given: Any) -> DType:
    """The dtype of that name or alias ("f32", "fp32", "float32", "__half", "torch.bfloat16", ...), or of an object.

    Objects of numpy, ml_dtypes, torch and jax are known by their names. Raises UsageError for another one.
    """
    name = given if isinstance(given, str) else _name_of(given)
    found = _BY_ALIAS.get(name.lower().removeprefix("torch."))
    if found is None:
        close = difflib.get_close_matches(name.lower(), _BY_ALIAS, n=1)
        hint = did_you_mean(_BY_ALIAS[close[0]].name if close else name, DTYPES)
        raise UsageError("unknown dtype", received=name, hint=instead_of_dtype(name) or hint)
    return found


_WIDE = "not supported: arithmetic is float32 by design, so that float64 would only be stored"
_NARROW = "not supported: of formats with fewer than 8 bits there is f4e2m1 alone"
_COMPLEX = "not supported: real and imaginary parts are two tensors"
_NOT_STORED = {
    **dict.fromkeys(("f64", "float64", "double"), _WIDE),
    **dict.fromkeys(("i4", "int4", "u4", "uint4", "fp6"), _NARROW),
    **dict.fromkeys(("complex64", "complex128", "c64", "c128"), _COMPLEX),
    **dict.fromkeys(("i16", "int16", "short", "u16", "uint16"), "not supported: i32 holds these numbers"),
    **dict.fromkeys(("fp8", "f8", "float8"), "did you mean 'f8e4m3' or 'f8e5m2'?"),
    **dict.fromkeys(("fp4", "f4", "float4"), "did you mean 'f4e2m1'? the scales of groups are a tensor of their own"),
    **dict.fromkeys(("tf32", "tfloat32"), "a tensor of it is f32, which a formula rounds: cast(x, tf32)"),
    **dict.fromkeys(("nvfp4", "mxfp4"), "did you mean 'f4e2m1'? the scales of groups are a tensor of their own"),
}


def instead_of_dtype(name: str, *, aliases: bool = False) -> str | None:
    """Why a dtype of that name is not supported, or which one is meant; None of other names.

    aliases  where a dtype has one name alone, as in a formula, others of its names say which
    """
    meant = _BY_ALIAS.get(name.lower()) if aliases else None
    return _NOT_STORED.get(name.lower()) or (f"did you mean '{meant.name}'?" if meant else None)


def _name_of(given: Any) -> str:
    """torch.bfloat16, np.float32, np.dtype("float16"), ml_dtypes.bfloat16, jax.numpy.bfloat16 -> the name within it."""
    text = str(given)
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    try:
        return text if given is None else np.dtype(given).name
    except TypeError:
        return text
