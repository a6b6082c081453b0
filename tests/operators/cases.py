"""Inputs of an operation as arrays, and how far off its results are, in shares of the error model's bound."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from normgen.bench.expected import Expected
from normgen.measure.data import sample_inputs
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.spec.reader import load

# Function, its spec, the optional tensors that are given or wanted, those differentiated by.
FUNCTIONS: list[tuple[str, str, list[str], list[str]]] = [
    ("rms_norm", "rmsnorm", ["weight"], ["x", "weight"]),
    ("layer_norm", "layernorm", ["weight", "bias"], ["x", "weight", "bias"]),
    ("layer_norm", "layernorm", [], ["x"]),
    ("softmax", "softmax", [], ["x"]),
    ("log_softmax", "log_softmax", [], ["x"]),
    ("masked_softmax", "masked_softmax", ["mask"], ["x"]),
    ("safe_masked_softmax", "safe_masked_softmax", ["mask"], ["x"]),
    ("causal_softmax", "causal_softmax", [], ["x"]),
    ("softmax_sink", "softmax_sink", [], ["x", "sink"]),
    ("add_rms_norm", "add_rmsnorm", ["weight"], ["x", "residual", "weight"]),
    ("add_layer_norm", "add_layernorm", ["weight", "bias", "h"], ["x", "residual", "weight", "bias"]),
    ("llama_rms_norm", "llama_rmsnorm", ["weight"], ["x", "weight"]),
    ("add_llama_rms_norm", "llama_rmsnorm", ["residual", "weight", "h"], ["x", "residual", "weight"]),
    ("gemma_rms_norm", "gemma_rmsnorm", [], ["x", "weight"]),
    ("add_gemma_rms_norm", "gemma_rmsnorm", ["residual", "h"], ["x", "residual", "weight"]),
    ("dropout_add_rms_norm", "dropout_add_rmsnorm", ["weight"], ["x", "residual", "weight"]),
    ("rms_norm_gate", "rmsnorm_gate", ["weight"], ["x", "z", "weight"]),
    ("gate_rms_norm", "gate_rmsnorm", ["weight"], ["x", "z", "weight"]),
    ("ada_layer_norm", "adaln", [], ["x", "scale", "shift"]),
    ("dyt", "dyt", ["weight", "bias"], ["x", "alpha", "weight", "bias"]),
    ("swiglu", "swiglu", [], ["gate", "up"]),
    ("swiglu_clamped", "swiglu_clamped", [], ["gate", "up"]),
    ("geglu", "geglu", [], ["gate", "up"]),
    ("geglu_tanh", "geglu_tanh", [], ["gate"]),
]
IDS = [f"{function}-{len(wrt)}" for function, _, _, wrt in FUNCTIONS]


@dataclass(frozen=True, kw_only=True)
class Case:
    """arrays: what a problem reads, by name; numpy's, [.., cols], or as a caller made them."""

    problem: Problem
    arrays: Mapping[str, Any]
    expected: Expected

    def share_of(self, name: str, got: Any) -> float:
        """The largest error of a result in float64, where 1 is the bound."""
        return self.expected.share(name, got)


def sampled(
    op: str,
    shape: tuple[int, ...],
    dtype: str,
    *,
    present: Collection[str],
    direction: str = "forward",
    gradients: Collection[str] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> Case:
    spec = load(op)
    without = [t.name for t in spec.tensors if t.optional and t.name not in present]
    problem = problem_for(
        spec, shape=shape, dtype=dtype, dtypes=dtypes, without=without, direction=direction, gradients=gradients
    )
    inputs = sample_inputs(problem, seed=np.random.SeedSequence().entropy % 2**32)  # type: ignore[operator]
    arrays = {}
    for name, buffer in inputs.buffers.items():
        kind = problem.tensor(name).kind
        sizes = shape if kind.is_elem else shape[:-1] if kind.by_row else buffer.array.shape
        arrays[name] = np.array(buffer.array).reshape(sizes)
    return Case(problem=problem, arrays=arrays, expected=Expected(problem, inputs, seed=0))
