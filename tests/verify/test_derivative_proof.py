"""The proof that a derived program is the derivative: it holds for every spec, and it sees every planted mistake."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import sympy as sp

from normgen.choice.first import default_schedule
from normgen.device import TARGETS
from normgen.errors import VerificationError
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.ir import Map, Reduce, RowProgram, Statement
from normgen.program.source import problem_for, written_program
from normgen.spec.reader import load, parse
from normgen.spec.spec import Kind, Spec
from normgen.verify import derivative_proof, prove, proven_program
from normgen.verify.derivative_proof import Slope
from normgen.verify.interpret import Float64
from tests.program.evaluate import evaluate
from tests.samples import CORE
from tests.verify import made

SHIPPED = [spec for name in CORE if (spec := load(name)).outputs]  # tests/family proves the others
# What a mistake in a derivative looks like: every one of these is planted in every statement that takes it.
MISTAKES = {
    "sign": lambda expr: -expr,
    "factor": lambda expr: expr * sp.Rational(1001, 1000),
    "offset": lambda expr: expr + sp.Rational(1, 1000),
    "lost term": lambda expr: expr.replace(lambda e: e.is_Add, lambda e: sp.Add(*e.args[1:])),
    "lost factor": lambda expr: sp.Mul(*expr.args[1:]) if expr.is_Mul else expr,
}


@pytest.mark.parametrize("saved", ["saved", "recomputed"])
@pytest.mark.parametrize("op", [*SHIPPED, *made.OWN], ids=lambda op: op.name)
def test_every_derived_program_is_proven(op: Spec, saved: str) -> None:
    inputs = [t.name for t in op.tensors if t.has_gradient and not t.role.is_written]
    kept = None if saved == "saved" else ()
    problem = problem_for(op, shape=(7, 200), direction="backward", saved=kept, gradients=inputs)
    slopes = prove(problem, written_program(problem))
    assert {(s.tensor, s.shape) for s in slopes} == {(name, (7, cols)) for name in inputs for cols in (33, 200)}
    assert all(s.ok for s in slopes)
    worst = max(abs(s.derived - s.differences) / s.bound for s in slopes)
    assert worst < 0.5  # 76066 slopes of 9 specs at 1 to 4096 cols came to 0.11 at most


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("op", made.OWN, ids=lambda op: op.name)
def test_a_mistake_in_any_statement_is_caught(op: Spec, mistake: str) -> None:
    problem = problem_for(op, shape=(7, 24), direction="backward")
    program = written_program(problem)
    planted = 0
    for at, statement in enumerate(program.statements):
        wrong = _with_mistake(statement, mistake)
        if wrong is None:
            continue
        statements = (*program.statements[:at], wrong, *program.statements[at + 1 :])
        mutant = replace(program, statements=statements)
        if np.allclose(_gradients(mutant, op), _gradients(program, op), rtol=1e-6, atol=1e-9):
            continue  # no mistake: the maximum of a softmax may be any number, a branch turns at the same place
        planted += 1
        with pytest.raises(VerificationError, match="is not the derivative of its formula"):
            prove(problem, mutant)
    assert planted >= 2


def _with_mistake(statement: Statement, mistake: str) -> Statement | None:
    change = MISTAKES[mistake]
    if isinstance(statement, Map) and change(statement.expr) != statement.expr:
        return replace(statement, expr=change(statement.expr))
    if isinstance(statement, Reduce) and change(statement.args[0]) != statement.args[0]:
        return replace(statement, args=(change(statement.args[0]),))
    return None


def _gradients(program: RowProgram, op: Spec) -> np.ndarray:
    """All gradients of one random point, in a row."""
    rng = np.random.default_rng(5)
    shapes = {Kind.ELEM: (3, 9), Kind.COL: (9,), Kind.ROW: (3,)}
    given = {load.name: rng.standard_normal(shapes[load.kind]) for load in program.loads}
    stored = evaluate(program, given, dict(op.scalars))
    return np.concatenate([stored[name].reshape(-1) for name in sorted(stored)])


def test_the_error_names_the_spec_its_formula_and_both_numbers() -> None:
    problem = problem_for(made.L2NORM, shape=(7, 24), direction="backward")
    program = written_program(problem)
    statements = tuple(
        replace(s, expr=2 * s.expr) if isinstance(s, Map) and s.name == "dx" else s for s in program.statements
    )
    with pytest.raises(VerificationError) as caught:
        prove(problem, replace(program, statements=statements))
    message = str(caught.value)
    assert caught.value.exit_code == 4
    assert "the derived dx of spec 'l2norm' is not the derivative of its formula" in message
    assert "row 0 of 7 x 33: derived " in message
    assert "(14 of 14 are wrong)" in message
    assert "y = x * rsqrt(sum(x*x) + eps) * gain" in message
    assert "program l2norm_backward(eps)" in message


def test_a_wrong_derivative_is_caught_before_it_says_what_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    from normgen import verify

    problem = problem_for(made.GATED, shape=(12, 40), dtype="bf16", direction="backward")
    right = written_program(problem)
    swapped = tuple(
        replace(s, args=(-s.args[0],)) if isinstance(s, Reduce) and s.names == ("dw",) else s for s in right.statements
    )
    monkeypatch.setattr(derivative_proof, "written_program", lambda _: replace(right, statements=swapped))
    derivative_proof._proven.cache_clear()
    inputs = verify.make_inputs(problem, families=("normal",))
    with pytest.raises(VerificationError, match="the derived dw of spec 'gated_norm'"):
        verify.prepare(problem, inputs)
    monkeypatch.undo()
    assert verify.prepare(problem, inputs).parts


def test_a_formula_of_positive_numbers_is_proven_on_positive_rows() -> None:
    log_norm = made.spec("log_norm", {"y": "log(x) / mean(log(x * 4))"}, eps=None)
    problem = problem_for(log_norm, shape=(7, 50), direction="backward")
    slopes = prove(problem, written_program(problem))
    assert len(slopes) == 2 * 2 * 7
    assert all(s.ok for s in slopes)


def test_what_is_nowhere_finite_counts_as_unproven() -> None:
    nowhere = made.spec("nowhere", {"y": "x * sqrt(0 - 1 - x*x)"}, eps=None)
    problem = problem_for(nowhere, shape=(7, 50), direction="backward")
    with pytest.raises(VerificationError, match="cannot be proven") as caught:
        proven_program(problem)
    assert "finite and smooth" in str(caught.value)


def test_one_proof_serves_every_number_of_rows_and_wide_rows_are_proven_at_33_cols() -> None:
    made_once = [
        proven_program(problem_for(made.L2NORM, shape=(rows, 10_000), direction="backward", accumulate=accumulate))
        for rows, accumulate in ((3, False), (4096, True))
    ]
    assert made_once[0] is made_once[1]
    problem = problem_for(made.L2NORM, shape=(3, 10_000), direction="backward")
    assert {s.shape for s in prove(problem, made_once[0])} == {(7, 33)}


def test_extrapolated_differences_are_within_their_bound() -> None:
    steps = [2.0**-k for k in (4, 6, 8)]
    for function, slope in ((np.exp, np.exp(0.7)), (np.sin, np.cos(0.7)), (lambda v: 1 / v, -1 / 0.49)):
        slopes = [np.array((function(0.7 + h) - function(0.7 - h)) / (2 * h)) for h in steps]
        value, apart, noise = derivative_proof._extrapolated(slopes, [np.array(2.0**-52 / h) for h in steps])
        assert abs(value - slope) <= apart + noise < 1e-4


NOT_SEEN = {
    "a pole nearer than the steps": ("1 / z", 4000),
    "a pole of the fifth order": ("z**-5", 64),
    "waves beside a steep slope": ("1e5 / z + cos(1e5 / z)**2", 4000),
    "a sine of a number that float64 rounds by more than 1": ("z * sin(1e30)", 64),
}


@pytest.mark.parametrize("name", NOT_SEEN)
def test_what_the_steps_do_not_see_is_never_called_wrong(name: str) -> None:
    text = 'name = "t"\n[tensors]\nx = "input"\nz = "input"\ny = "output"\n[formulas]\ny = "{}"\n'
    formula, cols = NOT_SEEN[name]
    problem = problem_for(parse(text.format(f"x + {formula}")), shape=(7, cols), direction="backward")
    assert "is not the derivative" not in _answer(problem)


@pytest.mark.parametrize("formula", ["cos(1e3 * z)", "z**-5", "tanh(1e3 * z)", "x / x"])
def test_what_most_steps_see_is_proven(formula: str) -> None:
    text = 'name = "t"\n[tensors]\nx = "input"\nz = "input"\ny = "output"\n[formulas]\ny = "x + z + {}"\n'
    problem = problem_for(parse(text.format(formula)), shape=(7, 64), direction="backward")
    assert {slope.tensor for slope in prove(problem, written_program(problem))} == {"x", "z"}


def _answer(problem: Problem) -> str:
    try:
        prove(problem, written_program(problem))
    except VerificationError as error:
        return error.rule
    return "proven"


def test_a_row_that_bends_within_the_step_takes_a_smaller_one_or_does_not_count() -> None:
    relu = made.spec("relu", {"y": "maximum(x, 0) * w"}, parameters={"w": None}, eps=None)
    problem = problem_for(relu, shape=(7, 2000), direction="backward")
    slopes = [s for s in prove(problem, written_program(problem)) if s.tensor == "x" and s.shape[1] == 2000]
    assert slopes
    assert all(abs(s.derived - s.differences) < 1e-6 * max(1.0, abs(s.derived)) for s in slopes)


# What a saved tensor's formula tells beside its bound, and a gradient that asks for it.
TOLD = {
    "where it is exact": ("x * 2", "exp(v - 1)"),
    "a difference from a row value": ("x - mean(x)", "v * sum(v * v)"),
    "the square of one": ("(x - mean(x))**2", "x * sum(v)"),
}


@pytest.mark.parametrize("name", TOLD)
def test_what_is_known_of_a_saved_tensor_is_that_of_the_rows_that_count(name: str) -> None:
    told, formula = TOLD[name]
    text = 'name = "told"\ntensors.x = "input"\ntensors.v = "output"\ntensors.y = "output"\nbackward.saved = ["v"]\n'
    spec = parse(f'{text}[formulas]\nv = "{told}"\ny = "sqrt(mean(x)) + {formula}"\n')
    problem = problem_for(spec, shape=(7, 8), direction="backward")
    slopes = prove(problem, written_program(problem))
    assert {s.row for s in slopes if s.shape[1] == 33} < set(range(7))  # the others have no root
    assert all(s.ok for s in slopes)


def test_a_slope_is_wrong_beyond_its_bound_and_when_it_is_not_a_number() -> None:
    right = Slope(tensor="x", shape=(7, 33), row=2, derived=1.0, differences=1.25, bound=0.25)
    assert right.ok
    assert not replace(right, bound=0.2).ok
    assert not replace(right, derived=float("nan")).ok
    assert str(right).startswith("<dx, d> for row 2 of 7 x 33: derived 1, by differences 1.25")


HOSTILE = {
    "a number in a solved definition": 'm = "sum(x)"\ny = "x / m / 0.5 - (m * 0.5)**3"',
    "a value that algebra makes a number of": 'y = "abs(0 - x * x**-1) * x - minimum(x, 2)"',
    "a root of a root": 'y = "x * rsqrt(rsqrt(mean(x * x)))"',
    "e": 'y = "x * exp(x / x)"',
}


@pytest.mark.parametrize("formulas", HOSTILE.values(), ids=HOSTILE)
def test_what_algebra_may_write_otherwise_has_a_proven_gradient_and_a_text(formulas: str) -> None:
    spec = parse(f'name = "hostile"\ntensors.x = "input"\ntensors.y = "output"\n[formulas]\n{formulas}\n')
    problem = problem_for(spec, shape=(8, 64), direction="backward")
    proven_program(problem)
    emit(problem, default_schedule(problem, TARGETS["h200"]))


def test_a_gradient_of_what_is_nowhere_finite_is_kept_and_cannot_be_proven() -> None:
    """Algebra would find 1/0 in it, a constant that no kernel has."""
    text = '[formulas]\ny = "x / ((x * x) * 2 - (x * x) * 2)"\n'
    spec = parse(f'name = "nowhere"\ntensors.x = "input"\ntensors.y = "output"\n{text}')
    problem = problem_for(spec, shape=(8, 64), direction="backward")
    with pytest.raises(VerificationError, match="cannot be proven"):
        proven_program(problem)


@pytest.mark.parametrize("name", sorted(derivative_proof._SLOPES))
def test_the_slopes_of_the_chain_rule_are_those_of_the_functions(name: str) -> None:
    """A proof takes its word where no step of a difference resolves the formula."""
    call = Float64(cols=1).call
    count = {"maximum": 2, "minimum": 2, "**": 2, "clamp": 3}.get(name, 1)
    args = [np.array([0.7, 1.3, 2.9]), np.array([0.9, 1.1, 2.2]), np.array([1.2, 1.25, 3.4])][:count]
    slopes = derivative_proof._SLOPES[name](call(name, *args), *args)
    for i, slope in enumerate(slopes):
        ahead, behind = ([a + side * (j == i) for j, a in enumerate(args)] for side in (1e-6, -1e-6))
        differences = (call(name, *ahead) - call(name, *behind)) / 2e-6
        np.testing.assert_allclose(slope, differences, rtol=1e-8, atol=1e-8)
