"""A GPU bench whose device is the float64 reference and whose times are known; everything else is the real thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from normgen import verify
from normgen.codegen.module import Module
from normgen.cuda.cubin import Cubin
from normgen.device import Device
from normgen.errors import DriverError
from normgen.measure.data import sample_inputs
from normgen.measure.gpu import COPY, ELEMENTWISE
from normgen.measure.protocol import Check, DeviceLostError
from normgen.measure.replays import CONTEST_REPLAY_US
from normgen.problem.problem import Problem, TensorUse
from normgen.records.record import Cache
from normgen.spec.spec import Kind
from tests.measure.simulated import SimulatedTimer

US_PER_BYTE = 1 / 4.2e6


@dataclass
class Faults:
    """What goes wrong in the next benches, by cols; fatal: a kernel that ends the context."""

    wrong: tuple[int, ...] = ()
    no_memory: tuple[int, ...] = ()
    interrupted: tuple[int, ...] = ()
    fatal: tuple[int, ...] = ()


FAULTS = Faults()


class SimulatedBench(SimulatedTimer):
    roofs = (COPY, ELEMENTWISE)
    open_benches = 0
    is_lost = False

    def __init__(
        self,
        problem: Problem,
        facts: Device,
        *,
        index: int,
        cache: Cache,
        seed: int,
        checked_elements: int,
        replay_us: float,
    ) -> None:
        assert (facts.name, index, cache) == ("NVIDIA H200", 0, Cache.COLD)
        assert checked_elements >= 1 << 20
        assert replay_us == CONTEST_REPLAY_US
        roof = problem.compulsory_bytes * US_PER_BYTE
        super().__init__({COPY: 1.1 * roof, ELEMENTWISE: roof}, seed=seed)
        if problem.cols in FAULTS.no_memory:
            raise DriverError("the CUDA driver must allocate 1 bytes", code="CUDA_ERROR_OUT_OF_MEMORY")
        if problem.cols in FAULTS.interrupted:
            raise KeyboardInterrupt
        SimulatedBench.open_benches += 1
        self.problem, self._roof = problem, roof
        self.inputs = sample_inputs(problem, seed=seed)

    def load(self, key: str, module: Module, cubin: Cubin) -> None:
        assert cubin.data.startswith(b"\x7fELF")
        assert set(cubin.resources) == {kernel.name for kernel in module.kernels}
        self.truth[key] = 1.05 * self._roof

    def check(self, key: str, *, full: bool) -> Check:
        assert key in self.truth
        return Check(ok=not full, summary="ok", error={t.name: 0.1 for t in self.problem.tensors if t.is_written})

    def launch_once(self, key: str) -> None:
        assert key in self.truth
        if self.problem.cols in FAULTS.fatal:
            self.is_lost = True
            raise DeviceLostError("a kernel ended the device's context", received="CUDA_ERROR_ILLEGAL_ADDRESS")

    def read(self, tensor: TensorUse, rows: tuple[int, int]) -> Any:
        problem = self.problem
        tensors = {name: np.asarray(b.array) for name, b in self.inputs.buffers.items()}
        at = np.arange(*rows) % self.inputs.problem.rows
        if tensor.kind is not Kind.COL:
            by_row = {t.name for t in problem.tensors if t.kind in (Kind.ELEM, Kind.ROW)}
            tensors = {name: value[at] if name in by_row else value for name, value in tensors.items()}
        found = verify.reference(problem.spec.name, problem.direction, tensors, self.inputs.scalars)[tensor.name]
        return found * (1.5 if problem.cols in FAULTS.wrong else 1.0)

    def close(self) -> None:
        assert not self.is_lost, "a lost context refuses to free"
        SimulatedBench.open_benches -= 1
