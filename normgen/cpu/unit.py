"""The C++ text of one compiler call: the shim, then each module in a namespace of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence

from normgen.codegen.module import KernelEntry, Module

TEMPLATE = "template <class Config>"  # the line above each kernel (codegen/templates/kernel.cu.j2)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]+<([^>]+)>", re.MULTILINE)


def text_name(index: int) -> str:
    """The file name under which the compiler knows the text of module `index` of a unit."""
    return f"normgen_module_{index}.cu"


def unit_text(modules: Sequence[Module]) -> str:
    """One translation unit with all modules; `#line` keeps the numbering of every Module.text."""
    headers = sorted({header for module in modules for header in _INCLUDE.findall(module.text)})
    parts = ['#include "normgen_cpu.h"\n', *(f"#include <{header}>\n" for header in headers)]
    for index, module in enumerate(modules):
        parts.append(_module_text(index, module))
    return "".join(parts)


def _module_text(index: int, module: Module) -> str:
    section = f"normgen_shared_{index}"
    names = [kernel.name for kernel in module.kernels]
    macros = _DEFINE.findall(module.text)
    lines = [
        "#undef __shared__",
        f'#define __shared__ NORMGEN_SHARED("{section}")',
        *(f"#define {name} normgen_{index}_{name}" for name in names),
        f"namespace normgen_module_{index} {{",
        f'#line 1 "{text_name(index)}"',
        instantiated(module),
        f'#line 1 "normgen_entries_{index}"',
        *(_entry_text(index, number, kernel, module.text) for number, kernel in enumerate(module.kernels)),
        f'extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __start_{section}[];',
        f'extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __stop_{section}[];',
        f'extern "C" __attribute__((visibility("default"))) unsigned char* normgen_shared_of_{index}(int end) {{',
        f"  return end ? __stop_{section} : __start_{section};",
        "}",
        f"}}  // namespace normgen_module_{index}",
        *(f"#undef {name}" for name in (*names, *macros)),
        "",
    ]
    return "\n".join(lines)


def instantiated(module: Module) -> str:
    """The text, line by line, in which a kernel template is the function for its config.

    g++ ignores the section of a variable within a template (its bug 41091), and shared memory is such a section.
    """
    config = next((kernel.config for kernel in module.kernels if kernel.config), "")
    text = module.text.replace(TEMPLATE, f"using Config = {config};", 1) if config else module.text
    return text.replace(TEMPLATE, "") if config else text


def _entry_text(index: int, number: int, kernel: KernelEntry, text: str) -> str:
    arguments = ", ".join(
        f"*reinterpret_cast<{param.ctype}*>(arguments[{position}])" for position, param in enumerate(kernel.params)
    )
    return (
        f"{_launch_limit(text, kernel)}"
        f'extern "C" __attribute__((visibility("default"), no_sanitize("thread", "undefined")))\n'
        f"void normgen_entry_{index}_{number}(void** arguments) {{ {kernel.name}({arguments}); }}"
    )


def _launch_limit(text: str, kernel: KernelEntry) -> str:
    """A GPU refuses to launch more threads than the kernel's `__launch_bounds__` says."""
    found = re.search(rf"__launch_bounds__\(([^(),]+)[^()]*\)\s+(?:\w+\s+)*{kernel.name}\(", text)
    if found is None:
        return ""
    rule = f"{kernel.name} is launched with {kernel.launch.threads} threads, more than its __launch_bounds__ allow"
    return f'static_assert({kernel.launch.threads} <= ({found[1]}), "{rule}");\n'
