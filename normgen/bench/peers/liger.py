"""Liger: the functions its autograd Functions call, so that no argument is copied to make it contiguous.

Before 0.8.5 its LayerNorm keeps mean and rstd in x's dtype. RMSNorm runs in the mode "gemma", which like our spec
rounds once, at the end; its speed is that of "llama". Its RMSNorm backward runs with in_place=False, the form that
leaves dy as it was: every provider reads the same dy. For the same reason the backward of its SwiGLU and GEGLU, which
overwrites gate and up, is not offered, and its cross entropy, whose gradient overwrites the logits, only where ours
does (`--in-place dlogits=x`). That one's host function waits for the number of labels that count, which no CUDA graph
can hold: its kernel is launched as that function launches it, with the number that the problem knows.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from liger_kernel.ops.layer_norm import layer_norm_backward, layer_norm_forward
from liger_kernel.ops.rms_norm import rms_norm_backward, rms_norm_forward
from liger_kernel.ops.utils import calculate_settings

from normgen.bench.peers import Call, Options, Tensors
from normgen.bench.peers.common import Function, on_sets, operation, pick, require, scalar, versions_of
from normgen.errors import NotOfferedError
from normgen.problem.problem import Problem

_LLAMA, _GEMMA = 0, 1  # liger_kernel.ops.rms_norm's numbers of casting modes; its backward takes no names


def versions() -> dict[str, str]:
    return versions_of("liger-kernel", "triton")


def prepare(problem: Problem, sets: Sequence[Tensors], options: Options) -> Call:  # noqa: ARG001
    if operation(problem) == ("cross_entropy_grad", "forward"):
        return _cross_entropy_grad(problem, sets)
    return on_sets(pick(_FUNCTIONS, problem)(problem), sets)


def _layer_norm(problem: Problem) -> Function:
    require(problem, "weight", "bias")
    eps = scalar(problem, "eps")

    def run(t: Tensors) -> Tensors:
        y, _, mean, rstd, *_ = layer_norm_forward(t["x"], t["weight"], t["bias"], eps)
        return {"y": y, "mean": mean, "rstd": rstd}

    return run


def _rms_norm(problem: Problem) -> Function:
    eps = scalar(problem, "eps")

    def run(t: Tensors) -> Tensors:
        y, _, rstd, *_ = rms_norm_forward(t["x"], t.get("weight"), eps, 0.0, _GEMMA, None)
        return {"y": y, "rstd": rstd}

    return run


def _llama_rms_norm(problem: Problem) -> Function:
    eps = scalar(problem, "eps")
    if "h" in problem.present:
        raise NotOfferedError("has no h")

    def run(t: Tensors) -> Tensors:
        y, *_ = rms_norm_forward(t["x"], t.get("weight"), eps, 0.0, _LLAMA, None)
        return {"y": y}

    return run


def _layer_norm_backward(problem: Problem) -> Function:
    """Of bias only the dtype is looked at: weight stands in for it."""
    require(problem, "weight", "bias")

    def run(t: Tensors) -> Tensors:
        found = layer_norm_backward(t["dy"], t["x"], t["weight"], t["weight"], t["mean"], t["rstd"])
        return dict(zip(("dx", "dweight", "dbias"), found, strict=True))

    return run


def _rms_norm_backward(problem: Problem) -> Function:
    block, warps = calculate_settings(problem.cols)

    def run(t: Tensors) -> Tensors:
        dx, dweight = rms_norm_backward(
            t["dy"], t["x"], t.get("weight"), t["rstd"], 0.0, _GEMMA, block, warps, False, None
        )
        return {"dx": dx} if dweight is None else {"dx": dx, "dweight": dweight}

    return run


def _softmax(_: Problem) -> Function:
    softmax = _softmax_functions()
    return lambda t: {"y": softmax._softmax_forward(t["x"])[0]}


def _softmax_backward(problem: Problem) -> Function:
    softmax = _softmax_functions()
    block, warps = calculate_settings(problem.cols)
    return lambda t: {"dx": softmax._softmax_backward(t["dy"], t["y"], block, warps, problem.cols > block)}


def _softmax_functions() -> Any:
    """Liger's softmax module; the names in it are private, and older versions have no such module."""
    try:
        from liger_kernel.ops import softmax
    except ImportError as error:
        raise NotOfferedError("no softmax", received=str(error)) from error
    return softmax


def _add_rms_norm(problem: Problem) -> Function:
    """The sum is rounded before the norm."""
    require(problem, "weight")
    operation, eps = _module("fused_add_rms_norm"), scalar(problem, "eps")

    def run(t: Tensors) -> Tensors:
        y, h, rstd, *_ = operation.fused_add_rms_norm_forward(t["x"], t["residual"], t["weight"], eps, 0.0, "gemma")
        return {"y": y, "h": h, "rstd": rstd}

    return run


def _add_rms_norm_backward(problem: Problem) -> Function:
    """x and residual have one gradient, a single tensor."""
    require(problem, "weight")
    operation = _module("fused_add_rms_norm")
    block, warps = calculate_settings(problem.cols)
    launch = {"BLOCK_SIZE": block, "num_warps": warps, "num_stages": 2, "in_place": False}

    def run(t: Tensors) -> Tensors:
        dx, _, dweight = operation.fused_add_rms_norm_backward(
            t["dy"], t["dh"], t["h"], t["weight"], t["rstd"], 0.0, _GEMMA, **launch
        )
        found = {"dx": dx, "dresidual": dx, "dweight": dweight}
        return {name: gradient for name, gradient in found.items() if name in problem.present}

    return run


def _swiglu(_: Problem) -> Function:
    """silu is rounded before the product."""
    operation = _module("swiglu")
    return lambda t: {"y": operation.swiglu_forward(t["gate"], t["up"])[2]}


def _geglu_tanh(_: Problem) -> Function:
    operation = _module("geglu")
    return lambda t: {"y": operation.geglu_forward(t["gate"], t["up"])[2]}


def _cross_entropy_grad(problem: Problem, sets: Sequence[Tensors]) -> Call:
    """Of a mean, Liger divides a row's loss as it divides the gradient; our spec scales the gradient alone.

    So a loss is returned where nothing is scaled; it is stored in x's dtype. The log of the sum of exp(x) never is.
    """
    if dict(problem.in_place) != {"dlogits": "x"}:
        raise NotOfferedError("overwrites the logits", received="dlogits in memory of its own")
    operation = _module("cross_entropy")
    kernel, cols = operation.liger_cross_entropy_kernel, problem.cols
    is_mean = "grad_scale" in problem.present
    counts = [1 / float(t["grad_scale"]) if is_mean else 1.0 for t in sets]  # 1 / the number of labels of a mean
    known: dict[str, Any] = {
        "Y_stride": 1,
        "weight_ptr": None,
        "z_loss_ptr": None,
        "loss_stride": 1,
        **dict.fromkeys(("token_accuracy_ptr", "predicted_tokens_ptr", "softcap")),
        **dict.fromkeys(("token_accuracy_stride", "predicted_tokens_stride"), 0),
        "n_cols": cols,
        "weight_sum": 0.0,
        "ignore_index": int(scalar(problem, "ignore_index")),
        "lse_square_scale": scalar(problem, "z_loss"),
        "label_smoothing": scalar(problem, "label_smoothing"),
        "reduction": "mean" if is_mean else "none",
        **dict.fromkeys(("RETURN_Z_LOSS", "RETURN_TOKEN_ACCURACY", "RETURN_PREDICTED_TOKENS"), False),
        "BLOCK_SIZE": min(operation.MAX_FUSED_SIZE, 1 << (cols - 1).bit_length()),
        **dict.fromkeys(("HAS_WEIGHT", "HAS_SOFTCAPPING"), False),
        "HAS_GRADIENTS": True,
    }
    of_call = {"X_ptr", "X_stride", "Y_ptr", "loss_ptr", "n_non_ignore", "sum_non_ignore_weight"}
    takes = set(kernel.arg_names)
    if unknown := takes - known.keys() - of_call:
        raise NotOfferedError("its cross entropy is another one", received=", ".join(sorted(unknown)))
    given = {name: value for name, value in known.items() if name in takes}
    warps = 8 if problem.dtype.bytes == 2 and _is_blackwell(operation) else 32

    def call(i: int) -> Tensors:
        t = sets[i]
        x, loss = t["x"], t["x"].new_zeros(problem.rows)
        mine = {"X_ptr": x, "X_stride": x.stride(-2), "Y_ptr": t["label"], "loss_ptr": loss}
        mine |= {name: counts[i] for name in ("n_non_ignore", "sum_non_ignore_weight") if name in takes}
        kernel[(problem.rows,)](**given, **mine, num_warps=warps)
        return {"dlogits": x} if is_mean else {"dlogits": x, "loss": loss}

    return call


def _is_blackwell(operation: Any) -> bool:
    """Its versions that know the GPU's generation give a row of 16 bits fewer warps there."""
    arch = getattr(operation, "infer_device_arch", None)
    return arch is not None and str(arch()).startswith("blackwell")


def _module(name: str) -> Any:
    """A module of Liger's that older versions have not. Raises NotOfferedError."""
    try:
        return importlib.import_module(f"liger_kernel.ops.{name}")
    except ImportError as error:
        raise NotOfferedError(f"no {name}", received=str(error)) from error


_FUNCTIONS: dict[tuple[str, str], Callable[[Problem], Function]] = {
    ("layernorm", "forward"): _layer_norm,
    ("llama_rmsnorm", "forward"): _llama_rms_norm,
    ("rmsnorm", "forward"): _rms_norm,
    ("softmax", "forward"): _softmax,
    ("layernorm", "backward"): _layer_norm_backward,
    ("rmsnorm", "backward"): _rms_norm_backward,
    ("softmax", "backward"): _softmax_backward,
    ("add_rmsnorm", "forward"): _add_rms_norm,
    ("add_rmsnorm", "backward"): _add_rms_norm_backward,
    ("swiglu", "forward"): _swiglu,
    ("geglu_tanh", "forward"): _geglu_tanh,
}
