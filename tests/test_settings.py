"""The settings of this suite, in pyproject.toml: what they refuse, and where they let it start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# A plugin of pytest-benchmark's name that does what it does beside pytest-xdist: it warns before anything is collected.
WARNS = """
import warnings

def pytest_configure(config):
    warnings.warn("benchmarks are disabled because xdist is active")
"""
OF_FILES = """
import pytest
from pathlib import Path

@pytest.mark.parametrize("file", list(Path(__file__).parent.glob("{pattern}")))
def test_something(file):
    assert file.exists()
"""


def run(folder: Path, pattern: str) -> subprocess.CompletedProcess[str]:
    """The suite's settings over one test of the files in `folder`, beside whatever plugin lies there."""
    (folder / "test_files.py").write_text(OF_FILES.format(pattern=pattern))
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    paths = os.pathsep.join([str(folder), *(path for path in sys.path if path)])
    return subprocess.run(
        [*command, "--rootdir", str(folder), str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_test_over_files_that_are_not_there_is_an_error(tmp_path: Path) -> None:
    answer = run(tmp_path, "*.moved")
    assert answer.returncode == 2, answer.stdout
    assert "Empty parameter set in 'test_something'" in answer.stdout
    assert run(tmp_path, "*.py").returncode == 0


def test_the_suite_starts_beside_a_plugin_that_warns_at_its_start(tmp_path: Path) -> None:
    """pytest-benchmark does, with -n: the suite ended with exit code 3 where it was installed."""
    (tmp_path / "warns.py").write_text(WARNS)
    information = tmp_path / "warns-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: warns\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[pytest11]\nbenchmark = warns\n")
    answer = run(tmp_path, "*.py")
    assert answer.returncode == 0, answer.stdout + answer.stderr
