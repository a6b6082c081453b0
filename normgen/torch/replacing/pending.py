"""What stands for a tensor between modules until somebody asks for it: a kernel may then make it otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from normgen.errors import UsageError
from normgen.torch.calls import autocast_dtype
from normgen.torch.choosing import is_worth_products
from normgen.torch.operators import Operator, operator
from normgen.torch.replacing.normed import products_behind
from normgen.torch.replacing.patched import is_looked_on

Tensor = Any

DEEP = 8  # containers within each other, of results: one may hold itself


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
        if self.made is not None:
            return self.made
        made = self.making(is_last=is_last)
        if not is_last:
            self.made = made
        return made

    def making(self, *, is_last: bool) -> Tensor:
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
    def run(self: Pending, *args: Any, **named: Any) -> Any:
        return getattr(self.formed(), name)(*[a.formed() if isinstance(a, Pending) else a for a in args], **named)

    return run


# What a tensor does itself with, in place too: copies and pickles of what is pending are those of the tensor.
_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
_IN_PLACE = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor")
_SHIFTS = ("lshift", "rshift", "rlshift", "rrshift", "ilshift", "irshift")
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge", "contains")
_OTHERS = ("neg", "pos", "abs", "invert", "len", "iter", "reversed", "bool", "float", "int", "index", "complex")
_ITEMS = ("getitem", "setitem", "delitem", "array", "dlpack", "dlpack_device")
_OF_OBJECTS = ("repr", "format", "deepcopy", "reduce_ex")
_WITH_OTHERS = (*_ARITHMETIC, *(f"r{name}" for name in _ARITHMETIC), *_IN_PLACE, *_SHIFTS, *_COMPARED)
for _name in (*_WITH_OTHERS, *_OTHERS, *_ITEMS, *_OF_OBJECTS):
    setattr(Pending, f"__{_name}__", _of_formed(f"__{_name}__"))


class OfFew(Pending):
    """What is pending in a layer of few rows: it was given its rows without gradients and outside of autocast."""

    def __init__(self, rows: Tensor, width: int, dtype: Any) -> None:
        super().__init__(rows, width, dtype)
        self.version = _version(rows)

    def making(self, **_: bool) -> Tensor:
        self.check_rows()
        if not torch.is_grad_enabled() and autocast_dtype(self.device.type) is None:
            return self.of_rows()
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            return self.of_rows()

    def of_rows(self) -> Tensor:
        raise NotImplementedError

    def check_rows(self) -> None:
        """Raises UsageError where rows are not what they were: no result would be that of the modules."""
        if self.version != _version(self.rows):
            rule = (
                "rows that a norm or a linear layer of a replaced layer was given stay as they are until they are read"
            )
            hint = "normgen.torch.restore(the layer) leaves it to its own operations"
            raise UsageError(rule, received="rows that were changed in place", hint=hint)


def _version(rows: Tensor) -> int:
    """How often a tensor was changed in place: one of inference mode does not count, nor what a compiler traces."""
    return 0 if torch.compiler.is_compiling() or rows.is_inference() else int(rows._version)


class Normed(OfFew):
    """What a norm gives, until products behind it have made it themselves.

    function, given, eps  one of `NORMS`, its rows and its weight
    original              the norm's own forward
    weight                that of a layer which reads it: it may pend for that; None: unknown
    found                 products that were made beside another one, by their layers, of what it is
    """

    def __init__(
        self,
        function: str,
        given: Sequence[Tensor],
        eps: float,
        original: Callable[..., Tensor],
        weight: Any = None,
    ) -> None:
        super().__init__(given[0], given[0].shape[-1], given[0].dtype)
        self.function, self.given, self.eps, self.original, self.weight = function, given, eps, original, weight
        self.found: dict[Any, Tensor] = {}

    def of_rows(self) -> Tensor:
        self.found.clear()  # who forms it may change it in place
        return self.original(self.rows)

    def is_read_by(self, weight: Tensor) -> bool:
        """Whether a product with a weight may be made of its rows."""
        if self.made is not None:
            return False
        is_told = weight is self.weight and (weight.dtype, weight.shape[-1]) == (self.dtype, self.width)
        return _is_alone(self.rows) if is_told else may_pend(self.rows, weight)

    def products(self, layers: Sequence[Any], where: str, gate: str = "") -> Any:
        """Its products with the weights of linear layers alike, and their biases, in one kernel; or their gate."""
        self.check_rows()
        known = [layer._parameters for layer in layers]
        given = (*self.given, *[of["weight"] for of in known], *[of["bias"] for of in known])
        return called(products_behind(self.function, len(layers), gate), given, (self.eps,), where)


class Product(OfFew):
    """A linear layer's product with `weight` [cols, inner], until a residual is added to it, which its kernel does.

    where  as in `Site`
    """

    def __init__(self, rows: Tensor, weight: Tensor, where: str) -> None:
        super().__init__(rows, weight.shape[0], rows.dtype)
        self.weight, self.where = weight, where

    def of_rows(self) -> Tensor:
        return torch.nn.functional.linear(self.rows, self.weight)

    @classmethod
    def resolved(cls, func: Any, args: Any, named: Any) -> Any:
        if func not in _ADDS or len(args) != 2 or named:
            return NotImplemented
        return args[1].plus(args[0]) if isinstance(args[1], cls) else args[0].plus(args[1])

    def plus(self, other: Any) -> Tensor:
        rows = self.rows
        is_ours = type(other) is torch.Tensor and other.dtype == self.dtype and self.made is None
        is_ours = is_ours and other.shape[-1:] == (self.width,) and other.shape[:-1] == rows.shape[:-1]
        if not (is_ours and other.device == rows.device and _is_alone(rows)):  # its rows were few when it was made
            return self.formed() + (other.formed() if isinstance(other, Pending) else other)
        self.check_rows()
        return called(_linear_add, (rows, other, self.weight.t()), (), self.where)

    __add__ = __radd__ = plus


_linear_add = operator("linear_add")
_ADDS = (torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__)


def called(of: Operator, tensors: tuple[Tensor, ...], scalars: tuple[float, ...], where: str) -> Any:
    if torch.compiler.is_dynamo_compiling():
        return of.traced(*tensors, *scalars, None, True, where)
    found = of.eager(tensors, scalars, None)
    return of.function(*tensors, *scalars) if found is NotImplemented else found


def may_pend(x: Any, weight: Tensor) -> bool:
    """Whether what is made of rows and a weight may wait for its reader: of few rows, without gradients or autocast."""
    return type(x) is torch.Tensor and _is_alone(x) and is_worth_products(x, weight, of_many=False)


def _is_alone(x: Tensor) -> bool:
    return not (torch.is_grad_enabled() or autocast_dtype(x.device.type) is not None or is_looked_on())


def with_tensors(found: Any, deep: int = DEEP) -> Any:
    """What a module returns, with the tensors that pending ones stand for, in containers up to `deep` in each other."""
    if isinstance(found, Pending):
        return found.formed(is_last=True)
    if not _holds_pending(found, deep):
        return found
    if isinstance(found, (dict, list)):  # a compiler traces no `|`
        for key, value in [*(found.items() if isinstance(found, dict) else enumerate(found))]:
            found[key] = with_tensors(value, deep - 1)
        return found
    if is_record(found):
        for key, value in [*vars(found).items()]:
            object.__setattr__(found, key, with_tensors(value, deep - 1))  # of a frozen one, too
        return found
    parts = [with_tensors(value, deep - 1) for value in found]
    return type(found)(*parts) if hasattr(found, "_fields") else tuple(parts)


def _holds_pending(found: Any, deep: int) -> bool:
    if isinstance(found, Pending) or not deep:
        return isinstance(found, Pending)
    if isinstance(found, (dict, list, tuple)):
        parts = found.values() if isinstance(found, dict) else found
    elif is_record(found):
        parts = vars(found).values()
    else:
        return False
    return any(_holds_pending(part, deep - 1) for part in parts)


def is_record(found: Any) -> bool:
    return hasattr(type(found), "__dataclass_fields__") and hasattr(found, "__dict__")
