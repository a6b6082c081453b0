"""Every spec x every knob x awkward layouts and formats: no fault, and every element inside its derived bound."""

from __future__ import annotations

import pytest

from normgen.cpu import find_compiler
from normgen.spec_reader import list_specs
from tests.codegen.executors import CpuExecutor, GpuExecutor
from tests.codegen.layouts import SETS
from tests.codegen.matrix import FULL, SEEDS, report, sample, wrong

EXTRA = 300 if FULL else 0
EXTRA_ON_GPU = 1500 if FULL else 150
matrix = pytest.mark.parametrize(
    ("op", "layouts", "seed"),
    [pytest.param(op, name, seed, id=f"{op}-{name}-seed{seed}") for seed in SEEDS for op in list_specs() for name in SETS],
)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@matrix
def test_forward_kernels_are_right_on_the_cpu(op: str, layouts: str, seed: int) -> None:
    cases = sample(op, SETS[layouts], seed, extra=EXTRA)
    found = list(wrong(cases, CpuExecutor(), seed=seed))
    assert not found, report(found, cases)


@pytest.mark.gpu
@matrix
def test_forward_kernels_are_right_on_the_gpu(op: str, layouts: str, seed: int) -> None:
    cases = sample(op, SETS[layouts], seed, extra=EXTRA_ON_GPU)
    found = list(wrong(cases, GpuExecutor(), seed=seed))
    assert not found, report(found, cases)
