"""Apex's own tests of its layer norms and RMS norms.

`memory_efficient` says what its forward keeps for its backward. Ours keep what they keep, so it changes nothing.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Sequence

import torch
from torch import nn

import normgen.torch
from tests.peers.place import Peer, ours

Tensor = torch.Tensor

_layer_norm, _rms_norm = ours(normgen.torch.layer_norm), ours(normgen.torch.rms_norm)


class _Norm(nn.Module):
    """Dimensions of `normalized_shape` are one row; under autocast what comes in is cast first, as Apex does it."""

    function: Callable[..., Tensor]
    parameters_of = ("weight",)
    is_mixed = False  # the result has the parameters' dtype, not the input's

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.dimensions, self.eps, self.memory_efficient = len(shape), eps, memory_efficient
        for name, start in zip(self.parameters_of, (torch.ones, torch.zeros), strict=False):
            self.register_parameter(name, nn.Parameter(start(shape)) if elementwise_affine else None)

    def forward(self, input: Tensor) -> Tensor:
        given = [input.flatten(-self.dimensions)]
        given += [None if p is None else p.flatten() for p in (getattr(self, name) for name in self.parameters_of)]
        dtype = given[1].dtype if self.is_mixed else None
        if not torch.is_autocast_enabled("cuda"):
            return self.function(*given, eps=self.eps, dtype=dtype).reshape(input.shape)
        given = [None if g is None else g.to(torch.get_autocast_dtype("cuda")) for g in given]
        with torch.autocast("cuda", enabled=False):
            return self.function(*given, eps=self.eps).reshape(input.shape)


class FusedRMSNorm(_Norm):
    function = staticmethod(_rms_norm)


class FusedLayerNorm(_Norm):
    function = staticmethod(_layer_norm)
    parameters_of = ("weight", "bias")


class MixedFusedRMSNorm(FusedRMSNorm):
    is_mixed = True


class MixedFusedLayerNorm(FusedLayerNorm):
    is_mixed = True


_ON_CPU = {
    "^test_compile": "torch.compile asks for the state of a GPU, and there is none",
    r"^test_(layer|rms)_norm_(?!export)": "it asks whether a tensor lies on a GPU, and there is none",
    r"^test_autocast_fused_layer_norm_float16_.*memory_efficient_False": (
        "torch's own float16 gradient on the CPU is too far off: more than the tolerance from float64's"
    ),
}

PEER = Peer(
    files=["tests/L0/run_fused_layer_norm/test_fused_layer_norm.py"],
    modules={
        "apex.normalization": {
            norm.__name__: norm for norm in (FusedLayerNorm, FusedRMSNorm, MixedFusedLayerNorm, MixedFusedRMSNorm)
        },
        "expecttest": {"TestCase": unittest.TestCase},  # torch's helpers of tests import it, these tests use none of it
    },
    left_out={} if torch.cuda.is_available() else _ON_CPU,
)
