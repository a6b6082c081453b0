"""A kind is a set of axes, and nothing but its home lists the kinds by name."""

import ast
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

import normgen
from normgen.dtypes import F32
from normgen.problem.tensors import TensorUse
from normgen.spec.spec import Kind, Role, Sizes, Tensor, join

KINDS = [Kind.SCALAR, Kind.ROW, Kind.COL, Kind.ELEM]
SIDES = [Kind.INNER, Kind.LEFT, Kind.MATRIX, Kind.PRODUCT]
HOME = "spec/spec.py"
ORACLE_OF_PRODUCTS = "verify/contraction/"  # whose arrays have the three axes in tables


@pytest.mark.parametrize(("a", "b"), list(product(KINDS + SIDES, KINDS + SIDES)))
def test_joining_unites_axes(a: Kind, b: Kind) -> None:
    assert set(join([a, b]).axes) == {*a.axes, *b.axes}
    assert join([a, b]) is join([b, a])


@pytest.mark.parametrize(("kind", "own"), [(Kind.LEFT, Kind.INNER), (Kind.INNER, Kind.INNER), (Kind.ELEM, Kind.COL)])
def test_a_reduction_drops_the_axis_that_its_argument_has_within_a_row(kind: Kind, own: Kind) -> None:
    assert kind.own_axis is own
    assert Kind.MATRIX.own_axis is Kind.COL


def test_what_varies_by_row_varies_by_batch() -> None:
    assert join([Kind.BATCHES, Kind.COL, Kind.SCALAR]) is Kind.BATCHES
    for other in (Kind.ROW, Kind.GROUPS, Kind.ELEM):
        assert join([Kind.BATCHES, other]) is Kind.ELEM
        assert join([Kind.HEADS, other]) is Kind.ELEM
    assert join([Kind.HEADS, Kind.COL]) is Kind.HEADS
    assert Kind.HEADS.shape(Sizes(6, 5, batches=3)) == (3, 5)
    assert Kind.HEADS.axes == ("heads", "cols")
    assert [kind.in_rows for kind in (Kind.HEAD, Kind.BATCH, Kind.HEADS)] == [Kind.ROW, Kind.ROW, Kind.HEADS]
    assert Kind.BATCHES.axes == ("batches", "cols")
    assert Kind.BATCHES.shape(Sizes(6, 5, batches=2)) == (2, 5)
    assert Kind.BATCHES.broadcast_shape(Sizes(6, 5)) == (6, 5)  # as the rows have it


def test_inner_is_an_axis_within_rows_and_leads_where_values_broadcast() -> None:
    sizes = Sizes(3, 5, inner=7)
    assert [kind.axes for kind in (Kind.INNER, Kind.LEFT, Kind.MATRIX)] == [
        ("inner",),
        ("rows", "inner"),
        ("inner", "cols"),
    ]
    assert [kind.shape(sizes) for kind in (Kind.INNER, Kind.LEFT, Kind.MATRIX)] == [(7,), (3, 7), (7, 5)]
    assert [kind.broadcast_shape(sizes) for kind in (Kind.INNER, Kind.LEFT, Kind.MATRIX)] == [
        (7, 1, 1),
        (7, 3, 1),
        (7, 1, 5),
    ]
    assert [(kind.is_matrix, kind.is_columns) for kind in (Kind.LEFT, Kind.MATRIX)] == [(True, False)] * 2
    assert join([Kind.LEFT, Kind.MATRIX]) is Kind.PRODUCT
    assert [str(kind) for kind in SIDES] == ["inner", "left", "matrix", "product"]


def test_the_axes_of_a_tensor_are_the_order_of_its_memory() -> None:
    w = Tensor(name="w", role=Role.PARAMETER, axes=("cols", "inner"))
    use = TensorUse(name="w", kind=w.kind, dtype=F32, is_written=False, order=w.axes)
    assert w.kind is Kind.MATRIX
    assert (use.axes, use.shape(Sizes(3, 5, inner=7)), use.width(Sizes(3, 5, inner=7))) == (w.axes, (5, 7), 7)
    x = Tensor(name="x", role=Role.INPUT, axes=("rows", "inner"))
    assert x.kind is Kind.LEFT
    assert TensorUse(name="x", kind=x.kind, dtype=F32, is_written=False, order=x.axes).is_row_input


GROUPED = {Kind.GROUP: Kind.COL, Kind.BATCH_GROUPS: Kind.BATCHES, Kind.HEAD_GROUPS: Kind.HEADS}


@pytest.mark.parametrize("kind", GROUPED)
def test_a_group_of_columns_that_is_the_same_in_each_row_is_read_as_its_columns(kind: Kind) -> None:
    of_columns = GROUPED[kind]
    assert kind.in_rows is of_columns
    assert kind.is_spread
    assert not of_columns.is_spread
    assert not Kind.GROUPS.is_spread
    assert not kind.by_col  # no vector is read of it
    assert kind.within_row
    assert kind.is_matrix is of_columns.is_matrix
    assert kind.shape(Sizes(6, 12, batches=3), 4) == (*of_columns.shape(Sizes(6, 12, batches=3))[:-1], 3)
    assert kind.axes == (*of_columns.axes[:-1], "groups")
    assert str(kind) in ("group", "batch_groups", "head_groups")


def test_a_shape_has_a_length_for_each_axis() -> None:
    assert [kind.shape(Sizes(3, 5)) for kind in KINDS] == [(), (3,), (5,), (3, 5)]
    assert [kind.broadcast_shape(Sizes(3, 5)) for kind in KINDS] == [(1, 1), (3, 1), (1, 5), (3, 5)]
    assert [str(kind) for kind in KINDS] == ["scalar", "row", "col", "elem"]


def _named(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Kind"


def _decisions(tree: ast.AST) -> Iterator[int]:
    """Lines that decide by a kind's name: comparisons, patterns, tables. `scalar` is the empty set of axes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            compared = [n for n in (node.left, *node.comparators) if _named(n)]
            if any(isinstance(n, ast.Attribute) and n.attr != "SCALAR" for n in compared):
                yield node.lineno
        elif isinstance(node, ast.MatchValue) and _named(node.value):
            yield node.value.lineno
        elif isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Dict)):
            listed = node.keys if isinstance(node, ast.Dict) else node.elts
            if sum(n is not None and _named(n) for n in listed) > 1:
                yield node.lineno


def test_the_finder_sees_every_form() -> None:
    text = "a is Kind.ROW; b in (Kind.ELEM, Kind.COL); c = {Kind.ROW: 1, Kind.COL: 2}; d is Kind.SCALAR\n"
    text += "match e:\n    case Kind.ELEM: pass\n"
    assert sorted(set(_decisions(ast.parse(text)))) == [1, 3]
    assert len(list(_decisions(ast.parse(text)))) == 4


def test_no_module_but_the_home_of_kinds_decides_by_their_names() -> None:
    package = Path(normgen.__file__).parent
    found = {
        f"{path.relative_to(package)}:{line}"
        for path in package.rglob("*.py")
        if not path.relative_to(package).as_posix().startswith((HOME, ORACLE_OF_PRODUCTS))
        for line in _decisions(ast.parse(path.read_text()))
    }
    assert not found
