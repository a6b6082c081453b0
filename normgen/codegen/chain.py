"""Kernels that start while the kernels in front of them in the stream still run (programmatic dependent launch)."""

from __future__ import annotations

from normgen.codegen.module import Param, Source
from normgen.schedule.plan import Plan


def declare(plan: Plan, param: Param) -> str:
    """A parameter of the kernel, `__restrict__` where that is true while kernels in front of this one still run.

    To the compiler it means memory that nobody else touches: it reads inputs through the non-coherent cache
    (ld.global.nc), and may move accesses over a wait that tells of another kernel's writes. It also moves the
    parameters' early reads behind the wait (ptxas 13, sm_90).
    """
    restricted = param.ctype.endswith("*")
    if plan.schedule.chained:
        written = param.source is Source.TENSOR and "const" not in param.ctype and not plan.problem.accumulate
        restricted = written or (param.stable and not plan.reads_params_ahead)
    return f"{param.ctype}{' __restrict__' if restricted else ''} {param.name}"


def chain_comment(plan: Plan) -> str:
    """What a reader must know of a kernel that starts early."""
    ahead = " and ".join(load.name for load in plan.early_params) if plan.reads_params_ahead else ""
    early = f"; {ahead} may be read before it has ended" if ahead else ""
    return f"It may start while the kernel in front of it in the stream ends{early}."
