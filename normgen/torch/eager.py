"""Eager calls of an operator: straight to the kernel, with what follows from sizes and dtypes remembered.

A call that is like one before costs a look-up by what decides its kernel, and the launcher's own comparison of layouts,
which says whether the look-up found the right one. Its gradient is an `autograd.Function` that only saves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Protocol

import torch
from torch.autograd import forward_ad

from normgen.operators.forms import Kept, is_of_rows
from normgen.torch.calls import Ready, Value, Values, apart_of, as_wide
from normgen.torch.library import Operators, no_second

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))  # exactly these: a subclass may view something else

# What each call asks of torch's state, without the attributes on the way there.
_modes, _transform = torch._C._len_torch_dispatch_stack, torch._C._functorch.peek_interpreter_stack
_is_autocast, _is_grad_enabled = torch._C._is_any_autocast_enabled, torch.is_grad_enabled
_is_inference = torch.is_inference_mode_enabled  # in which nothing is recorded, whatever the mode of gradients
_is_deterministic, _is_tracing = torch._C._get_deterministic_algorithms, torch._C._is_tracing


class Reduced(Protocol):
    """What a call makes of its results, one tensor, without a node of its own."""

    def of(self, results: Any) -> Value:
        """What is returned; `results`: one by itself, several as a tuple."""

    def gradient(self, cotangent: Value) -> Values:
        """Of the results, by that of what was returned."""


class EagerCall:
    """One call, for tensors of some sizes and dtypes: what computes it, and what its gradients need.

    kept   None without gradients
    place  of the result that is returned, of all that are written; None: several, `places`
    """

    def __init__(self, operators: Operators, ready: Ready, kept: Kept | None, places: tuple[int, ...]) -> None:
        self.ready, self.kept, self.places = ready, kept, places
        self.place = places[0] if len(places) == 1 else None
        self.written = len(ready.writes)
        self.is_as_written = places == tuple(range(self.written))
        self.calls, self.spec = operators.calls, operators.calls.spec.name
        if kept is None:
            return
        outputs, first = len(operators.outputs), len(operators.calls.reads)
        statistics = {place - first for place in kept.statistics}
        self.plain_results = [i for i, place in enumerate(places) if place in statistics]
        # Statistics that nobody else sees stay with the call: a node of torch's would check whether they were changed.
        inside = [p for p in kept.places if p - first in statistics and p - first not in places]
        seen = [p for p in kept.places if p not in inside]
        self.saves, self.holds = _picking(seen), _picking([p - first for p in inside])
        # What the backward pass reads, in (None, gradients of what is returned, what is saved, what the call holds).
        asked = {place: 1 + i for i, place in enumerate(places)}
        behind = {place: 1 + len(places) + i for i, place in enumerate((*seen, *inside))}
        self.reads = _picking(
            [asked.get(i, 0) if i < outputs else behind[kept.places[i - outputs]] for i in kept.reads]
        )
        self._behind: dict[bool, Ready] = {}
        # What a node returns: (nothing, stored gradients) by place, four arguments of the call first.
        self.returns = _picking([0, 0, 0, 0, *[0 if i is None else 1 + i for i in kept.returned]])

    def returned(self, results: Values) -> Any:
        return results[self.place] if self.place is not None else tuple([results[i] for i in self.places])

    def gradients(self, given: Values, scalars: tuple[float, ...]) -> Values:
        """Those that the backward pass stores; `given`: what it reads."""
        kept = self.kept
        assert kept is not None
        for tensor in given:
            if tensor is None:  # its output was not used
                return self.calls.backward(kept.uses, given, scalars)
        is_deterministic = _is_deterministic()
        ready = self._behind.get(is_deterministic)
        if ready is None:
            ready = self._behind[is_deterministic] = self.calls.behind(kept.uses, given, by_layout=True)
        found = ready.repeated(given, scalars)
        if found is NotImplemented:
            return ready(given, scalars)
        return found if type(found) is tuple else (found,)


class Eager:
    """The eager calls of one operator.

    places  of what is returned, of what is written without a gradient to come, and with one
    """

    def __init__(
        self, operators: Operators, places: tuple[tuple[int, ...], tuple[int, ...]], *, in_float32: bool
    ) -> None:
        self.operators, self._places, self._in_float32 = operators, places, in_float32
        self._first = next(i for i, t in enumerate(operators.calls.reads) if is_of_rows(t.kind))
        self._has_totals = operators.calls.has_totals
        self._known = operators.calls.known

    def __call__(self, tensors: Values, scalars: tuple[float, ...], dtype: Any, reduced: Reduced | None = None) -> Any:
        """What is returned; NotImplemented of subclasses, and under modes, transforms, tracers and tangents."""
        if _modes() or _transform() is not None or forward_ad._current_level >= 0 or _is_tracing():
            return NotImplemented
        first = tensors[self._first]
        kinds = tuple(map(type, tensors))
        if not _PLAIN.issuperset(kinds) or first is None:
            return NotImplemented
        autocast = self._in_float32 and _is_autocast() and torch.is_autocast_enabled("cuda")
        likely: tuple[Any, ...]
        if _is_grad_enabled() and not _is_inference():
            needs = [tensor is not None and tensor.requires_grad for tensor in tensors]
            likely = (self, first.shape, dtype, autocast, kinds, *needs)
        else:
            likely = (self, first.shape, dtype, autocast, kinds)
        if self._has_totals:
            likely = (*likely, self.operators.calls.in_order())
        step: EagerCall | None = self._known.get(likely)
        results = NotImplemented if step is None else step.ready.repeated(tensors, scalars)
        if results is NotImplemented:
            tensors = as_wide(tensors, dtype)  # of what is remembered nothing is float64
            step = self._step(likely, tensors, dtype)
            results = step.ready(tensors, scalars)
            if step.written == 1:
                (results,) = results
        assert step is not None
        if step.kept is not None:
            # In a tuple, a result is no input of the node: torch would return a view of one.
            return _apply(step, scalars, (results,) if step.written == 1 else results, reduced, *tensors)
        found = results if step.is_as_written else step.returned(results)
        return found if reduced is None else reduced.of(found)

    def _step(self, likely: tuple[Any, ...], tensors: Values, dtype: Any) -> EagerCall:
        """By all that decides it. Raises UsageError where tensors do not fit, or have no such gradient."""
        facts = [None if t is None else (t.shape, t.dtype, t.get_device()) for t in tensors]
        calls = self.operators.calls
        key = (likely, apart_of(tensors[self._first]), calls.turned(calls.reads, tensors), *facts)
        found: EagerCall | None = self._known.get(key)
        if found is None:
            found = self._made(
                tensors, self.operators.dtype(tensors, in_float32=self._in_float32) if dtype is None else dtype
            )
            self._known[key] = found
        if found.ready.is_kernel:
            self._known[likely] = found
        return found

    def _made(self, tensors: Values, dtype: Any) -> EagerCall:
        operators = self.operators
        needs = [t is not None and t.requires_grad for t in tensors]
        is_saving = any(needs) and _is_grad_enabled() and not _is_inference()
        ready = operators.calls.prepared(
            operators.written if is_saving else operators.plainly, tensors, dtype, by_layout=True
        )
        kept = operators.kept(needs, tensors, dtype) if is_saving else None
        return EagerCall(operators, ready, kept, self._places[is_saving])


class _Applied(torch.autograd.Function):
    """A call whose backward pass will be a kernel too; as the operator `saving`, but for the dispatcher."""

    @staticmethod
    def forward(
        ctx: Any, step: EagerCall, scalars: tuple[float, ...], results: Values, reduced: Reduced | None, *tensors: Value
    ) -> Any:
        kept = step.kept
        assert kept is not None
        ctx.save_for_backward(*step.saves(tensors + results))
        shapes = [(place, tensors[place].shape) for place in kept.shaped] if kept.shaped else ()
        ctx.call = step, scalars, step.holds(results), shapes, reduced
        found = step.returned(results)
        if reduced is not None:
            return reduced.of(found)
        if step.place is not None:  # the gradient of one result is there when its node runs
            return found
        ctx.set_materialize_grads(False)
        if step.plain_results:
            ctx.mark_non_differentiable(*[found[i] for i in step.plain_results])
        return found

    @staticmethod
    def backward(ctx: Any, *cotangents: Value) -> Any:
        step, scalars, held, shapes, reduced = ctx.call
        if reduced is not None:
            cotangents = reduced.gradient(cotangents[0])
        saved = ctx.saved_tensors
        stored = step.gradients(step.reads((None, *cotangents, *saved, *held)), scalars)
        found = step.returns((None, *stored))
        if shapes or _is_grad_enabled():
            return _finished(step, found, shapes, (*cotangents, *saved))
        return found


# A node's `apply` looks for what it runs, and then for the kind of its class: here it is `backward` itself.
if hasattr(_Applied, "_backward_cls"):
    _Applied._backward_cls.apply = _Applied.backward
# What `Function.apply` calls once it has looked for transforms of torch.func, as `Eager` has before.
_apply = super(torch.autograd.Function, _Applied).apply


def _finished(step: EagerCall, found: Values, shapes: Sequence[Any], known: Values) -> Values:
    """Gradients in the shapes of what they belong to; with create_graph=True such that say why they have none."""
    gradients = list(found[4:])
    for place, shape in shapes:
        gradients[place] = gradients[place].reshape(shape)
    if torch.is_grad_enabled():
        there = [t for t in known if t is not None]
        gradients = list(_Last.apply(step.spec, len(gradients), *gradients, *there))
    return None, None, None, None, *gradients


class _Last(torch.autograd.Function):
    """Gradients that say why they have none themselves, when one is asked for."""

    @staticmethod
    def forward(ctx: Any, spec: str, count: int, *tensors: Value) -> Any:
        ctx.spec = spec
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *_: Value) -> Any:
        raise no_second(ctx.spec)


def _picking(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """(values) -> those at these places."""
    if len(places) > 1:
        return itemgetter(*places)
    if not places:
        return lambda _: ()
    return lambda values: tuple([values[place] for place in places])
