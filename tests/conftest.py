"""Tests marked `gpu` are skipped only for the want of a CUDA device; `--require-gpu` turns that into a failure."""

from __future__ import annotations

import functools
import gc
import os
from pathlib import Path

import pytest

from tests import samples
from tests.gpu_turns import GpuTurns
from tests.lost_device import LostDevice

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does; before anything imports numpy


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ instead of comparing with it")
    parser.addoption("--full", action="store_true", help="take the samples of long tests whole")
    parser.addoption("--require-gpu", action="store_true", help="a missing CUDA device is a failure, not a skip")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--full"):
        samples.take_whole()
    config.pluginmanager.register(LostDevice())
    config.pluginmanager.register(GpuTurns())
    from tests.caches import keep_runtime

    keep_runtime(config.add_cleanup)


def pytest_collection_finish() -> None:
    """The modules and the tests stay until the end: no collection need look through them again, a tenth of the time."""
    gc.collect()
    gc.freeze()


@functools.cache
def _why_no_device() -> str:
    """Empty if a CUDA device answers; else the reason. Any other error of the driver layer is not caught."""
    from normgen.cuda.driver import devices
    from normgen.errors import NoDeviceError

    try:
        return "" if devices() else "the driver reports no device"
    except NoDeviceError as error:
        return error.received or error.rule


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    reason = _why_no_device()
    if reason and item.config.getoption("--require-gpu"):
        pytest.fail(f"no CUDA device, and --require-gpu asks for one: {reason}", pytrace=False)
    if reason:
        pytest.skip(f"no CUDA device: {reason}")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test alone."""
    from tests.caches import with_runtime

    folder = with_runtime(tmp_path / "cache")
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(folder))
    return folder
