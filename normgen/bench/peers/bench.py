"""The bench of a worker that times peers beside our kernel: other libraries on the same device, buffers and data.

Everything is checked on the inputs that are timed, our kernel on adversarial rows besides.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from normgen.bench.expected import Array, Expected
from normgen.bench.peers import Options, load_peer
from normgen.cuda.driver import synchronize
from normgen.device import Device
from normgen.errors import DriverError, NormgenError, NotOfferedError
from normgen.measure.gpu import GpuBench
from normgen.measure.protocol import Check, DeviceLostError
from normgen.problem.problem import Problem
from normgen.records.place import Context
from normgen.trials.head import reason_of

if TYPE_CHECKING:
    from normgen.bench.peers.device import TorchSide


class PeerBench(GpuBench):
    """A `GpuBench` that also makes peers, by name: `prepare` instead of `load`."""

    def __init__(self, problem: Problem, facts: Device, **settings: Any) -> None:
        super().__init__(problem, facts, **settings)
        self._expected = Expected(problem, self.inputs, seed=self.inputs.seed)
        self._side: TorchSide | None = None

    @staticmethod
    def versions(name: str) -> dict[str, str]:
        """What a result must name of a peer. Raises NotOfferedError when its library does not import."""
        return load_peer(name).versions()

    def prepare(self, name: str, options: Options) -> float:
        """Let a peer compile and run once: the seconds until then. Raises NormgenError when it cannot."""
        with self._theirs(name):
            return self._torch().prepare(name, options)

    def check(self, key: str, *, full: bool) -> Check:
        if self._is_peer(key):
            with self._theirs(key):
                return _compared(self._peers_shares(key), {})
        check = super().check(key, full=full)
        if not check.ok:
            return check
        self.launch_once(key)
        shares = {name: self._expected.share(name, self._result(name)) for name in self._expected.tensors}
        return _compared(shares, check.error)

    def unload(self, key: str) -> None:
        super().unload(key)
        if self._side is not None:
            self._side.forget(key)

    def close(self) -> None:
        for key in list(self._replays):
            self.unload(key)
        if self._side is not None:
            self._side.close()
            self._side = None
        super().close()

    def _capture(self, key: str, context: Context) -> Any:
        if not self._is_peer(key):
            return super()._capture(key, context)
        side = self._torch()
        with self._theirs(key):
            rough_us = side.rough_us(key)
            if context is Context.ALONE:
                return self._sized(lambda count: side.capture(key, count), rough_us)
            chain = self.chain(context)
            return self._captured(lambda count: side.capture(key, count, chain), self._links[context])

    def _is_peer(self, key: str) -> bool:
        return self._side is not None and self._side.has(key)

    def _result(self, name: str) -> Array:
        """What our kernel wrote to set 0: the rows that are compared, or all columns, or the one number."""
        use = self._expected.tensors[name].use
        return self._expected.lines(use, lambda chunk: self.read(use, chunk)).astype(np.float64)

    def _peers_shares(self, name: str) -> dict[str, float]:
        """Errors of a peer's results for set 0, each as a fraction of its limit."""
        side, expected = self._torch(), self._expected
        self.restore()
        results = side.run(name)
        missing = expected.missing(results)
        if missing:
            raise NotOfferedError("does not return", received=", ".join(missing))
        shares = {}
        for tensor in expected.tensors.values():
            if tensor.use.name in results:
                got, roundoff = side.read(results[tensor.use.name], tensor.use, expected)
                shares[tensor.use.name] = expected.share(tensor.use.name, got, peer_roundoff=roundoff)
        return shares

    def _torch(self) -> TorchSide:
        """torch's view of the buffers. Raises NormgenError for a torch without CUDA or too old a driver for it."""
        if self._side is None:
            try:
                from normgen.bench.peers.device import TorchSide  # imports torch

                self._side = TorchSide(self, index=self._index)
            except Exception as error:
                raise NormgenError("torch cannot use the GPU", received=reason_of(error)) from error
        return self._side

    @contextlib.contextmanager
    def _theirs(self, name: str) -> Iterator[None]:
        """Whatever a library raises is its own affair, unless it took the device down."""
        try:
            yield
        except Exception as error:
            if not self._still_works():
                rule = f"peer '{name}' ended the device's context"
                raise DeviceLostError(rule, received=reason_of(error)) from error
            if isinstance(error, NormgenError):
                raise
            raise NormgenError(reason_of(error)) from error

    def _still_works(self) -> bool:
        try:
            synchronize(self._index)
        except DriverError:
            return False
        return True


def _compared(shares: Mapping[str, float], before: Mapping[str, float]) -> Check:
    """One error above its limit makes a result wrong; of two errors of a tensor the larger one is told."""
    wrong = [f"{name} is {share:.3g} times its limit off" for name, share in shares.items() if not share <= 1]
    error = dict(before) | {name: max(share, before.get(name, 0.0)) for name, share in shares.items()}
    return Check(ok=not wrong, summary=", ".join(wrong), error=error)
