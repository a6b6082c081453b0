"""Programs of the tests in processes of their own: one that hangs is ended, and says where each thread stood."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 240.0  # JAX's start and XLA's compilation take 10 to 20 s on a GPU, and other processes may share it
LATE_S = 20.0  # for the watch itself, should even that not end it


def run(program: str, *words: str, limit_s: float = LIMIT_S, **environment: str) -> str:
    """What the program prints. AssertionError, with all that it said, if it fails or does not end in time.

    The watch is a thread without Python: it ends a program that waits for the interpreter's lock, too.
    """
    watched = f"import faulthandler; faulthandler.dump_traceback_later({limit_s}, exit=True)\n{program}"
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", watched, *words],
            env={**os.environ, "PYTHONPATH": paths, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s + LATE_S,  # also where a process that it started keeps the pipes
        )
    except subprocess.TimeoutExpired as late:
        said = "\n".join(
            part if isinstance(part, str) else (part or b"").decode() for part in (late.stdout, late.stderr)
        )
        raise AssertionError(f"no end after {late.timeout:g} s; it said:\n{said}") from None
    assert done.returncode == 0, f"exit code {done.returncode}; it said:\n{done.stdout}\n{done.stderr}"
    return done.stdout
