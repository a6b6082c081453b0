"""The processes that a measured run works with, started before anything else: they get ready while this one loads.

A device's worker needs a second or two for its modules and the driver's context, compilers need NVRTC. This file
imports nothing heavy, so that a command can start them first and load the tuner meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from normgen.cuda.cache import CubinCache
from normgen.cuda.driver import find_gpu
from normgen.cuda.nvrtc import leave_interrupts
from normgen.cuda.pool import CompilePool
from normgen.device import Device
from normgen.measure.isolation import process
from normgen.measure.isolation.process import Post


@dataclass(frozen=True, kw_only=True)
class Processes:
    """What a measured run works with: compilers, one thread that emits, and the post of the device's worker."""

    pool: CompilePool
    emitter: ThreadPoolExecutor
    post: Post


@contextlib.contextmanager
def processes(index: int) -> Iterator[Processes]:
    """Start them, all at once and without waiting for any; end them on the way out."""
    with Post(process.BENCH, index) as post:
        post.worker()
        with CompilePool(cache=CubinCache()) as pool:
            pool.warm()
            emitter = ThreadPoolExecutor(1, thread_name_prefix="normgen-emit", initializer=leave_interrupts)
            try:
                yield Processes(pool=pool, emitter=emitter, post=post)
            finally:
                emitter.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True, kw_only=True)
class StartedGpu:
    """A GPU, and the processes that were started for it."""

    device: Device
    processes: Processes


class Start:
    """Looks for the device `device` (as `find_gpu`) in a thread, and starts the processes of one that is there.

    As a context it ends them; it may be entered again by those it is handed to.
    """

    def __init__(self, device: int | str | None) -> None:
        self._started = contextlib.ExitStack()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="normgen-start", initializer=leave_interrupts)
        self._found = self._thread.submit(self._look, device)

    def found(self) -> StartedGpu | None:
        """Wait for it: what was found, None where a kernel is to be predicted. Raises as `find_gpu`."""
        return self._found.result()

    def _look(self, device: int | str | None) -> StartedGpu | None:
        gpu = find_gpu(device)
        if gpu is None:
            return None
        index, facts = gpu
        return StartedGpu(device=facts, processes=self._started.enter_context(processes(index)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True)
        self._started.close()
