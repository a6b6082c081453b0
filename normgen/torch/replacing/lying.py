"""Where the rows of a module's tensors lie where they are not the last axis: rows are a view, and nothing is copied."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

Tensor = Any


@dataclass(frozen=True, kw_only=True)
class Lying:
    """Rows of tensors [batch, channels, ..] of `ndim` sizes: along the channels, or all that stands behind them.

    over  the channels, or each of them: as a report says it
    """

    over: str
    ndim: int

    @property
    def is_along_channels(self) -> bool:
        return self.over == "channels"

    def takes(self, x: Tensor) -> bool:
        """Whether a tensor has such rows, and more than one element in each: of one, torch's modules raise."""
        sizes = x.shape
        return len(sizes) == self.ndim and (self.is_along_channels or math.prod(sizes[2:]) > 1)

    def rows(self, x: Tensor) -> Tensor:
        """[.., cols]."""
        return x.movedim(1, -1) if self.is_along_channels else x.flatten(2)

    def back(self, rows: Tensor, x: Tensor) -> Tensor:
        """`rows(x)`, or others of the same sizes, as `x` has them."""
        return rows.movedim(-1, 1) if self.is_along_channels else rows.view(x.shape)

    def made_of(self, rows: Tensor) -> Tensor:
        """A tensor with these rows [batch, count, cols], count and cols divisible by 4."""
        batch, count, cols = rows.shape
        behind = [2] * (self.ndim - 3)
        if self.is_along_channels:
            return rows.reshape(batch, count // math.prod(behind), *behind, cols).movedim(-1, 1)
        return rows.reshape(batch, count, cols // math.prod(behind), *behind)


_NDIMS = (4, 3, 5)  # of images, of sequences, of volumes
CHANNELS = tuple(Lying(over="channels", ndim=ndim) for ndim in _NDIMS)
INSTANCES = tuple(Lying(over="each channel", ndim=ndim) for ndim in _NDIMS)
