"""Modules that take the places of torch.nn's: the same arguments, parameters and state, forward by our kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from normgen.torch.functional import function, over_last

Tensor = Any

_rms_norm, _layer_norm, _softmax = function("rms_norm"), function("layer_norm"), function("softmax")


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm by our kernels: y = x / sqrt(mean(x^2) + eps) * weight over the last dimensions.

    Without `eps`, float32's (float64's for float64), as torch has it. Under autocast on CUDA the result is float32.
    """

    def forward(self, x: Tensor) -> Tensor:
        weight = _parameter(self, "weight")
        found = _straight(_rms_norm, self.normalized_shape, (x, weight), self.eps)
        if found is not NotImplemented:
            return found
        return over_last(_rms_norm, self.normalized_shape, x, weight, eps=self.eps)


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm by our kernels: y = (x - mean) / sqrt(var + eps) * weight + bias over the last dimensions.

    Under autocast on CUDA the result is float32, as torch's.
    """

    def forward(self, input: Tensor) -> Tensor:
        parameters = _parameter(self, "weight"), _parameter(self, "bias")
        found = _straight(_layer_norm, self.normalized_shape, (input, *parameters), self.eps)
        if found is not NotImplemented:
            return found
        return over_last(_layer_norm, self.normalized_shape, input, *parameters, eps=self.eps)


class Softmax(torch.nn.Softmax):
    """torch.nn.Softmax by our kernels: y = exp(x - max) / sum(exp(x - max)) along `dim`.

    Along another dimension than the last rows are read where they lie. Raises UsageError without one.
    Under autocast on CUDA the result is float32, as torch's.
    """

    def forward(self, input: Tensor) -> Tensor:
        return _softmax(input, self.dim)


def _parameter(module: torch.nn.Module, name: str) -> Any:
    """Without the module's `__getattr__`, which costs 0.3 us a name, but where the parameter is parametrized."""
    known = module._parameters
    return known[name] if name in known else getattr(module, name)


def _straight(run: Any, shape: tuple[int, ...], tensors: tuple[Any, ...], eps: float | None) -> Any:
    """An eager call over one dimension, by fewer calls of Python on the way to its kernel; NotImplemented of others."""
    if is_dynamo_compiling() or eps is None or len(shape) != 1:
        return NotImplemented
    sizes = tensors[0].shape
    if not sizes or sizes[-1] != shape[0]:
        return NotImplemented
    return run.operator.eager(tensors, (eps,), None)
