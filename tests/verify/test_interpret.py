"""The interpreter against the hand-written references, `math`, and specs that try to run Python."""

from __future__ import annotations

import math

import numpy as np
import pytest

from normgen.errors import SpecError
from normgen.spec.spec import Spec
from normgen.verify import interpret, reference
from normgen.verify.interpret import erf
from tests.verify.finite_differences import finite_difference_check
from tests.verify.made import BUILT_IN, spec

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("op", BUILT_IN, ids=lambda op: op.name)
@pytest.mark.parametrize("with_parameters", [True, False])
def test_formulas_give_what_the_hand_written_reference_gives(op: Spec, with_parameters: bool) -> None:
    x = 2 + 3 * RNG.standard_normal((5, 33))
    x[4, 7] = np.nan
    inputs = {"x": x}
    if with_parameters:
        inputs |= {t.name: RNG.standard_normal(33) for t in op.parameters}
    found, want = interpret(op, inputs), reference(op.name, "forward", inputs, dict(op.scalars))
    assert found.keys() == want.keys()
    for name, value in want.items():
        assert found[name].shape == value.shape
        np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-14, err_msg=name)


def test_every_function_agrees_with_the_math_module() -> None:
    x = np.linspace(0.01, 5, 401)[None, :]
    wanted = {
        "exp": math.exp,
        "log": math.log,
        "log1p": math.log1p,
        "expm1": math.expm1,
        "sqrt": math.sqrt,
        "rsqrt": lambda v: 1 / math.sqrt(v),
        "abs": abs,
        "tanh": math.tanh,
        "erf": math.erf,
        "sigmoid": lambda v: 1 / (1 + math.exp(-v)),
    }
    for name, function in wanted.items():
        sign = 1 if name in ("log", "log1p", "sqrt", "rsqrt") else -1
        y = interpret(spec("one", {"y": f"{name}(x)"}, eps=None), {"x": sign * x})["y"]
        np.testing.assert_allclose(y[0], [function(sign * v) for v in x[0]], rtol=1e-13, err_msg=name)
    two = interpret(spec("two", {"y": "maximum(x, 1) - minimum(x, 1)"}, eps=None), {"x": x})["y"]
    np.testing.assert_allclose(two, np.abs(x - 1))


def test_erf_is_good_to_1e_15_everywhere() -> None:
    x = np.concatenate([np.linspace(-7, 7, 2001), [0.0, 2.0, -2.0, np.inf, -np.inf]])
    assert np.max(np.abs(erf(x) - [math.erf(v) for v in x])) < 1e-15
    assert np.isnan(erf(np.array([np.nan]))).all()


def test_formulas_may_come_in_any_order_and_reductions_may_be_inline() -> None:
    gated = spec(
        "gated",
        {"y": "x * r * w * sigmoid(g)", "r": "(mean(x*x) + eps)**-0.5"},
        inputs=("x", "g"),
        parameters={"w": None},
    )
    x, g, w = RNG.standard_normal((4, 6)), RNG.standard_normal((4, 6)), RNG.standard_normal(6)
    want = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5) * w / (1 + np.exp(-g))
    np.testing.assert_allclose(interpret(gated, {"x": x, "g": g, "w": w})["y"], want, rtol=1e-13)


def test_gradients_of_a_made_up_spec_match_finite_differences_of_its_formulas() -> None:
    l2 = spec("l2", {"r": "rsqrt(sum(x*x) + eps)", "y": "x * r * w"}, parameters={"w": None})
    inputs = {"x": RNG.standard_normal((3, 6)), "w": RNG.standard_normal(6)}
    dy = RNG.standard_normal((3, 6))
    x, wdy = inputs["x"], dy * inputs["w"]
    r = interpret(l2, inputs, names=["r"])["r"][:, None]
    grads = {"x": r * wdy - x * r**3 * (wdy * x).sum(axis=1, keepdims=True), "w": (dy * x * r).sum(axis=0)}
    worst = finite_difference_check(lambda moved: interpret(l2, moved)["y"], inputs, dy, grads)
    assert max(worst.values()) < 1e-8
    assert finite_difference_check(lambda m: interpret(l2, m)["y"], inputs, dy, {"w": grads["w"] * 1.001})["w"] > 1e-5


def test_reductions_of_row_values_still_have_cols_terms() -> None:
    op = spec("sums", {"a": "sum(max(x))", "b": "sum(1)", "c": "absmax(x)"}, statistics=("a", "b", "c"), outputs=())
    x = RNG.standard_normal((3, 5))
    found = interpret(op, {"x": x})
    np.testing.assert_allclose(found["a"], 5 * x.max(axis=1))
    assert found["b"].tolist() == [5.0, 5.0, 5.0]
    np.testing.assert_array_equal(found["c"], np.abs(x).max(axis=1))


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "x.__class__",
        "(lambda: 1)()",
        "[v for v in x]",
        "f'{x}'",
        "x[0]",
        "x if x else x",
        "x @ x",
        "x is 1",
        "True",
        "'x'",
        "open(x)",
        "exp(x, x)",
        "sum(x, axis=0)",
        "2 ** 10**9",
        "x; x",
        "",
        "unknown + 1",
        "y + 1",
    ],
)
def test_what_is_no_formula_is_refused_with_its_file_and_line(text: str) -> None:
    with pytest.raises(SpecError, match=r"^bad\.toml:1: "):
        interpret(spec("bad", {"y": text}), {"x": np.ones((1, 2))})


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(SpecError, match="did you mean 'rsqrt'"):
        interpret(spec("bad", {"y": "rsqr(x)"}), {"x": np.ones((1, 2))})
