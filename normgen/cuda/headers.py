"""Where the CUDA headers lie: needed only by modules that include some (cooperative_groups)."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
from collections.abc import Iterator
from pathlib import Path

from normgen.errors import NoDeviceError

_RUNTIME_HEADER = "cuda_runtime_api.h"
_CCCL_HEADER = "nv/target"
_VERSION = re.compile(r"#define\s+CUDART_VERSION\s+(\d+)")


@functools.cache
def header_folders() -> tuple[str, ...]:
    """Include folders of the CUDA runtime and CCCL headers: of the wheels, else of CUDA_HOME.

    Raises NoDeviceError if no folder holds them.
    """
    folders = [folder for folder in dict.fromkeys(_candidates()) if folder.is_dir()]
    runtime = next((folder for folder in folders if (folder / _RUNTIME_HEADER).is_file()), None)
    # cooperative_groups.h includes CCCL's nv/target, which may come in another package than the runtime's headers.
    places = [place for folder in folders for place in (folder / "cccl", folder)]
    cccl = next((place for place in places if (place / _CCCL_HEADER).is_file()), None)
    if runtime is not None:
        return (str(runtime), str(cccl)) if cccl is not None and cccl != runtime else (str(runtime),)
    raise NoDeviceError(
        "a module that includes CUDA headers needs them installed",
        received=f"no {_RUNTIME_HEADER} in any known place",
        hint="pip install nvidia-cuda-runtime nvidia-cuda-cccl, or set CUDA_HOME",
    )


def header_version(folder: str) -> str:
    """The CUDA release of the headers in that folder, for example "13.0"; "unknown" without a version line."""
    match = _VERSION.search((Path(folder) / _RUNTIME_HEADER).read_text(errors="replace"))
    return f"{int(match[1]) // 1000}.{int(match[1]) % 1000 // 10}" if match else "unknown"


@functools.cache
def header_digest(headers: tuple[str, ...], folders: tuple[str, ...]) -> str:
    """sha256 of what stands in the named headers and of the runtime's version header, first folder that has each."""
    digest = hashlib.sha256()
    places = [Path(folder) for folder in folders]
    for name in (*sorted(headers), _RUNTIME_HEADER):
        path = next((place / name for place in places if (place / name).is_file()), None)
        digest.update(f"{name}:".encode() + (path.read_bytes() if path else b"absent"))
    return digest.hexdigest()


def _candidates() -> Iterator[Path]:
    try:
        from cuda import pathfinder

        found = pathfinder.find_nvidia_header_directory("cudart")
    except (ImportError, AttributeError, RuntimeError, OSError):
        found = None
    if found:
        yield Path(found)
    package = importlib.util.find_spec("nvidia")
    places = package.submodule_search_locations if package else None
    yield from (Path(place) / "cu13" / "include" for place in places or ())
    yield from (Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name))
    yield Path("/usr/local/cuda/include")
