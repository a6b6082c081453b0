"""Which generator made a record, and which code measured it: hashes of their sources."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

import normgen

_SOURCES = ("program", "codegen")  # what decides the text a schedule turns into
# What decides whether a kernel counts as right, and its time: the checks, the data, the graphs, the protocol.
_MEASURING = (
    "verify",
    *(f"cuda/{name}.py" for name in ("compiler", "launch", "memory", "stream")),
    *(f"tuning/{name}.py" for name in ("gpu_bench", "gpu_check", "gpu_data", "plan", "roof")),
    *(f"tuning/{name}.py" for name in ("measure", "statistics", "clocks")),
)


@functools.cache
def generator_revision() -> str:
    """Twelve hex digits over the sources of the lowering and the emitter, templates included."""
    return digest_of(_SOURCES)


@functools.cache
def measuring_revision() -> str:
    """Twelve hex digits over the sources that check and time a kernel."""
    return digest_of(_MEASURING)


def digest_of(names: Iterable[str], root: Path | None = None) -> str:
    """Twelve hex digits over files, and the files of folders, of the package (or of `root`).

    Raises FileNotFoundError when there is nothing under a name: a file that was moved would be left out unnoticed.
    """
    root = root or Path(normgen.__file__).parent
    digest = hashlib.sha256()
    for name in names:
        path = root / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in found:
            if file.is_dir() or "__pycache__" in file.parts:
                continue
            digest.update(file.relative_to(root).as_posix().encode() + b"\0")
            digest.update(file.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()[:12]
