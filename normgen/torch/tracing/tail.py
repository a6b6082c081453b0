"""What torch does behind a traced kernel."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from normgen.spec.formula import Cast, Name
from normgen.torch.tracing.known import Known
from normgen.torch.tracing.reasons import called
from normgen.torch.tracing.recording import COLS, INNER, Node, line_of, refused
from normgen.torch.tracing.values import Value


class Tail:
    """What torch does behind the kernel: the results' shapes, and operations on totals."""

    def __init__(self, walk: Known) -> None:
        self.walk = walk
        self.outputs: dict[str, Value] = {}
        self.graph = torch.fx.Graph()
        self.kernel: dict[str, Node] = {}
        self.copied: dict[Node, Node] = {}
        self.sizes: dict[int, Node] = {}
        self.is_plain = True
        self.tree: Any = None

    def made(self, results: Sequence[Any]) -> Any:
        walk = self.walk
        self.arguments = [self.graph.placeholder(f"argument{i}") for i in range(len(walk.placeholders))]
        found = [self.result(node, alone=len(results) == 1) for node in results]
        is_same = self.is_plain and [self.kernel.get(n) for n in self.outputs] == found
        tree = walk.record.tree
        is_simple = tree.is_leaf() or (tree.type is tuple and all(child.is_leaf() for child in tree.children()))
        if is_same and is_simple and (len(found) > 1 or tree.is_leaf()):
            return None
        self.tree = None if is_simple else tree
        self.graph.output(found[0] if tree.is_leaf() else tuple(found))
        return torch.fx.GraphModule(torch.nn.Module(), self.graph)

    def result(self, node: Any, *, alone: bool) -> Any:
        if not isinstance(node, torch.fx.Node):
            self.is_plain = False
            return node
        return self.behind(node, "y" if alone else "")

    def behind(self, node: Node, wanted: str = "") -> Node:
        """The node of the tail that has the values of one of the function's."""
        if node in self.copied:
            return self.copied[node]
        found: Any
        walk, value = self.walk, self.walk.known.get(node)
        size = node.meta.get("val")
        if node.op == "call_function" and called(node) in ("sym_size", "sym_numel") and isinstance(size, torch.SymInt):
            self.is_plain = False
            found = self.size(walk.counted(size.node.expr))
        elif node.op == "placeholder":
            self.is_plain = False
            found = self.arguments[walk.placeholders.index(node)]
        elif isinstance(value, Value) and (value.is_total or set(walk.row_axes) <= set(value.axes)):
            found = self.written(node, value, wanted)
        else:
            self.is_plain = False
            found = self.graph.node_copy(node, self.behind)
        self.copied[node] = found
        return found

    def written(self, node: Node, value: Value, wanted: str) -> Node:
        walk = self.walk
        if INNER in value.axes:
            hint = "give it back from a function of its own"
            raise refused(
                "beside a product a function returns what has its columns, or values of rows", line_of(node), hint
            )
        tree = value.tree
        if isinstance(tree, Cast) and value.dtype == value.held_in and len(node.users) == 1:
            tree = tree.arg  # storing rounds
        if isinstance(tree, Name) and tree.name in walk.formulas.all and tree.name not in self.outputs:
            name = tree.name
        else:
            name = walk.formulas.named(wanted or walk.assigned.get(node, "") or ("total" if value.is_total else "y"))
        found = self.output(name, replace(value, tree=tree))
        if value.below is not None:
            count = self.output(walk.formulas.named("total"), replace(value, tree=value.below, below=None))
            self.is_plain = False
            call = self.graph.call_function
            # Behind a division by 0 stands an infinite gradient, which no factor of 0 takes away: it ends here.
            is_zero = call(torch.ops.aten.eq.Scalar, (count, 0))
            constant = call(torch.ops.aten.detach.default, (found,))
            found = call(torch.ops.aten.where.self, (is_zero, constant, found))
            found = call(torch.ops.aten.div.Tensor, (found, count))
        return self.placed(found, value)

    def output(self, name: str, value: Value) -> Node:
        """The kernel's result of this expression."""
        for known, other in self.outputs.items():
            if other.tree == value.tree and (other.is_total or other.dtype == value.dtype):
                return self.kernel[known]
        self.outputs[name] = value
        with self.graph.inserting_before(self.arguments[0]):  # the kernel's results come first
            self.kernel[name] = self.graph.placeholder(f"result{len(self.kernel)}")
        return self.kernel[name]

    def placed(self, node: Node, value: Value) -> Node:
        """The kernel's result, of the rows' sizes, in the shape and dtype that the function gives it."""
        call = self.graph.call_function
        if value.is_total:
            self.is_plain = False
            node = call(torch.ops.aten.to.dtype, (node, value.dtype)) if value.dtype != torch.float32 else node
            return call(torch.ops.aten.reshape.default, (node, [1] * len(value.dims))) if value.dims else node
        first = [(axis,) for axis in (*self.walk.row_axes, COLS) if axis != COLS or COLS in value.axes]
        if list(value.dims) == first:
            return node
        self.is_plain = False
        order = [first.index((axis,)) for axis in value.axes]
        if order != sorted(order):
            node = call(torch.ops.aten.permute.default, (node, order))
        shape = [self.size(dim) for dim in value.dims]
        return call(torch.ops.aten.reshape.default, (node, shape))

    def size(self, dim: tuple[int, ...]) -> Any:
        found: Any = 1
        for axis in dim:
            if axis not in self.sizes:
                every = self.walk.record.dims
                own = (self.walk.rows_of, *range(len(every)))
                place, at = next((i, every[i].index((axis,))) for i in own if (axis,) in every[i])
                self.sizes[axis] = self.graph.call_function(torch.ops.aten.sym_size.int, (self.arguments[place], at))
            found = (
                self.sizes[axis] if found == 1 else self.graph.call_function(operator.mul, (found, self.sizes[axis]))
            )
        return found
