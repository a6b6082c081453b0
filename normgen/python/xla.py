"""Kernels as XLA calls them: the handler of its foreign function interface (`xla.c`), and plans of calls for it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normgen.codegen.module import Param, Source
from normgen.errors import UsageError
from normgen.python.arguments import expectations
from normgen.python.kernels import Kernel
from normgen.python.repeat import IS_BUILT, program_words
from normgen.python.repeat import _launcher as native

__all__ = ["IS_BUILT", "checked_version", "handler", "plan"]

DRIVER = "libcuda.so.1"


def handler(prepare: Callable[[str, int], object], library: str = DRIVER) -> Any:
    """The handler, as a capsule. Raises OSError without a CUDA driver.

    prepare  what to do for a call that no plan is known for: (its question, the CUDA context of its stream)
    """
    assert native is not None, "only where IS_BUILT"
    return native.xla_start(library, prepare)


def checked_version() -> None:
    """Raise UsageError if the XLA that the handler was registered with has structures that it does not know."""
    assert native is not None, "only where IS_BUILT"
    major, minor, is_known = native.xla_version()
    if not is_known:
        received = "none answered" if major < 0 else f"{major}.{minor}"
        hint = "take another version of jax, or a newer normgen"
        raise UsageError(
            "kernels are launched by version 0.1 and later of XLA's call interface", received=received, hint=hint
        )


def plan(
    kernel: Kernel,
    *,
    digest: int,
    context: int,
    reads: Sequence[str],
    writes: Sequence[str],
    rows: int,
    rows_per_batch: int = 0,
    scalars: Mapping[str, float],
) -> int:
    """Let the handler know the calls of a question on a context: buffers without gaps, in the order of these names.

    Returns the bytes of scratch memory that a call has behind `writes`; 0: there is no such buffer.
    """
    assert native is not None, "only where IS_BUILT"
    launched, scratch = kernel.without_addresses(rows, rows_per_batch, scalars)
    names = [*reads, *writes]

    def patch(param: Param) -> int:
        is_address = param.source in (Source.TENSOR, Source.TENSOR_MAP)
        if is_address and param.key in names:  # else a statistic that nobody asked for
            return names.index(param.key)
        return len(names) if param.source is Source.WORKSPACE else -1

    expected = expectations(kernel.problem, kernel.schedule, kernel.module)
    peeled = (
        kernel.schedule.vector if kernel.schedule.peels else 1
    )  # rows of all tensors start at one element of a vector
    sizes = array("q", [*(launched.extents[name] for name in names), *[scratch] * bool(scratch)])
    alignments = array("q", [max(expected[n].alignment, peeled * expected[n].tensor.dtype.bytes) for n in names])
    alignments.extend([16] * bool(scratch))
    native.xla_plan(
        digest,
        context,
        program_words(launched.bound, patch),
        launched.cells,
        launched.grids,
        sizes.tobytes(),
        alignments.tobytes(),
        len(reads),
        kernel.module.workspace.fixed if scratch else -1,
    )
    return scratch
