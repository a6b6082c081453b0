"""Inputs of an operation as torch tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from normgen.python.remembered import Remembered
from normgen.torch.calls import Ready
from normgen.torch.operators import Operator
from tests.operators.cases import Case as Sampled
from tests.operators.cases import sampled


@dataclass(frozen=True, kw_only=True)
class Case(Sampled):
    """tensors: what a problem reads, by name."""

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(self.arrays)

    def share(self, name: str, got: torch.Tensor) -> float:
        """The largest error of a result, where 1 is the bound."""
        use = self.problem.tensor(name)
        assert got.dtype == getattr(torch, use.dtype.torch)
        return self.share_of(name, got.detach().double().cpu().numpy())


def case(op: str, shape: tuple[int, ...], dtype: str, device: str, **asked: Any) -> Case:
    made = sampled(op, shape, dtype, **asked)
    tensors = {name: to_torch(array).to(device) for name, array in made.arrays.items()}
    return Case(problem=made.problem, arrays=tensors, expected=made.expected)


def to_torch(array: Any) -> torch.Tensor:
    """A copy with the same bits."""
    array = np.array(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def readies(known: Remembered) -> list[Ready]:
    """What computes the calls that an operator remembers."""
    return [found for found in known.values() if isinstance(found, Ready)]


def forgotten(made: Operator, monkeypatch: pytest.MonkeyPatch) -> Remembered:
    """A new memory of an operator's calls, until the test is done."""
    known = Remembered()
    monkeypatch.setattr(made.operators.calls, "known", known)
    monkeypatch.setattr(made.eager, "_known", known)
    return known
