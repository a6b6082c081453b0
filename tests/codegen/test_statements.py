"""Statements: what they read, what is dropped because nobody reads it, and where long lines are broken."""

from __future__ import annotations

import pytest

from normgen.codegen.statements import (
    WIDTH,
    Comment,
    Do,
    Gap,
    If,
    Let,
    Set,
    Statement,
    function,
    identifiers,
    loop,
    pruned,
    reads_of,
    text_of,
    when,
)


def test_an_expression_reads_its_identifiers_marked_names_among_them() -> None:
    found = identifiers("row_þmean! + þx!_row[2] * kCols, a != b, 1.0f * 0x7fu")
    assert found >= {"row_þmean!", "þx!_row", "kCols", "a", "b"}
    assert not any(name[0].isdigit() for name in found)


def test_what_nobody_reads_is_dropped_with_what_only_that_reads() -> None:
    used, first, second = (
        Let("const int", "row", "first + slot"),
        Let("constexpr int", "kA", "2"),
        Let("constexpr int", "kB", "2 * kA"),
    )
    statements: list[Statement] = [first, second, used, Do("write(row)")]
    assert pruned(statements) == (used, Do("write(row)"))
    assert pruned([*statements, Do("f(kB)")]) == (*statements, Do("f(kB)"))
    assert pruned([first, second], frozenset({"kB"})) == (first, second)


def test_a_variable_does_not_keep_itself() -> None:
    assert pruned([Let("const int", "i", "i + 1"), Do("f()")]) == (Do("f()"),)


def test_a_variable_that_a_nested_block_reads_is_kept_and_an_empty_block_is_not() -> None:
    outer, inner = Let("const int", "vector", "lane"), Let("const int", "column", "head")
    nested = loop("step", "kSteps", [If("vector < kVectors", (inner, Do("f(vector)")))])
    kept, walk = pruned([outer, nested])
    assert kept == outer
    assert "column" not in text_of([walk])
    assert pruned([loop("step", "kSteps", [If("has_edge", (inner,))])]) == ()


def test_a_function_that_does_nothing_stays_because_it_is_called() -> None:
    fetch = function("fetch", "int row", [Let("const int", "column", "head")])
    assert text_of(pruned([fetch, Do("fetch(0)")])) == "const auto fetch = [&](int row) {\n};\nfetch(0);\n"


def test_an_array_is_known_by_its_name() -> None:
    sums = Let("float (*{})[kTensors][kPitch]", "sums", "behind")
    assert sums.reads == {"float", "kTensors", "kPitch", "behind"}
    assert text_of([sums]) == "float (*sums)[kTensors][kPitch] = behind;\n"


def test_reads_of_a_block_are_those_of_its_statements() -> None:
    assert reads_of([Comment("not read"), Gap(), *when("a < b", Do("c()"))]) == {"a", "b", "c"}
    assert when("", Do("c()")) == (Do("c()"),)


PRINTED = """\
const int row = blockIdx.x;  // one block a row

// look
#pragma unroll
for (int i = 0; i < kVector; ++i) {
  if (active) write(i);
}
"""


def test_statements_print_as_they_would_be_written() -> None:
    active = If("active", (Do("write(i)"),), alone=True)
    body: list[Statement] = [
        Gap(),
        Let("const int", "row", "blockIdx.x", "one block a row"),
        Gap(),
        Gap(),
        Comment("look"),
        loop("i", "kVector", [active, Gap()], unroll="#pragma unroll"),
        Gap(),
    ]
    assert text_of(body) == PRINTED


LONG = {
    "at the last comma of the outermost call": (
        f"bulk_load(x_shared + f({'a' * 40}, b), {'b' * 40}, count * sizeof(bfloat16), &arrived[stage], phase)",
        ",\n      count * sizeof(bfloat16), &arrived[stage], phase);\n",
    ),
    "at an operator where there is no comma": (f"x = {'a' * 70} + {'b' * 40} * c", " +\n    "),
    "not within the arguments of a template": (f"y = {'f' * 80}<kThreads, kTiles, kRows>(a, bbbbbbbbbb)", ">(a,\n"),
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_line_is_broken(name: str) -> None:
    expression, at = LONG[name]
    text = text_of([Do(expression)], 2)
    assert at in text
    assert all(len(line) <= WIDTH for line in text.splitlines())
    assert "".join(text.split()) == "".join(f"{expression};".split())


def test_marks_do_not_make_a_line_long() -> None:
    line = f"y = {' + '.join(['þx!'] * 28)}"
    assert len(line) > WIDTH > len(line.replace("þ", "").replace("!", ""))
    assert text_of([Do(line)]).count("\n") == 1


def test_the_other_branch_is_written_read_and_pruned() -> None:
    column = Let("const int", "column", "head")
    both = If("is_named", (column, Do("f(column)")), otherwise=(Let("const int", "unread", "0"), Do("g(step)")))
    first, kept = pruned([Let("const int", "step", "0"), both])
    assert first == Let("const int", "step", "0")  # the other branch alone reads it
    want = "if (is_named) {\n  const int column = head;\n  f(column);\n} else {\n  g(step);\n}\n"
    assert text_of([kept]) == want
    assert (
        text_of(pruned([If("is_named", (column,), otherwise=(Do("g()"),))])) == "if (is_named) {\n} else {\n  g();\n}\n"
    )
    assert pruned([If("is_named", (column,), otherwise=(column,))]) == ()


def test_a_branch_on_one_line_is_indented_when_it_needs_more() -> None:
    left, right, inner = "x" * (WIDTH - 30), "z" * 30, If("b", (Do("f()"),))
    asked: dict[Statement, str] = {
        If("a", (If("b", (Do("f()", "why"),), alone=True),), alone=True): "    if (a) if (b) f();  // why\n",
        If("a", (inner,), alone=True): "    if (a) {\n      if (b) {\n        f();\n      }\n    }\n",
        If("a", (Set("y", f"{left} + {right}"),), alone=True): f"    if (a) y = {left} +\n        {right};\n",
    }
    assert {statement: text_of([statement], 4) for statement in asked} == asked
