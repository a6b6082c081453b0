"""How far roundings alone move a function's results and gradients: what no comparison can tell from a fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Tensor = Any
Run = Callable[[], Sequence[Tensor]]

_RUNS = 4
_EXACT = {  # operations that round nothing: they move, choose or compare values
    *("view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "squeeze", "unsqueeze", "select"),
    *("slice", "split", "split_with_sizes", "as_strided", "detach", "alias", "clone", "lift_fresh", "_to_copy"),
    *("select_backward", "slice_backward", "scatter", "scatter_add", "gather", "cat", "stack", "copy_"),
    *("where", "masked_fill", "amax", "amin", "max", "min", "maximum", "minimum", "clamp", "clamp_min", "clamp_max"),
    *("abs", "neg", "sign", "relu", "floor", "ceil", "round", "trunc", "threshold_backward"),
    *("full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "new_zeros", "new_full", "arange"),
    *("scalar_tensor", "empty", "empty_like", "new_empty", "new_empty_strided", "fill", "fill_", "zero_"),
}


class Rounded(TorchDispatchMode):
    """Each result of an operation that rounds, forward and backward, is off by up to two roundings, at random."""

    def __init__(self, generator: Any) -> None:
        super().__init__()
        self.generator = generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _EXACT or func.is_view:
            return found
        if func._schema.is_mutable:  # what is changed in place stays that tensor
            for arg in args[:1]:
                arg.copy_(self.moved(arg))
            return found
        return torch.utils._pytree.tree_map(self.moved, found)

    def moved(self, value: Any) -> Any:
        if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
            return value
        off = torch.rand(value.shape, generator=self.generator, dtype=torch.float64).to(value.dtype) * 4 - 2
        return value + value * off * torch.finfo(value.dtype).eps


def moved_by_roundings(run: Run, results: Sequence[Tensor]) -> list[Tensor]:
    """Of each result of `run`, by how much its elements differ when each of its operations rounds otherwise."""
    generator = torch.Generator().manual_seed(0)
    found = [torch.zeros(0)] * len(results)
    for _ in range(_RUNS):
        with Rounded(generator):
            others = run()
        apart = [_apart(other, result) for other, result in zip(others, results, strict=True)]
        found = [torch.maximum(f, a) if f.shape == a.shape else a for f, a in zip(found, apart, strict=True)]
    return found


def _apart(one: Any, other: Any) -> Tensor:
    if not isinstance(one, torch.Tensor):
        return torch.zeros(())
    return (one.detach().double() - other.detach().double()).nan_to_num(0.0, 0.0, 0.0).abs()
