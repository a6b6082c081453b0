"""torch eager: the operators behind torch.nn.functional, and those autograd calls in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from normgen.bench.peers import Call, Options, Tensors, torch_fused
from normgen.bench.peers.common import (
    Function,
    by_autograd,
    column,
    laid_out,
    on_sets,
    operation,
    pick,
    scalar,
    versions_of,
)
from normgen.problem.problem import Problem

aten = torch.ops.aten


def versions() -> dict[str, str]:
    return {**versions_of("torch"), "torch_cuda": str(torch.version.cuda)}


def prepare(problem: Problem, sets: Sequence[Tensors], options: Options) -> Call:  # noqa: ARG001
    in_ieee()
    if operation(problem) == ("rmsnorm", "backward") and not hasattr(aten, "_fused_rms_norm_backward"):  # torch < 2.9
        return by_autograd(_rms_norm(problem), problem, sets)
    return on_sets(laid_out(problem, pick(FUNCTIONS, problem)(problem)), sets)


def _layer_norm(problem: Problem) -> Function:
    """The operator of F.layer_norm, which also returns the statistics."""
    shape, eps = [problem.cols], scalar(problem, "eps")

    def run(t: Tensors) -> Tensors:
        y, mean, rstd = torch.native_layer_norm(t["x"], shape, t.get("weight"), t.get("bias"), eps)
        return {"y": y, "mean": mean, "rstd": rstd}

    return run


def _rms_norm(problem: Problem) -> Function:
    shape, eps = [problem.cols], scalar(problem, "eps")
    if "rstd" in problem.present and problem.direction == "forward" and hasattr(aten, "_fused_rms_norm"):

        def run(t: Tensors) -> Tensors:
            y, rstd = aten._fused_rms_norm(t["x"], shape, t.get("weight"), eps)
            return {"y": y, "rstd": rstd}

        return run
    return lambda t: {"y": torch.nn.functional.rms_norm(t["x"], shape, t.get("weight"), eps)}


def _softmax(_: Problem) -> Function:
    return lambda t: {"y": torch.softmax(t["x"], -1)}


def _log_softmax(_: Problem) -> Function:
    return lambda t: {"y": torch.log_softmax(t["x"], -1)}


def _layer_norm_backward(problem: Problem) -> Function:
    """dbias does not need bias, but the operator wants one for its shape and dtype: weight has both."""
    shape = [problem.cols]
    mask = [name in problem.present for name in ("dx", "dweight", "dbias")]

    def run(t: Tensors) -> Tensors:
        weight, mean, rstd = t.get("weight"), column(t["mean"]), column(t["rstd"])
        found = aten.native_layer_norm_backward(t["dy"], t["x"], shape, mean, rstd, weight, weight, mask)
        return {name: g for name, g in zip(("dx", "dweight", "dbias"), found, strict=True) if g is not None}

    return run


def _rms_norm_backward(problem: Problem) -> Function:
    shape = [problem.cols]
    mask = [name in problem.present for name in ("dx", "dweight")]

    def run(t: Tensors) -> Tensors:
        found = aten._fused_rms_norm_backward(t["dy"], t["x"], shape, column(t["rstd"]), t.get("weight"), mask)
        return {name: g for name, g in zip(("dx", "dweight"), found, strict=True) if g is not None}

    return run


def _softmax_backward(_: Problem) -> Function:
    return lambda t: {"dx": aten._softmax_backward_data(t["dy"], t["y"], -1, t["y"].dtype)}


def _log_softmax_backward(_: Problem) -> Function:
    return lambda t: {"dx": aten._log_softmax_backward_data(t["dy"], t["y"], -1, t["y"].dtype)}


# ---- products of matrices: as torch.matmul has them, in the stored dtype, and what stands around them


def in_ieee() -> None:
    """From here on this process multiplies float32 as it is: TF32 would round what it multiplies to 10 bits."""
    torch.backends.cuda.matmul.fp32_precision = "ieee"


def _linear(_: Problem) -> Function:
    def run(t: Tensors) -> Tensors:
        bias = t.get("bias")
        return {"y": torch.matmul(t["x"], t["w"]) if bias is None else torch.addmm(bias, t["x"], t["w"])}

    return run


def _linear_add(_: Problem) -> Function:
    return lambda t: {"y": torch.addmm(t["residual"], t["x"], t["w"])}


def _linear_add_rms(problem: Problem) -> Function:
    eps = scalar(problem, "eps")

    def run(t: Tensors) -> Tensors:
        h = torch.addmm(t["residual"], t["x"], t["w"])
        return {"h": h, "rstd": torch.rsqrt(h.float().square().mean(-1) + eps)}

    return run


def _linear_bias_gelu(_: Problem) -> Function:
    return lambda t: {"y": F.gelu(torch.addmm(t["bias"], t["x"], t["w"]))}


def _linear_swiglu(_: Problem) -> Function:
    return lambda t: {"y": F.silu(t["x"] @ t["w_gate"]) * (t["x"] @ t["w_up"])}


def _rmsnorm_linear(problem: Problem) -> Function:
    """The norm is rounded before the product, as two operators have it; there is no rstd."""
    shape, eps = [problem.sizes.inner], scalar(problem, "eps")
    return lambda t: {"y": F.rms_norm(t["x"], shape, t.get("weight"), eps) @ t["w"]}


def _linear_backward(problem: Problem) -> Function:
    """The gradients that are asked for: a product each, and the columns' sums."""
    made: dict[str, Callable[[Tensors], Any]] = {
        "dx": lambda t: t["dy"] @ t["w"].mT,
        "dw": lambda t: t["x"].mT @ t["dy"],
        "dbias": lambda t: t["dy"].sum(0),
        "dresidual": lambda t: t["dy"],
    }
    wanted = [name for name in made if name in problem.present]
    return lambda t: {name: made[name](t) for name in wanted}


def _of_batches(problem: Problem, tensor: Any) -> Any:
    """Rows as [batches, rows of each, ..]."""
    return tensor.unflatten(0, (problem.batches, problem.rows_per_batch))


def _bmm(problem: Problem) -> Function:
    return lambda t: {"y": (_of_batches(problem, t["x"]) @ t["w"]).flatten(0, 1)}


def _bmm_backward(problem: Problem) -> Function:
    def run(t: Tensors) -> Tensors:
        dy = _of_batches(problem, t["dy"])
        dx = {"dx": (dy @ t["w"].mT).flatten(0, 1)} if "dx" in problem.present else {}
        return dx | ({"dw": _of_batches(problem, t["x"]).mT @ dy} if "dw" in problem.present else {})

    return run


def _softmax_v(problem: Problem) -> Function:
    """The weights are rounded before the product, as two operators have it; there are no statistics."""
    scale, is_causal = scalar(problem, "scale"), problem.spec.name.startswith("causal")

    def run(t: Tensors) -> Tensors:
        z = t["s"] * scale
        z = z + t["mask"] if "mask" in t else z
        if is_causal:
            term = torch.arange(z.shape[-1], device=z.device)
            row = torch.arange(z.shape[0], device=z.device) % z.shape[-1]
            z = z.masked_fill(term > row[:, None], -torch.inf)
        return {"y": (_of_batches(problem, torch.softmax(z, -1)) @ t["v"]).flatten(0, 1)}

    return run


FUNCTIONS: dict[tuple[str, str], Callable[[Problem], Function]] = {
    **torch_fused.FUNCTIONS,
    ("layernorm", "forward"): _layer_norm,
    ("rmsnorm", "forward"): _rms_norm,
    ("softmax", "forward"): _softmax,
    ("log_softmax", "forward"): _log_softmax,
    ("layernorm", "backward"): _layer_norm_backward,
    ("rmsnorm", "backward"): _rms_norm_backward,
    ("softmax", "backward"): _softmax_backward,
    ("log_softmax", "backward"): _log_softmax_backward,
    ("linear", "forward"): _linear,
    ("linear_add", "forward"): _linear_add,
    ("linear_add_rms", "forward"): _linear_add_rms,
    ("linear_bias_gelu", "forward"): _linear_bias_gelu,
    ("linear_swiglu", "forward"): _linear_swiglu,
    ("rmsnorm_linear", "forward"): _rmsnorm_linear,
    ("linear", "backward"): _linear_backward,
    ("linear_add", "backward"): _linear_backward,
    ("bmm", "forward"): _bmm,
    ("bmm", "backward"): _bmm_backward,
    **{(op, "forward"): _softmax_v for op in ("softmax_v", "masked_softmax_v", "causal_softmax_v")},
}
