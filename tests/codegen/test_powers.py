"""Powers in kernels: whole ones and halves up to the language's largest exponent, of elements and of row values."""

from __future__ import annotations

import re

import numpy as np
import pytest
import sympy as sp

from normgen.choice.first import default_schedule
from normgen.codegen.printer import Printer
from normgen.cpu import build_many
from normgen.cuda.compiler import compile_module
from normgen.cuda.nvrtc import version
from normgen.device import target
from normgen.errors import NormgenError
from normgen.measure.cpu_check import check_on_cpu, has_compiler
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.frozen import Order
from normgen.program.source import problem_for
from normgen.spec.formula import LARGEST_EXPONENT
from normgen.spec.reader import parse
from normgen.spec.spec import Spec
from tests.codegen.covering import Case
from tests.codegen.executors import CpuExecutor
from tests.codegen.matrix import report, wrong, wrong_backward

needs_compiler = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler builds the executor")

EXPONENTS = (1.5, 2.5, 3, 4, 5, 6, 7, 13, 33, 63.5, LARGEST_EXPONENT)
SIGNED = [sign * exponent for exponent in EXPONENTS for sign in (1, -1)]
X = sp.Symbol("x", real=True)


def near_one(exponent: float) -> Spec:
    """A power of an element that lies within 1 +- 0.1, and of a row value."""
    return parse(f"""
        name = "near_one"
        [tensors]
        x = "input"
        weight = "parameter"
        y = "output"
        [formulas]
        size = "mean(x * x) + 0.5"
        base = "1 + 0.01 * x * rsqrt(size)"
        scale = "(1 + 0.01 / size)**({exponent})"
        y = "base**({exponent}) * weight * scale"
        """)


def alone(exponent: float) -> Spec:
    return parse(
        f'name = "alone"\n[tensors]\nx = "input"\ny = "output"\n[formulas]\ny = "(x * x + 0.01)**({exponent})"'
    )


def cases(direction: str) -> list[Case]:
    specs = [near_one(exponent) for exponent in SIGNED]
    # 0.01**-63.5 is no float32: no row would be left to prove the derivative on.
    specs += [alone(exponent) for exponent in SIGNED if direction == "forward" or abs(exponent) <= 7]
    problems = [problem_for(spec, shape="16x96", direction=direction) for spec in specs]
    return [(problem, default_schedule(problem, target("h200"))) for problem in problems]


def test_powers_are_right_on_the_cpu() -> None:
    found = list(wrong(cases("forward"), CpuExecutor(), seed=0))
    assert not found, report(found, cases("forward"))


def test_gradients_of_powers_are_right_on_the_cpu() -> None:
    found = list(wrong_backward(cases("backward"), CpuExecutor(), seed=0))
    assert not found, report(found, cases("backward"))


def outputs(problem: Problem, x: np.ndarray) -> np.ndarray:
    """What the kernel of a problem with one input and one output makes of float32 rows."""
    (program,) = build_many([emit(problem, default_schedule(problem, target("h200")))], workers=1)
    y = np.zeros_like(x)
    run = program.run({"x": x, "y": y}, rows=problem.rows, cols=problem.cols)
    assert run.faults == ()
    return y


@pytest.mark.parametrize("exponent", SIGNED)
def test_a_power_has_the_sign_zeros_and_infinities_of_its_float64_value(exponent: float) -> None:
    text = f'name = "bare"\n[tensors]\nx = "input"\ny = "output"\n[formulas]\ny = "x**({exponent})"'
    x = np.array([[0.0, 1.0, 2.0, 0.5, np.inf, np.nan, 1e-3, -1.0, -0.5, -2.0, 1.25, 3.0]] * 2, dtype=np.float32)
    with np.errstate(all="ignore"):
        want = x.astype(np.float64) ** exponent
    got = outputs(problem_for(parse(text), shape=x.shape), x).astype(np.float64)
    out_of_range = np.abs(want) > np.finfo(np.float32).max
    tiny = (np.abs(want) < 2.0**-126) & (want != 0)  # x**n overflows where its reciprocal is subnormal
    plain = ~out_of_range & ~tiny
    np.testing.assert_allclose(got[plain], want[plain], rtol=(abs(exponent) + 4) * 2.0**-23)
    assert np.isinf(got[out_of_range]).all()
    assert (np.abs(got[tiny]) < 2.0**-125).all()


@pytest.mark.parametrize("exponent", [e for e in SIGNED if e == int(e) and abs(e) > 4])
def test_a_whole_power_names_its_base_once(exponent: float) -> None:
    base = sp.exp(X) + 1
    text = Printer({"x": "x_i"}).text(Order("x").tree(base ** sp.Integer(int(exponent))))
    inner = f"power<{abs(int(exponent))}>(expf(x_i) + 1.0f)"
    assert text in (inner, f"1.0f / ({inner})")


def _nvrtc_loads() -> bool:
    try:
        return version() > (0, 0)
    except NormgenError:
        return False


@pytest.mark.skipif(not _nvrtc_loads(), reason="NVRTC does not load on this machine")
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_nvrtc_takes_a_large_power_without_a_warning(direction: str) -> None:
    problem = problem_for(near_one(-LARGEST_EXPONENT), shape="16x96", direction=direction)
    module = emit(problem, default_schedule(problem, target("h200")))
    assert re.search(r"\bpower<6\d>\(", module.text)
    assert "warning" not in compile_module(module, 90).log.lower()


@needs_compiler
@pytest.mark.parametrize(
    ("formula", "cols", "direction"),
    [
        ("x / (cols * cols)", 70001, "forward"),
        ("x * cols**2.5", 70001, "forward"),
        ("where(cols * cols > 4e9, x, 0)", 70001, "forward"),
        ("sum(x * mean((v * x - mean(v * x))**2)) + x", 2048, "backward"),  # its gradient has cols**3
    ],
)
def test_powers_of_cols_beyond_an_int_are_floats(formula: str, cols: int, direction: str) -> None:
    nested = 'u = "x * mean((x - mean(x))**2)"\nv = "x * mean((u - mean(u))**2)"\n' if "v *" in formula else ""
    spec = parse(f'name = "far"\n[tensors]\nx = "input"\ny = "output"\n[formulas]\n{nested}y = "{formula}"')
    problem = problem_for(spec, shape=(3, cols), direction=direction)
    check = check_on_cpu(problem, emit(problem, default_schedule(problem, target("h200"))))
    assert check.ok, check.summary
