"""Caches of a test's own, which others' kernels do not answer from."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from normgen.cpu.compiler import find_compiler, runtime_library
from normgen.files.private import make_private

REAL_COMPILER = "NORMGEN_TEST_CXX"
KEPT_COMPILER = Path(__file__).with_name("kept_compiler")


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


def keep_runtime(at_end: Callable[[Callable[[], None]], None]) -> None:
    """From here on, for this process and those that it starts, the CPU executor's runtime is compiled once.

    Where a cache is empty, its build takes what was compiled first: see the script `kept_compiler`. `at_end` is told
    what is to be done when the tests are over.
    """
    compiler = find_compiler()
    if compiler is None or REAL_COMPILER in os.environ:  # set by the process that started this one
        return
    folder = tempfile.TemporaryDirectory(prefix="normgen-tests-")
    at_end(folder.cleanup)
    os.environ |= {REAL_COMPILER: " ".join(compiler.command), "NORMGEN_TEST_KEPT": folder.name}
    os.environ["CXX"] = str(KEPT_COMPILER)
