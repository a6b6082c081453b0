"""Turns at a device: processes that time on one GPU do so one after the other, or they time each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from normgen.errors import refusal_of

# Of the machine, whatever a process calls its folder for temporary files: a run waits for all that time on the GPU, of
# other state folders and other users too.
TURNS = Path("/tmp/normgen-turns")
_POLL_S = 0.02


@contextlib.contextmanager
def turn(name: str, folder: Path, *, patience_s: Callable[[], float], warn: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of the device called `name`; a process that dies gives it back.

    After `patience_s` without it the work goes on all the same, and `warn` gets a line that says so.
    """
    try:
        lock = _opened(folder / f"{name}.lock")
    except OSError as error:
        warn(f"turns at {name} cannot be taken ({refusal_of(error)}): times may be disturbed")
        yield
        return
    try:
        deadline = time.monotonic() + max(0.0, patience_s())
        while not _taken(lock):
            if time.monotonic() > deadline:
                warn(f"another process keeps {name} busy: times may be disturbed")
                break
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(lock)


def _opened(file: Path) -> int:
    """A file that anybody may lock; in a folder of everybody nothing is followed, waited for or written."""
    with contextlib.suppress(FileExistsError):
        file.parent.mkdir(parents=True)
        file.parent.chmod(0o1777)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(file, flags)
    except FileNotFoundError:  # asked for only then: systems refuse it for a file of another user in such a folder
        return os.open(file, flags | os.O_CREAT, 0o666)


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
