"""FlashInfer: its norms, its activations of inference, and the softmax that it samples by.

What overwrites what it reads is offered for problems in place of the same tensors, and for no others: every provider
of a bench reads the same memory. Its activations take gate and up joined, a copy that nothing has just written: they
are offered where no L2 holds that anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import flashinfer
import torch

from normgen.bench.peers import Call, Options, Tensors
from normgen.bench.peers.common import (
    Function,
    in_place,
    on_sets,
    pick,
    require,
    require_layout,
    scalar,
    versions_of,
    without,
)
from normgen.errors import NotOfferedError
from normgen.problem.problem import Problem

BEYOND_L2 = 128 << 20  # bytes


def versions() -> dict[str, str]:
    return versions_of("flashinfer-python")


def prepare(problem: Problem, sets: Sequence[Tensors], options: Options) -> Call:  # noqa: ARG001
    function = pick(_FUNCTIONS, problem)(problem)
    if "gate" in sets[0]:
        if problem.compulsory_bytes < BEYOND_L2:
            raise NotOfferedError("takes gate and up joined, which nothing has just written")
        sets = [{"joined": torch.cat([t["gate"], t["up"]], dim=-1)} for t in sets]
    return on_sets(function, sets)


def _rms_norm(problem: Problem) -> Function:
    without(problem, "rstd")
    require(problem, "weight")
    eps = scalar(problem, "eps")
    return lambda t: {"y": flashinfer.rmsnorm(t["x"], t["weight"], eps)}


def _gemma_rms_norm(problem: Problem) -> Function:
    without(problem, "rstd")
    eps = scalar(problem, "eps")
    if "residual" not in problem.present:
        without(problem, "h")
        return lambda t: {"y": flashinfer.gemma_rmsnorm(t["x"], t["weight"], eps)}
    in_place(problem, h="residual", y="x")

    def run(t: Tensors) -> Tensors:
        flashinfer.gemma_fused_add_rmsnorm(t["x"], t["residual"], t["weight"], eps)
        return {"h": t["residual"], "y": t["x"]}

    return run


def _layer_norm(problem: Problem) -> Function:
    without(problem, "mean", "rstd")
    require(problem, "weight", "bias")
    if [problem.tensor(name).dtype.name for name in ("x", "weight", "bias")] != ["bf16", "f32", "f32"]:
        raise NotOfferedError("takes rows of bfloat16 and parameters of float32")
    eps = scalar(problem, "eps")
    return lambda t: {"y": flashinfer.norm.layernorm(t["x"], t["weight"], t["bias"], eps)}


def _softmax(problem: Problem) -> Function:
    """Of other dtypes it makes float32 ones first, in a kernel of torch."""
    if {problem.tensor(name).dtype.name for name in ("x", "y")} != {"f32"}:
        raise NotOfferedError("takes and gives float32")
    return lambda t: {"y": flashinfer.sampling.softmax(t["x"])}


def _add_rms_norm(problem: Problem) -> Function:
    in_place(problem, h="residual", y="x")
    without(problem, "rstd")
    require(problem, "weight")
    eps = scalar(problem, "eps")

    def run(t: Tensors) -> Tensors:
        flashinfer.fused_add_rmsnorm(t["x"], t["residual"], t["weight"], eps)
        return {"h": t["residual"], "y": t["x"]}

    return run


def _add_rms_norm_to_fp8_group(problem: Problem) -> Function:
    in_place(problem, h="residual")
    require_layout(problem, scale="column_major")
    require(problem, "weight", "y")
    eps, groups, pitch = scalar(problem, "eps"), problem.cols // problem.spec.group, problem.pitches["scale"]

    def run(t: Tensors) -> Tensors:
        q, y = torch.empty_like(t["x"], dtype=torch.float8_e4m3fn), torch.empty_like(t["x"])
        scale = torch.empty(groups, pitch, device=q.device)
        flashinfer.norm.fused_add_rmsnorm_fp8_block_quant(q, scale, y, t["x"], t["residual"], t["weight"], eps)
        return {"h": t["residual"], "y": y, "q": q, "scale": scale.t()[: problem.rows]}

    return run


def _quantize_to_fp8_group(problem: Problem) -> Function:
    """Needs cuda.tile, and a GPU that its compiler knows."""
    is_by_column = bool(problem.layout)
    require_layout(problem, **({"scale": "column_major"} if is_by_column else {}))
    floor, size = scalar(problem, "amax_min"), problem.spec.group

    def run(t: Tensors) -> Tensors:
        q, scale = flashinfer.quantization.per_token_group_quant_8bit(
            t["x"], size, floor, column_major_scales=is_by_column, scale_tma_aligned=is_by_column
        )
        return {"q": q, "scale": scale}

    return run


def _rms_norm_to_fp8(problem: Problem) -> Function:
    require(problem, "weight")
    eps = scalar(problem, "eps")

    def run(t: Tensors) -> Tensors:
        q = torch.empty_like(t["x"], dtype=torch.float8_e4m3fn)
        flashinfer.norm.rmsnorm_quant(q, t["x"], t["weight"], t["scale"], eps)
        return {"q": q}

    return run


def _add_rms_norm_to_fp8(problem: Problem) -> Function:
    in_place(problem, h="residual")
    without(problem, "rstd")
    eps = scalar(problem, "eps")

    def run(t: Tensors) -> Tensors:
        q = torch.empty_like(t["x"], dtype=torch.float8_e4m3fn)
        flashinfer.norm.fused_add_rmsnorm_quant(q, t["x"], t["residual"], t["weight"], t["scale"], eps)
        return {"h": t["residual"], "q": q}

    return run


def _quantize_to_8_bit_group(problem: Problem) -> Function:
    """Scales row by row, multiplied by; needs cuda.tile, and a GPU that its compiler knows."""
    require_layout(problem)
    dtype = getattr(torch, problem.tensor("q").dtype.torch)

    def run(t: Tensors) -> Tensors:
        q, scale = flashinfer.quantization.per_token_group_quant_8bit(
            t["x"], problem.spec.group, 1e-10, dst_dtype=dtype
        )
        return {"q": q, "scale": scale}

    return run


def _quantize_to_mxfp8(problem: Problem) -> Function:
    require_layout(problem)

    def run(t: Tensors) -> Tensors:
        q, scale = flashinfer.mxfp8_quantize(t["x"], is_sf_swizzled_layout=False)
        return {"q": q, "scale": scale}

    return run


_FUNCTIONS: dict[tuple[str, str], Callable[[Problem], Function]] = {
    ("rmsnorm", "forward"): _rms_norm,
    ("add_rmsnorm", "forward"): _add_rms_norm,
    ("add_rmsnorm_to_fp8_group", "forward"): _add_rms_norm_to_fp8_group,
    ("flashinfer_add_rmsnorm_to_fp8", "forward"): _add_rms_norm_to_fp8,
    ("flashinfer_quantize_to_fp8_group", "forward"): _quantize_to_8_bit_group,
    ("flashinfer_quantize_to_int8_group", "forward"): _quantize_to_8_bit_group,
    ("flashinfer_quantize_to_mxfp8", "forward"): _quantize_to_mxfp8,
    ("flashinfer_rmsnorm_to_fp8", "forward"): _rms_norm_to_fp8,
    ("gemma_rmsnorm", "forward"): _gemma_rms_norm,
    ("layernorm", "forward"): _layer_norm,
    ("quantize_to_fp8_group", "forward"): _quantize_to_fp8_group,
    ("rmsnorm_to_fp8", "forward"): _rms_norm_to_fp8,
    ("softmax", "forward"): _softmax,
    ("swiglu", "forward"): lambda _: lambda t: {"y": flashinfer.silu_and_mul(t["joined"])},
    ("geglu", "forward"): lambda _: lambda t: {"y": flashinfer.gelu_and_mul(t["joined"])},
    ("geglu_tanh", "forward"): lambda _: lambda t: {"y": flashinfer.gelu_tanh_and_mul(t["joined"])},
}
