"""The state of a trace: what is known of each tensor so far, and the expressions of arguments and of sizes."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from normgen.spec.formula import Binary, Cast, Expression, Name
from normgen.spec.spec import Role
from normgen.spec.writing import minus, number
from normgen.torch.calls import name_of
from normgen.torch.tracing import aten
from normgen.torch.tracing.formulas import Formulas, names_for
from normgen.torch.tracing.reasons import NO_NUMBER, NO_VALUE, called, why_no_constant
from normgen.torch.tracing.recording import COLS, INNER, Dims, Node, Recorded
from normgen.torch.tracing.values import Read, Value, shape_of

LENGTHS = {COLS: "cols", INNER: "inner"}


class Known:
    """known: Value, or a tuple of some, by node; `assigned`: the name that a line of the author's gives a node."""

    def __init__(self, record: Recorded, *, every_rounding: bool) -> None:
        self.record, self.rows_of, self.every_rounding = record, record.rows_of, every_rounding
        self.row_axes = tuple(range(len(record.axes) - 1))
        last = {COLS: record.axes[-1]} if record.inner is None else {INNER: record.inner, COLS: record.axes[-1]}
        self.sizes = {**dict(enumerate(record.axes[:-1])), **last}
        self.of_row = COLS if record.inner is None else INNER  # what reductions of a row run over
        self.known: dict[Node, Any] = {}  # Value, or a tuple of some
        self.formulas = Formulas()
        self.placeholders = [n for n in record.core.graph.nodes if n.op == "placeholder"]
        self.reads: dict[str, Read] = {}
        self.dtypes: dict[str, Any] = {}
        self.assigned = _assigned(record.core.graph)

    def rounded(self, value: Value, dtype: Any) -> Value:
        if value.held_in == dtype or value.is_whole:
            return replace(value, dtype=dtype)
        stored = (n for n, d in self.dtypes.items() if d == dtype and self.reads[n].role is Role.INPUT)
        to = next(stored, name_of(dtype))
        return replace(value, tree=Cast(value.tree, to), dtype=dtype, held_in=dtype)

    def value(self, node: Node) -> Value:
        found = self.known[node]
        assert isinstance(found, Value)
        return found

    def let(self, tree: Expression, wanted: str) -> Expression:
        return self.formulas.let(tree, wanted)

    def tree(self, arg: Any) -> Any:
        """An argument of an operation as an expression; texts and None as they are."""
        if isinstance(arg, torch.fx.Node):
            value = self.known.get(arg)
            if isinstance(value, Value):
                return value.tree
            size = arg.meta.get("val")
            return self.size(size.node.expr if isinstance(size, torch.SymInt | torch.SymFloat) else None)
        if isinstance(arg, bool | int | float):
            if why := why_no_constant(arg):
                raise ValueError(why)
            return number(int(arg) if isinstance(arg, bool) else arg)
        return arg

    def size(self, expr: Any) -> Expression:
        """A number that follows from the number of columns."""
        if expr is not None and (axis := next((a for a in LENGTHS if expr == self.sizes.get(a)), None)):
            return Name(LENGTHS[axis])
        if expr is not None and expr.is_number:
            return number(int(expr) if expr.is_integer else float(expr))
        if expr is not None and not all(str(symbol).startswith("s") for symbol in expr.free_symbols):
            raise ValueError(NO_VALUE)
        if expr is None or expr.free_symbols - {self.sizes.get(axis) for axis in LENGTHS}:
            raise ValueError(NO_NUMBER)
        parts = [self.size(part) for part in expr.args]
        kind = type(expr).__name__
        if kind in ("ToFloat", "TruncToInt") and len(parts) == 1:
            return parts[0]
        if kind in ("FloatTrueDiv", "IntTrueDiv"):
            return Binary("/", parts[0], parts[1])
        if kind == "FloorDiv":
            return aten.call("floor", Binary("/", parts[0], parts[1]))
        if kind in ("Mul", "Add"):
            found = parts[0]
            for part in parts[1:]:
                found = Binary("*" if kind == "Mul" else "+", found, part)
            return found
        if kind in ("Pow", "PowByNatural", "FloatPow"):
            return aten.power(*parts)
        if kind.endswith("sqrt"):
            return aten.call("sqrt", *parts)
        raise ValueError("what it makes of the number of columns is not in the language")

    def rolled_by(self, arg: Any) -> Expression:
        """By how many columns: whole numbers and shares of the columns, `d // 2` being a half.

        A kernel refuses columns of which the share is no whole number.
        """
        size = arg.meta.get("val") if isinstance(arg, torch.fx.Node) else arg
        if isinstance(size, int):
            return number(size)
        expr, cols = size.node.expr, self.sizes.get(COLS)
        expr = expr.replace(lambda e: type(e).__name__ == "FloorDiv", lambda e: e.args[0] / e.args[1]).expand()
        share = expr.coeff(cols)
        by = expr - share * cols
        if not (share.is_Rational and by.is_Integer):
            raise ValueError("it is rolled by whole numbers and shares of the columns")
        found: Expression = Name(LENGTHS[COLS])
        found = found if abs(share.p) == 1 else Binary("*", number(abs(share.p)), found)
        found = found if share.q == 1 else Binary("/", found, number(share.q))
        found = minus(found) if share.p < 0 else found
        return found if by == 0 else Binary("+", found, number(int(by)))

    def joined(self, shapes: Sequence[Dims]) -> Dims:
        """The sizes of an operation on tensors that are spread to one shape."""
        found: list[tuple[int, ...]] = []
        for place in range(1, max(map(len, shapes), default=0) + 1):
            here = {dims[-place] for dims in shapes if place <= len(dims) and dims[-place]}
            if len(here) > 1:
                raise ValueError("its tensors have rows in different orders")
            found.insert(0, here.pop() if here else ())
        return tuple(found)

    def viewed(self, node: Node, given: Node, *_: Any) -> Value:
        """The same elements in another shape: leading sizes may be merged and spread, columns stay together."""
        value, shape = self.value(given), shape_of(node)
        if called(node).startswith("expand"):
            return replace(value, dims=self.spread(value.dims, shape))
        left = list(value.axes)
        dims: list[tuple[int, ...]] = []
        for size in shape:
            axes: list[int] = []
            while size != 1 and left and self.product(axes) != size:
                axes.append(left.pop(0))
            if self.product(axes) != size:
                raise ValueError("it cuts rows or columns into parts")
            dims.append(tuple(axes))
        return replace(value, dims=tuple(dims))

    def spread(self, dims: Dims, shape: Sequence[Any]) -> Dims:
        axes = tuple(self.sizes)
        known: dict[Any, tuple[int, ...]] = {self.product([axis]): (axis,) for axis in axes} | {1: ()}
        known.setdefault(self.product(self.row_axes), self.row_axes)
        found = []
        for place, size in enumerate(shape):
            at = place - len(shape) + len(dims)
            dim = dims[at] if at >= 0 and dims[at] else known.get(size)
            if dim is None:
                raise ValueError("it repeats rows or columns")
            found.append(dim)
        return tuple(found)

    def counted(self, size: Any) -> tuple[int, ...]:
        """The neighbouring axes that a size counts."""
        axes = tuple(self.sizes)
        runs = (axes[i:j] for i in range(len(axes)) for j in range(i + 1, len(axes) + 1))
        return next(run for run in runs if self.product(run) == size)

    def product(self, axes: Sequence[int]) -> Any:
        return math.prod(self.sizes[axis] for axis in axes)


def _assigned(graph: Any) -> dict[Node, str]:
    """The last operation of each line `name = ...` of the author's, and that name."""
    last: dict[str, Node] = {}
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor) and "stack_trace" in node.meta:
            last[node.meta["stack_trace"]] = node
    found = {}
    for line, node in last.items():
        try:
            (statement,) = ast.parse(line.split(": ", 1)[-1]).body
        except (SyntaxError, ValueError):
            continue
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AugAssign(target=ast.Name(id=name)):
                found[node] = names_for(name)
    return found
