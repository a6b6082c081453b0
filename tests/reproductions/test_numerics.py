"""H4, M1, M8 and numbers among the low ones: what a kernel computes is what its formulas say, or it is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from normgen.choice.first import default_schedule
from normgen.cpu import find_compiler
from normgen.device import TARGETS
from normgen.errors import ProgramError, VerificationError
from normgen.program.lower import lower
from normgen.program.source import problem_for
from normgen.python.handle import kernel
from normgen.spec.reader import parse
from normgen.spec.spec import Sizes
from normgen.verify import check, make_inputs, proven_program
from normgen.verify.error_model import Bounded, Float32Error
from normgen.verify.interpret import Evaluation, formula_table
from normgen.verify.program_walk import ProgramWalk
from tests.codegen.executors import CpuExecutor
from tests.codegen.matrix import report, wrong, wrong_backward
from tests.fuzz.stages import Float32
from tests.reproductions.commands import normgen, spec_file, spec_text, verified

H200 = TARGETS["h200"]
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
ZERO_GRADIENT = spec_text(
    'm = "mean(x + b)"\ny = "2 * x"\n[backward]\nsaved = ["m"]',
    'x = "input"\nb = "parameter"\nm = "statistic"\ny = "output"',
)


@needs_compiler
def test_h4_a_parameter_gradient_that_is_zero_is_written(tmp_path: Path) -> None:
    assert verified(tmp_path, ZERO_GRADIENT, "--direction", "backward").code == 0


@needs_compiler
@pytest.mark.filterwarnings("ignore:no record for")
def test_h4_python_gets_a_gradient_of_zeros(tmp_path: Path) -> None:
    backward = kernel(spec_file(tmp_path, ZERO_GRADIENT), shape=(8, 96), direction="backward", device="cpu")
    given = {
        tensor.name: np.ones(tensor.kind.shape(Sizes(8, 96)), np.float32)
        for tensor in backward.problem.tensors
        if not tensor.is_written
    }
    dx, db = np.zeros((8, 96), np.float32), np.full(96, np.nan, np.float32)
    backward(**given, dx=dx, db=db)
    assert not db.any()
    assert (dx == 2).all()


WHOLE = (5, 6, 7, 64, -5, -64)


def test_m1_a_whole_power_passes_the_check_of_its_spec(tmp_path: Path) -> None:
    for exponent in WHOLE:
        assert normgen("spec", "check", spec_file(tmp_path, spec_text(f'y = "x**{exponent}"'))).code == 0


@needs_compiler
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_m1_a_whole_power_and_its_gradient_are_right(direction: str) -> None:
    """Of numbers near one: the gradient of x**-64 has no bound elsewhere."""
    specs = [parse(spec_text(f'y = "(1 + 0.01 * x * rsqrt(mean(x * x) + 1))**({exponent})"')) for exponent in WHOLE]
    problems = [problem_for(spec, shape="16x96", direction=direction) for spec in specs]
    cases = [(problem, default_schedule(problem, H200)) for problem in problems]
    found = list((wrong if direction == "forward" else wrong_backward)(cases, CpuExecutor(), seed=0))
    assert not found, report(found, cases)


@pytest.mark.parametrize(
    ("formula", "values", "expected"),
    [
        ("(x - x) * x", [math.inf, math.nan, 3.0], [math.nan, math.nan, 0.0]),
        ("x * rsqrt(x)", [0.0, -1.0, math.inf], [math.nan] * 3),
        ("0 * x", [math.inf, math.nan, 3.0], [math.nan, math.nan, 0.0]),
        ("x / x", [0.0, math.inf, 3.0], [math.nan, math.nan, 1.0]),
        ("2 * x - x", [math.inf, 3e38, 3.0], [math.nan, math.inf, 3.0]),
        ("x * x - x * x", [math.inf, 1e30, 3.0], [math.nan, math.nan, 0.0]),
        ("log(exp(x))", [100.0, -200.0, 3.0], [math.inf, -math.inf, 3.0]),
        ("sqrt(exp(x))", [100.0, 2.0, -math.inf], [math.inf, math.e, 0.0]),
        ("sqrt(x**2)", [1e30, -3.0, math.nan], [math.inf, 3.0, math.nan]),
        ("abs(sqrt(x))", [-1.0, 4.0, math.inf], [math.nan, 2.0, math.inf]),
        ("maximum(minimum(x, log(x)), x)", [-1.0, 2.0, math.inf], [math.nan, 2.0, math.inf]),
        ("1 / (1 / x)", [1e-40, 4.0, math.inf], [0.0, 4.0, math.inf]),
    ],
)
def test_m8_algebra_keeps_nan_infinity_and_overflow(formula: str, values: list[float], expected: list[float]) -> None:
    program = lower(parse(spec_text(f'y = "{formula}"')))
    known = {"x": np.array([values], np.float32), "cols": np.float32(3)}
    with np.errstate(all="ignore"):
        y = ProgramWalk(Float32(cols=3), program, known).value("y")
    np.testing.assert_allclose(y[0], expected, rtol=1e-6)


@needs_compiler
@pytest.mark.parametrize("formula", ["x * rsqrt(x)", "(x - x) * x", "(x - 1e30)**-0.5"])
def test_m8_a_kernel_that_is_right_by_contract_is_called_right(formula: str, tmp_path: Path) -> None:
    ended = verified(tmp_path, spec_text(f'y = "{formula}"'))
    assert (ended.code, "WRONG" in ended.out) == (0, False)


@pytest.mark.parametrize(
    ("formula", "x", "is_known"),
    [
        ("log(x / 3 + 2 / 3 - 1)", 1.0, False),  # the kernel may find log(0), log(tiny) or NaN
        ("rsqrt(x * x - x * x)", 1.0, False),
        ("1 / (x * 3 - x * 3)", 1.0, False),
        ("sqrt(x * 3 - x * 3)", 1.0, False),
        ("sqrt(x * x)", 0.0, True),
        ("rsqrt(x * x + 1e-5)", 0.0, True),
        ("log(sum(exp(x - max(x))))", 1.0, True),
        ("x / sum(exp(x * 1000 - max(x * 1000)))", 1e5, True),
    ],
)
def test_m8_where_a_schedule_may_find_0_the_bound_says_so(formula: str, x: float, is_known: bool) -> None:
    arithmetic = Float32Error(cols=4)
    known = {"x": Bounded(np.full((1, 4), x))}
    with np.errstate(all="ignore"):
        found = Evaluation(arithmetic, formula_table([("y", formula)]), known).value("y")
    assert found.error is not None
    assert np.isfinite(found.error).all() == is_known
    assert np.isfinite(found.value).all()


def test_m8_a_formula_without_a_smooth_row_is_no_fault_of_normgen() -> None:
    problem = problem_for(parse(spec_text('y = "(x - 1e30)**-0.5"')), shape=(8, 64), direction="backward")
    with pytest.raises(VerificationError, match="cannot be proven") as caught:
        proven_program(problem)
    assert "fault of normgen" not in str(caught.value)
    assert "there the formula must have a slope" in str(caught.value)


@pytest.mark.parametrize(
    ("formulas", "scalars", "says"),
    [
        ('y = "x + eps"', "eps = 1e39", "must fit float32"),
        ('y = "absmax(minimum(log(0), x)) * x"', "", "a constant must fit float32, but "),
        ('y = "maximum(x, log(-1) * x)"', "", "a constant must fit float32, but "),
        ('y = "maximum(0 * log(0), x)"', "", "a constant must fit float32, but "),
    ],
)
def test_low_a_number_that_no_kernel_can_hold_is_refused_by_the_check_of_its_spec(
    formulas: str, scalars: str, says: str, tmp_path: Path
) -> None:
    file = spec_file(tmp_path, spec_text(formulas, scalars=scalars))
    for command in (("spec", "check", file), ("verify", "--op", file, "--device", "cpu", "--shape", "8x96")):
        ended = normgen(*command)
        assert (ended.code, ended.is_one_error) == (2, True)
        assert f"{file}:6: " in ended.err
        assert says in ended.err


@needs_compiler
@pytest.mark.parametrize(
    "formulas",
    ['y = "(x - mean(x)) * rsqrt(mean(x*x) - mean(x)*mean(x))"', 'm = "mean(x)"\ny = "(x - m) / sum(x - m)"'],
)
def test_low_elements_in_which_any_value_passes_are_told(formulas: str, tmp_path: Path) -> None:
    text = spec_text(formulas)
    assert "not shown: any value passes in 0." in verified(tmp_path, text).out
    tuned = normgen("tune", "--op", spec_file(tmp_path, text), "--device", "cpu", "--shape", "8x96", "--trials", "1")
    assert tuned.code == 0
    assert "any value passes in 0." in tuned.err + tuned.out


@pytest.mark.parametrize(("value", "told"), [(1.0, ""), (math.nan, ", 16 of them NaN or infinite")])
def test_low_nan_where_any_value_passes_is_told(value: float, told: str) -> None:
    """1 / (x - x) may be anything to a kernel, NaN too: it is right by contract, and said."""
    problem = problem_for(parse(spec_text('y = "1 / (x * 3 - x * 3)"')), shape=(2, 8))
    inputs = make_inputs(problem, families=("normal",))
    verdict = check(problem, inputs, {"y": np.full((2, 8), value, np.float32)})
    assert verdict.ok
    assert f"16 of 16 elements without a finite bound{told}" == verdict.summary().split("; ")[-1]


@needs_compiler
@pytest.mark.parametrize("inner", ["log(minimum(-1, x))", "(minimum(-1, x))**-0.5"])
def test_low_what_is_nan_in_every_row_is_compared_with_numbers(inner: str, tmp_path: Path) -> None:
    for direction in ("forward", "backward"):
        ended = verified(
            tmp_path, spec_text(f'y = "minimum({inner}, x) + maximum(x, {inner})"'), "--direction", direction
        )
        assert ended.code in (0, 4), ended.err
        assert "cannot be proven" in ended.err or not ended.code


def test_low_a_constant_of_a_gradient_that_no_float32_holds_is_refused() -> None:
    spec = parse(spec_text('y = "erf((x - 1) / 1e30)"'))
    with pytest.raises(ProgramError, match=r"a constant of a gradient must fit float32, but .* stands in it"):
        problem_for(spec, shape=(8, 64), direction="backward")
