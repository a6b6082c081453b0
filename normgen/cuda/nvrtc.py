"""The thin layer over NVRTC: text in, cubin, PTX and the compiler's log out; and where CUDA's headers lie.

Compiling workers import only this file, so that one starts in about 0.2 s.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from normgen.errors import NoDeviceError

_RUNTIME_HEADER = "cuda_runtime_api.h"
_CCCL_HEADER = "nv/target"
_VERSION = re.compile(r"#define\s+CUDART_VERSION\s+(\d+)")


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What NVRTC answered; `cubin` and `ptx` are empty and `error` names the failure when it refused.

    symbols  of the instances that were asked for, in their order: their names in the machine code
    """

    cubin: bytes
    ptx: bytes
    log: str
    seconds: float
    error: str = ""
    symbols: tuple[str, ...] = ()

    @property
    def complaint(self) -> str:
        """The first line of the log that says what is wrong; empty if none does."""
        return next((line.strip() for line in self.log.splitlines() if "error" in line or "fatal" in line), "")


@functools.cache
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise NoDeviceError(
            "the NVRTC library must load", received=str(error), hint="pip install nvidia-cuda-nvrtc"
        ) from error
    return nvrtc


def _checked(answer: tuple[Any, ...]) -> Any:
    status, *values = answer
    if int(status) != 0:
        raise NoDeviceError("an NVRTC call must succeed", received=str(status.name))
    return values[0] if len(values) == 1 else tuple(values)


@functools.cache
def version() -> tuple[int, int]:
    """The loaded NVRTC's release, for example (13, 0)."""
    status, major, minor = _nvrtc().nvrtcVersion()
    _checked((status,))
    return int(major), int(minor)


@functools.cache
def supported_archs() -> tuple[int, ...]:
    """Every sm_NN the loaded NVRTC compiles for, ascending."""
    return tuple(sorted(_checked(_nvrtc().nvrtcGetSupportedArchs())))


def library_path() -> str:
    """The file NVRTC was loaded from ("" when the loader does not tell)."""
    _nvrtc()
    from cuda import pathfinder

    return str(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path or "")


def compile_text(
    text: bytes,
    *,
    name: str,
    options: Sequence[str],
    instances: Sequence[str] = (),
    includes: Mapping[str, bytes] = MappingProxyType({}),
) -> Compiled:
    """Compile one translation unit with exactly these options; a refusal is an answer, not an exception.

    instances  the instances of kernel templates that it shall hold, as C++ names them
    includes   the texts of files that it includes by these names, and that lie nowhere yet
    """
    nvrtc = _nvrtc()
    started = time.perf_counter()
    files = [file.encode() for file in includes]
    program = _checked(nvrtc.nvrtcCreateProgram(text, name.encode(), len(files), list(includes.values()), files))
    try:
        for instance in instances:
            _checked(nvrtc.nvrtcAddNameExpression(program, instance.encode()))
        encoded = [option.encode() for option in options]
        with _interrupts_later():
            (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0 \n")
        failed = int(status) != 0
        return Compiled(
            cubin=b"" if failed else _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program),
            ptx=b"" if failed else _read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).rstrip(b"\0"),
            log=log.decode(errors="replace"),
            seconds=time.perf_counter() - started,
            error=str(status.name) if failed else "",
            symbols=() if failed else tuple(_symbol(nvrtc, program, instance) for instance in instances),
        )
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def leave_interrupts() -> set[Any]:
    """From here on Ctrl-C is for other threads than this one; returns the signals that were left before.

    While NVRTC compiles, a handler of its own ends the process with status 4, whichever thread gets Ctrl-C. The main
    thread holds it back meanwhile; every other one leaves it from its start.
    """
    return signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    before = leave_interrupts()
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _read(size_of: Any, read: Any, program: Any) -> bytes:
    buffer = bytearray(_checked(size_of(program)))
    # The binding writes into a `bytes` or any writable buffer; a bytearray is meant to be written to.
    _checked(read(program, buffer))
    return bytes(buffer)


def _symbol(nvrtc: Any, program: Any, instance: str) -> str:
    return str(_checked(nvrtc.nvrtcGetLoweredName(program, instance.encode())).decode())


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
