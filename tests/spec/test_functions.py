"""The language's table of functions, and the tables that give its functions their meaning."""

from __future__ import annotations

import re

import numpy as np
import pytest

from normgen.errors import SpecError
from normgen.program.functions import MEANINGS
from normgen.program.lower import lower
from normgen.spec.formula import Call, parse_formula
from normgen.spec.functions import (
    CALLS,
    CONDITIONS,
    CONSTANTS,
    ELEMENTWISE,
    FUNCTIONS,
    POSITIONS,
    REDUCTIONS,
    Domain,
    Function,
    Rounding,
)
from normgen.spec.reader import parse
from normgen.verify import interpret
from normgen.verify.interpret import FUNCTIONS as REFERENCES
from normgen.verify.interpret import POSITIONS as FOUND
from normgen.verify.interpret import REDUCTIONS as REDUCED
from tests.program.evaluate import VALUES, evaluate

BY_OTHERS = {"sqrt", "rsqrt", "sigmoid"}  # powers, and 1 / (1 + exp(-x))


def test_every_function_has_a_meaning_and_a_reference_of_its_own() -> None:
    assert CALLS.keys() == MEANINGS.keys() | BY_OTHERS
    assert VALUES.keys() == MEANINGS.keys()
    assert {name: function.takes for name, function in ELEMENTWISE.items()} == REFERENCES
    assert REDUCTIONS.keys() == set(REDUCED)
    assert POSITIONS.keys() == set(FOUND)


OF = {
    None: lambda x: np.isfinite(x),
    Domain.POSITIVE: lambda x: x > 0,
    Domain.NOT_NEGATIVE: lambda x: x >= 0,
    Domain.NOT_ZERO: lambda x: x != 0,
    Domain.ABOVE_MINUS_ONE: lambda x: x > -1,
}


@pytest.mark.parametrize("function", [f for f in ELEMENTWISE.values() if f.takes < 3], ids=lambda f: f.name)
def test_a_function_is_a_number_where_the_table_says_so_and_gives_what_it_says(function: Function) -> None:
    call = f"{function.name}({', '.join(function.arguments)})"
    tensors = "\n".join(f'{name} = "input"' for name in function.arguments)
    spec = parse(f'name = "f"\n[tensors]\n{tensors}\ny = "output"\n[formulas]\ny = "{call}"')
    x = np.array([[-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.5]])
    inputs = dict(zip(function.arguments, (x, x[:, ::-1]), strict=False))
    y = interpret(spec, inputs)["y"]
    are_of = [OF[function.needs.get(name)](value) for name, value in inputs.items()]
    assert np.array_equal(np.isfinite(y), np.logical_and.reduce(are_of))
    assert np.all(OF[function.gives](y[np.isfinite(y)]))
    if function.keeps_sign:
        assert np.array_equal(np.sign(y[x > -1]), np.sign(x[x > -1]))
    if function.rounding is Rounding.WHOLE:
        assert np.array_equal(y, np.round(y))
    if function.rounding is Rounding.EXACT:
        assert np.isin(np.abs(y), np.abs(x)).all()


def test_every_function_and_constant_is_said_in_words() -> None:
    words = [*(function.words for function in (FUNCTIONS | CONDITIONS).values()), *CONSTANTS.values()]
    assert all(words)
    assert len(set(words)) == len(words)


FORMULAS = (
    "where(x > 0, x, 0.25 * x)",
    "where(x <= w and not x == 1 or x != x, sin(x), cos(x))",
    "clamp(x * w, -0.5, w)",
    "floor(x) + ceil(2 * x) - round(x / 2) * sign(x)",
    "(0 < x <= 2) - (x >= w) * 3",
    "abs(x)**0.3 + abs(x)**(-1/3)",
    "log1p(x * x * w * w) - expm1(x / 8) + log1p(x)",
    "min(x) + max(where(col % 3 == row % 3, x, -inf))",
    "where(row < 2 and col >= cols - 2, row - col, x)",
    "sum(where(col < 4, x, 0)) / cols",
    "argmax(x) + 100 * argmin(x * w) + 10000 * argmax(-abs(x - w))",
    "take(x, 3) + take(w, 20) - take(x * w, argmax(w)) + take(x, row)",
)


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_program_computes_what_the_formula_says(formula: str) -> None:
    """The compiler's program against the walk over the formula's text, on ties, zeros and NaN too."""
    spec = parse(
        f'name = "f"\n[tensors]\nx = "input"\nw = "input"\ny = "output"\n[formulas]\ny = "{formula} + 0 * x * w"'
    )
    rng = np.random.default_rng(5)
    x = np.round(4 * rng.standard_normal((6, 11))) / 2
    x[1, 2], x[2, 3], x[3, 4] = np.nan, np.inf, 0.0
    inputs = {"x": x, "w": np.round(2 * rng.standard_normal((6, 11))) / 2}
    np.testing.assert_allclose(evaluate(lower(spec), inputs)["y"], interpret(spec, inputs)["y"], rtol=1e-13)


def test_conditions_bind_as_in_python_and_chains_are_both() -> None:
    tree = parse_formula("not x < y and 0 < x <= y or x != y")
    assert isinstance(tree, Call)
    assert tree.function == "or"
    both = tree.args[0]
    assert isinstance(both, Call)
    assert [both.function, *(arg.function for arg in both.args if isinstance(arg, Call))] == ["and", "not", "and"]


IDIOMS = {
    "max(x, 0)": "write maximum(x, 0) for the larger of two",
    "min(x, 2 * x)": "write minimum(x, 2 * x) for the smaller of two",
    "pi * x": "write 3.141592653589793",
    "x * nan": "not supported: NaN as a constant",
    "rows * x": "not supported: the number of rows",
    "int(x)": "write sign(x) * floor(abs(x))",
    "float(x)": "leave it out",
    "fma(x, x, x)": "write a * b + c",
    "cast(x, fp8)": "did you mean 'f8e4m3' or 'f8e5m2'?",
    "cast(x, float16)": "did you mean 'f16'?",
    "x ^ 2": "a power is written **",
    "x if x > 0 else 0": "write where(condition, a, b)",
    "var(x)": "write mean((x - mean(x))**2)",
    "gelu(x)": "write 0.5 * x * (1 + erf(x * 0.7071067811865476))",
    "gather(x, i)": "write take(x, index)",
    "cumsum(x)": "not supported: scans along a row",
    "x % 2": "the remainder of other numbers is x - n * floor(x / n)",
    "x // 2": "write floor(a / b)",
    "x & y": "write: a and b",
}


@pytest.mark.parametrize(("formula", "hint"), IDIOMS.items())
def test_a_refusal_names_the_idiom(formula: str, hint: str) -> None:
    with pytest.raises(SpecError, match=re.escape(f"hint: {hint}")):
        parse(f'name = "f"\n[tensors]\nx = "input"\ny = "output"\n[formulas]\ny = "{formula}"')
