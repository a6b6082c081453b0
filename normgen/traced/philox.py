"""Philox4x32-10 (Salmon et al. 2011) in what torch tensors and JAX arrays both have: words of 32 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85  # what the key's words grow by from round to round
ROUNDS, LOW = 10, 0xFFFFFFFF
Word = Any


def words(
    counter: Iterable[Word],
    key: tuple[Word, Word],
    product: Callable[[Word, int], tuple[Word, Word]],
    plus: Callable[[Word, int], Word],
) -> list[Word]:
    """The four words of a counter's four.

    product  the high and the low word of a product
    plus     a sum modulo 2^32
    """
    l0, r0, l1, r1 = counter
    for number in range(ROUNDS):
        k0, k1 = (plus(word, number * step & LOW) for word, step in zip(key, WEYL, strict=True))
        (high0, low0), (high1, low1) = (product(a, by) for a, by in zip((l0, l1), MULTIPLIERS, strict=True))
        l0, r0, l1, r1 = high1 ^ r0 ^ k0, low1, high0 ^ r1 ^ k1, low0
    return [l0, r0, l1, r1]
