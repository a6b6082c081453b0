"""One cell: the kernel that a call would get and torch's operator on the same rows, both against float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgen import verify
from normgen.bench.accuracy.cells import Cell, Compared, MeasuredCell
from normgen.bench.accuracy.errors import ErrorTally
from normgen.bench.accuracy.kernels import Arrays, KernelRunner
from normgen.bench.peers import require_packages
from normgen.choice.first import default_schedule
from normgen.dtypes import DType
from normgen.errors import NormgenError, NotOfferedError
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.records.winners import lookup
from normgen.schedule.schedule import Schedule
from normgen.trials.head import reason_of
from normgen.verify import Inputs
from normgen.verify.interpret import Array
from normgen.verify.rows import of_rows
from normgen.verify.verdict import TensorVerdict

BLOCK_ELEMENTS = 1 << 16  # 0.5 MB a float64 temporary: they stay in the L2 cache of a core
CALL_ELEMENTS = 1 << 24  # of one call: with its float64 temporaries 1 GB
CALL_SEEDS = 1 << 16  # from one call's seed to the next one's
WORST = 8  # rows of the largest absolute errors, and as many of the largest in ulps, that are held against the bound
HELD_ELEMENTS = 1 << 18  # of the rows that are held against it besides


def measure(cell: Cell, place: KernelRunner, *, seed: int) -> MeasuredCell:
    """Run, compare, call by call. Raises FaultError, and what a kernel's compilation and launch raise."""
    problem = cell.problem
    schedule = schedule_for(problem, place)
    module = emit(problem, schedule)
    chain = verify.longest_chain(problem, schedule)
    names = [t.name for t in problem.tensors if t.is_written]
    sums = {name: _Sums(problem.tensor(name).dtype, summed=not _is_by_row(problem, name)) for name in names}
    note = ""
    for number, rows in enumerate(_calls(cell)):
        part = replace(problem, rows=rows)
        inputs = verify.make_inputs(part, families=(cell.family,), seed=seed + number * CALL_SEEDS)
        ours = place.run(module, inputs)
        torch, note = _of_torch(part, inputs, place.index)
        _add_errors(part, inputs, sums, ours, torch)
        held = _rows_to_hold(part, [found.ours for found in sums.values()], seed=seed)
        verdict = verify.prepare(part, inputs, rows=held, chain=chain).check(ours)
        for tensor in verdict.tensors:
            sums[tensor.name].hold(tensor, len(held) if _is_by_row(part, tensor.name) else 1)
    found = {name: figures.compared() for name, figures in sums.items()}
    return MeasuredCell(cell=cell, schedule=str(schedule), tensors=found, note=note)


class _Sums:
    """What the calls of a cell gave for one tensor."""

    def __init__(self, dtype: DType, *, summed: bool) -> None:
        self.ours, self.torch = (ErrorTally(dtype, summed=summed) for _ in range(2))
        self.has_torch = False
        self._of_bound, self._held, self._elements, self._unbounded = 0.0, 0, 0, 0

    def hold(self, found: TensorVerdict, rows: int) -> None:
        self._of_bound = max(self._of_bound, found.max_ratio)
        self._held += rows
        self._elements += found.elements
        self._unbounded += found.unbounded

    def compared(self) -> Compared:
        return Compared(
            ours=self.ours.error(),
            torch=self.torch.error() if self.has_torch else None,
            of_bound=self._of_bound,
            held=self._held,
            unbounded=self._unbounded / max(1, self._elements),
        )


def _calls(cell: Cell) -> list[int]:
    """Rows of each call: few enough to fit the memory of a machine with a process a core."""
    most = max(1, CALL_ELEMENTS // cell.cols)
    return cell.draws * [min(most, cell.rows - start) for start in range(0, cell.rows, most)]


def _add_errors(
    problem: Problem, inputs: Inputs, sums: Mapping[str, _Sums], ours: Arrays, torch: Mapping[str, Any]
) -> None:
    """Those of one call."""
    for name, found in sums.items():
        found.has_torch = name in torch
        for tally in (found.ours, found.torch):
            tally.begin(problem.rows if _is_by_row(problem, name) else 1)
    for start, wanted in _wanted(problem, inputs):
        for name, want in wanted.items():
            span = slice(start, start + len(want)) if _is_by_row(problem, name) else slice(None)
            stored = problem.tensor(name).dtype.by_element(ours[name])
            sums[name].ours.add(start, stored[span].reshape(want.shape), want)
            if name in torch:
                sums[name].torch.add(start, torch[name][span].reshape(want.shape), want)


def schedule_for(problem: Problem, place: KernelRunner) -> Schedule:
    """What a call would run: on a GPU the records' choice, else the default."""
    found = lookup(problem, place.facts).schedule if place.index is not None else None
    return found or default_schedule(problem, place.facts)


def _is_by_row(problem: Problem, name: str) -> bool:
    return problem.tensor(name).kind.by_row


def _wanted(problem: Problem, inputs: Inputs) -> Iterator[tuple[int, dict[str, Array]]]:
    """(first row, exact values by tensor, [rows, width]) block by block; column outputs last, summed over all rows."""
    columns: dict[str, Array] = {}
    step = max(1, BLOCK_ELEMENTS // problem.cols)
    for start in range(0, problem.rows, step):
        rows = min(step, problem.rows - start)
        values = {}
        for name, array in inputs.arrays.items():
            tensor = problem.tensor(name)
            taken = of_rows(array, tensor, problem, np.arange(start, start + rows))
            values[name] = taken.astype(np.float64).reshape(
                tensor.kind.broadcast_shape(problem.sizes._replace(rows=rows))
            )
        found = verify.reference(problem.spec.name, problem.direction, values, inputs.scalars)
        by_row = {}
        for name, value in found.items():
            if name not in problem.present:
                continue
            if _is_by_row(problem, name):
                by_row[name] = value.reshape(rows, -1)
            else:
                columns[name] = columns.get(name, 0.0) + value.reshape(1, -1)
        yield start, by_row
    yield 0, columns


def _rows_to_hold(problem: Problem, tallies: list[ErrorTally], *, seed: int) -> NDArray[np.intp]:
    """The rows with the largest errors, the first, the last and some at random."""
    rng = np.random.default_rng([seed, 3])
    most = max(2, HELD_ELEMENTS // problem.cols)
    chosen = {0, problem.rows - 1, *rng.integers(0, problem.rows, min(most, problem.rows)).tolist()}
    for tally in tallies:
        if tally.worst.shape[1] == problem.rows:
            for figures in tally.worst:
                chosen |= set(np.argsort(figures)[-WORST:].tolist())
    return np.array(sorted(chosen), dtype=np.intp)


def _of_torch(problem: Problem, inputs: Inputs, index: int | None) -> tuple[Mapping[str, Any], str]:
    """What torch's operator makes of the same rows; or nothing, and why."""
    try:
        require_packages("torch")
        from normgen.bench.peers.host import run

        return run(problem, inputs.arrays, index), ""
    except NotOfferedError as refusal:
        return {}, f"torch: {refusal.rule}"
    except (NormgenError, NotImplementedError, RuntimeError) as error:
        return {}, f"torch: {reason_of(error)}"
