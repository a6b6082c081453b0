"""The edge of the command line: whatever goes wrong ends in lines that say so and a documented exit code."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from normgen.cli import main as cli
from normgen.errors import TRACEBACK

NORMGEN = f"{sys.executable} -m normgen"
NINES = "9" * 5000


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_STATE_DIR", str(tmp_path / "state"))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command."""
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    output = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, output.out, output.err


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("error", "code", "first_line"),
    [
        (RecursionError("maximum depth"), 2, "error: what was asked nests too deep"),
        (MemoryError("72 GiB"), 2, "error: what was asked does not fit the memory"),
        (OSError(errno.ENOSPC, "No space left", "a.cu"), 2, "error: the system refused a file, a folder or a process"),
        (PermissionError(errno.EACCES, "Permission denied", "/p"), 2, "error: the system refused a file"),
        (ValueError("zoo"), 1, "error: this is a fault of normgen, not of the command"),
        (OverflowError("timestamp"), 1, "error: this is a fault of normgen, not of the command"),
        (KeyError("x"), 1, "error: this is a fault of normgen, not of the command"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
    ],
)
def test_no_exception_of_a_command_becomes_a_traceback(
    error: Exception, code: int, first_line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("normgen.cli.show.list_specs", fail)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1, raising=False)
    found, out, err = run(capsys, "list")
    assert (found, out) == (code, "")
    assert err.startswith(first_line)
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 3


def test_the_traceback_of_a_fault_is_there_for_who_asks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("zoo")

    monkeypatch.setattr("normgen.cli.show.list_specs", fail)
    assert f"set {TRACEBACK}=1" in run(capsys, "list")[2]
    monkeypatch.setenv(TRACEBACK, "1")
    assert "Traceback" in run(capsys, "list")[2]


def test_what_a_file_says_does_not_reach_the_terminal_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "a.toml"
    spec.write_text('name = "a\\u001b[2J\\u202e"\n')
    code, _, err = run(capsys, "spec", "check", str(spec))
    assert code == 2
    assert "\x1b" not in err
    assert "\\x1b[2J" in err
