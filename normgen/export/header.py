"""A group of records -> the text of its header."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import cache

import jinja2

from normgen.codegen.spelling import Spelling
from normgen.codegen.templates import tidy
from normgen.dtypes import DTYPES
from normgen.export.banner import WIDTH, banner
from normgen.export.comments import comment_text
from normgen.export.device_part import device_part
from normgen.export.groups import Group
from normgen.export.host_part import HostPart, host_part
from normgen.files.shipped import VERSION
from normgen.schedule.default import fallback_schedule


@cache
def _environment() -> jinja2.Environment:
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


def header_text(group: Group) -> tuple[str, tuple[str, ...]]:
    """Banner, device part, host part: the same bytes for the same spec, records and generator; and its kernels."""
    tuned = [(e.problem, e.record.schedule) for e in group.entries]
    general = [(p, fallback_schedule(p)) for p in group.fallbacks()]
    device = device_part([*tuned, *general])
    dtypes = sorted({t.dtype.name for t in group.problem.tensors})
    text = (
        _environment()
        .get_template("header.cu.j2")
        .render(
            banner=banner(group, general[0][1]),
            guard=f"NORMGEN_{group.name}_SM{group.arch}_CU_".upper(),
            file_name=group.file_name,
            version=VERSION,
            arch=group.arch,
            min_arch=device.min_arch,
            name=group.name,
            device_headers=device.headers,
            type_headers=[DTYPES[name].header for name in dtypes if DTYPES[name].header],
            device=device.text,
            host=_spelled(group, host_part(group, device.kernels[: len(tuned)], device.kernels[len(tuned) :])),
        )
    )
    scope = f"normgen::sm{group.arch}::{group.name}_detail::"
    kernels = dict.fromkeys(
        f"{scope}{k.name}<{scope}{k.config}>" for compiled in device.kernels for k in compiled.parts.kernels
    )
    return tidy(text), tuple(kernels)


def _spelled(group: Group, host: HostPart) -> HostPart:
    """The host part with the spec's names spelled so that its launch functions compile."""
    calls = _environment().get_template("calls.cu.j2").render(name=group.name, host=host)
    return Spelling(calls).within(host)
