"""Each reproduction has a state folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.python.conftest import place

__all__ = ["place"]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"
