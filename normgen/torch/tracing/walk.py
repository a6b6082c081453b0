"""A recorded function as a spec: its rows' operations become formulas, and what is done with totals stays torch's."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from normgen.errors import SpecError, UsageError
from normgen.problem.tensors import by_role
from normgen.spec.formula import Cast, Name, Number, children, nodes
from normgen.spec.given import toml_text
from normgen.spec.reader import parse
from normgen.spec.spec import READ, Role
from normgen.spec.writing import written
from normgen.torch.calls import name_of
from normgen.torch.tracing import aten
from normgen.torch.tracing.formulas import names_for
from normgen.torch.tracing.known import LENGTHS
from normgen.torch.tracing.operations import SAME, Operations
from normgen.torch.tracing.reasons import BETWEEN, PART_WRITTEN, TWICE, called, hint_for, title
from normgen.torch.tracing.recording import COLS, INNER, Dims, Node, Recorded, line_of, refused
from normgen.torch.tracing.tail import Tail
from normgen.torch.tracing.values import NARROW, VIEWS, Read, Traced, Value, shape_of


def traced(
    record: Recorded,
    parameters: Sequence[str],
    name: str,
    summary: str,
    *,
    every_rounding: bool,
    groups: Sequence[int] = (),
) -> Traced:
    """The spec of a recorded function whose tensors have these names.

    groups          of each tensor: how many neighbouring columns share a value, 0 where none do. Parameters, of
                    batches and of heads too, are read so
    every_rounding  float16 and bfloat16 values are rounded behind each operation, as torch does it when it runs them
                    one by one; else where the function converts them itself, and where they are stored
    """
    return FunctionWalk(record, parameters, every_rounding=every_rounding, groups=groups).traced(name, summary)


class FunctionWalk(Operations):
    """One recorded function, operation by operation."""

    def __init__(
        self, record: Recorded, parameters: Sequence[str], *, every_rounding: bool, groups: Sequence[int] = ()
    ) -> None:
        super().__init__(record, every_rounding=every_rounding)
        self.groups = dict(enumerate(groups))
        for place, (node, wanted) in enumerate(zip(self.placeholders, parameters, strict=True)):
            self.read(place, node, wanted)

    # arguments

    def read(self, place: int, node: Node, wanted: str) -> None:
        dims, dtype = self.record.dims[place], node.meta["val"].dtype
        if not node.users:
            return
        group = self.groups.get(place, 0)
        is_plain = self.of_row == COLS
        role, spread = self.role(dims, dtype, group) if is_plain else self.role_beside_products(dims, dtype, wanted)
        name = self.formulas.named(wanted)
        group = group if role in _OF_GROUPS else 0
        self.reads[name] = Read(place=place, name=name, role=role, dims=dims, spread=spread, group=group)
        self.dtypes[name] = dtype
        whole = not dtype.is_floating_point
        self.known[node] = Value(tree=Name(name), dims=dims, dtype=dtype, held_in=dtype, is_whole=whole)

    def role(self, dims: Dims, dtype: Any, group: int = 0) -> tuple[Role, bool]:
        axes = tuple(axis for dim in dims for axis in dim)
        rows = tuple(axis for axis in axes if axis != COLS)
        if rows == self.row_axes and rows and group:
            return Role.BATCH_PARAMETER, False  # each row is a batch
        if rows == self.row_axes and rows:
            return (Role.INPUT if COLS in axes else Role.ROW_INPUT), False
        if COLS in axes:
            if not rows:
                return (Role.PARAMETER if self.row_axes else Role.INPUT), False
            return self.role_of_shared(rows) if dtype.is_floating_point else (Role.INPUT, True)
        if rows:
            return Role.ROW_INPUT, True
        return (Role.SCALAR_PARAMETER if dtype.is_floating_point else Role.SCALAR_INPUT), False

    def role_beside_products(self, dims: Dims, dtype: Any, name: str) -> tuple[Role, bool]:
        axes = tuple(axis for dim in dims for axis in dim)
        rows, others = tuple(axis for axis in axes if axis >= 0), {axis for axis in axes if axis < 0}
        if others == {INNER, COLS}:
            if rows != self.row_axes[: len(rows)] or rows == self.row_axes:
                hint = "expand it to the first sizes of the rows before it is passed"
                raise refused("the matrices of batches are as many as the first sizes of the rows say", name, hint)
            return (Role.BATCH_PARAMETER if rows else Role.PARAMETER), False
        if others and not rows:
            return Role.PARAMETER, False
        if rows:
            return (Role.INPUT if others else Role.ROW_INPUT), rows != self.row_axes
        return (Role.SCALAR_PARAMETER if dtype.is_floating_point else Role.SCALAR_INPUT), False

    def role_of_shared(self, rows: tuple[Any, ...]) -> tuple[Role, bool]:
        """Of values for each column and some axes of the rows: the first are batches, the last heads, not both, and
        those of all tensors are as many.
        """
        of = {Role.BATCH_PARAMETER: self.row_axes[: len(rows)], Role.HEAD_PARAMETER: self.row_axes[-len(rows) :]}
        taken = {(read.role, read.rows) for read in self.reads.values() if read.role in of}
        role = next((role for role, axes in of.items() if rows == axes and taken <= {(role, rows)}), None)
        return (role, False) if role else (Role.INPUT, True)

    # operations

    def traced(self, name: str, summary: str) -> Traced:
        graph = self.record.core.graph
        self.walk(graph)
        tail = Tail(self)
        (results,) = next(n for n in graph.nodes if n.op == "output").args
        made = tail.made(results)
        returns = tuple(tail.outputs)
        if not returns:
            hint = "it gives back its arguments as they are, or nothing of their rows: no kernel is needed"
            raise UsageError("a function that is traced computes a result of its rows", received=summary, hint=hint)
        text = self.text(name, summary, tail.outputs)
        try:
            spec = parse(text, file=f"<{name}>")
        except SpecError as error:
            raise self.of_spec(error, text) from error
        order = {tensor.name: i for i, tensor in enumerate(by_role(spec.tensors, *READ))}
        reads = tuple(sorted(self.reads_of(text), key=lambda read: order[read.name]))
        return Traced(
            recorded=self.record,
            spec=spec,
            reads=reads,
            returns=returns,
            tail=made,
            tree=tail.tree,
        )

    def walk(self, graph: Any) -> None:
        for node in graph.nodes:
            if node.op == "placeholder" or node.op == "output":
                continue
            if node.op != "call_function":
                if (part := next((n for n in graph.nodes if title(n) == PART_WRITTEN), None)) is not None:
                    raise _written_in_parts(part)
                rule = "a function that is traced takes its tensors as arguments"
                raise refused(rule, line_of(node), "pass it to the function; a module's parameters are arguments too")
            if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
                continue
            if node.target is operator.getitem:
                found = self.known.get(node.args[0])
                if found is not None and not isinstance(found, Value) and (one := found[node.args[1]]) is not None:
                    self.known[node] = one
                continue
            if not node.users:
                continue
            if self.is_behind(node):
                if not self.every_rounding and (total := self.of_totals(node)) is not None:
                    self.known[node] = total
                continue
            try:
                found = self.operation(node)
            except ValueError as error:
                name, reason = title(node), str(error)
                if name == PART_WRITTEN:
                    raise _written_in_parts(node) from error
                raise refused(f"'{name}': {reason}", line_of(node), hint_for(name, reason) or BETWEEN) from error
            self.known[node] = self.noted(node, found) if isinstance(found, Value) else found

    def is_behind(self, node: Node) -> bool:
        """Whether it takes a total, or what torch has made of one, and nothing of the rows."""
        given = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor | tuple)]
        values = [self.known.get(n) for n in given]
        behind = [v is None or (isinstance(v, Value) and v.is_total) for v in values]
        if any(behind) and any(isinstance(v, Value) and v.axes and not v.is_total for v in values):
            rule = f"'{title(node)}' takes a sum over all rows back to the rows, which one kernel cannot"
            raise refused(rule, line_of(node), "give the sum back, and take it to the rows in a function of its own")
        return any(behind)

    def of_totals(self, node: Node) -> Value | None:
        """A sum of totals, each times a number, over one total: the kernel adds the former. None: torch computes it."""
        name, out = called(node), node.meta["val"]
        values = [self.known.get(arg) if isinstance(arg, torch.fx.Node) else None for arg in node.args]
        value = values[0] if values and isinstance(values[0], Value) else None
        if value is None or not value.is_total or node.kwargs.get("alpha", 1) != 1:
            return None
        found = replace(value, dtype=out.dtype, dims=((),) * out.ndim)
        (inner,) = value.tree.args  # type: ignore[union-attr]
        if name == "_to_copy" and (out.dtype.is_floating_point or out.dtype == value.dtype):
            return found
        if not out.dtype.is_floating_point:
            return None
        if name == "neg":
            return replace(found, tree=aten.call("total", aten.ELEMENTWISE["neg"](inner)))
        if len(node.args) != 2 or node.kwargs or name not in ("add", "sub", "mul", "div"):
            return None
        other = values[1]
        if isinstance(other, Value) and other.is_total:
            if name == "div" and value.below is None and other.below is None:
                return replace(found, below=other.tree)
            if name in ("add", "sub") and value.below == other.below:
                (more,) = other.tree.args  # type: ignore[union-attr]
                return replace(found, tree=aten.call("total", aten.ELEMENTWISE[name](inner, more)))
            return None
        if name not in ("mul", "div") or isinstance(other, Value):
            return None
        try:
            number_ = self.tree(node.args[1])
        except ValueError:  # it depends on the number of rows
            return None
        return replace(found, tree=aten.call("total", aten.ELEMENTWISE[name](inner, number_)))

    def noted(self, node: Node, value: Value) -> Value:
        """Rounded where the function is to round, and named where its author named it, or it is used again."""
        if tuple(map(self.product, value.dims)) != shape_of(node):
            raise refused(f"'{title(node)}' gives another shape than its rows have", line_of(node))
        axes = [axis for dim in value.dims for axis in dim]
        if len(axes) != len({*axes}):
            raise refused(f"'{title(node)}': {TWICE}", line_of(node), hint_for(title(node), TWICE))
        name = called(node)
        is_view = name in VIEWS or name in SAME or name in ("permute", "squeeze", "slice", "select", "_to_copy")
        if self.every_rounding and value.dtype in NARROW and value.held_in != value.dtype and not is_view:
            value = self.rounded(value, value.dtype)
        if value.is_total or isinstance(value.tree, Name | Number):
            return value
        if (wanted := self.assigned.get(node)) is not None:
            return replace(value, tree=self.formulas.let(value.tree, wanted, keep=True))
        if len(node.users) > 1 and not (
            name in aten.WHOLE and all(isinstance(c, Name | Number) for c in children(value.tree))
        ):
            return replace(value, tree=self.formulas.let(value.tree, names_for(node.name)))
        return value

    # the spec

    def text(self, name: str, summary: str, outputs: Mapping[str, Value]) -> str:
        self.formulas.folded(outputs)
        used = {n.name for _, tree in self.formulas.kept for n in nodes(tree) if isinstance(n, Name)}
        used |= {n.to for _, tree in self.formulas.kept for n in nodes(tree) if isinstance(n, Cast)}
        reads = [read for read in self.reads.values() if read.name in used]
        first = next((read for read in reads if read.role is Role.INPUT and self.of_row in read.axes), None)
        if first is None:
            raise UsageError("a function that is traced reads a tensor [.., cols]", received=summary)
        reads.sort(key=lambda read: read is not first)
        own = self.dtypes[first.name]
        tensors: dict[str, Any] = {}
        for read in reads:
            default = torch.float32 if read.role in _OWN_DTYPE else torch.int64 if read.role is Role.SEED else own
            entry = _entry(read.role, self.dtypes[read.name], default, always=read is first)
            more = {"axes": self.axes_of(read)} if INNER in read.axes else {"group": read.group} if read.group else {}
            if more:
                entry = {"role": read.role.value, **more, **(entry if isinstance(entry, dict) else {})}
            tensors[read.name] = entry
        for output, value in outputs.items():
            if value.is_total:
                tensors[output] = Role.SCALAR_OUTPUT.value
            else:
                role = Role.OUTPUT if COLS in value.axes else Role.ROW_OUTPUT
                tensors[output] = _entry(role, value.dtype, torch.float32 if role in _OWN_DTYPE else own)
                follows = role is Role.OUTPUT and any(
                    self.dtypes[read.name] != own for read in reads if read.role is Role.INPUT
                )
                if follows and isinstance(tensors[output], str):
                    tensors[output] = {"role": role.value, "dtypes": [name_of(value.dtype)]}
        formulas = {formula: written(tree) for formula, tree in self.formulas.kept}
        return toml_text({"name": name, "summary": summary, "tensors": tensors, "formulas": formulas})

    def axes_of(self, read: Read) -> list[str]:
        """As a spec says them."""
        rows = [axis for axis in read.axes if axis >= 0]
        first = [] if not rows else ["rows"] if read.role is Role.INPUT else ["batches"]
        return [*first, *(LENGTHS[axis] for axis in read.axes if axis < 0)]

    def reads_of(self, text: str) -> list[Read]:
        listed = text.partition("[tensors]")[2].partition("[formulas]")[0]
        return [read for name, read in self.reads.items() if re.search(rf"^{name} = ", listed, re.MULTILINE)]

    def of_spec(self, error: SpecError, text: str) -> UsageError:
        lines = text.splitlines()
        number_ = int(re.search(r":(\d+):", str(error)).group(1)) if re.search(r":(\d+):", str(error)) else 1  # type: ignore[union-attr]
        rule = f"the function is not in the language: {error.rule.partition(': ')[2]}"
        return UsageError(rule, received=lines[number_ - 1] if number_ <= len(lines) else text, hint=error.hint)


def _written_in_parts(node: Node) -> UsageError:
    rule = f"'{PART_WRITTEN}' writes to a part of the rows or columns"
    return refused(rule, line_of(node), hint_for(PART_WRITTEN))


_OF_GROUPS = (Role.PARAMETER, Role.BATCH_PARAMETER, Role.HEAD_PARAMETER)
_OWN_DTYPE = (Role.ROW_INPUT, Role.SCALAR_INPUT, Role.SCALAR_PARAMETER, Role.ROW_OUTPUT)


def _entry(role: Role, dtype: Any, default: Any, *, always: bool = False) -> Any:
    name = name_of(dtype)
    return role.value if dtype == default and not always else {"role": role.value, "dtypes": [name]}
