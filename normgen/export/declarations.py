"""Two files beside a header, for callers that no CUDA compiler reads.

`NAME_sm90.h` declares the header's functions in plain C++; `NAME_sm90_unit.cu` includes the header and defines them, so
that nvcc compiles one file, whatever number of .cpp files call. They stand in a namespace of their own,
`normgen::linked`: those of the header are inline, and C++ lets no function be inline in one file of a program and not
in another.
"""

from __future__ import annotations

from pathlib import Path

from normgen.codegen.spelling import Spelling
from normgen.codegen.templates import tidy
from normgen.export.groups import HeaderGroup
from normgen.export.header import Halves, binding_guard, environment, guard_of, set_guard, stored_dtypes


def declaration(one: Halves, is_set: bool) -> tuple[str, str]:
    """(File name, text) of the declarations of a header, or of the file that picks among those of a set."""
    return f"{_stem(one.group, is_set)}.h", _text("declarations.h.j2", "DECLARED", one, is_set)


def unit(one: Halves, is_set: bool) -> tuple[str, str]:
    """(File name, text) of the translation unit that defines what is declared."""
    return f"{_stem(one.group, is_set)}_unit.cu", _text("unit.cu.j2", "UNIT", one, is_set)


BINDINGS = {"DECLARED": declaration, "UNIT": unit}


def _stem(group: HeaderGroup, is_set: bool) -> str:
    return Path(group.set_name if is_set else group.file_name).stem


def _text(template: str, kind: str, one: Halves, is_set: bool) -> str:
    group = one.group
    guard = set_guard(group) if is_set else guard_of(group.name, group.arch)
    marked = (
        environment()
        .get_template(template)
        .render(
            spec=group.problem.spec,
            name=group.name,
            stem=_stem(group, is_set),
            header=group.set_name if is_set else group.file_name,
            inner="" if is_set else f"sm{group.arch}",
            guard=binding_guard(guard, kind),
            stored=stored_dtypes(group),
            host=one.host,
        )
    )
    return tidy(Spelling(marked).within(marked))
