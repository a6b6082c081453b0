"""A worker process starts here: the device's context is opened in one thread while another loads the server.

    python -m normgen.measure.isolation FD PARENT FACTORY INDEX

FD is one end of a socket pair, PARENT the process at the other, FACTORY names the bench (`module:class`), INDEX the
device. What the server does is said there. Opening a context takes the driver half a second and the interpreter next
to nothing, so this file imports only what that needs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence

from normgen.cuda import nvrtc
from normgen.cuda.driver import use_device
from normgen.errors import NormgenError
from normgen.files.loading import load_module

ORPHAN_CHECK_S = 0.5


def end_with(parent: int) -> None:
    """End this process when its parent has ended, even while a kernel hangs: it must not keep the device."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def open_device(index: int) -> None:
    """The context, then NVRTC, by whose version the kernels of a bench are found in the cache.

    A bench that needs what is not there meets the same, and can say so.
    """
    with contextlib.suppress(NormgenError):
        use_device(index)
        nvrtc.version()


def main(arguments: Sequence[str]) -> None:
    """Serve the parent at the other end of the pipe."""
    descriptor, parent, factory, index = arguments
    end_with(int(parent))
    opening = threading.Thread(target=open_device, args=(int(index),), daemon=True)
    opening.start()
    server = load_module("normgen.measure.isolation.server")
    bench = server.bench_of(factory)
    opening.join()
    server.serve(int(descriptor), bench)


if __name__ == "__main__":
    main(sys.argv[1:])
