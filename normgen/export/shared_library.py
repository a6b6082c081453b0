"""The device library in one file beside the headers that include it, where that is asked for.

A header is self-contained by default; in a folder of many headers their library is most of what a compiler reads twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from normgen.codegen.library import File, in_order
from normgen.codegen.templates import tidy

FILE_NAME = "normgen_device.cuh"


@dataclass(frozen=True)
class SharedLibrary:
    """The files of the device library that some of the headers need."""

    parts: tuple[File, ...]

    @cached_property
    def text(self) -> str:
        return tidy("\n".join(file.text for file in self.parts))

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits of the text: another text is another library, with another namespace."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:8]

    def without(self, needed: Iterable[File]) -> list[File]:
        """What a header that needs these files carries itself."""
        return [file for file in needed if file not in self.parts]


def shared_library(needed: Iterable[File]) -> SharedLibrary:
    """The library that headers which need these files may share."""
    return SharedLibrary(tuple(in_order(needed)))
