"""FlashInfer: its norms and activations of inference, which return their results.

gate and up are joined beforehand, as its activations take them. fused_add_rmsnorm overwrites what it reads, which every
other provider reads too: it is not offered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import flashinfer
import torch

from normgen.bench.peers import Call, NotOfferedError, Options, Tensors
from normgen.bench.peers.common import Function, on_sets, pick, require, scalar, versions_of
from normgen.problem.problem import Problem


def versions() -> dict[str, str]:
    return versions_of("flashinfer-python")


def prepare(problem: Problem, sets: Sequence[Tensors], options: Options) -> Call:  # noqa: ARG001
    function = pick(_FUNCTIONS, problem)(problem)
    if "gate" in sets[0]:
        sets = [{"joined": torch.cat([t["gate"], t["up"]], dim=-1)} for t in sets]
    return on_sets(function, sets)


def _rms_norm(problem: Problem) -> Function:
    _without(problem, "rstd")
    require(problem, "weight")
    eps = scalar(problem, "eps")
    return lambda t: {"y": flashinfer.rmsnorm(t["x"], t["weight"], eps)}


def _gemma_rms_norm(problem: Problem) -> Function:
    _without(problem, "rstd", "h", "residual")
    eps = scalar(problem, "eps")
    return lambda t: {"y": flashinfer.gemma_rmsnorm(t["x"], t["weight"], eps)}


def _rms_norm_to_fp8(problem: Problem) -> Function:
    require(problem, "weight")
    eps = scalar(problem, "eps")

    def run(t: Tensors) -> Tensors:
        q = torch.empty_like(t["x"], dtype=torch.float8_e4m3fn)
        flashinfer.norm.rmsnorm_quant(q, t["x"], t["weight"], t["scale"], eps)
        return {"q": q}

    return run


def _without(problem: Problem, *names: str) -> None:
    """Raises NotOfferedError if a tensor is there that the library does not know."""
    for name in names:
        if name in problem.present:
            raise NotOfferedError(f"has no {name}")


_FUNCTIONS: dict[tuple[str, str], Callable[[Problem], Function]] = {
    ("rmsnorm", "forward"): _rms_norm,
    ("gemma_rmsnorm", "forward"): _gemma_rms_norm,
    ("rmsnorm_to_fp8", "forward"): _rms_norm_to_fp8,
    ("swiglu", "forward"): lambda _: lambda t: {"y": flashinfer.silu_and_mul(t["joined"])},
    ("geglu", "forward"): lambda _: lambda t: {"y": flashinfer.gelu_and_mul(t["joined"])},
    ("geglu_tanh", "forward"): lambda _: lambda t: {"y": flashinfer.gelu_tanh_and_mul(t["joined"])},
}
