"""A device whose time for a kernel follows from its registers and threads: tuner and contest agree on it."""

from __future__ import annotations

from typing import Any

from normgen.codegen.module import Module
from normgen.cuda.cubin import Cubin
from normgen.device import TARGETS, Device
from normgen.errors import DriverError
from normgen.measure.gpu import COPY, ELEMENTWISE
from normgen.measure.protocol import Check
from normgen.problem.problem import Problem
from normgen.records.record import Cache, Outcome, ProblemKey, Record
from normgen.records.statistics import summarise
from normgen.schedule.schedule import Schedule
from tests.measure.simulated import SimulatedTimer

H200 = TARGETS["h200"]
US_PER_BYTE = 1 / 4.2e6


class ModelledBench(SimulatedTimer):
    """`wrong` and `refused` name schedules by a part of their kernels' names or texts."""

    roofs = (COPY, ELEMENTWISE)
    wrong: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    open_benches = 0

    def __init__(self, problem: Problem, facts: Device, *, index: int, cache: Cache, seed: int, **_: Any) -> None:
        assert (facts, index, cache) == (H200, 0, Cache.COLD)
        self._roof = problem.compulsory_bytes * US_PER_BYTE
        super().__init__({COPY: 1.1 * self._roof, ELEMENTWISE: self._roof}, noise=0.002, spikes=0.0, seed=seed)
        self._texts: dict[str, str] = {}
        ModelledBench.open_benches += 1

    def load(self, key: str, module: Module, cubin: Cubin) -> None:
        if any(part in module.text for part in self.refused):
            raise DriverError("the CUDA driver must load the cubin", code="CUDA_ERROR_INVALID_VALUE")
        registers = max(cubin.resources[kernel.name].registers for kernel in module.kernels)
        threads = module.kernels[0].launch.threads
        self.truth[key] = self._roof * (1.02 + registers / 400 + threads / 4000)
        self._texts[key] = module.text

    def check(self, key: str, *, full: bool) -> Check:  # noqa: ARG002
        ok = not any(part in self._texts[key] for part in self.wrong)
        return Check(ok=ok, summary="" if ok else "y[0, 0]: got 1, want 2", error={"y": 0.1})

    def unload(self, key: str) -> None:
        del self.truth[key]

    def conditions(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        ModelledBench.open_benches -= 1


def tuned(problem: Problem, schedule: Schedule, us: float = 20.0) -> Record:
    return Record(
        problem=ProblemKey.of(problem),
        schedule=schedule,
        outcome=Outcome.OK,
        measured=True,
        times_us=summarise([us] * 8),
        bytes=problem.compulsory_bytes,
        device=H200.as_dict(),
    )
