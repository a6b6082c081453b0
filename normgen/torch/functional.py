"""Functions of torch tensors for the operations that ship, by the names that torch and its users give them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from normgen.errors import OutsideError, UsageError, did_you_mean
from normgen.operators.forms import axis_number
from normgen.operators.labels import ignore_index_of, label_smoothing_of
from normgen.operators.signature import Beside
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


def over_last(run: Any, shape: Any, x: Tensor, *parameters: Any, eps: float | None, **options: Any) -> Tensor:
    """`run` over the last dimensions, which are one to it. An eps of None is that of the dtype that it computes in."""
    sizes = x.shape
    eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps if eps is None else eps
    shape = (shape,) if isinstance(shape, int) else shape
    if len(shape) == 1 and sizes and sizes[-1] == shape[0]:  # a slice of sizes would cost 0.3 us
        return run(x, ..., *parameters, eps=eps, **options)
    if not shape or sizes[-len(shape) :] != tuple(shape):
        rule = f"the last sizes are the normalized_shape {tuple(shape)}"
        hint = "(cols,) is over the last dimension, as a call without it is"
        raise UsageError(rule, received=str(tuple(sizes)), hint=hint)
    flat = [p.flatten() if isinstance(p, torch.Tensor) else p for p in parameters]
    return run(x.flatten(-len(shape)), ..., *flat, eps=eps, **options).reshape(sizes)


def _over_dim(run: Any, x: Tensor, dim: Any, **options: Any) -> Tensor:
    """`run` along another dimension: its kernel reads rows side by side; an exported program copies them."""
    if type(dim) is not int or not -x.ndim <= dim < x.ndim:
        dim = axis_number(dim, x.ndim, name="dim", what="dimensions", hint="dim=-1 is the last")
    return run(x.movedim(dim, -1), **options).movedim(-1, dim)


# What torch's functions of the same names take behind the first tensor. Names of classes, and `...` for what is not
# said, are constants to a compiler, which would compare `tuple` and `isinstance` at every call.
_RMS_NORM = """
if normalized_shape is not ...:
    if normalized_shape.__class__.__name__ in ("tuple", "list", "Size", "int"):
        return run_beside_(call_, normalized_shape, input, weight, eps=eps, dtype=dtype, opaque=opaque)
    weight, eps = normalized_shape, eps if weight is None else weight
"""
_LAYER_NORM = """
if normalized_shape is not ...:
    if normalized_shape.__class__.__name__ in ("tuple", "list", "Size", "int"):
        return run_beside_(call_, normalized_shape, input, weight, bias, eps=eps, dtype=dtype, opaque=opaque)
    if bias.__class__.__name__ in ("float", "int", "float32", "float64"):
        bias, eps = None, bias
    weight, bias = normalized_shape, bias if weight is None else weight
"""
_SOFTMAX = """
if dim != -1:
    return run_beside_(call_, input, dim, dtype=dtype, opaque=opaque)
"""
_BESIDE = {
    "rms_norm": Beside(parameter="normalized_shape=...", lines=_RMS_NORM, run=over_last),
    "layer_norm": Beside(parameter="normalized_shape=...", lines=_LAYER_NORM, run=over_last),
    "softmax": Beside(parameter="dim=-1", lines=_SOFTMAX, run=_over_dim),
    "log_softmax": Beside(parameter="dim=-1", lines=_SOFTMAX, run=_over_dim),
}


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """The function of a row of `TABLE`, which takes what torch's of its name takes."""
    row = TABLE[name]
    made = Operator(
        load(row.spec),
        returns=row.returns,
        in_float32=is_float32_under_autocast(name),
        takes=row.called,
        defaults=row.defaults,
        name=name,
        beside=_BESIDE.get(name),
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
    return Operator(load("cross_entropy_total"), returns=returns, takes=_LABELLED, name="cross_entropy")


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    z_loss: float = 0.0,
    opaque: bool | None = None,
) -> Tensor:
    """Cross entropy of logits [.., cols] with labels [..], as torch's, and z_loss * log(sum(exp(input)))**2 beside it.

    Logits [batch, cols, ..] with labels [batch, ..], as torch has them, are read where they lie; an exported
    program copies them.
    loss = log(sum(exp(input))) - input[target] of each row, in float32, and 0 where target is `ignore_index`; "mean"
    divides their sum by the number of labels that count: without any, the loss is NaN and its gradient 0, as torch's.
    A label that is neither a column nor `ignore_index` raises OutsideError, an IndexError, on the CPU; on a GPU and in
    a compiled program, which do not stop for it, that row's loss and its whole gradient are NaN.
    Raises UsageError for another reduction than "mean", "sum" and "none", for an `ignore_index` that is no whole number
    or that float32 does not hold exactly, for a `label_smoothing` outside of 0 to 1, for weights of classes, targets
    that are no labels, `size_average` and `reduce`, and for tensors that do not fit, or fit in both ways.
    """
    if not (weight is None and size_average is None and reduce is None):
        _refuse_options(weight, size_average, reduce)
    if isinstance(input, torch.Tensor) and input.ndim > 2:
        input = _classes_last(input, target)
    if isinstance(target, torch.Tensor) and target.is_floating_point():
        raise UsageError(
            "a target is a label for each row", received=f"{target.dtype} {list(target.shape)}", hint=_OTHER
        )
    if reduction not in REDUCTIONS:
        raise UsageError("unknown reduction", received=str(reduction), hint=did_you_mean(str(reduction), REDUCTIONS))
    ignored, smoothing = ignore_index_of(ignore_index), label_smoothing_of(label_smoothing)
    if not is_dynamo_compiling():
        reduced = _Reduced(target, ignored, reduction, input)
        total = _reduced_by(reduction)
        try:
            found = total.eager((input, target), (float(ignored), smoothing, z_loss), None, reduced)
        except UsageError as error:
            raise total.as_called(error) from error
        if found is not NotImplemented:
            return found
    losses = _loss_of_rows.function(input, target, float(ignored), smoothing, z_loss, opaque=opaque)
    if reduction == "none":
        return losses
    return losses.sum() if reduction == "sum" else mean_of(losses, target, ignored)


def mean_of(losses: Tensor, target: Tensor, ignored: int) -> Tensor:
    """Of the losses of labels that count: without any NaN, with a gradient of 0."""
    total, count = losses.sum(), (target != ignored).sum()
    if not (total.requires_grad or torch.jit.is_tracing()):  # a trace is one for both
        return total / count
    # Behind the division by 0 stands an infinite gradient, which no factor of 0 takes away: it ends here.
    return total.masked_fill(count == 0, 0.0) / count


_OTHER = "normgen.torch.fused(torch.nn.functional.cross_entropy) is a kernel with them"


def _refuse_options(weight: Any, size_average: Any, reduce: Any) -> None:
    if weight is not None:
        raise UsageError("cross_entropy has no weights of classes", received=f"weight={weight!r}", hint=_OTHER)
    received = f"size_average={size_average}, reduce={reduce}"
    meant = "none" if reduce is not None and not reduce else "mean" if size_average in (None, True) else "sum"
    raise UsageError("how losses are reduced is said by reduction", received=received, hint=f"reduction='{meant}'")


def _classes_last(input: Tensor, target: Tensor) -> Tensor:
    """Logits with their classes last: those of labels [..] have them there, or behind the first size, as torch's."""
    last, second = (*input.shape[:-1],), (input.shape[0], *input.shape[2:])
    if target.shape != second:
        return input
    if last == second:
        rule = "classes are the last size of logits [.., cols], or the second as torch has them: labels fit both"
        hint = "say which: input.flatten(0, -2) and target.flatten(); or input.movedim(1, -1).flatten(0, -2)"
        raise UsageError(rule, received=f"{list(input.shape)} and {list(target.shape)}", hint=hint)
    return input.movedim(1, -1)


class _Reduced:
    """A mean divides the sum by the count within their node: one operation, with no node of torch's behind it."""

    __slots__ = ("_count", "_ignored", "_logits", "_reduction", "_target")

    def __init__(self, target: Tensor, ignored: int, reduction: str, logits: Tensor) -> None:
        self._target, self._ignored, self._reduction, self._logits = target, ignored, reduction, logits

    def of(self, found: Any) -> Tensor:
        target, logits = self._target, self._logits
        del self._target, self._logits  # the node would keep their memory when its backward pass has run
        if target.is_cpu:
            check_labels(target, logits.shape[-1], self._ignored)
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


def check_labels(target: Tensor, cols: int, ignore_index: int) -> None:
    """Raises OutsideError for labels that are neither columns nor ignored; it waits for the labels."""
    wrong = ((target < 0) | (target >= cols)) & (target != ignore_index)
    if wrong.any():
        label, count = int(target[wrong].flatten()[0]), int(wrong.sum())
        others = f", and {count - 1} more" if count > 1 else ""
        raise OutsideError(
            f"a label is one of the {cols} columns, from 0, or ignore_index={ignore_index}",
            received=f"{label}{others}",
            hint="padding takes ignore_index; more labels than columns ask for wider logits",
        )
