"""Names and schemas of an operation's operators in torch's dispatcher: of Python's and of a library.

An operator takes the spec's read tensors, its scalars and the dtype of the outputs that follow an input: None, that of
the tensors of rows. Programs that torch exports say None where they can: AOTInductor of torch 2.11 hands an operator
another dtype than the program says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from normgen.spec.reader import is_built_in
from normgen.spec.spec import Spec, Tensor

DTYPE = "ScalarType? out_dtype_"


def operator_name(spec: Spec, returns: Collection[str], options: Sequence[str] = ()) -> str:
    """The name that those of one spec begin with.

    rmsnorm; layernorm_with_mean_rstd where a call returns what is optional. A spec of the user's own, or other options,
    add a digest: of the spec's text and of them.
    """
    extra = sorted(t.name for t in (*spec.outputs, *spec.statistics) if t.optional and t.name in returns)
    if options or not is_built_in(spec):
        digest = hashlib.sha256(" ".join((spec.sha256, *extra, *options)).encode()).hexdigest()[:12]
        return f"{spec.name}_{digest}"
    return "_".join((spec.name, *(["with", *extra] if extra else [])))


def forward_schema(spec: Spec, reads: Sequence[Tensor], results: int, last: str = DTYPE) -> str:
    """(Tensor x, Tensor? weight, float eps, ScalarType? out_dtype_) -> Tensor."""
    tensors = [f"Tensor{'?' if t.optional else ''} {t.name}" for t in reads]
    scalars = [f"float {name}" for name, _ in spec.scalars]
    made = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
    return f"({', '.join((*tensors, *scalars, last))}) -> {made}"
