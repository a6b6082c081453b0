"""Device memory: allocation, copies to and from numpy, fills."""

from __future__ import annotations

from typing import Any

import numpy as np

from normgen.cuda.driver import OnDevice, check, driver
from normgen.cuda.stream import Owned, Stream
from normgen.dtypes import DType
from normgen.errors import UsageError


class DeviceBuffer(Owned):
    """Bytes on a device from one plain allocation; `pointer` is aligned to 256 bytes at least."""

    _destroy = "cuMemFree"

    def __init__(self, size: int, *, device: int = 0) -> None:
        if size < 0:
            raise UsageError("a buffer has no negative size", received=str(size))
        self.size, self.device = size, device
        with OnDevice(device):
            self.handle = int(check(driver().cuMemAlloc(max(size, 1)), f"allocate {size} bytes"))

    @classmethod
    def of(cls, array: np.ndarray[Any, Any], *, device: int = 0) -> DeviceBuffer:
        """A buffer with the array's bytes."""
        buffer = cls(array.nbytes, device=device)
        buffer.write(array)
        return buffer

    @property
    def pointer(self) -> int:
        return self.handle

    def write(self, array: np.ndarray[Any, Any], *, offset: int = 0) -> None:
        """Copy the array's bytes to the buffer; done when this returns."""
        host = np.ascontiguousarray(array)
        self._check_range(offset, host.nbytes)
        if host.nbytes:
            with OnDevice(self.device):
                done = driver().cuMemcpyHtoD(self.handle + offset, host.ctypes.data, host.nbytes)
                check(done, "copy to the device")
                # From pageable memory the call may return before the last bytes have landed, and a
                # non-blocking stream does not wait for the default stream.
                check(driver().cuStreamSynchronize(0), "finish a copy to the device")

    def read(self, shape: tuple[int, ...], dtype: DType | Any, *, offset: int = 0) -> np.ndarray[Any, Any]:
        """The bytes from `offset` on as a new array; waits for nothing but the copy: synchronize the stream first."""
        host = np.empty(shape, dtype=dtype.of_array.numpy if isinstance(dtype, DType) else dtype)
        self._check_range(offset, host.nbytes)
        if host.nbytes:
            with OnDevice(self.device):
                done = driver().cuMemcpyDtoH(host.ctypes.data, self.handle + offset, host.nbytes)
                check(done, "copy from the device")
        return host

    def fill(self, byte: int, *, stream: Stream | int = 0) -> None:
        """Set every byte, in stream order: 0 for zeros, 0xFF for NaN in every float format we store."""
        memset(self.handle, byte, self.size, stream=stream, device=self.device)

    def copy_from(self, other: DeviceBuffer, *, stream: Stream | int = 0) -> None:
        """Copy another buffer of the same size, device to device, in stream order.

        Raises UsageError for one of another size.
        """
        if other.size != self.size:
            raise UsageError("a copy needs two buffers of one size", received=f"{other.size} to {self.size} bytes")
        copy(self.handle, other.handle, self.size, stream=stream, device=self.device)

    def _check_range(self, offset: int, size: int) -> None:
        if offset < 0 or offset + size > self.size:
            raise UsageError(
                "a copy must stay inside the buffer",
                received=f"bytes {offset} to {offset + size} of {self.size}",
            )


def memset(pointer: int, byte: int, size: int, *, stream: Stream | int = 0, device: int = 0) -> None:
    """Set `size` bytes from `pointer` on, in stream order; it can be captured."""
    if size:
        with OnDevice(device):
            check(driver().cuMemsetD8Async(pointer, byte, size, int(stream)), "fill device memory")


def copy(target: int, source: int, size: int, *, stream: Stream | int = 0, device: int = 0) -> None:
    """Copy `size` bytes between two places of one device, in stream order; it can be captured (the copy roof)."""
    if size:
        with OnDevice(device):
            check(driver().cuMemcpyDtoDAsync(target, source, size, int(stream)), "copy on the device")
