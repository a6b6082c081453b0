"""torch's own samples of the operations that it has too: results and gradients are those of its float64 operator."""

from __future__ import annotations

import math
import sys
import unittest
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
# torch's helpers of tests import it and these use none of it.
sys.modules.setdefault("expecttest", SimpleNamespace(TestCase=unittest.TestCase))  # type: ignore[arg-type]

with warnings.catch_warnings():  # of what it imports, as numba's
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

import normgen.torch as ng  # noqa: E402

Tensor = torch.Tensor


def norm(function: Any) -> Any:
    """Rows of several dimensions are one long row to us."""

    def of(x: Tensor, shape: tuple[int, ...], *parameters: Tensor | None, eps: float | None = None) -> Tensor:
        flat = [None if p is None else p.flatten() for p in parameters]
        named = {} if eps is None else {"eps": eps}
        return function(x.flatten(x.dim() - len(shape)), *flat, **named).reshape(x.shape)

    return of


def of_last_dim(function: Any) -> Any:
    def of(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
        if x.dim() == 0 or dim % x.dim() != x.dim() - 1 or x.shape[-1] == 0:
            raise NotImplementedError("another dimension than the last, or rows of no columns")
        return function(x, dtype=dtype)

    return of


def cross_entropy(x: Tensor, target: Tensor, **named: Any) -> Tensor:
    if named.get("weight") is not None or target.is_floating_point() or x.dim() != 2:
        raise NotImplementedError("a weight for each class, probabilities as targets, or classes that are not last")
    return ng.cross_entropy(x, target, **named)


OURS = {
    "nn.functional.rms_norm": norm(ng.rms_norm),
    "nn.functional.layer_norm": norm(ng.layer_norm),
    "softmax": of_last_dim(ng.softmax),
    "log_softmax": of_last_dim(ng.log_softmax),
    "nn.functional.cross_entropy": cross_entropy,
}
OPS = [op for op in op_db if op.name in OURS]


def leaves(args: Any) -> Iterator[Tensor]:
    for value in args:
        if isinstance(value, Tensor) and value.requires_grad:
            yield value


def doubled(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)


def gradients(result: Tensor, of: list[Tensor], cotangent: Tensor) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(result, of, cotangent.to(result.dtype), allow_unused=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.formatted_name)
def test_samples_of_torch_have_its_results_and_gradients(op: Any, dtype: Any, device: str) -> None:
    ours, compared = OURS[op.name], 0
    for sample in op.sample_inputs(device, dtype, requires_grad=True):
        args = [sample.input, *sample.args]
        try:
            found = ours(*args, **sample.kwargs)
        except NotImplementedError:
            continue
        compared += 1
        exact = [doubled(value) for value in args]
        wanted = op.op(*exact, **{name: doubled(value) for name, value in sample.kwargs.items()})
        torch.testing.assert_close(found, wanted.to(found.dtype), equal_nan=True)
        if math.prod(found.shape) == 0:
            continue
        cotangent = torch.randn_like(found)
        # What is saved in bf16, as y of softmax, is off by 2^-9 of itself, and so are the products that are summed.
        close = {"atol": 2.0**-8 * float(cotangent.abs().max()), "rtol": 0.016} if dtype == torch.bfloat16 else {}
        got = gradients(found, list(leaves(args)), cotangent)
        for own, want in zip(got, gradients(wanted, list(leaves(exact)), cotangent), strict=True):
            assert (own is None) == (want is None)
            if own is not None and want is not None:
                torch.testing.assert_close(own, want.to(own.dtype), equal_nan=True, **close)
    assert compared >= 2, "torch has samples that we offer"
