"""Kernels of tensor cores on a GPU, against float64: many shapes, both orders of w, and schedules across the space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from normgen.cuda.driver import device_facts
from normgen.cuda.pool import CompilePool
from normgen.knobs import Fragment
from normgen.measure.gpu import GpuBench
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.place import Context, Place, Setting
from normgen.schedule.legality import refusal
from normgen.schedule.schedule import Schedule, schedule_from
from normgen.spec.reader import load
from tests.codegen.tiles.asked import ASKED, TURNED, spread

pytestmark = pytest.mark.gpu
ALONE = Place(context=Context.ALONE, setting=Setting.COLD)
TEAM = {"hold": "shared", "copy": "bulk", "fragment": "wgmma", "vector": 8, "tile_k": 64}
WORDS = {"vector": 4, "tile_k": 32}
TILES = [  # tile_m, thread_m, tile_n, stages
    *((64, 2, 64, 2), (64, 2, 64, 8), (64, 2, 128, 8), (64, 2, 256, 4), (128, 2, 64, 6), (128, 4, 64, 8)),
    *((128, 2, 128, 3), (128, 4, 128, 6), (128, 2, 256, 2), (128, 2, 256, 4), (256, 4, 64, 4), (256, 4, 128, 4)),
    *((64, 2, 96, 10), (64, 2, 64, 12), (128, 2, 224, 5), (128, 4, 160, 5), (256, 4, 192, 4)),
]
PARTS = [(64, 2, 64, 12, 2), (64, 2, 96, 8, 4), (128, 2, 128, 5, 2), (128, 4, 96, 2, 4)]  # ... and cluster
OF_TEAMS: list[tuple[str, str, int, str]] = [
    *(("linear", "1x8", 8, "bf16"), ("linear", "63x72", 56, "f16"), ("linear", "129x264", 72, "bf16")),
    *(("linear", "1000x2008", 3000, "bf16"), ("linear", "5000x136", 520, "f16"), ("linear", "2048x4096", 1024, "bf16")),
    *(("linear_tf32", "63x68", 60, "f32"), ("linear_tf32", "1000x2004", 3000, "f32")),
    *(("linear_add", "300x520", 200, "bf16"), ("linear_bias_gelu", "1200x768", 264, "f16")),
    *(("linear_add", "5000x1032", 72, "f16"), ("linear_add_rms", "1200x776", 264, "bf16")),
    *(("linear_add_rms", "4096x264", 200, "f16"), ("linear_add_rms", "20000x520", 72, "bf16")),
]
# Blocks that share a tile need some of k each, and reduce no rows.
OF_PARTS = [asked for asked in OF_TEAMS if asked[2] >= 200 and asked[0] != "linear_add_rms"]


@pytest.mark.parametrize(("op", "shape", "inner", "dtype"), OF_TEAMS, ids=str)
def test_teams_are_right_with_every_tile(op: str, shape: str, inner: int, dtype: str) -> None:
    problem = problem_for(load(op), shape=shape, inner=inner, dtype=dtype, layout=TURNED)
    schedules = teams(dtype, TILES)
    assert all(refusal(problem, schedule, device_facts(0)) is None for schedule in schedules)
    assert not wrong(problem, schedules)


@pytest.mark.parametrize(("op", "shape", "inner", "dtype"), OF_PARTS, ids=str)
def test_teams_that_share_k_are_right(op: str, shape: str, inner: int, dtype: str) -> None:
    """Clusters of one wave, and of more."""
    problem = problem_for(load(op), shape=shape, inner=inner, dtype=dtype, layout=TURNED)
    legal = [schedule for schedule in teams(dtype, PARTS) if refusal(problem, schedule, device_facts(0)) is None]
    assert len(legal) >= 2
    assert not wrong(problem, legal)


def teams(dtype: str, tiles: Sequence[tuple[int, ...]]) -> list[Schedule]:
    names, words = ("tile_m", "thread_m", "tile_n", "stages", "cluster"), WORDS if dtype == "f32" else {}
    knobs = [dict(zip(names, tile, strict=False)) for tile in tiles]
    return [schedule_from({**TEAM, **words, **tile, "thread_n": tile["tile_n"] // 4}) for tile in knobs]


def wrong(problem: Problem, schedules: Sequence[Schedule]) -> list[str]:
    facts = device_facts(0)
    bench = GpuBench(problem, facts, index=0, place=ALONE, seed=0)
    modules = [emit(problem, schedule) for schedule in schedules]
    found: list[str] = []
    try:
        with CompilePool(8) as pool:
            cubins = [pool.submit(module, facts.arch) for module in modules]
            for schedule, module, cubin in zip(schedules, modules, cubins, strict=True):
                bench.load(schedule.key, module, cubin.result())
                check = bench.check(schedule.key, full=schedule is schedules[0])
                found += [] if check.ok else [f"{schedule}: {check.summary}"]
                bench.unload(schedule.key)
    finally:
        bench.close()
    return found


@pytest.mark.parametrize(("op", "shape", "inner", "dtype", "asked"), ASKED, ids=str)
def test_a_kernel_of_tensor_cores_is_right(op: str, shape: str, inner: int, dtype: str, asked: dict[str, Any]) -> None:
    problem = problem_for(load(op), shape=shape, inner=inner, dtype=dtype, **asked)
    schedules = [s for s in spread(problem, device_facts(0)) if s.fragment is not Fragment.SIMT]
    assert schedules, "the space is that of tensor cores"
    assert not wrong(problem, schedules)
