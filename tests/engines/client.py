"""A user of TVM-FFI libraries, in a process of its own: python client.py, calls as JSON lines on stdin.

A call is {"library": file, "function": name, "arguments": [..], "stream": number}; an argument is a number, None, or a
tensor {"at": address, "shape", "strides", "dtype": [code, bits], "device": [type, number]} that is handed over by
DLPack. Each call's answer is a line: "= None", or "= <class of the error>: <its message>".
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import tvm_ffi

ANY, NAME = ctypes.py_object, b"dltensor"
capsule_of = ctypes.pythonapi.PyCapsule_New
capsule_of.restype, capsule_of.argtypes = ANY, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Managed(ctypes.Structure):
    """DLManagedTensor of DLPack."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class Tensor:
    """An array of no framework."""

    def __init__(self, said: dict[str, Any]) -> None:
        numbers = ctypes.c_int64 * len(said["shape"])
        self.shape, self.strides = numbers(*said["shape"]), numbers(*said["strides"])
        address = [ctypes.cast(array, ctypes.c_void_p) for array in (self.shape, self.strides)]
        self.device = said["device"]
        self.managed = Managed(said["at"], *self.device, len(said["shape"]), *said["dtype"], 1, *address, 0)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device[0], self.device[1]

    def __dlpack__(self, **_: Any) -> Any:
        return capsule_of(ctypes.addressof(self.managed), NAME, None)


def main() -> None:
    alive: list[Any] = []  # a tensor that was handed over asks what it was made of for a deleter when it ends
    for line in sys.stdin:
        call = json.loads(line)
        kept = [Tensor(a) if isinstance(a, dict) else a for a in call["arguments"]]
        alive += kept
        given = [tvm_ffi.from_dlpack(a) if isinstance(a, Tensor) else a for a in kept]
        function = getattr(tvm_ffi.load_module(call["library"]), call["function"])
        try:
            with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", call.get("number", 0)), call.get("stream", 0)):
                print(f"= {function(*given)}", flush=True)
        except (TypeError, ValueError, RuntimeError) as error:
            print(f"= {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
    assert "normgen" not in sys.modules


if __name__ == "__main__":
    main()
