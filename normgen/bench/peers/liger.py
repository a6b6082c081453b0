"""Liger: the functions its autograd Functions call, so that no argument is copied to make it contiguous.

Before 0.8.5 its LayerNorm keeps mean and rstd in x's dtype. RMSNorm runs in the mode "gemma", which like our spec
rounds once, at the end; its speed is that of "llama". Its RMSNorm backward runs with in_place=False, the form that
leaves dy as it was: every provider reads the same dy. For the same reason the backward of its SwiGLU and GEGLU, which
overwrites gate and up, and its cross entropy, whose gradient overwrites the logits, are not offered.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from liger_kernel.ops.layer_norm import layer_norm_backward, layer_norm_forward
from liger_kernel.ops.rms_norm import rms_norm_backward, rms_norm_forward
from liger_kernel.ops.utils import calculate_settings

from normgen.bench.peers import Call, Options, Tensors
from normgen.bench.peers.common import Function, on_sets, pick, require, scalar, versions_of
from normgen.errors import NotOfferedError
from normgen.problem.problem import Problem

_GEMMA = 1  # liger_kernel.ops.rms_norm's number for the casting mode; its backward takes no name


def versions() -> dict[str, str]:
    return versions_of("liger-kernel", "triton")


def prepare(problem: Problem, sets: Sequence[Tensors], options: Options) -> Call:  # noqa: ARG001
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


def _module(name: str) -> Any:
    """A module of Liger's that older versions have not. Raises NotOfferedError."""
    try:
        return importlib.import_module(f"liger_kernel.ops.{name}")
    except ImportError as error:
        raise NotOfferedError(f"no {name}", received=str(error)) from error


_FUNCTIONS: dict[tuple[str, str], Callable[[Problem], Function]] = {
    ("layernorm", "forward"): _layer_norm,
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
