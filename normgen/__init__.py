"""normgen writes, proves and tunes CUDA kernels for row-wise operations from a formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normgen.files.shipped import VERSION

if TYPE_CHECKING:
    from normgen.errors import (
        CompileError,
        DriverError,
        FaultError,
        FileError,
        LostCompilerError,
        NoCompilerError,
        NoDeviceError,
        NormgenError,
        NothingValidError,
        NotOfferedError,
        OutsideError,
        SpecError,
        UsageError,
        VerificationError,
    )
    from normgen.python.handle import AnyRows, Kernel, kernel
    from normgen.spec.spec import Spec
    from normgen.suites.rows import tune_rows
    from normgen.tuning import Result, tune
    from normgen.tuning.search.sampler import SurrogateSampler

__all__ = [
    "AnyRows",
    "CompileError",
    "DriverError",
    "FaultError",
    "FileError",
    "Kernel",
    "LostCompilerError",
    "NoCompilerError",
    "NoDeviceError",
    "NormgenError",
    "NotOfferedError",
    "NothingValidError",
    "OutsideError",
    "Result",
    "Spec",
    "SpecError",
    "SurrogateSampler",
    "UsageError",
    "VerificationError",
    "kernel",
    "tune",
    "tune_rows",
]
__version__ = VERSION

_LAZY = {
    "AnyRows": "normgen.python.handle",
    "Kernel": "normgen.python.handle",
    "Result": "normgen.tuning",
    "Spec": "normgen.spec.spec",
    "SurrogateSampler": "normgen.tuning.search.sampler",
    "kernel": "normgen.python.handle",
    "tune": "normgen.tuning",
    "tune_rows": "normgen.suites.rows",
    **{name: "normgen.errors" for name in __all__ if name.endswith("Error")},
}


def __getattr__(name: str) -> Any:
    """Import the heavy parts on first use: `import normgen` alone loads nothing.

    No submodule may have the name of a function here: importing it would put the module in the function's place.
    """
    import importlib

    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name == "errors":
        return importlib.import_module("normgen.errors")
    raise AttributeError(f"module 'normgen' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, "errors"})
