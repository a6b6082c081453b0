"""The thin layer over NVRTC: text in, cubin, PTX and the compiler's log out.

Compiling workers import only this file, so that one starts in about 0.2 s.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from normgen.errors import NoDeviceError


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What NVRTC answered; `cubin` and `ptx` are empty and `error` names the failure when it refused."""

    cubin: bytes
    ptx: bytes
    log: str
    seconds: float
    error: str = ""


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


def compile_text(text: bytes, *, name: str, options: Sequence[str]) -> Compiled:
    """Compile one translation unit with exactly these options; a refusal is an answer, not an exception."""
    nvrtc = _nvrtc()
    started = time.perf_counter()
    program = _checked(nvrtc.nvrtcCreateProgram(text, name.encode(), 0, [], []))
    try:
        encoded = [option.encode() for option in options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0 \n")
        failed = int(status) != 0
        return Compiled(
            cubin=b"" if failed else _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program),
            ptx=b"" if failed else _read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).rstrip(b"\0"),
            log=log.decode(errors="replace"),
            seconds=time.perf_counter() - started,
            error=str(status.name) if failed else "",
        )
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _read(size_of: Any, read: Any, program: Any) -> bytes:
    buffer = bytearray(_checked(size_of(program)))
    # The binding writes into a `bytes` or any writable buffer; a bytearray is meant to be written to.
    _checked(read(program, buffer))
    return bytes(buffer)
