"""`replace`: norms and products of a model that is there, found by what they compute, and by none of their names."""

from __future__ import annotations

import functools
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from normgen.errors import UsageError
from normgen.torch.replacing.alone import alone
from normgen.torch.replacing.gating import GatedForward, GatedMlp, may_be_gated, told_gated
from normgen.torch.replacing.heads import HeadForward, HeadLoss, LossForward, labels_of, told_loss
from normgen.torch.replacing.layers import Layer, LayerForward, LinearForward, told_layer
from normgen.torch.replacing.patched import PLAIN, Patched, is_patched, is_same
from normgen.torch.replacing.pending import Normed, Pending, may_pend
from normgen.torch.replacing.probing import INTERNAL, NONE, Norm, told

Tensor = Any
Module = Any

_LEFT_OPEN = INTERNAL | {"training", "forward"}  # what torch sets on a module, and we do
_FIXED = (type, torch.nn.Module, torch.nn.Parameter, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_LARGEST_EPS = torch.finfo(torch.float32).max


class Forward(Patched):
    """Our function where it computes the same, else what the module did."""

    def __init__(self, module: Module, norm: Norm, *, name: str, opaque: bool | None) -> None:
        super().__init__(module, name=name)
        self.norm, self.opaque = norm, opaque
        self.operator = norm.operator
        # The operator's tensors as places among (the rows, the parameters), None of one that is absent.
        places, self.scalars, *_ = self.operator.bound(*range(1 + len(norm.parameters)), eps=norm.eps)
        self.places = None if places == tuple(range(len(places))) else places
        self.eps_at = [scalar for scalar, _ in self.operator.spec.scalars].index("eps")
        # What it computes while all of these are as they were: its own attributes, and those of its class.
        self.examined: dict[str, Any] = {name: value for name, value in vars(module).items() if name not in _LEFT_OPEN}
        self.held = tuple(name for name, value in self.examined.items() if _may_change(value))
        self.prints = [_print(self.examined[name]) for name in self.held]
        self.examined |= {name: getattr(module, name) for name in norm.reads}
        self.of_class = bool(norm.reads)
        # At the last call, whose scalars these are: how many attributes it had, and those that decide.
        self.size, self.seen = -1, ()  # type: tuple[int, tuple[tuple[str, Any], ...]]

    def __getstate__(self) -> dict[str, Any]:
        """All but the operator, which remembers loaded kernels and belongs to nobody: for copies and pickles."""
        return {name: value for name, value in super().__getstate__().items() if name != "operator"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.operator, self.size, self.seen = self.norm.operator, -1, ()

    def __call__(self, *args: Any, **named: Any) -> Tensor:
        (x,) = (*args, *named.values()) if named else args
        if isinstance(x, Pending):
            x = x.formed()
        norm, module, known = self.norm, self.module, self.module._parameters
        is_traced = torch.compiler.is_dynamo_compiling()  # which guards what it reads, by its value
        # A tensor made under `torch.inference_mode` cannot be saved for a backward pass, as our functions do.
        is_unsaved = not is_traced and x.is_inference() and torch.is_grad_enabled()
        if is_unsaved or type(module).forward is not self.plain or (not is_traced and torch._C._is_tracing()):
            return self.original(x)
        lying = norm.lying
        if lying is not None and not lying.takes(x):
            return self.original(x)
        rows = x if lying is None else lying.rows(x)
        given = [rows]
        for name in norm.parameters:
            parameter = known.get(name)  # not so of one that is parametrized, or a part of a flat one
            if parameter is None and (parameter := getattr(module, name)) is None:
                return self.original(x)
            given.append(parameter)
        dtype = norm.dtypes.get((x.dtype, given[-1].dtype))
        scalars = self.scalars
        if is_traced:
            scalars = self.scalars_now()
        elif len(own := module.__dict__) != self.size or self.of_class or self.held:
            scalars = self.scalars_again()
        else:
            for name, value in self.seen:
                if own.get(name, NONE) is not value:
                    scalars = self.scalars_again()
                    break
        if dtype is None or scalars is None:
            return self.original(x)
        if (reader := self.opened) is not None and self.may_be_pending(given, dtype, weight := reader.weight):
            return Normed(norm.function, given, scalars[self.eps_at], self.original, weight)
        if norm.in_float32 and torch._C._is_any_autocast_enabled() and x.is_cuda and torch.is_autocast_enabled("cuda"):
            dtype = None
        places = self.places
        tensors = (
            tuple(given) if places is None else tuple([None if place is None else given[place] for place in places])
        )
        if is_traced:
            for parameter in given[1:]:
                if parameter.shape != rows.shape[-1:]:
                    return self.original(x)
            found = self.operator.traced(*tensors, *scalars, dtype, self.opaque, self.name)
        else:
            try:
                found = self.operator.eager(tensors, scalars, dtype)
                if found is NotImplemented:
                    found = self.operator.run(tensors, scalars, dtype, self.opaque)
            except UsageError:  # a parameter of another shape, say, that the module spreads
                return self.original(x)
        return found if lying is None else lying.back(found, x)

    def may_be_pending(self, given: Sequence[Tensor], dtype: Any, of_reader: Tensor) -> bool:
        """Whether products behind it, with a reader's weight, make it.

        float16 does not hold the products of large rows and weights.
        """
        x, weight = given[0], given[-1]
        is_alike = dtype == x.dtype == weight.dtype != torch.float16
        return is_alike and weight.shape[-1:] == x.shape[-1:] and may_pend(x, of_reader)

    def scalars_again(self) -> tuple[float, ...] | None:
        """As `scalars_now`, remembered for calls behind which no attribute is set."""
        own = vars(self.module)
        if not self.is_held_as_it_was():
            return None
        added = own.keys() - self.examined.keys() - _LEFT_OPEN
        # What wraps a module, a compiler say, sets names with _, which no forward reads that did not ask for them.
        if any(not name.startswith("_") or name in self.norm.asks for name in added):
            return None
        scalars = self.scalars_now()
        if scalars is not None:
            seen = tuple((name, own[name]) for name in self.examined if name in own)
            self.size, self.seen, self.scalars = len(own), seen, scalars
        return scalars

    def is_held_as_it_was(self) -> bool:
        """Whether no object that the module holds was changed in place, or is another one that says something else."""
        own = vars(self.module)
        return all(name in own and _print(own[name]) == was for name, was in zip(self.held, self.prints, strict=True))

    def scalars_now(self) -> tuple[float, ...] | None:
        """As the module's attributes say now; None where another than eps changed, or eps is no number any more."""
        module, norm, eps = self.module, self.norm, self.norm.eps
        if torch.compiler.is_dynamo_compiling():
            if self.held:
                return None
            for name in norm.asks:
                if hasattr(module, name):
                    return None
            for name in norm.methods:
                if type(getattr(module, name)) is not types.MethodType:
                    return None
        for name, examined in self.examined.items():
            if name == norm.eps_of:
                said = getattr(module, name)
                if type(said) in (float, int):
                    eps = said if type(said) is float else float(said)
                elif said is not None or examined is not None:  # None: as torch does without one
                    return None
            elif name not in self.held and not is_same(getattr(module, name, NONE), examined):
                return None
        if not abs(eps) <= _LARGEST_EPS:
            return None
        return (*self.scalars[: self.eps_at], eps, *self.scalars[self.eps_at + 1 :])


def _may_change(value: Any) -> bool:
    """Whether what it says may be changed in place."""
    if isinstance(value, tuple):
        return any(map(_may_change, value))
    if type(value) in PLAIN or isinstance(value, _FIXED):
        return False
    return isinstance(value, list | dict | set | torch.Tensor) or hasattr(value, "__dict__")


@dataclass(frozen=True, eq=False)
class _One:
    """An object that is compared as such: it is itself, and nothing else is."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _One) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


def _print(value: Any, depth: int = 5) -> Any:
    """What an object says, through what it holds."""
    if type(value) in PLAIN and not isinstance(value, tuple):
        return value
    if isinstance(value, torch.Tensor):
        return _One(value), 0 if value.is_inference() else value._version
    if not depth or isinstance(value, _FIXED):
        return _One(value)
    if isinstance(value, list | tuple):
        return type(value), [_print(one, depth - 1) for one in value]
    if isinstance(value, dict):
        return type(value), [(key, _print(one, depth - 1)) for key, one in value.items()]
    if isinstance(value, set):
        return type(value), set(value)
    if hasattr(value, "__dict__"):
        return type(value), [(key, _print(one, depth - 1)) for key, one in vars(value).items()]
    return _One(value)


What = Norm | GatedMlp | HeadLoss | Layer


@dataclass(frozen=True, kw_only=True)
class Report:
    """replaced: module name -> what it computes; left: module name -> why it was left as it is."""

    replaced: Mapping[str, What]
    left: Mapping[str, str]

    def __str__(self) -> str:
        counts = Counter(f"replaced: {what}" for what in self.replaced.values())
        lines = [f"{count} x {what}" for what, count in counts.items()] or ["nothing is replaced"]
        return "\n".join((*lines, *(f"left: {name}: {why}" for name, why in self.left.items())))


def replace(
    model: Module,
    *,
    opaque: bool | None = None,
    products: bool = False,
    stored_logits: bool = True,
) -> Report:
    """Let the norms of a model, and its products with `products`, compute by our kernels, and say which.

    A module is one of our norms if its forward, run in float64 on rows that tell formulas apart, gives what one of our
    formulas gives with its parameters and one of its numbers as eps, and the same gradients, and if it rounds in bf16
    where that one does. Its class, parameters, state and hooks stay as they are: its `forward` alone is another one,
    until `restore`. Pairs of dtypes in which a module rounds differently are left to it, call by call; so is a module
    whose attributes changed since. An eps that is set later is that of the next call. `opaque` is that of `operator`:
    what a compiler sees in their place, which `sites` says per module once it has compiled them.

    Looked at are modules without children and buffers whose parameters are [cols], and those called norms that have
    other ones, which are left. Rows lie along the last axis; or along the channels of [batch, channels, ..], as those
    of ConvNext's norms, and are read there; or, without parameters, they are all that stands behind each channel, as in
    InstanceNorm. Of the latter two, those that round in bf16 where ours do not are ours in float32 alone.

    With `products`, these too, in 16 bits on sm_90, where a call has up to 16 rows or 1024 and more; others are left to
    the modules, call by call:

    * gated MLPs, down(act(gate(x)) * up(x)) of three torch.nn.Linear without bias: gate and up are one kernel, which
      rounds once, where the module rounds four times.
    * the loss of a model that takes labels and has one torch.nn.Linear without bias as its head, of 1024 rows and more,
      if its logits go to torch's cross_entropy by casts, views and slices of rows: by `cross_entropy` of the logits
      before any cast. With `stored_logits=False`, in training, by `linear_cross_entropy`, which takes more time and a
      fraction of the memory: what the model returns as logits is then no tensor, but becomes one for any function or
      method of torch's, until the head's weight changes. Without labels the model does what it did.

    * layers of up to 16 rows where no gradient is recorded: a root-mean-square norm whose result nothing but linear
      layers reads, such as those of queries, keys and values or a gate, is a part of their kernels, one for layers of
      one width; a residual that a product is added to is a part of the product's. A layer is a module with such a norm
      and modules that multiply, run on stand-ins: what it does between them decides, at each call again. float16,
      in which a large row times a weight is infinite, keeps its norms.

    Of more rows and in training, products between a norm and a residual are left to torch, whose own are as fast.
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError("a model is a torch.nn.Module", received=type(model).__name__)
    known: dict[Any, Any] = {}
    replaced: dict[str, What] = {}
    left: dict[str, str] = {}

    def note(name: str, module: Module, found: What | str) -> bool:
        if isinstance(found, str):
            left[name] = f"{type(module).__name__}: {found}"
        else:
            replaced[name] = found
        return not isinstance(found, str)

    for name, module in model.named_modules():
        if is_patched(module):
            continue
        if _is_lazy(module):
            if "norm" in type(module).__name__.lower():
                note(name, module, "its first call makes its parameters")
        elif _may_be_one(module):
            found = _examined(module, known)
            if note(name, module, found):
                module.forward = Forward(module, found, name=name, opaque=opaque)
        elif products and may_be_gated(module):
            found = _examined(module, known, told_gated)
            if note(name, module, found):
                module.forward = GatedForward(module, found, name=name)
        elif products and labels_of(module):
            found = _examine(module, functools.partial(told_loss, stores=stored_logits))
            head = found.head if isinstance(found, HeadLoss) else "its loss"
            if note(f"{name}.{head}" if name else head, module, found):
                own = getattr(module, head)
                own.forward = HeadForward(own, name=f"{name}.{head}" if name else head, stores=stored_logits)
                module.forward = LossForward(module, found, name=name)
    for name, module in model.named_modules() if products else ():
        if is_patched(module) or _is_lazy(module):
            continue
        why: dict[str, str] = {}
        told = functools.partial(told_layer, left=why)
        if (found := _examine(module, told)) and note(name, module, found):
            for linear, own, beside in found.linears(module):
                own.forward = LinearForward(own, beside, name=f"{name}.{linear}" if name else linear)
            module.forward = LayerForward(module, found, name=name)
        for child, reason in why.items():
            left.setdefault(f"{name}.{child}" if name else child, f"{type(getattr(module, child)).__name__}: {reason}")
    return Report(replaced=replaced, left=left)


def restore(model: Module) -> int:
    """Give the modules that `replace` changed their own forward back; how many there were."""
    changed = [m for m in model.modules() if is_patched(m)]
    for module in changed:
        del module.forward
    return len(changed)


def _is_lazy(module: Module) -> bool:
    return any(torch.nn.parameter.is_lazy(p) for p in module.parameters())


def _may_be_one(module: Module) -> bool:
    if next(module.children(), None) is not None:
        return False
    shapes = {tuple(p.shape) for p in module.parameters(recurse=False)}
    return "norm" in type(module).__name__.lower() or (len(shapes) == 1 and len(next(iter(shapes))) == 1)


def _examined(module: Module, known: dict[Any, Any], told: Callable[[Module], Any] = told) -> Any:
    """What a module computes, or why it is none of ours; modules alike in all they say are examined once."""
    shapes = tuple((name, tuple(p.shape)) for name, p in module.named_parameters())
    key = (type(module), shapes, _said(module), tuple((name, _said(child)) for name, child in module.named_children()))
    if key not in known:
        known[key] = _examine(module, told)
    return known[key]


def _said(module: Module) -> Any:
    said = {
        name: repr(value) if type(value) in PLAIN else id(value)
        for name, value in vars(module).items()
        if name not in INTERNAL
    }
    return type(module), tuple(sorted(said.items()))


def _examine(module: Module, told: Callable[[Module], Any] = told) -> Any:
    with alone():
        return told(module)
