"""Measuring, searching and remembering: `tune()`, the records it leaves, and the lookups others make in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normgen.tuning.result import Result
    from normgen.tuning.tuner import tune

__all__ = ["Result", "tune"]

_LAZY = {"Result": "normgen.tuning.result", "tune": "normgen.tuning.tuner"}


def __getattr__(name: str) -> Any:
    """Records are looked up on every handle's creation; the tuner itself loads on first use."""
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'normgen.tuning' has no attribute {name!r}")
