"""Any spec as an operator of torch, in one call."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from normgen.errors import UsageError
from normgen.operators.forms import returned, spec_of_operator
from normgen.operators.signature import functions_of
from normgen.spec.spec import Spec
from normgen.torch.calls import Ready, Value, Values
from normgen.torch.library import no_second, operators_of

_MOST_SHAPES = 1024  # that an operator remembers: shapes that never repeat must not fill the memory
_PLAIN = (torch.Tensor, torch.nn.Parameter)  # exactly these: a subclass may be a view of something else


class Operator:
    """A row-wise operation on torch tensors, with its gradient; call it as `function`, whose arguments it documents.

    Tensors of rows are [.., cols]: any leading sizes, 0 too, rows at any one distance; others are copied first. On a
    CUDA device a kernel runs; on the CPU, and for float64, the formulas as torch operations (`decomposition`).
    An output that follows an input has the dtype that torch promotes the inputs [.., cols] to, or `dtype`. `opaque`
    matters under torch.compile alone: True, the compiler calls our kernel; False, it fuses the formulas itself.

    Raises UsageError for tensors that do not fit, for a gradient that the spec has not, and for a second derivative.
    """

    def __init__(
        self,
        spec: Spec,
        *,
        returns: Sequence[str] | None = None,
        opaque: bool = True,
        deterministic: bool | None = None,
        stable_parameters: bool = False,
        in_float32: bool = False,
        takes: Mapping[str, str] | None = None,
        defaults: Mapping[str, float] | None = None,
        name: str = "",
    ) -> None:
        """As `operator`, and how its function looks: `takes` names the first parameters and what they are called."""
        self.spec = spec
        self.returns = returned(spec, returns)
        self._in_float32 = in_float32
        self.operators = operators_of(spec, self.returns, deterministic, stable_parameters)
        calls = self._calls = self.operators.calls
        self._elems = tuple(i for i, t in enumerate(calls.reads) if t.kind.is_elem)
        self._of_plain = tuple(self.operators.plainly.index(output) for output in self.returns)
        self._of_saving = tuple(self.operators.written.index(output) for output in self.returns)
        self._ready: dict[Any, tuple[Ready, Any]] = {}
        self.function, self._bound = functions_of(
            spec,
            calls.reads,
            self._run,
            name=name or spec.name,
            takes=takes or {},
            defaults=defaults or {},
            options={"dtype": None, "opaque": opaque},
            module="normgen.torch",
            says=self._says(),
        )
        self.function.operator = self  # type: ignore[attr-defined]

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.function(*args, **named)

    def __repr__(self) -> str:
        return f"<normgen operator {self.function.__name__}: {self.spec.summary}>"

    def decomposition(self, *args: Any, **named: Any) -> Any:
        """The same as torch's own operations, in float32 inside (float64 for float64), with all derivatives."""
        tensors, scalars, dtype, _ = self._bound(*args, **named)
        found = self.operators.decomposed(*tensors, *scalars, self._dtype(tensors) if dtype is None else dtype)
        return _picked(found, self._of_plain)

    def _says(self) -> str:
        policy = (
            "Under autocast on CUDA the result is float32, as that of torch's own operation; nothing is copied for it."
            if self._in_float32
            else "Under autocast as outside it: dtypes follow from the arguments."
        )
        return f"Returns {', '.join(self.returns)}. {policy}"

    def _run(self, tensors: Values, scalars: tuple[float, ...], dtype: Any, opaque: bool) -> Any:
        """By the dispatcher where somebody may be looking on; else straight to the kernel.

        What follows from shapes and dtypes is remembered by them: an eager call only looks it up.
        """
        if torch.compiler.is_compiling():
            return self._dispatched(tensors, scalars, dtype, opaque)
        facts: list[Any] = [dtype, self._in_float32 and torch.is_autocast_enabled("cuda")]
        needs_gradient = False
        for tensor in tensors:
            if type(tensor) in _PLAIN:
                facts += (tensor.shape, tensor.dtype)
                needs_gradient = needs_gradient or tensor.requires_grad
            elif tensor is None:
                facts.append(None)
            else:
                return self._dispatched(tensors, scalars, dtype, opaque)
        if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
            return self._dispatched(tensors, scalars, dtype, opaque)
        is_saving = needs_gradient and torch.is_grad_enabled()
        key = (is_saving, tensors[self._elems[0]].get_device(), *facts)
        found = self._ready.get(key)
        if found is None:
            dtype = self._dtype(tensors) if dtype is None else dtype
            written = self.operators.written if is_saving else self.operators.plainly
            found = self._calls.prepared(written, tensors, dtype), dtype
            if len(self._ready) >= _MOST_SHAPES:
                self._ready.clear()
            self._ready[key] = found
        ready, dtype = found
        if is_saving:
            return _apply(self, ready, scalars, dtype, *tensors)
        return _picked(ready(tensors, scalars), self._of_plain)

    def _dispatched(self, tensors: Values, scalars: tuple[float, ...], dtype: Any, opaque: bool) -> Any:
        for tensor, read in zip(tensors, self._calls.reads, strict=True):
            if tensor is not None and not isinstance(tensor, torch.Tensor):
                rule = f"'{read.name}' of '{self.spec.name}' is a torch tensor"
                raise UsageError(rule, received=type(tensor).__name__)
        if dtype is None:
            dtype = self._dtype(tensors)
        operators, places = self.operators, self._of_plain
        if torch.compiler.is_compiling() and not opaque:
            return _picked(operators.decomposed(*tensors, *scalars, dtype), places)
        needs = [t.requires_grad for t in tensors if t is not None]
        if torch.is_grad_enabled() and any(needs):
            return _picked(operators.saving(*tensors, *scalars, dtype), self._of_saving)
        return _picked(operators.plain(*tensors, *scalars, dtype), places)

    def _dtype(self, tensors: Values) -> Any:
        first = tensors[self._elems[0]]
        dtype = first.dtype
        if self._in_float32 and first.is_cuda and torch.is_autocast_enabled("cuda"):
            return dtype if dtype == torch.float64 else torch.float32
        for i in self._elems[1:]:
            other = tensors[i]
            if other is not None and other.dtype != dtype:
                dtype = torch.promote_types(dtype, other.dtype)
        return dtype


class _Applied(torch.autograd.Function):
    """An eager call whose backward pass will be a kernel too; as the operator `saving`, but for the dispatcher."""

    @staticmethod
    def forward(
        ctx: Any, operator: Operator, ready: Ready, scalars: tuple[float, ...], dtype: Any, *tensors: Value
    ) -> Any:
        results = ready(tensors, scalars)
        operator.operators.keep(ctx, ctx.needs_input_grad[4:], tensors, results, scalars, dtype)
        ctx.operator = operator
        return _picked(results, operator._of_saving)

    @staticmethod
    def backward(ctx: Any, *cotangents: Value) -> Any:
        operators = ctx.operator.operators
        given: list[Any] = [None] * len(operators.outputs)
        for place, cotangent in zip(ctx.operator._of_saving, cotangents, strict=True):
            if place < len(given):
                given[place] = cotangent
        found = operators.gradients(ctx, given, ctx.operator._calls.backward)
        if torch.is_grad_enabled():  # create_graph=True
            known = [t for t in (*given, *ctx.saved_tensors) if t is not None]
            found = list(_Last.apply(ctx.operator.spec.name, len(found), *found, *known))
        return None, None, None, None, *found


# What `Function.apply` calls once it has looked for transforms of torch.func, as `_run` has before.
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


def _picked(results: Any, places: tuple[int, ...]) -> Any:
    """Of what was written, what is returned."""
    if not isinstance(results, tuple):
        return results
    return results[places[0]] if len(places) == 1 else tuple([results[i] for i in places])


def operator(
    op: str | Path | Spec,
    *,
    returns: Sequence[str] | None = None,
    opaque: bool = True,
    deterministic: bool | None = None,
    stable_parameters: bool = False,
) -> Operator:
    """An operator of torch for a spec: a name of one that ships, a file, the text of one, or a `Spec`.

    returns  names of what a call returns, in this order; None: the outputs that are not optional, and the statistics
             that are not
    opaque   under torch.compile: True, our kernel, which the compiler does not look into; False, torch's operations,
             which it fuses with what stands around them. Eager calls run our kernel in both cases
    deterministic  the same bits in every run; None: as `torch.use_deterministic_algorithms` says
    stable_parameters  as in `normgen.kernel`

    Registers `torch.ops.normgen.<name>` and, beside it, <name>_saving, <name>_backward and <name>_decomposed, once
    for the same arguments. Raises SpecError, or UsageError for a name that is not known.
    """
    spec = spec_of_operator(op)
    return _made(spec, None if returns is None else tuple(returns), opaque, deterministic, stable_parameters)


@functools.cache
def _made(
    spec: Spec, returns: tuple[str, ...] | None, opaque: bool, deterministic: bool | None, stable_parameters: bool
) -> Operator:
    return Operator(
        spec,
        returns=returns,
        opaque=opaque,
        deterministic=deterministic,
        stable_parameters=stable_parameters,
    )
