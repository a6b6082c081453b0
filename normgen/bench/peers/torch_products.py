"""torch eager: products of matrices as torch.matmul has them, in the stored dtype, and what stands around them.

float32 products are IEEE ones: without TF32, which rounds what it multiplies to 10 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from normgen.bench.peers import Tensors
from normgen.bench.peers.common import Function, scalar
from normgen.problem.problem import Problem


def in_ieee() -> None:
    """From here on this process multiplies float32 as it is."""
    torch.backends.cuda.matmul.fp32_precision = "ieee"


def _linear(_: Problem) -> Function:
    def run(t: Tensors) -> Tensors:
        bias = t.get("bias")
        return {"y": torch.matmul(t["x"], t["w"]) if bias is None else torch.addmm(bias, t["x"], t["w"])}

    return run


def _linear_add(_: Problem) -> Function:
    return lambda t: {"y": torch.addmm(t["residual"], t["x"], t["w"])}


def _linear_bias_gelu(_: Problem) -> Function:
    return lambda t: {"y": F.gelu(torch.addmm(t["bias"], t["x"], t["w"]))}


def _linear_swiglu(_: Problem) -> Function:
    return lambda t: {"y": F.silu(t["x"] @ t["w_gate"]) * (t["x"] @ t["w_up"])}


def _rmsnorm_linear(problem: Problem) -> Function:
    """The norm is rounded before the product, as two operators have it. Without rstd, which F.rms_norm does not give."""
    shape, eps = [problem.sizes.inner], scalar(problem, "eps")
    return lambda t: {"y": F.rms_norm(t["x"], shape, t.get("weight"), eps) @ t["w"]}


def _linear_backward(problem: Problem) -> Function:
    """The gradients that are asked for: a product each, and the columns' sums."""
    made: dict[str, Callable[[Tensors], Any]] = {
        "dx": lambda t: t["dy"] @ t["w"].mT,
        "dw": lambda t: t["x"].mT @ t["dy"],
        "dbias": lambda t: t["dy"].sum(0),
        "dresidual": lambda t: t["dy"],
    }
    wanted = [name for name in made if name in problem.present]
    return lambda t: {name: made[name](t) for name in wanted}


FUNCTIONS: dict[tuple[str, str], Callable[[Problem], Function]] = {
    ("linear", "forward"): _linear,
    ("linear_add", "forward"): _linear_add,
    ("linear_bias_gelu", "forward"): _linear_bias_gelu,
    ("linear_swiglu", "forward"): _linear_swiglu,
    ("rmsnorm_linear", "forward"): _rmsnorm_linear,
    ("linear", "backward"): _linear_backward,
    ("linear_add", "backward"): _linear_backward,
}
