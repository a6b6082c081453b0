"""A function of torch tensors as the graph of aten operations that it calls, for any number of rows and of columns.

It runs once on tensors without data (`FakeTensor`), whose sizes are symbols. Each node of the graph keeps the line of
its author's file. What asks for data or for a number of rows is refused with that line.
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import logging
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx.traceback as metadata
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.overrides import TorchFunctionMode

from normgen.errors import UsageError
from normgen.torch.drawing import dropped
from normgen.torch.tracing.reasons import (
    BETWEEN,
    CALLED,
    DRAWS,
    NO_DATA,
    OF_NUMBER,
    called,
    hint_for,
    name_of_call,
    title,
    unknown,
    untraceable,
)

Node = Any  # of a torch.fx.Graph
Dims = tuple[tuple[int, ...], ...]  # of each size of a tensor: the axes that it counts, none of a size of 1

COLS = -1  # the axis of the columns; those of the rows are 0, 1, .. from the left
INNER = -2  # the axis that products of matrices sum
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
_TORCH = os.path.dirname(torch.__file__)
_SIZES = (5, 7, 11, 13, 17, 19, 23, 29)  # stand-ins: no two axes, nor products of them, have one size
_OF_FUNCTIONS = {
    os.path.join(_TORCH, *file) for file in (("autograd", "function.py"), ("_functorch", "autograd_function.py"))
}
_NO_GRADIENT = "normgen_no_gradient"
_FAKES = "torch._subclasses.fake_tensor"
_MOST_TRIES, _MOST_PRODUCTS = 24, 96
_MOST_NUMBERS = 64  # of a tensor that a function writes out; one of more is an argument
_DETACH = "say where no gradient goes with detach(), or keep it outside"
_OF_GRADIENTS = {name: getattr(torch.Tensor, name).__get__ for name in ("requires_grad", "grad", "grad_fn", "is_leaf")}
_KEPT = [  # of the operations that torch can say as others: those that the language says better itself
    *("silu", "gelu", "relu", "clamp", "clamp_min", "clamp_max", "masked_fill"),
    *("mean", "var", "std", "logsumexp", "linalg_vector_norm", "detach", "hardtanh", "softplus", "roll"),
]

_PLAINER = [
    getattr(torch.ops.aten, name)
    for name in (
        *("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy"),
        *("binary_cross_entropy_with_logits", "log_sigmoid_forward", "glu"),
    )
]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What one call of a function does.

    raw    as torch's own operations, in-place ones replaced; it runs on tensors of any dtype
    core   the same as few kinds of operations
    dims   of each tensor that is given
    rows_of  the tensor that has all axes of the rows, and behind them the columns, or inner in a function of products
    axes   the sizes of the axes of rows, and behind them that of the columns: symbols, or a number
    inner  that of the axis which products sum; None without products
    tree   how the results that a graph returns are put together
    """

    raw: Any
    core: Any
    dims: tuple[Dims, ...]
    rows_of: int
    axes: tuple[Any, ...]
    inner: Any
    tree: Any


def line_of(node: Node) -> str:
    """`file.py:12: y = x.cumsum(-1)`: where the author wrote the operation."""
    return str(node.meta.get("stack_trace") or node.name)


def refused(rule: str, line: str, hint: str | None = None) -> UsageError:
    return UsageError(rule, received=line, hint=hint)


def recorded(
    call: Callable[..., Any],
    names: Sequence[str],
    sizes: Sequence[tuple[int, ...]],
    dtypes: Sequence[Any],
    device: Any,
    rows_of: int,
    lasts: Sequence[int],
) -> Recorded | None:
    """The record of `call` with tensors of these sizes and dtypes, whose rows are those of tensor number `rows_of`.

    Of a function of products, which no reading as rows alone fits, the rows are those of any tensor.

    Sizes that agree only by chance are told apart by trying: [n] of a tensor [n, n] is a parameter if the function
    takes it as one, else a value of each row.

    lasts  the last size of each tensor: the record is for this number of columns, or this inner, alone; none: for any,
           and None is returned of a function that takes one number of columns, as `layer_norm(x, (768,))` does

    Raises UsageError with the line of what cannot be recorded.
    """
    whole = [not (dtype.is_floating_point or dtype is torch.bool) for dtype in dtypes]
    tries = [(rows_of, dims) for dims in itertools.islice(_interpretations(sizes, whole, rows_of), _MOST_TRIES)]
    tries += itertools.islice(_of_products(sizes, dtypes), _MOST_PRODUCTS)
    if not tries:
        rule = "a tensor of a function that is traced has the rows' sizes, or some of them, in their order"
        known = [list(_counted(shape, sizes[rows_of], (*range(len(sizes[rows_of]) - 1), COLS))) for shape in sizes]
        has_matrices = sum(d.is_floating_point and len(s) > 1 for d, s in zip(dtypes, sizes, strict=True)) > 1
        hint = hint_for("mm") if has_matrices else "x[i], a lookup, stays outside: pass what it gives, [.., cols]"
        raise refused(rule, ", ".join(n for n, dims in zip(names, known, strict=True) if not dims), hint)
    failures: list[UsageError] = []
    for place, dims in tries:
        try:
            return _recorded(call, dims, dtypes, device, lasts[place] if lasts else 0, place)
        except _SizesError as error:
            failures.append(error.error)
    if lasts:
        raise failures[0]
    return None


class _SizesError(Exception):
    """The function does not take tensors of these sizes."""

    def __init__(self, error: UsageError) -> None:
        self.error = error


def _interpretations(
    sizes: Sequence[tuple[int, ...]], whole: Sequence[bool], rows_of: int
) -> Iterator[tuple[Dims, ...]]:
    """What the sizes of each tensor may count, the likeliest first."""
    first = sizes[rows_of]
    axes = (*range(len(first) - 1), COLS)
    known = [list(_counted(shape, first, axes)) for shape in sizes]
    for dims, is_whole in zip(known, whole, strict=True):
        if is_whole:  # labels: values of rows
            dims.sort(key=lambda found: (COLS,) in found)
    known[rows_of] = [tuple((axis,) for axis in axes)]
    yield from itertools.product(*known)


def _of_products(sizes: Sequence[tuple[int, ...]], dtypes: Sequence[Any]) -> Iterator[tuple[int, tuple[Dims, ...]]]:
    """(Whose rows they are, what the sizes of each tensor count) where rows [.., inner] meet a matrix, or some."""
    floats = [i for i, d in enumerate(dtypes) if d.is_floating_point and len(sizes[i]) > 1]
    for left in sorted(floats, key=lambda i: -len(sizes[i])):
        *rows, inner = sizes[left]
        matrices = [sizes[i] for i in floats if i != left and inner in sizes[i][-2:]]
        for cols in dict.fromkeys(sum(shape[-2:]) - inner for shape in matrices):
            axes = {**dict(enumerate(rows)), INNER: inner, COLS: cols}
            known = [list(_counted_beside(shape, axes)) for shape in sizes]
            known[left] = [tuple((axis,) for axis in axes if axis != COLS)]
            for dims in itertools.product(*known):
                if any({INNER, COLS} <= {axis for dim in of for axis in dim} for of in dims):
                    yield left, dims


def _counted_beside(shape: tuple[int, ...], axes: Mapping[int, int]) -> Iterator[Dims]:
    """What the sizes of a tensor may count beside a product: axes of rows in their order, then inner, cols or both."""
    every = tuple(axis for axis in axes if axis >= 0)
    choices: list[list[tuple[int, ...]]] = []
    for size in shape:
        options: list[tuple[int, ...]] = [()] if size == 1 else []
        options += [(axis,) for axis in (INNER, COLS, *every) if axes[axis] == size]
        if len(every) > 1 and math.prod(axes[axis] for axis in every) == size:
            options.append(every)
        choices.append(options)
    for dims in itertools.product(*choices):
        flat = [axis for dim in dims for axis in dim]
        rows = [axis for axis in flat if axis >= 0]
        if len(flat) == len(set(flat)) and flat[: len(rows)] == sorted(rows):
            yield dims


def _counted(shape: tuple[int, ...], first: tuple[int, ...], axes: tuple[int, ...]) -> Iterator[Dims]:
    rows = axes[:-1]
    choices: list[list[tuple[int, ...]]] = []
    for place, size in enumerate(shape):
        aligned = place - len(shape) + len(first)
        order = sorted(range(len(first)), key=lambda i, aligned=aligned: i != aligned)  # type: ignore[misc]
        options: list[tuple[int, ...]] = [(axes[i],) for i in order if first[i] == size]
        if size == 1:
            options.insert(0, ())
        if len(rows) > 1 and math.prod(first[:-1]) == size:
            options.append(rows)
        choices.append(options)
    for dims in itertools.product(*choices):
        flat = [len(first) if axis == COLS else axis for dim in dims for axis in dim]
        if flat == sorted(set(flat)):
            yield dims


def _recorded(
    call: Callable[..., Any],
    dims: tuple[Dims, ...],
    dtypes: Sequence[Any],
    device: Any,
    length: int,
    rows_of: int,
) -> Recorded:
    """length  that of the last axis of tensor `rows_of`; 0: any"""
    *_, (last,) = dims[rows_of]
    count = len(dims[rows_of]) - 1
    stand_ins = [size for size in _SIZES if size != length]
    if count + (last == INNER) >= len(stand_ins):
        raise UsageError(f"rows have at most {len(stand_ins) - 1 - (last == INNER)} sizes", received=str(count))
    sizes = {axis: stand_ins[axis] for axis in range(count)} | {COLS: stand_ins[-1], last: length or stand_ins[count]}
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes)
    fixed = (last,) if length else ()
    fakes = [_fake(mode, tensor, sizes, dtype, device, fixed) for tensor, dtype in zip(dims, dtypes, strict=True)]
    found = {dim: size_of(s) for of, t in zip(dims, fakes, strict=True) for dim, s in zip(of, t.shape, strict=True)}
    axes, inner = tuple(found[(axis,)] for axis in (*range(count), COLS)), found.get((INNER,))

    lines = _Lines(shapes)
    with _running(mode, lines):
        raw, tree = _raw(call, fakes, lines)
        core = make_fx(torch.fx.Interpreter(raw).run, decomposition_table=_decompositions(axes[-1]))(*fakes)
        _made_plain(core)
        _check_products(core, inner, axes[-1])
    _check_guards(shapes, axes, inner, lines.asked)
    return Recorded(raw=raw, core=core, dims=dims, rows_of=rows_of, axes=axes, inner=inner, tree=tree)


def flat(call: Callable[..., Any], tensors: Sequence[Any]) -> tuple[Any, Any, Any]:
    """(The graph of `call` with tensors of these very sizes, how its results are put together, its mode of fakes).

    Dropout is a seed that torch draws, and numbers that follow from it. Raises UsageError as `recorded` does.
    """
    mode, lines = FakeTensorMode(), _Lines(ShapeEnv(), draws=True)
    with mode:
        fakes = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in tensors]
    try:
        with _running(mode, lines):
            raw, tree = _raw(call, fakes, lines)
            raw = make_fx(torch.fx.Interpreter(raw).run, decomposition_table=get_decompositions(_PLAINER))(*fakes)
            _made_plain(raw)
    except _SizesError as error:
        raise error.error from error
    return raw, tree, mode


def _raw(call: Callable[..., Any], fakes: Sequence[Any], lines: _Lines) -> tuple[Any, Any]:
    trees: list[Any] = []

    def run(*tensors: Any) -> list[Any]:
        with lines:
            leaves, tree = torch.utils._pytree.tree_flatten(call(*tensors))
        trees.append(tree)
        return list(leaves)

    # The empty table keeps `detach`: without one, it becomes an alias, which a gradient passes.
    raw = make_fx(torch.func.functionalize(run, remove="mutations"), decomposition_table={})(*fakes)
    _write_numbers_out(raw)
    _made_plain(raw)
    return raw, trees[0]


@contextlib.contextmanager
def _running(mode: Any, lines: _Lines) -> Iterator[None]:
    """With a function's operations noted, and what torch says of them as a refusal."""
    log, disabled = logging.getLogger(_FAKES), logging.getLogger(_FAKES).disabled
    log.disabled = True  # it writes of each reading of sizes that does not fit
    try:
        with mode, metadata.preserve_node_meta(), torch.enable_grad():
            yield
    except (UsageError, _SizesError):
        raise
    except (GuardOnDataDependentSymNode, DynamicOutputShapeException, DataDependentOutputException) as error:
        raise refused(NO_DATA, _user_line(error), "choose with torch.where") from error
    except Exception as error:
        if "allow_non_fake_inputs" in str(error):
            rule = "a function that is traced takes its tensors as arguments"
            raise refused(rule, _user_line(error), "pass it to the function") from error
        raise _SizesError(_untraceable(error, lines.called)) from error
    finally:
        log.disabled = disabled


def _check_products(core: Any, inner: Any, cols: Any) -> None:
    """_SizesError unless the first product of matrices sums `inner` of what has no columns: without inner, of any."""
    products = [node for node in core.graph.nodes if node.op == "call_function" and called(node) in PRODUCTS]
    if inner is not None and not products:
        raise _SizesError(refused("the function has no product of matrices", "its operations"))
    for node in products[:1]:
        left = [size_of(size) for size in node.args[-2].meta["val"].shape]
        if inner is None or left[-1] != inner or cols in left:
            rule, hint = unknown(title(node))
            raise _SizesError(refused(rule, line_of(node), hint))


def _fake(mode: Any, dims: Dims, sizes: Mapping[int, int], dtype: Any, device: Any, fixed: tuple[int, ...]) -> Any:
    """A tensor without data: sizes that count the same axes are the same symbol, but that of an axis that is fixed."""
    shape = [math.prod(sizes[axis] for axis in dim) for dim in dims]
    kinds = [DimDynamic.STATIC if dim and dim == fixed else DimDynamic.DUCK for dim in dims]
    empty = torch.empty(shape, dtype=dtype, device="meta")
    found = mode.from_tensor(empty, symbolic_context=StatelessSymbolicContext(kinds))
    with mode:
        return found.new_empty(found.shape, device=device)


def _untraceable(error: Exception, name: str) -> UsageError:
    """Of an error of the author's own code, its words; of torch's, which are about stand-ins, the operation."""
    frames = traceback.extract_tb(error.__traceback__)
    if any(f.filename in _OF_FUNCTIONS for f in frames) or "autograd.Function" in str(error):
        rule = "a torch.autograd.Function has a gradient of its own, and a kernel finds one itself"
        return refused(rule, _user_line(error), _DETACH)
    last = frames[-1]
    if _is_ours(last.filename) or isinstance(error, RuntimeError):
        rule, hint = untraceable(name)
        return refused(rule, _user_line(error), hint)
    said = str(error).strip().partition("\n")[0]
    return refused(f"the function cannot be traced: {type(error).__name__}: {said}", _user_line(error))


class _Lines(TorchFunctionMode):
    """Notes behind each operation what its author called, where, and whether a gradient goes through it."""

    called = ""  # the last

    def __init__(self, shapes: Any, *, draws: bool = False) -> None:
        super().__init__()
        self.shapes, self.draws = shapes, draws
        self.asked: dict[int, tuple[str, str]] = {}  # of a guard: the operation that asks about sizes, and its line

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, torch._ops.OpOverload):  # of a function that was cut: it says its author's line itself
            return func(*args, **(kwargs or {}))
        frame: Any = sys._getframe(1)
        while frame is not None and _is_ours(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            metadata.current_meta["stack_trace"] = _line(frame.f_code.co_filename, frame.f_lineno)
        name = name_of_call(func)
        self.called = name or self.called
        if frame is not None and (found := _own_gradient(func, args, frame)) is not None:
            return found
        notes = {CALLED: name} if torch.is_grad_enabled() else {CALLED: name, _NO_GRADIENT: True}
        metadata.current_meta["custom"] = notes
        first = len(self.shapes.guards)
        func = _linear if func is torch.nn.functional.linear else func
        func = dropped if self.draws and name == "dropout" else func
        func = _instance_norm if func is torch.nn.functional.instance_norm else func
        found = func(*args, **(kwargs or {}))
        if name and frame is not None:
            line = _line(frame.f_code.co_filename, frame.f_lineno)
            self.asked |= dict.fromkeys(range(first, len(self.shapes.guards)), (name, line))
        return found


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """torch's own, which makes numbers of the sizes of rows where there are several, and a bias."""
    if bias is None or x.ndim <= 2:
        return torch.nn.functional.linear(x, weight, bias)
    found = x @ weight.t()
    return found + bias.to(found.dtype)


def _instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """torch's own, which lays the channels of all instances side by side; without statistics to keep, groups of one."""
    if running_mean is None and running_var is None and use_input_stats:
        return torch.nn.functional.group_norm(x, x.shape[1], weight, bias, eps)
    kept = (running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    return torch.nn.functional.instance_norm(x, *kept)


def _own_gradient(func: Any, args: Sequence[Any], frame: Any) -> Any:
    """What says another gradient than that of operations: `x.data`, which a record would lose, hooks, questions."""
    if func == torch.Tensor.data.__get__:
        return args[0].detach()
    asked = next((name for name, getter in _OF_GRADIENTS.items() if func == getter), "")
    if func is torch.Tensor.register_hook or (asked and sys._getframe(2) is frame):
        name = asked or "register_hook"
        rule = f"'{name}' is of a gradient as torch finds it, and a kernel finds its own"
        raise refused(rule, _line(frame.f_code.co_filename, frame.f_lineno), _DETACH)
    return None


def _is_ours(file: str) -> bool:
    return file.startswith(_TORCH) or file == __file__


def _line(file: str, number: int) -> str:
    return f"{file}:{number}: {linecache.getline(file, number).strip()}"


def _user_line(error: BaseException) -> str:
    """The innermost line of an error that is not torch's."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_ours(f.filename)]
    return _line(frames[-1].filename, frames[-1].lineno or 0) if frames else "torch's own code"


def _write_numbers_out(graph: Any) -> None:
    """A tensor that the function makes of numbers, as torch.tensor(2.0), is made of them at each call."""
    aten, add = torch.ops.aten, graph.graph.call_function
    for node in [n for n in graph.graph.nodes if n.op == "get_attr"]:
        value = getattr(graph, node.target)
        if not 0 < value.numel() <= _MOST_NUMBERS or value.is_complex():
            continue
        kind = {"dtype": value.dtype, "device": value.device}
        for copied in list(node.users):
            with graph.graph.inserting_before(copied):
                found = [
                    add(aten.full.default, ([], one), kind) for one in torch.utils._pytree.tree_leaves(value.tolist())
                ]
                if value.ndim:
                    found += [add(aten.stack.default, (list(found),))]
                    found += [add(aten.reshape.default, (found[-1], list(value.shape)))]
            for one in found:
                one.meta = {key: note for key, note in copied.meta.items() if key != "val"}
            copied.replace_all_uses_with(found[-1])
            graph.graph.erase_node(copied)
        graph.graph.erase_node(node)
    graph.recompile()


def _made_plain(graph: Any) -> None:
    """Without operations in place, and with `detach` behind what ran under `no_grad`.

    torch's own composite operations work in place on what they have made themselves; others are functional already.
    """
    last: dict[Node, Node] = {}
    for node in list(graph.graph.nodes):
        node.args = torch.fx.map_arg(node.args, lambda n: last.get(n, n))
        node.kwargs = torch.fx.map_arg(node.kwargs, lambda n: last.get(n, n))
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.target._schema.is_mutable:
            changed = node.args[0]
            if title(node) in DRAWS and called(node) != "copy_":
                raise refused(unknown(title(node))[0], line_of(node), unknown(title(node))[1])
            if changed.op == "placeholder":
                hint = "write x = x + y for x += y, where x is an argument"
                raise refused("a function that is traced does not write to its arguments", line_of(node), hint)
            packet = node.target.overloadpacket.__name__
            plain = getattr(torch.ops.aten, packet.removesuffix("_"), None)
            if not packet.endswith("_") or plain is None:
                raise refused(f"'{packet}' writes in place, and is not in the language", line_of(node))
            node.target = getattr(plain, node.target._overloadname)
            last[changed] = node
        if (node.meta.get("custom") or {}).pop(_NO_GRADIENT, False):
            with graph.graph.inserting_after(node):
                cut = graph.graph.call_function(torch.ops.aten.detach.default, (node,))
            cut.meta = dict(node.meta)
            last[node] = cut
    graph.recompile()


def _decompositions(cols: Any) -> dict[Any, Any]:
    more = get_decompositions([torch.ops.aten.elu, torch.ops.aten.leaky_relu, *_PLAINER])
    known = {**core_aten_decompositions(), **more}
    found = {op: how for op, how in known.items() if op.overloadpacket.__name__ not in _KEPT}

    def mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        """A mean of all rows, or of a value of each, is their total, divided; one of each row stays as it is."""
        places = range(x.ndim) if dim is None or len(dim) == 0 else {place % x.ndim for place in dim}
        is_row = x.ndim == 1 and size_of(x.shape[0]) == cols
        if len(places) < x.ndim or x.ndim == 0 or is_row:
            return NotImplemented
        return x.sum(tuple(places), keepdim, dtype=dtype) / x.numel()

    def xlogy(x: Any, y: Any) -> Any:
        """A share of 0 adds nothing, whatever the logarithm is; torch's own has a branch for NaN beside it."""
        return torch.where(x == 0, 0.0, x * torch.log(y))

    own = torch.ops.aten
    return {
        **found,
        own.xlogy.Tensor: xlogy,
        own.mean.default: mean,
        own.mean.dim: mean,
        # No gradient goes through either limit itself, as it does through those of clamp.
        own.hardsigmoid.default: lambda x: own.hardtanh(x + 3, 0, 6) / 6,
        own.hardswish.default: lambda x: x * own.hardtanh(x + 3, 0, 6) / 6,
    }


def size_of(size: Any) -> Any:
    """A size as an expression of symbols, or a number."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


def _check_guards(shapes: Any, axes: Sequence[Any], inner: Any, asked: Mapping[int, tuple[str, str]]) -> None:
    """Refuse what a condition, or an operation, asked about sizes: the record holds for one answer only."""
    for i, guard in enumerate(shapes.guards):
        place, asks = guard.sloc.framework_loc, guard.expr.free_symbols
        line = _line(place.filename, place.lineno) if hasattr(place, "filename") else str(place)
        if asks & set(axes[:-1]) and i in asked:
            name, line = asked[i]
            raise refused(f"'{name}' asks for the number of rows, which is any", line, hint_for(name) or BETWEEN)
        if asks & set(axes[:-1]):
            raise refused(OF_NUMBER, line, "fuse each branch as a function of its own, and choose outside")
        raise _SizesError(refused("the function asks for the number of columns", line))
    if axes[-1] in shapes.replacements or inner in shapes.replacements:
        raise _SizesError(refused("the function takes one number of columns", "its operations"))
