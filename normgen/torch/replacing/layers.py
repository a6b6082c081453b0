"""Layers of few rows in inference: norms that the products behind them make, and residuals that the products add.

While such a layer runs, its norms give a `Normed`, and the last linear layers of what it adds a `Product`: neither is a
tensor yet. Linear layers that read a `Normed`, as those of queries, keys and values, multiply the norm's own rows; a
residual takes a `Product` into one kernel. Whatever else is asked of either forms it: a layer's own lines decide.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import warnings
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from normgen.torch.choosing import why_no_products
from normgen.torch.replacing.gating import GatedForward
from normgen.torch.replacing.normed import NORMS, products_behind
from normgen.torch.replacing.patched import (
    Patched,
    child_of,
    has_hooks,
    is_bare,
    is_looked_on,
    is_patched,
    is_plain_linear,
)
from normgen.torch.replacing.pending import DEEP, Normed, Pending, Product, is_record, may_pend, with_tensors
from normgen.torch.replacing.probing import FailedError, copied, is_close

Tensor = Any
Module = Any

_SIZES, _WIDTH = (5, 3), 8  # of the rows that a layer is probed with; no size is a number of results
_RESULTS = (0, 2, 3)  # of a module: a tensor, or the first of so many
_PLACE: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}  # of what a reader is probed with
_MOST = 4  # modules of a layer beside norms: all forms of all results are tried
_SAME = 1e-9  # of float64
_Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A module that multiplies what it is given.

    groups  its linear layers that read what it is given first, those of one width together
    last    the one that gives its result, as far as shapes tell; "" of none
    """

    groups: tuple[tuple[str, ...], ...]
    last: str


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What a module computes of few rows in inference.

    readers  its modules that multiply, by name
    norms    (a norm, the reader of what it gives); added: readers whose results are added to residuals
    """

    readers: Mapping[str, Reader]
    norms: _Pairs
    added: tuple[str, ...]

    def __str__(self) -> str:
        groups = ((norm, by, ", ".join(group)) for norm, by in self.norms for group in self.readers[by].groups)
        behind = [f"{by}.({group}) of {norm}(x)" for norm, by, group in groups]
        added = [f"x + {by}.{self.readers[by].last}" for by in self.added]
        return f"of few rows in inference: {', '.join((*behind, *added))}"

    def linears(self, module: Module) -> Iterator[tuple[str, Module, list[Module]]]:
        """The linear layers that are replaced with a module that is such a layer: name, and those beside it."""
        for by in dict.fromkeys((*(by for _, by in self.norms), *self.added)):
            reader, own = self.readers[by], getattr(module, by)
            for group in (*reader.groups, *([(reader.last,)] if reader.last else [])):
                for name in group:
                    yield f"{by}.{name}", getattr(own, name), [getattr(own, one) for one in group if one != name]


class LayerForward(Patched):
    """A layer's own forward, in which norms and products are pending where rows are few and nothing has a gradient."""

    def __init__(self, module: Module, layer: Layer, *, name: str) -> None:
        super().__init__(module, name=name)
        self.layer = layer
        self.kinds = {by: type(getattr(module, by)) for by in layer.readers}
        self.behind: list[tuple[Any, ...]] = []
        for norm, by in layer.norms:
            function, reader = getattr(module, norm).forward.norm.function, getattr(module, by).forward
            self.behind += [(function, n + 1) for group in layer.readers[by].groups for n in range(len(group))]
            if isinstance(reader, GatedForward):
                self.behind.append((function, 2, reader.mlp.function))
        self.make_operators()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.make_operators()

    def make_operators(self) -> None:
        """A compiler that traces a call makes none: they are there before."""
        for behind in self.behind:
            products_behind(*behind)

    def __call__(self, *args: Any, **named: Any) -> Any:
        if torch.is_grad_enabled() or is_looked_on():
            return self.original(*args, **named)
        opened = [*self.openings()]
        for forward, linear in opened:
            forward.open(linear)
        try:
            return with_tensors(self.original(*args, **named))
        finally:
            for forward, _ in opened:
                forward.close()

    def openings(self) -> Iterator[tuple[Patched, Module]]:
        """What may be pending, and a linear layer that reads it or gives it: nobody else sees what is called."""
        seen = {norm for norm, by in self.layer.norms if self.is_hooked(by)}
        for giver, by in (*self.layer.norms, *(("", by) for by in self.layer.added)):
            module, reader = child_of(self.module, by, self.kind), self.layer.readers[by]
            if giver in seen or module is None:
                continue
            linear: Module = child_of(module, reader.groups[0][0] if giver else reader.last, self.kinds[by])
            gives: Module = child_of(self.module, giver, self.kind) if giver else linear
            if not (is_plain_linear(linear, biased=bool(giver)) and is_bare(module)):
                continue
            if gives is not None and is_patched(gives) and is_bare(gives):
                yield gives.forward, linear

    def is_hooked(self, by: str) -> bool:
        """Whether a hook, or what is no child any more, sees what a reader or one of its linear layers is given."""
        module = child_of(self.module, by, self.kind)
        if module is None or has_hooks(module):
            return True
        for group in self.layer.readers[by].groups:
            for name in group:
                one = child_of(module, name, self.kinds[by])
                if one is None or has_hooks(one):
                    return True
        return False


class LinearForward(Patched):
    """A linear layer: of a `Normed` it makes its product, and those of layers of its width that read it too."""

    def __init__(self, module: Module, beside: Sequence[Module], *, name: str) -> None:
        super().__init__(module, name=name)
        self.beside = tuple(beside)

    def __call__(self, *args: Any, **named: Any) -> Any:
        (x,) = (*args, *named.values()) if named else args
        module = self.module
        if type(x) is not Normed:
            if self.opened is module and may_pend(x, module.weight):
                return Product(x, module.weight, self.name)
            return self.original(x)
        if module in x.found:
            return x.found.pop(module)
        own = module.weight
        if not (is_plain_linear(module, biased=True) and x.is_read_by(own)):
            return self.original(x.formed())
        layers = [module]
        for one in self.beside:
            if not isinstance(one.__dict__.get("forward"), LinearForward) or not is_plain_linear(one, biased=True):
                continue
            weight = one.weight
            if weight.shape == own.shape and weight.dtype == own.dtype and weight.device == own.device:
                layers.append(one)
        products = x.products(layers, self.name)
        if len(layers) == 1:
            return products
        x.found.update(zip(layers, products, strict=True))
        return x.found.pop(module)


def told_layer(module: Module, left: dict[str, str]) -> Layer | str:
    """What a module with norms computes of few rows; why it is left; "" of one that has no products of ours behind.

    left  what has linear layers of its own that are left -> why
    """
    forwards = {name: child.__dict__.get("forward") for name, child in module.named_children()}
    norms = {name: f.norm for name, f in forwards.items() if isinstance(f, Patched) and hasattr(f, "norm")}
    norms = {name: norm for name, norm in norms.items() if norm.function in NORMS and norm.lying is None}
    width = next((p.numel() for name in norms for p in getattr(module, name).parameters()), 0)
    told = {name: _reader(child, width) for name, child in module.named_children() if width and name not in norms}
    readers = {name: found for name, found in told.items() if isinstance(found, Reader)}
    left |= {name: found for name, found in told.items() if isinstance(found, str) and found}
    if not readers or type(module).forward is torch.nn.Module.forward:  # a list of modules
        return ""
    if "forward" in vars(module):
        return "its forward is already another one than that of its class"
    try:
        pairs, added = _Probe(module, norms, readers).found()
    except FailedError as failure:
        return str(failure)
    if not pairs and not added:
        return "no product reads a norm or is added to a residual with nothing between them"
    return Layer(readers=readers, norms=pairs, added=added)


def _reader(module: Module, width: int) -> Reader | str:
    """Which linear layers of a module read what it is given: its forward runs on a stand-in until that fails."""
    linear = {name: child for name, child in module.named_children() if isinstance(child, torch.nn.Linear)}
    if linear and "forward" in vars(module) and not is_patched(module):
        return "its forward is already another one than that of its class"
    why = {name: why_no_products(child.weight) for name, child in linear.items()}
    plain = {n: c for n, c in linear.items() if is_plain_linear(c, biased=True) and not (why[n] or is_patched(c))}
    known: dict[int, Any] = {id(p): torch.nn.Parameter(p.new_empty(0)) for p in module.parameters()}
    known |= {id(p): torch.nn.Parameter(torch.ones(p.shape, **_PLACE)) for p in module.parameters() if p.ndim < 2}
    known |= {id(b): b.new_empty(0) for b in module.buffers() if b.ndim > 1}  # a cache may be large
    as_tensor, as_pending = (_read_by(module, linear, known, width, is_pending=one) for one in (False, True))
    seen = as_tensor[0]
    # A norm that one of them would form after all is no part of the others' kernels.
    widths = {name: plain[name].weight.shape[0] for name in seen} if plain.keys() >= {*seen} else {}
    widths = widths if as_tensor == as_pending else {}
    groups = tuple(tuple(n for n, w in widths.items() if w == one) for one in dict.fromkeys(widths.values()))
    last = [name for name, c in plain.items() if name not in seen and c.bias is None and c.weight.shape[0] == width]
    if not groups and len(last) != 1:
        return (
            next(filter(None, why.values()), "its linear layers are others, or read something else") if linear else ""
        )
    return Reader(groups=groups, last=last[0] if len(last) == 1 else "")


def _read_by(
    module: Module, linear: Mapping[str, Module], known: dict[int, Any], width: int, *, is_pending: bool
) -> tuple[list[str], Any]:
    """The linear layers that read what a copy of the module is given, and the type of the error that ends it.

    is_pending  what it is given is a `Normed`, which it may not do with as with a tensor, or keep
    """
    rows, seen, end = torch.zeros(*_SIZES, width, **_PLACE), [], None  # type: Tensor, list[str], Any
    given = [Normed("rms_norm", (rows,), 0.0, _normed) if is_pending else rows]

    def recorded(name: str) -> Any:
        def run(x: Any) -> Tensor:
            if x is given[0]:
                seen.append(name)
            return rows.new_zeros(*x.shape[:-1], linear[name].weight.shape[0])

        return run

    try:
        copy = copied(module, {**known})
        for name in linear:
            getattr(copy, name).forward = recorded(name)
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            type(copy).forward(copy, given[0], *[None] * (_required(module) - 1))
    except Exception as error:  # what it computes behind its first products is its own
        end = type(error)
    kept = weakref.ref(given.pop())
    return seen, "kept" if is_pending and kept() is not None else end


def _required(module: Module) -> int:
    takes = inspect.signature(module.forward).parameters.values()
    return sum(one.default is one.empty and one.kind <= one.POSITIONAL_OR_KEYWORD for one in takes)


class _Part(torch.nn.Module):
    """What stands for a norm, or for what multiplies rows by a weight, in a layer that is probed.

    takes    the name of what it is given first; reads: whether it takes what is pending
    results  as in `_RESULTS`; pends: whether its result is pending
    gives    the last of its results; read: those of norms that it took
    """

    def __init__(self, module: Module, weight: Tensor | None, *, reads: bool = False) -> None:
        super().__init__()
        self.takes = next(iter(inspect.signature(module.forward).parameters), "")
        self.times, self.reads, self.results, self.pends = weight, reads, 0, False
        self.gives: Any = None
        self.is_kept = False
        self.read: list[Any] = []

    def forward(self, *args: Any, **named: Any) -> Any:
        x = args[0] if args else named[self.takes]
        if type(x) is Normed and self.reads:
            self.read.append(x)
            x = _normed(x.rows)
        x = x.formed() if isinstance(x, Pending) else x
        if self.times is None:
            self.gives = Normed("rms_norm", (x,), 0.0, _normed) if self.pends else _normed(x)
        else:
            self.gives = Product(x, self.times, "") if self.pends else torch.nn.functional.linear(x, self.times)
        return (self.gives, *[None] * (self.results - 1)) if self.results else self.gives

    def is_formed(self) -> bool:
        """Whether somebody asked for what was pending, or holds on to it, or nobody called it."""
        return self.gives is None or self.gives.made is not None or self.is_kept


def _leaves(found: Any, deep: int = DEEP) -> Iterator[Any]:
    for leaf in tree_leaves(found):
        yield from _leaves({**vars(leaf)}, deep - 1) if deep and is_record(leaf) else (leaf,)


def _normed(x: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:])


class _DiffersError(FailedError):
    """In one form of its parts' results a layer asks what they are."""


class _Probe:
    """A copy of a layer, in which parts stand for its norms and for all else that has parameters."""

    def __init__(self, module: Module, norms: Collection[str], readers: Mapping[str, Reader]) -> None:
        place: dict[str, Any] = {"device": "cpu", "generator": torch.Generator(device="cpu").manual_seed(0)}
        self.rows = torch.randn(*_SIZES, _WIDTH, dtype=torch.float64, **place)
        self.parts = {name: _Part(getattr(module, name), None) for name in norms}
        self.norms, self.lasts = [*norms], [name for name, reader in readers.items() if reader.last]
        for name, child in module.named_children():
            if name not in norms and next(child.parameters(), None) is not None:
                weight = torch.randn(_WIDTH, _WIDTH, dtype=torch.float64, **place)
                self.parts[name] = _Part(child, weight, reads=name in readers and bool(readers[name].groups))
        known: dict[int, Any] = {id(p): torch.nn.Parameter(p.new_empty(0)) for p in module.parameters(recurse=False)}
        self.copy = copied(module, known | {id(getattr(module, name)): part for name, part in self.parts.items()})
        self.copy.train(False)
        self.others = _required(module) - 1

    def found(self) -> tuple[_Pairs, tuple[str, ...]]:
        """Norms with the modules that read them, and modules that are added: the most, of all forms of results."""
        others = [part for part in self.parts.values() if part.times is not None]
        if len(others) > _MOST:
            raise FailedError(f"{len(others)} of its modules have parameters, a layer has up to {_MOST} beside norms")
        found: list[tuple[_Pairs, tuple[str, ...]]] = []
        for results in itertools.product(_RESULTS, repeat=len(others)):
            for part, count in zip(others, results, strict=True):
                part.results = count
            try:
                found.append(self.one())
            except _DiffersError:
                raise  # the form may be the one that they have
            except FailedError as error:
                failure = error
        if not found:
            raise failure
        return max(found, key=lambda one: len(one[0]) + len(one[1]))

    def one(self) -> tuple[_Pairs, tuple[str, ...]]:
        want, pending = self.run(), [*self.norms, *self.lasts]
        while True:
            got = self.run(pending)
            if len(want) != len(got) or not all(is_close(*both, _SAME) for both in zip(want, got, strict=True)):
                raise _DiffersError("it computes something else where a part gives what is no tensor yet")
            formed = [name for name in pending if self.parts[name].is_formed()]
            if not formed:
                break
            pending.remove(formed[0])  # what reads it may be added then
        pairs = itertools.product(self.norms, self.parts)
        read = [(norm, by) for norm, by in pairs if any(self.parts[norm].gives is x for x in self.parts[by].read)]
        return tuple(read), tuple(name for name in self.lasts if name in pending)

    def run(self, pending: Collection[str] = ()) -> list[Tensor]:
        """What the layer returns; `pending`: the parts whose results are no tensors."""
        for name, part in self.parts.items():
            part.gives, part.read, part.pends = None, [], name in pending
        try:
            with torch.no_grad(), warnings.catch_warnings(action="ignore"):
                found = self.copy.forward(self.rows.clone(), *[None] * self.others)
        except Exception as error:
            raise FailedError(f"its forward does not run on stand-ins: {type(error).__name__}: {error}") from error
        leaves = [t.formed() if isinstance(t, Pending) else t for t in _leaves(found)]
        found = with_tensors(found)
        for part in self.parts.values():  # of what is no tensor, nobody else may hold on to it
            read = sum(x is part.gives for other in self.parts.values() for x in other.read)
            part.is_kept = sys.getrefcount(part.gives) > 2 + read
        tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
        if not tensors:
            raise FailedError(f"its forward returns a {type(found).__name__} without tensors")
        return tensors
