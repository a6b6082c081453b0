"""Sums over rows that a second kernel finishes: four chains a thread, lanes by shuffles, four chains over the warps."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from normgen import verify
from normgen.cpu import build, find_compiler
from normgen.knobs import Hold
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load

ROWS, COLS, BLOCKS = 1500, 32, 1200
THREADS, CELLS, IN_FLIGHT = 512, 8, 12
LANES = THREADS // CELLS  # threads that share a cell
SCHEDULE = Schedule(threads_per_row=32, vector=1, hold=Hold.REGISTERS, unroll=0, persistent=1)
Terms = NDArray[np.float32]  # [terms, cols]


def in_four_chains(terms: Terms) -> Terms:
    """Term i joins sum i % 4; then (0 + 2) + (1 + 3)."""
    sums = np.zeros((4, COLS), np.float32)
    for number, term in enumerate(terms):
        sums[number % 4] += term
    return np.asarray((sums[0] + sums[2]) + (sums[1] + sums[3]))


def finished(partials: Terms) -> Terms:
    """What the second kernel makes of the blocks' rows, in the order that its threads add them."""
    trip = IN_FLIGHT * LANES
    padded = np.zeros((-(-len(partials) // trip) * trip, COLS), np.float32)
    padded[: len(partials)] = partials
    lanes = np.array([in_four_chains(padded[lane::LANES]) for lane in range(LANES)])
    in_warp = lanes.reshape(THREADS // 32, 32 // CELLS, COLS)
    while in_warp.shape[1] > 1:
        in_warp = in_warp[:, 0::2] + in_warp[:, 1::2]
    return in_four_chains(in_warp[:, 0])


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_partial_rows_are_added_in_short_chains_bit_for_bit() -> None:
    problem = problem_for(load("layernorm"), shape=(ROWS, COLS), dtype="f32", direction="backward")
    module = emit(problem, SCHEDULE)
    assert module.kernels[0].launch.grid(rows=ROWS, sm_count=BLOCKS) == BLOCKS
    inputs, outputs = verify.make_inputs(problem, families=("normal",)), verify.make_outputs(problem)
    run = build(module).run(
        {**inputs.arrays, **outputs.arrays},
        rows=ROWS,
        cols=COLS,
        scalars=inputs.scalars,
        sm_count=BLOCKS,
    )
    assert not run.faults
    dy = np.asarray(inputs.arrays["dy"], np.float32)
    partials = dy[:BLOCKS].copy()
    partials[: ROWS - BLOCKS] += dy[BLOCKS:]
    assert np.array_equal(np.asarray(outputs.arrays["dbias"]).ravel(), finished(partials))


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_few_partial_rows_of_many_columns_are_added_by_a_thread_a_cell() -> None:
    """Of rows that blocks share: a warp a cell, as of many partial rows, took four times the bytes' time."""
    problem = problem_for(load("layernorm"), shape=(46, 1027), dtype="f32", direction="backward")
    schedule = SCHEDULE.varied(parts=3, persistent=2)
    module = emit(problem, schedule)
    finish = module.kernels[1].launch
    assert (finish.threads, finish.blocks) == (256, 2 * 5)
    sms = 11  # 7 groups of three blocks; the last group has rows too
    inputs, outputs = verify.make_inputs(problem, families=("normal",)), verify.make_outputs(problem)
    run = build(module).run(
        {**inputs.arrays, **outputs.arrays}, rows=46, cols=1027, scalars=inputs.scalars, sm_count=sms
    )
    assert not run.faults
    dy = np.asarray(inputs.arrays["dy"], np.float32).reshape(46, 1027)
    groups = module.kernels[0].launch.grid(rows=46, sm_count=sms) // 3
    partials = [np.add.accumulate(dy[group::groups], dtype=np.float32)[-1] for group in range(groups)]
    sums = np.zeros((4, 1027), np.float32)
    for number, row in enumerate(partials):
        sums[number % 4] += row
    expected = (sums[0] + sums[2]) + (sums[1] + sums[3])
    assert np.array_equal(np.asarray(outputs.arrays["dbias"]).ravel(), expected)
