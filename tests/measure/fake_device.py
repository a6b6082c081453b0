"""A device for a real worker process: kernels do what their text declares instead of computing anything.

A text holds one word a line: `us=12.5` (µs a launch, with noise), `wrong`, `refused`, and faults as FAULT@CALL with
CALL one of load, check, warm_up, sample: `segv`, `kill` (SIGKILL by somebody else), `hang`, `lost` (the context is
gone), `slow` (more than the bench has patience for). `once:FILE` before a fault: only if FILE can be created.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normgen.codegen.module import Module
from normgen.errors import DriverError
from normgen.measure.protocol import Check, DeviceLostError, KernelFaultError
from normgen.problem.problem import Problem
from normgen.records.record import Outcome
from tests.measure.simulated import SimulatedTimer

if TYPE_CHECKING:
    import pytest

COPY_US = 9.0


class FakeBench(SimulatedTimer):
    """A `tuning.bench.Bench` without a device; `log`: a file that gets a line for each call."""

    roofs = ("copy",)

    def __init__(self, problem: Problem, *, seed: int, log: str = "", start: str = "", **_: Any) -> None:
        super().__init__({"copy": COPY_US}, noise=0.003, spikes=0.0, drift=0.0, seed=seed)
        self._log = log
        self._words: dict[str, list[str]] = {"copy": []}
        self._expected_us: float | None = None
        assert problem.rows > 0
        self._note("open")
        act(start.split(), "open", "")

    def load(self, key: str, module: Module, cubin: Any) -> None:
        assert cubin.data == module.text.encode()
        self._words[key] = module.text.split()
        self._note(f"load {key}")
        if "refused" in self._words[key]:
            raise DriverError("the CUDA driver must load the cubin", code="CUDA_ERROR_INVALID_VALUE")
        act(self._words[key], "load", key)
        self.truth[key] = next(float(word[3:]) for word in self._words[key] if word.startswith("us="))

    def check(self, key: str, *, full: bool) -> Check:
        self._note(f"check {key}{' full' if full else ''}")
        act(self._words[key], "check", key)
        ok = "wrong" not in self._words[key]
        return Check(ok=ok, summary="" if ok else "y[0, 0]: got 1, want 2", error={"y": 0.25})

    def warm_up(self, key: str) -> None:
        super().warm_up(key)
        act(self._words.get(key, []), "warm_up", key)

    def sample(self, key: str) -> float:
        act(self._words.get(key, []), "sample", key)
        return super().sample(key)

    def unload(self, key: str) -> None:
        self._note(f"unload {key}")
        del self.truth[key]

    def expect(self, best_us: float) -> None:
        self._expected_us = best_us

    def conditions(self) -> dict[str, object]:
        return {"pid": os.getpid(), "expected_us": self._expected_us}

    def _note(self, line: str) -> None:
        if self._log:
            with open(self._log, "a", encoding="utf-8") as file:
                file.write(f"{os.getpid()} {line}\n")


def plant_in_workers(monkeypatch: pytest.MonkeyPatch, **planted: str) -> None:
    """What goes wrong in worker processes that start from now on: words by the name of what they are planted in."""
    monkeypatch.setenv("NORMGEN_TEST_PLANTED", json.dumps(planted))


def planted() -> dict[str, str]:
    """The faults that a test planted in its workers."""
    found: dict[str, str] = json.loads(os.environ.get("NORMGEN_TEST_PLANTED", "{}"))
    return found


def act(words: Sequence[str], call: str, key: str) -> None:
    """The faults among the words that happen in this call."""
    for word in words:
        fault, _, at = word.partition("@")
        condition, _, fault = fault.rpartition(":")
        if at == call and _holds(condition):
            _fault(fault, key)


def _holds(condition: str) -> bool:
    """Whether a fault happens now: always, or the first time its file is created."""
    if not condition:
        return True
    try:
        Path(condition.removeprefix("once:")).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _fault(fault: str, key: str) -> None:
    if fault == "hang":
        time.sleep(600)
    if fault == "lost":
        raise DeviceLostError("a kernel ended the device's context", received="CUDA_ERROR_ILLEGAL_ADDRESS")
    if fault == "slow":
        raise KernelFaultError("a launch may take 20 times the best so far", key=key, outcome=Outcome.TIMEOUT)
    if fault == "bug":
        raise ZeroDivisionError("a bug of the bench")
    os.kill(os.getpid(), {"segv": signal.SIGSEGV, "kill": signal.SIGKILL}[fault])
