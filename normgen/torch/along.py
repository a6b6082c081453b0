"""Operators of rows along any axis: what a compiler or a dispatch mode sees where rows are no last axis.

They take tensors of rows as they lie, [.., cols, ..], and the place of cols among their sizes; values of rows have the
sizes without it. Results lie without gaps, so that a program knows their strides whatever it makes of those of its
arguments. Rows of [batch, channels, height, width] are read and written where they are: nothing is moved in the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from normgen.problem.problem import why_not_side_by_side
from normgen.torch.calls import Values, apart_of, dtypes_of
from normgen.torch.inductor import lower
from normgen.torch.library import Body, Operators, alone


class Along:
    """The operators of a spec, as `Operators` has them, with an axis behind their other arguments."""

    def __init__(self, operators: Operators) -> None:
        self.operators = operators
        backward, saving, plain = operators.bodies
        bodies = BodyAlong(backward), BodyAlong(saving), plain and BodyAlong(plain)
        self.backward, self.saving, self.plain = operators.registered(*bodies, suffix="_along")

    def axis(self, tensors: Values, dtype: Any) -> int | None:
        """Where the columns of a call's rows are, if these lie side by side and have a kernel."""
        operators = self.operators
        try:
            apart = apart_of(operators.first(tensors))
        except GuardOnDataDependentSymNode:  # of sizes that nobody knows before it runs
            return None
        if apart is None:
            return None
        uses = operators.calls.forward(operators.written, dtypes_of(tensors), dtype)
        return None if why_not_side_by_side(operators.calls.spec, uses.problem.tensors) else apart[0]

    def __call__(self, op: Any, tensors: Values, scalars: tuple[float, ...], dtype: Any, axis: int) -> Any:
        """What `plain` or `saving` makes of [.., cols], which lie along `axis`."""
        if torch.compiler.is_compiling():
            for one in {op, self.backward}:
                lower(one)
        saving, plain = self.operators.bodies[1:]
        body = plain if plain and op is self.plain else saving
        found = op(*_moved(tensors, body.elem, -1, axis), *scalars, dtype, axis)
        results = found if isinstance(found, tuple) else (found,)
        return alone(_moved(results, body.gives(()), axis, -1))


class BodyAlong(Body):
    """The same of tensors [.., cols, ..] and, behind its other arguments, the axis of their columns."""

    def __init__(self, last: Body) -> None:
        values = {one.name: getattr(last, one.name) for one in fields(Body) if one.init}
        values |= {"schema": last.schema.replace(") ->", ", int axis_) ->", 1), "run": self._run}
        super().__init__(**values)
        self._last = last

    def _run(self, *args: Any) -> Any:
        given, axis = self._taken(args)
        return self._lying(self._last.run(*given, axis=axis), given, axis)

    def like(self, *args: Any) -> Any:
        given, axis = self._taken(args)
        return self._lying(self._last.like(*given), given, axis)

    def of_all(self, info: Any, in_dims: Sequence[Any], *args: Any) -> Any:
        *given, axis = args
        behind = axis + 1 if axis >= 0 else axis  # an axis of an example among those of all examples
        dims = list(in_dims[:-1])
        for i, (dim, is_elem) in enumerate(zip(in_dims, self.elem, strict=False)):
            if given[i] is not None and dim is not None:
                given[i], dims[i] = given[i].movedim(dim, 0), 0
            if given[i] is not None and is_elem:
                given[i] = given[i].movedim(axis if dim is None else behind, -1)
        found, places = self._last.of_all(info, dims, *given)
        return self._lying(found, given, behind), places

    def _taken(self, args: Sequence[Any]) -> tuple[list[Any], int]:
        *given, axis = args
        count = len(self.elem)
        return [*_moved(given[:count], self.elem, axis, -1), *given[count:]], axis

    def _lying(self, results: Any, given: Sequence[Any], axis: int) -> Any:
        """[.., cols, ..] without gaps: a copy of rows that lay otherwise."""
        every, elem = results if isinstance(results, tuple | list) else (results,), self.gives(given)
        moved = zip(_moved(every, elem, -1, axis), elem, strict=True)
        return self.packed(tuple([result.contiguous() if is_elem else result for result, is_elem in moved]))


def _moved(tensors: Sequence[Any], elem: Sequence[bool], of: int, to: int) -> Values:
    """Tensors whose columns are another axis, where they have columns: views."""
    pairs = zip(tensors, elem, strict=True)
    return tuple([t.movedim(of, to) if t is not None and is_elem else t for t, is_elem in pairs])


def along_of(operators: Operators) -> Along | None:
    """Those of an operation; None of products of matrices, which have their axes by name. Registered once."""
    found: Along | None = operators.along
    if found is None and not operators.calls.spec.has_inner:
        found = operators.along = Along(operators)
    return found
