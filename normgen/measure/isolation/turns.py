"""Turns at a device: processes that time on one GPU do so one after the other, or they time each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from normgen.errors import refusal_of

_POLL_S = 0.02


@contextlib.contextmanager
def turn(name: str, folder: Path, *, patience_s: Callable[[], float], warn: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of the device called `name`; a process that dies gives it back.

    After `patience_s` without it the work goes on all the same, and `warn` gets a line that says so.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f"{name}.lock").open("w")
    except OSError as error:
        warn(f"turns at {name} cannot be taken ({refusal_of(error)}): times may be disturbed")
        yield
        return
    with file as lock:
        deadline = time.monotonic() + max(0.0, patience_s())
        while not _taken(lock.fileno()):
            if time.monotonic() > deadline:
                warn(f"another process keeps {name} busy: times may be disturbed")
                break
            time.sleep(_POLL_S)
        yield


def device_name(index: int) -> str:
    """The same name for the same GPU, whatever part of them a process sees."""
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return f"gpu-{visible[index]}" if index < len(visible) else f"gpu-{index}"


def _taken(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
