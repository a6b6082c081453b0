"""What specs and records say stays a comment in a header, and its formulas are those the kernel was made from."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normgen.cpu import find_compiler
from normgen.errors import SpecError
from normgen.export import headers_of
from normgen.export.comments import LONGEST_LINE, comment_text, formula_text
from normgen.spec.formula import Binary, Call, Expression, Name, Number, Power, parse_formula
from normgen.spec.reader import parse

from .cases import record

WRITTEN = {
    "sum((x - mean)**2) / cols": "sum((x - mean)**2) / cols",
    "((x)*(y))*z": "x * y * z",
    "x*(y*z)": "x * (y * z)",
    "x-(y-z)": "x - (y - z)",
    "(x/y)/z - x/(y/z)": "x / y / z - x / (y / z)",
    "-x**2": "-x**2",
    "(-x)**2": "(-x)**2",
    "x*-y - -3": "x * -y - -3",
    "(0 - x)*y": "-x * y",
    "-(x + y)": "-(x + y)",
    "x**(1/2) + y**-0.5": "x**0.5 + y**-0.5",
    "1/3*x + x*(1/3)": "1 / 3 * x + x * (1 / 3)",
    "x * 1e-5 + 2.50": "x * 0.00001 + 2.5",
    "maximum(x,\n  0.1*x)": "maximum(x, 0.1 * x)",
}


@pytest.mark.parametrize(("text", "printed"), WRITTEN.items())
def test_a_formula_is_printed_with_the_brackets_it_takes(text: str, printed: str) -> None:
    assert formula_text(parse_formula(text)) == printed


def shape(tree: Expression) -> Any:
    """The tree without the columns its parts stood in."""
    match tree:
        case Number(value=value):
            return value
        case Name(name=name):
            return name
        case Power(base=base, exponent=exponent):
            return "**", shape(base), exponent
        case Binary(operator=operator, left=left, right=right):
            return operator, shape(left), shape(right)
        case Call(function=function, args=args):
            return function, *map(shape, args)


NUMBERS = st.one_of(
    st.integers(0, 40).map(str),
    st.decimals(0, 100, places=3).map(str),
    st.sampled_from(["1e-5", "3e37", "1e-38", "1e38", "1/3", "7/3e-30"]),
)


def longer(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Formulas around formulas, with brackets that are needed and brackets that are not."""
    bracketed = st.one_of(inner, inner.map("({})".format))
    exponent = st.sampled_from(["2", "-2", "0.5", "(1/3)", "(-2/3)", "-(1/2)"])
    return st.one_of(
        st.tuples(bracketed, st.sampled_from("+-*/"), bracketed).map("".join),
        bracketed.map("-{}".format),
        st.tuples(inner, exponent).map(lambda both: f"({both[0]})**{both[1]}"),
        st.tuples(st.sampled_from(["exp", "sum", "rsqrt"]), inner).map(lambda both: f"{both[0]}({both[1]})"),
        st.tuples(inner, inner).map(lambda both: f"maximum({both[0]}, {both[1]})"),
    )


@given(st.recursive(st.one_of(st.sampled_from(["x", "y", "row_max", "cols"]), NUMBERS), longer, max_leaves=12))
def test_a_printed_formula_parses_to_the_tree_it_was_printed_from(text: str) -> None:
    try:
        tree = parse_formula(text)
    except SpecError:
        return  # a division by zero or a constant beyond float32
    assert shape(parse_formula(formula_text(tree))) == shape(tree)


def test_a_constant_whose_quotient_is_long_parses_to_itself() -> None:
    for value in (Fraction(1, 3 * 10**37), Fraction(1, 15 * 10**37), Fraction(5 * 10**38, 3), Fraction(-(10**38), 7)):
        assert parse_formula(formula_text(Number(value))) == Number(value)


@given(st.text(max_size=300))
def test_a_comment_ends_where_its_text_ends(text: str) -> None:
    shown = comment_text(text)
    assert shown.isprintable()
    assert not shown.endswith(("\\", " "))
    assert "??" not in shown
    assert "*/" not in shown
    assert comment_text(shown) == shown


def test_a_clean_text_is_shown_as_it_is_and_a_very_long_one_is_cut() -> None:
    said = "  rows x cols  104.1 %, Å. Author 2019: Σ x² / n? a\\b"
    assert comment_text(said) == said
    cut = comment_text("word " * LONGEST_LINE)
    assert len(cut) <= LONGEST_LINE
    assert cut.endswith(" ...")


CODE = "static int planted = 1;"
HOSTILE = {
    "line break": f"a\n{CODE}\n",
    "carriage return": f"a\r{CODE}\r",
    "form feed and vertical tab": f"a\f\v{CODE}",
    "backslash": "a\\",
    "backslash and spaces": "a\\   ",
    "trigraph": "a??/",
    "trigraph behind a question mark": "a???/",
    "end of comment": f"a*/ {CODE} /*",
    "unicode line ends": f"a\u2028{CODE}\u2029{CODE}\x85{CODE}",
    "half a character": "a\ud800",
    "nothing but words": "word " * 5000,
}


def header_with(text: str) -> str:
    """The header of a record of a spec, each with that text wherever a text is free."""
    toml = '[tensors]\nx = { role = "input" }\ny = "output"\n[formulas]\ny = "2 * x"\n'
    spec = replace(parse('name = "twice"\n' + toml), summary=text, paper=text)
    spec = replace(spec, tensors=tuple(replace(t, doc=text) for t in spec.tensors))
    one = record(spec)
    versions = {name: f"{value}{text}" for name, value in one.versions.items()} | {"driver_cuda": text}
    device = {**one.device, "name": f"GPU {text[:60]}"}
    changed = replace(
        one, command=text, versions=versions, device=device, error={**one.error, text: 0.5}, reason=text, created=text
    )
    (header,) = headers_of([changed], spec=spec)
    return header.text


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler to preprocess with")
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_text_of_a_spec_or_record_reaches_the_compiler(text: str) -> None:
    compiler = find_compiler()
    assert compiler is not None
    clean, hostile = header_with("a"), header_with(text)
    command = [*compiler.command, "-E", "-P", "-trigraphs", "-D__CUDACC__", "-D__CUDACC_RTC__", "-x", "c++", "-"]
    seen = [
        subprocess.run(command, input=header.encode(), capture_output=True, check=True).stdout
        for header in (clean, hostile)
    ]
    assert seen[0] == seen[1]
    host = [header.partition("#ifndef __CUDACC_RTC__  // host side")[2] for header in (clean, hostile)]
    assert host[0] == host[1]
    assert max(map(len, hostile.splitlines())) <= LONGEST_LINE + 3
