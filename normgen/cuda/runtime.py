"""The driver side in one place: devices, memory, streams, events, graphs and launches."""

from __future__ import annotations

from normgen.cuda.captured import capture_on, workspace_of
from normgen.cuda.driver import (
    OnDevice,
    context_of,
    device_count,
    device_facts,
    devices,
    driver_version,
    use_device,
)
from normgen.cuda.launch import Bound, LoadedKernel, LoadedModule, interned
from normgen.cuda.memory import DeviceBuffer, copy, memset
from normgen.cuda.stream import Event, Graph, Stream, stream_handle, wait_for_stream

__all__ = [
    "Bound",
    "DeviceBuffer",
    "Event",
    "Graph",
    "LoadedKernel",
    "LoadedModule",
    "OnDevice",
    "Stream",
    "capture_on",
    "context_of",
    "copy",
    "device_count",
    "device_facts",
    "devices",
    "driver_version",
    "interned",
    "memset",
    "stream_handle",
    "use_device",
    "wait_for_stream",
    "workspace_of",
]
