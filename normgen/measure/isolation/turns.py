"""Turns at a device: processes that time on one GPU do so one after the other, or they time each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from normgen.errors import refusal_of

# Of the machine, whatever a process calls its folder for temporary files: a run waits for all that time on the GPU, of
# other state folders and other users too.
TURNS = Path("/tmp/normgen-turns")
_POLL_S = 0.02
_NOTHING_FOLLOWED = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # nor waited for: others may put things there, too


@contextlib.contextmanager
def turn(name: str, folder: Path, *, patience_s: Callable[[], float], warn: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of the device called `name`; a process that dies gives it back.

    After `patience_s` without it the work goes on all the same, and `warn` gets a line that says so.
    """
    lock = None
    try:
        deadline = time.monotonic() + max(0.0, patience_s())
        while (lock := _taken(name, folder)) is None:
            if time.monotonic() > deadline:
                warn(f"another process keeps {name} busy: times may be disturbed")
                break
            time.sleep(_POLL_S)
    except OSError as error:
        warn(f"turns at {name} cannot be taken ({refusal_of(error)}): times may be disturbed")
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def device_name(index: int) -> str:
    """The same name for the same GPU, whatever part of them a process sees."""
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return f"gpu-{visible[index]}" if index < len(visible) else f"gpu-{index}"


def _taken(name: str, folder: Path) -> int | None:
    """The locked file of that name, None where another process has it. Raises OSError."""
    file = f"{name.replace('/', '-')}.lock"
    place = _folder(folder)
    try:
        lock = _file(file, place)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # One that somebody deleted meanwhile is no lock any more: the next process makes another one.
            if os.path.samestat(os.fstat(lock), os.stat(file, dir_fd=place, follow_symlinks=False)):
                return lock
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        return None
    finally:
        os.close(place)


def _folder(path: Path) -> int:
    with contextlib.suppress(FileExistsError):
        path.mkdir(parents=True)
    folder = os.open(path, os.O_DIRECTORY | _NOTHING_FOLLOWED)
    _let_all(folder, 0o1777)
    return folder


def _file(name: str, folder: int) -> int:
    """To write, which locks of a network's files ask for; nothing is written."""
    try:
        file = os.open(name, os.O_RDWR | _NOTHING_FOLLOWED, dir_fd=folder)
    except FileNotFoundError:  # made only then: systems refuse that for a file of another user in such a folder
        file = os.open(name, os.O_RDWR | os.O_CREAT | _NOTHING_FOLLOWED, 0o666, dir_fd=folder)
    except PermissionError:
        return os.open(name, os.O_RDONLY | _NOTHING_FOLLOWED, dir_fd=folder)
    _let_all(file, 0o666)
    return file


def _let_all(file: int, mode: int) -> None:
    """Everybody takes turns, whatever this process or one that was killed here masks.

    Not of a file that somebody has linked here: it has another name.
    """
    facts = os.fstat(file)
    is_made_here = stat.S_ISDIR(facts.st_mode) or (stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1)
    if is_made_here and facts.st_uid == os.geteuid() and stat.S_IMODE(facts.st_mode) != mode:
        os.fchmod(file, mode)
