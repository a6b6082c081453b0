"""First choices of large products whose sizes are no round numbers, run on few rows: a schedule is right for any."""

from __future__ import annotations

from typing import Any

import pytest

from normgen.choice.first import default_schedule
from normgen.cpu import find_compiler
from normgen.device import target
from normgen.measure.cpu_check import check_on_cpu
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.schedule.legality import refusal
from normgen.spec.reader import load
from tests import samples

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
H200 = target("h200")
TURNED: dict[str, Any] = {"layout": {"w": "cols_inner"}}
BOTH: dict[str, Any] = {"layout": {"w_gate": "cols_inner", "w_up": "cols_inner"}}
# Operation, dtype, what else is asked, the large problem, and one with the same ends of vectors and tiles.
LARGE: list[tuple[str, str, dict[str, Any], tuple[str, int], tuple[str, int]]] = [
    ("linear_cross_entropy", "f16", {}, ("8192x151643", 4096), ("70x411", 136)),
    ("softmax_v", "bf16", {}, ("16x4096x64", 1023), ("2x70x64", 137)),
    ("softmax_v", "f16", {}, ("16x4096x31", 1024), ("2x70x31", 136)),
    ("rmsnorm_linear", "bf16", TURNED, ("5x6144", 4096), ("5x104", 264)),
    ("linear_cross_entropy", "bf16", {}, ("4096x50257", 768), ("70x401", 72)),
    ("linear_cross_entropy_grad", "bf16", {}, ("4096x3142", 768), ("70x398", 72)),
    ("linear_add_rms", "bf16", TURNED, ("4096x4100", 4104), ("70x260", 136)),
    ("linear_add", "f16", TURNED, ("4096x14336", 4096), ("70x352", 136)),
    ("linear_swiglu", "bf16", BOTH, ("4096x11008", 4096), ("70x448", 136)),
    ("causal_softmax_v", "bf16", {}, ("16x4096x128", 4095), ("2x137x128", 137)),
]


@pytest.mark.parametrize(("op", "dtype", "asked", "large", "small"), LARGE[: samples.sized(4, len(LARGE))], ids=str)
def test_a_first_choice_is_right_on_few_rows_too(
    op: str, dtype: str, asked: dict[str, Any], large: tuple[str, int], small: tuple[str, int]
) -> None:
    of_large, of_small = (
        problem_for(load(op), shape=shape, inner=inner, dtype=dtype, **asked) for shape, inner in (large, small)
    )
    schedule = default_schedule(of_large, H200)
    assert refusal(of_small, schedule, H200) is None
    check = check_on_cpu(of_small, emit(of_small, schedule))
    assert check.ok, check.summary
