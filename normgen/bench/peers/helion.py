"""Helion: its own language for such kernels, one short function an operation, as its users write them.

Helion ships no library of operations, so these functions are ours. Each row lies whole in a block, which Helion's
examples do too; its autotuner chooses among a few configurations for every shape, by its own measurement. Its full
search takes minutes a shape and is left out. Not here: a norm to fp8 by groups of columns, whose row is a block of
[1, groups, 128]. Its compilation had not ended after five minutes (Helion 1.0.0, torch 2.11, an H200).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import helion
import helion.language as hl
import torch
from torch import Tensor

from normgen.bench.peers import Call, Options, Tensors
from normgen.bench.peers.common import Function, laid_out, on_sets, pick, require, scalar, versions_of
from normgen.errors import NotOfferedError
from normgen.problem.problem import Problem

# The bench checks results itself; some configurations differ in the last bit of a quotient.
_SETTINGS: dict[str, Any] = {"static_shapes": True, "autotune_accuracy_check": False, "autotune_precompile": None}


def _kernel(*configs: tuple[int, int]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Of (rows, groups or elements of a block; its warps)."""
    found = [helion.Config(block_sizes=[size], num_warps=warps) for size, warps in configs]
    kernel: Callable[[Callable[..., Any]], Callable[..., Any]] = helion.kernel(configs=found, **_SETTINGS)
    return kernel


by_rows = _kernel((1, 4), (1, 8), (1, 16))
by_groups = _kernel((1, 1), (8, 4), (32, 4))
by_elements = _kernel((1024, 4), (2048, 8), (4096, 8))


def versions() -> dict[str, str]:
    return versions_of("helion", "triton")


def prepare(problem: Problem, sets: Sequence[Tensors], options: Options) -> Call:  # noqa: ARG001
    if problem.in_place:
        raise NotOfferedError("its functions here write new tensors")
    return on_sets(laid_out(problem, pick(_FUNCTIONS, problem)(problem)), sets)


@by_rows
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        v = x[tile, :].to(torch.float32)
        rstd = torch.rsqrt(torch.mean(v * v, dim=-1) + eps)
        y[tile, :] = (v * rstd[:, None] * weight[None, :].to(torch.float32)).to(x.dtype)
    return y


@by_rows
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.empty_like(x)
    mean = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    rstd = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        v = x[tile, :].to(torch.float32)
        m = torch.mean(v, dim=-1)
        d = v - m[:, None]
        r = torch.rsqrt(torch.mean(d * d, dim=-1) + eps)
        y[tile, :] = (d * r[:, None] * weight[None, :].to(torch.float32) + bias[None, :].to(torch.float32)).to(x.dtype)
        mean[tile] = m
        rstd[tile] = r
    return y, mean, rstd


@by_rows
def softmax(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        v = x[tile, :].to(torch.float32)
        e = torch.exp(v - torch.amax(v, dim=-1)[:, None])
        y[tile, :] = (e / torch.sum(e, dim=-1)[:, None]).to(x.dtype)
    return y


@by_rows
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    h, y = torch.empty_like(x), torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        v = x[tile, :].to(torch.float32) + residual[tile, :].to(torch.float32)
        h[tile, :] = v.to(x.dtype)
        rstd = torch.rsqrt(torch.mean(v * v, dim=-1) + eps)
        y[tile, :] = (v * rstd[:, None] * weight[None, :].to(torch.float32)).to(x.dtype)
    return h, y


@by_rows
def add_layer_norm(x: Tensor, x_bias: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    y = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        v = x[tile, :].to(torch.float32) + x_bias[None, :].to(torch.float32) + residual[tile, :].to(torch.float32)
        d = v - torch.mean(v, dim=-1)[:, None]
        r = torch.rsqrt(torch.mean(d * d, dim=-1) + eps)
        y[tile, :] = (d * r[:, None] * weight[None, :].to(torch.float32) + bias[None, :].to(torch.float32)).to(x.dtype)
    return y


@by_rows
def gate_rms_norm(x: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        gate = z[tile, :].to(torch.float32)
        v = x[tile, :].to(torch.float32) * gate * torch.sigmoid(gate)
        rstd = torch.rsqrt(torch.mean(v * v, dim=-1) + eps)
        y[tile, :] = (v * rstd[:, None] * weight[None, :].to(torch.float32)).to(x.dtype)
    return y


@by_rows
def layer_norm_to_int8(x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float) -> Tensor:
    q = torch.empty(x.size(), dtype=torch.int8, device=x.device)
    for tile in hl.tile(x.size(0)):
        v = x[tile, :].to(torch.float32)
        d = v - torch.mean(v, dim=-1)[:, None]
        r = torch.rsqrt(torch.mean(d * d, dim=-1) + eps)
        y = d * r[:, None] * weight[None, :].to(torch.float32) + bias[None, :].to(torch.float32)
        q[tile, :] = torch.clamp(torch.round(y / scale[0]), -128.0, 127.0).to(torch.int8)
    return q


@by_rows
def rms_norm_to_fp8(x: Tensor, weight: Tensor, scale: Tensor, eps: float) -> Tensor:
    q = torch.empty(x.size(), dtype=torch.float8_e4m3fn, device=x.device)
    for tile in hl.tile(x.size(0)):
        v = x[tile, :].to(torch.float32)
        rstd = torch.rsqrt(torch.mean(v * v, dim=-1) + eps)
        y = v * rstd[:, None] * weight[None, :].to(torch.float32)
        q[tile, :] = torch.clamp(y / scale[0], -448.0, 448.0).to(torch.float8_e4m3fn)
    return q


@by_rows
def rms_norm_to_fp8_token(x: Tensor, weight: Tensor, eps: float, floor: float) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.empty_like(x)
    q = torch.empty(x.size(), dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        v = x[tile, :].to(torch.float32)
        rstd = torch.rsqrt(torch.mean(v * v, dim=-1) + eps)
        n = v * rstd[:, None] * weight[None, :].to(torch.float32)
        y[tile, :] = n.to(x.dtype)
        s = torch.clamp(torch.amax(torch.abs(n), dim=-1), min=floor) / 448.0
        scale[tile] = s
        q[tile, :] = torch.clamp(n / s[:, None], -448.0, 448.0).to(torch.float8_e4m3fn)
    return y, q, scale


@by_rows
def add_rms_norm_to_fp8_token(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, floor: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    h, y = torch.empty_like(x), torch.empty_like(x)
    q = torch.empty(x.size(), dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        v = x[tile, :].to(torch.float32) + residual[tile, :].to(torch.float32)
        h[tile, :] = v.to(x.dtype)
        rstd = torch.rsqrt(torch.mean(v * v, dim=-1) + eps)
        n = v * rstd[:, None] * weight[None, :].to(torch.float32)
        y[tile, :] = n.to(x.dtype)
        s = torch.clamp(torch.amax(torch.abs(n), dim=-1), min=floor) / 448.0
        scale[tile] = s
        q[tile, :] = torch.clamp(n / s[:, None], -448.0, 448.0).to(torch.float8_e4m3fn)
    return h, y, q, scale


@by_groups
def to_fp8_group(x: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Of [rows * groups, 128]."""
    q = torch.empty(x.size(), dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        v = x[tile, :].to(torch.float32)
        s = torch.clamp(torch.amax(torch.abs(v), dim=-1), min=floor) / 448.0
        scale[tile] = s
        q[tile, :] = torch.clamp(v / s[:, None], -448.0, 448.0).to(torch.float8_e4m3fn)
    return q, scale


@by_groups
def silu_mul_to_fp8_group(gate: Tensor, up: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Of [rows * groups, 128]."""
    q = torch.empty(gate.size(), dtype=torch.float8_e4m3fn, device=gate.device)
    scale = torch.empty([gate.size(0)], dtype=torch.float32, device=gate.device)
    for tile in hl.tile(gate.size(0)):
        g = gate[tile, :].to(torch.float32)
        v = g * torch.sigmoid(g) * up[tile, :].to(torch.float32)
        s = torch.clamp(torch.amax(torch.abs(v), dim=-1), min=floor) / 448.0
        scale[tile] = s
        q[tile, :] = torch.clamp(v / s[:, None], -448.0, 448.0).to(torch.float8_e4m3fn)
    return q, scale


@by_elements
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Of [elements]."""
    y = torch.empty_like(gate)
    for tile in hl.tile(gate.size(0)):
        g = gate[tile].to(torch.float32)
        y[tile] = (g * torch.sigmoid(g) * up[tile].to(torch.float32)).to(gate.dtype)
    return y


def _offered(
    kernel: Callable[..., Any], reads: str, writes: str, *, scalars: str = "eps", unknown: str = ""
) -> Callable[[Problem], Function]:
    """What the kernel makes of the tensors it reads and then the scalars; offered where it knows all tensors there."""

    def function(problem: Problem) -> Function:
        require(problem, *reads.split())
        if found := [name for name in unknown.split() if name in problem.present]:
            raise NotOfferedError(f"has no {' and '.join(found)}")
        numbers = [scalar(problem, name) for name in scalars.split()]

        def run(t: Tensors) -> Tensors:
            results = kernel(*(torch.atleast_1d(t[name]) for name in reads.split()), *numbers)
            return dict(zip(writes.split(), results if isinstance(results, tuple) else (results,), strict=True))

        return run

    return function


def _by_groups(kernel: Callable[..., Any], reads: str) -> Callable[[Problem], Function]:
    """As `_offered`, of rows that are cut into groups, each a row to the kernel."""

    def function(problem: Problem) -> Function:
        floor, size, rows = scalar(problem, "amax_min"), problem.spec.group, problem.rows

        def run(t: Tensors) -> Tensors:
            q, scale = kernel(*(t[name].view(-1, size) for name in reads.split()), floor)
            return {"q": q.view(rows, -1), "scale": scale.view(rows, -1)}

        return run

    return function


def _swiglu(problem: Problem) -> Function:
    shape = (problem.rows, problem.cols)
    return lambda t: {"y": swiglu(t["gate"].view(-1), t["up"].view(-1)).view(shape)}


_TOKEN: dict[str, str] = {"scalars": "eps amax_min", "unknown": "scale_ub"}
_FUNCTIONS: dict[tuple[str, str], Callable[[Problem], Function]] = {
    ("rmsnorm", "forward"): _offered(rms_norm, "x weight", "y", unknown="rstd"),
    ("layernorm", "forward"): _offered(layer_norm, "x weight bias", "y mean rstd"),
    ("softmax", "forward"): _offered(softmax, "x", "y", scalars=""),
    ("add_rmsnorm", "forward"): _offered(add_rms_norm, "x residual weight", "h y", unknown="rstd"),
    ("add_layernorm", "forward"): _offered(
        add_layer_norm, "x x_bias residual weight bias", "y", unknown="residual2 h mean rstd"
    ),
    ("gate_rmsnorm", "forward"): _offered(gate_rms_norm, "x z weight", "y", unknown="rstd"),
    ("layernorm_to_int8", "forward"): _offered(layer_norm_to_int8, "x weight bias scale", "q"),
    ("rmsnorm_to_fp8", "forward"): _offered(rms_norm_to_fp8, "x weight scale", "q"),
    ("rmsnorm_to_fp8_token", "forward"): _offered(rms_norm_to_fp8_token, "x weight", "y q scale", **_TOKEN),
    ("add_rmsnorm_to_fp8_token", "forward"): _offered(
        add_rms_norm_to_fp8_token, "x residual weight", "h y q scale", **_TOKEN
    ),
    ("quantize_to_fp8_group", "forward"): _by_groups(to_fp8_group, "x"),
    ("silu_mul_to_fp8_group", "forward"): _by_groups(silu_mul_to_fp8_group, "gate up"),
    ("swiglu", "forward"): _swiglu,
}
