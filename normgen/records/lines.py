"""Files of lines that several processes append to and that outlive any of them.

A line is appended whole: a process that dies leaves at most the file's last line torn, and the next one to write closes
that off, so that it costs only itself. A line that cannot be read is left out by every reader, which says so once a
process (`told`); who writes the file anew moves it to `<name>.damaged`. A file is replaced by one rename.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from normgen.files.decoded import unpacked
from normgen.files.private import to_stderr, write_atomically

T = TypeVar("T")
_TOLD: set[str] = set()  # what this process has said about damaged lines


@dataclass(frozen=True, kw_only=True)
class Damaged:
    """A line that cannot be read: where it stands and what is wrong with it; line 0: the whole file."""

    path: Path
    line: int
    why: str
    text: bytes

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: set aside: {self.why}" if self.line else f"{self.path} {self.why}"


@dataclass(frozen=True, kw_only=True)
class Lines(Generic[T]):
    """What the lines of a file hold, and those that hold nothing."""

    found: tuple[T, ...]
    damaged: tuple[Damaged, ...]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[int]:
    """The file under that name, made if it is not there, locked for appending.

    One that was replaced while this process waited for the lock is opened again. Raises OSError.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(fd).st_ino:
                    yield fd
                    return
        finally:
            os.close(fd)


def append(path: Path, line: str, *, durable: bool = True, first: str = "") -> None:
    """Add a line, which ends with its line end. Raises OSError.

    durable   it is on disk when this returns
    first     the line that an empty file begins with
    """
    data = line.encode()
    with locked(path) as fd:
        size = os.fstat(fd).st_size
        if not size:
            data = first.encode() + data
        if size and os.pread(fd, 1, size - 1) != b"\n":
            data = b"\n" + data
        while data:
            data = data[os.write(fd, data) :]
        if durable:
            os.fsync(fd)


def parsed(data: bytes, parse: Callable[[str], T], *, path: Path) -> Lines[T]:
    """Every line of a file's bytes by `parse`, which raises ValueError for what is none of its lines."""
    found: list[T] = []
    damaged: list[Damaged] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append(parse(line.decode()))
        except ValueError as error:  # UnicodeDecodeError is one
            damaged.append(Damaged(path=path, line=number, why=str(error), text=line))
    return Lines(found=tuple(found), damaged=tuple(damaged))


def read(path: Path, parse: Callable[[str], T]) -> Lines[T]:
    """As `parsed`, of a plain or an xz file; a missing file is empty, one that cannot be read is one damaged line."""
    try:
        data = unpacked(path.read_bytes())
    except FileNotFoundError:
        return Lines(found=(), damaged=())
    except (OSError, ValueError) as error:
        why = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        return Lines(found=(), damaged=(Damaged(path=path, line=0, why=why, text=b""),))
    return parsed(data, parse, path=path)


def told(damaged: Sequence[Damaged], *, report: Callable[[str], None] = to_stderr) -> None:
    """Say of a file's damaged lines, in one line and once a process, how many there are and what is wrong with one."""
    if not damaged:
        return
    message = str(damaged[0]) + (f"; {len(damaged)} lines in all" if len(damaged) > 1 else "")
    if message not in _TOLD:
        _TOLD.add(message)
        report(message)


def aside_of(path: Path) -> Path:
    return path.with_name(path.name + ".damaged")


def keep_aside(path: Path, damaged: Sequence[Damaged]) -> None:
    """Add lines of a file to those set aside, each once; under the file's lock. Raises OSError."""
    if damaged:
        with aside_of(path).open("a+b") as file:
            file.seek(0)
            known = {*file.read().split(b"\n")}
            file.writelines(d.text + b"\n" for d in damaged if d.text not in known)


def set_damaged_aside(path: Path, parse: Callable[[str], object]) -> tuple[Damaged, ...]:
    """Move the lines that `parse` refuses to `<name>.damaged`; the rest stays as it is. Raises OSError."""
    with locked(path) as fd:
        data = os.pread(fd, os.fstat(fd).st_size, 0)
        damaged = parsed(data, parse, path=path).damaged
        if damaged:
            keep_aside(path, damaged)
            wrong = {d.line for d in damaged}
            lines = enumerate(data.split(b"\n"), start=1)
            write_atomically(path, b"".join(ln + b"\n" for n, ln in lines if n not in wrong and ln.strip()))
    return damaged
