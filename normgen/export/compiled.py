"""A header is kept only if its device part compiles for the arch it was tuned for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from normgen.codegen.module import target
from normgen.cuda import nvrtc
from normgen.errors import CompileError, NoDeviceError
from normgen.files.private import to_stderr


def check_compiles(
    text: str,
    *,
    name: str,
    arch: int,
    instances: Sequence[str] = (),
    includes: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """As `compiled_for`; a machine that cannot compile it, for want of NVRTC, says so in one line on stderr.

    Raises CompileError with the compiler's log.
    """
    try:
        compiled_for(arch, text, name=name, instances=instances, includes=includes)
    except NoDeviceError as error:
        to_stderr(f"{name}: not compiled ({error.rule}: {error.received})")


def compiled_for(
    arch: int,
    text: str,
    *,
    name: str,
    instances: Sequence[str] = (),
    includes: Mapping[str, str] = MappingProxyType({}),
) -> nvrtc.Compiled:
    """Compile a header as NVRTC sees it: everything above its host part, and those instances of its kernels.

    includes  the texts of the files beside it that it includes

    Errors: CompileError with NVRTC's log; NoDeviceError where NVRTC is missing, or does not know the arch.
    """
    if arch not in nvrtc.supported_archs():
        raise NoDeviceError("NVRTC must know the arch", received=f"sm_{arch}")
    whole = text + "".join(includes.values())
    options = [f"--gpu-architecture={target(arch, whole)}", "-std=c++17"]
    texts = {file: included.encode() for file, included in includes.items()}
    compiled = nvrtc.compile_text(text.encode(), name=name, options=options, instances=instances, includes=texts)
    if compiled.error:
        received = compiled.complaint or compiled.error
        raise CompileError(f"a header that is kept must compile for sm_{arch}", log=compiled.log, received=received)
    return compiled
