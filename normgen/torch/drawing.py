"""Dropout of a function that is traced: a seed that torch draws at each call, and Philox, as random(seed) of a spec."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from normgen.traced.torch_formulas import uniform

Tensor = Any
_of_values = False


@torch.library.custom_op("normgen_traced::uniform_of", mutates_args=())  # type: ignore[untyped-decorator]
def uniform_of(x: torch.Tensor, seed: torch.Tensor, draw: int = 0) -> torch.Tensor:
    """A number for each element of x [.., cols], uniform in [0, 1): those of random(seed), the `draw`-th of a spec."""
    if _of_values:  # the same number for an element wherever it lies
        return (x.double() * 7.3).frac().abs().to(x.dtype)
    cols = x.shape[-1] if x.ndim else 1
    return uniform(seed, x.numel() // max(cols, 1), cols, draw).reshape(x.shape).to(x.dtype)


@uniform_of.register_fake  # type: ignore[untyped-decorator]
def _(x: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(x)


def dropped(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """F.dropout: each element is 0 with probability p, else divided by 1 - p."""
    if not training or p == 0 or p == 1 or inplace:
        return torch.nn.functional.dropout(input, p, training, inplace)
    x = input
    seed = torch.randint(-(1 << 63), (1 << 63) - 1, (), dtype=torch.int64, device=x.device)
    kept = torch.ops.normgen_traced.uniform_of(x.detach(), seed) >= p
    return torch.where(kept, x * (1 / (1 - p)), 0.0)


@contextlib.contextmanager
def of_values() -> Iterator[None]:
    """Numbers follow from the elements, not from where they lie, for comparing two layouts of the same tensor."""
    global _of_values
    _of_values = True
    try:
        yield
    finally:
        _of_values = False
