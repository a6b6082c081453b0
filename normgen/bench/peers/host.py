"""torch's operators, and other libraries' kernels, on arrays in host memory: copied to the device, run, copied back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from normgen.bench.peers import Options, load_peer, torch_eager
from normgen.problem.problem import Problem

_BITS = {1: np.int8, 2: np.int16, 4: np.int32}  # torch takes no array of ml_dtypes.bfloat16


def run(problem: Problem, arrays: Mapping[str, NDArray[Any]], index: int | None) -> dict[str, NDArray[Any]]:
    """The written tensors by name, as float32, which holds every format of theirs; index None: on the CPU.

    Raises NotOfferedError, and what torch raises.
    """
    device = torch.device("cpu") if index is None else torch.device("cuda", index)
    tensors = {name: _tensor(problem, name, array).to(device) for name, array in arrays.items()}
    with torch.no_grad():
        found = torch_eager.prepare(problem, [tensors], Options())(0)
    return {name: tensor.detach().float().cpu().numpy() for name, tensor in found.items()}


def bits(peer: str, problem: Problem, arrays: Mapping[str, NDArray[Any]], index: int | None) -> dict[str, NDArray[Any]]:
    """The bits, as whole numbers of their size, of what a library writes; index None: on the CPU.

    Raises NotOfferedError, and what the library raises.
    """
    device = torch.device("cpu") if index is None else torch.device("cuda", index)
    tensors = {name: _tensor(problem, name, array).to(device) for name, array in arrays.items()}
    with torch.no_grad():
        found = load_peer(peer).prepare(problem, [tensors], Options())(0)
    whole = {name: tensor.detach().contiguous() for name, tensor in found.items()}
    return {name: t.view(getattr(torch, f"int{8 * t.element_size()}")).cpu().numpy() for name, t in whole.items()}


def _tensor(problem: Problem, name: str, array: NDArray[Any]) -> torch.Tensor:
    dtype = problem.tensor(name).dtype
    bits = np.ascontiguousarray(array).view(_BITS[dtype.bytes])
    return torch.from_numpy(bits.copy()).view(getattr(torch, dtype.torch))
