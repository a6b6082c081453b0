"""Arrays of other libraries as plain facts, and device arrays of our own that other libraries can read.

torch is recognised by its methods, never imported; numpy arrays are read as they are (DLPack knows neither read-only
ones nor bfloat16); the rest comes through `__cuda_array_interface__` or DLPack.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from normgen.cuda import dlpack
from normgen.cuda.dlpack import contiguous_strides
from normgen.cuda.driver import OnDevice, check, driver, synchronize
from normgen.cuda.memory import DeviceBuffer
from normgen.cuda.stream import Event
from normgen.dtypes import DTYPES, DType
from normgen.errors import UsageError

_OUR_NAMES = {alias: known.name for known in DTYPES.values() for alias in (known.name, *known.aliases)}
ON_CPU = -1
_DEFAULT_STREAM = 1  # CU_STREAM_LEGACY, which both protocols write for the default stream


class ArrayView(NamedTuple):
    """Where an array lies and how; strides in elements.

    dtype is our name (f32, f16, bf16) or, for a dtype we do not have, the array's own.
    ready_stream is the stream whose work must be awaited before the memory is used, if the array names one.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int
    readonly: bool
    ready_stream: int | None
    owner: object


def view(array: Any, *, stream: int = 0) -> ArrayView:
    """The facts of an array; a DLPack producer makes its data ready on `stream`.

    Raises UsageError for an object that is no numpy array and offers neither torch's methods,
    `__cuda_array_interface__` nor DLPack, and for a tensor whose elements lie nowhere.
    """
    kind = type(array)
    if kind in _TORCH_TYPES or is_torch(array):
        _check_sign(array)
        return _view_torch(array)
    if isinstance(array, DeviceArray):
        array.make_ready_on(stream or _DEFAULT_STREAM)
        return array.as_view()
    if isinstance(array, np.ndarray):
        return _view_numpy(array)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _view_interface(array, interface)
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _view_dlpack(array, stream)
    raise UsageError(
        "an array must be a torch tensor or a numpy array, or offer __cuda_array_interface__ or __dlpack__",
        received=type(array).__name__,
        hint="a kernel on a GPU needs its arrays there; one made with device='cpu' takes numpy arrays",
    )


def is_torch(array: Any) -> bool:
    """Whether it has torch's methods: a duck is enough."""
    kind = type(array)
    if kind not in _TORCH_TYPES and all(hasattr(kind, name) for name in ("data_ptr", "get_device", "stride")):
        _TORCH_TYPES.add(kind)
    return kind in _TORCH_TYPES


def _check_sign(tensor: Any) -> None:
    """Raise UsageError for torch's lazy negation: such a view's numbers are not what lies in memory, but minus that."""
    if getattr(tensor, "is_neg", bool)():
        raise UsageError(
            "a kernel reads memory as it lies, and in that of this tensor are the negatives of its numbers",
            received=f"a negative view {list(tensor.shape)}, as the imaginary part of a conjugate is",
            hint="x.resolve_neg()",
        )


_TORCH_TYPES: set[type] = set()  # remembered: three look-ups by name per array are a third of a view's time
_TORCH_NAMES: dict[Any, str] = {}


def torch_dtype_name(dtype: Any) -> str:
    """Our name of a torch dtype (`torch.float32` -> f32), or torch's own without the prefix."""
    name = _TORCH_NAMES.get(dtype)
    if name is None:
        name = _our_name(str(dtype).removeprefix("torch."))
        _TORCH_NAMES[dtype] = name
    return name


def _view_torch(tensor: Any) -> ArrayView:
    try:
        pointer = tensor.data_ptr()
    except RuntimeError as error:  # of a sparse one, and of one that a transform of functions has wrapped
        raise _without_memory(tensor) from error
    if not pointer and tensor.numel():  # on the meta device, or fake
        raise _without_memory(tensor)
    return ArrayView(
        pointer,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        torch_dtype_name(tensor.dtype),
        tensor.get_device(),
        False,
        None,
        tensor,
    )


def _without_memory(tensor: Any) -> UsageError:
    layout = str(tensor.layout).removeprefix("torch.")
    return UsageError(
        "a kernel reads and writes memory, and this tensor's elements lie nowhere",
        received=f"a {layout} {type(tensor).__name__} {list(tensor.shape)} on {tensor.device}",
        hint="give it a dense tensor with data; an operator (normgen.torch) can be traced without",
    )


def _view_numpy(array: np.ndarray[Any, Any]) -> ArrayView:
    kind = array.dtype
    steps = _in_elements(array.strides, kind.itemsize)
    name = _our_name(kind.name) if kind.isnative else kind.str  # >f4 has the name float32 as well
    pointer = array.ctypes.data if array.size else 0  # what is empty shares no memory, wherever numpy lets it start
    return ArrayView(pointer, array.shape, steps, name, ON_CPU, not array.flags.writeable, None, array)


def _view_interface(array: Any, interface: Mapping[str, Any]) -> ArrayView:
    pointer, readonly = interface["data"]
    shape = tuple(interface["shape"])
    kind = np.dtype(interface["typestr"])
    strides = interface.get("strides")
    elements = contiguous_strides(shape) if strides is None else _in_elements(strides, kind.itemsize)
    name = _our_name(getattr(getattr(array, "dtype", None), "name", "") or kind.name)
    # bfloat16 has no type string of its own: two opaque bytes are what ml_dtypes writes for it.
    dtype = "bf16" if interface["typestr"] in ("<V2", "|V2") else name
    ready = interface.get("stream")
    return ArrayView(
        int(pointer or 0), shape, elements, dtype, _device_of(array, int(pointer or 0)), bool(readonly), ready, array
    )


def _view_dlpack(array: Any, stream: int) -> ArrayView:
    device_type = int(array.__dlpack_device__()[0])
    if device_type in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        capsule = array.__dlpack__(stream=stream or _DEFAULT_STREAM)  # 0 is ambiguous there
    else:
        capsule = array.__dlpack__()
    facts = dlpack.read(capsule)
    on_gpu = facts.device_type in (dlpack.CUDA, dlpack.CUDA_MANAGED)
    strides = facts.strides if facts.strides is not None else contiguous_strides(facts.shape)
    device = facts.device_id if on_gpu else ON_CPU
    return ArrayView(facts.pointer, facts.shape, strides, facts.dtype, device, False, None, capsule)


def _device_of(array: Any, pointer: int) -> int:
    """The device an array lies on: as it says itself, else as the driver knows of the pointer."""
    if hasattr(array, "__dlpack_device__"):
        return int(array.__dlpack_device__()[1])
    if not pointer:
        return 0
    bindings = driver()
    ordinal = bindings.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(check(bindings.cuPointerGetAttribute(ordinal, pointer), "know the array's pointer"))


def _in_elements(strides: tuple[int, ...], size: int) -> tuple[int, ...]:
    if any(step % size for step in strides):
        raise UsageError("strides must be whole elements", received=f"{strides} bytes of {size}-byte elements")
    return tuple(step // size for step in strides)


def _our_name(name: str) -> str:
    return _OUR_NAMES.get(name, name)


def extent_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements of the memory of an array of these strides, all that belong to its outermost one."""
    return max((n * step for n, step in zip(shape, strides, strict=True)), default=1) if 0 not in shape else 0


def with_strides(memory: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An array over contiguous numpy memory, strides in elements."""
    steps = tuple(step * memory.itemsize for step in strides)
    return np.ndarray(shape, memory.dtype, memory, strides=steps)


class DeviceArray:
    """An array in device memory; read it with `numpy()`, or hand it on through DLPack or CUDA's interface.

    It is contiguous, or of `strides` in elements.
    """

    def __init__(
        self, shape: tuple[int, ...], dtype: str | DType, *, strides: tuple[int, ...] | None = None, device: int = 0
    ) -> None:
        self.shape = shape
        self.dtype = DTYPES[dtype] if isinstance(dtype, str) else dtype
        self._strides = contiguous_strides(shape) if strides is None else strides
        self._extent = extent_of(shape, self._strides)
        self.buffer = DeviceBuffer(self._extent * self.dtype.bytes, device=device)
        self._written: tuple[int, Event] | None = None  # the stream that writes it, and when it has

    @classmethod
    def of(cls, array: np.ndarray[Any, Any], *, device: int = 0) -> DeviceArray:
        """A copy of a numpy array (f32, f16 or ml_dtypes.bfloat16) on the device."""
        made = cls(array.shape, DTYPES[_our_name(array.dtype.name)], device=device)
        made.buffer.write(array)
        return made

    @property
    def device(self) -> int:
        return self.buffer.device

    def mark_written(self, stream: int) -> None:
        """Note that work queued on `stream` writes this array: readers elsewhere will wait for it."""
        event = Event(self.device, timing=False)
        event.record(stream)
        self._written = (stream or _DEFAULT_STREAM, event)

    def make_ready_on(self, stream: int) -> None:
        """Let what is queued on `stream` from now on find this array written."""
        if self._written is not None and self._written[0] != stream:
            handle = self._written[1].handle
            with OnDevice(self.device):
                check(driver().cuStreamWaitEvent(stream, handle, 0), "make a stream wait for an array")

    def as_view(self) -> ArrayView:
        pointer, name = self.buffer.pointer, self.dtype.name
        return ArrayView(pointer, self.shape, self._strides, name, self.buffer.device, False, None, self)

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy on the host, after everything queued on the device so far."""
        synchronize(self.device)
        self._written = None
        memory = self.buffer.read((self._extent,), self.dtype)
        return with_strides(memory, self.shape, self._strides).copy()

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self.device

    def __dlpack__(self, *, stream: int | None = None, **_newer: object) -> Any:
        """An unversioned capsule, ready on `stream` (None: the default stream; -1: no waiting)."""
        if stream != -1:
            self.make_ready_on(stream or _DEFAULT_STREAM)
        return dlpack.export(
            pointer=self.buffer.pointer,
            shape=self.shape,
            dtype=self.dtype.name,
            device_type=dlpack.CUDA,
            device_id=self.device,
            owner=self.buffer,
            strides=self._strides,
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self.make_ready_on(_DEFAULT_STREAM)
        contiguous = self._strides == contiguous_strides(self.shape)
        return {
            "shape": self.shape,
            "typestr": self.dtype.numpy.str,
            "data": (self.buffer.pointer, False),
            "strides": None if contiguous else tuple(step * self.dtype.bytes for step in self._strides),
            "version": 3,
            "stream": None if self._written is None else _DEFAULT_STREAM,
        }

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype.name}, device={self.device})"
