"""Contractions in programs: what a `dot` may sum, and what is refused."""

from __future__ import annotations

import pytest
import sympy as sp

from normgen.errors import ProgramError
from normgen.program.ir import Load, Map, Reduce, RowProgram, Statement, Store, check, show_statement, stage_of
from normgen.program.monoid import DOT, MAX, SUM, symbol
from normgen.spec.spec import Kind

x, w, y, dy, gain = (symbol(name) for name in ("x", "w", "y", "dy", "gain"))
LOADS = (
    Load("x", Kind.LEFT),
    Load("w", Kind.MATRIX),
    Load("dy", Kind.ELEM),
    Load("gain", Kind.INNER),
    Load("b", Kind.COL),
)


def program(*statements: Statement) -> RowProgram:
    return RowProgram("linear", (*LOADS, *statements))


def dot(name: str, kind: Kind, left: sp.Expr, right: sp.Expr, over: Kind) -> Reduce:
    return Reduce((name,), kind, DOT, (left, right), over=over)


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (dot("y", Kind.ELEM, x * gain, w, Kind.INNER), "  reduce y : elem = dot_inner(gain*x, w)"),
        (dot("dx", Kind.LEFT, dy, w, Kind.COL), "  reduce dx : left = dot_cols(dy, w)"),
        (dot("dw", Kind.MATRIX, x, dy, Kind.ROW), "  reduce dw : matrix = dot_rows(x, dy)"),
    ],
)
def test_a_contraction_drops_any_of_three_axes_and_its_result_is_stored(statement: Reduce, text: str) -> None:
    name = statement.names[0]
    found = check(program(statement, Store(name, name, statement.kind)))
    assert show_statement(statement) == text
    assert found.dots == (statement,)
    assert not found.row_reduces
    assert not found.col_reduces
    assert stage_of(found)[name] == 1


def test_sides_are_reduced_over_inner_and_are_neither_rows_nor_sums_of_columns() -> None:
    squares = Reduce(("s",), Kind.ROW, SUM, (x**2,), over=Kind.INNER)
    largest = Reduce(("top",), Kind.COL, MAX, (w,), over=Kind.INNER)
    scaled = Map("y", Kind.ELEM, symbol("h") * symbol("s") + symbol("top"))
    found = check(program(squares, largest, dot("h", Kind.ELEM, x, w, Kind.INNER), scaled, Store("y", "y", Kind.ELEM)))
    assert [show_statement(s) for s in (squares, largest)] == [
        "  reduce s : row = sum_inner(x**2)",
        "  reduce top : col = max_inner(w)",
    ]
    assert (found.row_reduces, found.col_reduces) == ((), ())
    assert [stage_of(found)[name] for name in ("s", "top", "h", "y")] == [1, 1, 1, 1]


DROPS = "a contraction drops one of the axes rows, inner and cols, which its sides have together"
SIDES = "each side of a contraction has the axis that it drops, and one of the two others"
OVER_INNER = "a reduction over inner gives a row of a left value, or a col of a matrix value"


@pytest.mark.parametrize(
    ("statement", "rule"),
    [
        (dot("y", Kind.ELEM, x, x, Kind.INNER), DROPS),
        (dot("y", Kind.LEFT, x, w, Kind.INNER), DROPS),
        (dot("y", Kind.ELEM, x, w, Kind.COL), DROPS),
        (dot("y", Kind.ROW, dy, w, Kind.ELEM), DROPS),
        (dot("y", Kind.ELEM, x * gain, dy, Kind.INNER), SIDES),
        (dot("y", Kind.ELEM, x * symbol("b"), w, Kind.INNER), SIDES),
        (dot("y", Kind.LEFT, x * dy, w, Kind.COL), SIDES),
        (dot("y", Kind.LEFT, symbol("b"), x, Kind.COL), SIDES),
        (Reduce(("y",), Kind.ELEM, DOT, (x, w, w), over=Kind.INNER), "monoid .dot. takes 2"),
        (Reduce(("y",), Kind.ROW, SUM, (x,)), OVER_INNER),
        (Reduce(("y",), Kind.ROW, SUM, (w,), over=Kind.INNER), OVER_INNER),
        (Reduce(("y",), Kind.SCALAR, SUM, (gain,), over=Kind.INNER), OVER_INNER),
        (Reduce(("y",), Kind.INNER, SUM, (x,)), OVER_INNER),
        (Map("y", Kind.ELEM, x * w), "no value varies along rows, inner and cols"),
        (Map("y", Kind.PRODUCT, x * w), "no value varies along rows, inner and cols"),
        (Map("y", Kind.ELEM, x), "this map's kind is left"),
        (Map("y", Kind.LEFT, dy), "this map's kind is elem"),
    ],
)
def test_what_is_no_contraction_is_refused(statement: Statement, rule: str) -> None:
    with pytest.raises(ProgramError, match=rule):
        check(program(statement))


def test_a_value_of_one_axis_is_broadcast_to_a_side() -> None:
    check(program(Map("y", Kind.LEFT, gain), Store("y", "y", Kind.LEFT)))
    check(program(Map("y", Kind.MATRIX, symbol("b")), Store("y", "y", Kind.MATRIX)))
