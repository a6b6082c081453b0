"""The edge of the command line: whatever goes wrong ends in lines that say so and a documented exit code."""

from __future__ import annotations

import errno
import json
import os
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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("tune", "--shape", "8x96", "--seed", "-1"), "'--seed'"),
        (("verify", "--shape", "8x96", "--seed", "4294967296"), "'--seed'"),
        (("tune", "--shape", "8x96", "--budget", NINES), "a time is at most 720h"),
        (("tune", "--shape", "8x96", "--budget", "1٠s"), "a time is a number"),
        (("tune", "--suite", "decode_h200", "--gpus", NINES), "GPUs are all, or numbers"),
        (("tune", "--suite", "decode_h200", "--device", "cpu", "--jobs", "1000000000"), "'--jobs'"),
        (("tune", "--shape", "8x96", "--device", NINES), "a device is the number of a GPU"),
        (("show", "--shape", NINES), "a shape is whole numbers"),
        (("show", "--shape", f"8x{NINES}"), "a shape is whole numbers"),
        (("show", "--shape", "٨x٩٦"), "a shape is whole numbers"),
        (("show", "--shape", "8x96", "--schedule", f"vector={NINES}"), "knob 'vector' takes one of"),
        (("show", "--shape", "8x96", "--schedule", "vector=04"), "knob 'vector' takes one of"),
        (("show", "--shape", "8x96", "--schedule", "vector=٤"), "knob 'vector' takes one of"),
        (("show", "--shape", "8x96", "--schedule", "vector=²"), "knob 'vector' takes one of"),
        (("show", "--shape", "8x96", "--op", "a\n#include <x>.toml"), "an argument has no control characters"),
        (("show", "--shape", "8x96", "--op", "\x1b]0;evil\x07"), "an argument has no control characters"),
        (("show", "--shape", "8x96", "--op", "\udc80.toml"), "an argument has no control characters"),
        (("show", "--shape", "8x96", "--op", "\u202elmot.a"), "an argument has no control characters"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value)[:40].encode("ascii", "replace").decode(),
)
def test_a_number_or_a_text_beyond_the_limits_is_wrong_usage(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert all(len(line) <= cli.LONGEST_LINE + 4 and (line.isprintable() or "²" in line) for line in err.splitlines())


def test_what_a_file_says_does_not_reach_the_terminal_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = tmp_path / "a.toml"
    spec.write_text('name = "a\\u001b[2J\\u202e"\n')
    code, _, err = run(capsys, "spec", "check", str(spec))
    assert code == 2
    assert "\x1b" not in err
    assert "\\x1b[2J" in err


def test_a_warning_of_pythons_parser_does_not_reach_stderr(tmp_path: Path) -> None:
    spec = tmp_path / "a.toml"
    spec.write_text('name = "a"\ntensors.x = "input"\ntensors.y = "output"\nformulas.y = "1or x"\n')
    done = shell(f"{NORMGEN} spec check {spec}")
    assert done.returncode == 2
    assert "SyntaxWarning" not in done.stderr
    assert "a formula must be readable (invalid decimal literal) (column 1 of the formula)" in done.stderr


def test_a_reader_that_goes_away_ends_the_command_without_a_word() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "normgen", "space", "--shape", "8x1024", "--why"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (cli.UNREAD, "")


def test_a_closed_stderr_neither_changes_the_code_nor_lands_in_a_file(tmp_path: Path) -> None:
    good = shell(f"{NORMGEN} tune --shape 8x96 --device cpu --trials 2 --output {tmp_path} --json 2>&-")
    assert good.returncode == 0
    json.loads(good.stdout)
    assert not any("verified on the CPU" in file.read_text() for file in tmp_path.glob("*.cu"))
    assert shell(f"{NORMGEN} show --op nothing --shape 8x8 2>&-").returncode == 2


def test_a_full_disk_behind_stdout_is_said() -> None:
    done = shell(f"{NORMGEN} list > /dev/full")
    assert done.returncode == 2
    assert (
        done.stderr == "error: the system refused a file, a folder or a process\n  received: No space left on device\n"
        "  hint: name another place, or look at its owner, mode and free space\n"
    )
