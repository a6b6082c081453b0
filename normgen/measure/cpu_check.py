"""A kernel's emitted text run by the CPU executor at a reduced number of rows, compared with the reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from normgen import verify
from normgen.codegen.module import Module
from normgen.cpu import build, find_compiler
from normgen.problem.problem import Problem
from normgen.verify import FAMILY_ROWS

CPU_ELEMENTS = 1 << 15
CPU_SMS = 4  # a persistent grid on so few makes its blocks loop even over the few rows


@dataclass(frozen=True, kw_only=True)
class CpuCheck:
    """`verdict` is None when the executor found a fault before there was a result."""

    rows: int
    ok: bool
    summary: str
    error: dict[str, float]


def has_compiler() -> bool:
    """Whether there is a C++ compiler to build the executor with."""
    return find_compiler() is not None


def check_on_cpu(problem: Problem, module: Module, *, seed: int = 0) -> CpuCheck:
    """Build the module's text and run it on the CPU; numerics, and every fault the executor knows.

    The number of rows is a run-time argument of the kernel, so a large problem is checked with fewer rows, enough
    for every row family and, when cols is small, for several blocks. One with fewer rows than that is checked
    with its own number first and then with enough for every family.
    Raises CompileError when the host compiler refuses the text.
    """
    enough = max(FAMILY_ROWS, CPU_ELEMENTS // problem.cols)
    counts = [problem.rows, FAMILY_ROWS] if problem.rows < FAMILY_ROWS else [min(problem.rows, enough)]
    check = _check_rows(replace(problem, rows=counts[0]), module, seed)
    if check.ok and len(counts) > 1:
        check = _check_rows(replace(problem, rows=counts[1]), module, seed)
    return check


def _check_rows(problem: Problem, module: Module, seed: int) -> CpuCheck:
    inputs = verify.make_inputs(problem, seed=seed)
    outputs = verify.make_outputs(problem, seed=seed)
    tensors: dict[str, Any] = {**inputs.arrays, **outputs.arrays}
    run = build(module).run(
        tensors, rows=problem.rows, cols=problem.cols, scalars=inputs.scalars, seed=seed, sm_count=CPU_SMS
    )
    if run.faults:
        summary = "\n".join(str(fault) for fault in run.faults)
        return CpuCheck(rows=problem.rows, ok=False, summary=summary, error={})
    verdict = verify.check(problem, inputs, outputs)
    error = {t.name: float(t.max_ratio) for t in verdict.tensors}
    return CpuCheck(rows=problem.rows, ok=verdict.ok, summary=verdict.summary(), error=error)
