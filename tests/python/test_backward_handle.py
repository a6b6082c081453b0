"""Backward handles on a real device: the same bits in every run, two streams at once, chosen and added gradients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.cuda.arrays import DeviceArray
from normgen.errors import UsageError
from normgen.python.handle import Kernel, kernel
from normgen.schedule.knobs import DETERMINISTIC_COLUMNS, KNOBS
from normgen.schedule.schedule import Schedule

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:no record for")]
ROWS, COLS = 3001, 1024
BLOCKS = Schedule(threads_per_row=128, vector=8, hold="registers", unroll=0, persistent=2, stages=2, params="kept")
WARPS = replace(BLOCKS, threads_per_row=32, rows_per_block=4, stages=1)
CLUSTERS = replace(BLOCKS, threads_per_row=64, cluster=2)
PLAIN = Schedule(threads_per_row=128, vector=8, hold="registers", unroll=0)
WAYS = {
    f"{columns}, {name}": replace(base, columns=columns, cluster=2 if columns == "cluster_partials" else base.cluster)
    for columns in (*DETERMINISTIC_COLUMNS, "register_atomic")
    for name, base in {"blocks": BLOCKS, "rows side by side": WARPS, "clusters": CLUSTERS}.items()
} | {f"{columns}, blocks": replace(PLAIN, columns=columns) for columns in ("atomic", "shared_atomic")}
FIXED = {name: schedule for name, schedule in WAYS.items() if schedule.columns in DETERMINISTIC_COLUMNS}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMGEN_CACHE_DIR", str(_cache(tmp_path_factory)))


def _cache(factory: pytest.TempPathFactory) -> Path:
    return factory.getbasetemp() / "backward-cache"


class Inputs:
    """dy, x, weight, mean and rstd on the device, and the gradients in float64."""

    def __init__(self, rows: int, cols: int, *, seed: int) -> None:
        random = np.random.default_rng(seed)
        dy, x, weight = (random.standard_normal(s, dtype=np.float32) for s in ((rows, cols), (rows, cols), (cols,)))
        stored = [array.astype(ml_dtypes.bfloat16) for array in (dy, x, weight)]
        dy, x, weight = (array.astype(np.float64) for array in stored)
        mean = x.mean(1)
        rstd = 1 / np.sqrt(x.var(1) + 1e-5)
        arrays = [*stored, mean.astype(np.float32), rstd.astype(np.float32)]
        self.arrays = dict(zip(("dy", "x", "weight", "mean", "rstd"), map(DeviceArray.of, arrays), strict=True))
        normed, scaled = (x - mean[:, None]) * rstd[:, None], dy * weight
        inner = scaled - scaled.mean(1, keepdims=True) - normed * (scaled * normed).mean(1, keepdims=True)
        self.gradients = {"dx": inner * rstd[:, None], "dweight": (dy * normed).sum(0), "dbias": dy.sum(0)}


def close(result: Any, expected: np.ndarray[Any, Any]) -> None:
    """Rounded once to bfloat16: half a last place, 2^-9, and the float32 sums before it."""
    np.testing.assert_allclose(result.numpy().astype(np.float64), expected, rtol=2**-8, atol=2e-3)


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    return Inputs(ROWS, COLS, seed=4)


def made(schedule: Schedule | None = None, **more: Any) -> Kernel:
    return kernel("layernorm", shape=(ROWS, COLS), dtype="bf16", direction="backward", schedule=schedule, **more)


def fixed_bytes(handle: Kernel, queue: int) -> np.ndarray[Any, Any]:
    """What must be zero between calls."""
    return handle._workspaces[queue].read((handle.module.workspace_fixed_bytes,), np.dtype(np.uint8))


@pytest.mark.parametrize("way", FIXED)
def test_twenty_runs_give_identical_bits(way: str, inputs: Inputs) -> None:
    backward = made(FIXED[way], deterministic=True)
    first = [array.numpy().tobytes() for array in backward(**inputs.arrays)]
    for _ in range(19):
        assert [array.numpy().tobytes() for array in backward(**inputs.arrays)] == first


@pytest.mark.parametrize("way", WAYS)
def test_two_streams_with_two_workspaces_run_at_once_without_harm(way: str, inputs: Inputs) -> None:
    from normgen.cuda.stream import Stream

    backward = made(WAYS[way])
    others = Inputs(ROWS // 3, COLS, seed=5)  # other rows: another grid, other partial rows
    sides = (inputs, others)
    outputs = [{name: DeviceArray(want.shape, "bf16") for name, want in side.gradients.items()} for side in sides]
    with Stream() as one, Stream() as two:
        for _ in range(25):  # nothing waits in between: calls of both streams overlap, those of one do not
            for stream, side, written in zip((one, two), sides, outputs, strict=True):
                backward(**side.arrays, **written, stream=stream)
        one.synchronize()
        two.synchronize()
        for side, written in zip(sides, outputs, strict=True):
            for name, want in side.gradients.items():
                close(written[name], want)
        for stream in (one, two):  # ready for the next call
            if backward.module.workspace_fixed_bytes:
                assert not fixed_bytes(backward, stream.handle).any()


@pytest.mark.parametrize("rows", [0, 1, 2, 131, 4000])
@pytest.mark.parametrize("way", FIXED)
def test_a_handle_takes_any_number_of_rows(way: str, rows: int) -> None:
    some = Inputs(rows, COLS, seed=6) if rows else Inputs(1, COLS, seed=6)
    arrays = some.arrays if rows else {n: a if n == "weight" else empty(n) for n, a in some.arrays.items()}
    dx, dweight, dbias = made(FIXED[way])(**arrays)
    if rows:
        close(dx, some.gradients["dx"])
        close(dweight, some.gradients["dweight"])
        close(dbias, some.gradients["dbias"])
    else:
        assert dx.shape == (0, COLS)
        assert not dweight.numpy().any()
        assert not dbias.numpy().any()


def empty(name: str) -> DeviceArray:
    return DeviceArray((0, COLS), "bf16") if name in ("dy", "x") else DeviceArray((0,), "f32")


def test_a_deterministic_handle_covers_unaligned_rows_with_the_same_bits() -> None:
    backward = kernel("layernorm", shape=(257, 999), dtype="bf16", direction="backward", deterministic=True)
    some = Inputs(257, 999, seed=7)
    first = [array.numpy().tobytes() for array in backward(**some.arrays)]
    for _ in range(19):
        assert [array.numpy().tobytes() for array in backward(**some.arrays)] == first
    for result, want in zip(backward(**some.arrays), some.gradients.values(), strict=True):
        close(result, want)


def test_gradients_are_added_to_what_the_caller_gives(inputs: Inputs) -> None:
    backward = made(accumulate=True)
    with pytest.raises(UsageError, match="adds to gradients that the caller gives"):
        backward(**inputs.arrays)
    before = {n: np.full(w.shape, 0.5).astype(ml_dtypes.bfloat16) for n, w in inputs.gradients.items()}
    written = {name: DeviceArray.of(array) for name, array in before.items()}
    backward(**inputs.arrays, **written)
    for name, want in inputs.gradients.items():
        close(written[name], 0.5 + want)


@pytest.mark.parametrize(
    ("gradients", "reads"),
    [(("x",), "dy x weight mean rstd"), (("weight", "bias"), "dy x mean rstd"), (("weight",), "dy x mean rstd")],
)
def test_a_handle_of_some_gradients_takes_and_gives_no_more(
    gradients: tuple[str, ...], reads: str, inputs: Inputs
) -> None:
    backward = made(gradients=gradients)
    results = backward(**{name: inputs.arrays[name] for name in reads.split()})
    results = results if isinstance(results, tuple) else (results,)
    assert len(results) == len(gradients)
    for name, result in zip(gradients, results, strict=True):
        close(result, inputs.gradients[f"d{name}"])


@pytest.mark.parametrize("cluster", [c for c in KNOBS["cluster"].values if c > 1])
def test_a_persistent_grid_has_whole_clusters_and_no_more_than_fit(cluster: int, inputs: Inputs) -> None:
    backward = made(replace(BLOCKS, threads_per_row=32, vector=2, cluster=cluster, persistent=4))
    (main, *_) = backward._bound.loaded.kernels
    blocks = main.grid(1 << 20)
    assert blocks % cluster == 0
    assert 0 < blocks <= min(main.active_clusters() * cluster, 4 * main.sm_count)
    for result, want in zip(backward(**inputs.arrays), inputs.gradients.values(), strict=True):
        close(result, want)
