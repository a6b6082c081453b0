"""A language model's head and its loss: the logits in float32 are not stored, nor need others be.

While a model runs with labels, its head gives `Logits`, which are no tensor yet. What the model does with them on the
way to its loss, casts, views and slices of rows, is done to what stands for them: the logits before any cast, for
`cross_entropy`; or the rows in front of the head, for `linear_cross_entropy`, which takes less memory and more time.
All else forms the logits and goes on with them: so labels are shifted, ignored and counted by the model's own lines.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from normgen.errors import UsageError
from normgen.operators.table import REDUCTIONS
from normgen.torch.calls import autocast_dtype
from normgen.torch.choosing import is_worth_products, why_no_products
from normgen.torch.functional import cross_entropy
from normgen.torch.linear_loss import linear_cross_entropy
from normgen.torch.replacing.patched import Patched, is_looked_on, is_plain_linear
from normgen.torch.replacing.pending import Pending, with_tensors
from normgen.torch.replacing.probing import INTERNAL, FailedError, copied

Tensor = Any
Module = Any

_LABELS = ("labels", "targets", "target")  # what a forward calls its labels
_INNER, _SIZES = 8, (2, 5)  # of the rows in front of a head that is probed
_OWN = ("_buffers", "_modules")  # what torch keeps of a module, and a forward may change
_SAME, _SAME_GRADIENT = 1e-6, 1e-5  # of a loss; of the largest of its gradients
_HELD = 1 << 24  # float32, which our losses compare labels in, holds every whole number up to it
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


class Logits(Pending):
    """Logits [.., classes] that become a tensor of `dtype` when somebody asks for one.

    rows    [.., classes], what they are before a cast; with a weight, the rows [.., inner] in front of the head
    weight  [classes, inner], of logits that are not stored
    form    (rows, weight, dtype) -> the logits
    base    logits that these are made of, by a method of theirs: its name, and its arguments
    """

    def __init__(
        self,
        rows: Tensor,
        weight: Tensor | None,
        form: Callable[[Tensor, Tensor | None, Any], Tensor],
        dtype: Any,
        base: tuple[Logits, str, tuple[Any, ...]] | None = None,
    ) -> None:
        super().__init__(rows, rows.shape[-1] if weight is None else weight.shape[0], dtype)
        self.weight, self.form, self.base = weight, form, base
        self.version = 0 if weight is None else weight._version
        self.memory = 0 if weight is None or torch.compiler.is_compiling() else weight.data_ptr()

    def making(self, *, is_last: bool) -> Tensor:
        """Raises UsageError behind an optimiser's step, which changed what they were.

        is_last  the model is through with them, but for parts of it that a backward pass runs again as they ran
        """
        if self.base is not None:
            of, name, args = self.base
            return getattr(of.formed(is_last=is_last), name)(*args)
        if not self.is_as_it_was(self.weight):
            rule = "logits are formed by the weight that they were to be of, which was changed in place since"
            hint = "read output.logits before the optimiser's step, or call the model outside of training"
            raise UsageError(rule, received="logits of a replaced head", hint=hint)
        return self.form(self.rows, self.weight, self.dtype)

    def is_as_it_was(self, weight: Tensor | None) -> bool:
        """A compiler does not see where the memory of a weight is."""
        return weight is None or (weight._version == self.version and self.memory in (0, weight.data_ptr()))

    def is_formed(self) -> bool:
        """Whether somebody may have changed them in place: then all goes on with the tensor."""
        return self.made is not None or (self.base is not None and self.base[0].is_formed())

    def of(self, rows: Tensor, name: str, *args: Any, dtype: Any = None) -> Any:
        """What their method gives, which does the same to rows."""
        if self.is_formed():
            return getattr(self.formed(), name)(*args)
        return Logits(rows, self.weight, self.form, dtype or self.dtype, (self, name, args))

    @property
    def requires_grad(self) -> bool:
        return bool(self.rows.requires_grad or (self.weight is not None and self.weight.requires_grad))

    @classmethod
    def resolved(cls, func: Any, args: Any, named: Any) -> Any:
        if func is _cross_entropy and isinstance(args[0] if args else named.get("input"), cls):
            return _loss(*args, **named)
        return NotImplemented

    # What is done to rows in the place of logits.

    def float(self) -> Any:
        return self.of(self.rows, "float", dtype=torch.float32)

    def contiguous(self) -> Any:
        return self.of(self.rows, "contiguous")

    def to(self, *args: Any, **named: Any) -> Any:
        if not named and args in ((torch.float32,), (self.device,)):
            return self.float() if args[0] == torch.float32 else self
        return self.formed().to(*args, **named)

    def view(self, *sizes: Any) -> Any:
        sizes = tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
        if len(sizes) < 2 or sizes[-1] != self.width:
            return self.formed().reshape(*sizes)
        return self.of(self.rows.reshape(*sizes[:-1], self.rows.shape[-1]), "reshape", *sizes)

    reshape = view

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Any:
        if (start_dim, end_dim) not in ((0, -2), (0, self.ndim - 2)):
            return self.formed().flatten(start_dim, end_dim)
        return self.view(-1, self.width)

    def __getitem__(self, index: Any) -> Any:
        """Of slices of rows with all classes."""
        parts = index if isinstance(index, tuple) else (index,)
        slices = [part for part in parts if isinstance(part, slice)]
        dots = sum(part is Ellipsis for part in parts)
        has_classes = len(slices) == self.ndim or (dots and parts[-1] is not Ellipsis)
        if len(slices) + dots < len(parts) or (has_classes and parts[-1] != slice(None)):
            return self.formed()[index]
        return self.of(self.rows[index], "__getitem__", index)


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
    is_plain = weight is None and size_average is None and reduce is None and reduction in REDUCTIONS
    is_ours = is_plain and not input.is_formed() and -_HELD <= ignore_index <= _HELD
    if not is_ours or input.ndim != 2 or target.dtype != torch.int64 or target.shape != input.shape[:-1]:
        behind = (weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        return _cross_entropy(input.formed(), target, *behind)
    options: dict[str, Any] = {"ignore_index": ignore_index, "reduction": reduction, "label_smoothing": label_smoothing}
    if input.weight is None:
        loss = cross_entropy(input.rows, target, **options)
    else:
        loss = linear_cross_entropy(input.rows, input.weight, target, **options)
    return loss if autocast_dtype(input.device.type) is not None else loss.to(input.dtype)


class HeadForward(Patched):
    """A head that gives `Logits` while it is open, within the forward of its model: by whether that has gradients."""

    def __init__(self, module: Module, *, name: str, stores: bool) -> None:
        super().__init__(module, name=name)
        self.stores, self.form = stores, _form

    def __call__(self, *args: Any, **named: Any) -> Any:
        (x,) = (*args, *named.values()) if named else args
        module = self.module
        is_ours = type(x) is torch.Tensor and is_plain_linear(module) and not is_looked_on()
        # Within a checkpoint that records nothing, only tensors are recorded behind it.
        if not is_ours or self.opened is not torch.is_grad_enabled():
            return self.original(x)
        if not is_worth_products(x, module.weight, of_few=False):
            return self.original(x)
        if self.stores:
            logits = self.original(x)
            return Logits(logits, None, self.form, logits.dtype)
        cast = None if x.dtype == torch.float64 else autocast_dtype(x.device.type)
        return Logits(x, module.weight, self.form, cast or x.dtype)


class LossForward(Patched):
    """A model's own forward; with labels its head is open, in training alone where logits are not stored."""

    def __init__(self, module: Module, found: HeadLoss, *, name: str) -> None:
        super().__init__(module, name=name)
        self.found = found
        self.at = [*self.__signature__.parameters].index(found.labels)

    def __call__(self, *args: Any, **named: Any) -> Any:
        labels = args[self.at] if len(args) > self.at else named.get(self.found.labels)
        head = getattr(self.module, self.found.head).forward
        is_ours = labels is not None and (self.found.stores or self.module.training)
        if not (is_ours and isinstance(head, HeadForward)):
            return self.original(*args, **named)
        head.open(torch.is_grad_enabled())
        try:
            found = self.original(*args, **named)
        finally:
            head.close()
        return with_tensors(found) if self.found.stores else found


def _form(rows: Tensor, weight: Tensor | None, dtype: Any) -> Tensor:
    """As the head makes them in the call that they are of, under autocast or not."""
    if weight is None:
        return rows
    with torch.autocast(rows.device.type, enabled=False):
        return torch.nn.functional.linear(rows.to(dtype), weight.to(dtype))


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
    try:
        probe = _Probe(module, name, labels)
        want, *gradients = probe.loss(is_open=False)
        loss, *found = probe.loss(is_open=True)
    except FailedError as failure:
        return str(failure)
    if probe.formed:
        return "its logits are changed on the way to its loss, or that is not torch's cross_entropy"
    if loss.dtype != want.dtype or not torch.allclose(loss, want, rtol=_SAME, atol=0):
        return "its loss is not the cross entropy of its logits alone"
    if not all(map(_is_same_gradient, found, gradients)):
        return "its loss has other gradients behind what is no tensor: a checkpoint's, or a Function's of its own"
    return HeadLoss(head=name, labels=labels, stores=stores)


def _is_same_gradient(found: Tensor | None, want: Tensor | None) -> bool:
    if found is None or want is None:
        return found is want
    return bool(torch.allclose(found, want, rtol=0, atol=_SAME_GRADIENT * float(want.abs().max())))


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

        def form(rows: Tensor, weight: Tensor | None, dtype: Any) -> Tensor:
            self.formed += 1
            return _form(rows, weight, dtype)

        self.forward.form, own.forward = form, self.forward
        self.leaves = self.rows.requires_grad_(), own.weight
        # What the copy counts and keeps is its own; of what has parameters there is none.
        children = {id(c): _Before(self.rows) for c in module.children() if next(c.parameters(), None) is not None}
        self.module = copy.copy(module)
        known = {id(p): p for p in module.parameters()} | children
        known |= {id(getattr(module, head)): own, id(module): self.module}
        for name, value in vars(module).items():
            if name in _OWN or name not in INTERNAL:
                with contextlib.suppress(FailedError):  # a lock, or what shards a model: no forward changes these
                    self.module.__dict__[name] = copied(value, known)
        self.module.training = True

    def loss(self, *, is_open: bool) -> tuple[Tensor, ...]:
        """The loss, and its gradients."""
        takes = [*inspect.signature(self.module.forward).parameters]
        before = () if takes[0] == self.named else (self.labels,)
        if is_open:
            self.forward.open(True)
        torch.default_generator.manual_seed(0)  # of a dropout, say: `replace` gives it back its state
        for leaf in self.leaves:
            leaf.grad = None
        try:
            with torch.enable_grad(), warnings.catch_warnings(action="ignore"):
                found = self.module.forward(*before, **{self.named: self.labels})
                loss = _loss_of(found)
                self.forward.close()  # as it is when a backward pass runs a part again
                if loss.requires_grad:
                    loss.backward()
        except FailedError:
            raise
        except Exception as error:
            raise FailedError(f"its forward does not run on stand-ins: {type(error).__name__}: {error}") from error
        return loss.detach(), *(leaf.grad for leaf in self.leaves)


def _loss_of(found: Any) -> Tensor:
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
