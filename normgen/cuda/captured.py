"""Workspaces of captured launches: each belongs to the graph that was captured, and is lent out again when it is gone.

A graph may be replayed long after the handle whose call it captured, and beside eager calls of the same handle. So a
captured call gets a workspace that no eager call uses, and the graph keeps it: a CUDA user object that the graph and
all its copies retain tells when the last of them has been destroyed. Its destructor runs on a thread of the driver,
where neither the driver nor Python may be called; it is libc's sem_post, and the next request looks at the semaphore.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from normgen.cuda.driver import OnDevice, RelaxedCapture, check, driver
from normgen.cuda.memory import DeviceBuffer
from normgen.cuda.stream import Stream

_SEMAPHORE_BYTES = 64  # more than a sem_t of any libc takes (glibc: 32)


@dataclass(frozen=True, kw_only=True)
class Capture:
    """A capture that is under way on a stream; `id` is unique in the process."""

    id: int
    graph: Any


@dataclass(kw_only=True)
class _Lent:
    """One workspace, and the semaphore that its graph's end posts."""

    buffer: DeviceBuffer
    semaphore: Any = field(default_factory=lambda: ctypes.create_string_buffer(_SEMAPHORE_BYTES))

    def is_back(self) -> bool:
        return int(_libc().sem_trywait(self.semaphore)) == 0


_lent: list[_Lent] = []
_free: list[_Lent] = []
_lock = threading.Lock()


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def capture_on(queue: int) -> Capture | None:
    """The capture under way on a stream, None if there is none; the legacy default stream cannot be captured."""
    if not queue:
        return None
    bindings = driver()
    status = check(bindings.cuStreamIsCapturing(queue), "tell whether a stream is captured")
    if status == bindings.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
        return None
    _, capture, graph, *_ = check(bindings.cuStreamGetCaptureInfo(queue), "tell about a capture")
    return Capture(id=int(capture), graph=graph)


def workspace_of(capture: Capture, size: int, *, device: int) -> DeviceBuffer:
    """A workspace of at least `size` bytes, zeroed, which stays allocated as long as the captured graph exists."""
    with _lock, OnDevice(device), RelaxedCapture():
        _collect()
        fitting = [lent for lent in _free if lent.buffer.device == device and lent.buffer.size >= size]
        lent = min(fitting, key=lambda lent: lent.buffer.size, default=None)
        if lent is None:
            lent = _Lent(buffer=DeviceBuffer(size, device=device))
        else:
            _free.remove(lent)
        with Stream(device) as aside:  # outside of the capture: the graph must not zero it at each replay
            lent.buffer.fill(0, stream=aside)
            aside.synchronize()
        _give(lent, capture)
        return lent.buffer


def _collect() -> None:
    """Take back what graphs that no longer exist had."""
    for lent in [lent for lent in _lent if lent.is_back()]:
        _lent.remove(lent)
        _free.append(lent)


def _give(lent: _Lent, capture: Capture) -> None:
    bindings = driver()
    _libc().sem_init(lent.semaphore, 0, 0)
    post = ctypes.cast(_libc().sem_post, ctypes.c_void_p).value
    flags = bindings.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
    made = bindings.cuUserObjectCreate(ctypes.addressof(lent.semaphore), bindings.CUhostFn(post), 1, int(flags))
    owner = check(made, "create a user object")
    _lent.append(lent)
    move = int(bindings.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE)
    check(bindings.cuGraphRetainUserObject(capture.graph, owner, 1, move), "let a graph keep a workspace")
