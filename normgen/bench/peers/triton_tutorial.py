"""The Triton tutorial's LayerNorm as flash-attn ships it (flash_attn.ops.triton.layer_norm, autotuned)."""

from __future__ import annotations

from collections.abc import Sequence

from flash_attn.ops.triton.layer_norm import layer_norm_fn

from normgen.bench.peers import Call, Options, Tensors
from normgen.bench.peers.common import by_autograd, on_sets, operation, require, scalar, versions_of
from normgen.errors import NotOfferedError
from normgen.problem.problem import Problem
from normgen.problem.question import Direction


def versions() -> dict[str, str]:
    return versions_of("flash-attn", "triton")


def prepare(problem: Problem, sets: Sequence[Tensors], options: Options) -> Call:  # noqa: ARG001
    name, _ = operation(problem)
    if name not in ("layernorm", "rmsnorm"):
        raise NotOfferedError(f"no {problem.spec.name} {problem.direction.value}")
    require(problem, "weight")
    eps, is_rms = scalar(problem, "eps"), name == "rmsnorm"
    if "dbias" in problem.present:  # the backward problem reads no bias, and its value changes no gradient
        sets = [{**tensors, "bias": tensors["weight"].clone()} for tensors in sets]

    def forward(t: Tensors) -> Tensors:
        return {"y": layer_norm_fn(t["x"], t["weight"], t.get("bias"), eps=eps, is_rms_norm=is_rms)}

    if problem.direction is Direction.BACKWARD:
        return by_autograd(forward, problem, sets)
    return on_sets(forward, sets)
