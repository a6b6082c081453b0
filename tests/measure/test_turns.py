"""Turns at a device need a lock file, and a run goes on without one."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from normgen.measure.isolation.turns import TURNS, turn


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
from normgen.measure.isolation.turns import TURNS, turn
with turn(sys.argv[1], TURNS, patience_s=lambda: 0.0, warn=print):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_processes_of_other_state_and_temporary_folders_take_turns(tmp_path: Path) -> None:
    name = f"gpu-{uuid.uuid4().hex}"
    own = {**os.environ, "TMPDIR": str(tmp_path), "NORMGEN_STATE_DIR": str(tmp_path / "another")}
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", HELD, name], env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with turn(name, TURNS, patience_s=lambda: 0.0, warn=said.append):
            pass
        assert said == [f"another process keeps {name} busy: times may be disturbed"]
        other.stdin.close()
    with turn(name, TURNS, patience_s=lambda: 0.0, warn=said.append):
        assert len(said) == 1
    (TURNS / f"{name}.lock").unlink()


def test_the_folder_of_turns_is_everybodys(tmp_path: Path) -> None:
    with turn("gpu-0", tmp_path / "turns", patience_s=lambda: 0.0, warn=print):
        assert (tmp_path / "turns").stat().st_mode & 0o7777 == 0o1777


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
