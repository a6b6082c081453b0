"""`normgen tune` itself, killed at any moment and resumed; a suite whose worker is killed; the cache commands."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from normgen.cli import main as cli
from normgen.records.winners import read
from tests.killing.harness import FEW
from tests.samples import sized

KILLS = sized(2, 20)
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.tuning.test_killed_command", "normgen.tuning.predicted", "normgen.tuning.tuner"])
TUNE = ("tune", "--shape", "16x64", "--op", FEW, "--device", "cpu", "--trials", "6", "--json")


def command(folder: Path, out: str, *arguments: str) -> None:
    """The command line in this process, its stdout in `<folder>/<out>`."""
    os.environ["NORMGEN_STATE_DIR"] = str(folder / "state")
    with (folder / out).open("w") as sys.stdout:
        cli.main(arguments)


def start(folder: Path, out: str, *arguments: str) -> BaseProcess:
    process = SERVER.Process(target=command, args=(folder, out, *arguments))
    process.start()
    return process


def test_a_killed_normgen_tune_resumes_to_the_same_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path / "cache"))
    whole_folder = tmp_path / "whole"
    whole_folder.mkdir()
    start(whole_folder, "warm.json", *TUNE).join()  # the compiler's outputs are cached from here on
    began = time.monotonic()
    start(whole_folder, "out.json", *TUNE).join()
    length_s = time.monotonic() - began
    whole = json.loads((whole_folder / "out.json").read_text())
    moments = random.Random(2)
    resumed = 0
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        first = start(folder, "first.json", *TUNE)
        if number % 2:
            first.join(moments.uniform(0, length_s))
        else:  # with work to lose
            while first.is_alive() and not any(file.stat().st_size for file in folder.rglob("candidates.jsonl")):
                first.join(0.002)
        if first.is_alive():
            assert first.pid is not None
            os.kill(first.pid, signal.SIGKILL)
        first.join()
        second = start(folder, "out.json", *TUNE, "--resume")
        second.join()
        assert second.exitcode == 0
        result = json.loads((folder / "out.json").read_text())
        resumed += any(note.startswith("resumed") for note in result["notes"])
        assert result["best"]["schedule"] == whole["best"]["schedule"]
        kept = read(Path(result["paths"]["candidates"]))
        assert not kept.damaged
        assert len(kept.records) == len({r.schedule for r in kept.records})
        assert len(kept.records) == sum(n for name, n in whole["counts"].items() if name != "same_code")
    assert resumed >= max(1, KILLS // 4)


def test_cache_commands_count_list_and_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(tmp_path))
    (tmp_path / "cubin" / "ab").mkdir(parents=True)
    (tmp_path / "cubin" / "ab" / "abc.cubin").write_bytes(b"12345")
    (tmp_path / "cubin" / "ab" / "abd.cubin.damaged").write_bytes(b"1")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "unit.so").write_bytes(b"123")
    (tmp_path / "other").write_text("not ours")

    def run(*arguments: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["cache", *arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code, capsys.readouterr().out

    assert run("path") == (0, f"{tmp_path}\n")
    kinds = json.loads(run("info", "--json")[1])["kinds"]
    assert kinds["cubin"] == {"files": 2, "bytes": 6, "damaged": 1}
    assert kinds["cpu"] == {"files": 1, "bytes": 3, "damaged": 0}
    assert kinds["results"]["files"] == 0
    assert run("ls") == (0, "no results are kept\n")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run("clear")[0] == 130  # nobody answered
    assert json.loads(run("clear", "cpu", "--yes", "--json")[1]) == {"removed": 1, "bytes": 3}
    assert (tmp_path / "cubin" / "ab" / "abc.cubin").exists()
    assert json.loads(run("clear", "--yes", "--json")[1]) == {"removed": 2, "bytes": 6}
    assert (tmp_path / "other").exists()
    code, text = run("why", "--shape", "8x64", "--device", "cpu")
    assert code == 0
    assert "nothing was measured" in text
