"""Specs with products of matrices, and their results as a kernel finds them, in float32."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen.dtypes import DTYPES
from normgen.problem.problem import Problem, make_problem
from normgen.spec.reader import parse
from normgen.spec.spec import Spec
from normgen.verify import Inputs, Outputs, make_inputs, make_outputs

TENSORS = {
    "x": '{ role = "input", axes = ["rows", "inner"], dtypes = ["f32", "f16", "bf16"] }',
    "w": '{ role = "parameter", axes = ["inner", "cols"], follows = "x" }',
    "up": '{ role = "parameter", axes = ["cols", "inner"], follows = "x" }',
    "weight": '{ role = "parameter", axes = ["inner"], follows = "x" }',
    "bias": '{ role = "parameter", follows = "x" }',
    "residual": '{ role = "input", follows = "x" }',
    "rstd": '{ role = "statistic", optional = true }',
    "z": '{ role = "output", follows = "x" }',
    "y": '{ role = "output", follows = "x" }',
}
FORMULAS: dict[str, dict[str, str]] = {
    "linear": {"y": "x @ w"},
    "torch_linear": {"y": "x @ up + bias"},
    "swiglu": {"gate": "x @ w", "y": "gate * sigmoid(gate) * (x @ up)"},
    "added": {"y": "residual + x @ w"},
    "saved": {"z": "x @ w + bias", "y": "z * sigmoid(z)"},
    "normed": {"rstd": "rsqrt(mean(x * x) + eps)", "y": "(x * rstd * weight) @ w"},
}
Floats = NDArray[np.float32]


def spec_of(name: str) -> Spec:
    formulas = FORMULAS[name]
    text = " ".join([*formulas, *formulas.values()])
    words = {word.strip("(),") for word in text.replace("(", " ").split()}
    tensors = "\n".join(f"{name} = {entry}" for name, entry in TENSORS.items() if name in words)
    scalars = "[scalars]\neps = 1e-6\n" if "eps" in words else ""
    saved = '[backward]\nsaved = ["z"]\n' if "z" in formulas else ""
    lines = "\n".join(f'{name} = "{formula}"' for name, formula in formulas.items())
    return parse(f'name = "{name}"\nsummary = "a product"\n[tensors]\n{tensors}\n{scalars}[formulas]\n{lines}\n{saved}')


NUMBERED = """
name = "numbered"
[tensors]
x = { role = "input", axes = ["rows", "inner"] }
w = { role = "parameter", axes = ["inner", "cols"] }
y = "output"
[formulas]
y = "where(term % 5 <= row % inner, x, 0) @ where(term % 3 == col % 3, 0, w) * (1 + col)"
"""


def numbered(x: Any, w: Any) -> tuple[Any, Any]:
    """The factors of NUMBERED by numpy: of x, [rows, inner], and of w, [inner, cols]."""
    (rows, inner), cols = x.shape, w.shape[1]
    term = np.arange(inner)
    left = term % 5 <= np.arange(rows)[:, np.newaxis] % inner
    return left, (term[:, np.newaxis] % 3 != np.arange(cols) % 3) * (1 + np.arange(cols))


def problem_of(name: str, sizes: tuple[int, int, int], **asked: Any) -> Problem:
    """Of rows, cols and inner."""
    return make_problem(spec_of(name), shape=sizes[:2], inner=sizes[2], **asked)


def results(name: str, tensors: Mapping[str, Any], eps: float = 1e-6) -> dict[str, Floats]:
    """Forward."""
    t: dict[str, Floats] = {key: np.asarray(value).astype(np.float32) for key, value in tensors.items()}
    x = t["x"]
    if name == "normed":
        rstd = (1 / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + np.float32(eps))).astype(np.float32)
        return {"rstd": rstd[:, 0], "y": ((x * t["weight"]) @ t["w"]) * rstd}
    found = x @ (t["w"] if "w" in t else t["up"].T)
    found = found + t["bias"] if "bias" in t else found
    if name == "saved":
        return {"z": found, "y": found / (1 + np.exp(-found))}
    if name == "swiglu":
        found = found / (1 + np.exp(-found)) * (x @ t["up"].T)
    return {"y": found + t["residual"] if name == "added" else found}


def run(name: str, problem: Problem, *, seed: int = 0, **made: Any) -> tuple[Inputs, Outputs]:
    """A right kernel's inputs and outputs."""
    inputs, outputs = make_inputs(problem, seed=seed, **made), make_outputs(problem, seed=seed)
    with np.errstate(all="ignore"):
        found = results(name, inputs.arrays)
        for key, array in outputs.arrays.items():
            array[...] = DTYPES[problem.tensor(key).dtype.name].stored(found[key].astype(np.float64))
    return inputs, outputs
