"""A kernel's emitted text run by the CPU executor at a reduced number of rows, compared with the reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from normgen.codegen.module import Module
from normgen.problem import Problem

CPU_ELEMENTS = 1 << 15
CPU_SMS = 4  # a persistent grid on so few makes its blocks loop even over the few rows
CPU_ROWS = 24  # two of every row family


@dataclass(frozen=True, kw_only=True)
class CpuCheck:
    """`verdict` is None when the executor found a fault before there was a result."""

    rows: int
    ok: bool
    summary: str
    error: dict[str, float]


def has_compiler() -> bool:
    """Whether there is a C++ compiler to build the executor with."""
    from normgen.cpu import find_compiler

    return find_compiler() is not None


def check_on_cpu(problem: Problem, module: Module, *, seed: int = 0, rows: int | None = None) -> CpuCheck:
    """Build and run the module's text on the CPU; numerics, and every fault the executor knows.

    rows: how many; None: enough for every row family and, when cols is small, for several blocks.
    Raises CompileError when the host compiler refuses the text.
    """
    from normgen import verify
    from normgen.cpu import build

    wanted = rows if rows is not None else max(CPU_ROWS, CPU_ELEMENTS // problem.cols)
    small = replace(problem, rows=min(problem.rows, wanted))
    inputs = verify.make_inputs(small, seed=seed)
    outputs = verify.make_outputs(small, seed=seed)
    tensors: dict[str, Any] = {**inputs.arrays, **outputs.arrays}
    run = build(module).run(
        tensors, rows=small.rows, cols=small.cols, scalars=inputs.scalars, seed=seed, sm_count=CPU_SMS
    )
    if run.faults:
        summary = "\n".join(str(fault) for fault in run.faults)
        return CpuCheck(rows=small.rows, ok=False, summary=summary, error={})
    verdict = verify.check(small, inputs, outputs)
    error = {t.name: float(t.max_ratio) for t in verdict.tensors}
    return CpuCheck(rows=small.rows, ok=verdict.ok, summary=verdict.summary(), error=error)
