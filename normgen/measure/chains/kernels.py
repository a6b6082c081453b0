"""The kernels around the one that is timed: a producer, a consumer, and a reader that empties the L2.

They have one launch shape, plain cache hints and no early launch, the same for every contender; those named `early`
are what the context `chain` has in their place.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from normgen.codegen.module import KernelEntry, Launch, Module, Param, Source

THREADS = 256
VECTORS_PER_THREAD = 4
VECTOR_BYTES = 16
MOST_REGIONS = 4  # of memory that one consumer reads
EARLY_ARCH = 90  # the first with programmatic dependent launch

_COPY = (
    Param(name="target", ctype="uint4*", source=Source.TENSOR, key="target"),
    Param(name="source", ctype="const uint4*", source=Source.TENSOR, key="source"),
    Param(name="vectors", ctype="int", source=Source.ROWS),
)
REGIONS = "abcd"
_READ = (
    Param(name="sink", ctype="uint4*", source=Source.TENSOR, key="sink"),
    *(Param(name=name, ctype="const uint4*", source=Source.TENSOR, key=name) for name in REGIONS),
    # A region's vectors are its pitch: the argument of a module that is a long long and named after a tensor.
    *(Param(name=f"{name}_vectors", ctype="long long", source=Source.PITCH, key=name) for name in REGIONS),
    Param(name="vectors", ctype="int", source=Source.ROWS),
)
NAMES = ("produce", "produce_early", "consume", "consume_early", "read_elements")


def text_of(package: str, file: str, **macros: str | int) -> str:
    """The text of a package's file with the values of its macros in their place: what the preprocessor would make."""
    text = _text_of(package, file)
    return re.sub(rf"\b(?:{'|'.join(macros)})\b", lambda name: str(macros[name[0]]), text) if macros else text


@cache
def _text_of(package: str, file: str) -> str:
    return (resources.files(package) / file).read_text(encoding="utf-8")


def module_of(name: str) -> Module:
    """The module that launches one of `NAMES`; rows = 16-byte vectors. Producers and the reader take the tensors target
    and source, consumers sink and the regions a to d, with their vectors as pitches."""
    launch = Launch(
        threads=THREADS, rows_per_block=THREADS * VECTORS_PER_THREAD, dependent=name.endswith("early"), min_blocks=1
    )
    params = _READ if name.startswith("consume") else _COPY
    return Module(
        instructions="",
        text=text_of("normgen.measure.chains", "around.cu"),
        kernels=(KernelEntry(name=name, params=params, launch=launch),),
    )
