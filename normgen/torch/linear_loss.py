"""Cross entropy of a linear layer's logits, which are never stored: neither by the loss nor by its gradient.

A kernel multiplies tiles of logits and keeps of each row what its loss asks for. The backward pass computes the logits
again, some classes at a time, and multiplies their gradient with what is on either side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from normgen.errors import UsageError, did_you_mean
from normgen.operators.labels import ignore_index_of, label_smoothing_of
from normgen.operators.table import REDUCTIONS
from normgen.python.arguments import scalar_of
from normgen.spec.reader import load
from normgen.torch import sharding
from normgen.torch.calls import autocast_dtype
from normgen.torch.functional import check_labels, cross_entropy, mean_of
from normgen.torch.library import no_second, raising
from normgen.torch.operators import Operator

Tensor = Any

SLICES = 16  # of all classes: what a backward pass stores of logits' gradients at a time is one of them
CLASSES = 64  # a slice is a multiple of these, so that tiles of its columns are whole
NARROWEST = 2048  # classes of a slice, of which products fill a GPU

_losses = Operator(load("linear_cross_entropy"), returns=("loss", "lse"))
_dlogits = Operator(load("linear_cross_entropy_grad"))
_NUMBERS = "float ignore_index, float label_smoothing, float z_loss"


def _forward(input: Tensor, weight: Tensor, target: Tensor, *numbers: float) -> tuple[Tensor, Tensor]:
    """Of each row its loss, and the log of the sum of its logits' exponentials."""
    loss, lse = _losses.function(input, weight, target, *numbers, opaque=True)
    return loss, lse


def _forward_like(input: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    like = input.new_empty(input.shape[:1], dtype=_wide(input.dtype))
    return like, torch.empty_like(like)


def _backward(
    dloss: Tensor,
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    lse: Tensor,
    ignore_index: float,
    label_smoothing: float,
    z_loss: float,
    of_input: bool,
    of_weight: bool,
) -> list[Tensor]:
    """The gradients of input and weight, those that are asked for. That of the input is added up in float32."""
    classes, numbers = weight.shape[0], (ignore_index, label_smoothing, z_loss)
    dinput = input.new_zeros(input.shape, dtype=_wide(input.dtype)) if of_input else None
    dweight = torch.empty_like(weight) if of_weight else None
    for first in range(0, classes, width := slice_of(classes)):
        part = slice(first, first + width)
        own, scalars = weight[part], (float(first), float(classes), *numbers)
        dlogits = _dlogits.function(input, own, target, lse, dloss, *scalars, opaque=True)
        if dweight is not None:
            torch.mm(dlogits.t(), input, out=dweight[part])
        if dinput is not None:
            _add_product(dinput, dlogits, own)
        del dlogits  # before the next slice takes as much
    return [*([] if dinput is None else [dinput.to(input.dtype)]), *([] if dweight is None else [dweight])]


def _backward_like(_: Tensor, input: Tensor, weight: Tensor, *rest: Any) -> list[Tensor]:
    *_, of_input, of_weight = rest
    dinput = [input.new_empty(input.shape)] if of_input else []
    return [*dinput, *([torch.empty_like(weight)] if of_weight else [])]


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, where only CUDA's products of 16 bits give float32."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    elif left.is_cuda:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(left.to(total.dtype), right.to(total.dtype))


def _setup(ctx: Any, inputs: Sequence[Any], output: Sequence[Tensor]) -> None:
    input, weight, target, *ctx.numbers = inputs
    ctx.save_for_backward(input, weight, target, output[1])
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, dloss: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    assert dlse is None, "lse is not returned"
    asked, found = ctx.needs_input_grad[:2], []
    if dloss is not None:
        input, weight, target, lse = ctx.saved_tensors
        found = _backward_op(dloss.contiguous(), input, weight, target, lse, *ctx.numbers, *asked)
    gradients = iter(found)
    return *(next(gradients, None) if one else None for one in asked), *[None] * 4


_forward_op = torch.library.custom_op(
    "normgen::linear_cross_entropy",
    _forward,
    mutates_args=(),
    schema=f"(Tensor input, Tensor weight, Tensor target, {_NUMBERS}) -> (Tensor, Tensor)",
)
_forward_op.register_fake(_forward_like)
_forward_op.register_autograd(_gradient, setup_context=_setup)
_backward_op = torch.library.custom_op(
    "normgen::linear_cross_entropy_backward",
    _backward,
    mutates_args=(),
    schema=(
        "(Tensor dloss, Tensor input, Tensor weight, Tensor target, Tensor lse, "
        f"{_NUMBERS}, bool of_input, bool of_weight) -> Tensor[]"
    ),
)
_backward_op.register_fake(_backward_like)
_backward_op.register_autograd(raising(no_second("linear_cross_entropy")))


def slice_of(classes: int) -> int:
    """The classes whose logits a backward pass computes again at a time."""
    width = max(NARROWEST, -(-classes // SLICES))
    return -(-width // CLASSES) * CLASSES


def _is_transformed() -> bool:
    """Whether torch.func transforms the call, or forward-mode derivatives are asked for."""
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def _wide(dtype: Any) -> Any:
    return torch.float64 if dtype == torch.float64 else torch.float32


def linear_cross_entropy(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    z_loss: float = 0.0,
) -> Tensor:
    """Cross entropy of the logits input @ weight.T with labels, as `cross_entropy` has it; no logit is ever stored.

    input [.., inner] and weight [classes, inner] of one dtype, as torch.nn.Linear has them, target [..]. The backward
    pass computes the logits again, a sixteenth of the classes at a time, and adds up the input's gradient in float32:
    both gradients take a quarter less memory than the logits' own would, or less. Under autocast both are cast first,
    as torch's linear casts them. Under transforms of torch.func, and for forward-mode derivatives, logits are formed,
    for `cross_entropy`.
    Raises UsageError as `cross_entropy` does, for tensors that do not fit each other, for DTensors, and for a second
    derivative.
    """
    tensors = {"input": input, "weight": weight, "target": target}
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise UsageError(f"'{name}' is a torch tensor", received=type(tensor).__name__)
    if sharding.has_shared([*tensors.values()]):
        rule = "linear_cross_entropy takes no DTensor: each device has a part of the classes or of the rows"
        raise UsageError(rule, received="a DTensor", hint="cross_entropy takes logits that are DTensors")
    device = input.device.type
    if (dtype := autocast_dtype(device)) is not None:
        with torch.autocast(device, enabled=False):  # float32 within
            x, w = (t if t.dtype == torch.float64 else t.to(dtype) for t in (input, weight))
            return linear_cross_entropy(x, w, target, ignore_index, reduction, label_smoothing, z_loss=z_loss)
    if weight.ndim != 2 or input.ndim < 1 or input.shape[-1] != weight.shape[-1] or input.dtype != weight.dtype:
        rule = "input is [.., inner] and weight [classes, inner], of one dtype"
        received = f"input {list(input.shape)} of {input.dtype}, weight {list(weight.shape)} of {weight.dtype}"
        raise UsageError(rule, received=received, hint="weight as torch.nn.Linear has it")
    if not input.device == weight.device == target.device:
        devices = sorted({str(tensor.device) for tensor in tensors.values()})
        raise UsageError("the tensors of a call are on one device", received=", ".join(devices))
    if target.shape != input.shape[:-1] or target.dtype not in (torch.int64, torch.int32):
        received = f"target {list(target.shape)} of {target.dtype}, input {list(input.shape)}"
        raise UsageError("a target is a label for each row of input", received=received)
    if reduction not in REDUCTIONS:
        raise UsageError("unknown reduction", received=str(reduction), hint=did_you_mean(str(reduction), REDUCTIONS))
    ignored, smoothing = ignore_index_of(ignore_index), label_smoothing_of(label_smoothing)
    is_traced = torch.compiler.is_compiling()
    square = float(z_loss) if is_traced else scalar_of("z_loss", z_loss)
    if _is_transformed():
        logits = torch.nn.functional.linear(input, weight).reshape(-1, weight.shape[0])
        losses = cross_entropy(logits, target.flatten(), None, None, ignored, None, reduction, smoothing, z_loss=square)
        return losses.reshape(target.shape) if reduction == "none" else losses
    if target.is_cpu and not is_traced:
        check_labels(target, weight.shape[0], ignored)
    rows = input.reshape(target.numel(), input.shape[-1])
    losses, _ = _forward_op(rows, weight, target.reshape(-1), float(ignored), smoothing, square)
    if reduction == "none":
        return losses.reshape(target.shape)
    return losses.sum() if reduction == "sum" else mean_of(losses, target, ignored)


class LinearCrossEntropy(torch.nn.Linear):
    """The last linear layer of a model with its loss: `linear_cross_entropy` of its weight.

    forward(input [.., in_features], target [..]) gives the loss. State and weight are those of a torch.nn.Linear
    without bias.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(in_features, out_features, bias=False, device=device, dtype=dtype)
        self.options: dict[str, Any] = {
            "ignore_index": ignore_index,
            "reduction": reduction,
            "label_smoothing": label_smoothing,
            "z_loss": z_loss,
        }

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return linear_cross_entropy(input, self.weight, target, **self.options)

    def extra_repr(self) -> str:
        return ", ".join([super().extra_repr(), *(f"{name}={value}" for name, value in self.options.items())])
