"""What NVRTC makes of kernels of contractions: no spills at the largest tiles of a thread, no double arithmetic."""

from __future__ import annotations

import pytest

from normgen.cuda.compiler import compile_module
from normgen.knobs import Copy, Hold
from normgen.schedule.schedule import Schedule
from tests.codegen.test_compiled import _nvrtc_loads
from tests.codegen.tiles.cases import CASES
from tests.cuda.compiled import ptx

pytestmark = pytest.mark.skipif(not _nvrtc_loads(), reason="NVRTC does not load on this machine")
LARGE = Schedule(hold=Hold.SHARED, vector=4, tile_m=128, tile_n=128, tile_k=8, thread_m=8, thread_n=8)
KERNELS = {
    "linear": LARGE.varied(copy=Copy.CP_ASYNC, stages=3),
    "linear, w turned": LARGE.varied(copy=Copy.CP_ASYNC, stages=3, tile_k=16),
    "dx, w turned": LARGE.varied(copy=Copy.CP_ASYNC, stages=3, tile_k=16, thread_n=16),
    "squares beside the products": LARGE.varied(stages=2),
    "two sums": LARGE.varied(stages=2, tile_n=64, thread_n=4),
    "16-bit types": LARGE.varied(stages=2, tile_k=16, vector=8),
    "dw and dbias": LARGE.varied(stages=1),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_tile_of_a_thread_stays_in_registers(name: str) -> None:
    module = CASES[name].module((4096, 4096, 4096), KERNELS[name])
    for arch in {max(75, module.min_arch), 90}:
        cubin = compile_module(module, arch)
        [resources] = cubin.resources.values()
        assert (resources.spill_bytes, resources.stack_bytes) == (0, 0)
        assert "warning" not in cubin.log.lower()
    text = ptx(module, 90)
    assert text.count("fma.rn.f32") >= 64 * 8
    assert ".f64" not in text
