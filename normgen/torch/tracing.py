"""A recorded function as a spec: its rows' operations become formulas, and what is done with totals stays torch's."""

from __future__ import annotations

import ast
import keyword
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from normgen.errors import SpecError, UsageError
from normgen.problem.tensors import by_role
from normgen.spec import names
from normgen.spec.formula import Binary, Call, Cast, Expression, Name, Number, Power, children, nodes
from normgen.spec.given import toml_text
from normgen.spec.reader import parse
from normgen.spec.spec import READ, Role, Spec
from normgen.spec.writing import number, written
from normgen.torch import aten
from normgen.torch.calls import name_of
from normgen.torch.recording import COLS, Dims, Node, Recorded, line_of, refused

_NARROW = (torch.float16, torch.bfloat16)
_LONGEST = 90  # characters of a formula that takes others in
_VIEWS = ("view", "view_copy", "reshape", "_unsafe_view", "expand", "expand_copy", "unsqueeze", "unsqueeze_copy")
_SAME = ("clone", "alias", "alias_copy", "lift_fresh_copy", "contiguous", "detach_copy")


@dataclass(frozen=True, kw_only=True)
class Value:
    """A tensor of the function, as an expression.

    dims      what each of its sizes counts
    dtype     torch's, in which the function has it
    held_in   the narrowest dtype that is known to hold the expression's values as they are
    is_whole  its values are whole numbers, or conditions
    is_total  the expression is one of all rows; `below`: the total that it is divided by, if any
    """

    tree: Expression
    dims: Dims
    dtype: Any
    held_in: Any = None
    is_whole: bool = False
    is_total: bool = False
    below: Expression | None = None

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(axis for dim in self.dims for axis in dim)


@dataclass(frozen=True, kw_only=True)
class Read:
    """A tensor that the kernel reads: an argument of the function, in the shape that its role has.

    place  of the argument
    dims   of the argument; `spread`: the axes that it has none of, and is expanded along
    """

    place: int
    name: str
    role: Role
    dims: Dims
    spread: bool = False


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A function's spec, and what stands around the kernel.

    rows_of  the argument that has the rows' sizes
    reads    in the order in which the operator takes them
    returns  the names of what the kernel writes
    tail     from the kernel's results and the arguments to the function's results; None: the kernel's, as they are
    tree     how the tail's results are put together; None: it does that
    """

    recorded: Recorded
    rows_of: int
    spec: Spec
    reads: tuple[Read, ...]
    returns: tuple[str, ...]
    tail: Any
    tree: Any = None


def traced(
    record: Recorded, parameters: Sequence[str], name: str, summary: str, *, every_rounding: bool, rows_of: int
) -> Traced:
    """The spec of a recorded function whose tensors have these names.

    every_rounding  float16 and bfloat16 values are rounded behind each operation, as torch does it when it runs them
                    one by one; else where the function converts them itself, and where they are stored
    """
    return _Walk(record, parameters, rows_of, every_rounding=every_rounding).traced(name, summary)


class _Walk:
    def __init__(self, record: Recorded, parameters: Sequence[str], rows_of: int, *, every_rounding: bool) -> None:
        self.record, self.rows_of, self.every_rounding = record, rows_of, every_rounding
        self.row_axes = tuple(range(len(record.axes) - 1))
        self.sizes = {**dict(enumerate(record.axes[:-1])), COLS: record.axes[-1]}
        self.known: dict[Node, Any] = {}  # Value, or a tuple of some
        self.formulas = _Formulas()
        self.placeholders = [n for n in record.core.graph.nodes if n.op == "placeholder"]
        self.reads: dict[str, Read] = {}
        self.dtypes: dict[str, Any] = {}
        for place, (node, wanted) in enumerate(zip(self.placeholders, parameters, strict=True)):
            self.read(place, node, wanted)
        self.assigned = _assigned(record.core.graph)

    # arguments

    def read(self, place: int, node: Node, wanted: str) -> None:
        dims, dtype = self.record.dims[place], node.meta["val"].dtype
        if not node.users:
            return
        role, spread = self.role(dims, dtype)
        name = self.formulas.named(wanted)
        self.reads[name] = Read(place=place, name=name, role=role, dims=dims, spread=spread)
        self.dtypes[name] = dtype
        whole = not dtype.is_floating_point
        self.known[node] = Value(tree=Name(name), dims=dims, dtype=dtype, held_in=dtype, is_whole=whole)

    def role(self, dims: Dims, dtype: Any) -> tuple[Role, bool]:
        axes = tuple(axis for dim in dims for axis in dim)
        rows = tuple(axis for axis in axes if axis != COLS)
        if rows == self.row_axes and rows:
            return (Role.INPUT if COLS in axes else Role.ROW_INPUT), False
        if COLS in axes:
            if not rows:
                return (Role.PARAMETER if self.row_axes else Role.INPUT), False
            return self.role_of_shared(rows) if dtype.is_floating_point else (Role.INPUT, True)
        if rows:
            return Role.ROW_INPUT, True
        return (Role.SCALAR_PARAMETER if dtype.is_floating_point else Role.SCALAR_INPUT), False

    def role_of_shared(self, rows: tuple[Any, ...]) -> tuple[Role, bool]:
        """Of values for each column and some axes of the rows: the first are batches, the last heads, not both."""
        of = {Role.BATCH_PARAMETER: self.row_axes[: len(rows)], Role.HEAD_PARAMETER: self.row_axes[-len(rows) :]}
        taken = {read.role for read in self.reads.values()} & of.keys()
        role = next((role for role, axes in of.items() if rows == axes and taken <= {role}), None)
        return (role, False) if role else (Role.INPUT, True)

    # operations

    def traced(self, name: str, summary: str) -> Traced:
        graph = self.record.core.graph
        self.walk(graph)
        tail = _Tail(self)
        (results,) = next(n for n in graph.nodes if n.op == "output").args
        made = tail.made(results)
        returns = tuple(tail.outputs)
        if not returns:
            raise UsageError("a function that is traced has a result of its rows", received=summary)
        text = self.text(name, summary, tail.outputs)
        try:
            spec = parse(text, file=f"<{name}>")
        except SpecError as error:
            raise self.of_spec(error, text) from error
        order = {tensor.name: i for i, tensor in enumerate(by_role(spec.tensors, *READ))}
        reads = tuple(sorted(self.reads_of(text), key=lambda read: order[read.name]))
        return Traced(
            recorded=self.record,
            rows_of=self.rows_of,
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
                rule = "a function that is traced takes its tensors as arguments"
                raise refused(rule, line_of(node), "a module's parameters are arguments too")
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
                raise refused(f"'{_name(node)}': {error}", line_of(node)) from error
            self.known[node] = self.noted(node, found) if isinstance(found, Value) else found

    def is_behind(self, node: Node) -> bool:
        """Whether it takes a total, or what torch has made of one, and nothing of the rows."""
        given = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor | tuple)]
        values = [self.known.get(n) for n in given]
        behind = [v is None or (isinstance(v, Value) and v.is_total) for v in values]
        if any(behind) and any(isinstance(v, Value) and v.axes and not v.is_total for v in values):
            rule = f"'{_name(node)}' takes a sum over all rows back to the rows, which one kernel cannot"
            raise refused(rule, line_of(node))
        return any(behind)

    def of_totals(self, node: Node) -> Value | None:
        """A sum of totals, each times a number, over one total: the kernel adds the former. None: torch computes it."""
        name, out = _name(node), node.meta["val"]
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
        if tuple(map(self.product, value.dims)) != _shape(node):
            raise refused(f"'{_name(node)}' gives another shape than its rows have", line_of(node))
        name = _name(node)
        is_view = name in _VIEWS or name in _SAME or name in ("permute", "squeeze", "slice", "select", "_to_copy")
        if self.every_rounding and value.dtype in _NARROW and value.held_in != value.dtype and not is_view:
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

    def operation(self, node: Node) -> Any:
        name = _name(node)
        if name in aten.OF_CONDITIONS:
            if node.meta["val"].dtype is not torch.bool:
                raise ValueError("bits of whole numbers are not in the language")
            name = aten.OF_CONDITIONS[name]
        method = getattr(self, f"op_{name.strip('_')}", None)
        if method is not None:
            return method(node, *node.args, **node.kwargs)
        if name in _VIEWS:
            return self.viewed(node, node.args[0])
        if name in _SAME:
            return self.value(node.args[0])
        if name in aten.ELEMENTWISE:
            return self.elementwise(node, name, aten.ELEMENTWISE[name])
        if name in aten.REDUCTIONS:
            return self.reduced(node, *node.args, how=aten.REDUCTIONS[name], **node.kwargs)
        raise refused(f"'{name}' is not row-wise, or not in the language", line_of(node), _INSTEAD.get(name))

    def tree(self, arg: Any) -> Any:
        """An argument of an operation as an expression; texts and None as they are."""
        if isinstance(arg, torch.fx.Node):
            value = self.known.get(arg)
            if isinstance(value, Value):
                return value.tree
            size = arg.meta.get("val")
            return self.size(size.node.expr if isinstance(size, torch.SymInt | torch.SymFloat) else None)
        if isinstance(arg, bool | int | float):
            if math.isnan(arg):
                raise ValueError("a constant is a number")
            return number(arg)
        return arg

    def size(self, expr: Any) -> Expression:
        """A number that follows from the number of columns."""
        if expr is not None and expr == self.sizes[COLS]:
            return Name("cols")
        if expr is not None and expr.is_number:
            return number(int(expr) if expr.is_integer else float(expr))
        if expr is not None and not all(str(symbol).startswith("s") for symbol in expr.free_symbols):
            raise ValueError("what is in a tensor is no part of a formula")
        if expr is None or expr.free_symbols - {self.sizes[COLS]}:
            raise ValueError("the number of rows is no part of a formula")
        parts = [self.size(part) for part in expr.args]
        kind = type(expr).__name__
        if kind in ("ToFloat", "TruncToInt") and len(parts) == 1:
            return parts[0]
        if kind in ("FloatTrueDiv", "IntTrueDiv"):
            return Binary("/", parts[0], parts[1])
        if kind in ("Mul", "Add"):
            found = parts[0]
            for part in parts[1:]:
                found = Binary("*" if kind == "Mul" else "+", found, part)
            return found
        if kind in ("Pow", "PowByNatural", "FloatPow"):
            return aten.power(*parts)
        if kind.endswith("sqrt"):
            return aten.call("sqrt", *parts)
        raise ValueError(f"'{expr}' of the number of columns is not in the language")

    def elementwise(self, node: Node, name: str, make: Callable[..., Expression]) -> Value:
        values = [self.value(n) for n in node.all_input_nodes if isinstance(self.known.get(n), Value)]
        out = node.meta["val"]
        tree = make(*map(self.tree, node.args), **{key: self.tree(value) for key, value in node.kwargs.items()})
        held = {v.held_in for v in values if v.dtype is not torch.bool}
        whole = name in aten.WHOLE or out.dtype is torch.bool or not out.dtype.is_floating_point
        whole = whole or (name in aten.EXACT and all(v.is_whole for v in values) and _all_whole(node))
        if (
            not out.dtype.is_floating_point
            and name in ("div", "pow", "remainder")
            and any(v.dtype is not torch.bool for v in values)
        ):
            raise ValueError("arithmetic is that of float32, not of whole numbers")
        is_held = name in aten.EXACT and held == {out.dtype}
        return Value(
            tree=tree,
            dims=self.joined([v.dims for v in values]),
            dtype=out.dtype,
            held_in=out.dtype if is_held or out.dtype not in _NARROW else None,
            is_whole=whole,
        )

    def joined(self, shapes: Sequence[Dims]) -> Dims:
        """The sizes of an operation on tensors that are spread to one shape."""
        found: list[tuple[int, ...]] = []
        for place in range(1, max(map(len, shapes), default=0) + 1):
            here = {dims[-place] for dims in shapes if place <= len(dims) and dims[-place]}
            if len(here) > 1:
                raise ValueError("its tensors have rows in different orders")
            found.insert(0, here.pop() if here else ())
        return tuple(found)

    # shapes

    def viewed(self, node: Node, given: Node, *_: Any) -> Value:
        """The same elements in another shape: leading sizes may be merged and spread, columns stay together."""
        value, shape = self.value(given), _shape(node)
        if _name(node).startswith("expand"):
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
        axes = (*self.row_axes, COLS)
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
        axes = (*self.row_axes, COLS)
        runs = (axes[i:j] for i in range(len(axes)) for j in range(i + 1, len(axes) + 1))
        return next(run for run in runs if self.product(run) == size)

    def product(self, axes: Sequence[int]) -> Any:
        return math.prod(self.sizes[axis] for axis in axes)

    def op_permute(self, _node: Node, given: Node, order: Sequence[int]) -> Value:
        value = self.value(given)
        return replace(value, dims=tuple(value.dims[i] for i in order))

    op_permute_copy = op_permute

    def op_transpose(self, _: Node, given: Node, one: int, other: int) -> Value:
        dims = list(self.value(given).dims)
        dims[one], dims[other] = dims[other], dims[one]
        return replace(self.value(given), dims=tuple(dims))

    op_transpose_copy = op_transpose

    def op_t(self, node: Node, given: Node) -> Value:
        return self.op_transpose(node, given, 0, -1) if len(self.value(given).dims) > 1 else self.value(given)

    op_t_copy = op_t

    def op_squeeze(self, node: Node, given: Node, *_: Any) -> Value:
        return self.viewed(node, given)

    op_squeeze_copy = op_squeeze

    def op_slice(self, node: Node, given: Node, dim: int = 0, *_: Any, **__: Any) -> Value:
        if _shape(node)[dim] != _shape(given)[dim]:
            raise ValueError("it takes a part of the rows or columns")
        return self.value(given)

    op_slice_copy = op_slice

    def op_select(self, _: Node, given: Node, dim: int, _index: int) -> Value:
        dims = list(self.value(given).dims)
        if dims.pop(dim):
            raise ValueError("it takes a part of the rows or columns")
        return replace(self.value(given), dims=tuple(dims))

    op_select_copy = op_select

    # numbers

    def op_to_copy(self, node: Node, given: Node, **_: Any) -> Value:
        value, dtype = self.value(given), node.meta["val"].dtype
        if dtype == torch.float64 and not value.is_whole:
            raise ValueError("arithmetic is that of float32, not of float64")
        if not dtype.is_floating_point:
            if dtype is torch.bool and value.dtype is not torch.bool:
                return replace(value, tree=aten.call("!=", value.tree, aten.ZERO), dtype=dtype, is_whole=True)
            if not value.is_whole:
                return replace(value, tree=aten.truncated(value.tree), dtype=dtype, is_whole=True)
            return replace(value, dtype=dtype)
        is_written = str(node.meta.get("original_aten")) in ("None", "aten._to_copy.default")
        if is_written and dtype.itemsize < value.dtype.itemsize:
            return self.rounded(value, dtype)
        return replace(value, dtype=dtype, held_in=value.held_in if dtype.itemsize >= value.dtype.itemsize else None)

    def op_full(self, node: Node, _: Any, value: float, **__: Any) -> Value:
        return self.constant(node, value)

    def op_full_like(self, node: Node, _given: Node, value: float, **_: Any) -> Value:
        return self.constant(node, value)

    def op_scalar_tensor(self, node: Node, value: float, **_: Any) -> Value:
        return self.constant(node, value)

    def op_zeros_like(self, node: Node, *_: Any, **__: Any) -> Value:
        return self.constant(node, 0)

    op_zeros = op_new_zeros = op_zeros_like

    def op_ones_like(self, node: Node, *_: Any, **__: Any) -> Value:
        return self.constant(node, 1)

    op_ones = op_new_ones = op_ones_like

    def constant(self, node: Node, value: Any) -> Value:
        shape, dtype = _shape(node), node.meta["val"].dtype
        dims = self.spread((), shape)
        return Value(tree=self.tree(value), dims=dims, dtype=dtype, held_in=dtype, is_whole=not dtype.is_floating_point)

    def op_arange(self, node: Node, *args: Any, **_: Any) -> Value:
        (size,), dtype = _shape(node), node.meta["val"].dtype
        start, step = (args[0] if len(args) > 1 else 0), (args[2] if len(args) > 2 else 1)
        (dim,) = self.spread((), (size,))
        if start != 0 or step != 1 or len(dim) != 1:
            raise ValueError("numbers are those of rows or columns")
        if dim != (COLS,) and len(self.row_axes) > 1:
            raise ValueError("numbers of rows are those of all of them")
        tree = Name("col" if dim == (COLS,) else "row")
        return Value(tree=tree, dims=(dim,), dtype=dtype, held_in=dtype, is_whole=True)

    op_iota = op_arange

    def op_pow(self, node: Node, base: Any, _exponent: Any) -> Value:
        is_constant = not isinstance(base, torch.fx.Node)
        return self.elementwise(node, "pow", aten.power_of if is_constant else aten.power)

    # rows

    def reduced(
        self,
        node: Node,
        given: Node,
        dim: Any = None,
        keepdim: bool = False,
        *,
        how: Callable[..., Expression],
        **_: Any,
    ) -> Value:
        value, out = self.value(given), node.meta["val"]
        out = out[0] if isinstance(out, tuple | list) else out
        places = _places(dim, len(value.dims))
        axes = [axis for place in places for axis in value.dims[place]]
        kept = [() if place in places else d for place, d in enumerate(value.dims) if place not in places or keepdim]
        if not axes:
            return replace(value, dims=tuple(kept), dtype=out.dtype)
        if axes == [COLS]:
            tree = how(value.tree)
        elif set(axes) == set(value.axes) and set(self.row_axes) <= set(axes) and _name(node) == "sum":
            tree = aten.call("total", value.tree)
            return Value(tree=tree, dims=tuple(kept), dtype=out.dtype, is_total=True)
        else:
            raise ValueError("it goes over rows, not along the columns of each")
        whole = not out.dtype.is_floating_point or (value.is_whole and _name(node) in ("amax", "amin"))
        held = value.held_in if _name(node) in ("amax", "amin") else out.dtype if out.dtype not in _NARROW else None
        return Value(tree=tree, dims=tuple(kept), dtype=out.dtype, held_in=held, is_whole=whole)

    def op_mean(self, node: Node, given: Node, dim: Any = None, keepdim: bool = False, **_: Any) -> Value:
        return self.reduced(node, given, dim, keepdim, how=aten.REDUCTIONS["mean"])

    def op_var(self, node: Node, given: Node, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Value:
        return self.reduced(node, given, dim, keepdim, how=lambda x: self.variance(x, correction))

    def op_std(self, node: Node, given: Node, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Value:
        def root(x: Expression) -> Expression:
            return aten.root(self.let(self.variance(x, correction), "variance"))

        return self.reduced(node, given, dim, keepdim, how=root)

    def op_var_mean(self, node: Node, given: Node, dim: Any = None, **options: Any) -> tuple[Value, Value]:
        correction, keepdim = options.get("correction", 1), options.get("keepdim", False)
        found = self.reduced(node, given, dim, keepdim, how=lambda x: self.variance(x, correction))
        return found, self.reduced(node, given, dim, keepdim, how=lambda x: self.let(aten.call("mean", x), "mean"))

    def variance(self, x: Expression, correction: float) -> Expression:
        mean = self.let(aten.call("mean", x), "mean")
        return aten.variance(Binary("-", x, mean), 0 if correction is None else correction)

    def op_max(self, node: Node, given: Node, dim: Any = None, keepdim: bool = False) -> Any:
        return self.extremum(node, given, dim, keepdim, "max")

    def op_min(self, node: Node, given: Node, dim: Any = None, keepdim: bool = False) -> Any:
        return self.extremum(node, given, dim, keepdim, "min")

    def extremum(self, node: Node, given: Node, dim: Any, keepdim: bool, which: str) -> Any:
        if dim is None:
            return self.reduced(node, given, how=aten.REDUCTIONS[f"a{which}"])
        value = self.reduced(node, given, dim, keepdim, how=aten.REDUCTIONS[f"a{which}"])
        place = self.reduced(node, given, dim, keepdim, how=aten.REDUCTIONS[f"arg{which}"])
        return value, replace(place, dtype=torch.int64, is_whole=True)

    def op_logsumexp(self, node: Node, given: Node, dim: Any, keepdim: bool = False) -> Value:
        return self.reduced(node, given, dim, keepdim, how=lambda x: aten.logsumexp(self.shared(x), self.let))

    def op_linalg_vector_norm(
        self, node: Node, given: Node, order: float = 2, dim: Any = None, *more: Any, **_: Any
    ) -> Value:
        return self.reduced(node, given, dim, *more[:1], how=lambda x: aten.norm(x, order, self.let))

    def op_softmax(self, node: Node, given: Node, dim: int, _to_float: bool = False) -> Value:
        return self.along(node, given, dim, lambda x: aten.softmax(x, self.let))

    def op_log_softmax(self, node: Node, given: Node, dim: int, _to_float: bool = False) -> Value:
        return self.along(node, given, dim, lambda x: aten.log_softmax(x, self.let))

    def op_native_layer_norm(self, node: Node, given: Node, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
        if len(shape) != 1:
            raise ValueError("a row is the last size alone")
        w, b, e = self.tree(weight), self.tree(bias), number(eps)
        found = self.along(node, given, -1, lambda x: aten.layer_norm(x, w, b, e, self.let))
        return found, None, None

    def op_fused_rms_norm(self, node: Node, given: Node, shape: Any, weight: Any, eps: float | None) -> Any:
        if len(shape) != 1:
            raise ValueError("a row is the last size alone")
        given_dtype = self.value(given).dtype
        e = number(torch.finfo(torch.float32 if given_dtype in _NARROW else given_dtype).eps if eps is None else eps)
        return self.along(node, given, -1, lambda x: aten.rms_norm(x, self.tree(weight), e, self.let)), None

    def along(self, node: Node, given: Node, dim: int, how: Callable[[Expression], Expression]) -> Value:
        value, out = self.value(given), node.meta["val"]
        out = out[0] if isinstance(out, tuple | list) else out
        if value.dims[dim] != (COLS,):
            raise ValueError("it goes over rows, not along the columns of each")
        held = None if out.dtype in _NARROW else out.dtype
        return Value(tree=how(self.shared(value.tree)), dims=value.dims, dtype=out.dtype, held_in=held)

    def shared(self, tree: Expression) -> Expression:
        return tree if isinstance(tree, Name) else self.let(tree, "z")

    def op_gather(self, _node: Node, given: Node, dim: int, index: Node, **_: Any) -> Value:
        value, places = self.value(given), self.value(index)
        if value.dims[dim] != (COLS,) or places.dims[dim]:
            raise ValueError("it takes other elements than one of each row")
        rows = [d for i, d in enumerate(value.dims) if i != dim % len(value.dims)]
        if rows != [d for i, d in enumerate(places.dims) if i != dim % len(value.dims)]:
            raise ValueError("its tensors have rows in different orders")
        tree = aten.call("take", value.tree, places.tree)
        return replace(value, tree=tree, dims=places.dims, held_in=value.held_in)

    # the spec

    def text(self, name: str, summary: str, outputs: Mapping[str, Value]) -> str:
        self.formulas.folded(outputs)
        used = {n.name for _, tree in self.formulas.kept for n in nodes(tree) if isinstance(n, Name)}
        used |= {n.to for _, tree in self.formulas.kept for n in nodes(tree) if isinstance(n, Cast)}
        reads = [read for read in self.reads.values() if read.name in used]
        first = next((read for read in reads if read.role is Role.INPUT), None)
        if first is None:
            raise UsageError("a function that is traced reads a tensor [.., cols]", received=summary)
        reads.sort(key=lambda read: read is not first)
        own = self.dtypes[first.name]
        tensors: dict[str, Any] = {}
        for read in reads:
            default = torch.float32 if read.role in _OWN_DTYPE else own
            tensors[read.name] = _entry(read.role, self.dtypes[read.name], default, always=read is first)
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

    def reads_of(self, text: str) -> list[Read]:
        listed = text.partition("[tensors]")[2].partition("[formulas]")[0]
        return [read for name, read in self.reads.items() if re.search(rf"^{name} = ", listed, re.MULTILINE)]

    def of_spec(self, error: SpecError, text: str) -> UsageError:
        lines = text.splitlines()
        number_ = int(re.search(r":(\d+):", str(error)).group(1)) if re.search(r":(\d+):", str(error)) else 1  # type: ignore[union-attr]
        rule = f"the function is not in the language: {error.rule.partition(': ')[2]}"
        return UsageError(rule, received=lines[number_ - 1] if number_ <= len(lines) else text, hint=error.hint)


_OWN_DTYPE = (Role.ROW_INPUT, Role.SCALAR_INPUT, Role.SCALAR_PARAMETER, Role.ROW_OUTPUT)
_INSTEAD = {
    "native_dropout": "random numbers come from random(seed) in a spec",
    "bernoulli": "random numbers come from random(seed) in a spec",
    "rand_like": "random numbers come from random(seed) in a spec",
    "cat": "pass its parts as tensors of their own",
    "index": "take one element of each row with torch.gather",
    "split": "pass its parts as tensors of their own",
    "mm": "a product of matrices stays outside: trace what stands around it",
    "addmm": "a product of matrices stays outside: trace what stands around it",
    "bmm": "a product of matrices stays outside: trace what stands around it",
}


def _entry(role: Role, dtype: Any, default: Any, *, always: bool = False) -> Any:
    name = name_of(dtype)
    return role.value if dtype == default and not always else {"role": role.value, "dtypes": [name]}


def _name(node: Node) -> str:
    target = node.target
    found = target.overloadpacket.__name__ if isinstance(target, torch._ops.OpOverload) else target.__name__
    return str(found)


def _shape(node: Node) -> tuple[Any, ...]:
    found = node.meta["val"]
    found = found[0] if isinstance(found, tuple | list) else found
    return tuple(size.node.expr if isinstance(size, torch.SymInt) else size for size in found.shape)


def _places(dim: Any, count: int) -> set[int]:
    given = range(count) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    return {place % count for place in given} if count else set()


def _all_whole(node: Node) -> bool:
    return all(float(arg).is_integer() for arg in node.args if isinstance(arg, int | float))


def names_for(wanted: str) -> str:
    """A name that a spec may have, made from another one."""
    found = "_".join(part for part in re.split(r"[^A-Za-z0-9]+", wanted) if part)[: names.LONGEST_NAME - 4]
    found = found.strip("_") or "value"
    if not found[0].isalpha():
        found = f"v{found}"
    return f"{found}_in" if names.refusal(found) or keyword.iskeyword(found) else found


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


class _Formulas:
    """Named expressions, in order. An expression has one name, however often it is computed."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, Expression]] = []
        self.all: dict[str, Expression] = {}
        self.by_tree: dict[Expression, str] = {}
        self.is_kept: set[str] = set()
        self.taken: set[str] = set()

    def named(self, wanted: str) -> str:
        found, count = names_for(wanted), 1
        base = found
        while found in self.taken or f"d{found}" in self.taken or (found[0] == "d" and found[1:] in self.taken):
            count += 1
            found = f"{base}_{count}"
        self.taken.add(found)
        return found

    def let(self, tree: Expression, wanted: str, *, keep: bool = False) -> Expression:
        if isinstance(tree, Name | Number):
            return tree
        name = self.by_tree.get(tree)
        if name is None:
            name = self.by_tree[tree] = self.named(wanted)
            self.all[name] = tree
            if keep:
                self.is_kept.add(name)
        return Name(name)

    def folded(self, outputs: Mapping[str, Value]) -> None:
        """Sets `kept`: formulas that the outputs use, those that are used once and have no name of the author's
        within the formula that uses them.
        """
        final = dict(self.all)
        for name, value in outputs.items():
            tree = value.tree
            if isinstance(tree, Name) and tree.name in final and tree.name == name:
                continue
            final[name] = tree
        counts: dict[str, int] = dict.fromkeys(final, 0)
        waiting, reached = list(outputs), set()
        while waiting:
            name = waiting.pop()
            if name in reached:
                continue
            reached.add(name)
            for node in nodes(final[name]):
                if isinstance(node, Name) and node.name in final:
                    counts[node.name] += 1
                    waiting.append(node.name)
        done: dict[str, Expression] = {}
        for name, tree in final.items():
            if name not in reached:
                continue
            tree = _replaced(tree, {n: t for n, t in done.items() if counts[n] == 1 and self.is_inlined(n, t, outputs)})
            done[name] = tree
        used = {n.name for name, tree in done.items() for n in nodes(tree) if isinstance(n, Name)} | set(outputs)
        self.kept = [(name, tree) for name, tree in done.items() if name in used]
        left = {n.name for _, tree in self.kept for n in nodes(tree) if isinstance(n, Name)} | set(outputs)
        self.kept = [(name, tree) for name, tree in self.kept if name in left]

    def is_inlined(self, name: str, tree: Expression, outputs: Mapping[str, Value]) -> bool:
        return name not in self.is_kept and name not in outputs and len(written(tree)) <= _LONGEST


def _replaced(tree: Expression, by: Mapping[str, Expression]) -> Expression:
    match tree:
        case Name(name=name):
            return by.get(name, tree)
        case Binary(operator=op, left=left, right=right):
            return Binary(op, _replaced(left, by), _replaced(right, by))
        case Call(function=function, args=args):
            return Call(function, tuple(_replaced(arg, by) for arg in args))
        case Cast(arg=arg, to=to):
            return Cast(_replaced(arg, by), to)
        case Power(base=base):
            return replace(tree, base=_replaced(base, by))
    return tree


class _Tail:
    """What torch does behind the kernel: the results' shapes, and operations on totals."""

    def __init__(self, walk: _Walk) -> None:
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
        if node.op == "call_function" and _name(node) in ("sym_size", "sym_numel") and isinstance(size, torch.SymInt):
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
            found = self.graph.call_function(torch.ops.aten.div.Tensor, (found, count))
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
                argument = self.arguments[self.walk.rows_of]
                self.sizes[axis] = self.graph.call_function(torch.ops.aten.sym_size.int, (argument, axis))
            found = (
                self.sizes[axis] if found == 1 else self.graph.call_function(operator.mul, (found, self.sizes[axis]))
            )
        return found
