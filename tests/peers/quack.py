"""QuACK (github.com/Dao-AILab/quack): norms, softmax and cross entropy."""

from __future__ import annotations

from typing import Any

import torch

import normgen.torch as ng
from tests.peers.place import Peer, left_out, not_offered, ours

Tensor = torch.Tensor
Maybe = Tensor | None

# Its norm takes a bias, a residual and an offset of the weight, all in one; with a weight for each head too.
_NORM = """
name = "{name}"
[tensors]
x = "input"
residual = {{ role = "input", optional = true, absent = "0" }}
weight = {{ role = "{role}", optional = true, absent = "1" }}
bias = {{ role = "{role}", optional = true, absent = "0" }}
rstd = {{ role = "statistic", optional = true }}
h = "output"
y = "output"
[scalars]
eps = 1e-6
offset = 0
[formulas]
h = "x + residual"
rstd = "rsqrt(mean(h**2) + eps)"
y = "h * rstd * (weight + offset) + bias"
[backward]
saved = ["h", "rstd"]
"""
_KINDS = {role: _NORM.format(name=f"norm_of_{role}", role=role) for role in ("parameter", "head_parameter")}
_NORMS = {role: ng.operator(text, returns=("y", "h")) for role, text in _KINDS.items()}
_WITH_RSTD = ng.operator(_KINDS["parameter"], returns=("y", "h", "rstd"))
_LAYER_NORM = ng.operator("layernorm", returns=("y", "rstd", "mean"))
# Its cross entropy takes a weight for each class.
_WEIGHTED = """
name = "weighted_cross_entropy"
[tensors]
x = "input"
label = {{ role = "row_input", dtypes = ["i64", "i32"] }}
weight = {{ role = "parameter", dtypes = ["f32"] }}
loss = "row_output"
lse = "row_output"
{more}
[scalars]
ignore_index = -100
[formulas]
row_max = "constant(max(x))"
row_sum = "sum(exp(x - row_max))"
lse = "row_max + log(row_sum)"
is_counted = "label != ignore_index"
share = "take(weight, label)"
loss = "where(is_counted, share * (log(row_sum) - (take(x, label) - row_max)), 0)"
{formula}
"""
_DLOGITS = 'dlogits = "where(is_counted, share * (exp(x - row_max) / row_sum - where(col == label, 1, 0)), 0)"'
_GRADIENT = {"more": 'dlogits = { role = "output", follows = "x" }', "formula": _DLOGITS}
_LOSS = ng.operator("cross_entropy", returns=("loss", "lse"))
_LOSS_GRADIENT = ng.operator("cross_entropy_grad", returns=("loss", "lse", "dlogits"))
_WEIGHTED_LOSS = ng.operator(_WEIGHTED.format(more="", formula=""), returns=("loss", "lse"))
_WEIGHTED_GRADIENT = ng.operator(_WEIGHTED.format(**_GRADIENT), returns=("loss", "lse", "dlogits"))


def _same_dtype(x: Tensor, *dtypes: Any) -> None:
    if any(dtype not in (None, x.dtype) for dtype in dtypes):
        not_offered("the norm and the sum have one dtype")


@ours
def rmsnorm(
    x: Tensor,
    weight: Maybe = None,
    bias: Maybe = None,
    residual: Maybe = None,
    out_dtype: Any = None,
    residual_dtype: Any = None,
    eps: float = 1e-6,
    prenorm: bool = False,
    weight_offset: float = 0.0,
) -> Any:
    _same_dtype(x, out_dtype, residual_dtype)
    if bias is None and residual is None and weight_offset == 0.0 and (weight is None or weight.dim() == 1):
        return ng.rms_norm(x, weight, eps=eps, dtype=x.dtype)
    role = "head_parameter" if weight is not None and weight.dim() == 2 else "parameter"
    y, h = _NORMS[role](x, residual, weight, bias, eps=eps, offset=weight_offset, dtype=x.dtype)
    return (y, h) if prenorm else y


@ours
def rmsnorm_fwd(
    x: Tensor,
    weight: Maybe = None,
    bias: Maybe = None,
    residual: Maybe = None,
    out_dtype: Any = None,
    residual_dtype: Any = None,
    eps: float = 1e-6,
    store_rstd: bool = False,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor, Maybe]:
    _same_dtype(x, out_dtype, residual_dtype)
    y, h, rstd = _WITH_RSTD(x, residual, weight, bias, eps=eps, offset=weight_offset, dtype=x.dtype)
    return y, x if residual is None else h, rstd if store_rstd else None


def rmsnorm_ref(
    x: Tensor,
    w: Maybe = None,
    bias: Maybe = None,
    residual: Maybe = None,
    eps: float = 1e-6,
    weight_offset: float = 0.0,
) -> Any:
    """What its tests compare with: the formula in float32."""
    h = x.float() if residual is None else x.float() + residual.float()
    y = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + eps)
    y = y if w is None else y * (w.float() + weight_offset)
    y = (y if bias is None else y + bias.float()).to(x.dtype)
    return y if residual is None else (y, h.to(residual.dtype))


@ours
def layernorm_fwd(
    x: Tensor,
    weight: Tensor,
    bias: Maybe = None,
    eps: float = 1e-6,
    return_rstd: bool = False,
    return_mean: bool = False,
) -> Any:
    y, rstd, mean = _LAYER_NORM(x, weight, bias, eps=eps, dtype=x.dtype)
    found = (y, *([rstd] if return_rstd else []), *([mean] if return_mean else []))
    return found if len(found) > 1 else y


@ours
def layernorm_bwd(
    x: Tensor, weight: Tensor, dout: Tensor, *_statistics: Tensor, has_bias: bool = False
) -> tuple[Maybe, ...]:
    """Ours keeps the statistics of its own forward pass, with the eps that these tests give."""
    wanted = [t.detach().requires_grad_() for t in (x, weight, torch.zeros_like(weight))][: 3 if has_bias else 2]
    y = ng.layer_norm(*wanted, eps=1e-6, dtype=x.dtype)
    found = torch.autograd.grad(y, wanted, dout)
    return (*found, *([] if has_bias else [None]))


def layernorm_ref(x: Tensor, w: Tensor, eps: float = 1e-6) -> Tensor:
    return torch.nn.functional.layer_norm(x.double(), w.shape, w.double(), None, eps).to(x.dtype)


def layernorm_mean_ref(x: Tensor) -> Tensor:
    return x.double().mean(dim=-1).float()


def layernorm_rstd_ref(x: Tensor, eps: float = 1e-6) -> Tensor:
    return torch.rsqrt(x.double().var(dim=-1, correction=0) + eps).float()


softmax = ours(ng.softmax)


@ours
def cross_entropy(
    x: Tensor,
    target: Tensor,
    lse_partial: Maybe = None,
    weight: Maybe = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    inplace_backward: bool = False,  # noqa: ARG001  which memory the gradient takes
) -> Tensor:
    if lse_partial is not None:
        not_offered("sums that another kernel began")
    if weight is None:
        return ng.cross_entropy(x, target, ignore_index=ignore_index, reduction=reduction)
    loss, _ = _WEIGHTED_LOSS(x, label=target, weight=weight, ignore_index=float(ignore_index))
    if reduction == "none":
        return loss
    counted = weight[target.clamp(min=0)] * (target != ignore_index)
    return loss.sum() / (counted.sum() if reduction == "mean" else 1)


@ours
def cross_entropy_fwd(
    x: Tensor,
    target: Tensor,
    target_logit: Maybe = None,
    weight: Maybe = None,
    ignore_index: int = -100,
    return_lse: bool = False,
    return_dx: bool = False,
    inplace_backward: bool = False,
) -> Any:
    """The loss of each row, its logarithm and its gradient: of ours, one kernel."""
    if target_logit is not None or inplace_backward:
        not_offered("given logits, gradients over the logits")
    x = x.detach()
    if weight is None:
        found = (_LOSS_GRADIENT if return_dx else _LOSS)(x, target, ignore_index=float(ignore_index))
    else:
        function = _WEIGHTED_GRADIENT if return_dx else _WEIGHTED_LOSS
        found = function(x, label=target, weight=weight, ignore_index=float(ignore_index))
    loss, lse, *gradient = found
    wanted = (loss, *([lse] if return_lse else []), *gradient)
    return wanted if len(wanted) > 1 else loss


_BY_HAND = "gradients from saved values, given by hand, are autograd's at ours"
PEER = Peer(
    files=("tests/test_rmsnorm.py", "tests/test_layernorm.py", "tests/test_softmax.py", "tests/test_cross_entropy.py"),
    modules={
        "quack.testing.pytest_plugin": {},
        "quack.cute_dsl_utils": {"get_device_capacity": lambda *_: (9, 0)},
        "quack.rmsnorm_config": {"RmsNormBwdConfig": None, "RmsNormFwdConfig": None},
        "quack.rmsnorm": {
            "_compile_rmsnorm_fwd": None,
            "rmsnorm": rmsnorm,
            "rmsnorm_bwd": left_out(_BY_HAND),
            "rmsnorm_bwd_ref": None,
            "rmsnorm_bwd_tuned": None,
            "rmsnorm_fwd": rmsnorm_fwd,
            "rmsnorm_fwd_tuned": None,
            "rmsnorm_ref": rmsnorm_ref,
            "layernorm_bwd": layernorm_bwd,
            "layernorm_fwd": layernorm_fwd,
            "layernorm_mean_ref": layernorm_mean_ref,
            "layernorm_ref": layernorm_ref,
            "layernorm_rstd_ref": layernorm_rstd_ref,
        },
        "quack.softmax": {"softmax": softmax, "softmax_fwd": softmax, "softmax_bwd": left_out(_BY_HAND)},
        "quack.cross_entropy": {
            "cross_entropy": cross_entropy,
            "cross_entropy_fwd": cross_entropy_fwd,
            "cross_entropy_bwd": left_out(_BY_HAND),
        },
    },
    left_out={
        "input_validation": "the words of its refusals",
        "compile_cache|config|tuned|autotune": "its schedules and their cache",
        # By name, since no test can be skipped from within what torch compiles.
        r"fwd_with_grad\[\w+-True": "gradients over the logits",
        "lse_partial": "sums that another kernel began",
    },
)
