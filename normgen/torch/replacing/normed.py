"""Products of what a root-mean-square norm gives, with the norm inside: of few rows it then costs no kernel of its own.

The factor of a row leaves the sums, and its squares are added up while the products read the row. What is multiplied is
rounded once, x * weight, where the modules round the norm's result. Inference alone: nothing has a gradient.
"""

from __future__ import annotations

from normgen.spec.reader import load, parse
from normgen.torch.operators import Operator

# What each of our norms multiplies its rows by, but for the factor of a row.
_FACTORS = {"rms_norm": "weight", "llama_rms_norm": "weight", "gemma_rms_norm": "(1 + weight)"}
NORMS = frozenset(_FACTORS)
_TEXT = """
name = "{norm}_{result}_of_products"
summary = "Products of what a root-mean-square norm gives, which is never stored."
[tensors]
x = {{ role = "input", axes = ["rows", "inner"], dtypes = ["f32", "bf16"] }}
weight = {{ role = "parameter", axes = ["inner"], follows = "x" }}
{tensors}
[scalars]
eps = 1e-6
[formulas]
rstd = "rsqrt(mean(x * x) + eps)"
{formulas}
"""
_known: dict[tuple[str, int, str], Operator] = {}  # a compiler reads it, and makes none


def products_behind(norm: str, count: int, gate: str = "") -> Operator:
    """y0, .. [.., cols] of x [.., inner], a norm's weight, `count` weights [cols, inner], `count` biases or None; eps.

    gate  one of `GATES`: its result alone, of the two products
    """
    key = norm, count, gate
    if key not in _known:
        products = ("gate", "up") if gate else [f"y{i}" for i in range(count)]
        tensors = [f'w_{p} = {{ role = "parameter", axes = ["cols", "inner"], follows = "x" }}' for p in products]
        bias = '{ role = "parameter", optional = true, absent = "0", follows = "x" }'
        tensors += [f"b_{p} = {bias}" for p in products]
        tensors += [f'{y} = {{ role = "output", follows = "x" }}' for y in (["y"] if gate else products)]
        formulas = [f'{p} = "rstd * (cast(x * {_FACTORS[norm]}, x) @ w_{p}) + b_{p}"' for p in products]
        formulas += [f'y = "{load(gate).formulas[-1].text}"'] if gate else []
        parts = {"tensors": "\n".join(tensors), "formulas": "\n".join(formulas)}
        _known[key] = Operator(parse(_TEXT.format(norm=norm, result=gate or count, **parts)))
    return _known[key]
