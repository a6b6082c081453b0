"""Caches of a test's own, which others' kernels do not answer from."""

from __future__ import annotations

import shutil
from pathlib import Path

from normgen.cpu.compiler import find_compiler, runtime_library
from normgen.files.private import make_private


def with_runtime(folder: Path) -> Path:
    """A cache folder that holds one thing that is built, the CPU executor's runtime: it takes 5 s of CPU.

    Empty without a compiler. Taken from the cache that the environment names, where it is built if need be.
    """
    compiler = find_compiler()
    if compiler is not None and not (folder / "cpu").exists():
        runtime = runtime_library(compiler)
        make_private(folder / "cpu")
        for file in (runtime, *runtime.parent.glob(f"{runtime.name.partition('.')[0]}.json")):
            shutil.copy2(file, folder / "cpu")
    return folder
