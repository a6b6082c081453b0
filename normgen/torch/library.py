"""torch.library operators of a spec: what compilers, exporters and dispatch modes see of it.

Defined with `torch.library.Library`, whose operators cost a call half of what those of `custom_op` do.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._decomp import register_decomposition

from normgen.errors import UsageError
from normgen.operators.forms import Form, Kept, Uses, is_of_rows, writes_of
from normgen.operators.schema import forward_schema, operator_name
from normgen.problem.question import Direction
from normgen.spec.spec import Spec
from normgen.torch import sharding
from normgen.torch.calls import Calls, Ready, Values, dtypes_of, name_of
from normgen.torch.choosing import least_elements
from normgen.torch.inductor import lower

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_LIBRARY = torch.library.Library("normgen", "FRAGMENT")


@dataclass(kw_only=True)
class Body:
    """One of torch's operators, on tensors of rows [.., cols].

    names   of its tensors; `elem`: which of them are of rows and columns
    split   (arguments) -> what the call reads and writes, its tensors by name, and its scalars
    run     (arguments, axis=None) -> the results; with an axis, rows lie along it and so do those of the results
    gives   (arguments) -> which of its results are of rows and columns
    packed  what it returns, of results
    op      it, once it is defined
    """

    calls: Calls
    schema: str
    names: Sequence[str]
    elem: Sequence[bool]
    split: Callable[[Sequence[Any]], tuple[Uses, Mapping[str, Any], tuple[float, ...]]]
    run: Callable[..., Any]
    gives: Callable[[Sequence[Any]], Sequence[bool]]
    packed: Callable[[Sequence[Any]], Any]
    op: Any = field(default=None, init=False)

    def like(self, *args: Any) -> Any:
        """New tensors of the shapes and dtypes of the results."""
        return self.packed(self.calls.like(*self.split(args)[:2]))

    def of_all(self, info: Any, in_dims: Sequence[Any], *args: Any) -> Any:
        """The rule of torch's vmap."""
        uses, given, _ = self.split(args)
        dims = dict(zip(self.names, in_dims, strict=False))

        def kernel(whole: Mapping[str, Any]) -> Values:
            found = self.op(*(whole.get(name, given[name]) for name in self.names), *args[len(self.names) :])
            return tuple(found) if isinstance(found, tuple | list) else (found,)

        reads = {use.name: (given[use.name], dims[use.name]) for use in uses.reads}
        found = self.calls.of_all(uses, reads, info.batch_size, kernel)
        return self.packed(found), self.packed((0,) * len(found))

    def defined(self, name: str) -> Any:
        """The operator, registered by this name. Raises UsageError where another library has that name."""
        if hasattr(torch.ops.normgen, name):
            rule = f"the operator normgen::{name} is registered once a process"
            hint = "import normgen.torch before such a library, or build it with -DNORMGEN_TORCH_NAMESPACE=name"
            raise UsageError(rule, received="a library of `normgen export --torch-stable` that has it too", hint=hint)
        _LIBRARY.define(name + self.schema, tags=(torch.Tag.pt2_compliant_tag,))
        for backend in ("CPU", "CUDA"):
            _LIBRARY.impl(name, self.run, backend)
        torch.library.register_fake(f"normgen::{name}", self.like, lib=_LIBRARY)
        torch.library.register_vmap(f"normgen::{name}", self.of_all, lib=_LIBRARY)
        self.op = getattr(torch.ops.normgen, name).default
        self.op.direct = self.run  # what a compiled program calls
        return self.op


class Operators:
    """The operators of one spec. They take its read tensors, its scalars and the dtype of its outputs, or None, in this
    order.

    plain       writes `outputs` and the statistics that are not optional or are returned
    saving      writes `written`: besides, the statistics that the backward pass reads. It has a gradient
    decomposed  `plain` as torch's own operations, for a compiler to fuse
    backward    the gradients that are stored, of those asked for
    """

    def __init__(self, calls: Calls, returns: Collection[str], base: str) -> None:
        spec = calls.spec
        self.calls, self.base = calls, base
        self._elems = tuple(i for i, t in enumerate(calls.reads) if is_of_rows(t.kind))
        self._writes = writes_of(spec, returns)
        self.outputs, self.plainly, self.written, self.saved = self._writes
        self._takes = tuple(t.name for t in calls.reads)
        self._kinds = {t.name: t.kind.is_elem for t in spec.tensors}
        self.backward_takes = (*(f"d{output}" for output in self.outputs), *self._takes, *self.saved)
        self.bodies = (
            self._backward(),
            self._forward(self.written),
            None if self.plainly == self.written else self._forward(self.plainly),
        )
        self.backward, self.saving, self.plain = self.registered(*self.bodies)
        # For exporters that must not leave an operator of ours in a program, as that to ONNX.
        for op, written in {self.saving: self.written, self.plain: self.plainly}.items():
            register_decomposition(op)(self._formulas(written))
        self.decomposed = _composite(f"{base}_decomposed", self.schema(self.plainly), self._formulas(self.plainly))
        self.along: Any = None  # the same of rows along any axis: `normgen.torch.along`
        self._is_shared_out = False
        if sharding.is_loaded():
            self.share_out()

    def registered(self, backward: Body, saving: Body, plain: Body | None, suffix: str = "") -> tuple[Any, Any, Any]:
        """These operators, by names that end in `suffix`; `saving` has the gradient that `backward` finds."""
        name = f"{self.base}_saving{suffix}"
        behind, made = backward.defined(f"{self.base}_backward{suffix}"), saving.defined(name)
        with_gradient(f"{self.base}_backward{suffix}", raising(no_second(self.calls.spec.name)))

        def gradients(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
            def run(uses: Uses, reads: Sequence[Any], scalars: tuple[float, ...]) -> Values:
                return tuple(behind(*self.backward_args(uses, reads, scalars), *ctx.behind))

            found = self.gradients(ctx, cotangents, run)
            return (*found, *[None] * (len(ctx.scalars) + 1 + len(ctx.behind)))

        with_gradient(name, gradients, self._set_up)
        if plain is None:
            return behind, made, made
        op = plain.defined(f"{self.base}{suffix}")
        rule = "this operator keeps nothing for a backward pass"
        without_gradient(op, len(self._takes), refusal(rule, f"normgen::{self.base}{suffix} for {name}"))
        return behind, made, op

    def share_out(self) -> None:
        """Let DTensor call these operators, by `sharding`; once."""
        if self._is_shared_out:
            return
        self._is_shared_out = True
        for op, written in {self.saving: self.written, self.plain: self.plainly}.items():
            sharding.register(op, functools.partial(self._asked_forward, written))
        sharding.register(self.backward, self._asked_backward, is_list=True)

    def _asked_forward(self, written: tuple[str, ...], args: Sequence[Any]) -> sharding.Asked:
        uses, given, _ = self._split(written, args)
        there = {name: t for name, t in given.items() if t is not None}
        return uses.problem, uses.reads, uses.writes, there, tuple(there)

    def _asked_backward(self, args: Sequence[Any]) -> sharding.Asked:
        uses, given, _ = self._split_backward(args)
        there = {use.name: given[use.name] for use in uses.reads if given.get(use.name) is not None}
        order = tuple(name for name, tensor in given.items() if tensor is not None)
        return uses.problem, uses.reads, uses.writes, there, order

    # What a call's context keeps for its backward pass; the context is torch's, of an operator or of a Function.

    def keep(
        self, ctx: Any, needs: Sequence[bool], tensors: Values, results: Values, scalars: tuple[float, ...], dtype: Any
    ) -> None:
        """Note in `ctx` what the gradients need. Raises UsageError where there is no such gradient."""
        kept = self.kept(needs, tensors, dtype)
        known = (*tensors, *results)
        ctx.save_for_backward(*[known[place] for place in kept.places])
        ctx.kept, ctx.scalars = kept, scalars
        ctx.shapes = [(place, tensors[place].shape) for place in kept.shaped]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[known[place] for place in kept.statistics])

    def kept(self, needs: Sequence[bool], tensors: Values, dtype: Any) -> Kept:
        """What the gradients of such a call need. Raises UsageError where there is no such gradient."""
        return self.calls.known.once(self._kept, tuple(needs), dtypes_of(tensors), dtype)

    def _kept(self, needs: Sequence[bool], dtypes: tuple[Any, ...], dtype: Any) -> Kept:
        form = Form(
            direction=Direction.BACKWARD,
            written=self.saved,
            gradients=tuple(t.name for t, is_needed in zip(self.calls.reads, needs, strict=True) if is_needed),
            dtypes=self.calls.forward(self.plainly, dtypes, dtype).form.dtypes,
            out=name_of(dtype),
        )
        return self.calls.kept(self._writes, form)

    def transformed(self, tensors: Values, scalars: tuple[float, ...], dtype: Any) -> Any:
        """As `saving`, under transforms of torch.func."""
        return _Transformed.apply(self, scalars, dtype, *tensors)

    def gradients(self, ctx: Any, cotangents: Sequence[Any], run: Callable[..., Values]) -> list[Any]:
        """The gradient of every read tensor, None of one that is not asked for; `run` finds those that are stored."""
        kept = ctx.kept
        known = (*cotangents[: len(self.outputs)], *ctx.saved_tensors)
        stored = run(kept.uses, [known[i] for i in kept.reads], ctx.scalars)
        found = [None if i is None else stored[i] for i in kept.returned]
        for place, shape in ctx.shapes:
            found[place] = found[place].reshape(shape)
        return found

    def _set_up(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        count = len(self._takes)
        scalars = inputs[count : count + len(self.calls.spec.scalars)]
        dtype, *ctx.behind = inputs[count + len(scalars) :]
        tensors, results = inputs[:count], output if isinstance(output, tuple) else (output,)
        dtype = self.dtype(tensors, in_float32=False) if dtype is None else dtype
        self.keep(ctx, ctx.needs_input_grad[:count], tensors, results, scalars, dtype)

    # forward

    def first(self, tensors: Values) -> Any:
        """The first tensor of rows."""
        return tensors[self._elems[0]]

    def dtype(self, tensors: Values, *, in_float32: bool) -> Any:
        """That of the outputs, where the caller names none; `in_float32`: under autocast on CUDA."""
        first = self.first(tensors)
        dtype = first.dtype
        if in_float32 and first.is_cuda and torch.is_autocast_enabled("cuda"):
            return dtype if dtype == torch.float64 else torch.float32
        for i in self._elems[1:]:
            other = tensors[i]
            if other is not None and other.dtype != dtype:
                dtype = torch.promote_types(dtype, other.dtype)
        return dtype

    def said(self, tensors: Values, dtype: Any) -> Any:
        """The dtype as an operator is told: None where it follows from the tensors."""
        return None if dtype == self.dtype(tensors, in_float32=False) else dtype

    def least_elements(self, dtypes: tuple[Any, ...], dtype: Any) -> tuple[int, int]:
        """`choosing.least_elements` of a call with these dtypes."""
        return least_elements(self.calls.spec, self.calls.forward(self.plainly, dtypes, dtype))

    def split(self, args: Sequence[Any]) -> tuple[Values, tuple[float, ...], Any]:
        """The tensors of a forward call, its scalars, and the dtype of what follows them."""
        count = len(self._takes)
        tensors, dtype = tuple(args[:count]), args[-1]
        return tensors, tuple(args[count:-1]), self.dtype(tensors, in_float32=False) if dtype is None else dtype

    def _split(
        self, written: tuple[str, ...], args: Sequence[Any]
    ) -> tuple[Uses, Mapping[str, Any], tuple[float, ...]]:
        tensors, scalars, dtype = self.split(args)
        uses = self.calls.forward(written, dtypes_of(tensors), dtype)
        return uses, dict(zip(self._takes, tensors, strict=True)), scalars

    def schema(self, written: Sequence[str], *last: str) -> str:
        return forward_schema(self.calls.spec, self.calls.reads, len(written), *last)

    def _forward(self, written: tuple[str, ...]) -> Body:
        calls, first, count = self.calls, self._elems[0], len(self._takes)
        gives = [self._kinds[name] for name in written]

        def run(*args: Any, axis: int | None = None) -> Any:
            tensors, scalars, dtype = args[:count], args[count:-1], args[-1]
            likely = (written, axis, dtype, tensors[first].shape, tuple(map(type, tensors)), calls.in_order())
            ready: Ready | None = calls.known.get(likely)
            results = NotImplemented if ready is None else ready.repeated(tensors, scalars)
            if results is NotImplemented:
                ready = calls.prepared(written, *self.split(args)[::2], by_layout=axis is not None)
                results = alone(ready(tensors, scalars))
                if ready.is_kernel:
                    calls.known[likely] = ready
            return results

        return Body(
            calls=calls,
            schema=self.schema(written),
            names=self._takes,
            elem=[self._kinds[name] for name in self._takes],
            split=functools.partial(self._split, written),
            run=run,
            gives=lambda _: gives,
            packed=alone,
        )

    def _formulas(self, written: tuple[str, ...]) -> Callable[..., Any]:
        """What is written, as torch's own operations."""

        def run(*args: Any) -> Any:
            uses, given, scalars = self._split(written, args)
            return alone(self.calls.formulas(uses, tuple(given.values()), scalars))

        return run

    def traced(self, name: str, returns: Sequence[str], chosen: Callable[..., Any], *, in_float32: bool) -> Any:
        """The operator of a function of this name with these results: what `chosen` makes of its arguments.

        After tensors and scalars it takes dtype and opaque, which may be None, and where the call stands.
        """
        of = hashlib.sha256(" ".join((name, *returns, f"{in_float32}")).encode()).hexdigest()[:12]
        schema = self.schema(returns, "ScalarType? out_dtype_, bool? opaque_, str where_")
        count = len(self._takes)

        def run(*args: Any) -> Any:
            for op in {self.plain, self.saving, self.backward}:
                lower(op)
            return chosen(tuple(args[:count]), tuple(args[count:-3]), *args[-3:])

        return _composite(f"{self.base}_call_{of}", schema, run)

    # backward

    def _backward(self) -> Body:
        """It takes the gradients of the outputs, the read tensors, those saved, the scalars and a form's texts."""
        calls, names = self.calls, self.backward_takes

        def run(*args: Any, axis: int | None = None) -> list[Any]:
            uses, given, scalars = self._split_backward(args)
            reads = [given.get(use.name) for use in uses.reads]
            return list(calls.backward(uses, reads, scalars, by_layout=axis is not None))

        tensors = [f"Tensor? {name}" for name in names]
        scalars = [f"float {scalar}" for scalar, _ in calls.spec.scalars]
        texts = ("str gradients_", "str dtypes_", "str out_dtype_")
        return Body(
            calls=calls,
            schema=f"({', '.join((*tensors, *scalars, *texts))}) -> Tensor[]",
            names=names,
            elem=[self._kinds[name] for name in (*self.outputs, *self._takes, *self.saved)],
            split=self._split_backward,
            run=run,
            gives=lambda args: [use.kind.is_elem for use in self._split_backward(args)[0].writes],
            packed=list,
        )

    def _split_backward(self, args: Sequence[Any]) -> tuple[Uses, dict[str, Any], tuple[float, ...]]:
        """What a backward call reads and stores, its tensors by name, and its scalars."""
        *values, gradients, dtypes, out = args
        uses = self.calls.known.once(self._uses_behind, gradients, dtypes, out)
        given = dict(zip(self.backward_takes, values, strict=False))
        return uses, given, tuple(values[len(given) :])

    def _uses_behind(self, gradients: str, dtypes: str, out: str) -> Uses:
        form = Form(
            direction=Direction.BACKWARD,
            written=self.saved,
            gradients=tuple(gradients.split(",")),
            dtypes=tuple(dtypes.split(",")),
            out=out,
        )
        return self.calls.problem(form)

    def backward_args(self, uses: Uses, reads: Sequence[Any], scalars: tuple[float, ...]) -> tuple[Any, ...]:
        given = dict(zip((use.name for use in uses.reads), reads, strict=True))
        values, form = [given.get(name) for name in self.backward_takes], uses.form
        return *values, *scalars, ",".join(form.gradients), ",".join(form.dtypes), form.out

    def run_backward(self, uses: Uses, reads: Sequence[Any], scalars: tuple[float, ...]) -> Values:
        return tuple(self.backward(*self.backward_args(uses, reads, scalars)))


class _Transformed(torch.autograd.Function):
    """The operator `saving` for torch.func, whose transforms take no gradient that an operator was registered with."""

    generate_vmap_rule = True  # that of the operators, which it calls

    @staticmethod
    def forward(operators: Operators, scalars: tuple[float, ...], dtype: Any, *tensors: Any) -> Any:
        return operators.saving(*tensors, *scalars, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        operators, scalars, dtype, *tensors = inputs
        ctx.operators = operators
        results = output if isinstance(output, tuple) else (output,)
        operators.keep(ctx, ctx.needs_input_grad[3:], tuple(tensors), results, scalars, dtype)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        def run(uses: Uses, reads: Sequence[Any], scalars: tuple[float, ...]) -> Values:
            found = _TransformedBackward.apply(ctx.operators, uses, scalars, *reads)
            return found if isinstance(found, tuple) else (found,)

        return None, None, None, *ctx.operators.gradients(ctx, cotangents, run)


class _TransformedBackward(torch.autograd.Function):
    """The operator `backward` for torch.func."""

    generate_vmap_rule = True

    @staticmethod
    def forward(operators: Operators, uses: Uses, scalars: tuple[float, ...], *reads: Any) -> Any:
        return alone(operators.run_backward(uses, reads, scalars))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], _: Any) -> None:
        ctx.spec = inputs[0].calls.spec.name

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise no_second(ctx.spec)


def alone(results: Sequence[Any]) -> Any:
    """One result by itself, several as a tuple."""
    return results[0] if len(results) == 1 else results


def refusal(rule: str, received: str) -> UsageError:
    hint = "an operator's `decomposition` is made of torch's own operations, which have all derivatives"
    return UsageError(rule, received=received, hint=hint)


def no_second(spec: str) -> UsageError:
    return refusal("a kernel of normgen has a first derivative and no second one", f"a second derivative of '{spec}'")


def with_gradient(name: str, gradients: Callable[..., Any], set_up: Callable[..., Any] | None = None) -> None:
    torch.library.register_autograd(f"normgen::{name}", gradients, setup_context=set_up, lib=_LIBRARY)


def without_gradient(op: Any, count: int, error: UsageError) -> None:
    """What autograd does with an operator of `count` tensors: on plain ones what runs it, with no second dispatch."""

    def below(keyset: Any, *args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *args)

    class Refused(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, *args: Any) -> Any:
            return below(*args)

        @staticmethod
        def backward(_: Any, *_cotangents: Any) -> Any:
            raise error

    def run(keyset: Any, *args: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            return Refused.apply(keyset, *args)
        is_seen = torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None
        if is_seen or any(type(t) not in _PLAIN for t in args[:count] if t is not None):
            return below(keyset, *args)
        return op.direct(*args)

    _LIBRARY.impl(op.name().removeprefix("normgen::"), run, "Autograd", with_keyset=True)


def raising(error: UsageError) -> Callable[..., Any]:
    def backward(*_: Any) -> None:
        raise error

    return backward


def _composite(name: str, schema: str, run: Callable[..., Any]) -> Any:
    """An operator that is what `run` calls. A name is registered once: what comes under it again computes the same."""
    if not hasattr(torch.ops.normgen, name):
        _LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        _LIBRARY.impl(name, run, "CompositeImplicitAutograd")
    return getattr(torch.ops.normgen, name).default


_known: dict[str, Operators] = {}


def operators_of(
    spec: Spec,
    returns: Collection[str],
    deterministic: bool | None,
    stable_parameters: bool,
    any_rows: bool = False,
) -> Operators:
    """Those of these options, registered when they are first asked for: a name is registered once a process."""
    options = [*([] if deterministic is None else [f"{deterministic}"]), *(["stable"] * stable_parameters)]
    options += ["any rows"] * any_rows
    name = operator_name(spec, returns, options)
    if name not in _known:
        calls = Calls(spec, deterministic=deterministic, stable_parameters=stable_parameters, any_rows=any_rows)
        _known[name] = Operators(calls, returns, name)
    return _known[name]
