"""Modules that take the places of torch.nn's: the same arguments, parameters and state, forward by our kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from normgen.errors import UsageError
from normgen.torch.functional import function

Tensor = Any

_rms_norm, _layer_norm, _softmax = function("rms_norm"), function("layer_norm"), function("softmax")


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm by our kernels: y = x / sqrt(mean(x^2) + eps) * weight over the last dimensions.

    Without `eps`, float32's (float64's for float64), as torch has it. Under autocast on CUDA the result is float32.
    """

    def forward(self, x: Tensor) -> Tensor:
        eps = self.eps if self.eps is not None else torch.finfo(_accumulated(x)).eps
        return _over_last(_rms_norm, self.normalized_shape, (x, _parameter(self, "weight")), (eps,))


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm by our kernels: y = (x - mean) / sqrt(var + eps) * weight + bias over the last dimensions.

    Under autocast on CUDA the result is float32, as torch's.
    """

    def forward(self, input: Tensor) -> Tensor:
        tensors = input, _parameter(self, "weight"), _parameter(self, "bias")
        return _over_last(_layer_norm, self.normalized_shape, tensors, (self.eps,))


class Softmax(torch.nn.Softmax):
    """torch.nn.Softmax by our kernels, over the last dimension: y = exp(x - max) / sum(exp(x - max)).

    Raises UsageError for another dimension. Under autocast on CUDA the result is float32, as torch's.
    """

    def forward(self, input: Tensor) -> Tensor:
        if self.dim not in (-1, input.ndim - 1):
            hint = "transpose, or take torch.nn.Softmax"
            raise UsageError("a kernel's rows lie along the last dimension", received=f"dim={self.dim}", hint=hint)
        return _called(_softmax, (input,), ())


def _parameter(module: torch.nn.Module, name: str) -> Any:
    """Without the module's `__getattr__`, which costs 0.3 us a name, but where the parameter is parametrized."""
    known = module._parameters
    return known[name] if name in known else getattr(module, name)


def _called(run: Any, tensors: tuple[Any, ...], scalars: tuple[float, ...]) -> Tensor:
    """`run` of these, without the two calls of Python on its way to a kernel."""
    if not is_dynamo_compiling():
        found = run.operator.eager(tensors, scalars, None)
        if found is not NotImplemented:
            return found
    return run(*tensors, *scalars)


def _over_last(run: Any, shape: tuple[int, ...], tensors: tuple[Any, ...], scalars: tuple[float, ...]) -> Tensor:
    """`run` over the last dimensions, which are one to it."""
    x = tensors[0]
    sizes = x.shape
    if len(shape) == 1 and sizes and sizes[-1] == shape[0]:  # a slice of sizes would cost 0.3 us
        return _called(run, tensors, scalars)
    if sizes[-len(shape) :] != shape:
        raise UsageError(f"the last sizes are the normalized_shape {shape}", received=str(tuple(sizes)))
    flat = [None if t is None else t.flatten() for t in tensors[1:]]
    return run(x.flatten(-len(shape)), *flat, *scalars).reshape(x.shape)


def _accumulated(x: Tensor) -> Any:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
