"""Peers on the device: a bench's buffers as torch tensors, and graphs of a peer's work."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from normgen.bench.expected import Array, Chunk
from normgen.bench.peers import Call, Options, Peer, Tensors
from normgen.cuda import dlpack
from normgen.cuda.stream import Graph
from normgen.measure.gpu import GpuBench
from normgen.problem.problem import Problem, TensorUse


class TorchSide:
    """One bench seen from torch. Peers run and are captured on a stream of torch's own; the bench replays."""

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

    def first(self, key: str, peer: Peer, options: Options) -> tuple[Tensors, float]:
        """Prepare a peer and run it on set 0: its results, and the seconds that took."""
        start = time.perf_counter()
        with torch.no_grad(), torch.cuda.stream(self._stream):
            call = peer.prepare(self._bench.problem, self._sets, options)
            results = call(0)
        torch.cuda.synchronize()
        self._calls[key] = call
        return results, time.perf_counter() - start

    def add(self, key: str) -> None:
        """Capture a prepared peer and give it to the bench under its key."""
        call = self._calls[key]
        self._bench.add(key, lambda count: self._capture(call, count), rough_us=self._rough_us(call))

    def still_works(self) -> bool:
        """Whether the context survived what a peer did."""
        try:
            torch.cuda.synchronize()
        except Exception:  # torch's class for it differs from version to version
            return False
        return True

    def close(self) -> None:
        """Give torch's memory back to the device; tensors of this bench must not be used any more."""
        self._calls.clear()
        self._sets.clear()
        gc.collect()
        torch.cuda.empty_cache()

    def _alias(self, problem: Problem, tensor: TensorUse, pointer: int) -> Any:
        """The tensor over the bench's own memory, with the problem's pitch."""
        rows, cols, pitch = problem.rows, problem.cols, problem.pitch
        is_elem = tensor.kind.is_elem
        shape = tensor.kind.shape(rows, cols) or (1,)
        count = (rows - 1) * pitch + cols if is_elem else shape[0]
        capsule = dlpack.export(
            pointer=pointer,
            shape=(count,),
            dtype=tensor.dtype.name,
            device_type=dlpack.CUDA,
            device_id=self._index,
            owner=self._bench,
        )
        flat = torch.utils.dlpack.from_dlpack(capsule)
        return flat.as_strided(shape, (pitch, 1)) if is_elem else flat

    def _capture(self, call: Call, count: int) -> Graph:
        """Launch i on set i % sets. The results of a set live until that set comes round again, so that outputs
        rotate through as much memory as ours do."""
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        kept: list[Tensors | None] = [None] * len(self._sets)
        gc.disable()  # what a collection frees on the device would end the capture
        try:
            with torch.no_grad(), torch.cuda.graph(graph, stream=self._stream):
                for i in range(count):
                    slot = i % len(kept)
                    kept[slot] = None
                    kept[slot] = call(slot)
        finally:
            gc.enable()
        return Graph.of(graph.raw_cuda_graph(), device=self._index, owner=graph)

    def _rough_us(self, call: Call) -> float:
        """From three in a row, queued from the host: good enough to size a graph."""
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.no_grad(), torch.cuda.stream(self._stream):
            call(0)
            start.record()
            for _ in range(3):
                call(0)
            stop.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(stop)) * 1e3 / 3


def read_chunks(tensor: Any, use: TensorUse, chunks: Sequence[Chunk]) -> tuple[Array, float]:
    """The chosen rows of a result in float64, and the unit roundoff of the dtype it came in."""
    roundoff = float(torch.finfo(tensor.dtype).eps) / 2
    flat = tensor.detach().reshape(-1, tensor.shape[-1]) if use.kind.is_elem else tensor.detach().reshape(-1)
    if use.kind.by_row:
        flat = torch.cat([flat[start:stop] for start, stop in chunks])
    return np.asarray(flat.float().cpu().numpy(), dtype=np.float64), roundoff
