from fractions import Fraction

import pytest

from normgen.errors import SpecError
from normgen.spec.formula import Binary, Call, Name, Number, Power, names_in, parse_formula

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
    "x**(1/3 + y)",
    "2**x",
    "x**y",
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
