"""Inputs of an operation as torch tensors, and how far off its results are, in shares of the error model's bound."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from normgen.bench.expected import Expected
from normgen.measure.data import sample_inputs
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.spec.reader import load


@dataclass(frozen=True, kw_only=True)
class Case:
    """tensors: what a problem reads, by name."""

    problem: Problem
    tensors: Mapping[str, torch.Tensor]
    expected: Expected

    def share(self, name: str, got: torch.Tensor) -> float:
        """The largest error of a result, where 1 is the bound."""
        use = self.problem.tensor(name)
        assert got.dtype == getattr(torch, use.dtype.torch)
        return self.expected.share(name, got.detach().double().cpu().numpy())


def case(
    op: str,
    shape: tuple[int, ...],
    dtype: str,
    device: str,
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
    tensors = {}
    for name, buffer in inputs.buffers.items():
        kind = problem.tensor(name).kind
        sizes = shape if kind.is_elem else shape[:-1] if kind.by_row else buffer.array.shape
        tensors[name] = to_torch(buffer.array).reshape(sizes).to(device)
    return Case(problem=problem, tensors=tensors, expected=Expected(problem, inputs, seed=0))


def to_torch(array: Any) -> torch.Tensor:
    """A copy with the same bits."""
    array = np.array(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
