"""Derived backward kernels x every way to sum columns x awkward layouts and formats.

Each kernel is called three times with one workspace: every call must be right and leave the workspace ready, and
kernels that sum in a fixed order must give the same bits in whatever order the blocks run.
"""

from __future__ import annotations

import pytest

from normgen.cpu import find_compiler
from normgen.spec.reader import load
from tests.codegen.executors import CpuExecutor, GpuExecutor
from tests.codegen.layouts import BACKWARD_SETS
from tests.codegen.matrix import MOST, SEEDS, report, sample, sets_of, wrong_backward
from tests.samples import CORE, sized

EXTRA = sized(0, 200)
EXTRA_ON_GPU = sized(100, 1000)
OPS = [op for op in CORE if load(op).outputs]  # the others have no elem output to derive from
matrix = pytest.mark.parametrize(
    ("op", "layouts", "seed"),
    [
        pytest.param(op, name, seed, id=f"{op}-{name}-seed{seed}")
        for seed in SEEDS
        for op in OPS
        for name in sets_of(op, BACKWARD_SETS)
    ],
)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@matrix
def test_backward_kernels_are_right_on_the_cpu(op: str, layouts: str, seed: int) -> None:
    cases = sample(op, BACKWARD_SETS[layouts], seed, extra=EXTRA, most=MOST, direction="backward")
    found = list(wrong_backward(cases, CpuExecutor(), seed=seed))
    assert not found, report(found, cases)


@pytest.mark.gpu
@matrix
def test_backward_kernels_are_right_on_the_gpu(op: str, layouts: str, seed: int) -> None:
    cases = sample(op, BACKWARD_SETS[layouts], seed, extra=EXTRA_ON_GPU, direction="backward")
    found = list(wrong_backward(cases, GpuExecutor(), seed=seed))
    assert not found, report(found, cases)
