"""torch's operators on arrays in host memory: copied to the device, run, copied back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from normgen.bench.peers import Options, torch_eager
from normgen.problem.problem import Problem

_BITS = {2: np.int16, 4: np.int32}  # torch takes no array of ml_dtypes.bfloat16


def run(problem: Problem, arrays: Mapping[str, NDArray[Any]], index: int | None) -> dict[str, NDArray[Any]]:
    """The written tensors by name, as float32, which holds every format of theirs; index None: on the CPU.

    Raises NotOfferedError, and what torch raises.
    """
    device = torch.device("cpu") if index is None else torch.device("cuda", index)
    tensors = {name: _tensor(problem, name, array).to(device) for name, array in arrays.items()}
    with torch.no_grad():
        found = torch_eager.prepare(problem, [tensors], Options())(0)
    return {name: tensor.detach().float().cpu().numpy() for name, tensor in found.items()}


def _tensor(problem: Problem, name: str, array: NDArray[Any]) -> torch.Tensor:
    dtype = problem.tensor(name).dtype
    bits = np.ascontiguousarray(array).view(_BITS[dtype.bytes])
    return torch.from_numpy(bits.copy()).view(getattr(torch, dtype.torch))
