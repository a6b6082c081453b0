"""Building modules: several in one compiler call, each cached under a key of everything that matters."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from normgen.codegen.module import Module
from normgen.cpu.compiler import (
    SHIM,
    Compiler,
    compile_file,
    report_unfilled,
    require_compiler,
    runtime_library,
    shim_digest,
    unloadable,
)
from normgen.cpu.library import load_unit
from normgen.cpu.objects import find_object, keep_object
from normgen.cpu.program import Program
from normgen.cpu.unit import unit_text
from normgen.errors import CompileError

_FORMAT = "2"
_MODULES_PER_CALL = 32


def build(module: Module, *, compiler: Compiler | None = None) -> Program:
    """The module as a program of this machine. Raises CompileError with the log, NoCompilerError."""
    return build_many([module], compiler=compiler)[0]


def build_many(
    modules: Sequence[Module], *, compiler: Compiler | None = None, workers: int | None = None
) -> list[Program]:
    """As `build` for each module, with few compiler calls; `workers` of them at a time (default: at most 2).

    Raises CompileError for the first module that does not compile.
    """
    chosen = compiler or require_compiler()
    report_unfilled(chosen)
    runtime = runtime_library(chosen)
    keys = [_key(module, chosen) for module in modules]
    missing = {key: module for key, module in zip(keys, modules, strict=True) if find_object(key, load_unit) is None}
    if missing:
        _build_missing(missing, chosen, runtime, workers or min(2, os.cpu_count() or 1))
    programs = []
    for key, module in zip(keys, modules, strict=True):
        place = find_object(key, load_unit)
        if place is None:
            raise unloadable()
        programs.append(Program(module=module, unit=place[0], index=place[1], runtime=runtime))
    return programs


def _build_missing(missing: dict[str, Module], compiler: Compiler, runtime: Path, workers: int) -> None:
    items = list(missing.items())
    size = max(1, min(_MODULES_PER_CALL, -(-len(items) // workers)))
    chunks = [dict(items[start : start + size]) for start in range(0, len(items), size)]
    with ThreadPoolExecutor(max_workers=workers) as pool:
        for done in [pool.submit(_build_unit, chunk, compiler, runtime) for chunk in chunks]:
            done.result()


def _build_unit(chunk: dict[str, Module], compiler: Compiler, runtime: Path) -> None:
    try:
        _compile_unit(chunk, compiler, runtime)
    except CompileError as error:
        if len(chunk) == 1:
            names = ", ".join(kernel.name for module in chunk.values() for kernel in module.kernels)
            raise CompileError(
                f"the host compiler refused the text of {names}", log=error.log, received=error.log[-2000:]
            ) from None
        for key, module in chunk.items():  # which of them is it?
            _build_unit({key: module}, compiler, runtime)


def _compile_unit(chunk: dict[str, Module], compiler: Compiler, runtime: Path) -> None:
    include = ("-I", str(SHIM / "include"))
    with tempfile.TemporaryDirectory(prefix="normgen-") as folder:
        source = Path(folder) / "unit.cpp"
        source.write_text(unit_text(list(chunk.values())), encoding="utf-8")
        flags, libraries = (*compiler.kernel_flags, *include), (str(runtime), "-lm", "-lc")
        built = compile_file(compiler, source, source.with_suffix(".so"), flags, libraries)
    keep_object("unit", built, list(chunk))


def _key(module: Module, compiler: Compiler) -> str:
    digest = hashlib.sha256()
    kernels = [(k.name, k.launch.threads, [param.ctype for param in k.params]) for k in module.kernels]
    for part in (_FORMAT, shim_digest(), str(compiler), *compiler.kernel_flags, repr(kernels), module.text):
        digest.update(part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:40]
