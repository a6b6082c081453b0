"""The operations of a class."""

from __future__ import annotations

from collections.abc import Iterable

from normgen.spec.reader import load


def of_rows(ops: Iterable[str]) -> set[str]:
    """Those of these operations that no product of matrices is in: a team of threads owns a row."""
    return {op for op in ops if not load(op).has_inner}
