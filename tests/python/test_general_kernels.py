"""Whatever the layout, some kernel covers it and is right: run on the CPU executor, which faults on misalignment."""

from __future__ import annotations

import functools
import shutil
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen import cpu
from normgen.codegen.module import Module
from normgen.cuda.arrays import ArrayView
from normgen.device import target
from normgen.dtypes import DTYPES
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import problem_for
from normgen.python.arguments import expectations, misfit
from normgen.python.handle import general_schedules
from normgen.schedule.default import default_schedule
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load

pytestmark = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="the CPU executor needs a C++ compiler"
)

ROWS, COLS = 5, 768
NUMPY = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}
TOLERANCE = {"f32": 2e-5, "bf16": 3e-2}
DTYPE_OF = {np.dtype(NUMPY[name]): DTYPES[name] for name in NUMPY}


@functools.cache
def _tiers(dtype: str) -> tuple[tuple[Problem, Schedule, Module], ...]:
    """The kernel made for aligned rows, then the general ones."""
    problem = problem_for(load("layernorm"), shape=(ROWS, COLS), dtype=dtype)
    facts = target("h200")
    pairs = [(problem, default_schedule(problem, facts)), *general_schedules(problem, facts)]
    return tuple((p, s, emit(p, s)) for p, s in pairs)


@functools.cache
def _built(dtype: str, tier: int) -> cpu.Program:
    return cpu.build(_tiers(dtype)[tier][2])


def _window(shape: tuple[int, ...], dtype: str, *, offset: int, pitch: int, seed: int) -> np.ndarray[Any, Any]:
    """Random values `offset` elements behind a multiple of 256 bytes, rows `pitch` elements apart."""
    kind = np.dtype(NUMPY[dtype])
    count = offset + (shape[0] * pitch if len(shape) == 2 else shape[0])
    memory = np.zeros(count * kind.itemsize + 256, np.uint8)
    start = -memory.ctypes.data % 256
    flat = memory[start : start + count * kind.itemsize].view(kind)
    flat[:] = np.random.default_rng(seed).standard_normal(count).astype(kind)
    strides = (pitch * kind.itemsize, kind.itemsize) if len(shape) == 2 else (kind.itemsize,)
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, strides)


def _view(array: np.ndarray[Any, Any]) -> ArrayView:
    steps = tuple(step // array.itemsize for step in array.strides)
    return ArrayView(array.ctypes.data, array.shape, steps, DTYPE_OF[array.dtype].name, 0, False, None, array)


def _covering_tier(dtype: str, arrays: dict[str, np.ndarray[Any, Any]]) -> int:
    views = {name: _view(array) for name, array in arrays.items()}
    for tier, (problem, schedule, module) in enumerate(_tiers(dtype)):
        expected = expectations(problem, schedule, module)
        placed = {name: expected[name].place(view, device=0) for name, view in views.items()}
        if not misfit(problem, schedule, views, placed):
            return tier
    raise AssertionError("the last kernel must cover every layout")


# offset and pitch of x, of y, offset of the weight -> which kernel: 0 tuned, 1 peeled, 2 element by element
LAYOUTS = {
    "aligned": ((0, 768), (0, 768), 0, 0),
    "wide aligned rows": ((0, 1024), (0, 768), 0, 0),
    "all shifted alike": ((3, 768), (3, 768), 0, 1),
    "odd rows, alike": ((1, 771), (1, 771), 0, 1),
    "x shifted": ((1, 768), (0, 768), 0, 2),
    "odd rows of x": ((0, 771), (0, 768), 0, 2),
    "y shifted": ((0, 768), (2, 768), 0, 2),
}


@pytest.mark.parametrize("dtype", sorted(NUMPY))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_kernel_that_says_it_covers_a_layout_runs_on_it_without_a_fault(layout: str, dtype: str) -> None:
    (x_offset, x_pitch), (y_offset, y_pitch), w_offset, tier = LAYOUTS[layout]
    arrays = {
        "x": _window((ROWS, COLS), dtype, offset=x_offset, pitch=x_pitch, seed=1),
        "y": _window((ROWS, COLS), dtype, offset=y_offset, pitch=y_pitch, seed=2),
        "weight": _window((COLS,), dtype, offset=w_offset, pitch=COLS, seed=3),
        "bias": _window((COLS,), dtype, offset=0, pitch=COLS, seed=4),
        "mean": _window((ROWS,), "f32", offset=0, pitch=ROWS, seed=5),
        "rstd": _window((ROWS,), "f32", offset=0, pitch=ROWS, seed=6),
    }
    assert _covering_tier(dtype, arrays) == tier
    run = _built(dtype, tier).run(arrays, rows=ROWS, cols=COLS, scalars={"eps": 1e-5})
    assert run.faults == ()
    x, w, b = (arrays[name].astype(np.float64) for name in ("x", "weight", "bias"))
    mean = x.mean(-1, keepdims=True)
    expected = (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * w + b
    found = arrays["y"].astype(np.float64)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    np.testing.assert_allclose(arrays["mean"], mean[:, 0], atol=1e-6)


def test_a_parameter_aligned_to_two_bytes_only_is_read_element_by_element() -> None:
    arrays = {
        "x": _window((ROWS, COLS), "bf16", offset=0, pitch=COLS, seed=1),
        "weight": _window((COLS,), "bf16", offset=1, pitch=COLS, seed=3),
    }
    assert _covering_tier("bf16", arrays) == 2
