"""Backward kernels of made-up formulas, run by the CPU executor, against the derived program in float64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from normgen.choice.first import default_schedule
from normgen.cpu.build import build
from normgen.cpu.compiler import find_compiler
from normgen.device import target
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.program.ir import value_kinds
from normgen.program.lower import lower
from normgen.program.source import problem_for, written_program
from normgen.spec.reader import parse
from normgen.spec.spec import Kind
from tests.program.evaluate import evaluate

ROWS, COLS = 5, 64
SHAPES = {Kind.ELEM: (ROWS, COLS), Kind.ROW: (ROWS,), Kind.COL: (COLS,)}
FORMULAS = {
    "l1norm": 'y = "x / (sum(abs(x)) + eps) * w"',
    "rectified": 'y = "maximum(x * rsqrt(mean(x*x) + eps) * w, 0)"',
    "leaky": 'h = "x * rsqrt(mean(x*x) + eps) * w"\ny = "maximum(h, 0.1 * h)"',
    "gelu": 'h = "x * rsqrt(mean(x*x) + eps) * w"\ny = "h * (1 + erf(h * 0.7071067811865476)) / 2"',
}


TERMS = (
    "maximum(x, 0.1*x)",
    "minimum(0.5*x, 3 - x) * w",
    "(1 - tanh(x))**2 * w + tanh(x)",
    "exp(-2*x*w) / (3 + exp(-2*x*w))",
    "(7 + x)**-3 * sigmoid(7 + x) * w",
    "(abs(x) + 0.5)**2.5 / (1 + (abs(x) + 0.5)**2.5) + log(2 + x*x)",
    "x / sum(abs(x)) * w / (2 * w*w + 1)",
    "x * (1 + 1 / mean(x*x))**-1.5 * w",
)


@pytest.mark.parametrize("formula", TERMS)
def test_every_value_of_a_derived_program_has_a_name_that_a_spec_may_give(formula: str) -> None:
    weight = 'w = "parameter"' if "w" in formula else ""
    spec = parse(f'name = "made"\n[tensors]\nx = "input"\n{weight}\ny = "output"\n[formulas]\ny = "{formula}"\n')
    program = written_program(problem_for(spec, shape=(ROWS, COLS), direction="backward"))
    for name in value_kinds(program):
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*", name), str(program)


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


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("formula", ["h * rsqrt(mean(h*h) + 1e-5) * w", "clamp(h, -1, 1) * sigmoid(h) + w"])
def test_a_gradient_is_computed_before_it_is_added_to_what_was_there(formula: str) -> None:
    """Three terms that are added one by one round three times at the size of what was there."""
    spec = parse(
        'name = "made"\n[tensors]\nx = "input"\nr = "input"\nw = "parameter"\n'
        'h = { role = "output", optional = true }\ny = "output"\n'
        f'[formulas]\nh = "x + r"\ny = "{formula}"\n'
    )
    problem = problem_for(spec, shape=(40, COLS), direction="backward", accumulate=True)
    module = emit(problem, default_schedule(problem, target("h200")))
    assert "_before, i) + (" in " ".join(module.text.split())
    found = check_on_cpu(problem, module)
    assert found.ok, found.summary
    assert max(found.error.values()) < 0.7
