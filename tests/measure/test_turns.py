"""Turns at a device need a lock file, and a run goes on without one."""

from __future__ import annotations

from pathlib import Path

from normgen.measure.isolation.turns import turn


def test_a_folder_that_takes_no_lock_costs_a_line_and_no_run(tmp_path: Path) -> None:
    (tmp_path / "turns").write_text("in the way")
    said: list[str] = []
    with turn("gpu-0", tmp_path / "turns", patience_s=lambda: 0.0, warn=said.append):
        said.append("the work")
    warning, work = said
    assert "times may be disturbed" in warning
    assert work == "the work"
