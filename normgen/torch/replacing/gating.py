"""Gated MLPs: down(act(gate(x)) * up(x)) of three torch.nn.Linear, found by what they compute."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from normgen.torch.choosing import is_worth_products, why_no_products
from normgen.torch.gated import GATES, gated_products
from normgen.torch.replacing.patched import PLAIN, Patched, child_of, is_bare, is_looked_on, is_plain_linear, is_same
from normgen.torch.replacing.pending import Normed
from normgen.torch.replacing.probing import (
    CHANGES,
    INTERNAL,
    NONE,
    OTHER_GRADIENTS,
    FailedError,
    backward_of,
    copied,
    is_close,
    names_read,
    telling_rows,
)

Tensor = Any
Module = Any

_TELLING = [0, 1, 2, 3, 4, 7]  # of the rows that tell norms apart; the last one is large, which tells of limits
_INNER, _HIDDEN, _OUT = 24, 40, 16  # of the copy that is probed
_SAME = 1e-5  # of a row's largest value; the two forms of GELU are ten times as far from each other
_SAME_HALF = 0.05  # in bf16, which a module rounds to behind each operation
_LEFT_OPEN = INTERNAL | {"training", "forward"}  # that say nothing: it was probed in training and outside of it


@dataclass(frozen=True, kw_only=True)
class GatedMlp:
    """What a module computes: down(function(gate(x), up(x))), `function` one of GATES.

    gate, up, down  its linear layers, by name; others: its other children, without parameters
    reads           its attributes that its forward reads
    """

    function: str
    gate: str
    up: str
    down: str
    others: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.down}({self.function}({self.gate}(x), {self.up}(x)))"


class GatedForward(Patched):
    """The gate and both products in one kernel where that is worth it, and else what the module did."""

    def __init__(self, module: Module, mlp: GatedMlp, *, name: str) -> None:
        super().__init__(module, name=name)
        self.mlp, self.products = mlp, gated_products(mlp.function)
        # What it computes while all of these are as they were: its own attributes, and those of its other children.
        self.found = [(attribute, getattr(module, attribute)) for attribute in mlp.reads]
        self.children = [(child, getattr(module, child)) for child in mlp.others]
        self.inside = [
            (of, a, value) for _, of in self.children for a, value in vars(of).items() if a not in _LEFT_OPEN
        ]

    def __call__(self, *args: Any, **named: Any) -> Tensor:
        (x,) = (*args, *named.values()) if named else args
        module, mlp = self.module, self.mlp
        gate, up = child_of(module, mlp.gate, self.kind), child_of(module, mlp.up, self.kind)
        if not (is_plain_linear(gate) and is_plain_linear(up) and self.is_as_found()):
            return self.original(x)
        w_gate, w_up = gate.weight, up.weight
        normed = x if type(x) is Normed and x.is_read_by(w_gate) else None
        rows = x if normed is None else normed.rows
        if normed is None and (type(rows) is not torch.Tensor or is_looked_on() or not is_worth_products(rows, w_gate)):
            return self.original(x)
        if w_gate.shape != w_up.shape or w_gate.dtype != w_up.dtype or w_gate.device != w_up.device:
            return self.original(x)
        if normed is None:
            return getattr(module, mlp.down)(self.products(rows, w_gate, w_up, self.name))
        return getattr(module, mlp.down)(normed.products((gate, up), self.name, mlp.function))

    def __getstate__(self) -> dict[str, Any]:
        """As `Forward`: what remembers kernels belongs to nobody."""
        return {name: value for name, value in super().__getstate__().items() if name != "products"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.products = gated_products(self.mlp.function)

    def is_as_found(self) -> bool:
        module = self.module
        if not self.is_as_its_class():
            return False
        for name, value in self.found:
            if not is_same(getattr(module, name, NONE), value):
                return False
        for name, child in self.children:
            if child_of(module, name, self.kind) is not child or not is_bare(child):
                return False
        return all(is_same(getattr(child, name, NONE), value) for child, name, value in self.inside)


def may_be_gated(module: Module) -> bool:
    """Whether it is one, or is called one: then a report says why it was left."""
    linear = [child for child in module.children() if isinstance(child, torch.nn.Linear)]
    name = type(module).__name__.lower()
    return (len(linear) == 3 and any(_orders(module))) or (
        name.endswith(("mlp", "feedforward", "ffn")) and next(module.children(), None) is not None
    )


def told_gated(module: Module) -> GatedMlp | str:
    """What a module computes, or why it is no gated MLP of ours."""
    if "forward" in vars(module):
        return "its forward is already another one than that of its class"
    own = [*module.parameters(recurse=False), *module.buffers()]
    children = dict(module.named_children())
    linear = {name: child for name, child in children.items() if type(child) is torch.nn.Linear}
    others = {name: child for name, child in children.items() if name not in linear}
    if len(linear) != 3 or any(next(c.parameters(), None) is not None for c in others.values()):
        return "it is no gated MLP of three torch.nn.Linear"
    if own or any(child.bias is not None for child in linear.values()):
        return "its linear layers have biases, or it has parameters of its own"
    if any(next(child.children(), None) is not None for child in others.values()):
        return "its activation has modules within"
    for child in linear.values():
        if why := why_no_products(child.weight):
            return why
    takes = list(inspect.signature(module.forward).parameters.values())
    if len(takes) != 1 or takes[0].kind not in (takes[0].POSITIONAL_OR_KEYWORD, takes[0].POSITIONAL_ONLY):
        return "its forward takes more than one tensor"
    try:
        return _Probe(module, tuple(others)).found()
    except FailedError as failure:
        return str(failure)


def _orders(module: Module) -> Iterator[tuple[str, str, str]]:
    """The names of its linear layers as (gate, up, down), in all orders in which shapes fit."""
    linear = {name: c for name, c in module.named_children() if isinstance(c, torch.nn.Linear)}
    for order in itertools.permutations(linear, 3):
        gate, up, down = (tuple(linear[name].weight.shape) for name in order)
        if gate == up and down[1] == gate[0]:
            yield order


class _Probe:
    """A copy of a module on the CPU with small weights, and what it makes of rows."""

    def __init__(self, module: Module, others: tuple[str, ...]) -> None:
        self.orders, self.others = [*_orders(module)], others
        # The copy's parameters are other ones, and so the module's own are not copied.
        self.module = copied(module, {id(p): torch.nn.Parameter(p.new_empty(0)) for p in module.parameters()})
        for child in self.module.modules():  # whoever waits for gradients waits for the module's own
            child._backward_hooks.clear()
            child._backward_pre_hooks.clear()
        self.generator = torch.Generator(device="cpu").manual_seed(0)
        self.rows = telling_rows(_INNER, self.generator)[:, _TELLING]

    def found(self) -> GatedMlp | str:
        for order in self.orders:
            weights = self.weights(order)
            try:
                got = self.run(weights, torch.float64)
            except FailedError:
                if order == self.orders[-1]:
                    raise
                continue
            for function in GATES:
                if is_close(_formula(function, self.rows, *(weights[name] for name in order)), got, _SAME):
                    return self.told(GatedMlp(function=function, gate=order[0], up=order[1], down=order[2]), weights)
        return "its forward is none of " + ", ".join(f"down({gate}(gate(x), up(x)))" for gate in GATES)

    def told(self, mlp: GatedMlp, weights: dict[str, Tensor]) -> GatedMlp | str:
        if not self.is_same_backward(mlp, weights):
            return OTHER_GRADIENTS
        exact = self.run(weights, torch.float64)
        for dtype, share in ((torch.float32, _SAME), (torch.bfloat16, _SAME_HALF)):
            got = self.run(weights, dtype)
            if got.dtype != dtype or not is_close(exact, got.double(), share):
                return f"its forward in {dtype} is another one than in float64"
        reads = self.reads(weights)
        own = [name for name in reads if not _is_fixed(getattr(self.module, name, NONE))]
        if own:
            return f"its forward reads what may change: {', '.join(own)}"
        return GatedMlp(**{**vars(mlp), "others": self.others, "reads": reads})

    def weights(self, order: tuple[str, str, str]) -> dict[str, Tensor]:
        gate, up, down = order
        shapes = {gate: (_HIDDEN, _INNER), up: (_HIDDEN, _INNER), down: (_OUT, _HIDDEN)}
        place = {"dtype": torch.float64, "device": "cpu", "generator": self.generator}
        return {name: torch.randn(shape, **place) / shape[1] ** 0.5 for name, shape in shapes.items()}

    def is_same_backward(self, mlp: GatedMlp, weights: dict[str, Tensor]) -> bool:
        """Outside of training and in it; of a module that has no backward pass ours contradicts none."""
        order, rows = (mlp.gate, mlp.up, mlp.down), self.rows.clone().requires_grad_()
        try:
            found = self.runs(weights, torch.float64, rows)
            leaves = [rows, *(getattr(self.module, name).weight for name in order)]
            both = [backward_of(one, leaves) for one in found]
        except FailedError:
            return True
        ours = [leaf.detach().clone().requires_grad_() for leaf in leaves]
        with torch.enable_grad():
            want = backward_of(_formula(mlp.function, *ours), ours)
        return all(all(map(is_close, want, theirs)) for theirs in both)

    def run(self, weights: dict[str, Tensor], dtype: Any) -> Tensor:
        """Its result in training, which is that outside of it."""
        return self.runs(weights, dtype)[1]

    def runs(self, weights: dict[str, Tensor], dtype: Any, rows: Tensor | None = None) -> Sequence[Tensor]:
        """Its results outside of training and in it, which are the same; of `rows`, with what a backward pass needs."""
        for name, weight in weights.items():
            getattr(self.module, name).weight = torch.nn.Parameter(weight.to(dtype))
        x, found = self.rows.to(dtype) if rows is None else rows, []  # type: Tensor, list[Tensor]
        for is_training in (False, True):
            self.module.train(is_training)
            try:
                with torch.set_grad_enabled(rows is not None), warnings.catch_warnings(action="ignore"):
                    found.append(self.module.forward(given := x.clone()))
            except Exception as error:
                raise FailedError(f"its forward does not take rows: {type(error).__name__}: {error}") from error
            if not torch.equal(given, x):
                raise FailedError(CHANGES)
        if not all(isinstance(got, torch.Tensor) and got.shape == (*x.shape[:-1], _OUT) for got in found):
            raise FailedError("its forward does not give a row for each row")
        if not torch.equal(*found):
            raise FailedError("its forward does in training what it does not outside of it")
        return found

    def reads(self, weights: dict[str, Tensor]) -> tuple[str, ...]:
        def runs() -> None:
            self.run(weights, torch.float64)
            with contextlib.suppress(FailedError):
                self.runs(weights, torch.float64, self.rows.clone().requires_grad_())

        seen = names_read(self.module, runs)
        known = {*_LEFT_OPEN, *dir(torch.nn.Module), *self.module._modules}
        return tuple(name for name in seen if not name.startswith("__") and name not in known)


def _is_fixed(value: Any) -> bool:
    """Whether the same object is the same thing: a number, a function; not what the module does not have."""
    return value is not NONE and (type(value) in PLAIN or inspect.isfunction(value) or inspect.isbuiltin(value))


def _formula(function: str, rows: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return gated_products(function)(rows, gate, up) @ down.T
