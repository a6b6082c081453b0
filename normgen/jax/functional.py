"""Functions of JAX's arrays for the operations that ship: those of `normgen.operators.table.TABLE`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from normgen.errors import UsageError, did_you_mean
from normgen.jax.operators import Operator
from normgen.operators.labels import ignore_index_of, label_smoothing_of
from normgen.operators.signature import Beside
from normgen.operators.table import REDUCTIONS, TABLE
from normgen.spec.reader import load

Array = Any


def _whole_rows(_: Callable[..., Array], where: Any) -> Array:
    hint = "normgen.jax.masked_softmax(x, mask), whose mask is added: -inf where an element is left out"
    raise UsageError("a softmax takes whole rows", received=f"where={where!r}", hint=hint)


_SOFTMAX = """
if where is not None:
    return run_beside_(call_, where)
"""
# What those of jax.nn take.
_BESIDE = Beside(parameter="axis=-1, where=None", lines=_SOFTMAX, run=_whole_rows)


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """The function of a row of `TABLE`; a softmax takes what that of jax.nn takes."""
    row = TABLE[name]
    made = Operator(
        load(row.spec),
        returns=row.returns,
        takes=row.called,
        defaults=row.defaults,
        name=name,
        beside=_BESIDE if name in ("softmax", "log_softmax") else None,
    )
    return made.function


_loss_of_rows = Operator(load("cross_entropy"), takes={"x": "input", "label": "target"}).function


def cross_entropy(
    input: Array,
    target: Array,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    axis: int = -1,
) -> Array:
    """Cross entropy of logits [.., cols] with labels [..], and z_loss * log(sum(exp(input)))**2 beside it.

    loss = log(sum(exp(input))) - input[target] of each row, in float32, and 0 where target is `ignore_index`; "mean"
    divides their sum by the number of labels that count: without any, the loss is NaN and its gradient 0.
    Where a label is neither a column nor `ignore_index`, that row's loss and its whole gradient are NaN. `axis` is
    that of the columns: labels have the other sizes.
    Raises UsageError for another reduction than "mean", "sum" and "none", for an `ignore_index` that is no whole number
    or that float32 does not hold exactly, for a `label_smoothing` outside of 0 to 1, and for arrays that do not fit.
    """
    if reduction not in REDUCTIONS:
        raise UsageError("unknown reduction", received=str(reduction), hint=did_you_mean(str(reduction), REDUCTIONS))
    if not isinstance(ignore_index, jax.core.Tracer):  # a traced one is refused by the operator
        ignore_index = ignore_index_of(ignore_index)
    if not isinstance(label_smoothing, jax.core.Tracer):
        label_smoothing = label_smoothing_of(label_smoothing)
    losses = _loss_of_rows(input, target, ignore_index, label_smoothing, z_loss, axis=axis)
    if reduction == "none":
        return losses
    total = losses.sum()
    if reduction == "sum":
        return total
    count = (target != ignore_index).sum()
    # Behind the division by 0 stands an infinite gradient, which no factor of 0 takes away: it ends here.
    return jnp.where(count == 0, 0.0, total) / count
