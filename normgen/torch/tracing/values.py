"""What tracing knows of a function: its tensors as expressions, what a kernel reads, and what is found of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from normgen.spec.formula import Expression
from normgen.spec.spec import Role, Spec
from normgen.torch.tracing.recording import COLS, INNER, Dims, Node, Recorded

NARROW = (torch.float16, torch.bfloat16)
VIEWS = ("view", "view_copy", "reshape", "_unsafe_view", "expand", "expand_copy", "unsqueeze", "unsqueeze_copy")


@dataclass(frozen=True, kw_only=True)
class Value:
    """A tensor of the function, as an expression.

    dims      what each of its sizes counts
    dtype     torch's, in which the function has it
    held_in   the narrowest dtype that is known to hold the expression's values as they are
    is_whole  its values are whole numbers, or conditions
    is_total  the expression is one of all rows; `below`: the total that it is divided by, if any
    """

    tree: Expression
    dims: Dims
    dtype: Any
    held_in: Any = None
    is_whole: bool = False
    is_total: bool = False
    below: Expression | None = None

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(axis for dim in self.dims for axis in dim)


@dataclass(frozen=True, kw_only=True)
class Read:
    """A tensor that the kernel reads: an argument of the function, in the shape that its role has.

    place  of the argument
    dims   of the argument; `spread`: whether it has not all axes of the rows, and is expanded along the others
    group  neighbouring columns that share a value, of which the kernel takes one; 0: it takes a value for each column
    """

    place: int
    name: str
    role: Role
    dims: Dims
    spread: bool = False
    group: int = 0

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(axis for dim in self.dims for axis in dim)

    @property
    def rows(self) -> tuple[int, ...]:
        """The axes of the rows that it has."""
        return tuple(axis for axis in self.axes if axis >= 0)

    @property
    def is_side(self) -> bool:
        """A matrix that rows are multiplied with, or one of each batch."""
        return {INNER, COLS} <= {*self.axes}


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A function's spec, and what stands around the kernel.

    reads    in the order in which the operator takes them
    returns  the names of what the kernel writes
    tail     from the kernel's results and the arguments to the function's results; None: the kernel's, as they are
    tree     how the tail's results are put together; None: it does that
    """

    recorded: Recorded
    spec: Spec
    reads: tuple[Read, ...]
    returns: tuple[str, ...]
    tail: Any
    tree: Any = None


def shape_of(node: Node) -> tuple[Any, ...]:
    found = node.meta["val"]
    found = found[0] if isinstance(found, tuple | list) else found
    return tuple(size.node.expr if isinstance(size, torch.SymInt) else size for size in found.shape)
