from fractions import Fraction

import numpy as np
import pytest

from normgen.errors import SpecError
from normgen.spec.formula import Binary, Call, Name, Number, Power, names_in, parse_formula
from normgen.spec.functions import FUNCTIONS
from normgen.spec.instead import FORMULAS, instead_of_function

HOSTILE = [
    "__import__('os').system('touch /tmp/owned')",
    "x.__class__",
    "(lambda: x)()",
    "[x for x in (1, 2)]",
    "{x: 1}",
    "f'{x}'",
    "x if x else y",
    "(y := x)",
    "x[0]",
    "exec(x)",
    "eval('x')",
    "'text'",
    "True",
    "1j",
    "x is y",
    "x < y in x",
    "col % 0",
    "row % 1.5",
    "row % x",
    "~x",
    "x // 2",
    "x % 2",
    "@ y",
    "x << 2",
    "(x, y)",
    "sum(*x)",
    "sum(x=x)",
    "await x",
    "...",
    "9**9**9**9",
    "x**9**9",
    "x**65",
    "2**x",
    "1e400",
    "1e-99",
    "x * 1e999999999",
    "x * 1e-999999999",
    "0e999999999",
    "x ** 1e999999999",
    "9" * 1900,
    f"1e{'9' * 1900}",
    "1e30*1e30",
    "0x10",
    "x; y",
    "x = y",
    "import os",
    "",
    "x +",
    "x/0",
    "x/(1 - 1)",
    "(" * 500 + "x" + ")" * 500,
    "-" * 300 + "x",
    "x + " * 600 + "x",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_is_not_a_formula_is_refused_with_file_line_and_column(text: str) -> None:
    with pytest.raises(SpecError, match=r"^made_up\.toml:7: .*") as caught:
        parse_formula(text, file="made_up.toml", line=7)
    assert "column" in str(caught.value)


def test_a_formula_is_never_run(tmp_path) -> None:
    mark = tmp_path / "ran"
    for text in (f"open('{mark}', 'w')", f"__import__('pathlib').Path('{mark}').touch()"):
        with pytest.raises(SpecError):
            parse_formula(text)
    assert not mark.exists()


def test_the_error_points_at_the_column() -> None:
    with pytest.raises(SpecError) as caught:
        parse_formula("x * rsqr(x)", file="a.toml", line=3)
    message = str(caught.value)
    assert message.startswith("a.toml:3: unknown function 'rsqr' (column 5 of the formula)")
    assert "did you mean 'rsqrt'?" in message
    shown = message.split("\n")
    text_line = next(i for i, line in enumerate(shown) if line.startswith("  received: "))
    assert shown[text_line + 1].index("^") == shown[text_line].index("rsqr")


def test_operators_bind_as_in_python() -> None:
    x, y, z = Name("x", 0), Name("y", 4), Name("z", 8)
    assert parse_formula("x - y - z") == Binary("-", Binary("-", x, y), z)
    tree = parse_formula("-x**2 / y")
    assert isinstance(tree, Binary)
    assert tree.operator == "/"
    assert isinstance(tree.left, Binary)
    assert tree.left.right == Power(Name("x", 1), Fraction(2), 1)


def test_constants_are_exact_and_folded() -> None:
    assert parse_formula("0.1 + 0.2") == Number(Fraction(3, 10))
    assert parse_formula("x**(1/2)") == Power(Name("x"), Fraction(1, 2))
    assert parse_formula("1_000e-3") == Number(Fraction(1))


def test_functions_take_their_number_of_arguments() -> None:
    assert parse_formula("maximum(x, 0)") == Call("maximum", (Name("x", 8), Number(Fraction(0), 11)))
    with pytest.raises(SpecError, match="maximum takes 2 arguments"):
        parse_formula("maximum(x)")
    with pytest.raises(SpecError, match="max takes 1 argument "):
        parse_formula("max(x, y)")


def test_a_formula_may_span_lines_and_lists_its_names() -> None:
    tree = parse_formula("(x - mean)\n  * rstd / cols")
    assert [n.name for n in names_in(tree)] == ["x", "mean", "rstd", "cols"]


NO_WAY_OUT = "a refusal without a hint"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x ** 100", "a power of a power"),
        ("x +", "a formula is one expression"),
        ("x; y", "a formula is one expression"),
        ("x * True", "write 1 for true"),
        ("x / 0", "inf is a name"),
        ("x * 1e60", "inf is a name"),
        ("x * 0x10", "such as 2, 0.5 or 1e-5"),
        ("row % y", "x - n * floor(x / n)"),
        ("max(x, 100)", "max(x, 32)"),
        ("clamp(x)", "clamp(x, low, high) is minimum(maximum(x, low), high)"),
        ("mean(x, axis=-1)", "write mean(x): a reduction runs over the columns"),
        ("cast(x, 3)", "cast(x, bf16)"),
        ("+".join(["x"] * 2000), "give a part a name of its own"),
        ("-" * 150 + "x", "give a part a name of its own"),
    ],
)
def test_a_refused_formula_says_its_way_out(text: str, says: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_formula(text)
    assert says in (refused.value.hint or NO_WAY_OUT)


WRITTEN = {  # what other languages call it -> the same by numpy, of x between 0.1 and 4
    "var": np.var,
    "std": np.std,
    "norm": np.linalg.norm,
    "rms": lambda x: np.sqrt(np.mean(np.square(x))),
    "normalize": lambda x: x / np.linalg.norm(x),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(),
    "log_softmax": lambda x: np.log(np.exp(x) / np.exp(x).sum()),
    "softmin": lambda x: np.exp(-x) / np.exp(-x).sum(),
    "logsumexp": lambda x: np.logaddexp.reduce(x),
    "prod": np.prod,
    "count": np.count_nonzero,
    "relu6": lambda x: np.clip(x, 0, 6),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "logsigmoid": lambda x: -np.log1p(np.exp(-x)),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "cube": lambda x: np.power(x, 3),
    "cbrt": np.cbrt,
    "exp2": np.exp2,
    "log2": np.log2,
    "log10": np.log10,
    "log1pf": np.log1p,
    "expm1f": np.expm1,
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "trunc": np.trunc,
    "frac": lambda x: np.modf(x)[0],
    "isfinite": np.isfinite,
}
NUMPY = {
    **{
        name: getattr(np, name)
        for name in ("exp", "log", "log1p", "expm1", "sqrt", "abs", "sign", "tanh", "sin", "cos", "floor", "where")
    },
    **{"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "maximum": np.maximum, "minimum": np.minimum},
    **{"clamp": np.clip, "inf": np.inf, "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": lambda x: 1 / (1 + np.exp(-x))},
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_to_be_written_instead_of_a_function_computes_it(name: str) -> None:
    x = np.random.default_rng(5).uniform(0.1, 4, 50)
    formula = (instead_of_function(name) or "").removeprefix("write ").partition(", where")[0]
    parse_formula(formula)
    np.testing.assert_allclose(eval(formula, {"x": x, **NUMPY}), WRITTEN[name](x), rtol=1e-9)


@pytest.mark.parametrize(("formula", "names"), FORMULAS.items())
def test_what_is_to_be_written_instead_is_a_formula_and_its_names_are_none_of_the_language(
    formula: str, names: str
) -> None:
    parse_formula(formula.replace("number", "2"))
    assert not set(names.split()) & FUNCTIONS.keys()


NO_SLIPS = (
    *(
        "mean_rows",
        "softmin",
        "celu",
        "hardtanh",
        "tan",
        "atan",
        "mod",
        "first",
        "last",
        "stack",
        "trace",
        "focal",
        "huber",
    ),
    *(
        "cat",
        "concat",
        "count",
        "view",
        "nanmean",
        "cov",
        "sinh",
        "cosh",
        "isinf",
        "arcsin",
        "cols",
        "broadcast",
        "psum",
    ),
)


@pytest.mark.parametrize("name", NO_SLIPS)
def test_no_function_is_taken_for_a_slip_of_one_that_computes_something_else(name: str) -> None:
    with pytest.raises(SpecError, match="unknown function") as refused:
        parse_formula(f"{name}(x)")
    assert "did you mean" not in str(refused.value.hint)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("sigmiod", "sigmoid"), ("maximun", "maximum"), ("rqsrt", "rsqrt"), ("abs_max", "absmax"), ("absolute", "abs")],
)
def test_a_slip_has_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(SpecError, match="unknown function") as refused:
        parse_formula(f"{name}(x)")
    assert f"did you mean '{meant}'?" in str(refused.value.hint)


_OVER_ROWS = (
    "mean_rows(x)",
    "var_rows(x)",
    "mean_over_rows(x)",
    "colsum(x)",
    "batch_mean(x)",
    "batch_norm(x)",
    "mean(x, axis=0)",
    "var(x, dim=0)",
    "mean(x, 0)",
    "x.mean(0)",
    "x.sum(axis=0)",
)


@pytest.mark.parametrize("text", _OVER_ROWS)
def test_a_sum_over_rows_names_the_two_specs_that_say_it(text: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_formula(f"x - {text}")
    hint = str(refused.value.hint)
    assert "sums over the rows of a column" in hint
    assert "two specs" in hint
    assert "did you mean" not in hint


@pytest.mark.parametrize("text", ["mean_cols(x)", "rowmean(x)", "mean(x, axis=-1)", "mean(x, 1)", "x.mean(-1)"])
def test_a_reduction_of_each_row_is_written_without_its_axis(text: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_formula(text)
    assert str(refused.value.hint).startswith("write mean(x): a reduction runs over the columns")


@pytest.mark.parametrize("text", ["cumsum(x)", "cumsum(x, -1)", "x.cumsum(-1)", "prefix_sum(x)", "logcumsumexp(x)"])
def test_scans_are_refused_with_what_an_element_is_made_of(text: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_formula(text)
    assert str(refused.value.hint).startswith("not supported: scans along a row; an element is made of")
