"""Reads of another block's shared memory: what they see, and which of them are faults."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from normgen.cpu import FaultKind, build, find_compiler
from normgen.cpu.program import Run
from tests.cpu.cases import ROWS, kernel, module, pointer

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
BARRIER = "cluster_arrive(); cluster_wait();"
RELAXED = "cluster_arrive_relaxed(); cluster_wait();"


def run_pair(body: str, *, seed: int = 0) -> tuple[Run, np.ndarray]:
    """A cluster of two blocks of 32 threads over y: [2, 32] f32; `own` is a row of every block's shared memory."""
    text = f"""extern "C" __global__ void __launch_bounds__(32) pair(float* y, int rows) {{
  __shared__ float own[32];
  const unsigned rank = cluster_rank();
  float value[1] = {{0.0f}};
  {body}
  y[rank * 32 + threadIdx.x] = value[0];
}}
"""
    planted = module(text, kernel("pair", (pointer("y", "float*"), ROWS), threads=32, blocks=2, cluster=2))
    y = np.zeros((2, 32), dtype=np.float32)
    return build(planted).run({"y": y}, rows=2, cols=32, seed=seed), y


WRITE = "own[threadIdx.x] = 100.0f * rank + threadIdx.x;"
READ = "cluster_load(value, own + 31 - threadIdx.x, 1 - rank);"


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_a_block_reads_what_the_other_has_left_before_the_barrier(seed: int) -> None:
    run, y = run_pair(f"{WRITE} {BARRIER} {READ} {BARRIER}", seed=seed)
    assert run.faults == ()
    np.testing.assert_array_equal(y, [131 - np.arange(32), 31 - np.arange(32)])


def test_a_relaxed_arrival_takes_back_nothing_that_an_earlier_one_has_published() -> None:
    run, y = run_pair(f"{WRITE} {BARRIER} {RELAXED} {READ} {BARRIER}")
    assert run.faults == ()
    np.testing.assert_array_equal(y, [131 - np.arange(32), 31 - np.arange(32)])


def test_four_values_at_a_time_are_those_at_the_address() -> None:
    four = "float four[4]; cluster_load(four, own + threadIdx.x / 4 * 4, 1 - rank); value[0] = four[threadIdx.x % 4];"
    run, y = run_pair(f"{WRITE} {BARRIER} {four} {BARRIER}")
    assert run.faults == ()
    np.testing.assert_array_equal(y, [100 + np.arange(32), np.arange(32)])


@dataclass(frozen=True, kw_only=True)
class Misuse:
    body: str
    kind: FaultKind
    says: str


MISUSES = {
    "no barrier between the write and the read": Misuse(
        body=f"{BARRIER} {WRITE} __syncthreads(); if (rank == 0) {READ} {BARRIER}",
        kind=FaultKind.SHARED_RACE,
        says="with no barrier since",
    ),
    "an arrival that publishes nothing between the write and the read": Misuse(
        body=f"{WRITE} {RELAXED} {READ} {BARRIER}", kind=FaultKind.SHARED_RACE, says="with no barrier since"
    ),
    "read before anyone wrote": Misuse(
        body=f"{BARRIER} {READ} {BARRIER}", kind=FaultKind.UNINITIALISED_SHARED, says="before anyone wrote them"
    ),
    "read from a block that may not run yet": Misuse(
        body=f"{WRITE} __syncthreads(); {READ} {BARRIER}", kind=FaultKind.SHARED_RACE, says="may not run yet"
    ),
    "written again without a barrier after the read": Misuse(
        body=f"{WRITE} {BARRIER} if (rank == 1) {READ} __syncthreads(); if (rank == 0) {WRITE} {BARRIER}",
        kind=FaultKind.SHARED_RACE,
        says="writes shared byte",
    ),
    "read from a block that has ended": Misuse(
        body=f"{WRITE} {BARRIER} if (rank == 0) {READ}", kind=FaultKind.OUT_OF_BOUNDS_SHARED, says="have exited"
    ),
    "a block that ends while it may be read": Misuse(
        body=f"{WRITE} {BARRIER} if (rank == 1) {READ}", kind=FaultKind.SHARED_RACE, says="ends and leaves shared byte"
    ),
    "no such block": Misuse(
        body=f"{WRITE} {BARRIER} cluster_load(value, own, 2); {BARRIER}",
        kind=FaultKind.OUT_OF_BOUNDS_SHARED,
        says="reads from block rank 2 of a cluster of 2",
    ),
    "four values at an address that is no multiple of 16": Misuse(
        body=f"float four[4]; {WRITE} {BARRIER} cluster_load(four, own + 1, 1 - rank); {BARRIER}",
        kind=FaultKind.MISALIGNED,
        says="no multiple of them",
    ),
}


@pytest.mark.parametrize("name", MISUSES)
def test_a_misused_read_is_reported(name: str) -> None:
    misuse = MISUSES[name]
    run, _ = run_pair(misuse.body)
    assert any(f.kind is misuse.kind and misuse.says in f.message for f in run.faults), run.faults
