"""What tests compile: several modules at a time, and a module's PTX."""

from __future__ import annotations

from collections.abc import Iterable

from normgen.codegen.module import Module
from normgen.cuda import nvrtc
from normgen.cuda.compiler import job_of, refused
from normgen.cuda.cubin import Cubin
from normgen.cuda.pool import CompilePool
from normgen.errors import CompileError

Outcome = Cubin | CompileError


def compile_many(modules: Iterable[Module], arch: int, *, workers: int | None = None) -> list[Outcome]:
    """Compile all modules for `sm_{arch}` in parallel; a Cubin or a CompileError for each, in their order."""
    with CompilePool(workers) as pool:
        futures = [pool.submit(module, arch) for module in modules]
        found: list[Outcome] = []
        for future in futures:
            try:
                found.append(future.result())
            except CompileError as error:
                found.append(error)
        return found


def ptx(module: Module, arch: int) -> str:
    """The module's PTX for `sm_{arch}`. Raises CompileError."""
    job = job_of(module, arch)
    compiled = nvrtc.compile_text(job.text, name=job.name, options=job.options, instances=job.instances)
    if compiled.error:
        raise refused(job, compiled)
    return compiled.ptx.decode()
