"""A function as what torch does in front of a kernel, what the kernel does, and what torch does behind it.

In front: views and parts of arguments, and what takes no argument's values, such as a mask of numbers or a random
tensor. Behind: parts put together, and the largest of a row. Between them stand values of rows alone: a part of a
computed value is computed of parts, and parts that are put together stay apart until the end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from normgen.torch.tracing.reasons import called

aten = torch.ops.aten
Node = Any  # of a torch.fx.Graph

_SAME = {"_to_copy", "detach", "clone", "contiguous", "alias", "lift_fresh_copy"}
_VIEWS = {"view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "permute", "transpose", "t", "expand", "alias"}
_PARTS = {"slice", "select", "split", "split_with_sizes", "unbind", "chunk"}
_MOVES = {*_VIEWS, *_PARTS, "cat", "stack", "clone", "contiguous", "constant_pad_nd", "flip", "roll", "lift_fresh_copy"}
_BEHIND = {"topk"}
_MADE = {"full": 1, "scalar_tensor": 0, "zeros": None, "ones": None}
_LIKE = {"full_like": 1, "zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1, "new_full": 2}
REDUCTIONS = {"sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "var", "std", "var_mean", "any", "all"}
REDUCTIONS |= {"logsumexp", "linalg_vector_norm"}
_OF_PARTS: dict[str, Callable[[Any, Any], Any]] = {
    **{"sum": aten.add.Tensor, "mean": aten.add.Tensor, "amax": aten.maximum.default, "max": aten.maximum.default},
    **{"amin": aten.minimum.default, "min": aten.minimum.default},
}


class CannotCutError(Exception):
    """A function that is not cut so."""


@dataclass(eq=False, kw_only=True)
class Step:
    """An operation. place: "front", "kernel" or "behind"; `constant`: the number of which all its elements are."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    val: Any
    node: Node
    place: str
    is_free: bool = False
    is_whole: bool = False
    constant: Any = None

    @property
    def name(self) -> str:
        return "getitem" if self.op is operator.getitem else str(self.op.overloadpacket.__name__) if self.op else ""

    @property
    def given(self) -> list[Step]:
        return [a for a in torch.utils._pytree.tree_leaves((self.args, self.kwargs)) if isinstance(a, Step)]

    def bound(self) -> dict[str, Any]:
        return bound(self.op, self.args, self.kwargs)


@dataclass(eq=False)
class Parts:
    """A tensor as its parts along one dimension."""

    dim: int
    parts: list[Step]

    @property
    def shape(self) -> list[int]:
        found = list(self.parts[0].val.shape)
        found[self.dim] = sum(part.val.shape[self.dim] for part in self.parts)
        return found


def bound(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operation by name."""
    of = op._schema.arguments
    found = {a.name: a.default_value for a in of if a.has_default_value()}
    return found | dict(zip((a.name for a in of), args, strict=False)) | kwargs


def is_pointwise(op: Any) -> bool:
    if op is operator.getitem or op is None:
        return False
    return torch.Tag.pointwise in op.tags or op.overloadpacket.__name__ in {*_SAME, "masked_fill", "uniform_of"}


def dims_of(step: Step) -> tuple[set[int], bool]:
    """The dimensions that a reduction goes along, all of those of its tensor without any, and whether it keeps them."""
    named, count = step.bound(), len(shape_of(step.args[0]))
    dim = named.get("dim")
    dims = [dim] if isinstance(dim, int) else dim or range(count)
    return {d % count for d in dims} if count else set(), bool(named.get("keepdim", False))


def shape_of(value: Any) -> list[int]:
    if isinstance(value, Parts):
        return value.shape
    found = value.val[0] if isinstance(value.val, tuple | list) else value.val
    return list(found.shape)


@dataclass
class Pieces:
    """A graph of a function of tensors of known sizes, operation by operation. Raises CannotCutError."""

    graph: Any
    mode: Any
    steps: list[Step] = field(default_factory=list)
    arguments: list[Step] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    parts: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found: dict[Node, Any] = {}
        given = [n.meta["val"] for n in self.graph.graph.nodes if n.op == "placeholder"]
        self.few = max((t.numel() for t in given if t.dtype.is_floating_point), default=0) // 2
        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                val = node.meta["val"]
                found[node] = Step(op=None, args=(), kwargs={}, val=val, node=node, place="front")
                found[node].is_whole = not val.dtype.is_floating_point
                self.arguments.append(found[node])
            elif node.op == "output":
                self.results = [self.whole(found[n]) if isinstance(n, torch.fx.Node) else n for n in node.args[0]]
            elif node.op == "call_function":
                args, kwargs = (torch.fx.map_arg(given, lambda n: found[n]) for given in (node.args, node.kwargs))
                found[node] = self.applied(node.target, args, dict(kwargs), node)
            else:
                raise CannotCutError

    def made(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], node: Node, place: str = "") -> Step:
        """A step, in its place: where what it takes is, and in the kernel where it computes."""
        step = Step(op=op, args=tuple(args), kwargs=kwargs, val=None, node=node, place=place)
        given = step.given
        fakes = torch.utils._pytree.tree_map(lambda a: a.val if isinstance(a, Step) else a, (step.args, kwargs))
        with self.mode:
            step.val = op(*fakes[0], **fakes[1])
        places = {g.place for g in given}
        step.is_free = all(g.is_free for g in given)
        # What follows from whole numbers alone, as a mask of padding does, has no gradient, and is small.
        step.is_whole = bool(given) and all(g.is_whole for g in given) and _count(step) <= self.few
        is_made = step.is_free or (step.is_whole and is_pointwise(op))
        is_moved = places <= {"front"} and (step.name in _MOVES or op is operator.getitem or is_made)
        step.place = place or ("behind" if "behind" in places else "front" if is_moved else "kernel")
        if step.place == "behind" and step.name not in {*_MOVES, *_BEHIND, "getitem"} and _count(step) > self.few:
            raise CannotCutError  # torch would compute there what is a kernel's
        if step.name in _MADE and step.is_free and not given:
            at = _MADE[step.name]
            step.constant = float(step.name == "ones") if at is None else step.args[at]
        self.steps.append(step)
        return step

    def applied(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], node: Node) -> Any:
        if op is operator.getitem:
            given, at = args
            return given[at] if isinstance(given, tuple) else self.made(op, args, {}, node)
        if not isinstance(op, torch._ops.OpOverload):
            raise CannotCutError
        name = called(node) if op is node.target else op.overloadpacket.__name__
        if name in _LIKE:
            val = node.meta["val"]
            value = args[_LIKE[name]] if "full" in name else _LIKE[name]
            return self.made(
                aten.full.default, (list(val.shape), value), {"dtype": val.dtype, "device": val.device}, node
            )
        if name in ("empty_like", "new_empty", "rand_like", "randn_like"):
            val = node.meta["val"]
            of = {"rand_like": aten.rand.default, "randn_like": aten.randn.default}.get(name, aten.empty.memory_format)
            return self.made(of, (list(val.shape),), {"dtype": val.dtype, "device": val.device}, node)
        if name in ("_softmax", "_log_softmax"):
            args = [self.unshifted(args[0], args[1]), *args[1:]]
        flat = torch.utils._pytree.tree_leaves((args, kwargs))
        if any(isinstance(a, Parts) for a in flat):
            return self.of_parts(op, name, list(args), kwargs, node)
        given = [a for a in flat if isinstance(a, Step)]
        places = {g.place for g in given}
        if name in _PARTS and "kernel" in places:
            return self.cut(name, args[0], bound(op, args, kwargs), node)
        if name in ("cat", "stack") and "kernel" in places and "behind" not in places:
            return self.together(name, args[0], bound(op, args, kwargs)["dim"], node)
        return self.made(op, args, kwargs, node, "behind" if name in _BEHIND and places else "")

    def unshifted(self, value: Any, dim: int) -> Any:
        """Without what its author takes from each row, as its largest: a softmax is the same, and has a gradient."""
        parts = value.parts if isinstance(value, Parts) else [value]
        dim %= len(shape_of(value))
        if not all(p.op is aten.sub.Tensor and len(p.args) == 2 and not p.kwargs for p in parts):
            return value
        rows, shifts = [p.args[0] for p in parts], {p.args[1] for p in parts}
        (shift, *others) = shifts
        is_of_rows = isinstance(shift, Step) and shift.val.ndim == len(shape_of(value)) and shift.val.shape[dim] == 1
        if others or not is_of_rows or any(r.val.shape != p.val.shape for r, p in zip(rows, parts, strict=True)):
            return value
        return Parts(value.dim, rows) if isinstance(value, Parts) else rows[0]

    # parts of a value

    def cut(self, name: str, given: Any, named: dict[str, Any], node: Node) -> Any:
        dim = named["dim"] % len(shape_of(given))
        size = shape_of(given)[dim]
        if name == "slice":
            start, end = named["start"] or 0, size if named["end"] is None else named["end"]
            start, end = (max(0, v + size if v < 0 else min(v, size)) for v in (start, end))
            return self.part(given, dim, start, end, named["step"])
        if name in ("select", "unbind"):
            places = [named["index"] % size] if name == "select" else range(size)
            ones = [self.squeezed(self.part(given, dim, i, i + 1), dim, node) for i in places]
            return ones[0] if name == "select" else tuple(ones)
        each: Any = named.get("split_size", named.get("split_sizes"))
        lengths = each if isinstance(each, list | tuple) else [min(each, size - i) for i in range(0, size, each)]
        ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
        return tuple(self.part(given, dim, end - n, end) for n, end in zip(lengths, ends, strict=True))

    def squeezed(self, value: Any, dim: int, node: Node) -> Any:
        return self.applied(aten.squeeze.dim, (value, dim), {}, node)

    def part(self, value: Any, dim: int, start: int, end: int, step: int = 1) -> Any:
        """The elements from `start` to `end` along a dimension: of a computed value, computed of the parts."""
        size = shape_of(value)[dim]
        if (start, end, step) == (0, size, 1):
            return value
        key = (id(value), dim, start, end, step)
        if key not in self.parts:
            self.parts[key] = self.part_of(value, dim, start, end, step)
        return self.parts[key]

    def part_of(self, value: Any, dim: int, start: int, end: int, step: int) -> Any:
        def of(given: Any, at: int = dim) -> Any:
            return self.part(given, at, start, end, step)

        if isinstance(value, Parts):
            if value.dim != dim:
                return Parts(value.dim, [of(part) for part in value.parts])
            found, first = [], 0
            for part in value.parts:
                last = first + part.val.shape[dim]
                if start < last and first < end:
                    if step != 1:
                        raise CannotCutError
                    found.append(self.part(part, dim, max(start - first, 0), min(end, last) - first))
                first = last
            return found[0] if len(found) == 1 else Parts(dim, found)
        if value.place != "kernel":
            return self.made(aten.slice.Tensor, (value, dim, start, end, step), {}, value.node)
        named, name = ({} if value.op is operator.getitem else value.bound()), value.name
        count = value.val.ndim if isinstance(value.val, torch.Tensor) else 0
        if is_pointwise(value.op):

            def aligned(given: Any) -> Any:
                if not isinstance(given, Step):
                    return given
                at = dim - count + given.val.ndim
                return given if at < 0 or given.val.shape[at] == 1 else of(given, at)

            args = [aligned(a) for a in value.args]
            return self.applied(value.op, args, {k: aligned(v) for k, v in value.kwargs.items()}, value.node)
        if name == "unsqueeze":
            at = named["dim"] % count
            return self.applied(value.op, (of(value.args[0], dim - (dim > at)), at), {}, value.node)
        if name == "permute":
            order = [d % count for d in named["dims"]]
            return self.applied(value.op, (of(value.args[0], order[dim]), order), {}, value.node)
        if name == "transpose":
            one, other = named["dim0"] % count, named["dim1"] % count
            at = {one: other, other: one}.get(dim, dim)
            return self.applied(value.op, (of(value.args[0], at), one, other), {}, value.node)
        if name in REDUCTIONS and name not in ("var_mean",) and isinstance(value.val, torch.Tensor):
            dims, keeps = dims_of(value)
            at = dim if keeps else [d for d in range(len(shape_of(value.args[0]))) if d not in dims][dim]
            return self.applied(value.op, (of(value.args[0], at), *value.args[1:]), value.kwargs, value.node)
        if name in ("_softmax", "_log_softmax") and named["dim"] % count != dim:
            return self.applied(value.op, (of(value.args[0]), *value.args[1:]), value.kwargs, value.node)
        raise CannotCutError

    # values in parts

    def together(self, name: str, given: Sequence[Any], dim: int, node: Node) -> Any:
        if name == "stack":
            dim %= len(shape_of(given[0])) + 1
            given = [self.applied(aten.unsqueeze.default, (one, dim), {}, node) for one in given]
        dim %= len(shape_of(given[0]))
        if any(isinstance(one, Parts) and one.dim != dim for one in given):
            raise CannotCutError
        return Parts(dim, [part for one in given for part in (one.parts if isinstance(one, Parts) else [one])])

    def whole(self, value: Any) -> Any:
        """Of parts, what torch puts together behind the kernel."""
        if isinstance(value, Parts):
            return self.made(aten.cat.default, (value.parts, value.dim), {}, value.parts[0].node, "behind")
        return value

    def of_parts(self, op: Any, name: str, args: list[Any], kwargs: dict[str, Any], node: Node) -> Any:
        if name in _PARTS:
            return self.cut(name, args[0], bound(op, args, kwargs), node)
        if name in ("cat", "stack"):
            return self.together(name, args[0], bound(op, args, kwargs)["dim"], node)
        if is_pointwise(op):
            return self.each(op, args, kwargs, node)
        if not isinstance(args[0], Parts):
            raise CannotCutError
        x = args[0]
        count, dim = len(x.shape), x.dim

        def to_each(at: int, *rest: Any) -> Parts:
            return Parts(at, [self.applied(op, (part, *rest), kwargs, node) for part in x.parts])

        named = bound(op, args, kwargs)
        if name == "unsqueeze":
            at = named["dim"] % (count + 1)
            return to_each(dim + (at <= dim), at)
        if name == "squeeze":
            at = named["dim"] % count
            return x if x.shape[at] != 1 else to_each(dim - (at < dim), at)
        if name == "permute":
            order = [d % count for d in named["dims"]]
            return to_each(order.index(dim), order)
        if name == "transpose":
            one, other = named["dim0"] % count, named["dim1"] % count
            return to_each({one: other, other: one}.get(dim, dim), one, other)
        if (
            name in ("view", "reshape", "_unsafe_view")
            and dim == count - 1
            and named[_shape(op)][-1] in (-1, x.shape[-1])
        ):
            leading = named[_shape(op)][:-1]
            parts = [self.applied(op, (p, [*leading, p.val.shape[-1]]), {}, node) for p in x.parts]
            return Parts(len(leading), parts)
        if name in _VIEWS:
            return self.made(op, (self.whole(x), *args[1:]), kwargs, node, "behind")
        return self.reduced(op, name, x, args, kwargs, node)

    def each(self, op: Any, args: list[Any], kwargs: dict[str, Any], node: Node) -> Parts:
        """An operation of elements, of each part."""
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, Parts | Step)]
        count = max(len(shape_of(a)) for a in given)
        parts = [a for a in given if isinstance(a, Parts)]
        places = {a.dim + count - len(a.shape) for a in parts}
        if len(places) != 1:
            raise CannotCutError
        (dim,) = places
        ends = sorted({end for a in parts for end in _ends(a)})

        def aligned(given: Any, start: int, end: int) -> Any:
            if not isinstance(given, Parts | Step):
                return given
            at = dim - count + len(shape_of(given))
            return given if at < 0 or shape_of(given)[at] == 1 else self.part(given, at, start, end)

        found = []
        for start, end in zip((0, *ends), ends, strict=False):
            taken = [aligned(a, start, end) for a in args]
            named = {k: aligned(v, start, end) for k, v in kwargs.items()}
            found.append(self.applied(op, taken, named, node))
        return Parts(dim, found)

    def reduced(self, op: Any, name: str, x: Parts, args: list[Any], kwargs: dict[str, Any], node: Node) -> Any:
        def run(op: Any, *given: Any, **named: Any) -> Any:
            return self.applied(op, given, named, node)

        named, count, dim = bound(op, args, kwargs), len(x.shape), x.dim
        along: Any = named.get("dim")
        dims = [along] if isinstance(along, int) else along or []
        if name in ("_softmax", "_log_softmax"):
            if along % count != dim:
                return Parts(dim, [run(op, part, *args[1:]) for part in x.parts])
            shifted = run(aten.sub.Tensor, x, run(aten.detach.default, run(aten.amax.default, x, [dim], True)))
            exps = run(aten.exp.default, shifted)
            total = run(aten.sum.dim_IntList, exps, [dim], True)
            if name == "_softmax":
                return run(aten.div.Tensor, exps, total)
            return run(aten.sub.Tensor, shifted, run(aten.log.default, total))
        if name == "logsumexp" and [d % count for d in dims] == [dim]:
            top = run(aten.detach.default, run(aten.amax.default, x, [dim], True))
            total = run(aten.sum.dim_IntList, run(aten.exp.default, run(aten.sub.Tensor, x, top)), [dim], True)
            found = run(aten.add.Tensor, top, run(aten.log.default, total))
            return found if named["keepdim"] else self.squeezed(found, dim, node)
        if name in _OF_PARTS and len(args) > 1 and isinstance(op, torch._ops.OpOverload):
            places = {d % count for d in dims}
            if dim not in places:
                keeps = named["keepdim"]
                at = dim if keeps else dim - sum(p < dim for p in places)
                return Parts(at, [run(op, part, *args[1:], **kwargs) for part in x.parts])
            of = {"mean": aten.sum.dim_IntList, "max": aten.amax.default, "min": aten.amin.default}.get(name, op)
            each = [run(of, part, [*places], named["keepdim"]) for part in x.parts]
            found = each[0]
            for one in each[1:]:
                found = run(_OF_PARTS[name], found, one)
            if name == "mean":
                size = 1
                for place in places:
                    size *= x.shape[place]
                found = run(aten.div.Scalar, found, size)
            return (found, None) if name in ("max", "min") else found
        raise CannotCutError


def _count(step: Step) -> int:
    return step.val.numel() if isinstance(step.val, torch.Tensor) else 0


def _shape(op: Any) -> str:
    return "size" if any(a.name == "size" for a in op._schema.arguments) else "shape"


def _ends(parts: Parts) -> list[int]:
    lengths = [part.val.shape[parts.dim] for part in parts.parts]
    return [sum(lengths[: i + 1]) for i in range(len(lengths))]
