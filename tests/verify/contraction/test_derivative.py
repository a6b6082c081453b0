"""Derived gradients of products are proven against the formula, wrong ones refused, and results compared with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from normgen.errors import VerificationError
from normgen.problem.problem import Problem
from normgen.program.ir import Map, RowProgram
from normgen.program.monoid import symbol
from normgen.spec.spec import Kind
from normgen.verify.derivative_proof import prove
from tests.verify.contraction import linear
from tests.verify.contraction.gradients import dot, dy, of, program, w, x


def problem(name: str, gradient: str, sizes: tuple[int, int, int] = (16, 12, 24)) -> Problem:
    return linear.problem_of(name, sizes, direction="backward", gradients=(gradient,))


@pytest.mark.parametrize(
    ("name", "gradient"),
    [("linear", "x"), ("linear", "w"), ("torch_linear", "up"), ("torch_linear", "bias"), ("added", "x")],
)
@pytest.mark.parametrize("sizes", [(16, 12, 24), (8, 8, 8), (4, 1, 1), (4, 5000, 3)], ids=str)
def test_gradients_of_products_are_proven(name: str, gradient: str, sizes: tuple[int, int, int]) -> None:
    slopes = prove(problem(name, gradient, sizes), of(gradient))
    assert slopes
    assert all(slope.ok for slope in slopes)


@pytest.mark.parametrize(
    ("name", "gradient", "derived"),
    [
        ("linear", "x", lambda: program(dot("dx", 2 * dy, w))),
        ("linear", "w", lambda: program(dot("dw", x, -dy))),
        ("linear", "w", lambda: program(Map("a", Kind.LEFT, x * x), dot("dw", symbol("a"), dy))),
        ("added", "x", lambda: program(dot("dx", dy * dy, w))),
    ],
)
def test_a_wrong_gradient_of_a_product_is_refused(name: str, gradient: str, derived: Callable[[], RowProgram]) -> None:
    with pytest.raises(VerificationError, match="is not the derivative of its formula"):
        prove(problem(name, gradient), derived())
