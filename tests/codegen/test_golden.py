"""The emitted text of named kernels, compared byte by byte with tests/golden/*.cu."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.codegen.kernels import KERNELS

GOLDEN = Path(__file__).parent.parent / "golden"
ROOT = GOLDEN.parent.parent


@pytest.mark.parametrize("name", KERNELS)
def test_the_text_is_the_golden_one(name: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / f"{name}.cu"
    text = KERNELS[name].module().source
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    golden = path.read_text(encoding="utf-8") if path.exists() else ""
    if text != golden:
        lines = difflib.unified_diff(
            golden.splitlines(), text.splitlines(), str(path.name), "emitted", lineterm="", n=1
        )
        pytest.fail(
            "\n".join(
                [
                    "the emitted text differs from the golden one; if that is wanted:",
                    "    python -m pytest tests/codegen/test_golden.py --update-golden",
                    *list(lines)[:60],
                ]
            ),
            pytrace=False,
        )


def test_every_golden_file_belongs_to_a_kernel() -> None:
    assert sorted(p.stem for p in GOLDEN.glob("*.cu")) == sorted(KERNELS)


DIGEST = """
import hashlib
from tests.codegen.kernels import KERNELS
for name, kernel in KERNELS.items():
    print(name, hashlib.sha256(kernel.module().source.encode()).hexdigest())
"""


def test_the_text_is_the_same_in_every_process() -> None:
    """Twice in one process, and under two seeds of Python's hashes."""
    found = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", DIGEST],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(done.stdout)
    assert len(found) == 1
    for kernel in KERNELS.values():
        assert kernel.module() == kernel.module()
