"""Turns at a device need a lock file, and a run goes on without one."""

from __future__ import annotations

import errno
import fcntl
import functools
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


@pytest.mark.parametrize("name", ["gpu-0", "gpu-MIG-GPU-8/1/0"])
def test_folder_and_file_are_everybodys_whatever_a_process_masks(tmp_path: Path, name: str) -> None:
    turns = tmp_path / "turns"
    turns.mkdir(mode=0o755)  # as a process leaves it that is killed before it has opened the folder to all
    masked = os.umask(0o077)
    try:
        with turn(name, turns, patience_s=lambda: 0.0, warn=pytest.fail):
            (file,) = turns.rglob("*")
            assert turns.stat().st_mode & 0o7777 == 0o1777
            assert file.stat().st_mode & 0o7777 == 0o666
    finally:
        os.umask(masked)


def test_a_file_that_is_deleted_is_no_lock_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening it and locking it, too."""
    lock, flock, said, deleted = tmp_path / "gpu-0.lock", fcntl.flock, list[str](), []

    def late(fd: int, how: int) -> None:
        flock(fd, how)
        if not deleted:
            deleted.append(lock.unlink())

    monkeypatch.setattr(fcntl, "flock", late)
    asked = functools.partial(turn, "gpu-0", tmp_path, warn=said.append)
    with asked(patience_s=lambda: 5.0), asked(patience_s=lambda: 0.0):
        pass
    assert deleted == [None]
    assert said == ["another process keeps gpu-0 busy: times may be disturbed"]


@pytest.mark.parametrize("code", [errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_folder_that_has_no_locks_costs_a_line_and_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def none(*_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", none)
    said: list[str] = []
    before = len(os.listdir("/proc/self/fd"))
    with turn("gpu-0", tmp_path, patience_s=lambda: 0.0, warn=said.append):
        said.append("the work")
    assert len(os.listdir("/proc/self/fd")) == before
    assert "cannot be taken" in said[0]
    assert said[1:] == ["the work"]


def test_a_file_that_is_linked_into_the_folder_stays_its_owners(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    (tmp_path / "turns").mkdir()
    os.link(secret, tmp_path / "turns" / "gpu-0.lock")
    with turn("gpu-0", tmp_path / "turns", patience_s=lambda: 0.0, warn=pytest.fail):
        assert secret.stat().st_mode & 0o777 == 0o600


def test_the_works_own_error_passes(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="own"), turn("gpu-0", tmp_path, patience_s=lambda: 0.0, warn=print):
        raise FileNotFoundError("own")
    with turn("gpu-0", tmp_path, patience_s=lambda: 0.0, warn=pytest.fail):
        pass


def test_a_link_as_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "aim").mkdir()
    (tmp_path / "turns").symlink_to(tmp_path / "aim")
    said: list[str] = []
    with turn("gpu-0", tmp_path / "turns", patience_s=lambda: 0.0, warn=said.append):
        pass
    assert len(said) == 1
    assert not [*(tmp_path / "aim").iterdir()]


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
