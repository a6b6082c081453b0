"""Folders that this user alone can write, and files that appear in them whole.

Caches hold machine code which this process runs, and verdicts which it believes: whoever can write them runs code as
this user. The rules stand here once, for every cache and for the state folder.
"""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from normgen.errors import UsageError

_HEADER_BYTES = 1 << 16  # about what a header takes
_OTHERS_MAY_WRITE = 0o022
_REPLACED: dict[Path, Path] = {}  # a cache root that cannot be used -> the temporary one of this process
_LOCK = threading.Lock()


def cache_root() -> Path:
    """NORMGEN_CACHE_DIR, else the user's cache folder for normgen."""
    named = os.environ.get("NORMGEN_CACHE_DIR")
    if named:
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("normgen"))


def to_stderr(message: str) -> None:
    """One line for whoever watches the command; results go to stdout."""
    print(message, file=sys.stderr)


def make_private(folder: Path) -> None:
    """Make a folder, and what is missing above it, for this user alone, whatever the umask. Raises OSError."""
    if folder.is_dir():
        return
    make_private(folder.parent)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:  # another process was faster, or something else stands there
        if not folder.is_dir():
            raise


def distrust(path: Path) -> str | None:
    """Why another user may have changed a file or a folder's list of files; None if only this user can.

    Raises OSError.
    """
    facts = path.stat()
    if facts.st_uid != os.geteuid():
        return f"{path} belongs to user {facts.st_uid}"
    return f"other users may write {path}" if facts.st_mode & _OTHERS_MAY_WRITE else None


def read_trusted(path: Path) -> bytes:
    """The bytes of a file of the cache. Raises OSError, also where another user may have written them."""
    why = distrust(path.parent) or distrust(path)
    if why is not None:
        raise PermissionError(errno.EPERM, why, str(path))
    return path.read_bytes()


def why_unusable(folder: Path) -> str | None:
    """Why a folder of the cache, which is made if it is missing, cannot be trusted or used; None if it can.

    The root above counts too: whoever can write the root can put another folder in the place of this one.
    """
    try:
        make_private(folder)
        return distrust(folder.parent) or distrust(folder)
    except OSError as error:
        return f"it cannot be written: {error.strerror or error}"


def private_folder(folder: Path, *, report: Callable[[str], None] = to_stderr) -> Path:
    """The folder of one kind in a cache root, made if it is missing; a temporary one if other users may write it."""
    if folder.parent in _REPLACED:
        return _replacement(folder, "", report)
    why = why_unusable(folder)
    return folder if why is None else _replacement(folder, why, report)


def keep(folder: Path, write: Callable[[Path], None], *, report: Callable[[str], None] = to_stderr) -> None:
    """`write` into a folder of the cache; into a temporary one if the cache is read-only or full.

    Raises UsageError if the temporary folder cannot be written either.
    """
    try:
        write(private_folder(folder, report=report))
    except OSError as error:
        why = error.strerror or str(error)
        try:
            write(_replacement(folder, why, report))
        except OSError as second:
            raise _nowhere(folder.parent, why, second) from None


def _replacement(folder: Path, why: str, report: Callable[[str], None]) -> Path:
    """The folder of that kind in the temporary root that replaces the cache until this process ends; reported once."""
    root = folder.parent
    try:
        with _LOCK:
            if root not in _REPLACED:
                made = Path(tempfile.mkdtemp(prefix="normgen-cache-"))
                _REPLACED[root] = made
                atexit.register(_remove, made, os.getpid())
                report(f"cache folder {root} is not used ({why}); {made} takes its place until this process ends")
        make_private(_REPLACED[root] / folder.name)
    except OSError as error:
        raise _nowhere(root, why, error) from None
    return _REPLACED[root] / folder.name


def _nowhere(root: Path, why: str, error: OSError) -> UsageError:
    return UsageError(
        "the cache folder or a temporary folder must be writable",
        received=f"{root}: {why}; temporary folder: {error}",
        hint="set NORMGEN_CACHE_DIR or TMPDIR",
    )


def _remove(folder: Path, owner: int) -> None:
    """A child process that was forked inherits the clean-up, but not the folder."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file by one rename: a reader sees the old content or the new one, also after a power cut.

    Raises OSError, with the name of the file.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        _replace(path, data)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _replace(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o644)  # compilers and linkers of other users may read; the folder decides who
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that somebody named, and make its folder: whole or not at all. A link stays, what it names changes.

    Raises OSError.
    """
    path, data = path.resolve(), content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():  # a pipe, a terminal, /dev/null: nothing to replace
        path.write_bytes(data)
    else:
        write_atomically(path, data)


def try_writing(folder: Path) -> None:
    """Write where a folder is, or would be made, before long work finds out that it cannot; leave nothing there.

    Raises OSError, with the name of the folder.
    """
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(_HEADER_BYTES))
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(folder)) from error
