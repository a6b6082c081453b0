"""Backward handles: the same bits in every run, two streams at once, chosen and added gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.cuda.arrays import DeviceArray
from normgen.cuda.launch import BoundLaunch
from normgen.cuda.memory import DeviceBuffer
from normgen.errors import UsageError
from normgen.knobs import KNOBS, ColumnWay
from normgen.python.cpu import HostMemory
from normgen.python.handle import Kernel, kernel
from normgen.schedule.schedule import Schedule
from tests.python.devices import NEEDS_COMPILER, Array, OnCpu, OnGpu, Place, nan
from tests.samples import sized

pytestmark = pytest.mark.filterwarnings("ignore:no record for")
ROWS, COLS = {OnCpu: 37, OnGpu: 3001}, 1024
RUNS = {OnCpu: sized(6, 20), OnGpu: 20}  # whose bits are compared
BLOCKS = Schedule(threads_per_row=128, vector=8, hold="registers", unroll=0, persistent=2, stages=2, params="kept")
WARPS = replace(BLOCKS, threads_per_row=32, rows_per_block=4, stages=1)
CLUSTERS = replace(BLOCKS, threads_per_row=64, cluster=2)
PLAIN = Schedule(threads_per_row=128, vector=8, hold="registers", unroll=0)
WAYS = {
    f"{columns}, {name}": replace(base, columns=columns)
    for columns in (*(way for way in ColumnWay if way.is_deterministic), ColumnWay.REGISTER_ATOMIC)
    for name, base in {"blocks": BLOCKS, "rows side by side": WARPS, "clusters": CLUSTERS}.items()
} | {f"{columns}, blocks": replace(PLAIN, columns=columns) for columns in ("atomic", "shared_atomic")}
UNROUNDED = {"weight": "f32", "bias": "f32"}  # sums over rows as they were added: every bit counts
FIXED = {name: schedule for name, schedule in WAYS.items() if schedule.columns.is_deterministic}


class Inputs:
    """dy, x, weight, mean and rstd on the device, and the gradients in float64."""

    def __init__(self, place: Place, rows: int, cols: int, *, seed: int) -> None:
        self.place, self.rows = place, rows
        random = np.random.default_rng(seed)
        dy, x, weight = (random.standard_normal(s, dtype=np.float32) for s in ((rows, cols), (rows, cols), (cols,)))
        stored = [array.astype(ml_dtypes.bfloat16) for array in (dy, x, weight)]
        dy, x, weight = (array.astype(np.float64) for array in stored)
        mean = x.mean(1)
        rstd = 1 / np.sqrt(x.var(1) + 1e-5)
        arrays = [*stored, mean.astype(np.float32), rstd.astype(np.float32)]
        self.arrays = dict(zip(("dy", "x", "weight", "mean", "rstd"), map(place.array, arrays), strict=True))
        normed, scaled = (x - mean[:, None]) * rstd[:, None], dy * weight
        inner = scaled - scaled.mean(1, keepdims=True) - normed * (scaled * normed).mean(1, keepdims=True)
        self.gradients = {"dx": inner * rstd[:, None], "dweight": (dy * normed).sum(0), "dbias": dy.sum(0)}

    def close(self, name: str, result: Any, *, added: float = 0.0) -> None:
        """Rounded once to bfloat16: half a last place, 2^-9, and the float32 sums before it."""
        found = self.place.values(result).astype(np.float64)
        np.testing.assert_allclose(found, self.gradients[name] + added, rtol=2**-8, atol=2e-3)

    def all_close(self, results: Any) -> None:
        for name, result in zip(self.gradients, results, strict=True):
            self.close(name, result)

    def unrounded(self) -> dict[str, Any]:
        weight = self.place.values(self.arrays["weight"]).astype(np.float32)
        return {**self.arrays, "weight": self.place.array(weight)}

    def bits(self, handle: Kernel, arrays: dict[str, Any]) -> list[bytes]:
        return [self.place.values(array).tobytes() for array in handle(**arrays)]


@pytest.fixture(scope="module")
def inputs(place: Place) -> Inputs:
    return Inputs(place, ROWS[type(place)], COLS, seed=4)


def made(inputs: Inputs, schedule: Schedule | None = None, **more: Any) -> Kernel:
    shape, device = (inputs.rows, COLS), inputs.place.device
    return kernel(
        "layernorm", shape=shape, dtype="bf16", direction="backward", schedule=schedule, device=device, **more
    )


def fixed_bytes(handle: Kernel, queue: int) -> Array:
    """What must be zero between calls."""
    workspace, size = handle._workspaces[queue], handle.module.workspace.fixed
    if isinstance(workspace, HostMemory):
        return workspace.array[:size]
    assert isinstance(workspace, DeviceBuffer)
    return workspace.read((size,), np.dtype(np.uint8))


@pytest.mark.parametrize("way", FIXED)
def test_many_runs_give_identical_bits(way: str, inputs: Inputs) -> None:
    """On the CPU, each run takes blocks and threads in another order, and few do: see the next test."""
    backward = made(inputs, FIXED[way], deterministic=True, dtypes=UNROUNDED)
    arrays = inputs.unrounded()
    first = inputs.bits(backward, arrays)
    for _ in range(RUNS[type(inputs.place)] - 1):
        assert inputs.bits(backward, arrays) == first


@NEEDS_COMPILER
def test_the_cpus_runs_add_rows_in_another_order_each_time() -> None:
    """Without it, identical bits would say nothing there."""
    inputs = Inputs(OnCpu(), ROWS[OnCpu], COLS, seed=4)
    backward = made(inputs, replace(PLAIN, columns="atomic"), dtypes=UNROUNDED)
    arrays = inputs.unrounded()
    assert len({inputs.bits(backward, arrays)[1] for _ in range(RUNS[OnCpu])}) > RUNS[OnCpu] // 2


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
def test_two_streams_with_two_workspaces_run_at_once_without_harm(way: str) -> None:
    from normgen.cuda.stream import Stream

    rows = ROWS[OnGpu]
    # Other rows: another grid, other partial rows.
    sides = (Inputs(OnGpu(), rows, COLS, seed=4), Inputs(OnGpu(), rows // 3, COLS, seed=5))
    backward = made(sides[0], WAYS[way])
    outputs = [{name: DeviceArray(want.shape, "bf16") for name, want in side.gradients.items()} for side in sides]
    with Stream() as one, Stream() as two:
        for _ in range(25):  # nothing waits in between: calls of both streams overlap, those of one do not
            for stream, side, written in zip((one, two), sides, outputs, strict=True):
                backward(**side.arrays, **written, stream=stream)
        one.synchronize()
        two.synchronize()
        for side, written in zip(sides, outputs, strict=True):
            side.all_close(written.values())
        for stream in (one, two):  # ready for the next call
            if backward.module.workspace.fixed:
                assert not fixed_bytes(backward, stream.handle).any()


@pytest.mark.parametrize("way", WAYS)
def test_calls_of_more_and_fewer_rows_share_one_workspace_that_only_grows(way: str, inputs: Inputs) -> None:
    """Every call leaves it as the next one needs it."""
    backward = made(inputs, WAYS[way])
    fewer, sizes, seen = Inputs(inputs.place, 3, COLS, seed=5), [], []
    for side in (fewer, inputs, fewer, inputs):
        side.all_close(backward(**side.arrays))
        if backward.module.workspace.fixed:
            assert not fixed_bytes(backward, 0).any()
        found = backward._workspaces.get(0)
        sizes.append(found.size if found else 0)
        seen.append(found)
    needed = [backward.module.workspace_bytes(rows=n, sm_count=backward._executor.sm_count) for n in (3, inputs.rows)]
    assert sizes == [needed[0], *[needed[1]] * 3]
    assert seen[1] is seen[2] is seen[3]


@pytest.mark.parametrize("rows", [0, 1, 2, 131, 4000])
@pytest.mark.parametrize("way", FIXED)
def test_a_handle_takes_any_number_of_rows(way: str, rows: int, place: Place) -> None:
    rows = min(rows, 131) if isinstance(place, OnCpu) else rows
    some = Inputs(place, max(rows, 1), COLS, seed=6)
    arrays = some.arrays if rows else {n: a if n == "weight" else empty(place, n) for n, a in some.arrays.items()}
    results = made(some, FIXED[way])(**arrays)
    if rows:
        some.all_close(results)
    else:
        assert results[0].shape == (0, COLS)
        for sums in results[1:]:
            assert not place.values(sums).any()


def empty(place: Place, name: str) -> Any:
    return place.array(nan(0, COLS, dtype="bf16") if name in ("dy", "x") else nan(0))


def test_a_deterministic_handle_covers_unaligned_rows_with_the_same_bits(place: Place) -> None:
    some = Inputs(place, 21 if isinstance(place, OnCpu) else 257, 999, seed=7)
    shape, device = (some.rows, 999), place.device
    backward = kernel("layernorm", shape=shape, dtype="bf16", direction="backward", deterministic=True, device=device)
    first = some.bits(backward, some.arrays)
    for _ in range(19):
        assert some.bits(backward, some.arrays) == first
    some.all_close(backward(**some.arrays))


def test_gradients_are_added_to_what_the_caller_gives(inputs: Inputs) -> None:
    backward = made(inputs, accumulate=True)
    with pytest.raises(UsageError, match="adds to gradients that the caller gives"):
        backward(**inputs.arrays)
    before = {n: np.full(w.shape, 0.5).astype(ml_dtypes.bfloat16) for n, w in inputs.gradients.items()}
    written = {name: inputs.place.array(array) for name, array in before.items()}
    backward(**inputs.arrays, **written)
    for name in inputs.gradients:
        inputs.close(name, written[name], added=0.5)


@pytest.mark.parametrize(
    ("gradients", "reads"),
    [(("x",), "dy x weight mean rstd"), (("weight", "bias"), "dy x mean rstd"), (("weight",), "dy x mean rstd")],
)
def test_a_handle_of_some_gradients_takes_and_gives_no_more(
    gradients: tuple[str, ...], reads: str, inputs: Inputs
) -> None:
    backward = made(inputs, gradients=gradients)
    results = backward(**{name: inputs.arrays[name] for name in reads.split()})
    results = results if isinstance(results, tuple) else (results,)
    assert len(results) == len(gradients)
    for name, result in zip(gradients, results, strict=True):
        inputs.close(f"d{name}", result)
    (unwanted, *_) = {"dx", "dweight", "dbias"} - {f"d{name}" for name in gradients}
    with pytest.raises(UsageError, match=f"unknown name\n  received: {unwanted}"):
        backward(**{name: inputs.arrays[name] for name in reads.split()}, **{unwanted: inputs.arrays["x"]})


@pytest.mark.gpu
@pytest.mark.parametrize("cluster", [c for c in KNOBS["cluster"].values if c > 1])
def test_a_persistent_grid_has_whole_clusters_and_no_more_than_fit(cluster: int) -> None:
    inputs = Inputs(OnGpu(), ROWS[OnGpu], COLS, seed=4)
    backward = made(inputs, replace(BLOCKS, threads_per_row=32, vector=2, cluster=cluster, persistent=4))
    bound = backward._bound
    assert isinstance(bound, BoundLaunch)
    (main, *_) = bound.loaded.kernels
    blocks = main.grid(1 << 20)
    assert blocks % cluster == 0
    assert 0 < blocks <= min(main.active_clusters() * cluster, 4 * main.sm_count)
    inputs.all_close(backward(**inputs.arrays))
