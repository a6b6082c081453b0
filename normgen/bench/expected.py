"""What every provider must compute: float64 references for the bench's own inputs, and how far off one may be.

All providers are judged on the inputs they are timed on: some runs of lines (the first, the last, others at random),
which are rows, or those of inner where a product sums the rows, and every column of a sum over rows. The inputs of a
bench repeat (`gpu_data.sample_inputs`), so the reference of a sum over all rows is that of the sample, as often as it
repeats.

* We are held to the error model's bound for our own kernels (`verify.error_model`).
* A peer may be `PEER_FACTOR` times as far off as the bound, and as a few roundings of intermediate values to its
  stored dtype: Liger and torch's compositions keep some in bf16 where our kernels keep float32, and an error then
  scales with the row's values rather than the element's. So its limit is 8 (bound + u (|want| + rms(want))), u being
  the unit roundoff of the dtype it returned, for a quantiser that of its inputs where this is coarser (its scale is
  found from values in bf16), and rms that of the row. A missing term, a wrong eps or an unmasked tail
  is far outside; another order of summation or another exp is far inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen import verify
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.verify import Buffer, Inputs
from normgen.verify.bounded import outside
from normgen.verify.check import by_line
from normgen.verify.contraction.sides import by_inner, in_batches, line_count
from normgen.verify.rows import Stored

Array = NDArray[np.float64]
Chunk = tuple[int, int]  # lines start..stop
PEER_FACTOR = 8.0
CHECKED_ELEMENTS = 1 << 19  # of the elem outputs: 0.1 s of float64 on the host
CHUNKS = 8


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One written tensor: want and bound [lines checked, width], [1, cols] or [batches, cols]."""

    use: TensorUse
    want: Array
    bound: Array


class Expected:
    """The reference for one problem on a bench's inputs; made once, used for every provider."""

    def __init__(self, problem: Problem, sample: Inputs, *, seed: int) -> None:
        self.problem = problem
        self.chunks = chunks_of(problem, seed=seed)
        picked = np.concatenate([np.arange(start, stop) for start, stop in self.chunks])
        found = _by_lines(problem, sample, picked)
        found |= _by_columns(sample, problem.rows)
        found |= _by_batches(problem, sample) if problem.sums_batches else {}
        self.tensors: Mapping[str, Wanted] = {
            t.name: Wanted(use=t, want=found[t.name][0], bound=found[t.name][1])
            for t in problem.tensors
            if t.is_written
        }

    def share(self, name: str, got: Array, *, peer_roundoff: float | None = None) -> float:
        """The largest error of a result as a fraction of its limit; inf for NaN or another shape.

        got            the lines of `chunks`, or all columns
        peer_roundoff  unit roundoff of the dtype a peer returned; None: the result is ours
        """
        wanted = self.tensors[name]
        if got.size != wanted.want.size:
            return float("inf")
        want, limit = wanted.want, wanted.bound
        if peer_roundoff is not None:
            rms = np.sqrt(np.mean(want * want, axis=1, keepdims=True))
            if any(w.use.dtype.bytes == 1 for w in self.tensors.values()):
                peer_roundoff = max(peer_roundoff, self.problem.dtype.unit_roundoff)
            if self.problem.inner and wanted.use.kind.is_row:  # it may be found from the stored product
                peer_roundoff = max(peer_roundoff, self.problem.dtype.unit_roundoff)
            limit = PEER_FACTOR * (limit + peer_roundoff * (np.abs(want) + rms))
        got = np.asarray(got).reshape(want.shape)
        with np.errstate(invalid="ignore", divide="ignore"):
            off = outside(got, want, wanted.use.dtype)
            ratio = np.where(off == 0, 0.0, off / limit)
        return float(np.where(np.isnan(ratio), np.inf, ratio).max(initial=0.0))

    def missing(self, results: Mapping[str, Any]) -> tuple[str, ...]:
        """Written tensors that a result lacks and must have: all but the statistics."""
        return tuple(n for n, w in self.tensors.items() if n not in results and w.use.kind.within_row)

    def lines(self, use: TensorUse, read: Callable[[Chunk], Stored]) -> Stored:
        """What of a result is compared. `read` gives lines of memory, start..stop; of what has no rows there all."""
        if use.axes[:1] == ("rows",):
            return np.concatenate([np.atleast_1d(read(chunk)) for chunk in self.chunks])
        whole = np.atleast_1d(read((0, self.problem.shape_of(use)[0] if use.axes else 1)))
        if not use.kind.by_inner:
            return whole
        whole = by_line(whole.reshape(self.problem.shape_of(use)), use)
        return np.concatenate([whole[start:stop] for start, stop in self.chunks])


def chunks_of(problem: Problem, *, seed: int) -> tuple[Chunk, ...]:
    """Disjoint runs of lines: the first, the last and others between them, in order."""
    rows = line_count(problem)
    length = max(1, CHECKED_ELEMENTS // problem.cols // CHUNKS)
    if rows <= CHUNKS * length:
        return ((0, rows),)
    rng = np.random.default_rng([seed, rows, problem.cols])
    places = rng.choice(np.arange(1, rows // length - 1), CHUNKS - 2, replace=False) * length
    starts = sorted({0, rows - length, *(int(p) for p in places)})
    return tuple((start, start + length) for start in starts)


def _by_lines(problem: Problem, sample: Inputs, picked: NDArray[np.intp]) -> dict[str, tuple[Array, Array]]:
    """Reference and bound of the picked lines. Those of inner, and rows that share a matrix, are made of all rows."""
    if by_inner(problem) or in_batches(problem):
        _, inputs = _inputs_of(problem, sample, np.arange(problem.rows), np.arange(problem.batches))
        inputs = replace(inputs, families=sample.families[:1] * line_count(problem), numbers=None)  # all are normal
        written = tuple(t for t in problem.tensors if not t.is_over_rows or t.kind.by_inner)
        return _gathered(written, problem, inputs, None, lines=picked)
    rows = replace(problem, rows_per_batch=1) if problem.rows_per_batch else problem
    batches = problem.batch_of(picked) if problem.rows_per_batch else picked
    tensors = tuple(t for t in problem.tensors if not t.is_over_rows)
    return _gathered(tensors, *_inputs_of(rows, sample, picked, batches), None)


def _by_batches(problem: Problem, sample: Inputs) -> dict[str, tuple[Array, Array]]:
    """Those of the sums over the rows of each batch, which repeat less evenly than the sample does."""
    tensors = tuple(t for t in problem.tensors if not t.is_written or (t.is_row_sum and t.kind.by_batch))
    inputs = _inputs_of(problem, sample, np.arange(problem.rows), np.arange(problem.batches))
    return _gathered(tensors, *inputs, None)


def _inputs_of(
    problem: Problem, sample: Inputs, picked: NDArray[np.intp], batches: NDArray[np.intp]
) -> tuple[Problem, Inputs]:
    """The picked rows and batches, whose inputs are those of the sample's at the same place."""
    source = picked % sample.problem.rows
    rows = replace(problem, rows=len(picked), pitch=problem.cols)
    buffers = {}
    for name, buffer in sample.buffers.items():
        kind, array = problem.tensor(name).kind, buffer.array
        if kind.by_batch:
            array = array[batches % len(array)]
        array = np.ascontiguousarray(array[source] if kind.by_row else array)
        buffers[name] = Buffer(array=array, storage=array.view(np.uint8).reshape(-1), offset=0)
    families = tuple(sample.families[i % len(sample.families)] for i in source)
    inputs = Inputs(
        problem=rows, seed=sample.seed, families=families, scalars=sample.scalars, buffers=buffers, numbers=picked
    )
    return rows, inputs


def _by_columns(sample: Inputs, rows: int) -> dict[str, tuple[Array, Array]]:
    """Those of the sums over all rows."""
    here = sample.problem.tensors
    tensors = tuple(t for t in here if not t.is_written or (t.is_over_rows and not t.kind.by_batch))
    return _gathered(tensors, sample.problem, sample, rows)


def _gathered(
    tensors: Sequence[TensorUse],
    problem: Problem,
    inputs: Inputs,
    repeated_to: int | None,
    lines: NDArray[np.intp] | None = None,
) -> dict[str, tuple[Array, Array]]:
    """Reference and bound of the written ones among `tensors`."""
    if not any(t.is_written for t in tensors):
        return {}
    found: dict[str, list[tuple[Array, Array]]] = {}
    chosen = replace(problem, tensors=tuple(tensors))
    for part in verify.prepare(chosen, inputs, rows=lines, repeated_to=repeated_to).parts:
        found.setdefault(part.tensor.name, []).append((part.want, np.broadcast_to(part.bound, part.want.shape)))
    return {name: _stacked(blocks) for name, blocks in found.items()}


def _stacked(blocks: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    wants, bounds = zip(*blocks, strict=True)
    return np.concatenate(wants), np.concatenate(bounds)
