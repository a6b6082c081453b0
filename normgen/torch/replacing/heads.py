"""A language model's head and its loss: the logits in float32 are not stored, nor need others be.

While a model runs with labels, its head gives `Logits`, which are no tensor yet. What the model does with them on the
way to its loss, casts, views and slices of rows, is done to what stands for them: the logits before any cast, for
`cross_entropy`; or the rows in front of the head, for `linear_cross_entropy`, which takes less memory and more time.
All else forms the logits and goes on with them: so labels are shifted, ignored and counted by the model's own lines.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from normgen.errors import UsageError
from normgen.operators.table import REDUCTIONS
from normgen.torch.calls import autocast_dtype
from normgen.torch.choosing import is_worth_products, why_no_products
from normgen.torch.functional import cross_entropy
from normgen.torch.linear_loss import linear_cross_entropy
from normgen.torch.replacing.patched import Patched, is_looked_on, is_plain_linear
from normgen.torch.replacing.probing import FailedError

Tensor = Any
Module = Any

_LABELS = ("labels", "targets", "target")  # what a forward calls its labels
_INNER, _SIZES = 8, (2, 5)  # of the rows in front of a head that is probed
_SAME = 1e-6
_cross_entropy = torch.nn.functional.cross_entropy


@dataclass(frozen=True, kw_only=True)
class HeadLoss:
    """What a model computes of the rows x in front of its head `head`, when it is given `labels`.

    stores  the logits, for `cross_entropy`; else, in training, `linear_cross_entropy` does without
    """

    head: str
    labels: str
    stores: bool = True

    def __str__(self) -> str:
        if self.stores:
            return f"cross_entropy({self.head}(x), {self.labels})"
        return f"linear_cross_entropy(x, {self.head}.weight, {self.labels}), in training"


class Logits:
    """Logits [.., classes] that become a tensor of `dtype` when somebody asks for one.

    rows    [.., classes], what they are before a cast; with a weight, the rows [.., inner] in front of the head
    weight  [classes, inner], of logits that are not stored
    form    (rows) -> the logits, by the head
    """

    def __init__(self, rows: Tensor, weight: Tensor | None, form: Callable[[Tensor], Tensor], dtype: Any) -> None:
        self.rows, self.weight, self.form, self.dtype = rows, weight, form, dtype
        self.classes = rows.shape[-1] if weight is None else weight.shape[0]
        self.version = 0 if weight is None else weight._version
        self.made: Tensor | None = None

    def formed(self) -> Tensor:
        """The logits, formed once. Raises UsageError behind an optimiser's step, which changed what they were."""
        if self.made is None:
            if self.weight is not None and self.weight._version != self.version:
                rule = "logits are formed by the weight that they were to be of, which was changed in place since"
                hint = "read output.logits before the optimiser's step, or call the model outside of training"
                raise UsageError(rule, received="logits of a replaced head", hint=hint)
            self.made = self.form(self.rows).to(self.dtype)
        return self.made

    def of(self, rows: Tensor, dtype: Any = None) -> Logits:
        found = Logits(rows, self.weight, self.form, dtype or self.dtype)
        found.version = self.version
        return found

    # What a tensor says of itself.

    @property
    def shape(self) -> Any:
        return torch.Size((*self.rows.shape[:-1], self.classes))

    @property
    def ndim(self) -> int:
        return int(self.rows.ndim)

    @property
    def device(self) -> Any:
        return self.rows.device

    @property
    def requires_grad(self) -> bool:
        return bool(self.rows.requires_grad or (self.weight is not None and self.weight.requires_grad))

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.ndim

    # What is done to rows in the place of logits.

    def float(self) -> Logits:
        return self.of(self.rows, torch.float32)

    def contiguous(self) -> Logits:
        return self

    def to(self, *args: Any, **named: Any) -> Any:
        if not named and args in ((torch.float32,), (self.device,)):
            return self.float() if args[0] == torch.float32 else self
        return self.formed().to(*args, **named)

    def view(self, *sizes: Any) -> Any:
        sizes = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
        if len(sizes) < 2 or sizes[-1] != self.classes:
            return self.formed().reshape(*sizes)
        return self.of(self.rows.reshape(*sizes[:-1], self.rows.shape[-1]))

    reshape = view

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        if (start_dim, end_dim) not in ((0, -2), (0, self.ndim - 2)):
            return self.formed().flatten(start_dim, end_dim)
        return self.view(-1, self.classes)

    def __getitem__(self, index: Any) -> Any:
        """Of slices of rows with all classes."""
        parts = index if isinstance(index, tuple) else (index,)
        slices = [part for part in parts if isinstance(part, slice)]
        dots = sum(part is Ellipsis for part in parts)
        has_classes = len(slices) == self.ndim or (dots and parts[-1] is not Ellipsis)
        if len(slices) + dots < len(parts) or (has_classes and parts[-1] != slice(None)):
            return self.formed()[index]
        return self.of(self.rows[index])

    # All else.

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of copies and pickles
            raise AttributeError(name)
        return getattr(self.formed(), name)

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func is _cross_entropy and isinstance(args[0] if args else named.get("input"), cls):
            return _loss(*args, **named)
        args, named = tree_map(lambda one: one.formed() if isinstance(one, cls) else one, (args, named))
        return func(*args, **named)


def _of_formed(name: str) -> Callable[..., Any]:
    def run(self: Logits, *args: Any) -> Any:
        return getattr(self.formed(), name)(*[a.formed() if isinstance(a, Logits) else a for a in args])

    return run


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
_OTHERS = ("neg", "pos", "abs", "invert", "len", "iter", "bool", "float", "int", "eq", "ne", "lt", "le", "gt", "ge")
for _name in (*_ARITHMETIC, *(f"r{name}" for name in _ARITHMETIC), *_OTHERS, "array"):
    setattr(Logits, f"__{_name}__", _of_formed(f"__{_name}__"))


def _loss(
    input: Logits,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """torch's cross entropy of logits; of those of rows with labels, without them."""
    is_ours = weight is None and size_average is None and reduce is None and reduction in REDUCTIONS
    if not is_ours or input.ndim != 2 or target.is_floating_point() or target.shape != input.shape[:-1]:
        behind = (weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        return _cross_entropy(input.formed(), target, *behind)
    options: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction, "label_smoothing": label_smoothing}
    if input.weight is None:
        loss = cross_entropy(input.rows, target, **options)
    else:
        loss = linear_cross_entropy(input.rows, input.weight, target, **options)
    return loss if autocast_dtype(input.device.type) is not None else loss.to(input.dtype)


class HeadForward(Patched):
    """A head that gives `Logits` while it is open, within the forward of its model."""

    def __init__(self, module: Module, *, name: str, stores: bool) -> None:
        super().__init__(module, name=name)
        self.is_open, self.stores = False, stores

    def __call__(self, *args: Any, **named: Any) -> Any:
        (x,) = (*args, *named.values()) if named else args
        module = self.module
        is_ours = self.is_open and type(x) is torch.Tensor and is_plain_linear(module) and not is_looked_on()
        if not is_ours or not is_worth_products(x, module.weight, of_few=False):
            return self.original(x)
        if self.stores:
            logits = self.original(x)
            return Logits(logits, None, _as_it_is, logits.dtype)
        cast = None if x.dtype == torch.float64 else autocast_dtype(x.device.type)
        return Logits(x, module.weight, self.original, cast or x.dtype)


class LossForward(Patched):
    """A model's own forward; with labels its head is open, in training alone where logits are not stored."""

    def __init__(self, module: Module, found: HeadLoss, *, name: str) -> None:
        super().__init__(module, name=name)
        self.found = found
        self.at = [*inspect.signature(self.original).parameters].index(found.labels)

    @property
    def __signature__(self) -> inspect.Signature:
        """What trainers ask to know which columns of a data set a model takes."""
        return inspect.signature(self.original)

    def __call__(self, *args: Any, **named: Any) -> Any:
        labels = args[self.at] if len(args) > self.at else named.get(self.found.labels)
        head = getattr(self.module, self.found.head).forward
        is_ours = labels is not None and (self.found.stores or self.module.training)
        if not (is_ours and isinstance(head, HeadForward)):
            return self.original(*args, **named)
        head.is_open = True
        try:
            found = self.original(*args, **named)
        finally:
            head.is_open = False
        return _with_tensors(found) if self.found.stores else found


def _as_it_is(rows: Tensor) -> Tensor:
    return rows


def _with_tensors(found: Any) -> Any:
    """What a model returns, with the logits that it stored anyway as the tensors they were."""
    if isinstance(found, dict):
        for name, value in found.items():
            if isinstance(value, Logits):
                found[name] = value.formed()
    elif type(found) is tuple:
        return tuple([value.formed() if isinstance(value, Logits) else value for value in found])
    return found


def labels_of(module: Module) -> str:
    """The name of the labels that a module with a linear layer of its own takes, or nothing."""
    if not any(isinstance(child, torch.nn.Linear) for child in module.children()):
        return ""
    takes = inspect.signature(module.forward).parameters
    return next((name for name in _LABELS if name in takes), "")


def told_loss(module: Module, *, stores: bool) -> HeadLoss | str:
    """What a module computes of its labels, or why it is no cross entropy of a head's logits."""
    if "forward" in vars(module):
        return "its forward is already another one than that of its class"
    heads = {name: child for name, child in module.named_children() if type(child) is torch.nn.Linear}
    if len(heads) != 1:
        return f"it has {len(heads)} linear layers of its own, and a head is one"
    ((name, head),) = heads.items()
    if head.bias is not None:
        return f"its head {name} has a bias"
    if why := why_no_products(head.weight):
        return why
    labels = labels_of(module)
    probe = _Probe(module, name, labels)
    try:
        want = probe.loss(is_open=False)
        loss = probe.loss(is_open=True)
    except FailedError as failure:
        return str(failure)
    if probe.formed:
        return "its logits are changed on the way to its loss, or that is not torch's cross_entropy"
    if loss.dtype != want.dtype or not torch.allclose(loss, want, rtol=_SAME, atol=0):
        return "its loss is not the cross entropy of its logits alone"
    return HeadLoss(head=name, labels=labels, stores=stores)


class _Probe:
    """A model on stand-ins: a small head in the place of its own, behind rows that all else gives.

    formed  how often logits were asked for
    """

    def __init__(self, module: Module, head: str, labels: str) -> None:
        self.head, self.named = head, labels
        classes, self.formed = getattr(module, head).weight.shape[0], 0
        place: dict[str, Any] = {"device": "cpu", "generator": torch.Generator(device="cpu").manual_seed(0)}
        self.rows = torch.randn(*_SIZES, _INNER, dtype=torch.float64, **place)
        self.labels = torch.randint(0, classes, _SIZES, dtype=torch.int64, **place)
        own = torch.nn.Linear(1, 1, bias=False, device="meta")  # which draws no random numbers
        own.weight = torch.nn.Parameter(torch.randn(classes, _INNER, dtype=torch.float64, **place))
        self.forward = HeadForward(own, name=head, stores=False)
        plain = own.forward

        def form(rows: Tensor) -> Tensor:
            self.formed += self.forward.is_open
            return plain(rows)

        self.forward.original, own.forward = form, self.forward
        self.module = copy.copy(module)
        children = {
            name: _Before(self.rows) if next(child.parameters(), None) is not None else child
            for name, child in module._modules.items()
            if child is not None
        }
        self.module.__dict__ |= {"_modules": {**module._modules, **children, head: own}, "training": True}

    def loss(self, *, is_open: bool) -> Tensor:
        takes = [*inspect.signature(self.module.forward).parameters]
        before = () if takes[0] == self.named else (self.labels,)
        self.forward.is_open = is_open
        try:
            with torch.no_grad(), warnings.catch_warnings(action="ignore"):
                found = self.module.forward(*before, **{self.named: self.labels})
        except Exception as error:
            raise FailedError(f"its forward does not run on stand-ins: {type(error).__name__}: {error}") from error
        parts = found.values() if isinstance(found, dict) else found if type(found) is tuple else ()
        losses = [part for part in parts if isinstance(part, torch.Tensor) and not part.ndim]
        if len(losses) != 1:
            raise FailedError(f"its forward returns a {type(found).__name__} with {len(losses)} losses")
        return losses[0]


class _Before(torch.nn.Module):
    """What stands in front of a head: whatever it is called with, the rows are what it gives first."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, *_: Any, **__: Any) -> _Given:
        return _Given(self.rows)


class _Given:
    def __init__(self, rows: Tensor) -> None:
        self.last_hidden_state = rows

    def __getitem__(self, index: Any) -> Any:
        return () if isinstance(index, slice) else self.last_hidden_state if index in (0, "last_hidden_state") else None

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
