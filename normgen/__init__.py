"""normgen writes, proves and tunes CUDA kernels for row-wise operations from a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normgen.files.shipped import VERSION

if TYPE_CHECKING:
    from normgen.python.handle import Kernel, kernel
    from normgen.tuning import tune

__all__ = ["Kernel", "kernel", "tune"]
__version__ = VERSION

_LAZY = {"Kernel": "normgen.python.handle", "kernel": "normgen.python.handle", "tune": "normgen.tuning"}


def __getattr__(name: str) -> Any:
    """Import the heavy parts on first use: `import normgen` alone loads nothing.

    No submodule may have the name of a function here: importing it would put the module in the function's place.
    """
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'normgen' has no attribute {name!r}")
