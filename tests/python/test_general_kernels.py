"""Whatever the layout, some kernel covers it and is right; the CPU executor faults on what is misaligned."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from normgen.choice.first import default_schedule
from normgen.program.source import problem_for
from normgen.python.executor import executor_for
from normgen.python.handle import Kernel, kernel
from normgen.spec.reader import load
from tests.python.devices import Array, Place, nan

ROWS, COLS = 5, 3072  # shorter rows of bf16 are read element by element at once, and cover every layout
NUMPY = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}
TOLERANCE = {"f32": 2e-5, "bf16": 3e-2}


@pytest.fixture(params=sorted(NUMPY))
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _norm(place: Place, dtype: str) -> Kernel:
    """With the default schedule, whatever records there are."""
    facts = executor_for(place.device).facts
    schedule = default_schedule(problem_for(load("layernorm"), shape=(ROWS, COLS), dtype=dtype), facts)
    return kernel("layernorm", shape=(ROWS, COLS), dtype=dtype, device=place.device, schedule=schedule)


def _tier(norm: Kernel) -> int:
    """How many kernels have passed on the calls of a new handle: each makes the next one on first need."""
    return 0 if norm._general is None else 1 + _tier(norm._general)


def _values(dtype: str, *shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(NUMPY[dtype])


def _window(place: Place, values: Array, *, offset: int, pitch: int) -> Any:
    """The values `offset` elements behind a multiple of 256 bytes, rows `pitch` elements apart."""
    flat = np.zeros(offset + (len(values) * pitch if values.ndim == 2 else len(values)), values.dtype)
    strides = (pitch, 1)[-values.ndim :]
    np.lib.stride_tricks.as_strided(flat[offset:], values.shape, [s * flat.itemsize for s in strides])[...] = values
    return place.window(flat, offset, values.shape, strides)


# offset and pitch of x, of y -> which kernel: 0 tuned, 1 peeled, 2 element by element
LAYOUTS = {
    "aligned": ((0, 3072), (0, 3072), 0),
    "wide aligned rows": ((0, 4096), (0, 3072), 0),
    "all shifted alike": ((3, 3072), (3, 3072), 1),
    "odd rows, alike": ((1, 3075), (1, 3075), 1),
    "x shifted": ((1, 3072), (0, 3072), 2),
    "odd rows of x": ((0, 3075), (0, 3072), 2),
    "y shifted": ((0, 3072), (2, 3072), 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_first_kernel_that_covers_a_layout_runs_on_it_without_a_fault(
    layout: str, dtype: str, place: Place
) -> None:
    (x_offset, x_pitch), (y_offset, y_pitch), tier = LAYOUTS[layout]
    x, y = _values(dtype, ROWS, COLS, seed=1), nan(ROWS, COLS, dtype=dtype)
    w, b = _values(dtype, COLS, seed=3), _values(dtype, COLS, seed=4)
    out = _window(place, y, offset=y_offset, pitch=y_pitch)
    mean = place.array(nan(ROWS))
    norm = _norm(place, dtype)
    norm(
        _window(place, x, offset=x_offset, pitch=x_pitch),
        place.array(w),
        place.array(b),
        out=out,
        mean=mean,
    )
    assert _tier(norm) == tier
    x, w, b = (array.astype(np.float64) for array in (x, w, b))
    means = x.mean(-1, keepdims=True)
    expected = (x - means) / np.sqrt(((x - means) ** 2).mean(-1, keepdims=True) + 1e-5) * w + b
    found = place.values(out).astype(np.float64)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    np.testing.assert_allclose(place.values(mean), means[:, 0], atol=1e-6)


@pytest.mark.parametrize(("dtype", "tier"), [("f32", 1), ("bf16", 2)], indirect=["dtype"])
def test_a_parameter_aligned_to_two_bytes_only_is_read_element_by_element(dtype: str, tier: int, place: Place) -> None:
    """Peeled kernels read parameters that are aligned to four bytes, the largest element of a bf16 problem too."""
    norm, ones = _norm(place, dtype), np.ones(COLS, NUMPY[dtype])
    weight = _window(place, ones, offset=1, pitch=COLS)
    norm(place.array(_values(dtype, ROWS, COLS, seed=1)), weight, place.array(ones))
    assert _tier(norm) == tier
