"""TVM-FFI libraries built here: by g++ from machine code, by nvcc from headers, and called by the client's package."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from normgen.cuda import nvrtc

HERE = Path(__file__).parent
CLIENT = importlib.util.find_spec("tvm_ffi")
COMPILER = shutil.which("g++")
NEEDS_CLIENT = pytest.mark.skipif(CLIENT is None or COMPILER is None, reason="apache-tvm-ffi and g++ are not here")
CUDA, CPU = (2, 0), (1, 0)  # DLPack's devices


def place() -> Path:
    """Where apache-tvm-ffi is installed."""
    assert CLIENT is not None
    assert CLIENT.origin is not None
    return Path(CLIENT.origin).parent


def run(*command: str | Path) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def built(source: Path) -> Path:
    """The library of a .cc: C++ alone, against the headers of the client's package; a warning fails."""
    return _compiled(source, "-x", "c++")


def fake_driver(folder: Path) -> Path:
    """The folder of a libcuda.so.1 that says what it is asked."""
    includes = [word for place in nvrtc.header_folders() for word in ("-isystem", place)]
    run("g++", "-std=c++17", "-shared", "-fPIC", *includes, HERE / "fake_cuda.cpp", "-o", folder / "libcuda.so.1")
    return folder


def _compiled(source: Path, *language: str) -> Path:
    library = source.with_suffix(".so")
    includes = ["-isystem", place() / "include"]
    flags = ["-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-shared", "-fPIC"]
    linked = ["-L", place() / "lib", "-ltvm_ffi", "-ldl"]
    run("g++", *flags, *includes, *language, source, "-x", "none", *linked, "-o", library)
    return library


def built_by_nvcc(source: Path, arch: int) -> Path:
    """The library of a .cu beside its header, as its first lines say; PTX alone, which is quicker."""
    library = source.with_suffix(".so")
    flags = ["-std=c++17", "-O0", f"-arch=compute_{arch}", "-shared", "-Xcompiler", "-fPIC", "-I", place() / "include"]
    run("nvcc", *flags, source, "-L", place() / "lib", "-ltvm_ffi", "-o", library)
    return library


def tensor(
    at: int, shape: Sequence[int], dtype: tuple[int, int], *, pitch: int = 0, device: tuple[int, int] = CUDA
) -> dict[str, Any]:
    """A tensor whose last axis is contiguous; its lines lie `pitch` elements apart."""
    strides = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1] if d < len(shape) - 2 else pitch or shape[-1]
    return {"at": at, "shape": list(shape), "strides": strides, "dtype": dtype, "device": device}


def called(calls: Iterable[Mapping[str, Any]], *, driver: Path | None = None, **variables: str) -> list[list[str]]:
    """What each call asked the driver, then its answer, from a process that has never seen normgen."""
    found = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found |= {"PYTHONPATH": os.pathsep.join([str(place().parent)]), **variables}
    if driver:
        found["LD_LIBRARY_PATH"] = str(driver)
    done = subprocess.run(
        [sys.executable, HERE / "client.py"],
        input="".join(json.dumps(call) + "\n" for call in calls),
        capture_output=True,
        text=True,
        env=found,
        cwd=HERE,
    )
    assert done.returncode == 0, done.stderr
    answers: list[list[str]] = [[]]
    for line in done.stdout.splitlines():
        answers[-1].append(line)
        if line.startswith("= "):
            answers.append([])
    return answers[:-1]
