"""Formulas away from a column that a row value names, as a label: what most of a row's columns compute."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from normgen.program.frozen import FLOAT
from normgen.program.trees import ZERO
from normgen.spec.formula import Binary, Call, Expression, Name, nodes

_COLUMN = Call(FLOAT, (Name("col"),))


def named_columns(trees: Iterable[Expression], numbers: Collection[str]) -> list[str]:
    """The row values of whole numbers `numbers` whose column alone has other values than the rest of its row."""
    found = {name for tree in trees for node in nodes(tree) for name in _named(node)}
    return [number for number in numbers if number in found]


def away_from(numbers: Collection[str], tree: Expression) -> Expression:
    """The tree in a column that none of the row values names: col == label does not hold."""
    match tree:
        case Call(function="where", args=(condition, _, other)) if _named(condition) & {*numbers}:
            return away_from(numbers, other)
        case Call(function=function, args=(condition,)) if function == FLOAT and _named(condition) & {*numbers}:
            return ZERO
        case Call(args=args):
            return replace(tree, args=tuple(away_from(numbers, arg) for arg in args))
        case Binary(operator=operator):
            left, right = away_from(numbers, tree.left), away_from(numbers, tree.right)
            if operator in "+-" and ZERO in (left, right) and tree.left != ZERO:
                return left if right == ZERO else right if operator == "+" else replace(tree, left=left, right=right)
            if operator in "*/" and ZERO in (left, right):
                return ZERO
            return replace(tree, left=left, right=right)
    return tree


def _named(node: Expression) -> frozenset[str]:
    """Of col == label, the row value."""
    is_equal = isinstance(node, Call) and node.function == "==" and _COLUMN in node.args
    return node.names if is_equal else frozenset()
