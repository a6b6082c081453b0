"""Tests marked `gpu` are skipped only for the want of a CUDA device; `--require-gpu` turns that into a failure."""

from __future__ import annotations

import functools
import os

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line does; before anything imports numpy


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/ instead of comparing with it")
    parser.addoption("--require-gpu", action="store_true", help="a missing CUDA device is a failure, not a skip")


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
