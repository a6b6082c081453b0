"""What NVRTC makes of kernels of contractions: no spills at the largest tiles of a thread, no double arithmetic."""

from __future__ import annotations

import pytest

from normgen.cuda.compiler import compile_module
from normgen.knobs import Copy, Fragment, Hold
from normgen.schedule.schedule import Schedule
from tests.codegen.test_compiled import _nvrtc_loads
from tests.codegen.tiles.cases import CASES, STREAMED
from tests.codegen.tiles.cases import OF_TENSORS as TENSOR_CASES
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


WARPS = LARGE.varied(fragment=Fragment.MMA, vector=8, tile_k=32, thread_n=16, copy=Copy.CP_ASYNC, stages=4)
OF_TENSOR_CORES = {
    "linear": WARPS,
    "linear, w turned": WARPS.varied(tile_n=256),
    "linear, both turned": WARPS.varied(tile_m=256, stages=3),
    "two sums": WARPS.varied(thread_n=8),
    "squares beside the products": WARPS.varied(thread_n=8, tile_k=64, stages=3),
    "all of 16 bits": WARPS.varied(tile_n=256),
    "dw and dbias": WARPS.varied(copy=Copy.DIRECT, stages=1, thread_n=8),
}


@pytest.mark.parametrize("name", OF_TENSOR_CORES)
def test_tensor_cores_keep_sums_and_factors_in_registers(name: str) -> None:
    """Of a step of 16 along k a warp has 32 products of matrices and 8 reads, or fewer; no local memory."""
    schedule = OF_TENSOR_CORES[name]
    module = TENSOR_CASES[name].module((4096, 4096, 4096), schedule)
    for arch in (80, 90):
        cubin = compile_module(module, arch)
        [resources] = cubin.resources.values()
        assert (resources.spill_bytes, resources.stack_bytes) == (0, 0)
        assert "warning" not in cubin.log.lower()
    text, steps = ptx(module, 90), schedule.tile_k // 16
    sums = 2 if name == "two sums" else 1
    assert text.count("mma.sync") == sums * steps * schedule.thread_m * schedule.thread_n // 4
    reads = steps * (schedule.thread_m // 2 + sums * schedule.thread_n // 4)
    first = 0 if schedule.copy is Copy.DIRECT else schedule.thread_m // 2 + sums * schedule.thread_n // 4
    assert text.count("ldmatrix") == reads + first
    assert ".f64" not in text


TEAMS = LARGE.varied(fragment=Fragment.WGMMA, vector=8, copy=Copy.BULK, tile_k=64, stages=4, thread_m=2, thread_n=32)
OF_TEAMS = {
    "linear": TEAMS.varied(tile_n=256, thread_n=64),
    "linear, f16": TEAMS.varied(tile_m=256, thread_m=4),
    "two sums": TEAMS.varied(stages=3),
    "all of 16 bits": TEAMS.varied(tile_n=256, thread_n=64),
    "added to y": TEAMS.varied(tile_m=64, stages=8),
    "numbers of rows and columns": TEAMS.varied(tile_n=64, thread_n=16, thread_m=4),
}


@pytest.mark.parametrize("name", OF_TEAMS)
def test_teams_keep_their_sums_in_registers_and_leave_products_under_way(name: str) -> None:
    """ptxas warns where it takes registers of products that are under way, and waits for each of them."""
    module = STREAMED[name].module((4096, 4096, 4096), OF_TEAMS[name])
    cubin = compile_module(module, 90)
    [resources] = cubin.resources.values()
    assert (resources.spill_bytes, resources.stack_bytes) == (0, 0)
    assert "warning" not in cubin.log.lower()
    assert len(module.text[module.text.index("template <class Config>\n__global__") :].splitlines()) <= 220


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
