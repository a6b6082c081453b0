"""Eager calls of an operator: straight to the kernel, with what follows from sizes and dtypes remembered.

A call that is like one before costs a look-up by what decides its kernel, and the launcher's own comparison of layouts,
which says whether the look-up found the right one. Its gradient is an `autograd.Function` that only saves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch

from normgen.torch.calls import Ready, Value, Values
from normgen.torch.library import Kept, Operators, no_second

_MOST_SHAPES = 1024  # that an operator remembers: shapes that never repeat must not fill the memory
_PLAIN = (torch.Tensor, torch.nn.Parameter)  # exactly these: a subclass may be a view of something else
_TENSOR, _PARAMETER = _PLAIN


class Step:
    """One call, for tensors of some sizes and dtypes: what computes it, and what its gradients need.

    kept   None without gradients
    place  of the result that is returned, of all that are written; None: several, `places`
    """

    def __init__(self, operators: Operators, ready: Ready, kept: Kept | None, places: tuple[int, ...]) -> None:
        self.ready, self.kept, self.places = ready, kept, places
        self.place = places[0] if len(places) == 1 else None
        self.calls, self.spec = operators.calls, operators.calls.spec.name
        if kept is None:
            return
        outputs = len(operators.outputs)
        self.saves = _picking(kept.places)
        first = len(operators.calls.reads)
        statistics = {place - first for place in kept.statistics}
        self.plain_results = [i for i, place in enumerate(places) if place in statistics]
        # What the backward pass reads, in (None, gradients of what is returned, what is saved).
        asked = {place: 1 + i for i, place in enumerate(places)}
        behind = 1 + len(places) - outputs
        self.reads = _picking([asked.get(i, 0) if i < outputs else behind + i for i in kept.reads])
        self._behind: dict[bool, Ready] = {}

    def returned(self, results: Values) -> Any:
        return results[self.place] if self.place is not None else tuple([results[i] for i in self.places])

    def gradients(self, cotangents: Sequence[Value], saved: Values, scalars: tuple[float, ...]) -> Values:
        """Those that the backward pass stores."""
        kept = self.kept
        assert kept is not None
        given = self.reads((None, *cotangents, *saved))
        for tensor in given:
            if tensor is None:  # its output was not used
                return self.calls.backward(kept.form, given, scalars)
        is_deterministic = torch.are_deterministic_algorithms_enabled()
        ready = self._behind.get(is_deterministic)
        if ready is None:
            ready = self._behind[is_deterministic] = self.calls.behind(kept.form, given)
        return ready(given, scalars)


class Eager:
    """The eager calls of one operator.

    places  of what is returned, of what is written without a gradient to come, and with one
    """

    def __init__(
        self, operators: Operators, places: tuple[tuple[int, ...], tuple[int, ...]], *, in_float32: bool
    ) -> None:
        self.operators, self._places, self._in_float32 = operators, places, in_float32
        self._elems = tuple(i for i, t in enumerate(operators.calls.reads) if t.kind.is_elem)
        self._first = self._elems[0]
        self._likely: dict[Any, Step] = {}
        self._steps: dict[Any, Step] = {}

    def __call__(self, tensors: Values, scalars: tuple[float, ...], dtype: Any) -> Any:
        """What is returned; NotImplemented where somebody may be looking on: subclasses, modes, transforms."""
        autocast = self._in_float32 and torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled("cuda")
        key: list[Any] = [dtype, autocast, torch.is_grad_enabled()]
        for tensor in tensors:
            kind = type(tensor)
            if kind is _TENSOR or kind is _PARAMETER:
                key.append(tensor.requires_grad)
            elif tensor is None:
                key.append(None)
            else:
                return NotImplemented
        if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
            return NotImplemented
        key.append(tensors[self._first].shape)
        likely = tuple(key)
        step = self._likely.get(likely)
        results = NotImplemented if step is None else step.ready.repeated(tensors, scalars)
        if results is NotImplemented:
            step = self._step(likely, tensors, dtype)
            results = step.ready(tensors, scalars)
        assert step is not None
        if step.kept is None:
            return step.returned(results)
        return _apply(step, scalars, results, *tensors)

    def first(self, tensors: Values) -> Value:
        """The first tensor of rows."""
        return tensors[self._first]

    def dtype(self, tensors: Values) -> Any:
        """That of the outputs, where the caller names none."""
        first = tensors[self._first]
        dtype = first.dtype
        if self._in_float32 and first.is_cuda and torch.is_autocast_enabled("cuda"):
            return dtype if dtype == torch.float64 else torch.float32
        for i in self._elems[1:]:
            other = tensors[i]
            if other is not None and other.dtype != dtype:
                dtype = torch.promote_types(dtype, other.dtype)
        return dtype

    def _step(self, likely: tuple[Any, ...], tensors: Values, dtype: Any) -> Step:
        """By all that decides it. Raises UsageError where tensors do not fit, or have no such gradient."""
        facts = [None if t is None else (t.shape, t.dtype, t.get_device()) for t in tensors]
        key = (likely, *facts)
        found = self._steps.get(key)
        if found is None:
            found = self._made(tensors, self.dtype(tensors) if dtype is None else dtype)
            if len(self._steps) >= _MOST_SHAPES:
                self._steps.clear()
                self._likely.clear()
            self._steps[key] = found
        if found.ready.is_kernel:
            self._likely[likely] = found
        return found

    def _made(self, tensors: Values, dtype: Any) -> Step:
        operators = self.operators
        needs = [t is not None and t.requires_grad for t in tensors]
        is_saving = any(needs) and torch.is_grad_enabled()
        ready = operators.calls.prepared(operators.written if is_saving else operators.plainly, tensors, dtype)
        kept = operators.kept(needs, tensors, dtype) if is_saving else None
        return Step(operators, ready, kept, self._places[is_saving])


class _Applied(torch.autograd.Function):
    """A call whose backward pass will be a kernel too; as the operator `saving`, but for the dispatcher."""

    @staticmethod
    def forward(ctx: Any, step: Step, scalars: tuple[float, ...], results: Values, *tensors: Value) -> Any:
        kept = step.kept
        assert kept is not None
        ctx.save_for_backward(*step.saves((*tensors, *results)))
        ctx.step, ctx.kept, ctx.scalars = step, kept, scalars
        ctx.set_materialize_grads(False)
        if kept.shaped:
            ctx.shapes = [(place, tensors[place].shape) for place in kept.shaped]
        found = step.returned(results)
        if step.plain_results:
            ctx.mark_non_differentiable(*[found[i] for i in step.plain_results])
        return found

    @staticmethod
    def backward(ctx: Any, *cotangents: Value) -> Any:
        step, kept = ctx.step, ctx.kept
        saved = ctx.saved_tensors
        stored = step.gradients(cotangents, saved, ctx.scalars)
        found = [None if i is None else stored[i] for i in kept.returned]
        if kept.shaped:
            for place, shape in ctx.shapes:
                found[place] = found[place].reshape(shape)
        if torch.is_grad_enabled():  # create_graph=True
            known = [t for t in (*cotangents, *saved) if t is not None]
            found = list(_Last.apply(step.spec, len(found), *found, *known))
        return None, None, None, *found


# What `Function.apply` calls once it has looked for transforms of torch.func, as `Eager` has before.
_apply = super(torch.autograd.Function, _Applied).apply


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
    return lambda values: tuple([values[place] for place in places])
