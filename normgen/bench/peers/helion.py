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


def _named(*names: str, call: Callable[[Tensors], Any]) -> Function:
    """The results of `call` by name; one that is no tuple is the only one."""

    def run(t: Tensors) -> Tensors:
        found = call(t)
        return dict(zip(names, found if isinstance(found, tuple) else (found,), strict=True))

    return run


def _rms_norm(problem: Problem) -> Function:
    _only(problem, "weight", "rstd")
    eps = scalar(problem, "eps")
    return _named("y", call=lambda t: rms_norm(t["x"], t["weight"], eps))


def _layer_norm(problem: Problem) -> Function:
    require(problem, "weight", "bias")
    eps = scalar(problem, "eps")
    return _named("y", "mean", "rstd", call=lambda t: layer_norm(t["x"], t["weight"], t["bias"], eps))


def _softmax(_: Problem) -> Function:
    return _named("y", call=lambda t: softmax(t["x"]))


def _add_rms_norm(problem: Problem) -> Function:
    _only(problem, "weight", "rstd")
    eps = scalar(problem, "eps")
    return _named("h", "y", call=lambda t: add_rms_norm(t["x"], t["residual"], t["weight"], eps))


def _add_layer_norm(problem: Problem) -> Function:
    require(problem, "weight", "bias", "x_bias")
    if {"residual2", "h", "mean", "rstd"} & set(problem.present):
        raise NotOfferedError("writes the norm alone, of one residual")
    eps = scalar(problem, "eps")
    return _named("y", call=lambda t: add_layer_norm(t["x"], t["x_bias"], t["residual"], t["weight"], t["bias"], eps))


def _gate_rms_norm(problem: Problem) -> Function:
    _only(problem, "weight", "rstd")
    eps = scalar(problem, "eps")
    return _named("y", call=lambda t: gate_rms_norm(t["x"], t["z"], t["weight"], eps))


def _layer_norm_to_int8(problem: Problem) -> Function:
    require(problem, "weight", "bias")
    eps = scalar(problem, "eps")
    return _named("q", call=lambda t: layer_norm_to_int8(t["x"], t["weight"], t["bias"], t["scale"].view(1), eps))


def _rms_norm_to_fp8(problem: Problem) -> Function:
    require(problem, "weight")
    eps = scalar(problem, "eps")
    return _named("q", call=lambda t: rms_norm_to_fp8(t["x"], t["weight"], t["scale"].view(1), eps))


def _rms_norm_to_fp8_token(problem: Problem) -> Function:
    _only(problem, "weight", "scale_ub")
    eps, floor = scalar(problem, "eps"), scalar(problem, "amax_min")
    return _named("y", "q", "scale", call=lambda t: rms_norm_to_fp8_token(t["x"], t["weight"], eps, floor))


def _add_rms_norm_to_fp8_token(problem: Problem) -> Function:
    _only(problem, "weight", "scale_ub")
    eps, floor = scalar(problem, "eps"), scalar(problem, "amax_min")
    return _named(
        "h",
        "y",
        "q",
        "scale",
        call=lambda t: add_rms_norm_to_fp8_token(t["x"], t["residual"], t["weight"], eps, floor),
    )


def _to_fp8_group(problem: Problem) -> Function:
    floor, size, rows = scalar(problem, "amax_min"), problem.spec.group, problem.rows

    def call(t: Tensors) -> tuple[Tensor, Tensor]:
        q, scale = to_fp8_group(t["x"].view(-1, size), floor)
        return q.view(rows, -1), scale.view(rows, -1)

    return _named("q", "scale", call=call)


def _silu_mul_to_fp8_group(problem: Problem) -> Function:
    floor, size, rows = scalar(problem, "amax_min"), problem.spec.group, problem.rows

    def call(t: Tensors) -> tuple[Tensor, Tensor]:
        q, scale = silu_mul_to_fp8_group(t["gate"].view(-1, size), t["up"].view(-1, size), floor)
        return q.view(rows, -1), scale.view(rows, -1)

    return _named("q", "scale", call=call)


def _swiglu(problem: Problem) -> Function:
    shape = (problem.rows, problem.cols)
    return _named("y", call=lambda t: swiglu(t["gate"].view(-1), t["up"].view(-1)).view(shape))


def _only(problem: Problem, needed: str, unknown: str) -> None:
    """Raises NotOfferedError if the one tensor is absent or the other, which these functions do not know, is there."""
    require(problem, needed)
    if unknown in problem.present:
        raise NotOfferedError(f"has no {unknown}")


_FUNCTIONS: dict[tuple[str, str], Callable[[Problem], Function]] = {
    ("rmsnorm", "forward"): _rms_norm,
    ("layernorm", "forward"): _layer_norm,
    ("softmax", "forward"): _softmax,
    ("add_rmsnorm", "forward"): _add_rms_norm,
    ("add_layernorm", "forward"): _add_layer_norm,
    ("gate_rmsnorm", "forward"): _gate_rms_norm,
    ("layernorm_to_int8", "forward"): _layer_norm_to_int8,
    ("rmsnorm_to_fp8", "forward"): _rms_norm_to_fp8,
    ("rmsnorm_to_fp8_token", "forward"): _rms_norm_to_fp8_token,
    ("add_rmsnorm_to_fp8_token", "forward"): _add_rms_norm_to_fp8_token,
    ("quantize_to_fp8_group", "forward"): _to_fp8_group,
    ("silu_mul_to_fp8_group", "forward"): _silu_mul_to_fp8_group,
    ("swiglu", "forward"): _swiglu,
}
