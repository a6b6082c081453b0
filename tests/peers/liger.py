"""Liger-Kernel's own tests of norms, softmax, DyT, gated units, cross entropy (of a head too), KL divergence.

`in_place` and `row_mode` say how its kernels write and which of them runs; ours write results of their own in any case.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import normgen.torch
from tests.peers.place import Peer, left_out, not_offered, ours

Tensor = torch.Tensor

_NORMS = {
    ("llama", 0.0): (normgen.torch.llama_rms_norm, normgen.torch.add_llama_rms_norm),
    ("gemma", 1.0): (normgen.torch.gemma_rms_norm, normgen.torch.add_gemma_rms_norm),
    ("none", 0.0): (normgen.torch.rms_norm, normgen.torch.add_rms_norm),
}
_kl_div_of_rows = normgen.torch.operator("kl_div")


def _norms(casting_mode: str, offset: float) -> tuple[Callable[..., Any], Callable[..., Any]]:
    found = _NORMS.get((casting_mode, offset))
    return found or not_offered(f"no norm that rounds as {casting_mode} with an offset of {offset}")


@ours
def liger_rms_norm(
    X: Tensor, W: Tensor | None, eps: float, offset: float = 0.0, casting_mode: str = "llama", *_: Any, **__: Any
) -> Tensor:
    if W is None and casting_mode == "gemma":  # an offset of no weight: the norm alone, rounded at the end
        casting_mode, offset = "none", 0.0
    norm, _add_norm = _norms(casting_mode, offset)
    return norm(X, W, eps=eps)


@ours
def liger_fused_add_rms_norm(
    X: Tensor, R: Tensor, W: Tensor, eps: float, offset: float = 0.0, casting_mode: str = "llama", *_: Any, **__: Any
) -> tuple[Tensor, Tensor]:
    _norm, add_norm = _norms(casting_mode, offset)
    return add_norm(X, R, W, eps=eps)


@ours
def liger_layer_norm(X: Tensor, W: Tensor, B: Tensor, eps: float) -> Tensor:
    return normgen.torch.layer_norm(X, W, B, eps)


@ours
def liger_softmax(x: Tensor) -> Tensor:
    return normgen.torch.softmax(x)


@ours
def liger_dyt(x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor | None) -> Tensor:
    return normgen.torch.dyt(x, alpha, gamma, beta)


@ours
def liger_swiglu(a: Tensor, b: Tensor, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> Tensor:
    if (gate_multiplier, down_multiplier) != (1.0, 1.0):
        not_offered("swiglu has no multipliers")
    return normgen.torch.swiglu(a, b)


@ours
def liger_geglu(a: Tensor, b: Tensor) -> Tensor:
    return normgen.torch.geglu_tanh(a, b)


@ours
def liger_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, lse_square_scale: float = 0.0, **options: Any
) -> Tensor:
    if weight is not None:
        not_offered("cross_entropy has no weights of classes")
    if options.pop("softcap", None) is not None:
        not_offered("cross_entropy has no softcap")
    for name in ("return_z_loss", "return_token_accuracy", "return_predicted_tokens"):
        if options.pop(name, False):
            not_offered(f"cross_entropy returns the loss alone: no {name}")
    loss = normgen.torch.cross_entropy(input, target, z_loss=lse_square_scale, **options)
    return loss.to(input.dtype)  # Liger's dtype of a loss, and torch's; ours is float32


@ours
def liger_fused_linear_cross_entropy(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ce_weight: Tensor | None = None,
    ignore_index: int = -100,
    lse_square_scale: float = 0.0,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    softcap: float | None = None,
    return_z_loss: bool = False,
    accum_dtype: Any = None,  # noqa: ARG001  ours adds up in float32
    *scaling_accuracy_tokens: bool,
    **more: bool,
) -> Tensor:
    for name, given in {"weights of classes": ce_weight, "bias": bias, "softcap": softcap}.items():
        if given is not None:
            not_offered(f"linear_cross_entropy has no {name}")
    if return_z_loss or any(scaling_accuracy_tokens) or any(more.values()):
        not_offered("linear_cross_entropy returns the loss alone")
    options = {"label_smoothing": label_smoothing, "z_loss": lse_square_scale}
    return normgen.torch.linear_cross_entropy(input, weight, target, ignore_index, reduction, **options)


@ours
def liger_kl_div(input: Tensor, target: Tensor, *, reduction: str = "batchmean", log_target: bool = False) -> Tensor:
    if log_target:
        not_offered("kl_div takes probabilities, not their logarithms")
    if reduction == "none":
        not_offered("kl_div has one loss for each row, not for each element")
    total = _kl_div_of_rows(input, target).sum()
    return total / {"sum": 1, "batchmean": input.shape[0], "mean": input.numel()}[reduction]


class _Call(nn.Module):
    """A function with its options, for a module that has no parameters."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        super().__init__()
        self.call = functools.partial(function, **options)

    def forward(self, *args: Tensor) -> Any:
        return self.call(*args)


class LigerRMSNorm(nn.Module):
    function = staticmethod(liger_rms_norm)

    def __init__(self, hidden_size: int, eps: float = 1e-6, *, elementwise_affine: bool = True, **options: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size)) if elementwise_affine else None
        self.options = {"eps": eps, **options}

    def forward(self, *rows: Tensor) -> Any:
        return self.function(*rows, self.weight, **self.options)


class LigerFusedAddRMSNorm(LigerRMSNorm):
    function = staticmethod(liger_fused_add_rms_norm)


class LigerLayerNorm(normgen.torch.LayerNorm):
    forward = ours(normgen.torch.LayerNorm.forward)


class LigerSoftmax(normgen.torch.Softmax):
    forward = ours(normgen.torch.Softmax.forward)

    def __init__(self) -> None:
        super().__init__(dim=-1)


class LigerFusedLinearCrossEntropyLoss(_Call):
    def __init__(self, **options: Any) -> None:
        super().__init__(liger_fused_linear_cross_entropy, **options)

    def forward(self, weight: Tensor, input: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
        return super().forward(input, weight, target, bias)


class LigerDyT(nn.Module):
    def __init__(self, hidden_size: int, beta: bool = True, init_alpha: float = 0.5) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1,), init_alpha))
        self.gamma = nn.Parameter(torch.ones(hidden_size))
        self.beta = nn.Parameter(torch.zeros(hidden_size)) if beta else None

    def forward(self, x: Tensor) -> Tensor:
        return liger_dyt(x, self.alpha, self.gamma, self.beta)


class _Gated(nn.Module):
    """down(gate(x) * up(x)), with the names that a model gives to the three and, of Falcon H1, two factors."""

    names = ("gate_proj", "up_proj", "down_proj")
    function = staticmethod(liger_swiglu)

    def __init__(self, config: Any) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        for name in self.names[:-1]:
            setattr(self, name, nn.Linear(hidden, inner * (4 - len(self.names)), bias=False))
        setattr(self, self.names[-1], nn.Linear(inner, hidden, bias=False))
        self.factors = getattr(config, "mlp_multipliers", None)

    def forward(self, x: Tensor) -> Tensor:
        *ins, out = [getattr(self, name) for name in self.names]
        gate, up = (into(x) for into in ins) if len(ins) == 2 else ins[0](x).chunk(2, dim=-1)
        if self.factors is None:
            return out(self.function(gate, up))
        return out(self.function(gate * self.factors[0], up)) * self.factors[1]


class LigerPhi3SwiGLUMLP(_Gated):
    names = ("gate_up_proj", "down_proj")


class LigerBlockSparseTop2MLP(_Gated):
    names = ("w1", "w3", "w2")


class LigerGEGLUMLP(_Gated):
    function = staticmethod(liger_geglu)


_APPLIED = {
    "RMSNorm": liger_rms_norm,
    "FusedAddRMSNorm": liger_fused_add_rms_norm,
    "LayerNorm": liger_layer_norm,
    "DyT": liger_dyt,
    "SiLUMul": liger_swiglu,
    "GELUMul": liger_geglu,
    "CrossEntropy": left_out("cross_entropy has no softcap"),
    "FusedLinearCrossEntropy": lambda *args: (liger_fused_linear_cross_entropy(*args), None, None, None),
}
_FUNCTIONS = (liger_rms_norm, liger_fused_add_rms_norm, liger_layer_norm, liger_softmax, liger_dyt, liger_swiglu)
_FUNCTIONS += (liger_geglu, liger_cross_entropy, liger_fused_linear_cross_entropy, liger_kl_div)
_CLASSES = (LigerRMSNorm, LigerFusedAddRMSNorm, LigerLayerNorm, LigerSoftmax, LigerDyT, LigerGEGLUMLP)
_CLASSES += (LigerPhi3SwiGLUMLP, LigerBlockSparseTop2MLP, LigerFusedLinearCrossEntropyLoss)
_OFFERED = {
    **{each.__name__: each for each in (*_FUNCTIONS, *_CLASSES)},
    "LigerSwiGLUMLP": _Gated,
    "LigerFalconH1SwiGLUMLP": _Gated,
    "LigerGEGLUMLPForGemma4": LigerGEGLUMLP,
    "LigerExperts": left_out("the experts' products of matrices are no row-wise operation"),
    "LigerCrossEntropyLoss": functools.partial(_Call, liger_cross_entropy),
    "LigerKLDIVLoss": functools.partial(_Call, liger_kl_div),
    "CrossEntropyOutput": SimpleNamespace,
}
_TESTED = ("rms_norm", "layer_norm", "softmax", "dyt", "fused_add_rms_norm", "swiglu", "geglu", "cross_entropy")
_TESTED += ("fused_linear_cross_entropy", "kl_div")

# Where ours is held against torch's own on the CPU, and torch's is further from float64's than the tolerance.
_TORCHS_ON_CPU = {
    r"^test_liger_layer_norm\[dtype1-.*-(8-64|16-128|7-256)\]": "torch's bf16 gradient of a weight is too far off",
    r"^test_correctness(_with_ignore_index|_not_last_layer)?\[1.0-dtype0-1e-08-0.05-(sum|none)-": (
        "torch's bf16 gradient of a cross entropy is too far off"
    ),
    r"^test_correctness_with_z_loss_with_other_params_once\[0.2--42-sum-False-1e-05-1.0-dtype1-": (
        "torch's gradient of a sum with smoothed labels is too far off"
    ),
}

PEER = Peer(
    files=[f"test/transformers/test_{name}.py" for name in _TESTED],
    modules={
        "liger_kernel.utils": {
            "infer_device": lambda: "cuda",
            "infer_comm_backend": lambda: "nccl",
            "is_npu_available": lambda: False,
        },
        "liger_kernel.ops": {f"Liger{name}Function": SimpleNamespace(apply=f) for name, f in _APPLIED.items()},
        "liger_kernel.ops.utils": {"is_hip": lambda: False},
        "liger_kernel.ops.swiglu": {},
        "liger_kernel.ops.cross_entropy": {"liger_cross_entropy_kernel": None},
        **{f"liger_kernel.transformers.{name}": _OFFERED for name in ("functional", *_TESTED)},
    },
    left_out={
        "dtensor": "DTensor, over four and eight GPUs",
        "blackwell": "it compares two ways in which Liger starts its own kernel",
        "float32_internal": "it starts a Triton kernel by hand",
        "out_of_bounds": "labels are not checked: the host would have to wait for the GPU",
        "gemma4": "which size Gemma 4 gives to a layer is no operation",
        r"^test_correctness\[dtype1-0.01-0.01-": "geglu_tanh in bf16 does not round the GELU before the product",
        **({} if torch.cuda.is_available() else _TORCHS_ON_CPU),
    },
)
