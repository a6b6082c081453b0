"""Handles whose scales lie in another order than row by row: on numpy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import normgen
from normgen.errors import UsageError
from normgen.python.handle import Kernel
from tests.codegen.test_stored_dtypes import MICROSCALED
from tests.python.devices import NEEDS_COMPILER

pytestmark = NEEDS_COMPILER
Array = np.ndarray[Any, Any]
GROUPS = 5


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Groups of 32 columns, whose scales are powers of two, or f32."""
    file: Path = tmp_path_factory.mktemp("specs") / "microscaled.toml"
    file.write_text(MICROSCALED.replace('["f8e8m0"]', '["f8e8m0", "f32"]').replace(", f8e8m0)", ", scale)"))
    kernels: dict[tuple[str, str], Kernel] = {}

    def kernel(layout: str, dtype: str = "f8e8m0") -> Kernel:
        if (layout, dtype) not in kernels:
            asked: dict[str, Any] = {"dtypes": {"scale": dtype}, "layout": {"scale": layout}}
            kernels[layout, dtype] = normgen.kernel(str(file), shape=(6, 32 * GROUPS), device="cpu", **asked)
        return kernels[layout, dtype]

    return kernel


def rows(*sizes: int) -> Array:
    return np.random.default_rng(sizes).standard_normal((*sizes, 32 * GROUPS)).astype(np.float32)


def steps(array: Array) -> tuple[int, ...]:
    return tuple(step // array.itemsize for step in array.strides)


def bytes_of(words: Array) -> Array:
    """[.., groups and what fills the last word] of words [.., groups / 4]."""
    return np.stack([words >> 8 * i & 0xFF for i in range(4)], axis=-1).reshape(*words.shape[:-1], 4 * words.shape[-1])


@pytest.mark.parametrize("sizes", [(6,), (1,), (2, 3), (0,)])
def test_what_is_allocated_has_the_layout_and_the_values_of_row_major_scales(made: Any, sizes: tuple[int, ...]) -> None:
    x = rows(*sizes)
    q, want = made("row_major", "f32")(x)
    codes, scale = made("column_major", "f32")(x)
    np.testing.assert_array_equal(codes.view(np.uint8), q.view(np.uint8))
    np.testing.assert_array_equal(scale, want)
    assert steps(scale)[-2:] == (1, -(-x[..., 0].size // 4) * 4)
    _, want = made("row_major")(x)
    _, words = made("packed")(x)
    assert (words.dtype, words.shape) == (np.int32, (*sizes, 2))
    assert steps(words)[-2:] == (1, -(-x[..., 0].size // 4) * 4)
    found = bytes_of(words)
    np.testing.assert_array_equal(found[..., :GROUPS], want.view(np.uint8))
    assert not found[..., GROUPS:].any()


def test_scales_go_into_an_array_of_the_callers_own_pitch(made: Any) -> None:
    x, q = rows(6), np.empty((6, 32 * GROUPS), ml_dtypes.float8_e4m3fn)
    _, want = made("row_major", "f32")(x)
    memory = np.full((GROUPS, 11), np.nan, np.float32)
    _, scale = made("column_major", "f32")(x, q=q, scale=memory[:, :6].T)
    np.testing.assert_array_equal(scale, want)
    assert np.isnan(memory[:, 6:]).all()
    words = np.full((2, 7), -1, np.int32)
    made("packed")(x, q=q, scale=words[:, :6].T)
    np.testing.assert_array_equal(bytes_of(words[:, :6].T), bytes_of(made("packed")(x)[1]))
    assert (words[:, 6:] == -1).all()


MISFITS = {
    "shape of 'scale': expected \\[.., 5\\], of 5 groups": ("column_major", np.empty((4, 6), np.float32).T),
    "stride of 'scale': expected rows side by side": ("column_major", np.empty((6, GROUPS), np.float32)),
    "stride of 'scale': expected columns at least rows = 6 apart": (
        "column_major",
        np.ndarray((6, GROUPS), np.float32, np.empty(64, np.float32), strides=(4, 20)),
    ),
    "dtype of 'scale': expected i32": ("packed", np.empty((8, 6), np.uint8).T),
    "shape of 'scale': expected \\[.., 2\\], of 2 words": ("packed", np.empty((GROUPS, 6), np.int32).T),
    "address of 'scale': expected a multiple of 4 bytes": (
        "packed",
        np.ndarray((6, 2), np.int32, np.empty(128, np.uint8), offset=1, strides=(4, 32)),
    ),
}


@pytest.mark.parametrize(("rule", "given"), MISFITS.items())
def test_an_array_that_does_not_fit_the_layout_is_refused(made: Any, rule: str, given: tuple[str, Array]) -> None:
    layout, scale = given
    kernel = made(layout, "f32" if layout == "column_major" else "f8e8m0")
    with pytest.raises(UsageError, match=rule):
        kernel(rows(6), q=np.empty((6, 32 * GROUPS), ml_dtypes.float8_e4m3fn), scale=scale)


def test_scales_share_no_memory_with_another_array(made: Any) -> None:
    memory = np.zeros((GROUPS * 8 + 6 * 32 * GROUPS,), np.float32)
    x = memory[GROUPS * 8 - 2 :][: 6 * 32 * GROUPS].reshape(6, -1)  # the last column has its rows 0 to 5 of 8 before it
    q = np.empty((6, 32 * GROUPS), ml_dtypes.float8_e4m3fn)
    scale = memory[: GROUPS * 8].reshape(GROUPS, 8)[:, :6].T
    made("column_major", "f32")(x, q=q, scale=scale)
    with pytest.raises(UsageError, match="must not share memory"):
        made("column_major", "f32")(memory[GROUPS * 8 - 3 :][: x.size].reshape(6, -1), q=q, scale=scale)
