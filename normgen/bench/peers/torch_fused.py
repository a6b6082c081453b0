"""torch eager: fused and quantising operations as its users write them, operator by operator in the stored dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from normgen.bench.peers import Tensors
from normgen.bench.peers.common import Function, column, scalar
from normgen.errors import NotOfferedError
from normgen.problem.problem import Problem

aten = torch.ops.aten
Tensor = Any
Values = Callable[[Tensors], Tensor]

FP8, INT8 = 448.0, 127.0


def _present(problem: Problem, results: Tensors) -> Tensors:
    return {name: value for name, value in results.items() if name in problem.present}


def _rms_norm(problem: Problem) -> Callable[[Tensors, Tensor], Tensor]:
    shape, eps = [problem.cols], scalar(problem, "eps")
    return lambda t, x: F.rms_norm(x, shape, t.get("weight"), eps)


def _add_rms_norm(problem: Problem) -> Function:
    """The sum is rounded before the norm, as two operators have it. Without rstd, which F.rms_norm does not give."""
    norm = _rms_norm(problem)

    def run(t: Tensors) -> Tensors:
        h = t["x"] + t["residual"]
        return {"h": h, "y": norm(t, h)}

    return run


def _add_rms_norm_backward(problem: Problem) -> Function:
    if not hasattr(aten, "_fused_rms_norm_backward"):
        raise NotOfferedError("torch has this operator from 2.9 on", received=torch.__version__)
    shape, mask = [problem.cols], [True, "dweight" in problem.present]

    def run(t: Tensors) -> Tensors:
        found = aten._fused_rms_norm_backward(t["dy"], t["h"], shape, column(t["rstd"]), t.get("weight"), mask)
        d = found[0] + t["dh"] if "dh" in t else found[0]
        return _present(problem, {"dx": d, "dresidual": d, "dweight": found[1]})

    return run


def _add_layer_norm(problem: Problem) -> Function:
    shape, eps = [problem.cols], scalar(problem, "eps")

    def run(t: Tensors) -> Tensors:
        h = t["x"] + t["x_bias"] if "x_bias" in t else t["x"]
        h = h + t["residual"]
        h = h + t["residual2"] if "residual2" in t else h
        y, mean, rstd = torch.native_layer_norm(h, shape, t.get("weight"), t.get("bias"), eps)
        return _present(problem, {"h": h, "y": y, "mean": mean, "rstd": rstd})

    return run


def _ada_layer_norm(problem: Problem) -> Function:
    shape, eps = [problem.cols], scalar(problem, "eps")

    def run(t: Tensors) -> Tensors:
        batches = t["scale"].shape[0]
        y = F.layer_norm(t["x"].unflatten(0, (batches, -1)), shape, eps=eps)
        return {"y": (y * (1 + t["scale"].unsqueeze(1)) + t["shift"].unsqueeze(1)).flatten(0, 1)}

    return run


def _ada_layer_norm_backward(problem: Problem) -> Function:
    shape = [problem.cols]

    def run(t: Tensors) -> Tensors:
        batches = t["scale"].shape[0]
        mean, rstd = t["mean"].unsqueeze(1), t["rstd"].unsqueeze(1)
        scaled = (t["dy"].unflatten(0, (batches, -1)) * (1 + t["scale"].unsqueeze(1))).flatten(0, 1)
        found = torch.ops.aten.native_layer_norm_backward(
            scaled, t["x"], shape, mean, rstd, None, None, [True, False, False]
        )
        by_scale = (t["dy"] * ((t["x"] - mean) * rstd)).unflatten(0, (batches, -1)).sum(1)
        by_shift = t["dy"].unflatten(0, (batches, -1)).sum(1)
        return {"dx": found[0], "dscale": by_scale.to(t["x"].dtype), "dshift": by_shift}

    return run


def _gate_rms_norm(problem: Problem) -> Function:
    norm = _rms_norm(problem)
    return lambda t: {"y": norm(t, t["x"] * F.silu(t["z"]))}


def _rms_norm_gate(problem: Problem) -> Function:
    norm = _rms_norm(problem)
    return lambda t: {"y": norm(t, t["x"]) * F.silu(t["z"])}


def _swiglu(_: Problem) -> Function:
    return lambda t: {"y": F.silu(t["gate"]) * t["up"]}


def _swiglu_backward(problem: Problem) -> Function:
    def run(t: Tensors) -> Tensors:
        dgate = aten.silu_backward(t["dy"] * t["up"], t["gate"])
        return _present(problem, {"dgate": dgate, "dup": t["dy"] * F.silu(t["gate"])})

    return run


def _geglu(approximate: str) -> Callable[[Problem], Function]:
    return lambda _: lambda t: {"y": F.gelu(t["gate"], approximate=approximate) * t["up"]}


def _geglu_backward(approximate: str) -> Callable[[Problem], Function]:
    def function(problem: Problem) -> Function:
        def run(t: Tensors) -> Tensors:
            dgate = aten.gelu_backward(t["dy"] * t["up"], t["gate"], approximate=approximate)
            return _present(problem, {"dgate": dgate, "dup": t["dy"] * F.gelu(t["gate"], approximate=approximate)})

        return run

    return function


def _codes(y: Tensor, largest: float) -> Tensor:
    if largest == INT8:
        return y.round().clamp(-128, 127).to(torch.int8)
    return y.clamp(-largest, largest).to(torch.float8_e4m3fn)


def _static(values: Callable[[Problem], Values], largest: float) -> Callable[[Problem], Function]:
    def function(problem: Problem) -> Function:
        value = values(problem)
        return lambda t: {"q": _codes(value(t).float() / t["scale"], largest)}

    return function


def _token(values: Callable[[Problem], Values], largest: float) -> Callable[[Problem], Function]:
    """The scale from the stored value, as a quantiser behind the norm has it."""

    def function(problem: Problem) -> Function:
        value, floor = values(problem), scalar(problem, "amax_min")

        def run(t: Tensors) -> Tensors:
            y = value(t).float()
            amax = y.abs().amax(-1, keepdim=True)
            amax = torch.minimum(amax, t["scale_ub"]) if "scale_ub" in t else amax
            scale = amax.clamp(min=floor) / largest
            return {"scale": scale.squeeze(1), "q": _codes(y / scale, largest)}

        return run

    return function


def _group(values: Callable[[Problem], Values], largest: float) -> Callable[[Problem], Function]:
    def function(problem: Problem) -> Function:
        value, floor, size = values(problem), scalar(problem, "amax_min"), problem.spec.group

        def run(t: Tensors) -> Tensors:
            y = value(t).float()
            groups = y.reshape(y.shape[0], -1, size)
            scale = groups.abs().amax(-1, keepdim=True).clamp(min=floor) / largest
            return {"scale": scale.squeeze(2), "q": _codes((groups / scale).reshape(y.shape), largest)}

        return run

    return function


def _with_values(
    first: Callable[[Problem], Function], quantiser: Callable[..., Callable[[Problem], Function]], largest: float
) -> Callable[[Problem], Function]:
    """`first` gives y, and what else it writes; y is quantised, and written too where the problem has it."""

    def function(problem: Problem) -> Function:
        before, behind = first(problem), quantiser(lambda _: lambda t: t["y"], largest)(problem)

        def run(t: Tensors) -> Tensors:
            found = before(t)
            return _present(problem, {**found, **behind({**t, "y": found["y"]})})

        return run

    return function


def _norm(problem: Problem) -> Function:
    norm = _rms_norm(problem)
    return lambda t: {"y": norm(t, t["x"])}


def _layer_norm(problem: Problem) -> Function:
    shape, eps = [problem.cols], scalar(problem, "eps")
    return lambda t: {"y": F.layer_norm(t["x"], shape, t.get("weight"), t.get("bias"), eps)}


def _x(_: Problem) -> Values:
    return lambda t: t["x"]


def _cross_entropy_grad(problem: Problem) -> Function:
    """The loss, and softmax less one-hot labels: what autograd runs, without its bookkeeping."""
    ignored = int(scalar(problem, "ignore_index"))

    def run(t: Tensors) -> Tensors:
        x = t["x"].float()
        label = t["label"]
        logp = torch.log_softmax(x, -1)
        loss = F.nll_loss(logp, label, ignore_index=ignored, reduction="none")
        is_counted = (label != ignored).unsqueeze(1)
        d = logp.exp()
        d.scatter_add_(1, label.clamp(min=0).unsqueeze(1), torch.full_like(d[:, :1], -1.0))
        d = torch.where(is_counted, d, 0.0)
        d = d * t["grad_scale"] if "grad_scale" in t else d
        return {"loss": loss, "dlogits": d.to(t["x"].dtype)}

    return run


FUNCTIONS: dict[tuple[str, str], Callable[[Problem], Function]] = {
    ("add_rmsnorm", "forward"): _add_rms_norm,
    ("add_rmsnorm", "backward"): _add_rms_norm_backward,
    ("add_layernorm", "forward"): _add_layer_norm,
    ("adaln", "forward"): _ada_layer_norm,
    ("adaln", "backward"): _ada_layer_norm_backward,
    ("gate_rmsnorm", "forward"): _gate_rms_norm,
    ("rmsnorm_gate", "forward"): _rms_norm_gate,
    ("swiglu", "forward"): _swiglu,
    ("swiglu", "backward"): _swiglu_backward,
    ("geglu", "forward"): _geglu("none"),
    ("geglu", "backward"): _geglu_backward("none"),
    ("geglu_tanh", "forward"): _geglu("tanh"),
    ("geglu_tanh", "backward"): _geglu_backward("tanh"),
    ("cross_entropy_grad", "forward"): _cross_entropy_grad,
    ("rmsnorm_to_fp8", "forward"): _with_values(_norm, _static, FP8),
    ("rmsnorm_to_fp8_token", "forward"): _with_values(_norm, _token, FP8),
    ("rmsnorm_to_int8_token", "forward"): _with_values(_norm, _token, INT8),
    ("rmsnorm_to_fp8_group", "forward"): _with_values(_norm, _group, FP8),
    ("add_rmsnorm_to_fp8_token", "forward"): _with_values(_add_rms_norm, _token, FP8),
    ("add_rmsnorm_to_fp8_group", "forward"): _with_values(_add_rms_norm, _group, FP8),
    ("layernorm_to_int8", "forward"): _with_values(_layer_norm, _static, INT8),
    ("layernorm_to_int8_token", "forward"): _with_values(_layer_norm, _token, INT8),
    ("silu_mul_to_fp8_token", "forward"): _with_values(_swiglu, _token, FP8),
    ("silu_mul_to_fp8_group", "forward"): _with_values(_swiglu, _group, FP8),
    ("quantize_to_fp8_token", "forward"): _token(_x, FP8),
    ("quantize_to_fp8_group", "forward"): _group(_x, FP8),
    ("quantize_to_int8_token", "forward"): _token(_x, INT8),
    ("quantize_to_int8_group", "forward"): _group(_x, INT8),
}
