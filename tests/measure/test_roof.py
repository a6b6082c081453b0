"""The stopwatch's own kernels compile, and do what they say when a GPU is there."""

from __future__ import annotations

import pytest

from normgen.cuda.compiler import compile_module
from normgen.measure.roof import THREADS, VECTORS_PER_THREAD, roof_module


@pytest.mark.parametrize("arch", [75, 90, 120])
def test_both_kernels_compile_without_spilling(arch: int) -> None:
    resources = compile_module(roof_module("copy_elements"), arch).resources
    assert set(resources) == {"copy_elements", "read_elements"}
    assert all(r.spill_bytes == r.stack_bytes == 0 for r in resources.values())
    assert resources["copy_elements"].registers >= 16  # four vectors of 16 bytes wait in registers


def test_the_grid_covers_every_vector() -> None:
    launch = roof_module("copy_elements").kernels[0].launch
    assert launch.grid(rows=1, sm_count=132) == 1
    assert launch.grid(rows=THREADS * VECTORS_PER_THREAD + 1, sm_count=132) == 2
