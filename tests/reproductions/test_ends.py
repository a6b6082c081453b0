"""Ends among the low ones: of a budget, by Ctrl-C, by a kill of the parent, of who reads the output."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from normgen.cli.main import INTERRUPTED, UNREAD
from normgen.tuning import predicted
from tests.caches import with_runtime
from tests.killing.harness import PATHS, faults_of_a_kill, faults_of_an_interrupt, moment, whole_run_s
from tests.reproductions.commands import normgen, spec_file, tune_few
from tests.reproductions.test_numerics import needs_compiler
from tests.samples import is_full, sized


@needs_compiler
def test_low_a_budget_that_is_over_at_once_still_gives_the_default() -> None:
    """The whole space of layernorm, so that enumerating it takes longer than the budget."""
    ended = normgen("tune", "--shape", "8x96", "--device", "cpu", "--budget", "0.0001s", "--json")
    assert ended.code == 0
    result = json.loads(ended.out)
    assert result["best"]["schedule"] == result["default"]["schedule"]
    assert "the budget ended while the schedules were enumerated: only the default was compiled" in result["notes"]
    assert any(note.startswith("verified on the CPU executor") for note in result["notes"])


@needs_compiler
def test_low_a_budget_that_ends_while_compiling_still_gives_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a loaded machine, where not one of the candidates was compiled in time."""
    whole = predicted.compile_all

    def without_time(run: Any, *rest: Any) -> None:
        run.clock.budget_s = 0.0
        whole(run, *rest)

    monkeypatch.setattr(predicted, "compile_all", without_time)
    monkeypatch.setattr(predicted, "CubinCache", lambda: None)
    ended = normgen(*tune_few(tmp_path, "--json"))
    assert ended.code == 0
    result = json.loads(ended.out)
    late = result["counts"].get("timeout", 0)  # the second one may be ready by the time that the first is
    assert late < 2
    said = f"the budget ended while kernels were compiled: {late} of 2 schedules were not"
    assert (said in result["notes"]) is (late > 0)
    assert any(note.startswith("verified on the CPU executor") for note in result["notes"])


def test_low_an_interrupt_before_the_first_compiled_candidate_ends_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(predicted, "compile_all", interrupted)
    ended = normgen(*tune_few(tmp_path))
    assert (ended.code, ended.out) == (INTERRUPTED, "")
    assert ended.err.splitlines()[-1] == "interrupted"


@pytest.mark.parametrize("path", PATHS)
def test_low_a_killed_or_interrupted_tune_loses_nothing_and_leaves_nobody(path: str, tmp_path: Path) -> None:
    """A sample of `python -m tests.killing`; no worker of a killed tune prints a traceback."""
    cache = with_runtime(tmp_path / "cache")
    length_s, rng = whole_run_s(tmp_path, cache, path), Random(4)
    behind_one, early = (1, 0.0), (0, length_s / 4)  # of a run that may have been slower: others share the machine
    killed, interrupted = ([behind_one], [early]) if not is_full() else ([behind_one, early],) * 2
    drawn = [moment(rng, n, length_s) for n in range(sized(0, 10))]
    kills = [faults_of_a_kill(tmp_path / f"k{n}", cache, path, when) for n, when in enumerate(killed)]
    interrupts = [
        faults_of_an_interrupt(tmp_path / f"i{n}", cache, path, when) for n, when in enumerate(interrupted + drawn)
    ]
    assert [fault for _, faults in (*kills, *interrupts) for fault in faults] == []
    assert any(in_time for in_time, _ in kills)
    assert any(in_time for in_time, _ in interrupts)


def test_low_a_reader_that_goes_away_ends_the_command_without_a_word(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "normgen", "space", "--op", spec_file(tmp_path), "--shape", "8x96", "--why"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (UNREAD, "")


def wait_for(holds: Callable[[], bool], *, most_s: float = 60.0) -> None:
    end = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    """Not gone, and no zombie that waits for whoever reaps it: that one has no command any more."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_low_a_killed_process_leaves_no_compiler_nor_what_that_started(number: int, tmp_path: Path) -> None:
    compiler, pids = tmp_path / "compiler", tmp_path / "pids"
    compiler.write_text(f"#!/bin/sh\nsleep 300 &\necho $$ $! > {pids}.new\nmv {pids}.new {pids}\nwait\n")
    compiler.chmod(0o755)
    program = "from pathlib import Path; from normgen.cpu.compiler import Compiler, compile_file; "
    program += f"compile_file(Compiler(command=({str(compiler)!r},), version='1'), Path('a'), Path('b'), (), ())"
    # Where the tests run in the background, a shell may have told all of them to ignore Ctrl-C.
    heeding = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL, preexec_fn=heeding) as owner:
        wait_for(pids.exists)
        started = [int(pid) for pid in pids.read_text().split()]
        wait_for(lambda: all(map(_runs, started)))  # at the moment of an exec there is no command
        owner.send_signal(number)
        owner.wait(60)
    wait_for(lambda: not any(map(_runs, started)))


@needs_compiler
def test_low_a_closed_stderr_neither_changes_the_code_nor_lands_in_a_file(tmp_path: Path) -> None:
    def shell(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-c", 'exec "$@" 2>&-', "bash", sys.executable, "-m", "normgen", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    good = shell(*tune_few(tmp_path, "--output", str(tmp_path), "--json"))
    assert good.returncode == 0
    json.loads(good.stdout)
    assert not any("verified on the CPU" in file.read_text() for file in tmp_path.glob("*.cu"))
    assert shell("show", "--op", "nothing", "--shape", "8x8").returncode == 2
