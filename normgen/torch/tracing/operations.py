"""What torch's operations make of expressions and of their shapes: one method `op_<name>` for each, or for a few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from normgen.spec.formula import Binary, Expression, Name
from normgen.spec.functions import DOT, RANDOM
from normgen.spec.spec import Role
from normgen.spec.writing import number
from normgen.torch.tracing import aten
from normgen.torch.tracing.known import Known
from normgen.torch.tracing.reasons import OF_PRODUCT, OF_ROWS, WHOLE_ROW, called, title, unknown
from normgen.torch.tracing.recording import COLS, INNER, Node, line_of, refused
from normgen.torch.tracing.values import NARROW, VIEWS, Value, shape_of

SAME = ("clone", "alias", "alias_copy", "lift_fresh_copy", "contiguous", "detach_copy")


class Operations(Known):
    """The operations of a graph, by their names in aten."""

    def operation(self, node: Node) -> Any:
        name = called(node)
        if name in aten.OF_CONDITIONS:
            if node.meta["val"].dtype is not torch.bool:
                raise ValueError("bits of whole numbers are not in the language")
            name = aten.OF_CONDITIONS[name]
        method = getattr(self, f"op_{name.strip('_')}", None)
        if method is not None:
            return method(node, *node.args, **node.kwargs)
        if name in VIEWS:
            return self.viewed(node, node.args[0])
        if name in SAME:
            return self.value(node.args[0])
        if name in aten.ELEMENTWISE:
            return self.elementwise(node, name, aten.ELEMENTWISE[name])
        if name in aten.REDUCTIONS:
            return self.reduced(node, *node.args, how=aten.REDUCTIONS[name], **node.kwargs)
        rule, hint = unknown(title(node))
        raise refused(rule, line_of(node), hint)

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
            held_in=out.dtype if is_held or out.dtype not in NARROW else None,
            is_whole=whole,
        )

    # shapes

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
        if shape_of(node)[dim] != shape_of(given)[dim]:
            raise ValueError("it takes a part of the rows or columns")
        return self.value(given)

    op_slice_copy = op_slice

    def op_select(self, _: Node, given: Node, dim: int, _index: int) -> Value:
        dims = list(self.value(given).dims)
        if dims.pop(dim):
            raise ValueError("it takes a part of the rows or columns")
        return replace(self.value(given), dims=tuple(dims))

    op_select_copy = op_select

    def op_roll(self, _: Node, given: Node, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Value:
        value = self.value(given)
        if not dims and len(value.dims) > 1:
            raise ValueError("it goes over rows, not along the columns of each")
        for shift, dim in zip(shifts, dims or (0,), strict=True):
            if value.dims[dim] not in ((), (COLS,)):
                raise ValueError("it goes over rows, not along the columns of each")
            if value.dims[dim]:
                value = replace(value, tree=aten.call("roll", value.tree, self.rolled_by(shift)))
        return value

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
        shape, dtype = shape_of(node), node.meta["val"].dtype
        dims = self.spread((), shape)
        return Value(tree=self.tree(value), dims=dims, dtype=dtype, held_in=dtype, is_whole=not dtype.is_floating_point)

    def op_arange(self, node: Node, *args: Any, **_: Any) -> Value:
        (size,), dtype = shape_of(node), node.meta["val"].dtype
        start, step = (args[0] if len(args) > 1 else 0), (args[2] if len(args) > 2 else 1)
        (dim,) = self.spread((), (size,))
        if start != 0 or step != 1 or len(dim) != 1:
            raise ValueError("numbers are those of rows or columns")
        name = {COLS: "col", INNER: "term"}.get(dim[0], "row")
        if name == "row" and len(self.row_axes) > 1:
            raise ValueError("numbers of rows are those of all of them")
        return Value(tree=Name(name), dims=(dim,), dtype=dtype, held_in=dtype, is_whole=True)

    op_iota = op_arange

    def op_pow(self, node: Node, base: Any, _exponent: Any) -> Value:
        is_constant = not isinstance(base, torch.fx.Node)
        return self.elementwise(node, "pow", aten.power_of if is_constant else aten.power)

    def op_softplus(self, node: Node, *_: Any) -> Value:
        return self.elementwise(node, "softplus", lambda x, *by: aten.softplus(self.shared(x), *by, let=self.let))

    def op_uniform_of(self, node: Node, given: Node, seed: Node, _draw: int = 0) -> Value:
        name = self.value(seed).tree
        assert isinstance(name, Name)
        self.reads[name.name] = replace(self.reads[name.name], role=Role.SEED)
        return Value(tree=aten.call(RANDOM, name), dims=self.value(given).dims, dtype=node.meta["val"].dtype)

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
        if axes == [self.of_row]:
            tree = how(value.tree)
        elif axes == [COLS]:
            raise ValueError(WHOLE_ROW)
        elif set(axes) == set(value.axes) and set(self.row_axes) <= set(axes) and called(node) == "sum":
            tree = aten.call("total", value.tree)
            return Value(tree=tree, dims=tuple(kept), dtype=out.dtype, is_total=True)
        else:
            raise ValueError("it goes over rows, not along the columns of each")
        whole = not out.dtype.is_floating_point or (value.is_whole and called(node) in ("amax", "amin"))
        held = value.held_in if called(node) in ("amax", "amin") else out.dtype if out.dtype not in NARROW else None
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
        length = "cols" if self.of_row == COLS else "inner"
        return aten.variance(Binary("-", x, mean), 0 if correction is None else correction, length)

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
        e = number(torch.finfo(torch.float32 if given_dtype in NARROW else given_dtype).eps if eps is None else eps)
        return self.along(node, given, -1, lambda x: aten.rms_norm(x, self.tree(weight), e, self.let)), None

    def along(self, node: Node, given: Node, dim: int, how: Callable[[Expression], Expression]) -> Value:
        value, out = self.value(given), node.meta["val"]
        out = out[0] if isinstance(out, tuple | list) else out
        if value.dims[dim] != (self.of_row,):
            is_whole = value.dims[dim] == (COLS,)
            raise ValueError(WHOLE_ROW if is_whole else "it goes over rows, not along the columns of each")
        held = None if out.dtype in NARROW else out.dtype
        return Value(tree=how(self.shared(value.tree)), dims=value.dims, dtype=out.dtype, held_in=held)

    def shared(self, tree: Expression) -> Expression:
        return tree if isinstance(tree, Name) else self.let(tree, "z")

    # products of matrices

    def op_mm(self, node: Node, one: Node, other: Node) -> Value:
        """Rows times a matrix."""
        left, right, out = self.value(one), self.value(other), node.meta["val"]
        if left.dims[-1] != right.dims[-2] or left.dims[-1] != (INNER,):
            raise ValueError(OF_PRODUCT if COLS in (*left.dims[-1], *right.dims[-2]) else OF_ROWS)
        if right.dims[-1] != (COLS,) or COLS in left.axes or not {*self.row_axes} <= {*left.axes}:
            raise ValueError(OF_ROWS)
        first = [a or b for a, b in zip(left.dims[:-2], right.dims[:-2], strict=True)]
        return Value(
            tree=aten.call(DOT, left.tree, right.tree),
            dims=(*first, left.dims[-2], right.dims[-1]),
            dtype=out.dtype,
            held_in=None if out.dtype in NARROW else out.dtype,
        )

    op_bmm = op_mm

    def op_addmm(self, node: Node, added: Node, one: Node, other: Node, *, beta: float = 1, alpha: float = 1) -> Value:
        found, more = self.op_mm(node, one, other), self.value(added)
        tree = aten.product(found.tree, self.tree(alpha)) if alpha != 1 else found.tree
        if beta != 0:
            term = aten.product(more.tree, self.tree(beta)) if beta != 1 else more.tree
            tree, found = aten.plus(tree, term), replace(found, dims=self.joined([found.dims, more.dims]))
        return replace(found, tree=tree)

    op_baddbmm = op_addmm

    def op_gather(self, _node: Node, given: Node, dim: int, index: Node, **_: Any) -> Value:
        value, places = self.value(given), self.value(index)
        if value.dims[dim] != (COLS,) or places.dims[dim] or self.of_row != COLS:
            raise ValueError("it takes other elements than one of each row")
        rows = [d for i, d in enumerate(value.dims) if i != dim % len(value.dims)]
        if rows != [d for i, d in enumerate(places.dims) if i != dim % len(value.dims)]:
            raise ValueError("its tensors have rows in different orders")
        column = places.tree if isinstance(places.tree, Name) else self.let(places.tree, "column")
        # NaN where torch would raise; `take` alone is 0 of a column that is not there.
        is_column = aten.call("and", aten.call("<=", aten.ZERO, column), aten.call("<", column, Name("cols")))
        nan = aten.binary("-")(Name("inf"), Name("inf"))
        tree = aten.product(aten.call("where", is_column, aten.ONE, nan), aten.call("take", value.tree, column))
        return replace(value, tree=tree, dims=places.dims, held_in=value.held_in)


def _places(dim: Any, count: int) -> set[int]:
    given = range(count) if dim is None or dim == [] else [dim] if isinstance(dim, int) else dim
    return {place % count for place in given} if count else set()


def _all_whole(node: Node) -> bool:
    return all(float(arg).is_integer() for arg in node.args if isinstance(arg, int | float))
