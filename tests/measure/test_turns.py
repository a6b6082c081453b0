"""Turns at a device need a lock file, and a run goes on without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from normgen.measure.isolation.turns import turn, turns_folder


def test_a_folder_that_takes_no_lock_costs_a_line_and_no_run(tmp_path: Path) -> None:
    (tmp_path / "turns").write_text("in the way")
    said: list[str] = []
    with turn("gpu-0", tmp_path / "turns", patience_s=lambda: 0.0, warn=said.append):
        said.append("the work")
    warning, work = said
    assert "times may be disturbed" in warning
    assert work == "the work"


HELD = """
import sys
from normgen.measure.isolation.turns import turn, turns_folder
with turn("gpu-0", turns_folder(), patience_s=lambda: 0.0, warn=print):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_processes_of_other_state_folders_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = {**os.environ, "TMPDIR": str(tmp_path), "NORMGEN_STATE_DIR": str(tmp_path / "another")}
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", HELD], env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        for name in ("gpu-0", "gpu-1"):
            with turn(name, turns_folder(), patience_s=lambda: 0.0, warn=said.append):
                pass
        assert said == ["another process keeps gpu-0 busy: times may be disturbed"]
        other.stdin.close()
    with turn("gpu-0", turns_folder(), patience_s=lambda: 0.0, warn=said.append):
        assert len(said) == 1
    assert turns_folder().stat().st_mode & 0o7777 == 0o1777


@pytest.mark.parametrize("kind", ["a link", "a pipe"])
def test_what_another_user_puts_in_the_way_is_neither_followed_nor_waited_for(tmp_path: Path, kind: str) -> None:
    aim, lock = tmp_path / "aim", tmp_path / "gpu-0.lock"
    aim.write_text("kept")
    if kind == "a link":
        lock.symlink_to(aim)
    else:
        os.mkfifo(lock)
    said: list[str] = []
    with turn("gpu-0", tmp_path, patience_s=lambda: 0.0, warn=said.append):
        pass
    assert aim.read_text() == "kept"
    assert len(said) == (kind == "a link")
