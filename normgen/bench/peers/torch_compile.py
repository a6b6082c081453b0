"""torch.compile (inductor), compiled afresh for every shape.

Forward: the functions of `torch_eager`. Backward: the gradients written out in float32, as inductor's own
decompositions have them, so that it may fuse them with the sums over rows; operators that it has no decomposition for
would be run as they are, and eager would be timed twice. Of any other operation, both directions: its program as
`traced/torch_formulas.py` has it, in float32 from the first read to the last rounding, for inductor to fuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from normgen.bench.peers import Call, Options, Tensors, torch_eager, torch_fused
from normgen.bench.peers.common import Function, column, laid_out, operation, versions_of
from normgen.errors import NotOfferedError
from normgen.problem.problem import Problem
from normgen.program.source import written_program
from normgen.traced.torch_formulas import torch_function


def versions() -> dict[str, str]:
    return versions_of("torch", "triton")


def prepare(problem: Problem, sets: Sequence[Tensors], options: Options) -> Call:
    torch_eager.in_ieee()
    run = laid_out(problem, FUNCTIONS.get(operation(problem), function_of)(problem))
    names = list(sets[0])

    def flat(*tensors: Any) -> Tensors:
        return run(dict(zip(names, tensors, strict=True)))

    torch.compiler.reset()
    compiled = torch.compile(flat, dynamic=False, fullgraph=True, mode=options.compile_mode)
    arguments = [[tensors[name] for name in names] for tensors in sets]
    return lambda i: compiled(*arguments[i])


def function_of(problem: Problem) -> Function:
    """The problem's program as a function of a set of tensors.

    Raises NotOfferedError where it draws random numbers: torch's own are others.
    """
    if written_program(problem).randoms:
        raise NotOfferedError("no random numbers of this kind")
    function = torch_function(problem)  # before any tracing, which cannot follow the algebra
    return lambda t: function(t, rows_per_batch=problem.rows_per_batch)


def _layer_norm_backward(problem: Problem) -> Function:
    def run(t: Tensors) -> Tensors:
        dy, rstd = t["dy"].float(), column(t["rstd"])
        xhat = (t["x"].float() - column(t["mean"])) * rstd
        wdy = dy * t["weight"].float() if "weight" in t else dy
        along_xhat = (wdy * xhat).mean(-1, keepdim=True)
        dx = rstd * (wdy - wdy.mean(-1, keepdim=True) - xhat * along_xhat)
        return _gradients(problem, t, dx, {"dweight": dy * xhat, "dbias": dy})

    return run


def _rms_norm_backward(problem: Problem) -> Function:
    def run(t: Tensors) -> Tensors:
        dy, rstd = t["dy"].float(), column(t["rstd"])
        xhat = t["x"].float() * rstd
        wdy = dy * t["weight"].float() if "weight" in t else dy
        dx = rstd * (wdy - xhat * (wdy * xhat).mean(-1, keepdim=True))
        return _gradients(problem, t, dx, {"dweight": dy * xhat})

    return run


def _gradients(problem: Problem, t: Tensors, dx: Any, columns: dict[str, Any]) -> Tensors:
    """dx in x's dtype, and the sums over rows that are wanted in weight's."""
    kept = {name: terms.sum(0) for name, terms in columns.items() if name in problem.present}
    dtype = t["weight"].dtype if "weight" in t else t["x"].dtype
    return {"dx": dx.to(t["x"].dtype), **{name: total.to(dtype) for name, total in kept.items()}}


def _softmax_backward(_: Problem) -> Function:
    def run(t: Tensors) -> Tensors:
        dy, y = t["dy"].float(), t["y"].float()
        return {"dx": (y * (dy - (dy * y).sum(-1, keepdim=True))).to(t["y"].dtype)}

    return run


def _log_softmax_backward(_: Problem) -> Function:
    def run(t: Tensors) -> Tensors:
        dy, y = t["dy"].float(), t["y"].float()
        return {"dx": (dy - y.exp() * dy.sum(-1, keepdim=True)).to(t["y"].dtype)}

    return run


FUNCTIONS: dict[tuple[str, str], Callable[[Problem], Function]] = {
    **{key: function for key, function in torch_eager.FUNCTIONS.items() if key not in torch_fused.FUNCTIONS},
    ("layernorm", "backward"): _layer_norm_backward,
    ("rmsnorm", "backward"): _rms_norm_backward,
    ("softmax", "backward"): _softmax_backward,
    ("log_softmax", "backward"): _log_softmax_backward,
}
