"""A spec's kernels and formulas as functions of JAX's arrays, with nothing said about gradients."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from normgen.dtypes import dtype as dtype_named
from normgen.errors import UsageError
from normgen.jax import target
from normgen.operators.forms import Form, Forms
from normgen.problem.problem import why_not_side_by_side
from normgen.problem.tensors import TensorUse
from normgen.spec.spec import Role, Spec
from normgen.traced.jax_formulas import jax_function

Array = Any
Arrays = tuple[Array, ...]
Scalars = tuple[float, ...]


@functools.cache
def name_of(dtype: Any) -> str:
    """Our name of a dtype. float64, which no kernel stores, has float32's: formulas then run in float64."""
    return "f32" if dtype == np.float64 else dtype_named(dtype).name


class Calls(Forms):
    """The calls of one spec. A seed is uint32 [2] here."""

    trace = staticmethod(jax_function)
    without_gradient = "pass them through jax.lax.stop_gradient"

    def __init__(self, spec: Spec, *, deterministic: bool = False, stable_parameters: bool = False) -> None:
        super().__init__(spec)
        self._deterministic, self._stable = deterministic, stable_parameters

    def run(self, form: Form, given: Mapping[str, Array], scalars: Scalars, place: int | None = None) -> Arrays:
        """The arrays that the problem of the form stores, in its order; `given` has what it reads, by name.

        place  where cols lie among the sizes of rows [.., cols], whose order is else that of memory; None: last
        """
        made = self.known.once(self._made, form, scalars, place)  # one for each value of the scalars
        return made(*[given[use.name] for use in self.problem(form).reads])

    def formulas(self, form: Form, scalars: Scalars, *arrays: Array) -> Arrays:
        """A call as operations of jax.numpy."""
        uses = self.problem(form)
        names = [name for name, _ in self.spec.scalars]
        given = dict(zip((use.name for use in uses.reads), arrays, strict=True))
        found = uses.function(given, dict(zip(names, scalars, strict=True)))
        return tuple(found[use.name] for use in uses.writes)

    def dtypes(self, arrays: Sequence[Array | None]) -> tuple[str, ...]:
        return tuple(
            "" if array is None else "i64" if read.role is Role.SEED else name_of(array.dtype)
            for read, array in zip(self.reads, arrays, strict=True)
        )

    def checked(self, arrays: Sequence[Array | None]) -> Array:
        """As in `Forms`; besides, the sizes of tensors of batches and of single numbers.

        Raises UsageError for other shapes.
        """
        first = super().checked(arrays)
        sizes, cols = first.shape[:-1], first.shape[-1]
        for read, array in zip(self.reads, arrays, strict=True):
            if array is None or read.role is Role.SEED or read.kind.is_batch_matrix:
                continue
            wrong = None
            if read.kind.by_batch:
                first_or_last, turned = ("last", sizes[::-1]) if read.kind.by_head else ("first", sizes)
                starts = itertools.accumulate(turned, operator.mul, initial=1)
                of_rows = first.ndim == 2 and array.ndim and array.shape[0] and sizes[0] % array.shape[0] == 0
                widths = read.kind.within(cols, read.group)
                if array.shape[1:] != widths or not array.ndim or not (of_rows or array.shape[0] in starts):
                    what = read.kind.axes[0]
                    shape = ", ".join(map(str, (what, *widths)))
                    wrong = f"[{shape}], its {what} the {first_or_last} sizes of the rows of {first.shape}"
            elif not read.kind.axes and array.size != 1:
                wrong = "one number"
            if wrong:
                raise UsageError(f"'{read.name}' of '{self.spec.name}' is {wrong}", received=str(tuple(array.shape)))
        return first

    def _made(self, form: Form, scalars: Scalars, place: int | None) -> Callable[..., Arrays]:
        """The form's call: a kernel where it can, else the formulas; under vmap, rows of all at once."""
        uses = self.problem(form)
        if why_not_side_by_side(self.spec, uses.problem.tensors):
            place = None

        formulas = functools.partial(self.formulas, form, scalars)
        kernel = functools.partial(self._launched, place, form, scalars)

        def run(*arrays: Array) -> Arrays:
            if self.spec.has_inner or not _takes_a_kernel(arrays):
                return formulas(*arrays)
            found = lax.platform_dependent(*arrays, **{target.PLATFORM: kernel}, default=formulas)
            return tuple(found)

        mapped = jax.custom_batching.custom_vmap(run)

        def of_all(size: int, is_batched: Sequence[bool], *arrays: Array) -> tuple[Arrays, tuple[bool, ...]]:
            everywhere = (True,) * len(uses.writes)
            apart = (use for use, batched in zip(uses.reads, is_batched, strict=True) if batched)
            if not uses.is_one_call(apart):  # what no kernel does at once, XLA's do
                axes = [0 if batched else None for batched in is_batched]
                return jax.vmap(formulas, axes, axis_size=size)(*arrays), everywhere
            whole = [
                _of_all(use, array, size, is_batched=batched)
                for use, array, batched in zip(uses.reads, arrays, is_batched, strict=True)
            ]
            made = mapped if place is None else self.known.once(self._made, form, scalars, place + 1)
            return made(*whole), everywhere

        mapped.def_vmap(of_all)
        last = jax.custom_jvp(mapped)
        last.defjvp(functools.partial(_no_second, self.spec.name))
        return last  # type: ignore[no-any-return]

    def _launched(self, place: int | None, form: Form, scalars: Scalars, *arrays: Array) -> Arrays:
        uses = self.problem(form)
        shape = next(a.shape for use, a in zip(uses.reads, arrays, strict=True) if use.kind.is_elem)
        batches = [len(a) for use, a in zip(uses.reads, arrays, strict=True) if use.kind.by_batch]
        call = target.TargetCall(
            spec=target.said(self.spec),
            direction=form.direction.value,
            rows=int(np.prod(shape[:-1], dtype=np.int64)),
            cols=shape[-1],
            batches=batches[0] if batches else 0,
            dtypes=dict(uses.dtypes),
            present=uses.present,
            gradients=form.gradients,
            deterministic=self._deterministic,
            stable_parameters=self._stable,
            scalars=dict(zip((name for name, _ in self.spec.scalars), scalars, strict=True)),
            reads=tuple(use.name for use in uses.reads),
            writes=tuple(use.name for use in uses.writes),
            beside=1 if place is None else math.prod(shape[place:-1]),
        )
        results = jax.eval_shape(functools.partial(self.formulas, form, scalars), *arrays)
        if place is None:
            return tuple(target.launch(call, results, arrays))
        # Moved back to where its author's array has them, by the opposite of how they came: XLA leaves both out.
        lying = [_moved(use, array, -1, place) for use, array in zip(uses.reads, arrays, strict=True)]
        results = [
            jax.eval_shape(functools.partial(_moved, use, to=place), r)
            for use, r in zip(uses.writes, results, strict=True)
        ]
        found = target.launch(call, results, lying)
        return tuple(_moved(use, array, place, -1) for use, array in zip(uses.writes, found, strict=True))


def _moved(use: TensorUse, array: Array, of: int = -1, to: int = -1) -> Array:
    return jnp.moveaxis(array, of, to) if use.kind.is_elem else array


def _takes_a_kernel(arrays: Sequence[Array]) -> bool:
    """Whether our kernels may run for these arrays, and store what is in them."""
    return all(array.size and array.dtype != np.float64 for array in arrays) and target.device() is not None


def _no_second(spec: str, primals: Any, tangents: Any) -> Any:  # noqa: ARG001
    hint = "an operator's `decomposition` is made of operations of jax.numpy, which have all derivatives"
    raise UsageError("a gradient that a kernel computes has none itself", received=f"'{spec}'", hint=hint)


def _of_all(use: TensorUse, array: Array, size: int, *, is_batched: bool) -> Array:
    """Rows, or batches, of every example one behind the other; what is the same in each row as it is."""
    if use.kind.by_head or not (use.kind.by_row or use.kind.by_batch):
        return array
    every = array if is_batched else jnp.broadcast_to(array, (size, *array.shape))
    return every.reshape(-1, *every.shape[every.ndim - use.kind.width_axes :]) if use.kind.by_batch else every
