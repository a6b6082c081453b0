"""sympy expressions as trees, and these as CUDA C: exact strings, and values that a C compiler reads back."""

from __future__ import annotations

import re

import numpy as np
import pytest
import sympy as sp
from hypothesis import example, given
from hypothesis import strategies as st

from normgen.choice.first import default_schedule
from normgen.codegen.printer import Printer, float_literal
from normgen.device import target
from normgen.errors import ProgramError
from normgen.pipeline import emit
from normgen.program.frozen import Order
from normgen.program.functions import expm1, less, log1p, where
from normgen.program.ir import COLS, INNER
from normgen.program.ordered import Ordered
from normgen.program.source import problem_for
from normgen.spec.reader import parse

X, MEAN, RSTD, W, B = (sp.Symbol(n, real=True) for n in ("x", "mean", "rstd", "w", "b"))
NAMES = {"x": "x_i", "mean": "row_mean", "rstd": "row_rstd", "w": "w_i", "b": "b_i"}
LENGTHY = {**NAMES, "cols": "kCols", "inner": "kInner"}

TEXTS = [
    ((X - MEAN) * RSTD * W + B, "(x_i - row_mean) * row_rstd * w_i + b_i"),
    (X**2, "x_i * x_i"),
    ((X - MEAN) ** 2, "(x_i - row_mean) * (x_i - row_mean)"),
    (X**4, "x_i * x_i * x_i * x_i"),
    (1 / X, "1.0f / x_i"),
    (X / W, "x_i / w_i"),
    (X / (W * B), "x_i / w_i / b_i"),
    (X / (W + B), "x_i / (w_i + b_i)"),
    (1 / sp.sqrt(X), "rsqrtf(x_i)"),
    (sp.sqrt(X + W), "sqrtf(x_i + w_i)"),
    (sp.exp(X - MEAN), "expf(x_i - row_mean)"),
    (sp.log(X) - B, "logf(x_i) - b_i"),
    (log1p(sp.exp(X)), "log1pf(expf(x_i))"),
    (expm1(X * W), "expm1f(x_i * w_i)"),
    (sp.Abs(X), "fabsf(x_i)"),
    (sp.tanh(X) * sp.erf(W), "tanhf(x_i) * erff(w_i)"),
    (-X, "-x_i"),
    (-(X + W), "-x_i - w_i"),
    (X - 1, "x_i - 1.0f"),
    (2 * X, "2.0f * x_i"),
    (X / 2, "x_i / 2.0f"),
    (X * sp.Rational(2, 3), "0.6666666666666666f * x_i"),
    (X + sp.Float(1e-5), "x_i + 1e-05f"),
    (sp.Max(X, 0), "maximum(x_i, 0.0f)"),
    (sp.Min(X, W), "minimum(x_i, w_i)"),
    (sp.oo, "__int_as_float(0x7f800000)"),
    (-sp.oo, "__int_as_float(0xff800000)"),
]
# Lengths of axes are ints: a product of two may be beyond an int, and a quotient is no whole number.
LENGTHS = [
    (COLS**2, "static_cast<float>(kCols) * kCols"),
    (X / COLS**2, "x_i / (static_cast<float>(kCols) * kCols)"),
    (X / COLS, "x_i / kCols"),
    (COLS / 2, "kCols / 2.0f"),
    (INNER / COLS, "static_cast<float>(kInner) / kCols"),
    (-COLS / INNER, "-static_cast<float>(kCols) / kInner"),
    (COLS * INNER * X, "x_i * kCols * kInner"),
    ((INNER + COLS) / COLS, "(static_cast<float>(kCols) + kInner) / kCols"),
    ((INNER - COLS) / COLS, "(static_cast<float>(kInner) - kCols) / kCols"),
    (where(less(X, W), COLS, INNER) / INNER, "(x_i < w_i ? static_cast<float>(kCols) : kInner) / kInner"),
    (Ordered(COLS, 1 / INNER, X), "static_cast<float>(kCols) / kInner * x_i"),
]


@pytest.mark.parametrize(("expr", "text"), TEXTS, ids=[text for _, text in TEXTS])
def test_expressions_are_printed_as_a_person_writes_them(expr: sp.Expr, text: str) -> None:
    assert Printer(NAMES).text(Order(NAMES).tree(expr)) == text


@pytest.mark.parametrize(("expr", "text"), LENGTHS, ids=[text for _, text in LENGTHS])
def test_lengths_of_axes_are_multiplied_and_divided_as_floats(expr: sp.Expr, text: str) -> None:
    assert Printer(LENGTHY).text(Order(LENGTHY).tree(expr)) == text


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_literals_read_back_to_the_same_float(value: float) -> None:
    text = float_literal(value)
    assert text.endswith("f")
    assert any(c in text for c in ".e")  # `1f` is no literal of C
    assert np.float32(float(text[:-1])) == np.float32(value)


@pytest.mark.parametrize("expr", [sp.gamma(X), X**W], ids=str)
def test_what_has_no_float32_text_is_refused(expr: sp.Expr) -> None:
    with pytest.raises(ProgramError):
        Printer(NAMES).text(Order(NAMES).tree(expr))


def test_a_value_without_a_name_is_refused() -> None:
    with pytest.raises(ProgramError, match="used before its look"):
        Printer({"x": "x_i"}).text(Order("xw").tree(X + W))


C_FUNCTIONS = {
    "rsqrtf": lambda v: 1 / np.sqrt(v),
    "sqrtf": np.sqrt,
    "expf": np.exp,
    "logf": np.log,
    "fabsf": np.abs,
    "tanhf": np.tanh,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "power": lambda exponent, v: v**exponent,
}
leaves = st.sampled_from([X, W, B, sp.Integer(2), sp.Rational(1, 2), sp.Integer(-3)])
trees = st.recursive(
    leaves,
    lambda t: st.one_of(
        st.tuples(t, t).map(lambda p: p[0] + p[1]),
        st.tuples(t, t).map(lambda p: p[0] * p[1]),
        st.tuples(t, t).map(lambda p: p[0] - p[1]),
        st.tuples(t, t).map(lambda p: p[0] / (p[1] ** 2 + 1)),
        t.map(lambda e: sp.sqrt(e**2 + 1)),
        t.map(lambda e: sp.Max(e, X)),
    ),
    max_leaves=6,
)


@example(sp.sqrt(B**6 + 1))  # a long power is a function of the library
@given(trees)
def test_the_text_has_the_value_of_the_expression(expr: sp.Expr) -> None:
    """Without its f suffixes the text is also Python, whose parser checks the precedence."""
    point = {"x": 1.25, "w": -0.75, "b": 2.5}
    text = re.sub(r"(\d)f\b", r"\1", Printer({n: n for n in point}).text(Order(point).tree(expr)))
    text = re.sub(r"power<(\d+)>\(", r"power(\1, ", text)
    want = float(expr.subs({sp.Symbol(n, real=True): v for n, v in point.items()}))
    got = float(eval(text, {**C_FUNCTIONS, **point, "__builtins__": {}}))
    assert got == pytest.approx(want, rel=1e-9, abs=1e-9)


def test_two_signs_do_not_meet() -> None:
    """`--2.5f * x` would count down."""
    tensors = 'x = "input"\nb = "parameter"\ny = "output"'
    spec = parse(f'name = "signs"\n[tensors]\n{tensors}\n[formulas]\ny = "(-2.5 * (-sum(x) / (3.5 * b)))"')
    problem = problem_for(spec, shape="8x32")
    text = emit(problem, default_schedule(problem, target("h200"))).text
    (line,) = (line for line in text.splitlines() if "y_values[i] =" in line)
    assert "= -(-2.5f * " in line
