"""Cubins on disk, under a key that contains everything that matters to them.

One file per cubin: a line with the format and the sha256 of the rest, a line of JSON, the cubin's bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from normgen.cuda.cubin import Cubin, Resources
from normgen.files.private import (
    cache_root,
    keep,
    make_private,
    private_folder,
    read_trusted,
    to_stderr,
    write_atomically,
)

_FORMAT = "normgen-cubin-1"


class CubinCache:
    """Look-up and storage of cubins; safe to share between processes, because writes are atomic.

    A damaged file is set aside as `*.damaged`, reported, and counts as absent; so does one that other users may have
    written, which the next compilation replaces. A temporary folder takes the place of
    one that other users may write, or that is read-only or full; it is reported once.
    """

    def __init__(self, root: Path | None = None, *, report: Callable[[str], None] = to_stderr) -> None:
        self._place = (root or cache_root()) / "cubin"
        self._report = report

    @property
    def folder(self) -> Path:
        return private_folder(self._place, report=self._report)

    def path(self, key: str) -> Path:
        return _path(self.folder, key)

    def get(self, key: str) -> Cubin | None:
        """The cubin stored under that key, marked `cached`; None if absent or damaged."""
        path = self.path(key)
        try:
            content = read_trusted(path)
        except OSError:
            return None
        try:
            return _decode(content, key)
        except (ValueError, KeyError, TypeError) as error:
            self._set_aside(path, str(error))
            return None

    def put(self, cubin: Cubin) -> None:
        """Store a cubin under its key: a temporary file beside the place, then one rename."""

        def write(folder: Path) -> None:
            path = _path(folder, cubin.key)
            make_private(path.parent)
            write_atomically(path, _encode(cubin))

        keep(self._place, write, report=self._report)

    def _set_aside(self, path: Path, reason: str) -> None:
        aside = path.with_name(path.name + ".damaged")
        try:
            os.replace(path, aside)
        except OSError:
            aside = path
        self._report(f"cached cubin is damaged ({reason}), compiling again; the file is now {aside}")


def _path(folder: Path, key: str) -> Path:
    return folder / key[:2] / f"{key}.cubin"


def _encode(cubin: Cubin) -> bytes:
    facts: dict[str, Any] = {
        "key": cubin.key,
        "arch": cubin.arch,
        "resources": {name: asdict(r) for name, r in cubin.resources.items()},
        "log": cubin.log,
        "seconds": cubin.seconds,
        "nvrtc_version": list(cubin.nvrtc_version),
    }
    body = json.dumps(facts).encode() + b"\n" + cubin.data
    return f"{_FORMAT} {hashlib.sha256(body).hexdigest()}\n".encode() + body


def _decode(content: bytes, key: str) -> Cubin:
    head, _, body = content.partition(b"\n")
    if head != f"{_FORMAT} {hashlib.sha256(body).hexdigest()}".encode():
        raise ValueError("its checksum does not match")
    line, _, data = body.partition(b"\n")
    facts = json.loads(line)
    if facts["key"] != key:
        raise ValueError("it belongs to another key")
    return Cubin(
        data=data,
        arch=facts["arch"],
        resources={name: Resources(**r) for name, r in facts["resources"].items()},
        log=facts["log"],
        seconds=facts["seconds"],
        nvrtc_version=(facts["nvrtc_version"][0], facts["nvrtc_version"][1]),
        key=key,
        cached=True,
    )
