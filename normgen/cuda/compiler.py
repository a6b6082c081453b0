"""Modules to cubins by NVRTC, with registers, spills and shared memory read back from the assembler's report."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from normgen.codegen.module import KernelEntry, Module, target
from normgen.cuda import nvrtc
from normgen.cuda.cache import CubinCache
from normgen.cuda.cubin import Cubin, parse_resources, symbol_of
from normgen.cuda.nvrtc import header_digest, header_folders
from normgen.errors import CompileError

FIRST_ARCH, LAST_ARCH = 75, 120

# Denormals, IEEE division and square root are kept: the error model counts on them (no --use_fast_math).
_FIXED_OPTIONS = (
    "-std=c++17",
    "--fmad=true",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--ptxas-options=-v",
    "--no-cache",  # an answer from the driver's compute cache comes without ptxas' report; we have a cache of our own
)


@dataclass(frozen=True, kw_only=True)
class CompileJob:
    """One compilation as plain text and options: what travels to a worker process."""

    text: bytes
    name: str
    options: tuple[str, ...]
    arch: int
    kernels: tuple[KernelEntry, ...]
    key: str

    @property
    def instances(self) -> tuple[str, ...]:
        """The kernels that are instances of templates."""
        return tuple(kernel.expression for kernel in self.kernels if kernel.config)


def identity_of(module: Module) -> str:
    """16 hex digits over the emitted text and the compile options: what a kept result or record answers for."""
    return _key((module.digest, *_FIXED_OPTIONS))[:16]


def nvrtc_version() -> tuple[int, int]:
    """The release of the loaded NVRTC, for example (13, 0). Raises NoDeviceError if it does not load."""
    return nvrtc.version()


def compile_module(module: Module, arch: int, *, options: Sequence[str] = (), cache: CubinCache | None = None) -> Cubin:
    """Compile a module to a cubin for `sm_{arch}`; with a cache, look there first and keep the result there.

    Raises CompileError (with NVRTC's log) if the text is refused, NoDeviceError if NVRTC does not load.
    """
    job = job_of(module, arch, options=options)
    found = cache.get(job.key) if cache else None
    if found is not None:
        return found
    cubin = finish(job, _compiled(job))
    if cache:
        cache.put(cubin)
    return cubin


def _compiled(job: CompileJob) -> nvrtc.Compiled:
    return nvrtc.compile_text(job.text, name=job.name, options=job.options, instances=job.instances)


def job_of(module: Module, arch: int, *, options: Sequence[str] = ()) -> CompileJob:
    """Everything a compilation depends on, and the key it is cached under. Raises CompileError on a bad arch."""
    _check_arch(module, arch)
    folders = header_folders() if module.headers else ()
    settings = (f"--gpu-architecture={target(arch, module.source)}", *_FIXED_OPTIONS, *options)
    text = module.source.encode()
    names = tuple(kernel.expression for kernel in module.kernels)
    digest = header_digest(module.headers, folders) if module.headers else ""
    return CompileJob(
        text=text,
        name=f"{module.kernels[0].name if module.kernels else 'module'}.cu",
        options=(*settings, *(f"--include-path={folder}" for folder in folders)),
        arch=arch,
        kernels=module.kernels,
        key=_key((text, *settings, *names, f"nvrtc {nvrtc.version()}", f"headers {digest}")),
    )


def finish(job: CompileJob, compiled: nvrtc.Compiled) -> Cubin:
    """The cubin of a compiler answer. Raises CompileError if it refused or a kernel is missing from it."""
    if compiled.error:
        raise refused(job, compiled)
    found = parse_resources(compiled.log)
    symbols = {kernel: symbol_of(kernel, found) for kernel in job.kernels}
    missing = [kernel.expression for kernel, symbol in symbols.items() if not symbol]
    if missing:
        raise CompileError(
            "the compiled module must hold every kernel it names",
            log=compiled.log,
            received=f"no {', '.join(missing)} among: {', '.join(found) or 'none'}",
            hint='kernels are extern "C" __global__, or instances of templates for a config',
        )
    names = {symbol: kernel.name for kernel, symbol in symbols.items()}
    resources = {names.get(entry, entry): figures for entry, figures in found.items()}
    return Cubin(
        data=compiled.cubin,
        arch=job.arch,
        resources=resources,
        log=compiled.log,
        seconds=compiled.seconds,
        nvrtc_version=nvrtc.version(),
        key=job.key,
    )


def refused(job: CompileJob, compiled: nvrtc.Compiled) -> CompileError:
    """The error for text NVRTC does not take: its first complaint, and the whole log."""
    return CompileError(
        f"NVRTC must accept {job.name} for sm_{job.arch}",
        log=compiled.log,
        received=f"{compiled.error}: {compiled.complaint or 'no log'}",
    )


def _key(parts: Iterable[str | bytes]) -> str:
    """sha256 over the parts, each with its length, so that no two lists of parts share a digest."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode()
        digest.update(f"{len(data)}:".encode() + data)
    return digest.hexdigest()


def _check_arch(module: Module, arch: int) -> None:
    if arch < module.min_arch:
        raise CompileError(f"this module builds for sm_{module.min_arch} and later", log="", received=f"sm_{arch}")
    known = nvrtc.supported_archs()
    if not FIRST_ARCH <= arch <= LAST_ARCH or arch not in known:
        listed = ", ".join(f"sm_{n}" for n in known if FIRST_ARCH <= n <= LAST_ARCH)
        raise CompileError("NVRTC must know the arch", log="", received=f"sm_{arch}", hint=f"known: {listed}")
