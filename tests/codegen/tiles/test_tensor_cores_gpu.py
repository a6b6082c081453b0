"""Kernels of tensor cores on a GPU, against float64: many shapes, both orders of w, and schedules across the space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from normgen.choice.first import default_schedule
from normgen.cuda.driver import device_facts
from normgen.cuda.pool import CompilePool
from normgen.knobs import Fragment
from normgen.measure.gpu import GpuBench
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.records.place import Context, Place, Setting
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import space
from normgen.spec.reader import load

pytestmark = pytest.mark.gpu
ALONE = Place(context=Context.ALONE, setting=Setting.COLD)
TURNED = {"w": "cols_inner"}
BOTH_TURNED = {"w_gate": "cols_inner", "w_up": "cols_inner"}
OF_NORM = {"without": ("weight",)}
BACK: dict[str, Any] = {"direction": "backward"}
ASKED: list[tuple[str, str, int, str, dict[str, Any]]] = [
    ("linear", "1x1", 1, "bf16", {}),
    ("linear", "1x8", 8, "f16", {}),
    ("linear", "7x9", 5, "bf16", {"layout": TURNED}),
    ("linear", "16x16", 32, "f16", {"layout": TURNED}),
    ("linear", "37x29", 19, "f16", {}),
    ("linear", "64x64", 64, "bf16", {}),
    ("linear", "127x128", 129, "bf16", {}),
    ("linear", "128x256", 512, "f16", {}),
    ("linear", "129x264", 520, "bf16", {"layout": TURNED}),
    ("linear", "255x250", 126, "f16", {"layout": TURNED}),
    ("linear", "257x252", 132, "bf16", {}),
    ("linear", "16x4096", 4096, "bf16", {"layout": TURNED}),
    ("linear", "64x4096", 4096, "bf16", {}),
    ("linear", "300x1000", 4096, "f16", {"layout": TURNED}),
    ("linear", "1024x1024", 1024, "bf16", {"layout": TURNED}),
    ("linear", "1000x2000", 3000, "bf16", {}),
    ("linear", "2000x1001", 777, "f16", {}),
    ("linear", "4096x2048", 1024, "f16", {}),
    ("linear_bias_gelu", "129x136", 264, "bf16", {}),
    ("linear_bias_gelu", "512x768", 1024, "f16", {"layout": TURNED}),
    ("linear_swiglu", "65x72", 88, "bf16", {}),
    ("linear_swiglu", "256x512", 1024, "f16", {"layout": BOTH_TURNED}),
    ("linear_swiglu", "1024x1376", 512, "bf16", {"layout": BOTH_TURNED}),
    ("linear_add", "200x328", 456, "bf16", {}),
    ("linear_add_rms", "130x264", 328, "bf16", {"layout": TURNED}),
    ("rmsnorm_linear", "100x200", 304, "bf16", OF_NORM),
    ("rmsnorm_linear", "512x1024", 768, "f16", OF_NORM | {"layout": TURNED}),
    ("bmm", "6x40x72", 56, "bf16", {}),
    ("bmm", "4x200x128", 264, "f16", {}),
    ("linear", "1x4096", 4096, "bf16", {"layout": TURNED}),
    ("linear", "4x1000", 4104, "f16", {"layout": TURNED}),
    ("linear", "64x1000", 776, "bf16", {"layout": TURNED}),
    ("linear", "1x4096", 4096, "bf16", {}),
    ("linear", "5x1000", 776, "f16", {}),
    ("linear_swiglu", "4x1376", 4096, "bf16", {"layout": BOTH_TURNED}),
    ("linear_add_rms", "3x1000", 2048, "f16", {"layout": TURNED}),
    ("rmsnorm_linear", "16x512", 4096, "bf16", OF_NORM | {"layout": TURNED}),
    ("linear", "130x72", 136, "bf16", BACK | {"gradients": ("x",)}),
    ("linear", "130x72", 136, "f16", BACK | {"gradients": ("w", "bias")}),
    ("linear", "520x256", 384, "bf16", BACK | {"gradients": ("w",), "layout": TURNED}),
]
EACH = 8  # schedules of a problem


def spread(problem: Problem) -> list[Schedule]:
    """The default, and schedules from all parts of the space."""
    legal = space(problem, device_facts(0)).legal
    count = len(legal)
    picked = dict.fromkeys(
        [default_schedule(problem, device_facts(0)), *(legal[i * count // EACH] for i in range(EACH))]
    )
    return [s for s in picked if s.fragment is Fragment.MMA]


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
    schedules = spread(problem)
    assert schedules, "the space is that of tensor cores"
    assert not wrong(problem, schedules)
