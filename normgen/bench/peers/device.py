"""Peers on the device: a bench's buffers as torch tensors, and graphs of a peer's work."""

from __future__ import annotations

import gc
import math
import time
from typing import Any

import numpy as np
import torch

from normgen.bench.expected import Array, Expected
from normgen.bench.peers import Call, Options, Tensors, load_peer
from normgen.cuda import dlpack
from normgen.cuda.stream import Graph
from normgen.measure.chains.chain import Chain
from normgen.measure.chains.ends import ConsumedRegion
from normgen.measure.gpu import GpuBench
from normgen.measure.replays import consumed
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse


class TorchSide:
    """One bench seen from torch: peers by name, run and captured on a stream of torch's own. The bench replays."""

    def __init__(self, bench: GpuBench, *, index: int) -> None:
        self._bench, self._index = bench, index
        self._device = torch.device("cuda", index)
        torch.cuda.set_device(self._device)
        self._stream = torch.cuda.Stream(self._device)
        self._calls: dict[str, Call] = {}
        reads = [t for t in bench.problem.tensors if not t.is_written]
        self._sets: list[Tensors] = [
            {t.name: self._alias(bench.problem, t, bench.tensors(i)[t.name]) for t in reads}
            for i in range(bench.plan.sets)
        ]

    def prepare(self, name: str, options: Options) -> float:
        """Let a peer compile and run on set 0: the seconds that took."""
        peer = load_peer(name)
        start = time.perf_counter()
        with torch.no_grad(), torch.cuda.stream(self._stream):
            call = peer.prepare(self._bench.problem, self._sets, options)
            call(0)
        torch.cuda.synchronize()
        self._calls[name] = call
        return time.perf_counter() - start

    def has(self, name: str) -> bool:
        return name in self._calls

    def forget(self, name: str) -> None:
        self._calls.pop(name, None)

    def run(self, name: str) -> Tensors:
        """A prepared peer's results for set 0."""
        with torch.no_grad(), torch.cuda.stream(self._stream):
            results = self._calls[name](0)
        torch.cuda.synchronize()
        return results

    def read(self, tensor: Any, use: TensorUse, expected: Expected) -> tuple[Array, float]:
        """The chosen lines of a result in float64, and the unit roundoff of the dtype it came in."""
        roundoff = float(torch.finfo(tensor.dtype).eps) / 2 if tensor.dtype.is_floating_point else 0.0
        flat = in_order(tensor.detach(), use)
        if use.kind.by_row and use.axes[:1] == ("rows",):
            flat = flat.reshape((-1, tensor.shape[-1]) if len(use.axes) > 1 else (-1,))
        found = expected.lines(use, lambda chunk: flat[chunk[0] : chunk[1]].float().cpu().numpy())
        return np.asarray(found, dtype=np.float64), roundoff

    def close(self) -> None:
        """Give torch's memory back to the device; tensors of this bench must not be used any more."""
        self._calls.clear()
        self._sets.clear()
        gc.collect()
        torch.cuda.empty_cache()

    def _alias(self, problem: Problem, tensor: TensorUse, pointer: int) -> Any:
        """The tensor over the bench's own memory, with the problem's pitch; a matrix in the order of its kind."""
        pitch = problem.pitch_of(tensor)
        is_matrix = tensor.kind.is_matrix
        shape = problem.shape_of(tensor) or (1,)
        count = (math.prod(shape[:-1]) - 1) * pitch + shape[-1] if is_matrix else shape[0]
        capsule = dlpack.export(
            pointer=pointer,
            shape=(count,),
            dtype=tensor.dtype.name,
            device_type=dlpack.CUDA,
            device_id=self._index,
            owner=self._bench,
        )
        flat = torch.utils.dlpack.from_dlpack(capsule)
        if not is_matrix:
            return flat
        strides = (*([shape[-2] * pitch] if len(shape) > 2 else []), pitch, 1)
        return in_order(flat.as_strided(shape, strides), tensor)

    def capture(self, name: str, count: int, chain: Chain | None = None) -> Graph:
        """Call i on set i % sets, between P and C of a chain where there is one; C reads what the call returned.

        The results of a set live until that set comes round again, so that outputs rotate through as much memory as
        ours do.
        """
        call = self._calls[name]
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        kept: list[Tensors | None] = [None] * len(self._sets)
        gc.disable()  # what a collection frees on the device would end the capture
        try:
            with torch.no_grad(), torch.cuda.graph(graph, stream=self._stream):
                for i in range(count):
                    slot = i % len(kept)
                    kept[slot] = None
                    if chain is None:
                        kept[slot] = call(slot)
                        continue
                    chain.before(slot, self._stream.cuda_stream)
                    results = kept[slot] = call(slot)
                    chain.behind(slot, self._stream.cuda_stream, self._read_by(results))
        finally:
            gc.enable()
        return Graph.of(graph.raw_cuda_graph(), device=self._index, owner=graph)

    def _read_by(self, results: Tensors) -> list[ConsumedRegion]:
        """What C reads of a call's results, wherever the library allocated them."""
        names = [t.name for t in consumed(self._bench.problem) if t.name in results]
        tensors = [results[name] for name in names]
        return [ConsumedRegion(pointer=t.data_ptr(), bytes=t.numel() * t.element_size()) for t in tensors]

    def rough_us(self, name: str) -> float:
        """From three in a row, queued from the host: good enough to size a graph."""
        call = self._calls[name]
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.no_grad(), torch.cuda.stream(self._stream):
            call(0)
            start.record()
            for _ in range(3):
                call(0)
            stop.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(stop)) * 1e3 / 3


def in_order(matrix: Any, use: TensorUse) -> Any:
    """A matrix in its own order in that of its kind, and the other way round: a view."""
    return matrix.mT if use.kind.is_matrix and use.axes != use.kind.axes else matrix
