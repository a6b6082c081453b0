"""Backward kernels of made-up formulas, run by the CPU executor, against the derived program in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from normgen.codegen.emit import emit
from normgen.cpu.build import build
from normgen.cpu.compiler import find_compiler
from normgen.device import target
from normgen.program.evaluate import evaluate
from normgen.program.lower import lower
from normgen.program.source import problem_for, written_program
from normgen.schedule.space import default_schedule
from normgen.spec import Kind
from normgen.spec_reader import parse

ROWS, COLS = 5, 64
SHAPES = {Kind.ELEM: (ROWS, COLS), Kind.ROW: (ROWS,), Kind.COL: (COLS,)}
FORMULAS = {
    "l1norm": 'y = "x / (sum(abs(x)) + eps) * w"',
    "rectified": 'y = "maximum(x * rsqrt(mean(x*x) + eps) * w, 0)"',
    "gelu": 'h = "x * rsqrt(mean(x*x) + eps) * w"\ny = "h * (1 + erf(h * 0.7071067811865476)) / 2"',
}


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("name", FORMULAS)
def test_the_kernel_computes_the_derived_program(name: str) -> None:
    """2e-5 of the largest gradient: 64 float32 terms a row, and functions good to a few ulp."""
    spec = parse(
        f'name = "{name}"\nsummary = "made up"\n[tensors]\nx = "input"\nw = "parameter"\ny = "output"\n'
        f"[scalars]\neps = 1e-5\n[formulas]\n{FORMULAS[name]}\n"
    )
    problem = problem_for(spec, shape=(ROWS, COLS), direction="backward")
    rng = np.random.default_rng(0)
    inputs = {ld.name: rng.normal(size=SHAPES[ld.kind]).astype(np.float32) for ld in lower(spec).loads}
    inputs["x"][0, 3] = 0  # a tie of |x| and of maximum(., 0)
    tensors: dict[str, Any] = {**inputs, "dy": rng.normal(size=(ROWS, COLS)).astype(np.float32)}
    scalars = dict(spec.scalars)
    want = evaluate(written_program(problem), tensors, scalars)
    got = {t.name: np.full(SHAPES[t.kind], np.nan, np.float32) for t in problem.tensors if t.is_written}
    loaded = {t.name: tensors[t.name] for t in problem.tensors if not t.is_written}
    run = build(emit(problem, default_schedule(problem, target("h200")))).run(
        {**loaded, **got}, rows=ROWS, cols=COLS, scalars=scalars
    )
    assert not run.faults
    assert set(got) == {"dx", "dw"}
    for tensor, value in got.items():
        np.testing.assert_allclose(value, want[tensor], atol=2e-5 * np.abs(want[tensor]).max(), rtol=0, err_msg=tensor)
