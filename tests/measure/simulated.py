"""A hand-made problem, and a device whose truth is known: times with noise, spikes and drift."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from normgen.dtypes import F32
from normgen.measure.protocol import BASE, BASE_AGAIN, ROOF_PREFIX, twin_name
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.records.place import Context
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


ELEMENTWISE = ROOF_PREFIX + "elementwise 16x4"


class SimulatedTimer:
    """Replays cost `truth[key]` µs, times 1 % noise, rare spikes, and a clock that drifts a few per cent.

    base_us   in a chain: what it takes without a kernel, on top of which the truth comes; 0: kernels are timed alone
    between   how much more than in the chain a key costs in another context
    """

    def __init__(
        self,
        truth: Mapping[str, float],
        *,
        noise: float = 0.01,
        drift: float = 0.03,
        spikes: float = 0.02,
        seed: int = 0,
        base_us: float = 0.0,
    ) -> None:
        self.bases = (BASE, BASE_AGAIN) if base_us else ()
        self.truth = dict(truth) | dict.fromkeys(self.bases, 0.0)
        self.base_us = dict.fromkeys(Context, 0.0) | ({Context.MATMUL: 5 * base_us} if base_us else {})
        self.between: dict[str, float] = {}
        self._base_us = base_us
        self._context: dict[str, Context] = {}
        self.replays = 0
        self._noise, self._drift, self._spikes = noise, drift, spikes
        self._random = random.Random(seed)

    def warm_up(self, key: str) -> None:
        assert key in self.truth

    def sample(self, key: str) -> float:
        self.replays += 1
        clock = 1 + self._drift * math.sin(self.replays / 400)
        spike = 1.5 if self._random.random() < self._spikes else 1.0
        base_us = self.base_us[self._context[key]] if key in self._context else self._base_us
        return (base_us + self.truth[key]) * clock * spike * (1 + self._noise * abs(self._random.gauss(0, 1)))

    def twin(self, key: str, context: Context | None = None) -> str:
        if context is None:
            self.truth[key + " again"] = self.truth[key]
            return key + " again"
        twin = twin_name(key, context)
        self._context[twin] = context
        self.truth[twin] = self.truth[key] * self.between.get(twin, 1.0)
        return twin

    def expect(self, best_us: float) -> None:
        assert best_us > 0

    def conditions(self) -> dict[str, object]:
        return {"absent": "a simulated device has no clock"}

    def add(self, keys: Sequence[str], us: float) -> None:
        self.truth.update(dict.fromkeys(keys, us))
