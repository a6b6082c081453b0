"""Handles whose scales lie in another order than row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import normgen
from normgen.cuda.arrays import view
from normgen.errors import UsageError
from normgen.python.handle import Kernel
from tests.codegen.test_stored_dtypes import MICROSCALED
from tests.python.devices import Array, Place

pytestmark = pytest.mark.filterwarnings("ignore:no record for")
GROUPS = 5
COLS = 32 * GROUPS


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, place: Place) -> Any:
    """Groups of 32 columns, whose scales are powers of two, or f32."""
    file: Path = tmp_path_factory.mktemp("specs") / "microscaled.toml"
    file.write_text(MICROSCALED.replace('["f8e8m0"]', '["f8e8m0", "f32"]').replace(", f8e8m0)", ", scale)"))
    kernels: dict[str, Kernel] = {}

    def kernel(layout: str, dtype: str = "f8e8m0") -> Kernel:
        if layout + dtype not in kernels:
            asked: dict[str, Any] = {"dtypes": {"scale": dtype}, "layout": {"scale": layout}}
            kernels[layout + dtype] = normgen.kernel(str(file), shape=(6, COLS), device=place.device, **asked)
        return kernels[layout + dtype]

    return kernel


def rows(*sizes: int) -> Array:
    return np.random.default_rng(sizes).standard_normal((*sizes, COLS)).astype(np.float32)


def codes(place: Place) -> Any:
    return place.array(np.zeros((6, COLS), ml_dtypes.float8_e4m3fn))


def bytes_of(words: Array) -> Array:
    """[.., groups and what fills the last word] of words [.., groups / 4]."""
    return np.stack([words >> 8 * i & 0xFF for i in range(4)], axis=-1).reshape(*words.shape[:-1], 4 * words.shape[-1])


@pytest.mark.parametrize("sizes", [(6,), (1,), (2, 3), (0,)])
def test_what_is_allocated_has_the_layout_and_the_values_of_row_major_scales(
    made: Any, place: Place, sizes: tuple[int, ...]
) -> None:
    x = place.array(rows(*sizes))
    pitch = -(-np.prod(sizes) // 4) * 4
    q, want = made("row_major", "f32")(x)
    other, scale = made("column_major", "f32")(x)
    assert view(scale).strides[-2:] == (1, pitch)
    np.testing.assert_array_equal(place.values(other).view(np.uint8), place.values(q).view(np.uint8))
    np.testing.assert_array_equal(place.values(scale), place.values(want))
    _, want = made("row_major")(x)
    _, words = made("packed")(x)
    assert (view(words).dtype, view(words).shape) == ("i32", (*sizes, 2))
    assert view(words).strides[-2:] == (1, pitch)
    found = bytes_of(place.values(words))
    np.testing.assert_array_equal(found[..., :GROUPS], place.values(want).view(np.uint8))
    assert not found[..., GROUPS:].any()


def test_scales_go_into_an_array_of_the_callers_own_pitch(made: Any, place: Place) -> None:
    x = place.array(rows(6))
    _, want = made("row_major", "f32")(x)
    memory = place.array(np.full((GROUPS, 11), np.nan, np.float32))
    _, scale = made("column_major", "f32")(x, q=codes(place), scale=place.part(memory, (6, GROUPS), (1, 11)))
    np.testing.assert_array_equal(place.values(scale), place.values(want))
    assert np.isnan(place.values(memory)[:, 6:]).all()
    _, want = made("packed")(x)
    memory = place.array(np.full((2, 7), -1, np.int32))
    _, words = made("packed")(x, q=codes(place), scale=place.part(memory, (6, 2), (1, 7)))
    np.testing.assert_array_equal(place.values(words), place.values(want))
    assert (place.values(memory)[:, 6:] == -1).all()


MISFITS = {  # the layout; the dtype, byte offset, shape and strides of an array
    "shape of 'scale': expected \\[.., 5\\], of 5 groups": ("column_major", "f4", 0, (6, 4), (1, 6)),
    "stride of 'scale': expected rows side by side": ("column_major", "f4", 0, (6, GROUPS), (GROUPS, 1)),
    "stride of 'scale': expected columns at least rows = 6 apart": ("column_major", "f4", 0, (6, GROUPS), (1, 5)),
    "dtype of 'scale': expected i32": ("packed", "u1", 0, (6, 8), (1, 6)),
    "shape of 'scale': expected \\[.., 2\\], of 2 words": ("packed", "i4", 0, (6, GROUPS), (1, 6)),
    "address of 'scale': expected a multiple of 4 bytes": ("packed", "i4", 1, (6, 2), (1, 8)),
}


@pytest.mark.parametrize(("rule", "given"), MISFITS.items())
def test_an_array_that_does_not_fit_the_layout_is_refused(
    made: Any, place: Place, rule: str, given: tuple[str, str, int, tuple[int, ...], tuple[int, ...]]
) -> None:
    layout, dtype, offset, shape, strides = given
    kernel = made(layout, "f32" if layout == "column_major" else "f8e8m0")
    scale = place.window(np.zeros(256, np.uint8), offset, shape, strides, dtype)
    with pytest.raises(UsageError, match=rule):
        kernel(place.array(rows(6)), q=codes(place), scale=scale)


def test_scales_share_no_memory_with_another_array(made: Any, place: Place) -> None:
    """The last column has its rows 0 to 5 of 8 in front of what follows."""
    memory = place.array(np.zeros(GROUPS * 8 + 6 * COLS, np.float32))
    scale = place.part(memory, (6, GROUPS), (1, 8))
    kernel = made("column_major", "f32")
    kernel(place.part(memory, (6, COLS), (COLS, 1), GROUPS * 8 - 2), q=codes(place), scale=scale)
    with pytest.raises(UsageError, match="must not share memory"):
        kernel(place.part(memory, (6, COLS), (COLS, 1), GROUPS * 8 - 3), q=codes(place), scale=scale)


@pytest.mark.gpu
def test_torch_gets_a_tensor_of_the_layout() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.randn(6, 384, device="cuda")
    made = {
        layout: normgen.kernel("quantize_to_fp8_group", shape=(6, 384), layout={"scale": layout})(x)[1]
        for layout in ("row_major", "column_major")
    }
    assert (tuple(made["column_major"].shape), made["column_major"].stride()) == ((6, 3), (1, 8))
    assert torch.equal(made["column_major"], made["row_major"])
