"""The devices that a handle's tests run on: arrays that lie there, windows into them, and their values."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pytest

from normgen.cpu import find_compiler
from normgen.cuda import dlpack
from normgen.cuda.arrays import DeviceArray
from normgen.cuda.driver import synchronize
from normgen.cuda.memory import DeviceBuffer
from normgen.dtypes import dtype as dtype_of

NEEDS_COMPILER = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
Array = np.ndarray[Any, np.dtype[Any]]


class Place(Protocol):
    """A device of the tests.

    device  what `normgen.kernel` is asked for
    name    how messages name it; `other` is that of another device
    """

    device: int | str
    name: str
    other: str

    def array(self, values: Array) -> Any:
        """A copy, aligned to 256 bytes."""

    def window(
        self, values: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any = None
    ) -> Any:
        """A window into a copy of flat values, of their dtype or another; offset in elements of the values."""

    def part(self, array: Any, shape: tuple[int, ...], strides: tuple[int, ...], start: int = 0) -> Any:
        """A window into an array, from its element number `start` on."""

    def values(self, array: Any) -> Array: ...

    def frozen(self, array: Any) -> Any:
        """The same memory, read-only."""

    def elsewhere(self, values: Array) -> Any:
        """An array of another device."""


class _Interface:
    """What a library with only the CUDA array interface offers; `keeps` has the memory."""

    def __init__(
        self,
        pointer: int,
        shape: tuple[int, ...],
        steps: tuple[int, ...],
        dtype: Any,
        *,
        keeps: Any = None,
        readonly: bool = False,
    ) -> None:
        self.shape, self.steps, self.dtype, self.keeps, self.pointer = shape, steps, dtype, keeps, pointer
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (pointer, readonly),
            "strides": tuple(step * dtype.itemsize for step in steps),
            "version": 3,
        }

    def values(self) -> Array:
        """A copy, after everything queued on the GPU so far."""
        buffer = self.keeps if isinstance(self.keeps, DeviceBuffer) else self.keeps.buffer
        synchronize(buffer.device)
        memory = buffer.read((buffer.size,), np.uint8)
        steps = tuple(step * self.dtype.itemsize for step in self.steps)
        return np.ndarray(self.shape, self.dtype, memory, self.pointer - buffer.pointer, steps)


class _OfGpu(_Interface):
    """An array that says itself where it lies: no driver is asked."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, 0


class OnCpu:
    device, name, other = "cpu", "the CPU", "GPU 0"

    def array(self, values: Array) -> Array:
        memory = np.empty(values.nbytes + 256, np.uint8)
        start = -memory.ctypes.data % 256
        made = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
        made[...] = values
        return made

    def window(
        self, values: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any = None
    ) -> Array:
        kind = np.dtype(dtype or values.dtype)
        memory = self.array(values.reshape(-1)).view(np.uint8)
        steps = tuple(step * kind.itemsize for step in strides)
        return np.ndarray(shape, kind, memory, offset * values.itemsize, steps)

    def part(self, array: Array, shape: tuple[int, ...], strides: tuple[int, ...], start: int = 0) -> Array:
        steps = [step * array.itemsize for step in strides]
        return np.lib.stride_tricks.as_strided(array.reshape(-1)[start:] if start else array, shape, steps)

    def values(self, array: Array) -> Array:
        return array

    def frozen(self, array: Array) -> Array:
        found = array.view()
        found.flags.writeable = False
        return found

    def elsewhere(self, values: Array) -> _Interface:
        return _OfGpu(1 << 40, values.shape, (values.shape[-1], 1)[-values.ndim :], values.dtype)


class OnGpu:
    device, name, other = 0, "GPU 0", "the CPU"

    def array(self, values: Array) -> DeviceArray:
        return DeviceArray.of(values)

    def window(
        self, values: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any = None
    ) -> _Interface:
        buffer = DeviceBuffer.of(values)
        pointer = buffer.pointer + offset * values.itemsize
        return _Interface(pointer, shape, strides, np.dtype(dtype or values.dtype), keeps=buffer)

    def part(self, array: DeviceArray, shape: tuple[int, ...], strides: tuple[int, ...], start: int = 0) -> _Interface:
        pointer = array.buffer.pointer + start * array.dtype.bytes
        return _Interface(pointer, shape, strides, array.dtype.numpy, keeps=array)

    def values(self, array: Any) -> Array:
        return array.numpy() if isinstance(array, DeviceArray) else array.values()

    def frozen(self, array: DeviceArray) -> _Interface:
        facts = array.as_view()
        return _Interface(facts.pointer, facts.shape, facts.strides, array.dtype.numpy, keeps=array, readonly=True)

    def elsewhere(self, values: Array) -> Array:
        return values


def nan(*shape: int, dtype: str = "f32") -> Array:
    """What an output holds before a kernel writes it."""
    return np.full(shape, np.nan, dtype_of(dtype).numpy)
