"""Any spec as an operator of JAX, in one call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normgen.errors import UsageError
from normgen.jax.calls import Array, Arrays, Calls, Scalars, name_of
from normgen.jax.target import axes_of
from normgen.operators.forms import Form, Lengths, axis_number, is_of_rows, returned, spec_of_operator
from normgen.operators.operator import OperatorOf, picked
from normgen.operators.signature import Beside
from normgen.problem.question import Direction
from normgen.problem.tensors import TensorUse
from normgen.spec.spec import Kind, Role, Spec, Tensor

Places = tuple[int, ...]


@jax.tree_util.register_static
@dataclass(frozen=True, kw_only=True)
class _Kept:
    """What a backward pass knows of its forward call beside arrays.

    places    of the tensors that were there
    shapes    of all tensors; `varies`: over which axes of a mesh each of them varies, under shard_map
    """

    form: Form
    places: Places
    shapes: tuple[tuple[int, ...], ...]
    varies: tuple[frozenset[str], ...]


class Operator(OperatorOf):
    """An operation on JAX's arrays, with its gradient; call it as `function`, whose arguments it documents.

    Arrays of rows are [.., cols], or [.., inner], of any leading sizes, 0 too. A product of matrices is XLA's on every
    device, in float32 (`precision` HIGHEST). It may stand under jit, vmap, grad, checkpoint and
    shard_map. On a CUDA device a kernel runs, in XLA's order; elsewhere, and for float64, the formulas as operations of
    jax.numpy (`decomposition`). Under vmap too it is one kernel, on the rows of all examples; where there is none (an
    example has its own parameters, or its own gradient of them, or numbers its rows) XLA has the formulas.
    An output that follows an input has the dtype that JAX promotes the inputs [.., cols] to, or `dtype`. Scalars are
    numbers of Python: a kernel gets them by value. A seed is a whole number, int32, uint32 or int64 [], or a key.
    `axis` is that of the columns: a kernel reads and writes [.., cols, ..] where it lies, and values of rows have the
    sizes without it.

    Raises UsageError for arrays that do not fit, for a gradient that the spec has not, and for a second derivative.
    """

    def __init__(
        self,
        spec: Spec,
        *,
        returns: Sequence[str] | None = None,
        deterministic: bool = False,
        stable_parameters: bool = False,
        takes: Mapping[str, str] | None = None,
        defaults: Mapping[str, float] | None = None,
        name: str = "",
        beside: Beside | None = None,
    ) -> None:
        """As `operator`, and how its function looks: `takes` names the first parameters and what they are called."""
        self._calls: Calls
        names = returned(spec, returns)
        super().__init__(
            Calls(spec, deterministic=deterministic, stable_parameters=stable_parameters),
            names,
            name=name,
            takes=takes,
            beside=beside,
            defaults=defaults or {},
            options={"dtype": None, "axis": -1},
            module="normgen.jax",
            says=f"Returns {', '.join(names)}.",
        )
        self._elems = tuple(i for i, t in enumerate(self._calls.reads) if is_of_rows(t.kind))
        called = functools.partial(self._called)
        called.__name__ = self.function.__name__  # type: ignore[attr-defined]  # what a jaxpr shows
        self._jitted = jax.jit(called, static_argnums=(1, 2, 3))

    def decomposition(self, *args: Any, **named: Any) -> Any:
        """The same as operations of jax.numpy, in float32 inside (float64 for float64), with all derivatives."""
        *given, axis = self.bound(*args, **named)
        arrays, scalars, out = self._taken(*given)
        place = self._place(arrays, axis)
        arrays = self._rows(arrays, place)
        self._calls.checked(arrays)
        form = self._form(self._writes.plainly, arrays, out)
        given = dict(zip((t.name for t in self._calls.reads), arrays, strict=True))
        found = self._calls.formulas(form, scalars, *[given[use.name] for use in self._calls.problem(form).reads])
        return self._back(picked(self._ordered(form, found), self._of_plain), place)

    def _run(self, arrays: Sequence[Any], scalars: Sequence[Any], dtype: Any, axis: int) -> Any:
        taken = self._taken(arrays, scalars, dtype)
        return self._jitted(*taken, None if axis == -1 else self._place(taken[0], axis))

    def _place(self, arrays: Arrays, axis: Any) -> int | None:
        """Where the axis is among the sizes of rows; None: last. Raises UsageError."""
        ndim = arrays[self._elems[0]].ndim
        hint = "axis=-1 is the last; reshape several axes to one"
        axis = axis_number(axis, max(ndim, 1), name="axis", what="axes", hint=hint)
        place = axis % ndim if ndim else -1
        if place in (-1, ndim - 1):
            return None
        if self.spec.has_inner:
            rule = f"a product has its axes by name: '{self.spec.name}' takes none"
            raise UsageError(rule, received=f"axis={axis}", hint="move its axis: jnp.moveaxis(x, axis, -1)")
        return place

    def _rows(self, arrays: Arrays, place: int | None) -> Arrays:
        """[.., cols] of [.., cols, ..]."""
        reads = self._calls.reads
        return tuple(
            jnp.moveaxis(a, place, -1) if place is not None and a is not None and t.kind.is_elem else a
            for t, a in zip(reads, arrays, strict=True)
        )

    def _back(self, found: Any, place: int | None) -> Any:
        """What is returned, [.., cols, ..] where it is of rows."""
        if place is None:
            return found
        named = zip(self.returns, found if isinstance(found, tuple) else (found,), strict=True)
        moved = [jnp.moveaxis(y, -1, place) if self.spec.tensor(name).kind.is_elem else y for name, y in named]
        return moved[0] if len(moved) == 1 else tuple(moved)

    def _taken(self, given: Sequence[Any], scalars: Sequence[Any], dtype: Any) -> tuple[Arrays, Scalars, str]:
        """The arrays, None for an absent one; the scalars; our name of the dtype of what follows an input."""
        arrays = tuple(
            None if value is None else self._array(read, value)
            for read, value in zip(self._calls.reads, given, strict=True)
        )
        for (name, _), scalar in zip(self.spec.scalars, scalars, strict=True):
            if isinstance(scalar, jax.core.Tracer):
                rule = f"'{name}' is a number of Python: a kernel gets it by value"
                hint = "name it in static_argnames of jax.jit, or make it a tensor of the spec"
                raise UsageError(rule, received="a traced array", hint=hint)
        values = self._calls.scalars(scalars)
        if dtype is None:
            dtypes = {a.dtype for i in self._elems if (a := arrays[i]) is not None}
            dtype = functools.reduce(jnp.promote_types, dtypes)
        return arrays, values, name_of(dtype)

    def _array(self, read: Tensor, value: Any) -> Array:
        if read.role is Role.SEED:
            return _words(read.name, value)
        if isinstance(value, jax.Array):
            return value
        if not isinstance(value, np.ndarray | np.generic) and not (
            read.kind is Kind.SCALAR and isinstance(value, int | float)
        ):
            raise UsageError(f"'{read.name}' of '{self.spec.name}' is an array", received=type(value).__name__)
        return jnp.asarray(value)

    def _called(self, arrays: Arrays, scalars: Scalars, out: str, lies: int | None) -> Any:
        arrays = self._rows(arrays, lies)
        self._calls.checked(arrays)
        places = tuple(place for place, array in enumerate(arrays) if array is not None)
        made = self._calls.known.once(self._with_gradient, places, scalars, out, lies)
        found = made(*[arrays[place] for place in places])
        return self._back(found, lies)

    def _with_gradient(self, places: Places, scalars: Scalars, out: str, lies: int | None) -> Callable[..., Any]:
        """The call as a function of the arrays that are there, which JAX knows how to differentiate.

        lies  as `place` of `Calls.run`
        """
        reads = self._calls.reads

        def whole(values: Sequence[Any]) -> Arrays:
            there = dict(zip(places, values, strict=True))
            return tuple(there.get(place) for place in range(len(reads)))

        def run(*values: Array) -> Any:
            return picked(self._forward(self._writes.plainly, whole(values), scalars, out, lies), self._of_plain)

        def forward(*primals: Any) -> tuple[Any, Any]:
            arrays = whole([primal.value for primal in primals])
            wanted = dict(zip(places, [primal.perturbed for primal in primals], strict=True))
            if not any(wanted.values()):
                return run(*[primal.value for primal in primals]), None
            results = self._forward(self._writes.saving, arrays, scalars, out, lies)
            form = Form(
                direction=Direction.BACKWARD,
                written=self._writes.saved,
                gradients=tuple(reads[place].name for place, is_wanted in wanted.items() if is_wanted),
                dtypes=self._calls.dtypes(arrays),
                out=out,
            )
            needed, known = self._calls.kept(self._writes, form), (*arrays, *results)
            if lacking := [reads[i].name for i in places if wanted[i] and needed.returned[i] is None]:
                rule = f"'{self.spec.name}' has no gradient by {', '.join(lacking)}"
                raise UsageError(rule, received="a derivative by it", hint=self._calls.without_gradient)
            kept = _Kept(
                form=form,
                places=places,
                shapes=tuple(() if array is None else array.shape for array in arrays),
                varies=tuple(frozenset() if array is None else axes_of(array) for array in arrays),
            )
            first = jax.ShapeDtypeStruct(arrays[self._elems[0]].shape, arrays[self._elems[0]].dtype)
            saved = tuple(known[place] for place in needed.places)
            lengths = self._calls.lengths(arrays) if self.spec.has_inner else None
            return picked(results, self._of_saving), (kept, saved, _Like(first, lengths))

        def backward(residual: Any, cotangents: Any) -> tuple[Any, ...]:
            if residual is None:
                return (None,) * len(places)
            kept, saved, like = residual
            found = cotangents if isinstance(cotangents, tuple) else (cotangents,)
            return self._gradients(kept, saved, like, found, scalars, lies)

        made = jax.custom_vjp(run)
        made.defvjp(forward, backward, symbolic_zeros=True)
        return made  # type: ignore[no-any-return]

    def _forward(
        self, written: tuple[str, ...], arrays: Arrays, scalars: Scalars, out: str, lies: int | None
    ) -> Arrays:
        form = self._form(written, arrays, out)
        given = dict(zip((t.name for t in self._calls.reads), arrays, strict=True))
        return self._ordered(form, self._calls.run(form, given, scalars, lies))

    def _form(self, written: tuple[str, ...], arrays: Arrays, out: str) -> Form:
        return Form(direction=Direction.FORWARD, written=written, dtypes=self._calls.dtypes(arrays), out=out)

    def _ordered(self, form: Form, found: Arrays) -> Arrays:
        """In the order of the form's names."""
        named = {use.name: array for use, array in zip(self._calls.problem(form).writes, found, strict=True)}
        return tuple(named[name] for name in form.written)

    def _gradients(
        self,
        kept: _Kept,
        saved: Arrays,
        like: _Like,
        cotangents: Sequence[Any],
        scalars: Scalars,
        lies: int | None,
    ) -> tuple[Any, ...]:
        """The gradient of every array that was there, None of one that nobody asked for."""
        needed = self._calls.kept(self._writes, kept.form)
        by_place = dict(zip(self._of_saving, cotangents, strict=True))
        known = (*(by_place.get(place) for place in range(len(self._writes.outputs))), *saved)
        given = {}
        for use, i in zip(needed.uses.reads, needed.reads, strict=True):
            given[use.name] = known[i]
            if use.of:
                is_zero = known[i] is None or isinstance(known[i], jax.custom_derivatives.SymbolicZero)
                given[use.name] = _zeros(use, like) if is_zero else known[i].astype(_dtype(use, like.first))
        stored = self._calls.run(kept.form, given, scalars, lies)
        found: list[Any] = [None if i is None else stored[i] for i in needed.returned]
        return tuple(
            None if found[place] is None else _summed(found[place].reshape(kept.shapes[place]), kept.varies[place])
            for place in kept.places
        )


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Like:
    """Shape and dtype of the first array of rows, and what all of a product measure."""

    first: Any
    lengths: Lengths | None


def _summed(gradient: Array, varies: frozenset[str]) -> Array:
    """Of an array that is the same along an axis of the mesh, the gradient is the sum along it."""
    axes = tuple(sorted(axes_of(gradient) - varies))
    return jax.lax.psum(gradient, axes) if axes else gradient


def _dtype(use: TensorUse, first: Any) -> Any:
    return np.float64 if first.dtype == np.float64 and use.dtype.name == "f32" else use.dtype.of_array.numpy


def _zeros(use: TensorUse, like: _Like) -> Array:
    first = like.first
    rows = first.shape if use.kind.is_elem else first.shape[:-1] if use.kind.by_row else ()
    return jnp.zeros(rows if like.lengths is None else like.lengths.shape(use.axes), _dtype(use, first))


def _words(name: str, value: Any) -> Array:
    """A seed's 64 bits, the low word first."""
    if isinstance(value, np.ndarray | np.generic) and value.size == 1 and np.issubdtype(value.dtype, np.integer):
        value = int(value.reshape(()))
    if isinstance(value, int):
        return np.array([value & 0xFFFFFFFF, value >> 32 & 0xFFFFFFFF], np.uint32)
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        if value.dtype == np.uint32 and value.shape == (2,):
            return jnp.asarray(value)
        if value.size == 1 and jnp.issubdtype(value.dtype, jnp.integer):
            whole = jnp.asarray(value).reshape(())
            high = (
                whole >> 32 if whole.dtype.itemsize == 8 else jnp.where(whole < 0, np.uint32(0xFFFFFFFF), np.uint32(0))
            )
            return jnp.stack((whole.astype(jnp.uint32), high.astype(jnp.uint32)))
    received = f"{getattr(value, 'dtype', type(value).__name__)} {getattr(value, 'shape', '')}".strip()
    raise UsageError(f"'{name}' is a seed: a whole number, a key, or uint32 [2]", received=received)


def operator(
    op: str | Path | Spec,
    *,
    returns: Sequence[str] | None = None,
    deterministic: bool = False,
    stable_parameters: bool = False,
) -> Operator:
    """An operator of JAX for a spec: a name of one that ships, a file, the text of one, or a `Spec`.

    returns  names of what a call returns, in this order; None: the outputs that are not optional, and the statistics
             that are not
    deterministic, stable_parameters  as in `normgen.kernel`

    Raises SpecError, or UsageError for a name that is not known.
    """
    names = None if returns is None else tuple(returns)
    return _made(spec_of_operator(op), returns=names, deterministic=deterministic, stable_parameters=stable_parameters)


_made = functools.cache(Operator)
