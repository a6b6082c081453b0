"""torch as it is where nobody has said anything: modules are examined there, whatever their caller is amid."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """On the CPU, in none of the caller's modes and transforms; its random numbers stay as they are."""
    with (
        _disable_current_modes(),
        temporarily_clear_interpreter_stack(),
        _without_function_modes(),
        torch.device("cpu"),  # where a forward that makes tensors of its own is to make them, too
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.random.fork_rng(devices=[]),
    ):
        yield


@contextlib.contextmanager
def _without_function_modes() -> Iterator[None]:
    modes = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            torch._C._push_on_torch_function_stack(mode)
