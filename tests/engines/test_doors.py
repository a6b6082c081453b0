"""No door is open unasked: what importing normgen loads, and what an export says of a client that is not here."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from normgen.engines.source import say_missing

CLIENTS = ("tvm_ffi", "flashinfer", "flashinfer_bench", "kernels", "vllm", "torch", "jax")


def test_the_doors_import_no_client() -> None:
    program = (
        "import sys, normgen, normgen.cli.main, normgen.engines.flashinfer, normgen.engines.hub\n"
        "import normgen.engines.torch_stable\n"
        f"print([m for m in {CLIENTS!r} if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_client_that_is_not_here_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tvm_ffi" else name)
    say_missing("apache-tvm-ffi", "tvm_ffi")
    say_missing("NumPy", "numpy")
    said = "apache-tvm-ffi is not installed here: what uses these files needs it (pip install apache-tvm-ffi)\n"
    assert capsys.readouterr().err == said
