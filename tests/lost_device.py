"""A kernel that faults takes the GPU from its process: every later call of the driver there gives the same error.

So the process ends behind the test that did it, with the test's name. Under pytest-xdist that test counts as failed and
another process takes the tests that are left; alone, the run stops.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator

import pytest


def lost() -> str:
    """What the driver says of this process's contexts, if they are of no use any more."""
    driver = sys.modules.get("normgen.cuda.driver")
    if driver is None or not driver.context_of.cache_info().currsize:
        return ""  # nothing here has used a GPU
    from normgen.errors import DriverError

    try:
        driver.synchronize(0)
    except DriverError as error:
        return str(error)
    return ""


class LostDevice:
    """Looks behind every test that is marked `gpu`; `lost` says what is wrong, "" if nothing is."""

    def __init__(self, lost: Callable[[], str] = lost) -> None:
        self._lost = lost

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        done = yield
        said = self._lost() if item.get_closest_marker("gpu") else ""
        if not said:
            return done
        said = f"{item.nodeid} left the GPU unusable for its process: {said}"
        if hasattr(item.config, "workerinput"):  # its reports are sent; pytest-xdist adds one of a crash in this test
            print(said, file=sys.stderr, flush=True)
            os._exit(1)
        pytest.exit(said, returncode=1)
