"""`normgen tune` as its user starts it, ended from outside: by SIGKILL, or by Ctrl-C as a terminal sends it.

Processes are told by a mark in their environment, which their children inherit; what is waited for is progress, never
a number of seconds that a busy machine makes too short.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from normgen.records.winners import read

MARK = "NORMGEN_TEST_MARK"
PATIENCE_S = 120.0  # a process that has work to do answers within it on any machine
TRIALS = 10
FEW = str(Path(__file__).with_name("few.toml"))
_QUESTION = ("tune", "--op", FEW, "--shape", "16x64", "--trials", str(TRIALS), "--json")
# how a schedule is judged -> the command; `measured` takes a simulated device for the GPU
PATHS: dict[str, tuple[str, ...]] = {
    "predicted": (sys.executable, "-m", "normgen", *_QUESTION, "--device", "cpu"),
    "measured": (sys.executable, "-m", "tests.tuning.fake_tune", *_QUESTION, "--device", "0", "--no-reuse"),
}


@dataclass(frozen=True, kw_only=True)
class Ended:
    """One command that has ended; `left` are processes and files that it left behind."""

    code: int
    out: str
    err: str
    left: tuple[str, ...]

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


def _hears_interrupts() -> None:
    """A shell's background job ignores Ctrl-C, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Command:
    """A running `normgen` in a session of its own."""

    def __init__(self, folder: Path, cache: Path, command: Sequence[str]) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self._temporary = folder / f"tmp-{self.mark}"
        self._temporary.mkdir(parents=True)
        own = {"NORMGEN_STATE_DIR": str(folder / "state"), "NORMGEN_CACHE_DIR": str(cache), MARK: self.mark}
        environment = {**os.environ, **own, "TMPDIR": str(self._temporary)}
        self._out, self._err = (folder / f"{name}-{self.mark}" for name in ("out", "err"))
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment, start_new_session=True,
                preexec_fn=_hears_interrupts,
            )  # fmt: skip

    def wait_for(self, lines: int, seconds: float) -> None:
        """Until so many candidates are written, and as many seconds more, or until it ends."""
        limit = time.monotonic() + PATIENCE_S
        while self.process.poll() is None and candidates(self.folder) < lines and time.monotonic() < limit:
            time.sleep(0.002)
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)

    def kill(self) -> None:
        self.process.kill()

    def interrupt(self) -> None:
        """Ctrl-C: every process of the terminal's group gets it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self) -> Ended:
        """How it ended, once its children have had the time to see that."""
        code = self.process.wait(timeout=PATIENCE_S)
        limit = time.monotonic() + PATIENCE_S
        while (alive := marked(self.mark)) and time.monotonic() < limit:
            time.sleep(0.01)
        left = [f"process {pid}: {line}" for pid, line in alive.items()]
        left += [str(path) for path in self.folder.rglob(".new-*")]
        left += [str(path) for path in self._temporary.iterdir()] if code not in (-signal.SIGKILL,) else []
        return Ended(code=code, out=self._out.read_text(), err=self._err.read_text(), left=tuple(left))


def marked(mark: str) -> dict[int, str]:
    """The processes that inherited a mark, with their command lines; ended ones that wait for their parent aside."""
    found = {}
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdecimal() and f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # another user's, or gone
            continue
    return found


def candidates(folder: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("state/runs/*/candidates.jsonl"))


def reported(folder: Path) -> set[str]:
    """The schedules whose whole line is on disk."""
    return {r.schedule.key for file in folder.glob("state/runs/*/candidates.jsonl") for r in read(file).records}


def whole_run_s(folder: Path, cache: Path, path: str) -> float:
    """Seconds of a run that nobody ends; from then on the cache holds what it compiled."""
    Command(folder / "warm", cache, PATHS[path]).ended()
    began = time.monotonic()
    ended = Command(folder / "whole", cache, PATHS[path]).ended()
    assert ended.code == 0, ended.err
    assert not ended.left
    return time.monotonic() - began


def moment(rng: Random, number: int, length_s: float) -> tuple[int, float]:
    """Candidates to wait for, and seconds more: every second one anywhere from the start, the others among its work."""
    return (0, rng.uniform(0, length_s)) if number % 2 else (rng.randint(1, TRIALS), rng.uniform(0, 0.1 * length_s))


def faults_of_a_kill(folder: Path, cache: Path, path: str, when: tuple[int, float]) -> tuple[bool, list[str]]:
    """Whether the kill came before the end, and what is wrong after it and the run that goes on."""
    first = Command(folder, cache, PATHS[path])
    first.wait_for(*when)
    first.kill()
    ended, known = first.ended(), reported(folder)
    faults = [f"left behind: {what}" for what in ended.left if what.startswith("process")]
    faults += ["a traceback"] if "Traceback" in ended.err else []
    second = Command(folder, cache, (*PATHS[path], "--resume")).ended()
    if second.code != 0:
        return True, [*faults, f"--resume ended with {second.code}: {second.err}"]
    faults += [f"after --resume: {what}" for what in second.left if ".new-" not in what]
    kept = read(Path(second.result["paths"]["candidates"]))
    lost = known - {r.schedule.key for r in kept.records} if ended.code else set()
    faults += [f"{len(lost)} of {len(known)} candidates lost"] if lost else []
    faults += ["damaged lines"] if kept.damaged else []
    faults += ["a candidate twice"] if len({r.schedule for r in kept.records}) < len(kept.records) else []
    return ended.code == -signal.SIGKILL, faults


def faults_of_an_interrupt(folder: Path, cache: Path, path: str, when: tuple[int, float]) -> tuple[bool, list[str]]:
    """Whether Ctrl-C came before the end, and what is wrong after it."""
    command = Command(folder, cache, PATHS[path])
    command.wait_for(*when)
    if command.process.poll() is None:
        command.interrupt()
    ended = command.ended()
    faults = [f"left behind: {what}" for what in ended.left]
    is_starting = "init_import_site" in ended.err  # Python itself, whose trace may name the hook of an editable install
    is_ours = not is_starting and ("normgen" in ended.err or (folder / "state").exists())
    faults += [f"exit code {ended.code}"] if ended.code not in (0, 130) and is_ours else []
    faults += ["a traceback"] if "Traceback" in ended.err and is_ours else []
    for file in folder.glob("state/runs/*/candidates.jsonl"):
        faults += ["damaged lines"] if read(file).damaged else []
    return ended.code == 130, [f"{fault}\n{ended.err}" for fault in faults]
