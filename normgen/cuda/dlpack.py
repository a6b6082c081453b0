"""DLPack by ctypes: read a producer's capsule, and offer one, without a framework.

The layout is that of dlpack.h, DLManagedTensor (the unversioned capsule "dltensor", which every framework speaks).
"""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass
from typing import Any

from normgen.dtypes import DTYPES
from normgen.errors import UsageError

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _Destructor]
_capsule_is = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
# The destructor gets a capsule whose last reference is gone: it must not be wrapped in a Python object again.
_dying_is = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_dying_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_NAMES = {d.dlpack: d.name for d in DTYPES.values()}
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


@dataclass(frozen=True, kw_only=True)
class DlpackTensor:
    """What a capsule says; strides in elements."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    device_type: int
    device_id: int


def read(capsule: Any) -> DlpackTensor:
    """The facts of an unconsumed "dltensor" capsule; its memory stays the producer's while the capsule lives.

    Raises UsageError for another capsule.
    """
    if not _capsule_is(capsule, _NAME):
        raise UsageError("__dlpack__ must give an unused 'dltensor' capsule", received=repr(capsule))
    tensor = ctypes.cast(_capsule_pointer(capsule, _NAME), ctypes.POINTER(_Managed)).contents.tensor
    code, bits = int(tensor.code), int(tensor.bits)
    name = _NAMES.get((code, bits), f"{_KINDS.get(code, f'code{code}')}{bits}")
    return DlpackTensor(
        pointer=(tensor.data or 0) + tensor.byte_offset,
        shape=tuple(tensor.shape[i] for i in range(tensor.ndim)),
        strides=tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None,
        dtype=name if tensor.lanes == 1 else f"{name}x{tensor.lanes}",
        device_type=int(tensor.device_type),
        device_id=int(tensor.device_id),
    )


_exported: dict[int, tuple[Any, ...]] = {}  # what a consumer still holds: the structure, its arrays, the owner
_numbers = itertools.count(1)


def _forget(managed: Any) -> None:
    _exported.pop(int(managed.contents.context or 0), None)


def _drop(capsule: int) -> None:
    if _dying_is(capsule, _NAME):  # nobody consumed it: a consumer renames it to "used_dltensor"
        _forget(ctypes.cast(_dying_pointer(capsule, _NAME), ctypes.POINTER(_Managed)))


_release, _drop_capsule = _Deleter(_forget), _Destructor(_drop)


def export(
    *,
    pointer: int,
    shape: tuple[int, ...],
    dtype: str,
    device_type: int,
    device_id: int,
    owner: object,
    strides: tuple[int, ...] | None = None,
) -> Any:
    """A capsule over memory, contiguous or of `strides`; `owner` is kept alive until the consumer is done with it."""
    code, bits = DTYPES[dtype].dlpack
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    steps = (ctypes.c_int64 * max(len(shape), 1))(*(contiguous_strides(shape) if strides is None else strides))
    number = next(_numbers)
    tensor = _Tensor(
        data=pointer,
        device_type=device_type,
        device_id=device_id,
        ndim=len(shape),
        code=code,
        bits=bits,
        lanes=1,
        shape=sizes,
        strides=steps,
        byte_offset=0,
    )
    managed = _Managed(tensor=tensor, context=number, deleter=_release)
    _exported[number] = (managed, sizes, steps, owner)
    return _capsule_new(ctypes.addressof(managed), _NAME, _drop_capsule)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
