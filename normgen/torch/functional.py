"""Functions of torch tensors for the operations that ship, by the names that torch and its users give them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from normgen.errors import UsageError, did_you_mean
from normgen.spec.reader import load
from normgen.torch.operators import Operator

Tensor = Any


def _is_float32_under_autocast(operation: str) -> bool:
    """Whether this torch gives the operation a float32 result under autocast on CUDA: its rms_norm since 2.12."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operation}", "AutocastCUDA"))


@dataclass(frozen=True, kw_only=True)
class Row:
    """How a spec is offered as a function.

    takes       the spec's names of the first parameters -> what they are called
    returns     as in `operator`
    in_float32  torch's operation of this name has a float32 result under autocast on CUDA
    """

    spec: str
    takes: Mapping[str, str] | tuple[str, ...] = ()
    returns: tuple[str, ...] | None = None
    defaults: Mapping[str, float] | None = None
    in_float32: bool = False


_SUM = ("x", "residual", "weight")
TABLE: dict[str, Row] = {
    "rms_norm": Row(
        spec="rmsnorm",
        takes={"x": "input"},
        defaults={"eps": torch.finfo(torch.float32).eps},
        in_float32=_is_float32_under_autocast("rms_norm"),
    ),
    "layer_norm": Row(spec="layernorm", takes={"x": "input"}, in_float32=_is_float32_under_autocast("layer_norm")),
    "softmax": Row(spec="softmax", takes={"x": "input"}, in_float32=_is_float32_under_autocast("softmax.int")),
    "log_softmax": Row(
        spec="log_softmax", takes={"x": "input"}, in_float32=_is_float32_under_autocast("log_softmax.int")
    ),
    "masked_softmax": Row(spec="masked_softmax", takes={"x": "input"}),
    "causal_softmax": Row(spec="causal_softmax", takes={"x": "input"}),
    "softmax_sink": Row(spec="softmax_sink", takes={"x": "input"}),
    "add_rms_norm": Row(spec="add_rmsnorm", returns=("y", "h")),
    "add_layer_norm": Row(spec="add_layernorm", takes=(*_SUM, "bias"), returns=("y", "h")),
    "dropout_add_rms_norm": Row(spec="dropout_add_rmsnorm", returns=("y", "h")),
    "llama_rms_norm": Row(spec="llama_rmsnorm", takes=("x", "weight")),
    "gemma_rms_norm": Row(spec="gemma_rmsnorm", takes=("x", "weight")),
    "add_llama_rms_norm": Row(spec="llama_rmsnorm", takes=_SUM, returns=("y", "h")),
    "add_gemma_rms_norm": Row(spec="gemma_rmsnorm", takes=_SUM, returns=("y", "h")),
    "rms_norm_gate": Row(spec="rmsnorm_gate"),
    "gate_rms_norm": Row(spec="gate_rmsnorm"),
    "ada_layer_norm": Row(spec="adaln"),
    "dyt": Row(spec="dyt"),
    "swiglu": Row(spec="swiglu"),
    "swiglu_clamped": Row(spec="swiglu_clamped"),
    "geglu": Row(spec="geglu"),
    "geglu_tanh": Row(spec="geglu_tanh"),
}


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """The function of a row of `TABLE`."""
    row = TABLE[name]
    takes = row.takes if isinstance(row.takes, Mapping) else {taken: taken for taken in row.takes}
    made = Operator(
        load(row.spec),
        returns=row.returns,
        in_float32=row.in_float32,
        takes=takes,
        defaults=row.defaults,
        name=name,
    )
    return made.function


_loss_of_rows = Operator(load("cross_entropy"), takes={"x": "input", "label": "target"}).function
REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(
    input: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    opaque: bool = True,
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
