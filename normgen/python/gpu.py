"""New arrays in the caller's library, and the stream it is working on. Nothing is imported that is not in use."""

from __future__ import annotations

import sys
from typing import Any

from normgen.cuda.arrays import DeviceArray, is_torch
from normgen.dtypes import BF16, DType


def new_like(array: Any, shape: tuple[int, ...], dtype: DType, device: int) -> Any:
    """An uninitialised array: a torch tensor for torch, a cupy array for cupy, else a DeviceArray."""
    if is_torch(array) and "torch" in sys.modules:
        return array.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype.torch))
    if _is_cupy(array) and dtype is not BF16:  # cupy has no bfloat16 arrays
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device):
            return cupy.empty(shape, dtype=dtype.numpy)
    return DeviceArray(shape, dtype, device=device)


def current_stream(array: Any, device: int) -> int:
    """The stream the array's library queues its work on; 0 (the default stream) for the rest."""
    if is_torch(array) and "torch" in sys.modules:
        return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)
    if _is_cupy(array):
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return 0


def _is_cupy(array: Any) -> bool:
    return type(array).__module__.split(".", 1)[0] == "cupy" and "cupy" in sys.modules
