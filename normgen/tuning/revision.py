"""Which generator, compiler and driver a record was made with."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import normgen

_SOURCES = ("program", "codegen")  # what decides the text a schedule turns into


@functools.cache
def generator_revision() -> str:
    """Twelve hex digits over the sources of the lowering and the emitter, templates included."""
    root = Path(normgen.__file__).parent
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.relative_to(root).as_posix().encode() + b"\0")
                digest.update(path.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()[:12]
