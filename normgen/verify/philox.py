"""Philox4x32-10 in numpy, from Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3, sections 3.3 and 4.

The oracle of `random(seed)`: written from the paper, with no part of it shared with the kernels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]  # of 32 bits each

ROUNDS = 10
MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL = 0x9E3779B9, 0xBB67AE85  # what the key's words grow by from round to round
LOW = np.uint64(0xFFFFFFFF)


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """The four random words of each counter."""
    l0, r0, l1, r1 = counter
    for number in range(ROUNDS):
        k0, k1 = (np.uint64((word + number * step) & 0xFFFFFFFF) for word, step in zip(key, WEYL, strict=True))
        p0, p1 = l0 * MULTIPLIERS[0], l1 * MULTIPLIERS[1]
        l0, r0, l1, r1 = (p1 >> np.uint64(32)) ^ r0 ^ k0, p1 & LOW, (p0 >> np.uint64(32)) ^ r1 ^ k1, p0 & LOW
    return l0, r0, l1, r1


def uniform(seed: int, rows: NDArray[np.integer], cols: int, draw: int) -> NDArray[np.float64]:
    """Random numbers in [0, 1), [len(rows), cols], of the rows of these numbers: the top 24 bits of a word each.

    seed  64 bits, the key
    draw  which of the random numbers of an element
    The counter is (row, row >> 32, col // 4, draw); its word col % 4 is the column's.
    """
    row = rows.astype(np.uint64)[:, None]
    quad = np.arange(-(-cols // 4), dtype=np.uint64)[None, :]
    zero = np.zeros(np.broadcast_shapes(row.shape, quad.shape), np.uint64)
    counter = ((row & LOW) + zero, (row >> np.uint64(32)) + zero, quad + zero, zero + np.uint64(draw))
    words = np.stack(philox(counter, (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)), axis=-1)
    words = words.reshape(len(rows), 4 * quad.size)[:, :cols]
    return (words >> np.uint64(8)).astype(np.float64) * 2.0**-24
