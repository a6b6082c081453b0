"""A PostgreSQL server of its own on loopback, run by a user that is not root, gone when the tests end."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


def binaries() -> Path | None:
    """The folder with initdb and postgres: Debian keeps them off PATH."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


def _as_other_user() -> list[str] | None:
    """How to run a program as somebody else than root, which postgres refuses; None when there is no way."""
    if os.getuid() != 0:
        return []
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            setpriv = shutil.which("setpriv")
            return [setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"] if setpriv else None
    return None


def why_not() -> str:
    """Why no server can be started here; empty when one can."""
    if binaries() is None:
        return "PostgreSQL is not installed (Debian: apt-get install postgresql)"
    return "" if _as_other_user() is not None else "postgres refuses root, and setpriv is not installed"


@contextlib.contextmanager
def server() -> Iterator[str]:
    """The URL of a fresh, empty database."""
    place, prefix = binaries(), _as_other_user()
    assert place is not None
    assert prefix is not None
    folder = Path(tempfile.mkdtemp(prefix="normgen-pg-"))
    if prefix:
        owner = prefix[1].partition("=")[2]
        os.chown(folder, int(owner), -1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet = {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "cwd": "/",
        "env": {**os.environ, "LC_ALL": "C"},
    }
    init = [
        *prefix,
        str(place / "initdb"),
        "-D",
        str(folder / "data"),
        "-U",
        "normgen",
        "-A",
        "trust",
        "-N",
        "-E",
        "UTF8",
    ]
    subprocess.run(init, check=True, **quiet)
    options = ["-p", str(port), "-k", str(folder), "-h", "127.0.0.1", "-F"]
    process = subprocess.Popen([*prefix, str(place / "postgres"), "-D", str(folder / "data"), *options], **quiet)
    try:
        ready = [str(place / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
        for _ in range(200):
            if subprocess.run(ready, check=False, **quiet).returncode == 0:
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        yield f"postgresql://normgen@127.0.0.1:{port}/postgres"
    finally:
        process.send_signal(signal.SIGQUIT)  # at once: it would wait for clients otherwise
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)
