"""The walk over a derived program against the program's own evaluator, and what only the walk says."""

from __future__ import annotations

import numpy as np
import pytest
import sympy as sp

from normgen.errors import ProgramError
from normgen.program.functions import sign
from normgen.program.ir import Guard, Load, Map, Reduce, RowProgram, Store
from normgen.program.monoid import SUM, WELFORD, symbol
from normgen.program.source import problem_for, written_program
from normgen.spec.spec import Kind, Spec
from normgen.verify.bounded import REARRANGED, Bounded
from normgen.verify.error_model import Float32Error
from normgen.verify.interpret import Float64
from normgen.verify.program_walk import ProgramWalk
from tests.program.evaluate import evaluate
from tests.verify import made

x, y = symbol("x"), symbol("y")


def elementwise(expr: sp.Expr) -> RowProgram:
    return RowProgram("one", (Load("x", Kind.ELEM), Map("y", Kind.ELEM, expr), Store("y", "y", Kind.ELEM)))


@pytest.mark.parametrize("op", [*made.OWN, *made.BUILT_IN[:4]], ids=lambda op: op.name)
def test_the_walk_gives_the_values_of_the_programs_own_evaluator(op: Spec) -> None:
    problem = problem_for(op, shape=(5, 19), direction="backward", saved=())
    program = written_program(problem)
    rng = np.random.default_rng(3)
    shapes = {Kind.ELEM: (5, 19), Kind.COL: (1, 19), Kind.ROW: (5, 1)}
    given = {load.name: rng.standard_normal(shapes[load.kind]) for load in program.loads}
    scalars = dict(op.scalars)
    flat = {load.name: given[load.name].reshape(-1) if load.kind is not Kind.ELEM else given[load.name] for load in program.loads}  # fmt: skip # noqa: E501
    want = evaluate(program, flat, scalars)
    numbers = {name: np.asarray(value) for name, value in {**scalars, "cols": 19.0}.items()}
    walk = ProgramWalk(Float64(cols=19), program, {**given, **numbers})
    for store in program.stores:
        found = np.broadcast_to(walk.value(store.tensor), shapes[store.kind])
        np.testing.assert_allclose(found.reshape(want[store.tensor].shape), want[store.tensor], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        (-x - 3, -5.0),
        (1 / (x * (x + 1)), 1 / 6),
        (-x / 3, -2 / 3),
        (3 * x**-65, 3 * 2.0**-65),
        (sp.Max(x, 1, 5 - x), 3.0),
        (sign(1 - x) * sp.sqrt(sp.pi), -np.sqrt(np.pi)),
        (1 / sp.sqrt(x), 2**-0.5),
    ],
    ids=str,
)
def test_an_expression_has_its_value(expr: sp.Expr, value: float) -> None:
    walk = ProgramWalk(Float64(cols=1), elementwise(expr), {"x": np.full((1, 1), 2.0)})
    assert walk.value("y").item() == pytest.approx(value, rel=1e-15)


def test_a_sign_is_exact_but_where_a_schedule_may_see_the_other_one() -> None:
    value, error = np.array([[1.0, 0.5, -0.5, 0.0]]), np.array([[0.4, 0.3, 0.2, 0.1]])
    known = {"x": Bounded(value, error)}
    found = ProgramWalk(Float32Error(cols=4), elementwise(sign(x)), known).value("y")
    assert REARRANGED == 2
    np.testing.assert_array_equal(found.value, [[1, 1, -1, 0]])
    np.testing.assert_array_equal(found.error, [[0, 2, 0, 2]])
    exact = ProgramWalk(Float32Error(cols=4), elementwise(sign(x)), {"x": Bounded(value)}).value("y")
    assert exact.error is None


def test_the_term_of_a_sum_over_rows_is_what_the_reduction_adds_up() -> None:
    sums = RowProgram(
        "sums",
        (
            Load("x", Kind.ELEM),
            Reduce(("dw",), Kind.COL, SUM, (x * x,)),
            Map("db", Kind.COL, sp.Integer(0)),
            Store("dw", "dw", Kind.COL),
            Store("dv", "dw", Kind.COL),
            Store("db", "db", Kind.COL),
        ),
    )
    walk = ProgramWalk(Float64(cols=2), sums, {"x": np.array([[1.0, 2.0], [3.0, 4.0]])})
    np.testing.assert_array_equal(walk.column_term("dw"), [[1, 4], [9, 16]])
    np.testing.assert_array_equal(walk.column_term("dv"), walk.column_term("dw"))
    np.testing.assert_array_equal(walk.value("dv"), [[10, 20]])
    np.testing.assert_array_equal(walk.column_term("db"), [[0]])
    with pytest.raises(ProgramError, match="one sum over the rows"):
        ProgramWalk(Float64(cols=2), elementwise(x), {}).column_term("y")


def test_what_a_program_lacks_or_a_rewrite_made_is_refused_by_name() -> None:
    with pytest.raises(ProgramError, match="did you mean 'y'"):
        ProgramWalk(Float64(cols=1), elementwise(x), {}).value("yy")
    welford = Reduce(("n", "mean", "m2"), Kind.ROW, WELFORD, (x,))
    rewritten = RowProgram("w", (Load("x", Kind.ELEM), welford, Store("n", "n", Kind.ROW)))
    with pytest.raises(ProgramError, match="a value of the program is needed"):
        ProgramWalk(Float64(cols=1), rewritten, {"x": np.ones((1, 1))}).value("n")
    guarded = Reduce(("s",), Kind.ROW, SUM, (x,), Guard(sp.Integer(1), (sp.Integer(0),)))
    spared = RowProgram("g", (Load("x", Kind.ELEM), guarded, Store("s", "s", Kind.ROW)))
    with pytest.raises(ProgramError, match="a value of the program is needed"):
        ProgramWalk(Float64(cols=1), spared, {"x": np.ones((1, 1))}).value("s")
    with pytest.raises(ProgramError, match="gamma cannot be evaluated"):
        ProgramWalk(Float64(cols=1), elementwise(sp.gamma(x)), {"x": np.ones((1, 1))}).value("y")
