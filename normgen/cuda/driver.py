"""The CUDA driver: every return code checked, devices and their facts, the context of a device."""

from __future__ import annotations

import functools
from typing import Any

from normgen.device import TARGETS, Device
from normgen.errors import DriverError, NoDeviceError, UsageError

# A copy reaches this part of what memory clock x bus width allows: 0.855 on an H200 (4200 of 4917 GB/s),
# 0.90 on an A100 (1750 of 1935). Used only for devices without a measured figure in TARGETS.
_COPY_SHARE_OF_PEAK = 0.87
_NAME_BYTES = 256  # room for a device's name
_NO_DEVICE_CODES = ("CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "CUDA_ERROR_STUB_LIBRARY")
_HINTS = {
    "CUDA_ERROR_ILLEGAL_ADDRESS": "a kernel left its tensors; this process cannot use the GPU any more",
    "CUDA_ERROR_OUT_OF_MEMORY": "use a smaller shape, or free memory on this GPU",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "the cubin was compiled for another arch than this GPU's",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE": "blocks that share rows must all be resident, and this device, or what "
    "runs on it beside them, leaves too few places: take a schedule with parts = 1",
    "CUDA_ERROR_INVALID_CONTEXT": "the stream and the kernel belong to different devices",
}


@functools.cache
def driver() -> Any:
    """`cuda.bindings.driver`, initialised. Raises NoDeviceError if there is no driver or no device."""
    try:
        from cuda.bindings import driver as bindings

        (status,) = bindings.cuInit(0)
    except (ImportError, RuntimeError, OSError) as error:
        raise NoDeviceError(
            "the CUDA driver must load",
            received=str(error),
            hint="install the NVIDIA driver; `normgen doctor` tells more",
        ) from error
    if int(status) != 0:
        raise NoDeviceError("the CUDA driver must find a device", received=str(status.name))
    return bindings


def check(answer: tuple[Any, ...], action: str) -> Any:
    """The value of a driver call's answer, or DriverError: `action` must not fail."""
    status = answer[0]
    if int(status) != 0:
        code = str(getattr(status, "name", status))
        if code in _NO_DEVICE_CODES:
            raise NoDeviceError(f"the CUDA driver must {action}", received=code)
        raise DriverError(f"the CUDA driver must {action}", code=code, hint=_HINTS.get(code))
    return answer[1] if len(answer) == 2 else answer[1:]


def driver_version() -> tuple[int, int]:
    """The newest CUDA release the driver supports, for example (13, 0)."""
    number = int(check(driver().cuDriverGetVersion(), "tell its version"))
    return number // 1000, number % 1000 // 10


def device_count() -> int:
    return int(check(driver().cuDeviceGetCount(), "count the devices"))


def devices() -> list[Device]:
    """The facts of every device, by index. Raises NoDeviceError without a driver or a device."""
    return [device_facts(index) for index in range(device_count())]


def device_facts(index: int = 0) -> Device:
    """What the driver reports of a device; its bandwidth from TARGETS if that model was measured."""
    name = device_name(index)
    fact = functools.partial(_attribute, index)
    return Device(
        name=name,
        arch=fact("COMPUTE_CAPABILITY_MAJOR") * 10 + fact("COMPUTE_CAPABILITY_MINOR"),
        sm_count=sm_count(index),
        l2_bytes=fact("L2_CACHE_SIZE"),
        shared_per_block=fact("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        shared_per_sm=fact("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        dram_gb_per_s=_dram_gb_per_s(name, fact("MEMORY_CLOCK_RATE"), fact("GLOBAL_MEMORY_BUS_WIDTH")),
        sm_clock_ghz=fact("CLOCK_RATE") / 1e6,
        registers_per_sm=fact("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        threads_per_sm=fact("MAX_THREADS_PER_MULTIPROCESSOR"),
        blocks_per_sm=fact("MAX_BLOCKS_PER_MULTIPROCESSOR"),
    )


def device_name(index: int) -> str:
    return _text(driver().cuDeviceGetName(_NAME_BYTES, _handle(index)), "tell a device's name")


def pci_bus_id(index: int) -> str:
    """Where the device sits, as NVML names it: 0000:18:00.0."""
    return _text(driver().cuDeviceGetPCIBusId(_NAME_BYTES, _handle(index)), "tell where a device sits")


@functools.cache
def sm_count(index: int) -> int:
    return _attribute(index, "MULTIPROCESSOR_COUNT")


def find_gpu(device: int | str | None) -> tuple[int, Device] | None:
    """(index, facts) of the GPU to measure on; None when there is none, or "cpu" asks for a prediction.

    Raises NoDeviceError when a GPU is asked for by number and there is no usable one, UsageError for other names.
    """
    if device == "cpu":
        return None
    if device is not None and not isinstance(device, int):
        raise UsageError("a device is the number of a GPU, or 'cpu'", received=repr(device), hint="0 is the first GPU")
    try:
        return device or 0, device_facts(device or 0)
    except NoDeviceError:
        if device is not None:
            raise
        return None


def _dram_gb_per_s(name: str, memory_clock_khz: int, bus_width_bits: int) -> float:
    """A measured copy if we have one; else memory clock x 2 (double data rate) x bus width x a copy's share."""
    measured = next((known.dram_gb_per_s for known in TARGETS.values() if known.name == name), None)
    if measured is not None:
        return measured
    if memory_clock_khz and bus_width_bits:
        return round(2 * memory_clock_khz * 1e3 * bus_width_bits / 8 / 1e9 * _COPY_SHARE_OF_PEAK, 1)
    return min(known.dram_gb_per_s for known in TARGETS.values())


@functools.cache
def _handle(index: int) -> Any:
    """The driver's handle of a device. Raises UsageError if there is none of that index."""
    count = device_count()
    if not 0 <= index < count:
        raise UsageError("a device index must name a device", received=str(index), hint=f"0 to {count - 1}")
    return check(driver().cuDeviceGet(index), "find the device")


def _attribute(index: int, name: str) -> int:
    """A CU_DEVICE_ATTRIBUTE_*."""
    which = getattr(driver().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(check(driver().cuDeviceGetAttribute(which, _handle(index)), f"tell {name} of a device"))


def _text(answer: tuple[Any, ...], action: str) -> str:
    """A text that the driver wrote into a buffer, up to its NUL."""
    return bytes(check(answer, action)).partition(b"\0")[0].decode()


@functools.cache
def context_of(index: int) -> int:
    """The primary context of a device, kept for the life of the process."""
    device = _handle(index)
    return int(check(driver().cuDevicePrimaryCtxRetain(device), "create the device's context"))


def device_of(context: int) -> int:
    """The index of the device that a context is on."""
    bindings = driver()
    check(bindings.cuCtxPushCurrent(context), "make a context current")
    try:
        return int(check(bindings.cuCtxGetDevice(), "tell a context's device"))
    finally:
        check(bindings.cuCtxPopCurrent(), "restore the thread's context")


def use_device(index: int) -> None:
    """Make the device's primary context (the one torch and cupy use) current in this thread."""
    check(driver().cuCtxSetCurrent(context_of(index)), "make the device's context current")


def synchronize(index: int) -> None:
    """Wait for everything queued on a device; a kernel's fault is raised here."""
    with OnDevice(index):
        check(driver().cuCtxSynchronize(), "finish all work of the device")


class OnDevice:
    """Make a device's context current inside a `with`; the thread's own context is back afterwards.

    A thread that has no context yet keeps this one.
    """

    __slots__ = ("_bindings", "_context", "_is_pushed")

    def __init__(self, index: int) -> None:
        self._bindings = driver()
        self._context = context_of(index)
        self._is_pushed = False

    def __enter__(self) -> None:
        current = int(check(self._bindings.cuCtxGetCurrent(), "tell the current context"))
        if current == self._context:
            return
        self._is_pushed = bool(current)
        make_current = self._bindings.cuCtxPushCurrent if current else self._bindings.cuCtxSetCurrent
        check(make_current(self._context), "make the device's context current")

    def __exit__(self, *_: object) -> None:
        if self._is_pushed:
            check(self._bindings.cuCtxPopCurrent(), "restore the thread's context")


class RelaxedCapture:
    """Inside, this thread may allocate, free, load and synchronize while streams are captured.

    A capture of torch's kind takes any of these, by whatever thread, for an error of its own, and is lost.
    """

    def __enter__(self) -> None:
        modes = driver().CUstreamCaptureMode
        self._mode = _exchange(modes.CU_STREAM_CAPTURE_MODE_RELAXED)

    def __exit__(self, *_: object) -> None:
        _exchange(self._mode)


def _exchange(mode: Any) -> Any:
    return check(driver().cuThreadExchangeStreamCaptureMode(mode), "change how a thread meets captures")
