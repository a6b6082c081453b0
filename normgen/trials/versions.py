"""The versions that a result names."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Any

from normgen.cuda.compiler import nvrtc_version
from normgen.cuda.driver import driver_version
from normgen.files.shipped import VERSION
from normgen.measure.timing import PROTOCOL


def versions(**more: object) -> dict[str, str]:
    """normgen, Python, and what the caller knows of compiler and driver."""
    known = {
        "normgen": VERSION,
        "python": ".".join(map(str, sys.version_info[:3])),
    }
    return known | {name: str(value) for name, value in more.items() if value is not None}


def environment(*, measured: bool) -> dict[str, str]:
    """The versions a record names: ours, the compiler's, and with a GPU the driver's and the protocol's."""
    found: dict[str, Any] = {
        "nvrtc": ".".join(map(str, nvrtc_version())),
        "cuda_bindings": metadata.version("cuda-bindings"),
    }
    if measured:
        found["protocol"] = PROTOCOL
        found["driver_cuda"] = ".".join(map(str, driver_version()))
    return versions(**found)
