"""Spaces and predictions of problems of all kinds, drawn once: `python -m tests.schedule.drawn` draws them again.

A change of a rule or of the model changes them; a change of how points are enumerated or predicted does not.

    tests/data/spaces.json.xz   problem -> the legal schedules (how many, a hash of them in their order), a hash of the
                                refusals with their counts, and for some of the schedules the model's us: cold, hot, and
                                with a compiler's figures
"""

from __future__ import annotations

import hashlib
import json
import lzma
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from normgen.cost.model import predicted_us
from normgen.device import TARGETS, Device
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import Space, space
from normgen.spec.reader import load
from tests.verify.contraction import linear

FILE = Path(__file__).parents[1] / "data" / "spaces.json.xz"
SAMPLED = 40
FIGURES = {"registers": 72, "spill_bytes": 48, "static_shared_bytes": 512, "dynamic_shared_bytes": 8192}

# name of a spec, shape, dtype, what else is asked, device
ASKED: tuple[tuple[str, str, str, dict[str, Any], str], ...] = (
    ("layernorm", "8192x16384", "bf16", {}, "h200"),
    ("layernorm", "8192x768", "bf16", {}, "h200"),
    ("layernorm", "8x1024x768", "f32", {}, "t4"),
    ("layernorm", "4096x4097", "bf16", {"align": 2}, "h100"),
    ("layernorm", "1024x1000", "f16", {"any_cols": True}, "h200"),
    ("layernorm", "3x7", "f32", {}, "a100"),
    ("layernorm", "65536x128", "bf16", {"pitch": 131, "align": 2}, "h200"),
    ("layernorm", "4096x2048", "bf16", {"dtypes": {"weight": "f32", "bias": "f32"}}, "h200"),
    ("layernorm", "4096x1024", "bf16", {"without": ["bias"], "batch_invariant": True}, "h200"),
    ("layernorm", "8192x4096", "bf16", {"direction": "backward"}, "h200"),
    ("layernorm", "512x2048", "f32", {"direction": "backward", "deterministic": True}, "a100"),
    ("layernorm", "300x1000", "bf16", {"direction": "backward", "any_cols": True}, "h200"),
    ("layernorm", "8192x1024", "bf16", {"direction": "backward", "gradients": ["x"]}, "h200"),
    ("layernorm", "3200x196", "f32", {"col_stride": 50}, "h200"),
    ("layernorm", "3200x196", "bf16", {"col_stride": 50, "direction": "backward"}, "h100"),
    ("rmsnorm", "1x8192", "bf16", {}, "h200"),
    ("rmsnorm", "64x1048576", "bf16", {"direction": "backward"}, "h200"),
    ("rmsnorm", "2048x8192", "f32", {}, "b200"),
    ("rmsnorm", "4096x5120", "bf16", {"direction": "backward"}, "b200"),
    ("rmsnorm", "64x4096", "f32", {"stable_parameters": True}, "h100"),
    ("rmsnorm", "131072x64", "f16", {}, "l4"),
    ("softmax", "16x4194304", "f32", {}, "h200"),
    ("softmax", "2048x65536", "bf16", {}, "h200"),
    ("softmax", "64x760", "f32", {}, "h200"),
    ("softmax", "4096x1023", "bf16", {}, "h200"),
    ("softmax", "4096x50257", "bf16", {"direction": "backward"}, "h200"),
    ("softmax", "6272x512", "bf16", {"col_stride": 196}, "h200"),
    ("softmax", "64x16", "f32", {"col_stride": 8}, "a100"),
    ("log_softmax", "4096x32000", "f32", {}, "h100"),
    ("cross_entropy", "4096x32000", "bf16", {}, "h200"),
    ("cross_entropy", "2048x50257", "bf16", {"direction": "backward"}, "h200"),
    ("add_rmsnorm", "4096x5120", "bf16", {"in_place": {"h": "residual"}}, "h200"),
    ("add_rmsnorm", "12015x5376", "bf16", {"direction": "backward"}, "h200"),
    ("add_layernorm", "16384x1024", "f16", {}, "h100"),
    ("swiglu", "16x2048", "bf16", {}, "h200"),
    ("swiglu", "4636x4544", "bf16", {"direction": "backward"}, "h200"),
    ("geglu", "8192x11008", "bf16", {}, "a100"),
    ("adaln", "4x256x1152", "bf16", {}, "h200"),
    ("adaln", "4x256x1152", "bf16", {"direction": "backward"}, "h200"),
    ("dyt", "4096x4096", "bf16", {"direction": "backward"}, "h200"),
    ("full_sum", "16x4096", "f32", {}, "h200"),
    ("row_sum", "100000x31", "f32", {}, "h200"),
    ("qk_norm_rope", "512x32x128", "bf16", {}, "h200"),
    ("head_layernorm", "512x16x64", "bf16", {}, "h200"),
    ("gate_rmsnorm", "4096x2048", "bf16", {}, "h200"),
    ("rmsnorm_to_fp8_token", "4096x4096", "bf16", {}, "h200"),
    ("quantize_to_fp8_group", "8192x4096", "bf16", {}, "h200"),
    ("silu_mul_to_fp8_group", "16x6144", "bf16", {}, "h100"),
    ("add_rmsnorm_to_nvfp4", "4096x4096", "bf16", {}, "b200"),
    ("quantize_to_int8_group", "1024x4096", "f32", {}, "t4"),
    ("linear", "4096x1024", "f32", {"inner": 512}, "h200"),
    ("linear_swiglu", "100x200", "f32", {"inner": 300}, "a100"),
    ("softmax_v", "64x64", "f32", {"inner": 1024}, "h200"),
)


def named() -> dict[str, tuple[Problem, Device]]:
    """What is drawn: a name for each problem, on its device."""
    return {
        " ".join(map(str, (op, shape, dtype, *(f"{k}={v}" for k, v in more.items()), device))): (
            problem_for(load(op), shape=shape, dtype=dtype, **more),
            TARGETS[device],
        )
        for op, shape, dtype, more, device in ASKED
    } | {f"product {name}": (linear.problem_of(name, (256, 192, 64)), TARGETS["h200"]) for name in linear.FORMULAS}


def digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def facts_of(found: Space) -> dict[str, Any]:
    """What of a space must not change."""
    refused = [f"{r.count} {r.reason}" for r in found.refusals]
    return {"legal": len(found), "schedules": digest(map(str, found.legal)), "refusals": digest(refused)}


def us_of(problem: Problem, schedule: Schedule, device: Device) -> list[float]:
    return [
        predicted_us(problem, schedule, device),
        predicted_us(problem, schedule, device, hot=True),
        predicted_us(problem, schedule, device, FIGURES),
    ]


def drawn() -> dict[str, Any]:
    """The file's content."""
    with lzma.open(FILE, "rt") as file:
        found: dict[str, Any] = json.load(file)
    return found


def draw() -> None:
    content = {}
    for name, (problem, device) in named().items():
        found = space(problem, device)
        sample = random.Random(name).sample(range(len(found)), min(SAMPLED, len(found)))
        predicted = {str(s): us_of(problem, s, device) for s in (found.legal[i] for i in sorted(sample))}
        content[name] = {**facts_of(found), "predicted": predicted}
        print(f"{len(found):6d} {name}")
    FILE.write_bytes(lzma.compress(json.dumps(content, indent=0).encode(), preset=9))


if __name__ == "__main__":
    draw()
