"""Built objects on disk: a pointer file per key names the object and its sha256.

An object's name holds its sha256, because processes that share the folder build the same text to different bytes:
each pointer names an object that fits it, whoever was last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from normgen.files.private import cache_root, keep, private_folder, read_trusted, write_atomically


def object_folder() -> Path:
    """Where built programs stay: `cpu` in the cache folder."""
    return private_folder(cache_root() / "cpu")


def find_object(key: str, load: Callable[[Path], object]) -> tuple[Path, int] | None:
    """The object kept under a key, and the number of the key's module in it; None if there is none.

    `load` runs code. An object is deleted instead if its bytes are not those that were built, if another user may have
    written them, or if `load` cannot take them.
    """
    folder = object_folder()
    try:
        found = json.loads(read_trusted(folder / f"{key}.json"))
        path, index, sha256 = folder / Path(found["object"]).name, int(found["index"]), found["sha256"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    with suppress(OSError):  # an absent object, one that cannot be read or loaded
        if hashlib.sha256(read_trusted(path)).hexdigest() == sha256:
            load(path)
            return path, index
    with suppress(OSError):  # in a read-only folder it stays, and is refused again
        path.unlink(missing_ok=True)
    return None


def keep_object(stem: str, built: bytes, keys: Sequence[str]) -> None:
    """Keep an object under the keys of its modules, in their order. Raises UsageError if nothing can be written."""
    sha256 = hashlib.sha256(built).hexdigest()
    name = f"{stem}.{sha256[:24]}.so"

    def write(folder: Path) -> None:
        write_atomically(folder / name, built)
        for index, key in enumerate(keys):
            write_atomically(folder / f"{key}.json", json.dumps({"object": name, "sha256": sha256, "index": index}))

    keep(cache_root() / "cpu", write)
