"""How far roundings alone move a function's results and gradients: what no comparison can tell from a fault.

It is asked of the function alone: an ill-conditioned spec of a well-conditioned function is a fault. Whole numbers do
not round.
"""

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
_WITHIN_ONE = {"sigmoid", "tanh", "erf", "sin", "cos", "_softmax"}  # no rounding takes these beyond 1
_OF_SHIFTED = {"_log_softmax"}  # x less what is the same for its row: off by roundings of the row's largest


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
        if func.overloadpacket.__name__ in _OF_SHIFTED:
            return self.moved(found, found.abs().amax(args[-2], keepdim=True))
        found = torch.utils._pytree.tree_map(self.moved, found)
        return found.clamp(-1, 1) if func.overloadpacket.__name__ in _WITHIN_ONE else found

    def moved(self, value: Any, size: Any = None) -> Any:
        """Off by roundings of itself, or of `size`."""
        if not (isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype.itemsize > 1):
            return value
        off = torch.rand(value.shape, generator=self.generator, dtype=torch.float64, device="cpu") * 4 - 2
        return value + (value if size is None else size) * off.to(value) * torch.finfo(value.dtype).eps


class Wide(TorchDispatchMode):
    """Every conversion to another floating-point dtype, and every tensor that is made, is in float64.

    So is a gradient for which torch takes a number of float32 in float64 too.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.hardsigmoid_backward.default:
            by, x = args
            return torch.where((x > -3) & (x < 3), by / 6, 0)
        named = {name: wide(value) for name, value in (kwargs or {}).items()}
        return func(*[wide(arg) for arg in args], **named)


def wide(arg: Any) -> Any:
    """float64 for any floating-point dtype; all else as it is."""
    return torch.float64 if isinstance(arg, torch.dtype) and arg.is_floating_point else arg


def moved_by_roundings(run: Run, results: Sequence[Tensor]) -> list[Tensor]:
    """Of each result of `run`, by how much its elements differ when each of its operations rounds otherwise."""
    generator = torch.Generator(device="cpu").manual_seed(0)
    found = [torch.zeros(0, dtype=torch.float64, device="cpu")] * len(results)
    for _ in range(_RUNS):
        with Rounded(generator):
            others = run()
        apart = [_apart(other, result) for other, result in zip(others, results, strict=True)]
        found = [torch.maximum(f, a) if f.shape == a.shape else a for f, a in zip(found, apart, strict=True)]
    return found


def _apart(one: Any, other: Any) -> Tensor:
    if not isinstance(one, torch.Tensor):
        return torch.zeros((), dtype=torch.float64, device="cpu")
    return (one.detach().double() - other.detach().double()).nan_to_num(0.0, 0.0, 0.0).abs()
