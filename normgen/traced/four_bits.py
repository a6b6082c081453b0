"""Codes of f4e2m1 in what torch tensors and JAX arrays both have: two a byte, the first in the low bits."""

from __future__ import annotations

import itertools
from typing import Any

from normgen.errors import UsageError

NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of the codes without a sign
NAN, SIGN = 7, 8


def codes(value: Any, where: Any, signs: Any) -> Any:
    """A whole number for each value: the code that is nearest, of two the even one; 6 beyond 6, and for NaN.

    where  of the library: (condition, a, b)
    signs  whether a value's sign bit is set
    """
    size, found = abs(value), 0
    for code, (below, above) in enumerate(itertools.pairwise(NUMBERS), start=1):
        middle = (below + above) / 2
        found = found + where(size >= middle if code % 2 == 0 else size > middle, 1, 0)
    return where(value != value, NAN, found + where(signs, SIGN, 0))


def two_a_byte(found: Any) -> Any:
    """[.., cols] of codes as [.., cols / 2] bytes, still as whole numbers. Raises UsageError for an odd row."""
    if found.shape[-1] % 2:
        hint = "give rows one more column, or leave that output out"
        raise UsageError("two f4e2m1 share a byte: cols are even", received=str(tuple(found.shape)), hint=hint)
    return found[..., ::2] + 16 * found[..., 1::2]
