"""QuACK (github.com/Dao-AILab/quack): products, linear layers, MLPs, and linear cross entropy.

What ours compute is compared with QuACK's references, which are read out of its source: names that end in `_ref`.
How its kernels are tiled, share inner, or are tuned are arguments that ours do not have: schedules are found by
the cost model. Its rows of halves that lie one behind the other (`concat_layout`) are two matrices of ours.
Not run are files of what is not offered: products of fp8 and fp4 (test_gemm_quant_out, test_gemm_*blockscaled*,
test_gemm_w4, test_gemm_sm100*, test_gemm_sm120*, test_gemm_256x512), of rows that are gathered or of experts
(test_linear_varlen_*), of several GPUs (test_*distributed*), and tests of its languages of epilogues and operands, and
of its operators (test_gemm_epilogue, test_epi*, test_gemm_transform, test_gemm_functional).
"""

from __future__ import annotations

import ast
import enum
import functools
from collections.abc import Callable, Iterable
from dataclasses import field, make_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import normgen.torch as ng
from tests.peers.place import Peer, left_out, not_offered, ours
from tests.peers.products import GATED, gated_product, operator, product, product_behind

Tensor = torch.Tensor
Maybe = Tensor | None

_silu = F.silu
_TO_TORCH = {
    None: lambda z: z,
    "silu": F.silu,
    "relu": F.relu,
    "relu_sq": lambda z: F.relu(z).square(),
    "gelu_tanh_approx": functools.partial(F.gelu, approximate="tanh"),
    "tanh": torch.tanh,
}
_GATED_TO_TORCH = {
    "swiglu": lambda gate, up: F.silu(gate) * up,
    "swiglu_oai": lambda gate, up: gate * torch.sigmoid(1.702 * gate) * (up + 1),
    "swiglu_oai-tanh": lambda gate, up: 0.5 * gate * (1 + torch.tanh(0.851 * gate)) * (up + 1),
    "reglu": lambda gate, up: F.relu(gate) * up,
    "geglu": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "glu": lambda gate, up: torch.sigmoid(gate) * up,
}


@functools.cache
def _functions(file: str) -> dict[str, Any]:
    """A file's references and what they call, without the rest of it."""
    tree = ast.parse(Path(file).read_text())
    kept = [n for n in tree.body if isinstance(n, ast.FunctionDef) and ("_ref" in n.name or "_concat_" in n.name)]
    for function in kept:
        function.decorator_list = []
        for each in [*function.args.args, *function.args.kwonlyargs]:
            each.annotation = None
        function.returns = None
    known = {"torch": torch, "F": F, "act_to_pytorch_fn_map": _TO_TORCH, "gated_to_pytorch_fn_map": _GATED_TO_TORCH}
    exec(compile(ast.Module(kept, []), file, "exec"), known)
    for name in [n for n in known if n.endswith("_ref")]:
        known[name.replace("act", "gated")] = known[name]
    return known


def _references(file: str, names: Iterable[str]) -> dict[str, Callable[..., Any]]:
    """The functions of a file of the checkout, which is read when one is called."""

    def of(name: str) -> Callable[..., Any]:
        return lambda *args, **named: _functions(file)[name](*args, **named)

    return {name: of(name) for name in names}


def _given(out: Maybe, y: Tensor) -> Tensor:
    return y if out is None else out.copy_(y)


def _no_halves(concat_layout: Any) -> None:
    if concat_layout:
        not_offered("halves of a matrix, one behind the other, that are read as if they lay in turns")


def _two(t: Maybe, halves: bool, dim: int) -> Any:
    """What belongs to gate and to up: halves, or in turns."""
    if t is None:
        return None
    if halves:
        return t.chunk(2, dim)
    every = [slice(None)] * t.ndim
    return tuple(t[(*every[: dim % t.ndim], slice(first, None, 2), *every[dim % t.ndim + 1 :])] for first in (0, 1))


def _in_turns(gate: Tensor, up: Tensor) -> Tensor:
    return torch.stack((gate, up), -1).flatten(-2)


@ours
@torch.no_grad()
def gemm(
    A: Tensor,
    B: Tensor,
    out: Maybe = None,
    bias: Maybe = None,
    alpha: float | Tensor = 1.0,
    out_dtype: Any = None,
    rounding_mode: Any = None,
    concat_layout: Any = None,
    **_: Any,
) -> Tensor:
    _no_halves(concat_layout)
    if rounding_mode == "RS":
        not_offered("stochastic rounding")
    return _given(out, product(A, B, bias=bias, alpha=alpha, dtype=out_dtype if out is None else out.dtype))


@ours
@torch.no_grad()
def gemm_add(
    A: Tensor,
    B: Tensor,
    C: Tensor,
    out: Maybe = None,
    alpha: float | Tensor = 1.0,
    beta: float | Tensor = 1.0,
    bias: Maybe = None,
    out_dtype: Any = None,
    concat_layout: Any = None,
    **_: Any,
) -> Tensor:
    _no_halves(concat_layout)
    dtype = out_dtype if out is None else out.dtype
    return _given(out, product(A, B, C, alpha=alpha, beta=beta, bias=bias, dtype=dtype))


def gemm_add_inplace(A: Tensor, B: Tensor, out: Tensor, **options: Any) -> None:
    gemm_add(A, B, out, out=out, **options)


def _tuned(A: Tensor, B: Tensor, out: Tensor, C: Maybe = None, **options: Any) -> None:
    if C is None:
        gemm(A, B, out=out, **options)
    else:
        gemm_add(A, B, C, out=out, **options)


@ours
@torch.no_grad()
def gemm_of_lines(
    A: Tensor,
    B: Tensor,
    out: Tensor,
    C: Maybe = None,
    *_: Any,
    alpha: float = 1.0,
    beta: float = 1.0,
    rowvec_bias: Maybe = None,
    colvec_bias: Maybe = None,
    **__: Any,
) -> None:
    """`quack.gemm.gemm`, whose matrix is [.., N, K]."""
    if rowvec_bias is not None and rowvec_bias.ndim == 2:
        not_offered("a spec with a product has no bias of each batch's own")
    out.copy_(product(A, B.mT, C, alpha=alpha, beta=beta, bias=rowvec_bias, lift=colvec_bias, dtype=out.dtype))


@ours
@torch.no_grad()
def gemm_act(
    A: Tensor,
    B: Tensor,
    C: Maybe = None,
    bias: Maybe = None,
    activation: str | None = None,
    alpha: float | Tensor = 1.0,
    rstd: Maybe = None,
    preact_out: Maybe = None,
    postact_out: Maybe = None,
    store_preact: bool = True,
    concat_layout: Any = None,
    **_: Any,
) -> tuple[Maybe, Tensor]:
    if activation in GATED:
        bias = _two(bias, bool(concat_layout), -1)
        w = _two(B, bool(concat_layout), -1)
        found = gated_product(A, w, bias, factor=rstd, activation=activation, with_sums=store_preact)
        z, y = (_in_turns(*found[:2]), found[2]) if store_preact else (None, found)
    else:
        _no_halves(concat_layout)
        options = {"bias": bias, "alpha": alpha, "factor": rstd, "activation": activation}
        found = product(A, B, C, with_sum=store_preact, **options)
        z, y = found if store_preact else (None, found)
    return z if z is None else _given(preact_out, z), _given(postact_out, y)


@ours
@torch.no_grad()
def gemm_dact(
    A: Tensor,
    B: Tensor,
    PreAct: Tensor,
    activation: str | None = None,
    colvec_scale: Maybe = None,
    colvec_reduce: bool = False,
    **_: Any,
) -> tuple[Tensor, ...]:
    is_gated = activation in GATED
    z = _two(PreAct, False, -1) if is_gated else (PreAct,)
    found = product_behind(A, B, z, activation, scale=colvec_scale, with_total=colvec_reduce)
    return (_in_turns(*found[:2]), *found[2:]) if is_gated else tuple(found)


@ours
@torch.no_grad()
def gemm_rms(
    A: Tensor,
    B: Tensor,
    C: Maybe = None,
    norm_weight: Maybe = None,
    premult_out: Maybe = None,
    eps: float = 1e-6,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    if 0 in B.shape:
        not_offered("a product has columns and terms: sizes of 0 are refused, but of rows")
    premult = None if premult_out is None else "f32" if premult_out.dtype == torch.float32 else "bf16"
    found = _RMS[premult](A, B, C, norm_weight, eps=eps, dtype=A.dtype, opaque=True)
    if premult_out is not None:
        premult_out.copy_(found[2])
    return found[0], found[1]


_RMS_TEXT = """
name = "product_and_rms"
[tensors]
x = {{ role = "input", axes = ["rows", "inner"], dtypes = ["bf16", "f16", "f32"] }}
w = {{ role = "parameter", axes = ["inner", "cols"], follows = "x" }}
c = {{ role = "input", optional = true, absent = "0", follows = "x" }}
weight = {{ role = "parameter", optional = true, absent = "1", follows = "x" }}
y = {{ role = "output", follows = "x" }}
rstd = "row_output"
{premult}
[scalars]
eps = 1e-6
[formulas]
h = "x @ w + c"
rstd = "rsqrt(mean(h * h) + eps)"
y = "h * weight"
{formula}
"""
_RMS = {None: ng.operator(_RMS_TEXT.format(premult="", formula=""), returns=("y", "rstd"))}
for _name in ("f32", "bf16"):
    _entry = {"premult": f'p = {{ role = "output", dtypes = ["{_name}"] }}', "formula": 'p = "h"'}
    _RMS[_name] = ng.operator(_RMS_TEXT.format(**_entry), returns=("y", "rstd", "p"))


@ours
@torch.no_grad()
def gemm_symmetric(
    A: Tensor, B: Tensor, C: Maybe = None, alpha: float | Tensor = 1.0, beta: float | Tensor = 1.0, **_: Any
) -> Tensor:
    """All of A @ A.T: ours does not leave half of it out."""
    return product(A, B, C, alpha=alpha, beta=beta)


@ours
def rms_final_reduce(x: Tensor, scale: float, eps: float) -> Tensor:
    tensors = {"x": 'role = "input", dtypes = ["f32", "bf16"]', "rstd": 'role = "row_output"'}
    return operator(tensors, {"rstd": "rsqrt(sum(x) * scale + eps)"}, scalars=("scale", "eps"))(x, scale, eps)


def _as_autocast(*tensors: Maybe) -> list[Maybe]:
    if not torch.is_autocast_enabled("cuda"):
        return [*tensors]
    return [t if t is None else t.to(torch.get_autocast_dtype("cuda")) for t in tensors]


@ours
def linear_func(x: Tensor, weight: Tensor, bias: Maybe = None, fuse_grad_accum: bool = False, **_: Any) -> Tensor:
    """With gradients of ours."""
    if fuse_grad_accum:
        not_offered("gradients that are added to those of the steps before")
    x, weight = _as_autocast(x, weight)
    return product(x, weight.mT, bias=bias)


@ours
def linear_act_func(
    x: Tensor, weight: Tensor, activation: str | None, bias: Maybe = None, store_preact: bool = True, **options: Any
) -> tuple[Maybe, Tensor]:
    if options.get("fuse_grad_accum"):
        not_offered("gradients that are added to those of the steps before")
    x, weight = _as_autocast(x, weight)
    if activation in GATED:
        halves = bool(options.get("concat_layout"))
        w, b = _two(weight, halves, 0), _two(bias, halves, 0)
        found = gated_product(x, tuple(t.mT for t in w), b, activation=activation, with_sums=store_preact)
        return (_in_turns(*found[:2]), found[2]) if store_preact else (None, found)
    found = product(x, weight.mT, bias=bias, activation=activation, with_sum=store_preact)
    return found if store_preact else (None, found)


def act_linear_func(_: Tensor, weight: Tensor, x: Tensor, bias: Maybe = None, **options: Any) -> Tensor:
    """Its gradient goes to what is activated; ours through the activation, `x`, which has one."""
    return linear_func(x, weight, bias, **options)


def mlp_func(
    x: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    activation: str,
    bias1: Maybe = None,
    bias2: Maybe = None,
    fuse_grad_accum: bool = False,
    recompute: bool = False,
    concat_layout: bool = False,
    **_: Any,
) -> Tensor:
    options = {"fuse_grad_accum": fuse_grad_accum}

    def both(x: Tensor, w1: Tensor, w2: Tensor) -> Tensor:
        _, y = linear_act_func(
            x, w1, activation, bias1, torch.is_grad_enabled(), concat_layout=concat_layout, **options
        )
        return linear_func(y, w2, bias2, **options)

    return checkpoint(both, x, weight1, weight2, use_reentrant=False) if recompute else both(x, weight1, weight2)


class MLP(nn.Module):
    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        bias1: bool = False,
        bias2: bool = False,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        width, made = hidden_features * (2 if options["activation"] in GATED else 1), {"device": device, "dtype": dtype}
        self.fc1 = nn.Linear(in_features, width, bias=bias1, **made)
        self.fc2 = nn.Linear(hidden_features, in_features, bias=bias2, **made)
        self.recompute, self.options = options.pop("recompute", False), options

    def forward(self, x: Tensor) -> Tensor:
        weights = {
            "weight1": self.fc1.weight,
            "weight2": self.fc2.weight,
            "bias1": self.fc1.bias,
            "bias2": self.fc2.bias,
        }
        return mlp_func(x, **weights, recompute=self.recompute, **self.options)


@ours
def chunked_linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, *, ignore_index: int = -100, reduction: str = "mean", **_: Any
) -> Tensor:
    """Its chunks are of rows; ours stores no logit, whatever they are."""
    return ng.linear_cross_entropy(x, weight, target, ignore_index, reduction)


class SplitKMode(enum.IntEnum):
    SERIAL = 0
    PARALLEL = 1
    SEPARATE = 2


_Config = make_dataclass(
    "_Config",
    [
        (name, Any, field(default=None))
        for name in (
            *("tile_m", "tile_n", "pingpong", "is_dynamic_persistent", "cluster_m", "cluster_n", "swap_ab"),
            *("max_swizzle_size", "device_capacity"),
        )
    ],
)
_REFERENCES = ("gemm_ref", "gemm_add_ref", "gemm_act_ref", "gemm_dact_ref", "gemm_gated_ref", "gemm_dgated_ref")
_REFERENCES += ("gemm_rms_ref", "gemm_norm_act_ref")
_TESTED = ("linear", "gemm_symmetric", "gemm_split_k", "mlp", "linear_cross_entropy")
PEER = Peer(
    files=[f"tests/test_{name}.py" for name in _TESTED],
    modules={
        "quack.testing.pytest_plugin": {},
        "quack.cute_dsl_utils": {"get_device_capacity": lambda *_: (9, 0)},
        "quack.gemm_config": {"GemmConfig": _Config},
        "quack.rounding": {"RoundingMode": SimpleNamespace(RN="RN", RS="RS")},
        "quack.rms_final_reduce": {"rms_final_reduce": rms_final_reduce},
        "quack.gemm": {"gemm": gemm_of_lines},
        "quack.gemm_interface": {
            "SplitKMode": SplitKMode,
            "act_to_pytorch_fn_map": _TO_TORCH,
            "default_config": lambda *_: _Config(),
            "gated_to_pytorch_fn_map": _GATED_TO_TORCH,
            "gemm": gemm,
            "gemm_act": gemm_act,
            "gemm_add": gemm_add,
            "gemm_add_inplace": gemm_add_inplace,
            "gemm_dact": gemm_dact,
            "gemm_dgated": gemm_dact,
            "gemm_gated": gemm_act,
            "gemm_norm_act": gemm_act,
            "gemm_rms": gemm_rms,
            "gemm_symmetric": gemm_symmetric,
            "gemm_tuned": SimpleNamespace(fn=_tuned),
            **_references("quack/gemm_interface.py", _REFERENCES),
        },
        "quack.linear": {
            "act_linear_func": act_linear_func,
            "gated_linear_func": act_linear_func,
            "linear_act_func": linear_act_func,
            "linear_func": linear_func,
            "linear_gated_func": linear_act_func,
        },
        "quack.mlp": {"MLP": MLP, "mlp_func": mlp_func},
        "quack.linear_cross_entropy": {
            "chunked_linear_cross_entropy": chunked_linear_cross_entropy,
            "scaled_exp_lce_supported": lambda *_: False,  # one of its two ways to the same numbers
            "scaled_exp_linear_cross_entropy": left_out("one of its two ways to the same numbers"),
            **_references("quack/linear_cross_entropy.py", ["linear_cross_entropy_func_ref"]),
        },
    },
    left_out={
        "stochastic_rounding|sr_different_seeds": "stochastic rounding",
        "colvec_and_rowvec": "its language of epilogues",
        "concat_layout.*(A|B|out)-": "halves of a matrix, one behind the other, that are read as if they lay in turns",
        "grid_not_inflated|config_autotuner|rejects_unsupported": "its schedules, and the words of its refusals",
        "split_k_fp8": "products of fp8",
    },
)
