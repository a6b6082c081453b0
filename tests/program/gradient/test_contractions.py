"""Gradients of products of matrices: contractions again, each a problem of its own, exact against numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from normgen.errors import NormgenError, SpecError
from normgen.problem.problem import Problem
from normgen.program.classes import ProgramClass, class_of, class_of_formulas
from normgen.program.ir import Load, show_statement
from normgen.program.source import problem_for, written_program
from normgen.spec.spec import Spec
from tests.program.evaluate import Array, evaluate
from tests.program.test_contractions import GELU, LINEAR, NORMED, SWIGLU, arrays, silu, spec_of

STORED_SWIGLU = ("g = x @ w", "z = x @ up", "y = g * sigmoid(g) * z")


def problem_of(spec: Spec, gradient: str) -> Problem:
    return problem_for(spec, shape=(5, 4), inner=7, direction="backward", gradients=gradient.split())


def dsilu(g: Array) -> Array:
    s = 1 / (1 + np.exp(-g))
    return s * (1 + g * (1 - s))


def normed_dx(x: Array, w: Array, gain: Array, dy: Array) -> Array:
    rstd = 1 / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6)
    dn = (dy @ w.T) * gain
    return rstd * (dn - x * rstd**2 * (dn * x).mean(1, keepdims=True))


def rstd_of(x: Array) -> Array:
    return 1 / np.sqrt((x * x).mean(1) + 1e-6)


CASES: list[tuple[tuple[str, ...], str, str, Callable[..., Array]]] = [
    (LINEAR, "", "x", lambda dy, w, **_: dy @ w.T),
    (LINEAR, "", "w", lambda dy, x, **_: x.T @ dy),
    (LINEAR, "", "bias", lambda dy, **_: dy.sum(0)),
    (("y = (2 * x * gain) @ (w * bias)",), "", "x", lambda dy, w, gain, bias, **_: 2 * gain * (dy @ (w * bias).T)),
    (("y = (2 * x * gain) @ (w * bias)",), "", "w", lambda dy, x, gain, bias, **_: (2 * x * gain).T @ dy * bias),
    (("y = maximum(x, 0) @ w * scale",), "", "x", lambda dy, x, w, scale, **_: (dy * scale[:, None]) @ w.T * (x > 0)),
    (("y = maximum(x, 0) @ w * scale",), "", "w", lambda dy, x, scale, **_: np.maximum(x, 0).T @ (dy * scale[:, None])),
    (("y = (x @ w) + (x**2 @ up)",), "", "x", lambda dy, x, w, up, **_: dy @ w.T + 2 * x * (dy @ up.T)),
    (("y = x @ w - x @ up",), "", "x", lambda dy, w, up, **_: dy @ (w - up).T),
    (("y = x @ w - x @ up",), "", "up", lambda dy, x, **_: -x.T @ dy),
    (("y = bias - 0.125 * (x @ w)",), "", "x", lambda dy, w, **_: -0.125 * dy @ w.T),
    (("y = bias - 0.125 * (x @ w)",), "", "w", lambda dy, x, **_: -0.125 * x.T @ dy),
    (("y = where(x > 0, sqrt(x), 0) @ w / 8",), "", "w", lambda dy, x, **_: np.sqrt(np.fmax(x, 0)).T @ dy / 8),
    (("y = (x * scale) @ w",), "", "scale", lambda dy, x, w, **_: (dy * (x @ w)).sum(1)),
    (("y = (x - scale) @ w",), "", "scale", lambda dy, w, **_: -(dy @ w.T).sum(1)),
    (("y = (x + 2 * u) @ w",), "", "x u", lambda dy, w, **_: dy @ w.T),
    (("y = (x + 2 * u) @ w",), "", "u x", lambda dy, w, **_: 2 * dy @ w.T),
    (("y = (x @ w) + (x**2 @ up)",), "", "w up", lambda dy, x, **_: x.T @ dy),
    (NORMED, 'rstd", "y', "x", lambda dy, x, w, gain, **_: normed_dx(x, w, gain, dy)),
    (NORMED, "rstd", "w", lambda dy, x, gain, **_: (x * rstd_of(x)[:, None] * gain).T @ dy),
]


@pytest.mark.parametrize(("formulas", "saved", "gradient", "reference"), CASES)
def test_the_gradient_of_a_side_is_a_contraction(
    formulas: tuple[str, ...], saved: str, gradient: str, reference: Callable[..., Array]
) -> None:
    spec, known = spec_of(*formulas, saved=saved), arrays()
    program = written_program(problem_of(spec, gradient))
    known["rstd"] = rstd_of(known["x"])
    known["y"] = (known["x"] * known["rstd"][:, None] * known["gain"]) @ known["w"]
    found = evaluate(program, known)
    first = f"d{gradient.split()[0]}"
    np.testing.assert_allclose(found[first], reference(**known), rtol=1e-12, atol=1e-12)
    assert class_of_formulas(spec, program, frozenset()) is (
        ProgramClass.ROWS if gradient == "bias" else ProgramClass.TILES
    )


@pytest.mark.parametrize(("gradient", "at"), [("x", 0), ("w", 1), ("up", 2)])
def test_products_that_are_stored_and_saved_are_not_computed_again(gradient: str, at: int) -> None:
    """swiglu with both of its products as outputs, whose own gradients are 0 here."""
    spec, known = spec_of(*STORED_SWIGLU, saved='g", "z'), arrays()
    known |= {"g": known["x"] @ known["w"], "z": known["x"] @ known["up"]}
    known |= {"dg": np.zeros((5, 4)), "dz": np.zeros((5, 4))}
    g, z, dy, x = (known[name] for name in ("g", "z", "dy", "x"))
    dg, du = dy * z * dsilu(g), dy * silu(g)
    wanted = (dg @ known["w"].T + du @ known["up"].T, x.T @ dg, x.T @ du)[at]
    program = written_program(problem_of(spec, gradient))
    np.testing.assert_allclose(evaluate(program, known)[f"d{gradient}"], wanted, rtol=1e-12, atol=1e-12)
    assert class_of_formulas(spec, program, frozenset()) is ProgramClass.TILES


def test_the_gradients_of_a_linear_layer_are_three_statements() -> None:
    for gradient, text in (("x", "left = dot_cols(dy, w)"), ("w", "matrix = dot_rows(x, dy)")):
        program = written_program(problem_of(spec_of(*LINEAR), gradient))
        shown = [show_statement(s).strip() for s in program.statements if not isinstance(s, Load)]
        assert shown == [f"reduce d{gradient} : {text}", f"store  d{gradient}"]


def test_the_gradient_of_a_normed_side_reads_cols_once() -> None:
    """rstd is saved, and so is y: what its gradient sums rides along with the contraction."""
    program = written_program(problem_of(spec_of(*NORMED, saved='rstd", "y'), "x"))
    assert [show_statement(r).split(" = ")[1] for r in program.reduces] == ["dot_cols(dy_dot, w)", "sum(dy*y)"]


REFUSED = [
    (LINEAR, "x w", 8, "all contractions of a kernel sum"),
    (GELU, "x", 8, "all contractions of a kernel sum inner to values along rows and cols"),
    (GELU, "bias", 8, "a kernel of products reduces its sides over inner, to values along rows or cols"),
    (SWIGLU, "w", 8, "all contractions of a kernel sum inner to"),
    (
        ("r2 = rsqrt(mean(x * x))", "y = (x * r2 * gain) @ w"),
        "gain",
        9,
        "what waits for a reduction of the result's rows is known behind all of it: a value of the row",
    ),
    (
        ("y = x @ w * sum(x * gain)",),
        "gain",
        8,
        "a reduction of the result waits for another one, and a kernel makes the result once",
    ),
    (("y = x @ (w - bias)",), "bias", 8, "the gradient of 'bias' sums that of a side of a product over inner"),
    (("y = (x * peak) @ w", "peak = max(x)"), "x", 8, "the gradient of max is supported only where it cancels"),
]


@pytest.mark.parametrize(("formulas", "gradient", "line", "says"), REFUSED)
def test_what_one_kernel_cannot_give_is_refused_with_the_line_of_the_formula(
    formulas: tuple[str, ...], gradient: str, line: int, says: str
) -> None:
    with pytest.raises(NormgenError, match=says) as caught:
        class_of(problem_of(spec_of(*formulas), gradient))
    assert isinstance(caught.value, SpecError)
    assert caught.value.hint
    assert str(caught.value).startswith(f"product.toml:{line}: ")
