"""The runtime's C interface (shim/runtime/runtime.h) seen from Python."""

from __future__ import annotations

import ctypes
import functools
import threading
from pathlib import Path

MAX_FAULTS = 64
LAUNCH_LOCK = threading.Lock()  # the runtime has one machine per process


class Region(ctypes.Structure):
    """One tensor: the bytes a kernel may touch."""

    _fields_ = (
        ("base", ctypes.c_uint64),
        ("rows", ctypes.c_int64),
        ("row_bytes", ctypes.c_int64),
        ("pitch_bytes", ctypes.c_int64),
        ("writable", ctypes.c_int64),
        ("stable", ctypes.c_int64),
        ("cell_bytes", ctypes.c_int64),
        ("name", ctypes.c_char_p),
    )


class WaitGroup(ctypes.Structure):
    """Threads of a stuck block that wait at the same place."""

    _fields_ = (("wait", ctypes.c_int), ("threads", ctypes.c_int), ("pc", ctypes.c_uint64))


class FaultRecord(ctypes.Structure):
    """One fault as the runtime reports it; code addresses are offsets into the program's image."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("block", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("group_count", ctypes.c_int),
        ("pc", ctypes.c_uint64),
        ("other_pc", ctypes.c_uint64),
        ("earlier_pc", ctypes.c_uint64),
        ("groups", WaitGroup * 6),
        ("message", ctypes.c_char * 256),
    )


class TracedStep(ctypes.Structure):
    """One step of one thread."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("block", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("other", ctypes.c_int),
    )


class LaunchArguments(ctypes.Structure):
    """One kernel launch."""

    _fields_ = (
        ("entry", ctypes.c_void_p),
        ("shared_begin", ctypes.c_void_p),
        ("shared_end", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("regions", ctypes.POINTER(Region)),
        ("region_count", ctypes.c_int),
        ("grid", ctypes.c_int),
        ("threads", ctypes.c_int),
        ("cluster", ctypes.c_int),
        ("dynamic_bytes", ctypes.c_int),
        ("dependent", ctypes.c_int),
        ("ends", ctypes.c_int),
        ("seed", ctypes.c_uint32),
        ("time_limit_s", ctypes.c_double),
        ("trace", ctypes.POINTER(TracedStep)),
        ("trace_capacity", ctypes.c_int64),
    )


class LaunchReport(ctypes.Structure):
    """What one launch did."""

    _fields_ = (
        ("fault_count", ctypes.c_int),
        ("blocks_run", ctypes.c_int),
        ("switches", ctypes.c_uint64),
        ("accesses", ctypes.c_uint64),
        ("traced", ctypes.c_uint64),
        ("faults", FaultRecord * MAX_FAULTS),
    )


_RUNTIMES: dict[str, ctypes.CDLL] = {}


def load_runtime(path: Path) -> ctypes.CDLL:
    """The runtime library; a program linked against its name finds it already loaded.

    The name up to its first dot says what the library was built from: a second file of that name is the same library,
    and loading it as well would leave programs bound to the first one.
    """
    name = path.name.partition(".")[0]
    if name not in _RUNTIMES:
        runtime = ctypes.CDLL(str(path))
        runtime.normgen_cpu_launch.argtypes = (ctypes.POINTER(LaunchArguments), ctypes.POINTER(LaunchReport))
        runtime.normgen_cpu_launch.restype = ctypes.c_int
        _RUNTIMES[name] = runtime
    return _RUNTIMES[name]


@functools.lru_cache(maxsize=1024)
def load_unit(path: Path) -> ctypes.CDLL:
    """A built unit; its runtime must be loaded."""
    return ctypes.CDLL(str(path))
