"""QuACK (CuTe DSL kernels). Its LayerNorm takes f32 parameters only: copies of that dtype are made beforehand."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence

from quack.rmsnorm import layernorm_bwd, layernorm_fwd, rmsnorm_bwd, rmsnorm_fwd
from quack.softmax import softmax_bwd, softmax_fwd

from normgen.bench.peers import Call, Options, Tensors
from normgen.bench.peers.common import Function, on_sets, operation, pick, require, require_layout, scalar, versions_of
from normgen.errors import NotOfferedError
from normgen.problem.problem import Problem

# Where QuACK's quantiser has been, the newest place first.
_MX = ("quack.blockscaled.quantize", "quack.blockscaled.quantize_utils", "quack.mx_utils")


def versions() -> dict[str, str]:
    return versions_of("quack-kernels", "nvidia-cutlass-dsl")


def prepare(problem: Problem, sets: Sequence[Tensors], options: Options) -> Call:  # noqa: ARG001
    function = pick(_FUNCTIONS, problem)(problem)
    if operation(problem) == ("layernorm", "forward"):
        sets = [{name: t.float() if name in ("weight", "bias") else t for name, t in s.items()} for s in sets]
    return on_sets(function, sets)


def _layer_norm(problem: Problem) -> Function:
    require(problem, "weight")
    eps, is_training = scalar(problem, "eps"), "rstd" in problem.present

    def run(t: Tensors) -> Tensors:
        if not is_training:
            return {"y": layernorm_fwd(t["x"], t["weight"], t.get("bias"), eps)}
        y, rstd, mean = layernorm_fwd(t["x"], t["weight"], t.get("bias"), eps, return_rstd=True, return_mean=True)
        return {"y": y, "mean": mean, "rstd": rstd}

    return run


def _rms_norm(problem: Problem) -> Function:
    eps, has_rstd = scalar(problem, "eps"), "rstd" in problem.present

    def run(t: Tensors) -> Tensors:
        y, _, rstd = rmsnorm_fwd(t["x"], t.get("weight"), eps=eps, store_rstd=has_rstd)
        return {"y": y, "rstd": rstd} if has_rstd else {"y": y}

    return run


def _layer_norm_backward(problem: Problem) -> Function:
    require(problem, "weight")
    has_bias = "dbias" in problem.present

    def run(t: Tensors) -> Tensors:
        found = layernorm_bwd(t["x"], t["weight"], t["dy"], t["rstd"], t["mean"], has_bias=has_bias)
        return {name: g for name, g in zip(("dx", "dweight", "dbias"), found, strict=True) if g is not None}

    return run


def _rms_norm_backward(_: Problem) -> Function:
    def run(t: Tensors) -> Tensors:
        dx, dweight, *_ = rmsnorm_bwd(t["x"], t.get("weight"), t["dy"], t["rstd"])
        return {"dx": dx} if dweight is None else {"dx": dx, "dweight": dweight}

    return run


def _quantize_to_mxfp8(problem: Problem) -> Function:
    """Of torch's operations, as QuACK has it."""
    require_layout(problem)
    place = next((place for place in _MX if importlib.util.find_spec(place) is not None), None)
    if place is None:
        raise NotOfferedError("has no to_mx", received=", ".join(_MX))
    to_mx = importlib.import_module(place).to_mx

    def run(t: Tensors) -> Tensors:
        q, scale = to_mx(t["x"])
        return {"q": q, "scale": scale}

    return run


_FUNCTIONS: dict[tuple[str, str], Callable[[Problem], Function]] = {
    ("layernorm", "forward"): _layer_norm,
    ("rmsnorm", "forward"): _rms_norm,
    ("quack_quantize_to_mxfp8", "forward"): _quantize_to_mxfp8,
    ("softmax", "forward"): lambda _: lambda t: {"y": softmax_fwd(t["x"])},
    ("layernorm", "backward"): _layer_norm_backward,
    ("rmsnorm", "backward"): _rms_norm_backward,
    ("softmax", "backward"): lambda _: lambda t: {"dx": softmax_bwd(t["dy"], t["y"])},
}
