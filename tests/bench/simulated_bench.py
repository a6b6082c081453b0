"""A peers' bench whose device is the float64 reference and whose times are known; everything else is the real thing.

It stands in a worker process. What goes wrong there is planted by the number of columns (`c272`) or by a peer's name:
`wrong`, `no_memory`, `raises`, or a fault of `fake_device` at open, launch, import, prepare or sample.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from normgen import verify
from normgen.bench.expected import Expected
from normgen.bench.peers import Options
from normgen.bench.peers.bench import PeerBench
from normgen.codegen.module import Module
from normgen.cuda.cubin import Cubin
from normgen.device import Device
from normgen.errors import DriverError
from normgen.measure.clocks import ClockWatch
from normgen.measure.data import sample_inputs
from normgen.measure.gpu import COPY, GpuBench
from normgen.measure.protocol import Check
from normgen.measure.replays import CONTEST_REPLAY_US
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.records.place import Place
from normgen.spec.spec import Kind
from tests.measure.fake_device import act, planted
from tests.measure.simulated import ELEMENTWISE, SimulatedTimer

US_PER_BYTE = 1 / 4.2e6
BASE_SHARE = 0.5  # of the roof: what the chain takes without a kernel


class SimulatedGpu(SimulatedTimer, GpuBench):
    """What a `GpuBench` does on its device."""

    roofs = (COPY, ELEMENTWISE)

    def __init__(self, problem: Problem, facts: Device, **settings: Any) -> None:
        assert (facts.name, settings["index"], settings["place"]) == ("NVIDIA H200", 0, Place())
        assert settings["checked_elements"] >= 1 << 20
        assert settings["replay_us"] == CONTEST_REPLAY_US
        self.problem, self._roof = problem, problem.compulsory_bytes * US_PER_BYTE
        truth = {COPY: 1.1 * self._roof, ELEMENTWISE: self._roof}
        super().__init__(truth, noise=0.003, seed=settings["seed"], base_us=BASE_SHARE * self._roof)
        self._words = planted().get(f"c{problem.cols}", "").split()
        act(self._words, "open", "")
        if "no_memory" in self._words:
            raise DriverError("the CUDA driver must allocate 1 bytes", code="CUDA_ERROR_OUT_OF_MEMORY")
        self.inputs = sample_inputs(problem, seed=settings["seed"])
        self._replays, self._watch = {}, ClockWatch(None)

    def load(self, key: str, module: Module, cubin: Cubin) -> None:
        assert cubin.data.startswith(b"\x7fELF")
        assert set(cubin.resources) == {kernel.name for kernel in module.kernels}
        self.truth[key] = 1.05 * self._roof

    def check(self, key: str, *, full: bool) -> Check:
        assert key in self.truth
        return Check(ok=not full, summary="ok", error={t.name: 0.1 for t in self.problem.tensors if t.is_written})

    def restore(self) -> None:
        """Nothing in front of a kernel writes its input."""

    def launch_once(self, key: str) -> None:
        assert key in self.truth
        act(self._words, "launch", key)

    def read(self, tensor: TensorUse, rows: tuple[int, int]) -> Any:
        problem = self.problem
        tensors = {name: np.asarray(b.array) for name, b in self.inputs.buffers.items()}
        at = np.arange(*rows) % self.inputs.problem.rows
        if tensor.kind.by_row:
            by_row = {t.name for t in problem.tensors if t.kind in (Kind.ELEM, Kind.ROW)}
            tensors = {name: value[at] if name in by_row else value for name, value in tensors.items()}
        found = verify.reference(problem.spec.name, problem.direction, tensors, self.inputs.scalars)[tensor.name]
        return found * (1.5 if "wrong" in self._words else 1.0)

    def sample(self, key: str) -> float:
        act(planted().get(key, "").split(), "sample", key)
        return super().sample(key)

    def unload(self, key: str) -> None:
        del self.truth[key]

    def close(self) -> None:
        self.truth.clear()


class SimulatedBench(PeerBench, SimulatedGpu):
    """A `PeerBench` on the simulated device, without torch."""

    @staticmethod
    def versions(name: str) -> dict[str, str]:
        act(planted().get(name, "").split(), "import", name)
        return {name: "1.0"}

    def _torch(self) -> Any:
        self._side = self._side or SimulatedSide(self)  # type: ignore[assignment]
        return self._side

    def _still_works(self) -> bool:
        return True


class SimulatedSide:
    """What `TorchSide` does: every peer computes what our kernel does, in 1.25 times the time of the copy."""

    def __init__(self, bench: SimulatedBench) -> None:
        self._bench = bench
        self._names: set[str] = set()

    def prepare(self, name: str, options: Options) -> float:
        words = planted().get(name, "").split()
        act(words, "prepare", name)
        if "raises" in words:
            raise ValueError(f"{options.compile_mode} is no mode of {name}")
        self._names.add(name)
        self._bench.truth[name] = 1.25 * self._bench._roof
        return 0.5

    def has(self, name: str) -> bool:
        return name in self._names

    def forget(self, name: str) -> None:
        self._names.discard(name)

    def run(self, name: str) -> dict[str, Any]:
        factor = 1.5 if "wrong" in planted().get(name, "") else 1.0
        written = [t for t in self._bench.problem.tensors if t.is_written]
        return {t.name: SimpleNamespace(factor=factor) for t in written}

    def read(self, result: Any, use: TensorUse, expected: Expected) -> tuple[Any, float]:
        return expected.lines(use, lambda chunk: self._bench.read(use, chunk)) * result.factor, 2.0**-24

    def close(self) -> None:
        self._names.clear()
