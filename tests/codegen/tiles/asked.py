"""Products on tensor cores: all edges, both orders of matrices, both directions, and schedules across the space."""

from __future__ import annotations

from typing import Any

from normgen.choice.first import default_schedule
from normgen.device import Device
from normgen.problem.problem import Problem
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import space

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
    ("linear_tf32", "1x4", 4, "f32", {"layout": TURNED}),
    ("linear_tf32", "7x9", 5, "f32", {"layout": TURNED}),
    ("linear_tf32", "129x260", 516, "f32", {"layout": TURNED}),
    ("linear_tf32", "64x4096", 4096, "f32", {"layout": TURNED}),
    ("linear_tf32", "1000x2000", 3000, "f32", {"layout": TURNED}),
    ("linear_tf32", "2048x2048", 1024, "f32", {"layout": TURNED}),
    ("linear", "130x72", 136, "bf16", BACK | {"gradients": ("x",)}),
    ("linear", "130x72", 136, "f16", BACK | {"gradients": ("w", "bias")}),
    ("linear", "520x256", 384, "bf16", BACK | {"gradients": ("w",), "layout": TURNED}),
]
EACH = 8  # schedules of a problem


def spread(problem: Problem, device: Device) -> list[Schedule]:
    """The default, and schedules from all parts of the space."""
    legal = space(problem, device).legal
    count = len(legal)
    return [*dict.fromkeys([default_schedule(problem, device), *(legal[i * count // EACH] for i in range(EACH))])]
