"""Liger: the functions its autograd Functions call, so that no argument is copied to make it contiguous.

Before 0.8.5 its LayerNorm keeps mean and rstd in x's dtype. RMSNorm runs in the mode "gemma", which like our spec
rounds once, at the end; its speed is that of "llama". Its RMSNorm backward runs with in_place=False, the form that
leaves dy as it was: every provider reads the same dy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from liger_kernel.ops.layer_norm import layer_norm_backward, layer_norm_forward
from liger_kernel.ops.rms_norm import rms_norm_backward, rms_norm_forward
from liger_kernel.ops.utils import calculate_settings

from normgen.bench.peers import Call, NotOfferedError, Options, Tensors
from normgen.bench.peers.common import Function, on_sets, pick, require, scalar, versions_of
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


_FUNCTIONS: dict[tuple[str, str], Callable[[Problem], Function]] = {
    ("layernorm", "forward"): _layer_norm,
    ("rmsnorm", "forward"): _rms_norm,
    ("softmax", "forward"): _softmax,
    ("layernorm", "backward"): _layer_norm_backward,
    ("rmsnorm", "backward"): _rms_norm_backward,
    ("softmax", "backward"): _softmax_backward,
}
