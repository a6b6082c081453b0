"""A test whose kernel faults takes no other test with it, and is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Nine tests of a GPU whose context is lost for the process in which the third one runs.
CONFTEST = """
import os, sys
import pytest
sys.path.insert(0, {root!r})
from tests.lost_device import LostDevice

lost = []

def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a CUDA device")
    config.pluginmanager.register(LostDevice(lambda: "CUDA_ERROR_MISALIGNED_ADDRESS" if lost else ""))

@pytest.fixture
def device():
    assert not lost, "CUDA_ERROR_MISALIGNED_ADDRESS"
    return lost
"""
TESTS = """
import pytest

@pytest.mark.gpu
@pytest.mark.parametrize("number", range(9))
def test_kernel(device, number):
    if number == 2:
        device.append("lost")
        {end}
"""


def run(folder: Path, end: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.format(root=str(ROOT)))
    (folder / "test_kernels.py").write_text(TESTS.format(end=end))
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:benchmark\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *options, str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def names(told: str, word: str) -> set[str]:
    return set(re.findall(rf"^{word} \S*(test_kernel\[\d\])", told, re.MULTILINE))


@pytest.mark.parametrize("end", ["assert False", "pass"])
def test_a_kernel_that_faults_fails_its_test_and_no_other_of_the_run(tmp_path: Path, end: str) -> None:
    """Also where the test itself notices nothing: what it queued faults behind its last line."""
    pytest.importorskip("xdist")
    told = run(tmp_path, end, "-n", "1").stdout
    assert names(told, "FAILED") == {"test_kernel[2]"}, told
    assert {f"test_kernel[{number}]" for number in range(9) if number != 2} <= names(told, "PASSED"), told
    assert "crashed while running" in told


def test_alone_the_run_stops_with_the_name_of_the_test_whose_kernel_faulted(tmp_path: Path) -> None:
    answer = run(tmp_path, "assert False")
    assert answer.returncode == 1
    assert names(answer.stdout, "FAILED") == {"test_kernel[2]"}, answer.stdout
    assert "test_kernel[2] left the GPU unusable for its process: CUDA_ERROR_MISALIGNED_ADDRESS" in answer.stdout
    assert names(answer.stdout, "PASSED") == {"test_kernel[0]", "test_kernel[1]"}
