"""The buffer sets that replays rotate over: random inputs, poisoned outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from normgen import verify
from normgen.cuda.memory import DeviceBuffer, copy
from normgen.measure.replays import SetLayout, extent, main_input
from normgen.problem.problem import Problem
from normgen.problem.tensors import TensorUse
from normgen.verify import Inputs
from normgen.verify.contraction.sides import rights

FILL_ELEMENTS = 1 << 22  # random numbers a tensor; further rows repeat them
POISON = 0xFF  # NaN in every stored format


def sample_inputs(problem: Problem, *, seed: int) -> Inputs:
    """The first rows of a problem's random inputs; the rows after them repeat these.

    Right sides of products are standard normal throughout: a check's other families of lines hold NaN, and numbers of
    few digits, on which a GPU's clock is another one. Labels are columns: other libraries read memory that is not
    theirs, or end the process, for one that is none.
    """
    sample = replace(problem, rows=min(problem.rows, max(1, FILL_ELEMENTS // problem.cols)))
    inputs = verify.make_inputs(sample, seed=seed, families=("normal",))
    rng = np.random.default_rng([seed, len(problem.tensors)])
    for tensor in rights(sample):
        side = inputs.arrays[tensor.name]
        side[...] = rng.standard_normal(side.shape, dtype=np.float32).astype(side.dtype)
    for tensor in problem.tensors:
        if tensor.kind.is_row and tensor.dtype.is_integer and tensor.name in inputs.arrays:
            labels = inputs.arrays[tensor.name]
            np.maximum(labels, 0, out=labels)
    return inputs


def filled_sets(inputs: Inputs, problem: Problem, place: SetLayout, *, count: int, index: int) -> list[DeviceBuffer]:
    """`count` sets with the same random numbers, each in its own memory. Zeros would run faster than data.

    What a kernel overwrites in place is what it reads the next time; only a main input is written anew by P.
    """
    offsets, main = place.offsets, place.slots[main_input(problem).name]
    first = DeviceBuffer(place.bytes, device=index)
    first.fill(POISON)
    for tensor in problem.tensors:
        if not tensor.is_written and problem.rows:
            fill(first, offsets[tensor.name], tensor, inputs, problem)
    for start in range(place.source.start, place.bytes, main.bytes):  # what P copies from, and cold what it writes
        copy(first.pointer + start, first.pointer + main.start, main.bytes, device=index)
    sets = [first]
    for _ in range(count - 1):
        sets.append(DeviceBuffer(place.bytes, device=index))
        sets[-1].copy_from(first)
    return sets


def fill(buffer: DeviceBuffer, start: int, tensor: TensorUse, inputs: Inputs, problem: Problem) -> None:
    """An input's random numbers from `start` on, repeated over all of the problem's rows."""
    host = inputs.buffers[tensor.name]
    # Of rows side by side one line may be the whole tensor: memory repeats the numbers as they come.
    size = host.array.nbytes if problem.col_stride > 1 else extent(tensor, inputs.problem)
    buffer.write(host.storage[host.offset : host.offset + size], offset=start)
    if tensor.kind.by_row or tensor.kind.by_batch:
        _repeat(buffer, start, filled=size, size=extent(tensor, problem))


def zeros(size: int, index: int) -> DeviceBuffer:
    buffer = DeviceBuffer(size, device=index)
    buffer.fill(0)
    return buffer


def _repeat(buffer: DeviceBuffer, start: int, *, filled: int, size: int) -> None:
    """Copy the first `filled` bytes from `start` on over the rest of `size`, doubling each time."""
    while 0 < filled < size:
        step = min(filled, size - filled)
        copy(buffer.pointer + start + filled, buffer.pointer + start, step, device=buffer.device)
        filled += step
