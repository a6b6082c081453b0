"""`a @ b` in formulas: the kinds it gives, and what is refused with file, line, caret and way out."""

from __future__ import annotations

import re

import pytest

from normgen.errors import SpecError
from normgen.export.comments import formula_text
from normgen.spec.formula import Call, parse_formula
from normgen.spec.reader import parse
from normgen.spec.spec import Spec
from normgen.spec.writing import written

TENSORS = {
    "x": 'x = { role = "input", axes = ["rows", "inner"] }',
    "w": 'w = { role = "parameter", axes = ["inner", "cols"] }',
    "v": 'v = { role = "parameter", axes = ["cols", "inner"] }',
    "gain": 'gain = { role = "parameter", axes = ["inner"] }',
    "bias": 'bias = "parameter"',
    "h": 'h = "input"',
    "scale": 'scale = { role = "parameter", group = 4 }',
    "shift": 'shift = "batch_parameter"',
    "seed": 'seed = "seed"',
    "out": 'out = "output"',
    "loss": 'loss = "scalar_output"',
}
FIRST = 3  # the line of the first tensor


def spec_of(*formulas: str) -> Spec:
    names = set(re.findall(r"[a-z]+", " ".join(formulas)))
    tensors = [line for name, line in TENSORS.items() if name in names]
    lines = ['name = "product"', "[tensors]", *tensors, 'y = "output"', "[formulas]"]
    return parse("\n".join([*lines, *('{} = "{}"'.format(*f.split(" = ", 1)) for f in formulas)]), file="product.toml")


@pytest.mark.parametrize(
    "formula",
    [
        "y = x @ w",
        "y = (x * rsqrt(mean(x * x) + 1) * gain) @ v + bias",
        "y = (x @ w) * sum(x) / inner + (x @ v) * (sum(x) / inner)",
        "y = h + (x @ w) / cols",
        "y = (x @ w) * (sum(x) / inner / cols)",
        "y = where(term % 3 <= row % inner, x, 0) @ where(term % inner == col % 2, w, 0)",
        "y = x @ w * absmax(x) + sum(where(x > 0, x, 0)) / inner",
    ],
)
def test_products_with_what_stands_before_and_behind_them_are_read(formula: str) -> None:
    spec = spec_of(formula)
    assert spec.has_inner
    assert spec.elem_totals == ()


LEFT, RIGHT = "left of it is [{}]", "right [{}]"
REFUSED = {
    "no shared axis": (
        ["y = x @ h"],
        "@",
        f"{LEFT.format('rows, inner')}, {RIGHT.format('rows, cols')}",
        'axes = ["ro',
    ),
    "two shared axes": (["y = x @ w + w @ v"], "@ v", "[inner, cols], right [inner, cols]", '["cols", "inner"] of a'),
    "three factors": (["y = x @ w @ v"], "@ v", "the sides of '@' are made of tensors", "name the first product, h ="),
    "a named product": (["z = x @ w", "y = z @ v"], "@ v", "the sides of '@' are made of tensors", "name the first pr"),
    "its own sum": (
        ["y = sum(x @ w)"],
        "sum",
        "what is made of all columns is known behind the last",
        "store it; a spec",
    ),
    "a named sum of it": (
        ["z = max(x @ w) + 1", "y = z"],
        "z",
        "what is made of all columns is known",
        "store it; a sp",
    ),
    "a row by itself": (["y = x @ x + h"], "@", "only the axis that '@' sums is that of both", "write sum(x * x) for"),
    "a vector": (["y = x @ gain + h"], "@", "the sides of '@' have two axes each", "write sum(x * gain) for"),
    "two axes of sums": (
        ["y = x @ w + sum(h @ v)"],
        "@ v",
        "all products of a spec sum the same",
        "that of 'y' gives values [rows, cols]",
    ),
    "a product of elements": (
        ["y = x @ w + sum(x * w)"],
        "x * w",
        "no value varies along rows, inner and",
        "write x @",
    ),
    "a mean by cols": (
        ["y = x @ w + sum(x * x) / cols"],
        "sum",
        "over inner is divided by cols",
        "write mean(x), or / i",
    ),
    "named, by cols": (
        ["s = sum(x)", "y = x @ w + 2 * s / cols"],
        "2",
        "over inner is divided by cols",
        "write mean(x)",
    ),
    "by 1 / cols": (["y = x @ w * (sum(x) * (1 / cols))"], "sum", "over inner is divided by cols", "write mean(x), or"),
    "by divide": (["y = x @ w * divide(sum(x), cols)"], "divide", "over inner is divided by cols", "write mean(x), or"),
    "below the sum": (["y = x @ w * sum(x / cols)"], "sum", "over inner is divided by cols", "write mean(x), or / i"),
    "within a call": (["y = x @ w * rsqrt(mean(x * (sum(x) / cols)))"], "sum", "is divided by cols", "write mean(x)"),
    "sums of a matrix": (["y = x @ w + sum(w)"], "sum", "sum reduces a row", ""),
    "a position of inner": (["y = x @ w + argmax(x)"], "argmax", "of inner there are sum, mean, max, min and absm", ""),
    "groups of inner": (
        ["y = x @ w + max(x, 4)"],
        "max",
        "of inner there are sum, mean, max, min and absmax of all",
        "",
    ),
    "a row of the result": (
        ["z = x @ w", "y = z / sum(z)"],
        "sum",
        "no element of a kernel of products reads it",
        "a spec of its own reads it",
    ),
    "a row beside it": (["y = x @ w + max(h)"], "max", "no element of a kernel of products reads it", "store it"),
    "a name of a row": (["z = x @ w", "m = max(z)", "y = z - 2 * m"], "m", "no element of a kernel of", "store it"),
    "a row within a row": (["z = x @ w", "y = z + sum(exp(z - max(z)))"], "sum", "no element", ""),
    "a position of a row": (
        ["z = x @ w", "y = z + argmax(z)"],
        "argmax",
        "asks for a whole row",
        "are made of those of",
    ),
    "a row of groups of it": (
        ["z = x @ w", "q = z / max(z, 8)", "y = q - max(q)"],
        "max",
        "no element of a kernel of products reads it",
        "a spec of its own reads it",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_product_is_refused_with_line_caret_and_way_out(case: str) -> None:
    formulas, at, says, hint = REFUSED[case]
    with pytest.raises(SpecError) as caught:
        spec_of(*formulas)
    first, formula, caret, *last = str(caught.value).splitlines()
    text = formulas[-1].split(" = ", 1)[1]
    assert re.match(r"product\.toml:\d+: ", first)
    assert says in first
    assert formula == f"  received: {text}"
    assert caret.index("^") - len("  received: ") == text.index(at)
    assert hint in "".join(last)


NOT_YET = [
    ("y = x @ w * scale", "parameter 'scale'|has no parameter yet"),
    ("y = x @ w + shift", "has no batch_parameter yet"),
    ("y = where(random(seed) < 0.5, x @ w, 0)", "has no seed yet"),
    ("y = x @ w; loss = total(x @ w)", "has no scalar_output yet"),
]


@pytest.mark.parametrize(("formulas", "says"), NOT_YET)
def test_what_kernels_of_products_lack_is_refused_with_the_line_of_the_tensor(formulas: str, says: str) -> None:
    with pytest.raises(SpecError, match=rf"product\.toml:{FIRST + 2}: .*({says})"):
        spec_of(*formulas.split("; "))


def test_inner_that_nothing_multiplies_is_refused() -> None:
    with pytest.raises(
        SpecError, match=r"product\.toml:3: input 'x' varies along inner, which no formula sums in a produ"
    ):
        spec_of("y = h * sum(x)")
    with pytest.raises(SpecError, match=r"product.toml:10: output 'y' does not vary along inner, but .* is \[inner\]"):
        spec_of("out = x @ w", "y = gain")
    with pytest.raises(SpecError, match="unknown name 'inner'"):
        spec_of("y = h / inner")


def test_a_product_is_written_as_it_was_read() -> None:
    for text in ("a @ b * c", "a * (b @ c)", "(a + b) @ -c", "(a * b) @ (c * d)", "a * b @ c"):
        tree = parse_formula(text)
        assert parse_formula(written(tree)) == parse_formula(formula_text(tree)) or isinstance(tree, Call)
        assert (written(tree), formula_text(tree)) == (written(parse_formula(written(tree))),) * 2


def test_a_sum_that_a_length_of_its_own_divides_too_is_read() -> None:
    for text in ("divide(sum(x), inner)", "sum(x / inner)", "sum(x / inner / cols)", "divide(sum(x), inner * cols)"):
        assert spec_of(f"y = x @ w * {text}").has_inner
