"""Modules are loaded without the garbage collector, which works again behind them."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from normgen.files.loading import load_module


@pytest.fixture
def enabled() -> None:
    gc.enable()


@pytest.mark.usefixtures("enabled")
def test_a_module_is_loaded_without_collections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "loaded_alone.py").write_text("import gc\ncollects = gc.isenabled()\n")
    assert load_module("loaded_alone").collects is False
    assert gc.isenabled()


@pytest.mark.usefixtures("enabled")
def test_a_module_that_does_not_load_leaves_the_collector_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "loaded_never.py").write_text("raise ImportError\n")
    with pytest.raises(ImportError):
        load_module("loaded_never")
    assert gc.isenabled()
