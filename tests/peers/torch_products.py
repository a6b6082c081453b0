"""torch's own tests of mm, bmm, addmm, baddbmm and linear, of matrices in f32, f16 and bf16, with ours in their place.

What ours are not, torch answers itself: other dtypes, sizes of 0, arguments that are refused, deprecated orders of
arguments. A test that calls nothing of ours shows nothing, and is left out. torch.matmul stays torch's: tests compare
with it.
"""

from __future__ import annotations

import os
import unittest
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_mkldnn

from tests.peers.place import Peer, ours
from tests.peers.products import OFFERED, product

Tensor = torch.Tensor

os.environ.setdefault("PYTORCH_TEST_WITH_SLOW", "1")  # test_mm is one
_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_product = ours(product)


def _computed(x: Any, w: Any, c: Any = None, *, beta: Any = 1, alpha: Any = 1, out: Any = None, **named: Any) -> Any:
    """alpha * x @ w + beta * c, of a c that is broadcast, by ours; or NotImplemented."""
    tensors = [t for t in (w, x, c, out) if t is not None]
    if not all(isinstance(t, Tensor) and t.dtype == w.dtype and t.device.type == _DEVICE for t in tensors):
        return NotImplemented
    shape = (*x.shape[:-1], w.shape[-1])
    fits = x.ndim >= w.ndim >= 2 and x.shape[-1] == w.shape[-2] and w.shape[:-2] == shape[: w.ndim - 2]
    if not fits or w.dtype not in OFFERED or 0 in x.shape or 0 in w.shape or isinstance(alpha * beta, complex):
        return NotImplemented
    if out is not None and (out.shape != shape or out.requires_grad):
        return NotImplemented
    is_bias = c is not None and beta == 1 and c.ndim > 0 and c.numel() == c.shape[-1] == shape[-1]
    if c is not None and not is_bias:
        try:
            c = c.expand(shape)
        except RuntimeError:
            return NotImplemented
    parts = {"bias": c.flatten()} if is_bias else {"c": c, "beta": float(beta)} if beta != 0 else {}
    y = _product(x, w, **parts, alpha=float(alpha), **named)
    return y if out is None else out.copy_(y)


def _two(x: Any, w: Any, *, out: Any = None) -> Any:
    return _computed(x, w, out=out) if getattr(x, "ndim", 0) == getattr(w, "ndim", 0) else NotImplemented


def _added(c: Any, x: Any, w: Any, *more: Any, beta: Any = 1, alpha: Any = 1, out: Any = None, **named: Any) -> Any:
    if more or getattr(x, "ndim", 0) != getattr(w, "ndim", 0):
        return NotImplemented
    return _computed(x, w, c, beta=beta, alpha=alpha, out=out, **named)


def _added_in_place(c: Any, *args: Any, **named: Any) -> Any:
    return _added(c, *args, out=c, **named) if len(args) == 2 else NotImplemented


def _activated(*args: Any, use_gelu: bool = False, **named: Any) -> Any:
    return _added(*args, activation="gelu_tanh_approx" if use_gelu else "relu", **named)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    return _computed(x, weight.mT, bias) if weight.ndim == 2 else NotImplemented


_IN_PLACE_OF = {
    torch.mm: _two,
    torch.Tensor.mm: _two,
    torch.bmm: _two,
    torch.Tensor.bmm: _two,
    torch.addmm: _added,
    torch.Tensor.addmm: _added,
    torch.Tensor.addmm_: _added_in_place,
    torch.baddbmm: _added,
    torch.Tensor.baddbmm: _added,
    torch.Tensor.baddbmm_: _added_in_place,
    torch._addmm_activation: _activated,
    torch.nn.functional.linear: _linear,
}


class _Ours(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        found = _IN_PLACE_OF[function](*args, **named) if function in _IN_PLACE_OF else NotImplemented
        return function(*args, **named) if found is NotImplemented else found


# Of mkldnn, on the CPU alone; newer versions of torch have it by another name.
if not hasattr(common_mkldnn, "bf32_on_and_off"):
    common_mkldnn.bf32_on_and_off = lambda *_, **__: lambda test: test

PEER = Peer(
    files=("test/test_matmul_cuda.py", "test/test_linalg.py"),
    modules={"expecttest": {"TestCase": unittest.TestCase}},  # torch's helpers of tests import it
    mode=_Ours(),
    only=(
        r"^test_(?!.*tunableop)(cublas_|addmm(?!v)|baddbmm|bmm_|mm_(?=cuda)|strided_mm_bmm|corner_cases_of_cublaslt|"
        r"broadcast_fused_matmul|1_sized_with_0_strided).*cuda"
    ),
    left_out={} if _DEVICE == "cuda" else {"addmm_gelu": "torch's GELU of a sum is by tanh on CUDA alone"},
    has_conftest=False,  # of its own runs in parts
    calls_each=True,
)
