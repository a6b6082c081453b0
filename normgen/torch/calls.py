"""A spec's kernels and formulas as functions of torch tensors, with nothing said about autograd or operators."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from normgen.dtypes import DTYPES
from normgen.errors import UsageError
from normgen.operators.forms import Form, Forms, Uses
from normgen.operators.launch import band, handle
from normgen.problem.question import Direction
from normgen.problem.tensors import TensorUse
from normgen.python.handle import Kernel
from normgen.spec.spec import Spec
from normgen.traced.torch_formulas import TorchFunction, torch_function

Value = Any  # a tensor
Values = tuple[Value, ...]

_NAMES = {getattr(torch, d.torch): d.name for d in DTYPES.values() if hasattr(torch, d.torch)}


def name_of(dtype: Any) -> str:
    """Our name of a torch dtype. float64, which no kernel stores, has float32's: formulas then run in float64."""
    name = "f32" if dtype == torch.float64 else _NAMES.get(dtype)
    if name is None:
        raise UsageError("a tensor is stored in one of normgen's dtypes", received=str(dtype))
    return name


class Calls(Forms):
    """The calls of one spec."""

    without_gradient = "detach them, or call it under torch.no_grad()"

    def __init__(self, spec: Spec, *, deterministic: bool | None = None, stable_parameters: bool = False) -> None:
        super().__init__(spec)
        self._deterministic, self._stable = deterministic, stable_parameters
        self._ready: dict[tuple[Any, ...], Ready] = {}
        self.function = functools.cache(lambda form: torch_function(self.problem(form).problem))
        self._rows = functools.cache(lambda form: [i for i, u in enumerate(self.problem(form).reads) if u.kind.is_elem])

    def forward(self, written: tuple[str, ...], tensors: Values, scalars: tuple[float, ...], dtype: Any) -> Values:
        """The written tensors, in the problem's order. `tensors` in the order of `reads`, None for an absent one."""
        return self.prepared(written, tensors, dtype)(tensors, scalars)

    def prepared(self, written: tuple[str, ...], tensors: Values, dtype: Any) -> Ready:
        """What computes a forward call of tensors with these shapes and dtypes. UsageError where they do not fit."""
        first = self.checked(tensors)
        key = (written, dtype, *_sizes(first), *[None if t is None else t.dtype for t in tensors])
        found = self._ready.get(key)
        if found is None:
            form = Form(direction=Direction.FORWARD, written=written, dtypes=self.dtypes(tensors), out=name_of(dtype))
            found = self._ready[key] = self._made(form, first, tensors)
        return found

    def backward(self, form: Form, given: Sequence[Value | None], scalars: tuple[float, ...]) -> Values:
        """The gradients that the problem of the form stores, in its order.

        `given` in the order of what it reads; the gradient of an output that is not there, None, is 0.
        """
        first = next(given[i] for i in self._rows(form) if given[i] is not None)
        tensors: Sequence[Value] = given
        for tensor in given:
            if tensor is None:
                names = self.problem(form).reads
                tensors = [_zeros(use, first) if t is None else t for use, t in zip(names, given, strict=True)]
                break
        key = (form, torch.are_deterministic_algorithms_enabled(), *_sizes(first), *[t.dtype for t in tensors])
        found = self._ready.get(key)
        if found is None:
            found = self._ready[key] = self._made(form, first, tensors)
        return found(tensors, scalars)

    def like(self, form: Form, given: Mapping[str, Value]) -> Values:
        """New tensors of the shapes and dtypes that a call of this form returns."""
        uses = self.problem(form)
        here = [given[use.name] for use in uses.reads if given.get(use.name) is not None]
        first = next(given[u.name] for u in uses.reads if u.kind.is_elem and given.get(u.name) is not None)
        is_double = any(t.dtype == torch.float64 for t in here)
        shared = ((u.kind, given[u.name]) for u in uses.reads if u.kind.by_batch)
        batches = next((t.numel() // (first.shape[-1] if kind.by_col else 1) for kind, t in shared), 1)
        return tuple(
            first.new_empty(_shape(u, first, batches), dtype=_torch_dtype(u, is_double=is_double)) for u in uses.writes
        )

    def formulas(self, form: Form, tensors: Values, scalars: tuple[float, ...]) -> Values:
        """A forward call as torch's own operations."""
        function = self.function(form)
        self.checked(tensors)
        given = {t.name: v for t, v in zip(self.reads, tensors, strict=True) if v is not None}
        found = function(given, dict(zip((name for name, _ in self.spec.scalars), scalars, strict=True)))
        return tuple(found[use.name] for use in self.problem(form).writes)

    def dtypes(self, tensors: Values) -> tuple[str, ...]:
        return tuple("" if t is None else name_of(t.dtype) for t in tensors)

    def _made(self, form: Form, first: Value, tensors: Sequence[Value]) -> Ready:
        uses = self.problem(form)
        here = [t for t in tensors if t is not None]
        devices = {t.device for t in here}
        if len(devices) > 1:
            raise UsageError("the tensors of a call are on one device", received=", ".join(sorted(map(str, devices))))
        cols, rows = first.shape[-1], first.numel() // first.shape[-1]
        chosen = self._deterministic
        made: Kernel | TorchFunction = (
            handle(
                self.spec,
                form.direction,
                rows=rows,
                cols=cols,
                dtypes=uses.dtypes,
                present=uses.present,
                gradients=form.gradients,
                deterministic=torch.are_deterministic_algorithms_enabled() if chosen is None else chosen,
                stable_parameters=self._stable,
                device=first.get_device(),
            )
            if rows and takes_a_kernel(first, here)
            else self.function(form)
        )
        return Ready(made, uses, tuple(name for name, _ in self.spec.scalars), tensors)


class Ready:
    """A kernel, or the formulas in torch, for tensors of some sizes and dtypes; an eager call costs what this does."""

    def __init__(
        self, made: Kernel | TorchFunction, uses: Uses, scalars: tuple[str, ...], tensors: Sequence[Value | None]
    ) -> None:
        self._made, self._scalars = made, scalars
        self._reads, self._writes = [t.name for t in uses.reads], [t.name for t in uses.writes]
        self._is_matrix = [t.kind.is_matrix for t in uses.reads]
        here = [i for i, tensor in enumerate(tensors) if tensor is not None]
        self._here = here if len(here) < len(tensors) else None
        results = list(uses.problem.results.items())
        own = [i for i, (name, memory) in enumerate(results) if name == memory]
        self._own = own if len(own) < len(results) else None
        self._named: tuple[Any, dict[str, float]] = (None, {})

    def __call__(self, tensors: Sequence[Value | None], scalars: tuple[float, ...]) -> Values:
        given = tensors if self._here is None else [tensors[i] for i in self._here]
        values, named = self._named
        if values != scalars:
            named = dict(zip(self._scalars, scalars, strict=True))
            self._named = scalars, named
        if isinstance(self._made, TorchFunction):
            with torch.no_grad():
                found = self._made(dict(zip(self._reads, given, strict=True)), named)
            return tuple(found[name] for name in self._writes)
        for tensor in given:
            if not tensor.is_contiguous():  # type: ignore[union-attr]
                given = [_regular(t, is_matrix=m) for t, m in zip(given, self._is_matrix, strict=True)]
                break
        results = self._made(*given, **named)
        if not isinstance(results, tuple):
            return (results,)
        return results if self._own is None else tuple(results[i] for i in self._own)


def takes_a_kernel(first: Value, tensors: Sequence[Value]) -> bool:
    """Whether our kernels run where these tensors are, and store what is in them."""
    return bool(first.is_cuda) and all(t.dtype != torch.float64 for t in tensors)


def _sizes(first: Value) -> tuple[int, int, int]:
    cols = first.shape[-1]
    return first.get_device(), cols, band(first.numel() // cols)


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


def _shape(use: TensorUse, first: Value, batches: Any = 1) -> Any:
    shape = first.shape
    if use.kind.by_batch:
        return (batches, shape[-1])
    if use.group:
        return (*shape[:-1], shape[-1] // use.group)
    if use.kind.is_elem:
        return shape
    return shape[:-1] if use.kind.by_row else shape[-1:] if use.kind.by_col else ()


def _torch_dtype(use: TensorUse, *, is_double: bool) -> Any:
    return torch.float64 if is_double and use.dtype.name == "f32" else getattr(torch, use.dtype.torch)


def _zeros(use: TensorUse, first: Value) -> Value:
    is_double = first.dtype == torch.float64
    return first.new_zeros(_shape(use, first), dtype=_torch_dtype(use, is_double=is_double))
