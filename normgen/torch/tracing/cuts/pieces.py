"""A function as what torch does in front of a kernel, what the kernel does, and what torch does behind it.

In front: views and parts of arguments, and what takes no argument's values, such as a mask of numbers or a random
tensor. Behind: parts put together, and the largest of a row. Between them stand values of rows alone: a part of a
computed value is computed of parts, and parts that are put together stay apart until the end.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from normgen.torch.tracing.reasons import why_no_constant

aten = torch.ops.aten
Node = Any  # of a torch.fx.Graph

_SAME = {"_to_copy", "detach", "clone", "contiguous", "alias", "lift_fresh_copy"}
RESHAPES = {"view", "reshape", "_unsafe_view"}
_VIEWS = {*RESHAPES, "unsqueeze", "squeeze", "permute", "transpose", "t", "expand", "alias"}
_PARTS = {"slice", "select", "split", "split_with_sizes", "unbind", "chunk"}
_MOVES = {*_VIEWS, *_PARTS, "cat", "stack", "clone", "contiguous", "constant_pad_nd", "flip", "roll", "lift_fresh_copy"}
_BEHIND = {"topk"}
_MADE = {"full": 1, "scalar_tensor": 0, "zeros": None, "ones": None}
_LIKE = dict.fromkeys(("full_like", "zeros_like", "ones_like", "new_full", "new_zeros", "new_ones"), aten.full.default)
_LIKE |= dict.fromkeys(("empty_like", "new_empty"), aten.empty.memory_format)
_LIKE |= {"rand_like": aten.rand.default, "randn_like": aten.randn.default}
REDUCTIONS = {"sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "var", "std", "var_mean", "any", "all"}
REDUCTIONS |= {"logsumexp", "linalg_vector_norm"}
SOFTMAXES = {"_softmax", "_log_softmax"}
_OF_PARTS: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {  # how each part is reduced, and what joins two
    **dict.fromkeys(("sum", "mean"), (aten.sum.dim_IntList, aten.add.Tensor)),
    **dict.fromkeys(("amax", "max"), (aten.amax.default, aten.maximum.default)),
    **dict.fromkeys(("amin", "min"), (aten.amin.default, aten.minimum.default)),
}


class CannotCutError(Exception):
    """A function that is not cut so."""


@dataclass(eq=False, kw_only=True)
class Operation:
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
        return name_of(self.op) if self.op else ""

    @property
    def given(self) -> list[Operation]:
        return [a for a in torch.utils._pytree.tree_leaves((self.args, self.kwargs)) if isinstance(a, Operation)]


@dataclass(eq=False)
class TensorParts:
    """A tensor as its parts along one dimension."""

    dim: int
    parts: list[Operation]

    @property
    def ends(self) -> list[int]:
        return [*itertools.accumulate(shape_of(part)[self.dim] for part in self.parts)]


def name_of(op: Any) -> str:
    return "getitem" if op is operator.getitem else str(op.overloadpacket.__name__)


def bound(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operation by name."""
    of = op._schema.arguments
    found = {a.name: a.default_value for a in of if a.has_default_value()}
    return found | dict(zip((a.name for a in of), args, strict=False)) | kwargs


def is_pointwise(op: Any) -> bool:
    if op is operator.getitem or op is None:
        return False
    return torch.Tag.pointwise in op.tags or name_of(op) in {*_SAME, "masked_fill", "uniform_of"}


def shape_of(value: Any) -> list[int]:
    if isinstance(value, TensorParts):
        found = shape_of(value.parts[0])
        found[value.dim] = value.ends[-1]
        return found
    return list((value.val[0] if isinstance(value.val, tuple | list) else value.val).shape)


def dims_of(named: dict[str, Any], count: int) -> set[int]:
    """The dimensions that an operation goes along: all of those of its tensor, if it says none."""
    dim = named.get("dim")
    return {d % count for d in ([dim] if isinstance(dim, int) else dim or range(count))}


def places_of(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[int | None]:
    """Of each dimension of a result: which of the first tensor's it is; None: none of these. [] of other operations."""
    name, shape = name_of(op), shape_of(args[0])
    count, places = len(shape), [*range(len(shape))]
    if name == "permute":
        return [d % count for d in args[1]]
    if name in ("transpose", "t"):
        one, other = args[1:3] if name == "transpose" else (0, -1)
        places[one], places[other] = places[other], places[one]
        return [*places]
    if name == "unsqueeze":
        at = args[1] % (count + 1)
        return [*places[:at], None, *places[at:]]
    if name not in {"squeeze", *SOFTMAXES, *REDUCTIONS}:
        return []
    named = bound(op, args, kwargs)
    dims, keeps = dims_of(named, count), named.get("keepdim", name in SOFTMAXES)
    if name == "squeeze":
        return [d for d in places if d not in dims or shape[d] != 1]
    return [None if d in dims else d for d in places if keeps or d not in dims]


@dataclass
class Pieces:
    """A graph of a function of tensors of known sizes, operation by operation. Raises CannotCutError.

    copies  torch copies arguments whose new shape is no view of them; else the kernel's rows are what they would be
    """

    graph: Any
    mode: Any
    copies: bool
    steps: list[Operation] = field(default_factory=list)
    arguments: list[Operation] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    parts: dict[Any, Any] = field(default_factory=dict)
    uncopied: set[Any] = field(default_factory=set)  # of whose copies the kernel reads the originals

    def __post_init__(self) -> None:
        found: dict[Node, Any] = {}
        given = [n.meta["val"] for n in self.graph.graph.nodes if n.op == "placeholder"]
        self.few = max((t.numel() for t in given if t.dtype.is_floating_point), default=0) // 2
        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                val = node.meta["val"]
                found[node] = Operation(op=None, args=(), kwargs={}, val=val, node=node, place="front")
                found[node].is_whole = not val.dtype.is_floating_point
                self.arguments.append(found[node])
            elif node.op == "output":
                self.results = [self.result(found[n]) if isinstance(n, torch.fx.Node) else n for n in node.args[0]]
            elif node.op == "call_function":
                args, kwargs = (torch.fx.map_arg(given, lambda n: found[n]) for given in (node.args, node.kwargs))
                found[node] = self.applied(node.target, args, dict(kwargs), node)
            else:
                raise CannotCutError

    def made(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], node: Node, place: str = "") -> Operation:
        """A step, in its place: where what it takes is, and in the kernel where it computes."""
        step = Operation(op=op, args=tuple(args), kwargs=kwargs, val=None, node=node, place=place)
        given = step.given
        fakes = torch.utils._pytree.tree_map(lambda a: a.val if isinstance(a, Operation) else a, (step.args, kwargs))
        with self.mode:
            step.val = op(*fakes[0], **fakes[1])
        places = {g.place for g in given}
        step.is_free = all(g.is_free for g in given)
        # What follows from whole numbers alone, as a mask of padding does, has no gradient, and is small.
        step.is_whole = bool(given) and all(g.is_whole for g in given) and _count(step) <= self.few
        is_made = step.is_free or (step.is_whole and is_pointwise(op))
        is_view = step.name in {*_MOVES, "getitem"} and (self.copies or not _copies(step))
        is_moved = places <= {"front"} and (is_view or is_made)
        step.place = place or ("behind" if "behind" in places else "front" if is_moved else "kernel")
        if step.place == "behind" and step.name not in {*_MOVES, *_BEHIND, "getitem"} and _count(step) > self.few:
            raise CannotCutError  # torch would compute there what is a kernel's
        if step.name in _MADE and step.is_free and not given:
            at = _MADE[step.name]
            value = float(step.name == "ones") if at is None else step.args[at]
            if not why_no_constant(value):  # else torch makes it in front, and the kernel takes a number
                step.constant = value
        self.steps.append(step)
        return step

    def applied(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], node: Node) -> Any:
        if op is operator.getitem and isinstance(args[0], tuple):
            return args[0][args[1]]
        if op is not operator.getitem and not isinstance(op, torch._ops.OpOverload):
            raise CannotCutError
        name = name_of(op)
        if name in RESHAPES:  # a view of what the function was traced with may be none of what it is called with
            op, args = aten.reshape.default, args[:2]
        if name in ("clone", "contiguous") and isinstance(args[0], Operation) and args[0].place == "front":
            self.uncopied.add(args[0])
            return args[0]
        if name in _LIKE:
            val, value = node.meta["val"], args[-1] if "full" in name else int("ones" in name)
            sized = (list(val.shape), value) if _LIKE[name] is aten.full.default else (list(val.shape),)
            return self.made(_LIKE[name], sized, {"dtype": val.dtype, "device": val.device}, node)
        if op is aten.masked_fill.Scalar and why_no_constant(args[2]):
            kind = {"dtype": node.meta["val"].dtype, "device": node.meta["val"].device}
            filled = self.made(aten.full.default, ([], args[2]), kind, node)
            op, args, name = aten.where.self, (args[1], filled, args[0]), "where"
        if name in SOFTMAXES:
            args = [self.unshifted(args[0], args[1]), *args[1:]]
        flat = torch.utils._pytree.tree_leaves((args, kwargs))
        places = {a.place for a in flat if isinstance(a, Operation)}
        is_parted = any(isinstance(a, TensorParts) for a in flat)
        if name in _PARTS and (is_parted or "kernel" in places):
            return self.cut(name, args[0], bound(op, args, kwargs), node)
        if name in ("cat", "stack") and (is_parted or ("kernel" in places and "behind" not in places)):
            return self.together(name, args[0], bound(op, args, kwargs)["dim"], node)
        if is_parted:
            return self.of_parts(op, name, args, kwargs, node)
        return self.made(op, args, kwargs, node, "behind" if name in _BEHIND and places else "")

    def unshifted(self, value: Any, dim: int) -> Any:
        """Without what its author takes from each row, as its largest: a softmax is the same, and has a gradient."""
        parts = value.parts if isinstance(value, TensorParts) else [value]
        if not all(p.op is aten.sub.Tensor and len(p.args) == 2 and not p.kwargs for p in parts):
            return value
        rows, shifts = [p.args[0] for p in parts], {p.args[1] for p in parts}
        (shift, *others) = shifts
        is_of_rows = (
            isinstance(shift, Operation) and shift.val.ndim == len(shape_of(value)) and shift.val.shape[dim] == 1
        )
        if others or not is_of_rows or any(r.val.shape != p.val.shape for r, p in zip(rows, parts, strict=True)):
            return value
        return TensorParts(value.dim, rows) if isinstance(value, TensorParts) else rows[0]

    # parts of a value

    def cut(self, name: str, given: Any, named: dict[str, Any], node: Node) -> Any:
        dim = named["dim"] % len(shape_of(given))
        size = shape_of(given)[dim]
        if name == "slice":
            taken = range(size)[named["start"] : named["end"]]
            return self.part(given, dim, taken.start, taken.stop, named["step"])
        if name in ("select", "unbind"):
            places = [named["index"] % size] if name == "select" else range(size)
            ones = [self.squeezed(self.part(given, dim, i, i + 1), dim, node) for i in places]
            return ones[0] if name == "select" else tuple(ones)
        each: Any = named.get("split_size", named.get("split_sizes"))
        lengths = each if isinstance(each, list | tuple) else [min(each, size - i) for i in range(0, size, each)]
        ends = itertools.accumulate(lengths)
        return tuple(self.part(given, dim, end - n, end) for n, end in zip(lengths, ends, strict=True))

    def squeezed(self, value: Any, dim: int, node: Node) -> Any:
        return self.applied(aten.squeeze.dim, (value, dim), {}, node)

    def part(self, value: Any, dim: int, start: int, end: int, step: int = 1) -> Any:
        """The elements from `start` to `end` along a dimension: of a computed value, computed of the parts."""
        if (start, end, step) == (0, shape_of(value)[dim], 1):
            return value
        key = (id(value), dim, start, end, step)
        if key not in self.parts:
            self.parts[key] = self.part_of(value, dim, start, end, step)
        return self.parts[key]

    def part_of(self, value: Any, dim: int, *taken: int) -> Any:
        if isinstance(value, TensorParts):
            if value.dim != dim:
                return TensorParts(value.dim, [self.part(one, dim, *taken) for one in value.parts])
            start, end, step = taken
            found = []
            for first, last, one in zip((0, *value.ends), value.ends, value.parts, strict=False):
                if start < last and first < end:
                    found.append(self.part(one, dim, max(start - first, 0), min(end, last) - first))
            if step != 1:
                raise CannotCutError
            return found[0] if len(found) == 1 else TensorParts(dim, found)
        if value.place != "kernel":
            return self.made(aten.slice.Tensor, (value, dim, *taken), {}, value.node)
        if is_pointwise(value.op):
            args, kwargs = self.along(value, value.val.ndim - dim, *taken)
            return self.applied(value.op, args, kwargs, value.node)
        places = places_of(value.op, value.args, value.kwargs)
        at = places[dim] if places else None
        if at is None or not isinstance(value.val, torch.Tensor):
            raise CannotCutError
        given = self.part(value.args[0], at, *taken)
        return self.applied(value.op, (given, *value.args[1:]), value.kwargs, value.node)

    def along(self, of: Any, behind: int, *taken: int) -> tuple[Any, Any]:
        """What an operation of elements takes for a part of its result: parts of its tensors, counted from the last."""

        def aligned(given: Any) -> Any:
            at = len(shape_of(given)) - behind if isinstance(given, TensorParts | Operation) else -1
            return given if at < 0 or shape_of(given)[at] == 1 else self.part(given, at, *taken)

        args, kwargs = torch.utils._pytree.tree_map(aligned, (of.args, of.kwargs))
        return args, kwargs

    # values in parts

    def together(self, name: str, given: Sequence[Any], dim: int, node: Node) -> Any:
        if name == "stack":
            dim %= len(shape_of(given[0])) + 1
            given = [self.applied(aten.unsqueeze.default, (one, dim), {}, node) for one in given]
        dim %= len(shape_of(given[0]))
        if any(isinstance(one, TensorParts) and one.dim != dim for one in given):
            raise CannotCutError
        return TensorParts(
            dim, [part for one in given for part in (one.parts if isinstance(one, TensorParts) else [one])]
        )

    def result(self, value: Any) -> Any:
        """What is returned: `whole`, and a copy of what the function copied."""
        value, step = self.whole(value), value
        while isinstance(step, Operation) and step.place == "front":
            if step in self.uncopied:
                return self.made(aten.clone.default, (value,), {}, value.node, "behind")
            step = next(iter(step.given), None)
        return value

    def whole(self, value: Any) -> Any:
        """Of parts, what torch puts together behind the kernel."""
        if isinstance(value, TensorParts):
            return self.made(aten.cat.default, (value.parts, value.dim), {}, value.parts[0].node, "behind")
        return value

    def of_parts(self, op: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any], node: Node) -> Any:
        if is_pointwise(op):
            return self.each(op, args, kwargs, node)
        x, *rest = args
        if not isinstance(x, TensorParts):
            raise CannotCutError
        shape = shape_of(x)
        places = [x.dim] if name == "getitem" else places_of(op, args, kwargs)
        if name == "squeeze":  # a part may be one of what the whole has several of
            op, rest = aten.squeeze.dims, [[d for d in dims_of(bound(op, args, kwargs), len(shape)) if shape[d] == 1]]
        if x.dim in places:
            at = x.dim if name == "getitem" else places.index(x.dim)
            return TensorParts(at, [self.applied(op, (part, *rest), kwargs, node) for part in x.parts])
        if name in RESHAPES and x.dim == len(shape) - 1 and args[1][-1] in (-1, shape[-1]):
            leading = args[1][:-1]
            parts = [self.applied(op, (p, [*leading, p.val.shape[-1]]), {}, node) for p in x.parts]
            return TensorParts(len(leading), parts)
        if name in _VIEWS:
            return self.made(op, (self.whole(x), *rest), kwargs, node, "behind")
        return self.reduced(name, x, bound(op, args, kwargs), node)

    def each(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], node: Node) -> TensorParts:
        """An operation of elements, of each part."""
        of = Operation(op=op, args=tuple(args), kwargs=kwargs, val=None, node=node, place="kernel")
        given = [a for a in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(a, TensorParts | Operation)]
        count, parts = max(len(shape_of(a)) for a in given), [a for a in given if isinstance(a, TensorParts)]
        behinds = {len(shape_of(a)) - a.dim for a in parts}
        if len(behinds) != 1:
            raise CannotCutError
        (behind,), ends = behinds, sorted({end for a in parts for end in a.ends})
        pairs = zip((0, *ends), ends, strict=False)
        return TensorParts(count - behind, [self.applied(op, *self.along(of, behind, *pair), node) for pair in pairs])

    def reduced(self, name: str, x: TensorParts, named: dict[str, Any], node: Node) -> Any:
        """What reduces values along the dimension of their parts."""

        def run(op: Any, *given: Any) -> Any:
            return self.applied(op, given, {}, node)

        shape, dims = shape_of(x), sorted(dims_of(named, len(shape_of(x))))
        if name in {*SOFTMAXES, "logsumexp"} and dims == [x.dim]:
            top = run(aten.detach.default, run(aten.amax.default, x, dims, True))
            shifted = run(aten.sub.Tensor, x, top)
            exps = run(aten.exp.default, shifted)
            total = run(aten.sum.dim_IntList, exps, dims, True)
            if name == "_softmax":
                return run(aten.div.Tensor, exps, total)
            log = run(aten.log.default, total)
            if name == "_log_softmax":
                return run(aten.sub.Tensor, shifted, log)
            found = run(aten.add.Tensor, top, log)
            return found if named["keepdim"] else self.squeezed(found, x.dim, node)
        if name not in _OF_PARTS:
            raise CannotCutError
        of, joined = _OF_PARTS[name]
        found, *others = [run(of, part, dims, named.get("keepdim", False)) for part in x.parts]
        for one in others:
            found = run(joined, found, one)
        if name == "mean":
            found = run(aten.div.Scalar, found, math.prod(shape[d] for d in dims))
        return (found, None) if name in ("max", "min") and "dim" in named else found


def _count(step: Operation) -> int:
    return step.val.numel() if isinstance(step.val, torch.Tensor) else 0


def _copies(step: Operation) -> bool:
    """Whether another shape of a value is a copy of it."""
    if step.name not in RESHAPES or step.is_free:
        return False
    with torch.utils._python_dispatch._disable_current_modes():
        lying = torch.empty_strided(step.given[0].val.shape, step.given[0].val.stride(), device="meta")
        try:
            lying.view(step.args[1])
        except RuntimeError:
            return True
    return False
