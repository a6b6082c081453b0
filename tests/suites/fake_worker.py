"""A suite's worker whose device is simulated; everything else, the claims and the compiler included, is the real one.

NORMGEN_TEST_MACHINE is the host it takes itself to be on, NORMGEN_TEST_SLOW seconds a kernel's check takes.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

from normgen.codegen.module import Module
from normgen.cuda import driver
from normgen.cuda.cubin import Cubin
from normgen.device import TARGETS
from normgen.measure.isolation import process
from normgen.measure.protocol import Check
from normgen.problem.problem import Problem
from normgen.suites import jobs, worker
from normgen.tuning import tuner
from tests.measure.simulated import SimulatedTimer
from tests.records.test_verified import VERIFIED

COPY_US = 5.0
BASE_US = 3.0  # of the chain without a kernel
SLOW_S = float(os.environ.get("NORMGEN_TEST_SLOW", "0"))


class FakeBench(SimulatedTimer):
    """Registers and threads decide the time, so that every host finds the same winner within the noise."""

    roofs = ("copy",)

    def __init__(self, problem: Problem | None = None, *_: Any, **__: Any) -> None:
        self.written = [t.name for t in problem.tensors if t.is_written] if problem else ["y"]
        self.verified = replace(VERIFIED, cols=(problem.cols,)) if problem else VERIFIED
        super().__init__({"copy": COPY_US}, noise=0.002, drift=0.0, spikes=0.0, base_us=BASE_US)

    def close(self) -> None:
        self.truth.clear()

    def load(self, key: str, module: Module, cubin: Cubin) -> None:
        kernel = module.kernels[0]
        registers = cubin.resources[kernel.name].registers
        self.truth[key] = COPY_US * (1.02 + registers / 200 + kernel.launch.threads / 1000)

    def check(self, _: str, *, full: bool) -> Check:
        time.sleep(SLOW_S)
        error = dict.fromkeys(self.written, 0.1)
        return Check(ok=True, summary="", error=error, verified=self.verified if full else None)

    def unload(self, key: str) -> None:
        del self.truth[key]


def take_over() -> None:
    """From here on this process takes a simulated device for the GPU it is asked to use."""
    driver.device_facts = lambda _: TARGETS["h200"]  # type: ignore[assignment]
    tuner.environment = lambda *, measured: {"protocol": "test", "nvrtc": "13"}  # noqa: ARG005
    process.BENCH = "tests.suites.fake_worker:FakeBench"


def main() -> None:
    take_over()
    machine = os.environ.get("NORMGEN_TEST_MACHINE")
    if machine:
        jobs._machine = lambda: machine  # type: ignore[assignment]
    worker.main()
