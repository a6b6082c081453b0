"""Operators of rows along any axis: what a compiler or a dispatch mode sees where rows are no last axis.

They take tensors of rows as they lie, [.., cols, ..], and the place of cols among their sizes; values of rows have the
sizes without it. Results lie without gaps, so that a program knows their strides whatever it makes of those of its
arguments. Rows of [batch, channels, height, width] are read and written where they are: nothing is moved in the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from normgen.operators.forms import Form
from normgen.operators.remembered import Remembered
from normgen.operators.schema import DTYPE
from normgen.problem.problem import why_not_side_by_side
from normgen.problem.tensors import TensorUse
from normgen.torch.calls import Ready, Values, apart_of
from normgen.torch.inductor import lower
from normgen.torch.library import (
    Operators,
    alone,
    defined,
    no_second,
    raising,
    refusal,
    with_gradient,
    without_gradient,
)

_AXIS = "int axis_"


class Along:
    """The operators of a spec, as `Operators` has them, with an axis behind their other arguments."""

    def __init__(self, operators: Operators) -> None:
        self.operators, base = operators, operators.base
        self._kinds = {t.name: t.kind.is_elem for t in operators.calls.spec.tensors}
        self.backward = self._backward(f"{base}_backward_along")
        self.saving = self._forward(f"{base}_saving_along", operators.written)
        with_gradient(f"{base}_saving_along", self._gradients, self._set_up)
        self.plain = self.saving
        if operators.plainly != operators.written:
            self.plain = self._forward(f"{base}_along", operators.plainly)
            error = refusal("this operator keeps nothing for a backward pass", f"normgen::{base}_along")
            without_gradient(self.plain, len(operators.calls.reads), error)

    def axis(self, tensors: Values, dtype: Any) -> int | None:
        """Where the columns of a call's rows are, if these lie side by side and have a kernel."""
        operators = self.operators
        try:
            apart = apart_of(operators.first(tensors))
        except GuardOnDataDependentSymNode:  # of sizes that nobody knows before it runs
            return None
        if apart is None:
            return None
        uses = operators.calls.problem(operators.form(operators.written, tensors, dtype))
        return None if why_not_side_by_side(operators.calls.spec, uses.problem.tensors) else apart[0]

    def __call__(self, op: Any, tensors: Values, scalars: tuple[float, ...], dtype: Any, axis: int) -> Any:
        """What `plain` or `saving` makes of [.., cols], which lie along `axis`."""
        reads = self.operators.calls.reads
        if torch.compiler.is_compiling():
            for one in {op, self.backward}:
                lower(one)
        moved = [
            t.movedim(-1, axis) if t is not None and read.kind.is_elem else t
            for t, read in zip(tensors, reads, strict=True)
        ]
        found = op(*moved, *scalars, dtype, axis)
        written = self.operators.plainly if op is self.plain else self.operators.written
        results = found if isinstance(found, tuple) else (found,)
        return alone(
            tuple(r.movedim(axis, -1) if self._kinds[name] else r for name, r in zip(written, results, strict=True))
        )

    def _forward(self, name: str, written: tuple[str, ...]) -> Any:
        operators, likely = self.operators, Remembered[Any, Ready]()
        calls = operators.calls
        reads, kinds = [t.kind.is_elem for t in calls.reads], [self._kinds[one] for one in written]

        def split(args: Sequence[Any]) -> tuple[Values, tuple[float, ...], Any, int]:
            *given, axis = args
            tensors, scalars, dtype = operators.split(given)
            return _rows(tensors, reads, axis), scalars, dtype, axis

        def run(*args: Any) -> Any:
            tensors, scalars, dtype, axis = split(args)
            first = operators.first(tensors)
            key = (dtype, axis, first.shape, tuple(map(type, tensors)))
            ready = likely.get(key)
            results = NotImplemented if ready is None else ready.repeated(tensors, scalars)
            if results is NotImplemented:
                ready = calls.prepared(written, tensors, dtype, by_layout=True)
                results = ready(tensors, scalars)
                if ready.is_kernel:
                    likely[key] = ready
            return alone(_lying(results if isinstance(results, tuple) else (results,), kinds, axis))

        def like(*args: Any) -> Any:
            tensors, _, dtype, axis = split(args)
            calls.checked(tensors)
            given = {read.name: t for read, t in zip(calls.reads, tensors, strict=True)}
            return alone(_lying(calls.like(operators.form(written, tensors, dtype), given), kinds, axis))

        def of_all(info: Any, in_dims: Sequence[Any], *args: Any) -> Any:
            plain = operators.plain if written == operators.plainly else operators.saving
            given, dims = _rows_of_all(args[: len(reads)], reads, in_dims, args[-1])
            found, _ = plain.of_all(info, (*dims, *in_dims[len(reads) : -1]), *given, *args[len(reads) : -1])
            results = found if isinstance(found, tuple) else (found,)
            return alone(_lying(results, kinds, _behind(args[-1]))), alone((0,) * len(results))

        return defined(name, operators.schema(written, f"{DTYPE}, {_AXIS}"), run, like, of_all)

    # backward

    def _set_up(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *given, ctx.axis = inputs
        self.operators.set_up(ctx, tuple(given), output)

    def _gradients(self, ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        run = functools.partial(self._run_backward, ctx.axis)
        found = self.operators.gradients(ctx, cotangents, run)
        return (*found, *[None] * (len(ctx.scalars) + 2))

    def _run_backward(self, axis: int, form: Form, reads: Sequence[Any], scalars: tuple[float, ...]) -> Values:
        return tuple(self.backward(*self.operators.backward_args(form, reads, scalars), axis))

    def _backward(self, name: str) -> Any:
        operators = self.operators
        calls = operators.calls

        def split(args: Sequence[Any]) -> tuple[Form, dict[str, Any], tuple[float, ...], int]:
            *given, axis = args
            form, known, scalars = operators.split_backward(given)
            reads = calls.problem(form).reads
            rows = _rows([known.get(use.name) for use in reads], _are_elem(reads), axis)
            return form, dict(zip((use.name for use in reads), rows, strict=True)), scalars, axis

        def run(*args: Any) -> list[Any]:
            form, given, scalars, axis = split(args)
            found = calls.backward(form, [*given.values()], scalars, by_layout=True)
            return list(_lying(found, _are_elem(calls.problem(form).writes), axis))

        def like(*args: Any) -> list[Any]:
            form, given, _, axis = split(args)
            return list(_lying(calls.like(form, given), _are_elem(calls.problem(form).writes), axis))

        def of_all(info: Any, in_dims: Sequence[Any], *args: Any) -> Any:
            uses, names = calls.problem(operators.split_backward(args[:-1])[0]), operators.backward_takes
            elem, count = {use.name: use.kind.is_elem for use in uses.reads}, len(names)
            given, dims = _rows_of_all(args[:count], [elem.get(name, False) for name in names], in_dims, args[-1])
            found, _ = operators.backward.of_all(info, (*dims, *in_dims[count:-1]), *given, *args[count:-1])
            return list(_lying(found, _are_elem(uses.writes), _behind(args[-1]))), [0] * len(found)

        found = defined(name, operators.backward_schema(_AXIS), run, like, of_all)
        with_gradient(name, raising(no_second(calls.spec.name)))
        return found


def _are_elem(uses: Sequence[TensorUse]) -> list[bool]:
    return [use.kind.is_elem for use in uses]


def _rows(tensors: Sequence[Any], elem: Sequence[bool], axis: int) -> Values:
    """[.., cols] of tensors [.., cols, ..]: views."""
    return tuple(
        t.movedim(axis, -1) if t is not None and is_elem else t for t, is_elem in zip(tensors, elem, strict=True)
    )


def _lying(results: Sequence[Any], elem: Sequence[bool], axis: int) -> Values:
    """[.., cols, ..] without gaps: a copy of rows that lay otherwise."""
    return tuple(r.movedim(-1, axis).contiguous() if is_elem else r for r, is_elem in zip(results, elem, strict=True))


def _rows_of_all(
    tensors: Sequence[Any], elem: Sequence[bool], in_dims: Sequence[Any], axis: int
) -> tuple[list[Any], list[int | None]]:
    """[.., cols] of each example, the examples first where a tensor has them; and where they are."""
    found, dims = [], [None if dim is None else 0 for dim in in_dims[: len(tensors)]]
    for tensor, is_elem, dim in zip(tensors, elem, in_dims, strict=False):
        each = tensor if dim is None or tensor is None else tensor.movedim(dim, 0)
        at = axis if dim is None else _behind(axis)
        found.append(each.movedim(at, -1) if tensor is not None and is_elem else each)
    return found, dims


def _behind(axis: int) -> int:
    """An axis of an example among those of all examples, which are the first one."""
    return axis + 1 if axis >= 0 else axis


@functools.cache
def along_of(operators: Operators) -> Along | None:
    """Those of an operation; None of products of matrices, which have their axes by name. Registered once."""
    return None if operators.calls.spec.has_inner else Along(operators)
