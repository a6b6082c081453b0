"""Whether two modules are the same program: their machine code for one arch, without names and notes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

from normgen.codegen.module import Module
from normgen.cuda.compiler import compile_module

ARCH = 90
# Instructions, constants, initial values, sizes of shared memory, and what a launch has to know about a kernel.
COMPARED = (".text.", ".nv.constant", ".nv.global", ".nv.shared.", ".nv.info.")
_NO_BITS = 8  # a section that has a size and no bytes in the file


def code_digest(module: Module) -> str:
    """A digest of the machine code. Raises CompileError if NVRTC refuses the text."""
    digest = hashlib.sha256()
    for name, size, content in sections(compile_module(module, ARCH).data):
        if name.startswith(COMPARED):
            digest.update(f"{name} {size} ".encode() + content)
    return digest.hexdigest()


def sections(elf: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Name, size and content of every section of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", elf, table + number * entry) for number in range(count)]
    names = heads[names_at][4]
    for name, kind, _, _, offset, size in heads:
        start = names + name
        content = b"" if kind == _NO_BITS else elf[offset : offset + size]
        yield elf[start : elf.index(b"\0", start)].decode(), size, content
