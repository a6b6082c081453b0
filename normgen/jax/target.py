"""The one target that all calls of XLA have: a call's question as text, and the kernels that answer it.

The question says all that a kernel follows from. So an executable needs nothing of the process that traced it: JAX may
keep it in its compilation cache, and XLA may run it on another GPU, whose kernels are then made at its first call.
"""

from __future__ import annotations

import functools
import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np

from normgen.cuda.driver import RelaxedCapture, context_of, device_of
from normgen.errors import UsageError
from normgen.operators.forms import spec_of_operator
from normgen.operators.launch import handle
from normgen.problem.question import Direction
from normgen.python.handle import Kernel
from normgen.python.xla import IS_BUILT, checked_version, handler, plan
from normgen.spec.reader import is_built_in
from normgen.spec.spec import Spec

NAME = "normgen_launch"
PLATFORM = "cuda"


@dataclass(frozen=True, kw_only=True)
class TargetCall:
    """One call: what is asked of a kernel, and its buffers.

    spec     the name of one that ships, else its text
    reads, writes  the tensors, in the order of the buffers
    batches  rows of the tensors [batches, cols]; 0: there are none
    beside   rows that lie side by side: so many elements are between neighbours of a row
    """

    spec: str
    direction: str
    rows: int
    cols: int
    batches: int
    dtypes: dict[str, str]
    present: tuple[str, ...]
    gradients: tuple[str, ...]
    deterministic: bool
    stable_parameters: bool
    scalars: dict[str, float]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    beside: int = 1

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def said(spec: Spec) -> str:
    """How a question names a spec. Raises UsageError for one that has no text."""
    if not is_built_in(spec) and "\n" not in spec.text:
        raise UsageError(
            "a spec that XLA calls has a text", received=f"the Spec '{spec.name}'", hint="parse it from one"
        )
    return spec.name if is_built_in(spec) else spec.text


def digest_of(question: str) -> int:
    """64 bits, signed, by which the handler knows a question."""
    return int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "little", signed=True)


@functools.cache
def kernel_of(question: str, device: int) -> tuple[Kernel, TargetCall]:
    """The kernel that answers a question on a GPU. Warns, and raises, as `normgen.kernel`."""
    call = TargetCall(**json.loads(question))
    made = handle(
        spec_of_operator(call.spec),
        Direction(call.direction),
        rows=call.rows,
        cols=call.cols,
        dtypes=call.dtypes,
        present=tuple(call.present),
        gradients=tuple(call.gradients),
        deterministic=call.deterministic,
        stable_parameters=call.stable_parameters,
        device=device,
        beside=call.beside,
    )
    return made, call


def planned(question: str, context: int, device: int) -> int:
    """Let the handler know a question on a context; the bytes of scratch memory that a call has."""
    made, call = kernel_of(question, device)
    return plan(
        made,
        digest=digest_of(question),
        context=context,
        reads=call.reads,
        writes=call.writes,
        rows=call.rows,
        rows_per_batch=call.rows // call.batches if call.batches else 0,
        scalars=call.scalars,
    )


def prepare(question: str, context: int) -> None:
    """What the handler asks for at the first call on a context, on any thread."""
    if not context:
        raise UsageError("a kernel runs on a CUDA stream", received="a call of XLA that has none")
    found = device_of(context)
    if context_of(found) != context:
        raise UsageError("a kernel runs in the primary context of a GPU", received=f"another context of GPU {found}")
    with RelaxedCapture():  # XLA may be capturing a command buffer
        planned(question, context, found)


@functools.cache
def registered() -> bool:
    """Whether XLA knows the handler now; not without a launcher or a CUDA driver."""
    if not IS_BUILT:
        return False
    try:
        made = handler(prepare)
    except OSError:
        return False
    for platform in ("cpu", "CUDA"):  # XLA for CUDA may be loaded later: that of the CPU tells its version at once
        jax.ffi.register_ffi_target(NAME, made, platform=platform)
    return True


@functools.cache
def device() -> int | None:
    """The first GPU that JAX runs on, by the driver's number; None where no kernel can run.

    Raises UsageError for a version of XLA that the handler does not know.
    """
    try:
        found = jax.local_devices(backend=PLATFORM)
    except RuntimeError:
        return None
    if not registered():
        warnings.warn(
            "normgen's launcher was not built: XLA compiles the formulas instead; `normgen doctor` tells more",
            stacklevel=2,
        )
        return None
    checked_version()
    return int(found[0].local_hardware_id)


def launch(call: TargetCall, results: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    """The call as an operation of XLA. The kernel is made now: what is wrong with it is said while JAX traces."""
    number = device()
    assert number is not None, "only where there is a device"
    question, axes = call.text, frozenset[str]().union(*map(axes_of, arrays))
    arrays = [_varying(array, axes - axes_of(array)) for array in arrays]
    scratch = planned(question, context_of(number), number)
    extra = [jax.ShapeDtypeStruct((scratch,), np.uint8)] if scratch else []
    run = jax.ffi.ffi_call(NAME, [*results, *extra])
    return list(run(*arrays, digest=np.int64(digest_of(question)), question=question)[: len(results)])


def axes_of(array: Any) -> frozenset[str]:
    """Under shard_map: the axes of the mesh along which an array varies."""
    kind = jax.typeof(array)
    return frozenset(getattr(kind.manual_axis_type if hasattr(kind, "manual_axis_type") else kind, _VARYING, ()))


def _varying(array: Any, axes: frozenset[str]) -> Any:
    """The same along these axes too, which a call of XLA must be told."""
    if not axes:
        return array
    names = tuple(sorted(axes))
    return jax.lax.pcast(array, names, to="varying") if hasattr(jax.lax, "pcast") else jax.lax.pvary(array, names)


_VARYING = "varying" if hasattr(jax.sharding, "ManualAxisType") else "vma"  # jax 0.10, and before
