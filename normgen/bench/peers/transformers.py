"""Hugging Face transformers: the norms of its models, as torch runs them operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from normgen.bench.peers import Call, Options, Tensors
from normgen.bench.peers.common import Function, on_sets, pick, require, scalar, versions_of
from normgen.errors import NotOfferedError
from normgen.problem.problem import Problem


def versions() -> dict[str, str]:
    return versions_of("transformers")


def prepare(problem: Problem, sets: Sequence[Tensors], options: Options) -> Call:  # noqa: ARG001
    for name in ("residual", "h", "bias", "mean", "rstd"):
        if name in problem.present:
            raise NotOfferedError(f"has no {name}")
    require(problem, "weight")
    return on_sets(pick(_FUNCTIONS, problem)(problem), sets)


def _norm_of(module: type[torch.nn.Module]) -> Callable[[Problem], Function]:
    def made(problem: Problem) -> Function:
        norm = module(problem.cols, eps=scalar(problem, "eps"))

        def run(t: Tensors) -> Tensors:
            norm.weight = torch.nn.Parameter(t["weight"], requires_grad=False)
            return {"y": norm(t["x"])}

        return run

    return made


def _norm_of_heads(problem: Problem) -> Function:
    sizes = (problem.batches, problem.cols)
    norm = CohereLayerNorm(hidden_size=sizes, eps=scalar(problem, "eps"))

    def run(t: Tensors) -> Tensors:
        norm.weight = torch.nn.Parameter(t["weight"], requires_grad=False)
        return {"y": norm(t["x"].view(-1, *sizes)).view(t["x"].shape)}

    return run


_FUNCTIONS: dict[tuple[str, str], Callable[[Problem], Function]] = {
    ("llama_rmsnorm", "forward"): _norm_of(LlamaRMSNorm),
    ("gemma_rmsnorm", "forward"): _norm_of(GemmaRMSNorm),
    ("head_layernorm", "forward"): _norm_of_heads,
}
