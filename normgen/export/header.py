"""A group of records -> the text of its header, and the file of a library that headers share."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import jinja2

from normgen.codegen.spelling import Spelling
from normgen.codegen.templates import tidy
from normgen.dtypes import DType
from normgen.export.banner import WIDTH, banner
from normgen.export.comments import comment_text
from normgen.export.device_part import DevicePart, device_part
from normgen.export.groups import HeaderGroup
from normgen.export.host_part import HostPart, host_part
from normgen.export.shared_library import FILE_NAME, SharedLibrary
from normgen.files.shipped import VERSION
from normgen.schedule.fallback import fallback_schedules
from normgen.schedule.schedule import Schedule


@cache
def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("normgen.export", "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # CUDA text, not HTML
    )
    made.filters.update(packed=packed, wrapped=wrapped, comment=comment_text)
    return made


def packed(items: Sequence[str], separator: str, indent: int) -> str:
    """The items joined; a new line, indented, before an item that would cross the right margin."""
    lines: list[str] = [""]
    for index, item in enumerate(items):
        text = item + (separator if index + 1 < len(items) else "")
        if lines[-1] and indent + len(lines[-1]) + len(text.rstrip()) > WIDTH:
            lines.append("")
        lines[-1] += text
    return ("\n" + " " * indent).join(line.rstrip() for line in lines)


def wrapped(paragraphs: Sequence[str]) -> list[str]:
    """The lines of the paragraphs, up to the right margin of a comment."""
    return [line for text in paragraphs for line in textwrap.wrap(text, WIDTH)]


@dataclass(frozen=True, kw_only=True)
class Halves:
    """A header before it is printed; in `host` the names of the spec are marked."""

    group: HeaderGroup
    general: tuple[Schedule, ...]
    device: DevicePart
    host: HostPart

    @property
    def instances(self) -> tuple[str, ...]:
        """Its kernels as C++ names them."""
        scope = f"normgen::sm{self.group.arch}::{self.group.name}_detail::"
        kernels = [kernel for compiled in self.device.kernels for kernel in compiled.parts.kernels]
        return tuple(dict.fromkeys(f"{scope}{kernel.name}<{scope}{kernel.config}>" for kernel in kernels))

    @property
    def elsewhere(self) -> str:
        """In a set: the condition of a pass of nvcc for GPUs that take another header of it."""
        arch, archs = self.group.arch, self.group.archs
        newer = next((f" || __CUDA_ARCH__ >= {other}0" for other in archs if other > arch), "")
        return f"(__CUDA_ARCH__ < {arch}0{newer})" if archs else ""


def halves(group: HeaderGroup) -> Halves:
    """What a header holds, worked out."""
    tuned = [(e.problem, e.record.schedule) for e in group.entries]
    schedules = fallback_schedules(group.problem)
    device = device_part([*tuned, *((p, s) for p in group.general for s in schedules)])
    host = host_part(group, device.kernels[: len(tuned)], device.kernels[len(tuned) :], ways=len(schedules))
    return Halves(group=group, general=schedules, device=device, host=host)


def header_text(header: Halves, shared: SharedLibrary | None = None) -> str:
    """Banner, device part, host part: the same bytes for the same spec, records and generator."""
    group, device = header.group, header.device
    library = shared.without(device.library) if shared else device.library
    names: dict[str, str | int] = {"name": group.name, "arch": group.arch}
    text = (
        environment()
        .get_template("header.cu.j2")
        .render(
            banner=banner(group, header.general),
            guard=guard_of(group.name, group.arch),
            file_name=group.file_name,
            set_name=group.set_name,
            version=VERSION,
            min_arch=device.min_arch,
            option=device.option(group.arch),
            is_of_one_arch=device.is_of_one_arch,
            older=f"sm{80 if device.min_arch > 80 else 75}",
            stored=stored_dtypes(group),
            shared=shared,
            shared_name=FILE_NAME,
            elsewhere=header.elsewhere,
            set_guard=set_guard(group),
            is_tuned=bool(group.entries),
            chains=device.chains,
            signatures=device.signatures if header.elsewhere else {},
            signature_library=device.signature_library,
            library=library,
            device=device.text,
            host=_spelled(names, header.host),
            **names,
        )
    )
    return tidy(text)


def guard_of(name: str, arch: int) -> str:
    """The include guard of a header."""
    return f"NORMGEN_{name}_SM{arch}_CU_".upper()


def set_guard(group: HeaderGroup) -> str:
    """The include guard of the file that picks among headers."""
    return f"NORMGEN_{group.name}_CU_".upper()


def binding_guard(guard: str, kind: str = "FFI") -> str:
    """The include guard of what binds a header to its callers, from the header's."""
    return f"{guard.removesuffix('_CU_')}_{kind}_CU_"


def library_text(shared: SharedLibrary) -> str:
    """The file that headers which share their library include."""
    found = environment().get_template("device.cuh.j2")
    return tidy(found.render(file_name=FILE_NAME, version=VERSION, shared=shared))


def stored_dtypes(group: HeaderGroup) -> list[DType]:
    """The stored number formats that C++ has no type of its own for."""
    found = {t.dtype.name: t.dtype for t in group.problem.tensors if t.dtype.header}
    return [found[name] for name in sorted(found)]


def kernel_dtypes(group: HeaderGroup) -> list[DType]:
    """The stored number formats whose type in the device library has another name than in C++, or none there."""
    found = {t.dtype.name: t.dtype for t in group.problem.tensors if t.dtype.ctype != t.dtype.cuda_ctype}
    return [found[name] for name in sorted(found)]


def host_text(header: Halves) -> str:
    """The host part of a header alone."""
    names: dict[str, str | int] = {"name": header.group.name, "arch": header.group.arch}
    found = environment().get_template("host.cu.j2")
    return found.render(host=_spelled(names, header.host), **names)


def _spelled(names: Mapping[str, str | int], host: HostPart) -> HostPart:
    """The host part with the spec's names spelled so that it compiles."""
    text = environment().get_template("host.cu.j2").render(host=host, **names)
    return Spelling(text).within(host)
