"""What torch's compiler writes for our operators: a call of what runs them, with no way through the dispatcher.

A kernel that the compiler does not look into is called by name, `torch.ops.normgen.rmsnorm.default(..)`: the dispatcher
then asks who else takes part, boxes the arguments and comes back to Python. Nobody takes part in a compiled program any
more, so its line becomes `torch.ops.normgen.rmsnorm.default.direct(..)`. Shapes, strides and memory stay those of the
operator's fake. This changes one name in a node that is not public: where a torch has another one, the line stays.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any


def lower(op: Any) -> None:
    """Let the compiler call `op.direct` from its next program on; nothing where it is not there."""
    lowering = sys.modules.get("torch._inductor.lowering")
    known = getattr(lowering, "lowerings", None)
    fallback = getattr(lowering, "fallback_handler", None)
    if known is not None and fallback is not None and op not in known:
        known[op] = _direct(fallback(op))


def _direct(made: Callable[..., Any]) -> Callable[..., Any]:
    def handler(*args: Any, **named: Any) -> Any:
        found = made(*args, **named)
        # Another torch has other nodes: there the program calls the operator.
        with contextlib.suppress(AttributeError, ImportError, IndexError, TypeError):
            first = found[0] if isinstance(found, tuple | list) else found
            node = first.data.data.inputs[0]  # in a box of a storage of a result of a node
            if node.python_kernel_name.startswith("torch.ops.normgen.") and not _is_cpp():
                node.python_kernel_name += ".direct"
        return found

    return handler


def _is_cpp() -> bool:
    """Whether the compiler writes C++, which cannot call Python's functions."""
    from torch._inductor.virtualized import V

    return bool(V.graph.cpp_wrapper)
