"""A device whose time for a kernel follows from its registers and threads: tuner and contest agree on it."""

from __future__ import annotations

from typing import Any

from normgen.codegen.module import Module
from normgen.cuda.cubin import Cubin
from normgen.device import TARGETS, Device
from normgen.errors import DriverError
from normgen.measure.gpu import COPY
from normgen.measure.protocol import Check
from normgen.problem.problem import Problem
from normgen.records.place import Place
from normgen.records.record import Outcome, Record
from normgen.records.statistics import summarise
from normgen.schedule.schedule import Schedule
from tests.measure.fake_device import act, planted
from tests.measure.simulated import ELEMENTWISE, SimulatedTimer
from tests.records.test_verified import VERIFIED

H200 = TARGETS["h200"]
US_PER_BYTE = 1 / 4.2e6
BASE_US = 4.0


class ModelledBench(SimulatedTimer):
    """Words are planted in kernels by a part of their texts, or by one that they lack (see `fake_device`, `_has`)."""

    roofs = (COPY, ELEMENTWISE)

    def __init__(self, problem: Problem, facts: Device, *, index: int, place: Place, seed: int, **_: Any) -> None:
        assert (facts, index, place) == (H200, 0, Place())
        self._roof = problem.compulsory_bytes * US_PER_BYTE
        truth = {COPY: 1.1 * self._roof, ELEMENTWISE: self._roof}
        super().__init__(truth, noise=0.002, spikes=0.0, seed=seed, base_us=BASE_US)
        self._words: dict[str, list[str]] = {}

    def load(self, key: str, module: Module, cubin: Cubin) -> None:
        self._words[key] = [word for part, words in planted().items() if _has(module, part) for word in words.split()]
        if "refused" in self._words[key]:
            raise DriverError("the CUDA driver must load the cubin", code="CUDA_ERROR_INVALID_VALUE")
        registers = max(cubin.resources[kernel.name].registers for kernel in module.kernels)
        threads = module.kernels[0].launch.threads
        self.truth[key] = self._roof * (1.02 + registers / 400 + threads / 4000)

    def check(self, key: str, *, full: bool) -> Check:
        act(self._words[key], "check", key)
        ok = "wrong" not in self._words[key]
        return Check(
            ok=ok, summary="" if ok else "y[0, 0]: got 1, want 2", error={"y": 0.1}, verified=VERIFIED if full else None
        )

    def sample(self, key: str) -> float:
        act(self._words.get(key, ()), "sample", key)
        return super().sample(key)

    def unload(self, key: str) -> None:
        del self.truth[key]

    def conditions(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.truth.clear()


def tuned(problem: Problem, schedule: Schedule, us: float = 20.0) -> Record:
    return Record(
        problem=problem.question,
        schedule=schedule,
        outcome=Outcome.OK,
        measured=True,
        times_us=summarise([us] * 8),
        bytes=problem.compulsory_bytes,
        device=H200.as_dict(),
    )


def _has(module: Module, part: str) -> bool:
    """Whether a kernel's text has the part; with "!" in front, whether it lacks it."""
    return part[1:] not in module.text if part.startswith("!") else part in module.text
