"""Operators of rows along any axis: what a compiler or a dispatch mode sees where rows are no last axis.

They take tensors of rows as they lie, [.., cols, ..], and the place of cols among their sizes; values of rows have the
sizes without it. Results lie without gaps, so that a program knows their strides whatever it makes of those of its
arguments. Rows of [batch, channels, height, width] are read and written where they are: nothing is moved in the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
        bodies = _along(backward), _along(saving), plain and _along(plain)
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


def _along(body: Body) -> Body:
    """The same of tensors [.., cols, ..] and the axis of their columns."""
    count = len(body.elem)

    def taken(args: Sequence[Any]) -> tuple[list[Any], int]:
        *given, axis = args
        return [*_moved(given[:count], body.elem, axis, -1), *given[count:]], axis

    def lying(results: Any, given: Sequence[Any], axis: int) -> Any:
        """[.., cols, ..] without gaps: a copy of rows that lay otherwise."""
        every = results if isinstance(results, tuple | list) else (results,)
        elem = body.gives(given)
        moved = zip(_moved(every, elem, -1, axis), elem, strict=True)
        found = tuple([result.contiguous() if is_elem else result for result, is_elem in moved])
        return list(found) if isinstance(results, list) else alone(found)

    def run(*args: Any) -> Any:
        given, axis = taken(args)
        return lying(body.run(*given, axis=axis), given, axis)

    def like(*args: Any) -> Any:
        given, axis = taken(args)
        return lying(body.like(*given), given, axis)

    def of_all(info: Any, in_dims: Sequence[Any], *args: Any) -> Any:
        *given, axis = args
        behind = axis + 1 if axis >= 0 else axis  # an axis of an example among those of all examples
        dims = [None if dim is None else 0 for dim in in_dims[:count]]
        for i, dim in enumerate(in_dims[:count]):
            if given[i] is not None:
                each = given[i] if dim is None else given[i].movedim(dim, 0)
                given[i] = each.movedim(axis if dim is None else behind, -1) if body.elem[i] else each
        found, places = body.of_all(info, (*dims, *in_dims[count:-1]), *given)
        return lying(found, given, behind), places

    schema = body.schema.replace(") ->", ", int axis_) ->", 1)
    return replace(body, schema=schema, run=run, like=like, of_all=of_all)


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
