"""Functions of torch tensors for the operations that ship, by the names that torch and its users give them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from normgen.errors import OutsideError, UsageError, did_you_mean
from normgen.operators.labels import ignore_index_of, label_smoothing_of
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


_LABELLED = {"x": "input", "label": "target"}
_loss_of_rows = Operator(load("cross_entropy"), takes=_LABELLED)


@functools.cache
def _reduced_by(reduction: str) -> Operator:
    """The operator that an eager call runs: the sum, and the labels that count, are its kernel's too."""
    if reduction == "none":
        return _loss_of_rows
    returns = ("total_loss", "counted") if reduction == "mean" else ("total_loss",)
    return Operator(load("cross_entropy_total"), returns=returns, takes=_LABELLED)


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

    loss = log(sum(exp(input))) - input[target] of each row, in float32, and 0 where target is `ignore_index`; "mean"
    divides their sum by the number of labels that count: without any, the loss is NaN and its gradient 0, as torch's.
    A label that is neither a column nor `ignore_index` raises OutsideError, an IndexError, on the CPU; on a GPU and in
    a compiled program, which do not stop for it, that row's loss and its whole gradient are NaN.
    Raises UsageError for another reduction than "mean", "sum" and "none", for an `ignore_index` that is no whole number
    or that float32 does not hold exactly, for a `label_smoothing` outside of 0 to 1, and for tensors that do not fit.
    """
    if reduction not in REDUCTIONS:
        raise UsageError("unknown reduction", received=str(reduction), hint=did_you_mean(str(reduction), REDUCTIONS))
    ignored, smoothing = ignore_index_of(ignore_index), label_smoothing_of(label_smoothing)
    if not is_dynamo_compiling():
        reduced = _Reduced(target, ignored, reduction, input)
        found = _reduced_by(reduction).eager((input, target), (float(ignored), smoothing, z_loss), None, reduced)
        if found is not NotImplemented:
            return found
    losses = _loss_of_rows.function(input, target, float(ignored), smoothing, z_loss, opaque=opaque)
    if reduction == "none":
        return losses
    total = losses.sum()
    if reduction == "sum":
        return total
    count = (target != ignored).sum()
    if not total.requires_grad:
        return total / count
    # Behind the division by 0 stands an infinite gradient, which no factor of 0 takes away: it ends here.
    return total.masked_fill(count == 0, 0.0) / count


class _Reduced:
    """A mean divides the sum by the count within their node: one operation, with no node of torch's behind it."""

    __slots__ = ("_count", "_ignored", "_logits", "_reduction", "_target")

    def __init__(self, target: Tensor, ignored: int, reduction: str, logits: Tensor) -> None:
        self._target, self._ignored, self._reduction, self._logits = target, ignored, reduction, logits

    def of(self, found: Any) -> Tensor:
        target, logits = self._target, self._logits
        del self._target, self._logits  # the node would keep their memory when its backward pass has run
        if target.is_cpu:
            _check_labels(target, logits.shape[-1], self._ignored)
        if self._reduction != "mean":
            return found
        total, self._count = found
        return total.div_(self._count)

    def gradient(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        if self._reduction != "mean":
            return (cotangent,)
        # Without a label that counts the mean is 0 / 0, whose gradient is infinite: no factor of 0 takes that away.
        share = cotangent / self._count.clamp(min=1)
        return share, share  # the count has no gradient: what stands for its cotangent is not read


def _check_labels(target: Tensor, cols: int, ignore_index: int) -> None:
    wrong = ((target < 0) | (target >= cols)) & (target != ignore_index)
    if wrong.any():
        label, count = int(target[wrong].flatten()[0]), int(wrong.sum())
        others = f", and {count - 1} more" if count > 1 else ""
        raise OutsideError(
            f"a label is one of the {cols} columns, from 0, or ignore_index={ignore_index}",
            received=f"{label}{others}",
            hint="padding takes ignore_index; more labels than columns ask for wider logits",
        )
