"""A spec's kernels and formulas as functions of torch tensors, with nothing said about autograd or operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from normgen.dtypes import DTYPES
from normgen.errors import NormgenError, NothingValidError, UsageError
from normgen.operators.forms import Form, Forms, Lengths, Uses, lengths_of
from normgen.operators.launch import band, handle
from normgen.problem.problem import Problem, why_not_side_by_side
from normgen.problem.question import Direction
from normgen.problem.tensors import TensorUse
from normgen.program.classes import class_of
from normgen.python.handle import Kernel
from normgen.spec.spec import Kind, Spec
from normgen.traced.tape import batches_of
from normgen.traced.torch_formulas import TorchFunction, torch_function

Value = Any  # a tensor
Values = tuple[Value, ...]

_NAMES = {getattr(torch, d.torch): d.name for d in DTYPES.values() if hasattr(torch, d.torch)}


_COUNTED = ("cpu", "cuda")  # by torch, where it asks for any device at once: not so mps


def dtypes_of(tensors: Sequence[Value | None]) -> tuple[Any, ...]:
    """torch's dtypes; None of an absent tensor."""
    return tuple([None if t is None else t.dtype for t in tensors])


def autocast_dtype(device: str) -> Any:
    """What autocast casts to on a device; None where it is off, or there is none, as on meta."""
    if device in _COUNTED and not torch._C._is_any_autocast_enabled():  # of most calls, in a tenth of the time
        return None
    return torch.get_autocast_dtype(device) if _has_autocast(device) and torch.is_autocast_enabled(device) else None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _has_autocast(device: str) -> bool:
    return bool(torch.amp.is_autocast_available(device))


def name_of(dtype: Any) -> str:
    """Our name of a torch dtype. float64, which no kernel stores, has float32's: formulas then run in float64.

    Raises UsageError for a dtype that normgen does not have.
    """
    name = "f32" if dtype == torch.float64 else _NAMES.get(dtype)
    if name is None:
        hint = f"torch's own, such as torch.{dtype}" if isinstance(dtype, str) else None
        raise UsageError("a tensor is stored in one of normgen's dtypes", received=repr(dtype), hint=hint)
    return name


class Calls(Forms):
    """The calls of one spec."""

    trace = staticmethod(torch_function)
    without_gradient = "detach them, or call it under torch.no_grad()"

    def __init__(
        self,
        spec: Spec,
        *,
        deterministic: bool | None = None,
        stable_parameters: bool = False,
        any_rows: bool = False,
    ) -> None:
        super().__init__(spec)
        self._deterministic, self._stable, self._any_rows = deterministic, stable_parameters, any_rows
        self.has_totals = any(t.kind is Kind.SCALAR for t in spec.outputs)

    def forward(self, written: tuple[str, ...], dtypes: tuple[Any, ...], dtype: Any) -> Uses:
        """What a forward call of tensors with these dtypes of torch's reads and stores."""
        return self.known.once(self._forward, written, dtypes, dtype)

    def _forward(self, written: tuple[str, ...], dtypes: tuple[Any, ...], dtype: Any) -> Uses:
        named = tuple("" if one is None else name_of(one) for one in dtypes)
        return self.problem(Form(direction=Direction.FORWARD, written=written, dtypes=named, out=name_of(dtype)))

    def prepared(self, written: tuple[str, ...], tensors: Values, dtype: Any, *, by_layout: bool = False) -> Ready:
        """What computes a forward call of tensors with these shapes and dtypes. UsageError where they do not fit.

        tensors    in the order of `reads`, None for an absent one
        by_layout  rows whose elements lie apart stay where they are, and so do those of the results: else both are
                   contiguous, as a compiler takes them to be
        """
        first, dtypes = self.checked(tensors), dtypes_of(tensors)
        sizes = self._sizes(first, self.lengths(tensors) if self.spec.has_inner else None)
        apart = apart_of(first) if by_layout else None
        turned = self.turned(self.reads, tensors)
        key = (written, dtype, self.in_order(), apart, turned, *sizes, *dtypes)
        found: Ready | None = self.known.get(key)
        if found is None:
            uses = self.forward(written, dtypes, dtype)
            found = self.known[key] = self._made(uses, first, tensors, apart, turned)
        return found

    def turned(self, reads: Sequence[Any], tensors: Sequence[Value | None]) -> frozenset[str]:
        """The matrices that lie in the other order, as weight.T of torch's Linear; tensors in the order of `reads`."""
        if not self.spec.has_inner:
            return frozenset()
        return _turned((read.name, read.kind, t) for read, t in zip(reads, tensors, strict=True))

    def in_order(self) -> bool:
        """Whether a forward call is to add its totals in one order, as torch says now; False where there are none."""
        return self.has_totals and torch.are_deterministic_algorithms_enabled()

    def backward(
        self, uses: Uses, given: Sequence[Value | None], scalars: tuple[float, ...], *, by_layout: bool = False
    ) -> Values:
        """The gradients that the problem stores, in its order.

        `given` in the order of what it reads; the gradient of an output that is not there, None, is 0. `by_layout`: as
        in `prepared`.
        """
        tensors: tuple[Value, ...] = tuple(given)
        if any(tensor is None for tensor in given):
            first = next(given[i] for i in uses.rows if given[i] is not None)
            lengths = self._lengths_of(uses.reads, given)
            tensors = tuple(
                _zeros(use, first, lengths) if t is None else t for use, t in zip(uses.reads, given, strict=True)
            )
        return self.behind(uses, tensors, by_layout=by_layout)(tensors, scalars)

    def behind(self, uses: Uses, tensors: Values, *, by_layout: bool = False) -> Ready:
        """What computes a backward call of these tensors, as `backward` takes them, all of them there."""
        first = tensors[uses.rows[0]]
        sizes = self._sizes(first, self._lengths_of(uses.reads, tensors))
        apart = next((a for i in uses.rows if (a := apart_of(tensors[i]))), None) if by_layout else None
        turned = self.turned(uses.reads, tensors)
        key = (uses, torch.are_deterministic_algorithms_enabled(), apart, turned, *sizes, *[t.dtype for t in tensors])
        found: Ready | None = self.known.get(key)
        if found is None:
            found = self.known[key] = self._made(uses, first, tensors, apart, turned)
        return found

    def like(self, uses: Uses, given: Mapping[str, Value]) -> Values:
        """New tensors of the shapes and dtypes that a call returns. UsageError where a forward call does not fit."""
        if uses.form.direction is Direction.FORWARD:
            self.checked([given.get(read.name) for read in self.reads])
        tensors = [given.get(use.name) for use in uses.reads]
        first: Value = next(tensors[i] for i in uses.rows if tensors[i] is not None)
        lengths = self._lengths_of(uses.reads, tensors)
        is_double = any(t is not None and t.dtype == torch.float64 for t in tensors)
        batches = 1 if lengths else batches_of(uses.reads, given, (first.shape[-1], 0))
        return tuple(
            first.new_empty(_shape(u, first, lengths, batches), dtype=_torch_dtype(u, is_double=is_double))
            for u in uses.writes
        )

    def formulas(self, uses: Uses, tensors: Values, scalars: tuple[float, ...]) -> Values:
        """A forward call as torch's own operations."""
        self.checked(tensors)
        given = {t.name: v for t, v in zip(self.reads, tensors, strict=True) if v is not None}
        found = uses.function(given, self.by_name(scalars))
        return tuple(found[use.name] for use in uses.writes)

    def by_name(self, scalars: tuple[Any, ...]) -> dict[str, Any]:
        """The numbers of a call's scalars by name; those that a compiler has symbols for stay symbols.

        Raises UsageError for what is no number, as a handle does.
        """
        symbolic = any(isinstance(value, torch.SymFloat | torch.SymInt) for value in scalars)
        values = scalars if symbolic else self.scalars(scalars)
        return dict(zip((name for name, _ in self.spec.scalars), values, strict=True))

    def of_all(
        self,
        uses: Uses,
        given: Mapping[str, tuple[Value | None, int | None]],
        size: int,
        kernel: Callable[[Mapping[str, Value | None]], Values],
    ) -> Values:
        """What `size` examples write, under vmap: results have the examples first.

        One call of `kernel` on the rows of all, where that is what a call for each is; else a call for each.

        given  name -> the tensor, and which of its sizes counts examples: None, it is every example's
        """
        if not size or not uses.is_one_call(u for u in uses.reads if given[u.name][1] is not None):
            each = [
                kernel({name: t if dim is None or t is None else t.select(dim, i) for name, (t, dim) in given.items()})
                for i in range(size)
            ]
            return tuple(torch.stack(found) for found in zip(*each, strict=True))
        first, at = next(given[u.name] for u in uses.reads if u.is_row_input and given[u.name][0] is not None)
        assert first is not None
        rows = (first if at is None else first.select(at, 0)).shape[:-1]
        found = kernel({use.name: _of_all(use, *given[use.name], size) for use in uses.reads})
        return tuple(t.reshape(size, *rows, *t.shape[1:]) for t in found)

    def _lengths_of(self, uses: Sequence[TensorUse], tensors: Sequence[Value | None]) -> Lengths | None:
        """Of tensors that are known to agree; None where the first tensor of rows says all."""
        if not self.spec.has_inner:
            return None
        return lengths_of((u.axes, tuple(t.shape)) for u, t in zip(uses, tensors, strict=True) if t is not None)

    def _sizes(self, first: Value, lengths: Lengths | None) -> tuple[int, ...]:
        """Device, columns, and the rows: those that share a handle, or whether there are any; inner and batches."""
        cols, rows, *others = _whole(first, lengths)
        return first.get_device(), cols, (rows > 0 if self._any_rows else band(rows)), *others

    def _made(
        self,
        uses: Uses,
        first: Value,
        tensors: Sequence[Value],
        apart: tuple[int, int] | None = None,
        turned: frozenset[str] = frozenset(),
    ) -> Ready:
        if self._any_rows or why_not_side_by_side(self.spec, uses.problem.tensors):
            apart = None
        here = [t for t in tensors if t is not None]
        is_kernel = bool(first.numel()) and takes_a_kernel(first, here)
        if is_kernel and self.spec.has_inner and uses.form.direction is Direction.BACKWARD:
            groups = self._kernels_of(uses)
            if len(groups) > 1:
                return self._apart(groups, uses, tensors, turned)
            is_kernel = _has_kernel(uses.problem)
        devices = {t.device for t in here}
        if len(devices) > 1:
            raise UsageError("the tensors of a call are on one device", received=", ".join(sorted(map(str, devices))))
        lengths = self._lengths_of(uses.reads, here)
        cols, rows, *_ = _whole(first, lengths)
        chosen = self._deterministic
        stored = {use.of for use in uses.writes}  # a gradient lies as its matrix does
        layout = {u.name: "_".join(reversed(u.axes)) for u in uses.reads if u.name in turned - stored}
        made: Kernel | TorchFunction
        if not (rows and is_kernel):
            made = uses.function
        else:
            try:
                made = handle(
                    self.spec,
                    uses.form.direction,
                    rows=rows,
                    cols=cols,
                    inner=lengths.inner if lengths else 0,
                    batches=lengths.batches if lengths else 0,
                    dtypes=uses.dtypes,
                    present=uses.present,
                    gradients=uses.form.gradients,
                    deterministic=torch.are_deterministic_algorithms_enabled() if chosen is None else chosen,
                    stable_parameters=self._stable,
                    device=first.get_device(),
                    any_rows=self._any_rows,
                    beside=apart[1] if apart else 1,
                    layout=layout,
                )
            except NothingValidError:  # rows side by side whose sums of columns no block holds: they are copied
                if not apart:
                    raise
                return self._made(uses, first, tensors)
        if apart and isinstance(made, Kernel):
            return SideBySide(made, uses, self.by_name, tensors, lies=apart)
        is_read_so = layout and not isinstance(made, TorchFunction)
        return Ready(made, uses, self.by_name, tensors, turned=frozenset(layout) if is_read_so else frozenset())

    def _kernels_of(self, uses: Uses) -> list[Uses]:
        """What a backward pass of products is made of: a kernel for each gradient that has one, and the rest."""
        alone = [self.problem(replace(uses.form, gradients=(use.of,))) for use in uses.writes]
        made = [one for one in alone if _has_kernel(one.problem)]
        rest = tuple(one.form.gradients[0] for one in alone if one not in made)
        return [*made, *([self.problem(replace(uses.form, gradients=rest))] if rest else [])]

    def _apart(self, groups: Sequence[Uses], uses: Uses, tensors: Sequence[Value], turned: frozenset[str]) -> Apart:
        given = dict(zip((use.name for use in uses.reads), tensors, strict=True))
        parts = []
        for one in groups:
            reads = [use.name for use in one.reads]
            found = self._made(one, given[reads[one.rows[0]]], [given[name] for name in reads], turned=turned)
            parts.append((found, [list(given).index(name) for name in reads]))
        return Apart(parts, [use.name for use in uses.writes])


class Ready:
    """A kernel, or the formulas in torch, for tensors of some sizes and dtypes; an eager call costs what this does.

    turned  the matrices that the kernel reads in the other order: as they lie, without a copy
    """

    def __init__(
        self,
        made: Kernel | TorchFunction,
        uses: Uses,
        by_name: Callable[[tuple[Any, ...]], dict[str, Any]],
        tensors: Sequence[Value | None],
        *,
        turned: frozenset[str] = frozenset(),
    ) -> None:
        self._made, self._names_of = made, by_name
        self._reads, self.writes = [t.name for t in uses.reads], [t.name for t in uses.writes]
        self._is_matrix = [t.kind.is_matrix for t in uses.reads]
        here = [i for i, tensor in enumerate(tensors) if tensor is not None]
        self._here = here if len(here) < len(tensors) else None
        self._turned = [i for i, use in enumerate(uses.reads) if use.name in turned]
        self._is_as_given = self._here is None and not turned
        results = list(uses.problem.results.items())
        own = [i for i, (name, memory) in enumerate(results) if name == memory]
        self._own = own if len(own) < len(results) else None
        self._named: tuple[Any, dict[str, float]] = (None, {})
        self._repeated = made.repeated if isinstance(made, Kernel) else None

    @property
    def is_kernel(self) -> bool:
        return self._repeated is not None

    def __call__(self, tensors: Sequence[Value | None], scalars: tuple[float, ...]) -> Values:
        found = self.repeated(tensors, scalars)
        if found is not NotImplemented:
            return found if type(found) is tuple else (found,)
        given, named = self._given(tensors), self._by_name(scalars)
        if isinstance(self._made, TorchFunction):
            with torch.no_grad():
                made = self._made(dict(zip(self._reads, given, strict=True)), named)
            return tuple(made[name] for name in self.writes)
        results = self._made(*[_regular(t, is_matrix=m) for t, m in zip(given, self._is_matrix, strict=True)], **named)
        if type(results) is not tuple:
            return (results,)
        return results if self._own is None else tuple([results[i] for i in self._own])

    def repeated(self, tensors: Sequence[Value | None], scalars: tuple[float, ...]) -> Any:
        """What a call returns, if the kernel has launched one like it: one result by itself, several as a tuple.

        NotImplemented otherwise, and of formulas.
        """
        repeated = self._repeated
        if repeated is None:
            return NotImplemented
        values, named = self._named
        if values != scalars:
            named = self._by_name(scalars)
        results = repeated(
            tensors if type(tensors) is tuple and self._is_as_given else self._given(tensors), named, None
        )
        if self._own is None or results is NotImplemented:
            return results
        return results[self._own[0]] if len(self._own) == 1 else tuple([results[i] for i in self._own])

    def _given(self, tensors: Sequence[Value | None]) -> tuple[Value, ...]:
        found: list[Any] = list(tensors)
        for i in self._turned:
            found[i] = found[i].t()
        return tuple(found) if self._here is None else tuple([found[i] for i in self._here])

    def _by_name(self, scalars: tuple[float, ...]) -> dict[str, float]:
        values, named = self._named
        if values != scalars:
            named = self._names_of(scalars)
            self._named = scalars, named
        return named


class SideBySide(Ready):
    """A kernel of rows whose elements lie apart, as of x.movedim(1, -1): results lie as the rows that are read.

    lies  where the axis of the columns is among the sizes in memory, and the elements from one column to the next
    """

    def __init__(
        self,
        made: Kernel,
        uses: Uses,
        by_name: Callable[[tuple[Any, ...]], dict[str, Any]],
        tensors: Sequence[Value | None],
        *,
        lies: tuple[int, int],
    ) -> None:
        super().__init__(made, uses, by_name, tensors)
        self._kernel, self._lies = made, lies
        self._kinds = self._kinds_of(self._given(tensors))
        self._moves = [use.kind.is_elem for use in uses.writes]

    def __call__(self, tensors: Sequence[Value | None], scalars: tuple[float, ...]) -> Values:
        given = [
            self._in_memory(t) if is_elem else t.contiguous()
            for t, is_elem in zip(self._given(tensors), self._is_matrix, strict=True)
        ]
        results = self._kernel(*given, **self._by_name(scalars))
        results = results if type(results) is tuple else (results,)
        results = results if self._own is None else [results[i] for i in self._own]
        return tuple(
            [r.movedim(self._lies[0], -1) if moves else r for r, moves in zip(results, self._moves, strict=True)]
        )

    def repeated(self, tensors: Sequence[Value | None], scalars: tuple[float, ...]) -> Any:
        """Not of rows that lie otherwise, nor of other dtypes: those have another kernel."""
        given = self._given(tensors)
        if self._kinds_of(given) != self._kinds:
            return NotImplemented
        found = self(tensors, scalars)
        return found[0] if len(found) == 1 else found

    def _kinds_of(self, given: Sequence[Value]) -> list[tuple[Any, ...]]:
        pairs = zip(given, self._is_matrix, strict=True)
        return [(t.dtype, t.device, apart_of(t) if is_elem else None) for t, is_elem in pairs]

    def _in_memory(self, tensor: Value) -> Value:
        """[.., cols, ..] in the order of memory; a copy of one that lies otherwise."""
        moved = tensor.movedim(-1, self._lies[0])
        return moved if apart_of(tensor) == self._lies else moved.contiguous()


class Apart(Ready):
    """Gradients of a product's sides, each by a kernel of its own.

    parts  what computes some of the results, and the places of what it takes
    """

    def __init__(self, parts: Sequence[tuple[Ready, Sequence[int]]], writes: list[str]) -> None:
        self._parts, self.writes, self._repeated = parts, writes, None

    def __call__(self, tensors: Sequence[Value | None], scalars: tuple[float, ...]) -> Values:
        found: dict[str, Value] = {}
        for part, places in self._parts:
            found |= dict(zip(part.writes, part([tensors[place] for place in places], scalars), strict=True))
        return tuple(found[name] for name in self.writes)


def _has_kernel(problem: Problem) -> bool:
    """Whether its program is of a class that one kernel computes."""
    try:
        class_of(problem)
    except NormgenError:
        return False
    return True


def as_wide(tensors: Values, dtype: Any) -> Values:
    """The tensors of a call whose result is to have `dtype`, if any, converted where they or it are float64.

    What float64 a call reads decides whether its formulas run in float64.
    """
    if dtype is None:
        return tensors
    if dtype == torch.float64:
        return tuple(t.double() if t is not None and t.is_floating_point() else t for t in tensors)
    return tuple(t.float() if t is not None and t.dtype == torch.float64 else t for t in tensors)


def apart_of(tensor: Value) -> tuple[int, int] | None:
    """(The place of the axis of the columns in memory, elements from one column to the next) of rows side by side.

    None of other rows: [.., cols] whose columns are neighbours, or rows that lie in no such order.
    """
    shape, strides = tensor.shape, tensor.stride()
    place = len(shape) - 1
    if place < 1 or strides[-1] <= 1 or shape[-1] <= 1 or tensor.is_contiguous():
        return None
    beside = 1
    while place > 0 and beside < strides[-1]:
        place -= 1
        if shape[place] != 1 and strides[place] != beside:
            return None
        beside *= shape[place]
    if beside != strides[-1]:
        return None
    line, pitch = beside * shape[-1], 0
    for size, stride in zip(reversed(shape[:place]), reversed(strides[:place]), strict=True):
        if size != 1 and (stride < line or (pitch and stride != pitch)):
            return None
        pitch = stride * size if size != 1 else pitch
    return place, beside


def _turned(matrices: Iterable[tuple[str, Kind, Value | None]]) -> frozenset[str]:
    """Of tensors by name and kind the matrices whose first axis lies along memory."""
    there = [(name, t) for name, kind, t in matrices if kind.is_shared_matrix and t is not None and t.ndim == 2]
    whole = [(name, t) for name, t in there if min(t.shape) > 1]
    return frozenset(name for name, t in whole if t.stride(0) == 1 and t.stride(1) >= t.shape[0])


def takes_a_kernel(first: Value, tensors: Sequence[Value]) -> bool:
    """Whether our kernels run where these tensors are, and store what is in them."""
    return bool(first.is_cuda) and all(t.dtype != torch.float64 for t in tensors)


def _regular(tensor: Value, *, is_matrix: bool) -> Value:
    """The tensor, or a copy where a kernel could not read it: rows lie at one distance, all else without gaps."""
    if tensor.is_contiguous():
        return tensor
    if is_matrix and tensor.shape[-1] > 1 and tensor.stride(-1) == 1:
        try:
            flat = tensor.view(-1, tensor.shape[-1])
        except RuntimeError:
            return tensor.contiguous()
        if flat.shape[0] == 1 or flat.stride(0) >= flat.shape[1]:
            return tensor
    return tensor.contiguous()


def _of_all(use: TensorUse, tensor: Value | None, dim: int | None, size: int) -> Value | None:
    """Rows, or batches, of every example one behind the other: [rows, ..], [batches, cols]; else as it is."""
    if tensor is None or use.kind.by_head or not (use.kind.by_row or use.kind.by_batch):
        return tensor
    every = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return every.reshape(-1, *every.shape[every.ndim - use.kind.width_axes :])


def _whole(first: Value, lengths: Lengths | None) -> tuple[int, ...]:
    """Columns, rows, and where there is that axis inner and the batches."""
    if lengths is None:
        return first.shape[-1], first.numel() // first.shape[-1]
    return lengths.cols, math.prod(lengths.leading), lengths.inner, lengths.batches


def _shape(use: TensorUse, first: Value, lengths: Lengths | None, batches: Any = 1) -> Any:
    if lengths is not None:
        return lengths.shape(use.axes)
    shape = first.shape
    if use.kind.is_elem:
        return (*shape[:-1], use.dtype.units(shape[-1])) if use.dtype.packed > 1 else shape
    rows = (batches,) if use.kind.by_batch else shape[:-1] if use.kind.by_row else ()
    return (*rows, *use.kind.within(shape[-1], use.group))


def _torch_dtype(use: TensorUse, *, is_double: bool) -> Any:
    return torch.float64 if is_double and use.dtype.name == "f32" else getattr(torch, use.dtype.of_array.torch)


def _zeros(use: TensorUse, first: Value, lengths: Lengths | None) -> Value:
    is_double = first.dtype == torch.float64
    return first.new_zeros(_shape(use, first, lengths), dtype=_torch_dtype(use, is_double=is_double))
