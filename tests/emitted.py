"""The operations that kernels are emitted of."""

from __future__ import annotations

from collections.abc import Iterable

from normgen.program.classes import EMITTED, program_class
from normgen.program.lower import lower
from normgen.spec.reader import load


def emitted(ops: Iterable[str]) -> set[str]:
    """Those of these operations whose programs are of a class that has kernels."""
    specs = {op: load(op) for op in ops}
    return {op for op, spec in specs.items() if not spec.has_inner or program_class(lower(spec)) in EMITTED}
