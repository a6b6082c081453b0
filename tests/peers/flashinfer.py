"""FlashInfer (github.com/flashinfer-ai/flashinfer): norms, norms to fp8 by a given scale, and gates."""

from __future__ import annotations

import functools
from typing import Any

import torch

import normgen.torch as ng
from tests.peers.place import Peer, ours

Tensor = torch.Tensor
_FP8 = {torch.float8_e4m3fn: "f8e4m3", torch.float8_e5m2: "f8e5m2"}
_TENSORS = """
[tensors]
x = "input"
{more}
scale = "scalar_input"
q = {{ role = "output", dtypes = ["{dtype}"] }}
[scalars]
eps = 1e-6
[formulas]
"""
_NORMS = {
    "rmsnorm": ('weight = "parameter"', 'q = "x * rsqrt(mean(x**2) + eps) * weight * divide(1, scale)"'),
    "add_rmsnorm": (
        'residual = "input"\nweight = "parameter"\nh = { role = "output", follows = "x" }',
        'h = "x + residual"\nq = "h * rsqrt(mean(h**2) + eps) * weight * divide(1, scale)"',
    ),
    "layernorm": (  # its norm is rounded before it is scaled
        'weight = "parameter"\nbias = "parameter"',
        'm = "mean(x)"\nq = "cast((x - m) * rsqrt(mean((x - m)**2) + eps) * weight + bias, x) / scale"',
    ),
}


@functools.cache
def _to_fp8(norm: str, dtype: torch.dtype) -> ng.Operator:
    more, formulas = _NORMS[norm]
    text = f'name = "{norm}_to_{_FP8[dtype]}"\n{_TENSORS.format(more=more, dtype=_FP8[dtype])}{formulas}\n'
    return ng.operator(text, returns=("q", "h") if norm == "add_rmsnorm" else ("q",))


def _given(out: Tensor | None, y: Tensor) -> Tensor:
    return y if out is None else out.copy_(y)


@ours
def rmsnorm(x: Tensor, weight: Tensor, eps: float = 1e-6, out: Tensor | None = None, **_: Any) -> Tensor:
    return _given(out, ng.rms_norm(x, weight, eps=eps))


@ours
def gemma_rmsnorm(x: Tensor, weight: Tensor, eps: float = 1e-6, out: Tensor | None = None, **_: Any) -> Tensor:
    return _given(out, ng.gemma_rms_norm(x, weight, eps=eps))


@ours
def fused_add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, **_: Any) -> None:
    y, h = ng.add_rms_norm(x, residual, weight, eps=eps)
    x.copy_(y)
    residual.copy_(h)


@ours
def gemma_fused_add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, **_: Any) -> None:
    y, h = ng.add_gemma_rms_norm(x, residual, weight, eps=eps)
    x.copy_(y)
    residual.copy_(h)


@ours
def layernorm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
    return ng.layer_norm(x, weight, bias, eps=eps, dtype=x.dtype)


@ours
def rmsnorm_quant(out: Tensor, x: Tensor, weight: Tensor, scale: Tensor, eps: float = 1e-6, **_: Any) -> Tensor:
    return out.copy_(_to_fp8("rmsnorm", out.dtype)(x, weight, scale, eps=eps))


@ours
def fused_add_rmsnorm_quant(
    out: Tensor, x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor, eps: float = 1e-6, **_: Any
) -> None:
    q, h = _to_fp8("add_rmsnorm", out.dtype)(x, residual, weight, scale, eps=eps)
    out.copy_(q)
    residual.copy_(h)


@ours
def layernorm_quant(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, eps: float = 1e-6) -> Tensor:
    return out.copy_(_to_fp8("layernorm", out.dtype)(x, weight, bias, scale.reshape(()), eps=eps))


def _gate(function: Any) -> Any:
    def of_joined(x: Tensor, out: Tensor | None = None, **_: Any) -> Tensor:
        return _given(out, function(*x.chunk(2, dim=-1)))

    of_joined.__qualname__ = function.__name__
    return ours(of_joined)


def default_check(wanted: list[Tensor], found: list[Tensor], *, max_mismatch_pct: float, **_: Any) -> bool:
    """Whether at most so many per cent of the elements are off by more than a tenth."""
    close = [torch.isclose(a.float(), b.float(), rtol=0.1, atol=0.1) for a, b in zip(wanted, found, strict=True)]
    return all(100 * float((~c).float().mean()) <= max_mismatch_pct for c in close)


_NORM = {
    f.__name__: f
    for f in (
        *(rmsnorm, gemma_rmsnorm, fused_add_rmsnorm, gemma_fused_add_rmsnorm, layernorm),
        *(rmsnorm_quant, fused_add_rmsnorm_quant, layernorm_quant),
    )
}
PEER = Peer(
    files=("tests/utils/test_norm.py", "tests/utils/test_activation.py"),
    modules={
        "flashinfer": _NORM,
        "flashinfer.norm": _NORM,
        "flashinfer.activation": {
            "silu_and_mul": _gate(ng.swiglu),
            "gelu_and_mul": _gate(ng.geglu),
            "gelu_tanh_and_mul": _gate(ng.geglu_tanh),
        },
        "flashinfer.jit": {"env": None},
        "flashinfer.jit.core": {"gen_jit_spec": None},
        "flashinfer.trace": {"default_check": default_check},
        "flashinfer.utils": {
            "device_support_pdl": lambda _: True,
            "get_compute_capability": lambda _: (9, 0),
            "has_flashinfer_jit_cache": lambda: True,
        },
    },
    left_out={
        "invalid_inputs": "the words of its refusals",
        "compilation_without_fp8": "it compiles the library's own source",
    },
    # It compiles the library's functions, all by name, and skips what its cache of compiled kernels lacks.
    has_conftest=False,
)
