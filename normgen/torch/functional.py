"""Functions of torch tensors for the operations that ship, by the names that torch and its users give them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from normgen.errors import UsageError, did_you_mean
from normgen.operators.table import REDUCTIONS, TABLE
from normgen.spec.reader import load
from normgen.torch.operators import Operator

Tensor = Any


_TORCHS_OWN = {
    "rms_norm": "rms_norm",
    "layer_norm": "layer_norm",
    "softmax": "softmax.int",
    "log_softmax": "log_softmax.int",
}


def is_float32_under_autocast(name: str) -> bool:
    """Whether this torch's operation of that name has a float32 result under autocast on CUDA: rms_norm since 2.12."""
    own = _TORCHS_OWN.get(name)
    return own is not None and bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{own}", "AutocastCUDA"))


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """The function of a row of `TABLE`."""
    row = TABLE[name]
    made = Operator(
        load(row.spec),
        returns=row.returns,
        in_float32=is_float32_under_autocast(name),
        takes=row.called,
        defaults=row.defaults,
        name=name,
    )
    return made.function


_loss_of_rows = Operator(load("cross_entropy"), takes={"x": "input", "label": "target"}).function


def cross_entropy(
    input: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    opaque: bool | None = None,
) -> Tensor:
    """Cross entropy of logits [.., cols] with labels [..], as torch's, and z_loss * log(sum(exp(input)))**2 beside it.

    A loss of each row is float32; "mean" divides their sum by the number of labels that are not `ignore_index`.
    Raises UsageError for another reduction than "mean", "sum" and "none", and for tensors that do not fit.
    """
    if reduction not in REDUCTIONS:
        raise UsageError("unknown reduction", received=str(reduction), hint=did_you_mean(str(reduction), REDUCTIONS))
    losses = _loss_of_rows(input, target, float(ignore_index), label_smoothing, z_loss, opaque=opaque)
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if reduction == "sum" else total / (target != ignore_index).sum()
