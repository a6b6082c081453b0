"""Streams, timing events and captured graphs: what the measurement protocol is built on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from normgen.cuda.driver import OnDevice, RelaxedCapture, check, driver
from normgen.errors import UsageError


class Owned:
    """A driver object that is destroyed once: by `close`, at the end of a `with`, or with its last reference."""

    _destroy = ""  # the driver call
    handle: int = 0
    device: int = 0

    def close(self) -> None:
        handle, self.handle = self.handle, 0
        if handle:
            # Garbage is collected amid captures, too.
            with OnDevice(self.device), RelaxedCapture():
                check(getattr(driver(), self._destroy)(handle), f"accept {self._destroy}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # At interpreter exit or after a faulting kernel the driver refuses; there is nobody to tell.
        try:
            self.close()
        except Exception:
            self.handle = 0


class Event(Owned):
    """A point in a stream; with `timing`, two of them give a time."""

    _destroy = "cuEventDestroy"

    def __init__(self, device: int = 0, *, timing: bool = True) -> None:
        bindings = driver()
        kinds = bindings.CUevent_flags
        flags = kinds.CU_EVENT_DEFAULT if timing else kinds.CU_EVENT_DISABLE_TIMING
        self.device = device
        with OnDevice(device):
            self.handle = int(check(bindings.cuEventCreate(int(flags)), "create an event"))

    def record(self, stream: Stream | int) -> None:
        with OnDevice(self.device):
            check(driver().cuEventRecord(self.handle, int(stream)), "record an event")

    def synchronize(self) -> None:
        """Wait until everything before the event is done; a kernel's fault is raised here."""
        with OnDevice(self.device):
            check(driver().cuEventSynchronize(self.handle), "finish the work before an event")

    def since_us(self, start: Event) -> float:
        """Microseconds from `start` to this event; both must have been reached."""
        milliseconds = check(driver().cuEventElapsedTime(start.handle, self.handle), "tell the time between two events")
        return float(milliseconds) * 1e3


class Stream(Owned):
    """A queue of work that does not wait for the default stream."""

    _destroy = "cuStreamDestroy"

    def __init__(self, device: int = 0) -> None:
        bindings = driver()
        flags = bindings.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.device = device
        with OnDevice(device):
            self.handle = int(check(bindings.cuStreamCreate(int(flags)), "create a stream"))

    def __int__(self) -> int:
        return self.handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def synchronize(self) -> None:
        """Wait for everything queued; a kernel's fault is raised here."""
        with OnDevice(self.device):
            check(driver().cuStreamSynchronize(self.handle), "finish the work of a stream")

    def wait(self, event: Event) -> None:
        """Let what is queued from now on start after the event."""
        with OnDevice(self.device):
            check(driver().cuStreamWaitEvent(self.handle, event.handle, 0), "make a stream wait for an event")

    def wait_for(self, other: Stream | int) -> None:
        """Let what is queued from now on start after all that `other` holds now."""
        wait_for_stream(self.handle, int(other), device=self.device)


def wait_for_stream(waiting: int, other: int, *, device: int) -> None:
    """Let what is queued on `waiting` from now on start after all that `other` holds now."""
    with Event(device, timing=False) as event, OnDevice(device):
        event.record(other)
        check(driver().cuStreamWaitEvent(waiting, event.handle, 0), "make a stream wait for another")


def stream_handle(stream: Any) -> int:
    """The driver's handle of a stream: ours, an int, torch's, cupy's, or `__cuda_stream__`; None: the default one.

    Raises UsageError for anything else.
    """
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    for name in ("cuda_stream", "ptr"):  # torch.cuda.Stream, cupy.cuda.Stream
        value = getattr(stream, name, None)
        if isinstance(value, int):
            return value
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int(protocol()[1])
    raise UsageError(
        "a stream is an int handle, a torch or cupy stream, or offers __cuda_stream__",
        received=type(stream).__name__,
    )


class Graph(Owned):
    """A captured sequence of launches, copies and fills, replayed with one call.

    graph = Graph.capture(stream, lambda: [bound.launch(stream) for bound in sets])
    us = graph.replay_us(stream, start, stop) / graph.nodes
    """

    _destroy = "cuGraphExecDestroy"

    def __init__(self, handle: int, nodes: int, device: int) -> None:
        self.handle, self.nodes, self.device = handle, nodes, device
        self.owner: object = None

    def close(self) -> None:
        super().close()
        self.owner = None

    @classmethod
    def capture(cls, stream: Stream, work: Callable[[], object]) -> Graph:
        """Record what `work` queues on `stream` (and nothing else) without running it; then instantiate it.

        An exception in `work` ends the capture and passes through.
        """
        bindings = driver()
        # Relaxed: the garbage collector may free some other memory meanwhile, which the other modes take for an error.
        mode = bindings.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        check(bindings.cuStreamBeginCapture(stream.handle, mode), "begin a capture")
        try:
            work()
        except BaseException:
            _status, partial = bindings.cuStreamEndCapture(stream.handle)
            if int(partial or 0):
                bindings.cuGraphDestroy(partial)
            raise
        graph = check(bindings.cuStreamEndCapture(stream.handle), "end a capture")
        try:
            return cls.of(int(graph), device=stream.device)
        finally:
            check(bindings.cuGraphDestroy(graph), "destroy a captured graph")

    @classmethod
    def of(cls, captured: int, *, device: int = 0, owner: object = None) -> Graph:
        """Instantiate a captured graph (a CUgraph handle), whoever captured it.

        owner  what must live as long as this graph's replays: the memory its nodes use
        """
        bindings = driver()
        handle = bindings.CUgraph(captured)
        with OnDevice(device):
            nodes = check(bindings.cuGraphGetNodes(handle, 0), "count a graph's nodes")[-1]
            executable = check(bindings.cuGraphInstantiate(handle, 0), "instantiate a graph")
        graph = cls(int(executable), int(nodes), device)
        graph.owner = owner
        return graph

    def upload(self, stream: Stream) -> None:
        """Put the graph on the device, so that the first replay is no slower than the next."""
        with OnDevice(self.device):
            check(driver().cuGraphUpload(self.handle, stream.handle), "upload a graph")

    def launch(self, stream: Stream) -> None:
        with OnDevice(self.device):
            check(driver().cuGraphLaunch(self.handle, stream.handle), "launch a graph")

    def replay_us(self, stream: Stream, start: Event, stop: Event) -> float:
        """Microseconds of one replay, between two events around it; waits for it."""
        start.record(stream)
        self.launch(stream)
        stop.record(stream)
        stop.synchronize()
        return stop.since_us(start)
