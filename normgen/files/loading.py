"""Modules that a process loads at its start, without the garbage collector.

`python -m normgen.files.loading MODULE` loads a module and calls its `main`.
"""

from __future__ import annotations

import gc
import importlib
import sys
from types import ModuleType


def load_module(name: str) -> ModuleType:
    """The module. What it defines stays, so nothing of it is collected: looking for garbage took a seventh of a start.

    Later collections leave it out, too.
    """
    if name in sys.modules or not gc.isenabled():
        return importlib.import_module(name)
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


if __name__ == "__main__":
    load_module(sys.argv[1]).main()
