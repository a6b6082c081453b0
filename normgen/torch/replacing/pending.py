"""What stands for a tensor between modules until somebody asks for it: a kernel may then make it otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

Tensor = Any


class Pending:
    """A tensor [.., width] of `dtype` that is made when somebody asks for one: it is no tensor before.

    rows  [.., n], which it has the leading sizes and the device of
    made  the tensor, once it was asked for
    """

    def __init__(self, rows: Tensor, width: int, dtype: Any) -> None:
        self.rows, self.width, self.dtype = rows, width, dtype
        self.made: Tensor | None = None

    def formed(self, *, is_last: bool = False) -> Tensor:
        """The tensor, made once; `is_last`: by who asks last, so that it need not be kept."""
        raise NotImplementedError

    @classmethod
    def resolved(cls, func: Any, args: Any, named: Any) -> Any:
        """What a function of torch's gives without the tensor; NotImplemented where it takes the tensor."""
        del func, args, named
        return NotImplemented

    # What a tensor says of itself.

    @property
    def shape(self) -> Any:
        return torch.Size((*self.rows.shape[:-1], self.width))

    @property
    def ndim(self) -> int:
        return int(self.rows.ndim)

    @property
    def device(self) -> Any:
        return self.rows.device

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.ndim

    # All else.

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of copies and pickles
            raise AttributeError(name)
        return getattr(self.formed(), name)

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        found = cls.resolved(func, args, named)
        if found is not NotImplemented:
            return found
        args, named = tree_map(lambda one: one.formed() if isinstance(one, Pending) else one, (args, named))
        return func(*args, **named)


def _of_formed(name: str) -> Callable[..., Any]:
    def run(self: Pending, *args: Any) -> Any:
        return getattr(self.formed(), name)(*[a.formed() if isinstance(a, Pending) else a for a in args])

    return run


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
_OTHERS = ("neg", "pos", "abs", "invert", "len", "iter", "bool", "float", "int", "eq", "ne", "lt", "le", "gt", "ge")
_ITEMS = ("getitem", "setitem", "array")
for _name in (*_ARITHMETIC, *(f"r{name}" for name in _ARITHMETIC), *_OTHERS, *_ITEMS):
    setattr(Pending, f"__{_name}__", _of_formed(f"__{_name}__"))


def with_tensors(found: Any) -> Any:
    """What a module returns, with the tensors that pending ones stand for."""
    if isinstance(found, Pending):
        return found.formed(is_last=True)
    if isinstance(found, (dict, list)):  # a compiler traces no `|`
        for key, value in [*(found.items() if isinstance(found, dict) else enumerate(found))]:
            if (made := with_tensors(value)) is not value:
                found[key] = made
    elif isinstance(found, tuple):
        parts = [with_tensors(value) for value in found]
        if any(part is not value for part, value in zip(parts, found, strict=True)):
            return type(found)(*parts) if hasattr(found, "_fields") else tuple(parts)
    return found
