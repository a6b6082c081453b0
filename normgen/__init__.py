"""normgen writes, proves and tunes CUDA kernels for row-wise operations from a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from normgen.kernel import Kernel, kernel
    from normgen.tuning import tune

__all__ = ["Kernel", "kernel", "tune"]

_LAZY = {"Kernel": "normgen.kernel", "kernel": "normgen.kernel", "tune": "normgen.tuning"}


def __getattr__(name: str) -> Any:
    """Import the heavy parts on first use: `import normgen` alone loads nothing."""
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'normgen' has no attribute {name!r}")
