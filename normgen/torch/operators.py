"""Any spec as an operator of torch, in one call."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.autograd import forward_ad

from normgen.errors import UsageError
from normgen.operators.forms import returned, spec_of_operator
from normgen.operators.operator import OperatorOf, picked
from normgen.operators.signature import Beside
from normgen.spec.spec import Spec
from normgen.torch import sharding
from normgen.torch.along import along_of
from normgen.torch.calls import Values, as_wide
from normgen.torch.choosing import is_worth_a_call, line_of_call, note
from normgen.torch.eager import Eager
from normgen.torch.library import operators_of

_IN_FLOAT32 = (
    "Under autocast on CUDA the result is float32, as that of torch's own operation; nothing is copied for it."
)
_BY_ARGUMENTS = "Under autocast as outside it: dtypes follow from the arguments."


class Operator(OperatorOf):
    """A row-wise operation on torch tensors, with its gradient; call it as `function`, whose arguments it documents.

    Tensors of rows are [.., cols]: any leading sizes, 0 too, rows at any one distance; others are copied first. On a
    CUDA device a kernel runs; on the CPU, and for float64, the formulas as torch operations (`decomposition`).
    An output that follows an input has the dtype that torch promotes the inputs [.., cols] to, or `dtype`. `opaque`
    matters under torch.compile alone: True, the compiler calls our kernel; False, it fuses the formulas itself; None,
    what is estimated to take less time. `normgen.torch.sites()` says which it was.

    Raises UsageError for tensors that do not fit, for a gradient that the spec has not, and for a second derivative.
    """

    def __init__(
        self,
        spec: Spec,
        *,
        returns: Sequence[str] | None = None,
        opaque: bool | None = None,
        deterministic: bool | None = None,
        stable_parameters: bool = False,
        any_rows: bool = False,
        in_float32: bool = False,
        takes: Mapping[str, str] | None = None,
        defaults: Mapping[str, float] | None = None,
        name: str = "",
        beside: Beside | None = None,
    ) -> None:
        """As `operator`, and how its function looks: `takes` names the first parameters and what they are called."""
        names = returned(spec, returns)
        self.operators = operators_of(spec, names, deterministic, stable_parameters, any_rows)
        self._along = along_of(self.operators)
        self._in_float32 = in_float32
        # What a compiler traces: one operator, which becomes the kernel's or the formulas below what it guards.
        self.traced = self.operators.traced(name or spec.name, names, self._chosen, in_float32=in_float32)
        super().__init__(
            self.operators.calls,
            names,
            name=name,
            takes=takes,
            beside=beside,
            defaults=defaults or {},
            options={"dtype": None, "opaque": opaque},
            module="normgen.torch",
            says=f"Returns {', '.join(names)}. {_IN_FLOAT32 if in_float32 else _BY_ARGUMENTS}",
            traced=(torch.compiler.is_dynamo_compiling, self.traced, line_of_call),
        )
        self.eager = Eager(self.operators, (self._of_plain, self._of_saving), in_float32=in_float32)

    def decomposition(self, *args: Any, **named: Any) -> Any:
        """The same as torch's own operations, in float32 inside (float64 for float64), with all derivatives."""
        tensors, scalars, dtype, _ = self.bound(*args, **named)
        self.operators.calls.by_name(scalars)
        tensors = as_wide(tensors, dtype)
        found = self.operators.decomposed(*tensors, *scalars, self._dtype(tensors) if dtype is None else dtype)
        return picked(found, self._of_plain)

    def _run(self, tensors: Values, scalars: tuple[float, ...], dtype: Any, opaque: bool | None) -> Any:
        if self._calls.labels:  # True is no label, though it is equal to one of an earlier call
            self.operators.calls.by_name(scalars)
        found = self.eager(tensors, scalars, dtype)
        if found is not NotImplemented:
            return found
        for tensor, read in zip(tensors, self._calls.reads, strict=True):
            if tensor is not None and not isinstance(tensor, torch.Tensor):
                rule = f"'{read.name}' of '{self.spec.name}' is a torch tensor"
                raise UsageError(rule, received=type(tensor).__name__)
        if torch.compiler.is_compiling():
            return self._chosen(tensors, scalars, dtype, opaque, "")
        tensors, dtype = as_wide(tensors, dtype), self._dtype(tensors) if dtype is None else dtype
        # Only torch's own operations carry tangents, `torch.func.jvp`'s too, and have one trace for all sizes.
        if forward_ad._current_level >= 0 or torch.jit.is_tracing():
            return picked(self.operators.decomposed(*tensors, *scalars, dtype), self._of_plain)
        return self._kernel(tensors, scalars, dtype)

    def _chosen(self, tensors: Values, scalars: tuple[float, ...], dtype: Any, opaque: bool | None, where: str) -> Any:
        """What a compiler, or an exporter, gets; eager, where its graph is run as it is. `where`: as in `Site`."""
        tensors = as_wide(tensors, dtype)
        if opaque is not False:
            found = self.eager(tensors, scalars, dtype)  # a tracer's tensors are no plain ones
            if found is not NotImplemented:
                return found
        dtype = self._dtype(tensors) if dtype is None else dtype
        # Where a compiler traces torch.func, a kernel has no gradient and carries no tangent: formulas have both.
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return picked(self.operators.decomposed(*tensors, *scalars, dtype), self._of_plain)
        if self._is_opaque(tensors, dtype, opaque, where):
            return self._kernel(tensors, scalars, dtype)
        return picked(self.operators.decomposed(*tensors, *scalars, dtype), self._of_plain)

    def _kernel(self, tensors: Values, scalars: tuple[float, ...], dtype: Any) -> Any:
        operators = self.operators
        if sharding.has_shared(tensors):
            operators.share_out()
        is_transformed = not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None
        is_saving = torch.is_grad_enabled() and any(t.requires_grad for t in tensors if t is not None)
        along = self._along if not (is_transformed or torch.compiler.is_exporting()) else None
        axis = along.axis(tensors, dtype) if along and not sharding.has_shared(tensors) else None
        if along and axis is not None:
            op, places = (along.saving, self._of_saving) if is_saving else (along.plain, self._of_plain)
            return picked(along(op, tensors, scalars, operators.said(tensors, dtype), axis), places)
        if is_saving:
            if is_transformed:
                return picked(operators.transformed(tensors, scalars, dtype), self._of_saving)
            return picked(operators.saving(*tensors, *scalars, operators.said(tensors, dtype)), self._of_saving)
        return picked(operators.plain(*tensors, *scalars, operators.said(tensors, dtype)), self._of_plain)

    def _dtype(self, tensors: Values) -> Any:
        return self.operators.dtype(tensors, in_float32=self._in_float32)

    def _is_opaque(self, tensors: Values, dtype: Any, opaque: bool | None, where: str) -> bool:
        if torch.compiler.is_exporting():
            return opaque is not False
        kernel = True if opaque is None and sharding.has_shared(tensors) else opaque
        if kernel is None:
            least = self.operators.least_elements(tuple([None if t is None else t.dtype for t in tensors]), dtype)
            kernel = is_worth_a_call(least, self.operators.first(tensors))
        note(where, self._name, kernel, opaque is not None)
        return kernel


def operator(
    op: str | Path | Spec,
    *,
    returns: Sequence[str] | None = None,
    opaque: bool | None = None,
    deterministic: bool | None = None,
    stable_parameters: bool = False,
    rows: str | None = None,
) -> Operator:
    """An operator of torch for a spec: a name of one that ships, a file, the text of one, or a `Spec`.

    returns  names of what a call returns, in this order; None: the outputs that are not optional, and the statistics
             that are not
    opaque   under torch.compile: True, our kernel, which the compiler does not look into; False, torch's operations,
             which it fuses with what stands around them; None, what is estimated to take less time: the kernel for
             large calls in groups of columns and in rows of more than 16384, else torch's operations. Eager calls run
             our kernel in all cases, and exported programs call it unless this is False
    deterministic  the same bits in every run; None: as `torch.use_deterministic_algorithms` says
    stable_parameters  as in `normgen.kernel`
    rows     "any": each call runs the schedule of its band of row counts, from the table of `normgen tune --rows`, as
             those of `normgen.kernel(rows="any")` do; None: that of the first call with up to twice as many rows

    Registers `torch.ops.normgen.<name>` and, beside it, <name>_saving, <name>_backward and <name>_decomposed, once
    for the same arguments. The name is the spec's, with _with_<names> of what is optional and returned; of a spec of
    your own, and with other options, it ends in a digest of them. Raises SpecError, or UsageError for an unknown name.
    """
    if rows not in (None, "any"):
        raise UsageError("rows are those of each call: 'any', or nothing", received=repr(rows))
    spec = spec_of_operator(op)
    names = None if returns is None else tuple(returns)
    return _made(
        spec,
        returns=names,
        opaque=opaque,
        deterministic=deterministic,
        stable_parameters=stable_parameters,
        any_rows=rows == "any",
    )


_made = functools.cache(Operator)
