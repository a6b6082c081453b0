"""Proof that a kernel is right: float64 references, derived error bounds, adversarial rows.

The references are written by hand; a user's own forward is its formula, its backward the derived program, which is
proven to be the formula's derivative before it says what is right.
"""

from __future__ import annotations

from normgen.schedule.chain import longest_chain
from normgen.verify.bounded import Bounded
from normgen.verify.check import (
    Expectation,
    check,
    pick_rows,
    pick_slabs,
    prepare,
)
from normgen.verify.derivative_proof import Slope, prove, proven_program
from normgen.verify.error_model import Float32Error
from normgen.verify.families import (
    beyond_stored,
    default_families,
    families_apart,
    families_of,
    family_rows,
    finite_to,
    make_inputs,
    parameters,
    scalar_values,
    signed_parameters,
)
from normgen.verify.interpret import interpret
from normgen.verify.reference import BACKWARD_FORMULAS, has_reference, reference, register
from normgen.verify.rows import ALL, FAMILY_ROWS, Buffer, Inputs, Outputs, allocate, make_outputs
from normgen.verify.sources import prove_derivative
from normgen.verify.varied.effects import Effects, effects
from normgen.verify.verdict import BadElement, TensorVerdict, Verdict

__all__ = [
    "ALL",
    "BACKWARD_FORMULAS",
    "FAMILY_ROWS",
    "BadElement",
    "Bounded",
    "Buffer",
    "Effects",
    "Expectation",
    "Float32Error",
    "Inputs",
    "Outputs",
    "Slope",
    "TensorVerdict",
    "Verdict",
    "allocate",
    "beyond_stored",
    "check",
    "default_families",
    "effects",
    "families_apart",
    "families_of",
    "family_rows",
    "finite_to",
    "has_reference",
    "interpret",
    "longest_chain",
    "make_inputs",
    "make_outputs",
    "parameters",
    "pick_rows",
    "pick_slabs",
    "prepare",
    "prove",
    "prove_derivative",
    "proven_program",
    "reference",
    "register",
    "scalar_values",
    "signed_parameters",
]
