"""A hand-made problem, and a device whose truth is known: times with noise, spikes and drift."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from normgen.dtypes import F32
from normgen.problem.problem import Problem, TensorUse
from normgen.spec.spec import Formula, Kind, Role, Spec, Tensor

SPEC = Spec(
    name="layernorm",
    summary="by hand, for tests of what does not read formulas",
    tensors=(Tensor(name="x", role=Role.INPUT), Tensor(name="y", role=Role.OUTPUT)),
    formulas=(Formula(name="y", text="x - sum(x) / cols"),),
    sha256="ab" * 32,
)


def problem(rows: int = 8192, cols: int = 768) -> Problem:
    tensors = (
        TensorUse(name="y", kind=Kind.ELEM, dtype=F32, is_written=True),
        TensorUse(name="x", kind=Kind.ELEM, dtype=F32, is_written=False),
    )
    return Problem(spec=SPEC, rows=rows, cols=cols, tensors=tensors, pitch=cols)


class SimulatedTimer:
    """Replays cost `truth[key]` µs, times 1 % noise, rare spikes, and a clock that drifts a few per cent."""

    def __init__(
        self,
        truth: Mapping[str, float],
        *,
        noise: float = 0.01,
        drift: float = 0.03,
        spikes: float = 0.02,
        seed: int = 0,
    ) -> None:
        self.truth = dict(truth)
        self.replays = 0
        self._noise, self._drift, self._spikes = noise, drift, spikes
        self._random = random.Random(seed)

    def warm_up(self, key: str) -> None:
        assert key in self.truth

    def sample(self, key: str) -> float:
        self.replays += 1
        clock = 1 + self._drift * math.sin(self.replays / 400)
        spike = 1.5 if self._random.random() < self._spikes else 1.0
        return self.truth[key] * clock * spike * (1 + self._noise * abs(self._random.gauss(0, 1)))

    def twin(self, key: str) -> str:
        self.truth[key + " again"] = self.truth[key]
        return key + " again"

    def expect(self, best_us: float) -> None:
        assert best_us > 0

    def conditions(self) -> dict[str, object]:
        return {"absent": "a simulated device has no clock"}

    def add(self, keys: Sequence[str], us: float) -> None:
        self.truth.update(dict.fromkeys(keys, us))
