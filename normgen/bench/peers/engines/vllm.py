"""vLLM: the norms of its compiled library, alone and ending in fp8.

Its operators are loaded from the library's file: `import vllm` would change how this process compiles with torch. What
overwrites what it reads is offered for problems in place of the same tensors, and for no others.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from normgen.bench.peers import Call, Options, Tensors
from normgen.bench.peers.common import Function, in_place, on_sets, pick, scalar, versions_of, without
from normgen.errors import NotOfferedError
from normgen.problem.problem import Problem

LIBRARIES = ("_C_stable_libtorch.abi3.so", "_C.abi3.so")  # of release 0.33 and of older ones
GROUP = 128


def versions() -> dict[str, str]:
    return versions_of("vllm")


def prepare(problem: Problem, sets: Sequence[Tensors], options: Options) -> Call:  # noqa: ARG001
    name, function = pick(_FUNCTIONS, problem)
    return on_sets(function(problem, operator(name)), sets)


def operator(name: str) -> Any:
    """vLLM's `torch.ops._C.<name>`. Raises NotOfferedError where its compiled library is not here, or has it not."""
    found = importlib.util.find_spec("vllm")
    for folder in (found.submodule_search_locations or ()) if found else ():
        for library in LIBRARIES:
            if not hasattr(torch.ops._C, name) and (Path(folder) / library).is_file():
                torch.ops.load_library(str(Path(folder) / library))
    if not hasattr(torch.ops._C, name):
        raise NotOfferedError(f"its compiled library has no {name} here", received=f"vllm at {found and found.origin}")
    return getattr(torch.ops._C, name).default


def _quantised(t: Tensors) -> Any:
    return torch.empty_like(t["x"], dtype=torch.float8_e4m3fn)


def _rms_norm(problem: Problem, op: Any) -> Function:
    without(problem, "rstd")
    eps = scalar(problem, "eps")

    def run(t: Tensors) -> Tensors:
        y = torch.empty_like(t["x"])
        op(y, t["x"], t.get("weight"), eps)
        return {"y": y}

    return run


def _add_rms_norm(problem: Problem, op: Any) -> Function:
    in_place(problem, h="residual", y="x")
    without(problem, "rstd")
    eps = scalar(problem, "eps")

    def run(t: Tensors) -> Tensors:
        op(t["x"], t["residual"], t.get("weight"), eps)
        return {"h": t["residual"], "y": t["x"]}

    return run


def _static(problem: Problem, op: Any) -> Function:
    without(problem, "rstd")
    eps = scalar(problem, "eps")

    def run(t: Tensors) -> Tensors:
        q = _quantised(t)
        op(q, t["x"], t["weight"], t["scale"], eps)
        return {"q": q}

    return run


def _add_static(problem: Problem, op: Any) -> Function:
    in_place(problem, h="residual")
    without(problem, "rstd")
    eps = scalar(problem, "eps")

    def run(t: Tensors) -> Tensors:
        q = _quantised(t)
        op(q, t["x"], t["residual"], t["weight"], t["scale"], eps)
        return {"h": t["residual"], "q": q}

    return run


def _dynamic(problem: Problem, op: Any) -> Function:
    """Scales of tokens, or of 128 columns: these as the problem has them, row by row or column by column."""
    has_residual, is_grouped = "residual" in problem.present, bool(problem.spec.group)
    if has_residual:
        in_place(problem, h="residual")
    without(problem, "rstd", "y")
    eps, layout = scalar(problem, "eps"), dict(problem.layout)
    if is_grouped and (problem.spec.group != GROUP or (layout and set(layout.values()) != {"column_major"})):
        raise NotOfferedError(f"quantises groups of {GROUP} columns, with a scale each")
    groups, pitch = problem.cols // GROUP, problem.pitches.get("scale", 0)

    def run(t: Tensors) -> Tensors:
        q, rows = _quantised(t), t["x"].shape[0]
        given = (t["x"], t["weight"])
        own = (eps, t.get("scale_ub"), t.get("residual"))
        if not is_grouped:
            scale = torch.empty(rows, 1, device=q.device)
            op(q, *given, scale, *own)
        elif layout:
            scale = torch.empty(groups, pitch, device=q.device).t()[:rows]
            op(q, *given, scale, *own, GROUP, True)
        else:
            scale = torch.empty(rows, groups, device=q.device)
            op(q, *given, scale, *own, GROUP, False)
        results = {"q": q, "scale": scale if is_grouped else scale[:, 0]}
        return {**results, "h": t["residual"]} if has_residual else results

    return run


_FUNCTIONS: dict[tuple[str, str], tuple[str, Callable[[Problem, Any], Function]]] = {
    ("rmsnorm", "forward"): ("rms_norm", _rms_norm),
    ("vllm_ir_rmsnorm", "forward"): ("rms_norm", _rms_norm),
    ("add_rmsnorm", "forward"): ("fused_add_rms_norm", _add_rms_norm),
    ("vllm_add_rmsnorm", "forward"): ("fused_add_rms_norm", _add_rms_norm),
    ("vllm_ir_add_rmsnorm", "forward"): ("fused_add_rms_norm", _add_rms_norm),
    ("vllm_rmsnorm_to_fp8", "forward"): ("rms_norm_static_fp8_quant", _static),
    ("vllm_add_rmsnorm_to_fp8", "forward"): ("fused_add_rms_norm_static_fp8_quant", _add_static),
    ("vllm_rmsnorm_to_fp8_token", "forward"): ("rms_norm_dynamic_per_token_quant", _dynamic),
    ("vllm_add_rmsnorm_to_fp8_token", "forward"): ("rms_norm_dynamic_per_token_quant", _dynamic),
    ("vllm_rmsnorm_to_fp8_group", "forward"): ("rms_norm_per_block_quant", _dynamic),
    ("vllm_add_rmsnorm_to_fp8_group", "forward"): ("rms_norm_per_block_quant", _dynamic),
}
