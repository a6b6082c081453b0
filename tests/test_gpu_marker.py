"""The `gpu` marker skips for one reason only, and `--require-gpu` does not skip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from normgen.cuda.driver import devices
from normgen.errors import NoDeviceError

ROOT = Path(__file__).parents[1]
MARKED = "tests/cuda/test_runtime.py::test_device_facts_are_those_of_a_gpu_kernels_are_made_for"


def _run(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", MARKED, *options]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def _needs_no_gpu() -> None:
    try:
        found = devices()
    except NoDeviceError:
        return
    pytest.skip(f"this machine has {len(found)} CUDA device(s): nothing is skipped here")


def test_without_a_device_a_marked_test_is_skipped_with_the_reason() -> None:
    _needs_no_gpu()
    answer = _run()
    assert answer.returncode == 0
    assert "1 skipped" in answer.stdout
    assert "no CUDA device: " in answer.stdout


def test_require_gpu_turns_the_skip_into_a_failure() -> None:
    _needs_no_gpu()
    answer = _run("--require-gpu")
    assert answer.returncode == 1
    assert "no CUDA device, and --require-gpu asks for one" in answer.stdout
