"""Handles of rows along another axis than the last, on numpy arrays that nobody copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normgen
from normgen.errors import UsageError
from normgen.measure.cpu_check import has_compiler
from normgen.schedule.schedule import Schedule, changed

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler builds the executor")
Array = Any
SHAPE = (3, 20, 4, 6)


def drawn(*shape: int) -> Array:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def softmax(x: Array, axis: int) -> Array:
    above = np.exp(x - x.max(axis, keepdims=True))
    return above / above.sum(axis, keepdims=True)


def test_a_softmax_over_a_middle_axis_has_the_shape_of_its_input_and_any_first_size() -> None:
    kernel = normgen.kernel("softmax", shape=SHAPE, axis=1, device="cpu")
    for first in (3, 1, 5):
        x = drawn(first, *SHAPE[1:])
        y = kernel(x)
        assert y.shape == x.shape
        np.testing.assert_allclose(y, softmax(x, 1), atol=1e-6)


def test_the_winner_of_a_tune_along_another_axis_is_a_kernel_by_its_questions_arguments() -> None:
    asked = normgen.kernel("softmax", shape=SHAPE, axis=1, device="cpu").problem.arguments()
    assert asked["col_stride"] > 1
    x = drawn(*SHAPE)
    np.testing.assert_allclose(normgen.kernel("softmax", **asked, device="cpu")(x), softmax(x, 1), atol=1e-6)


def test_a_part_of_a_larger_array_is_read_where_it_lies() -> None:
    kernel = normgen.kernel("softmax", shape=SHAPE, axis=1, device="cpu")
    x = drawn(3, 24, 4, 6)[:, :20]
    out = np.full((3, 30, 4, 6), 7.0, np.float32)
    kernel(x, out=out[:, 5:25])
    np.testing.assert_allclose(out[:, 5:25], softmax(x, 1), atol=1e-6)
    assert (out[:, :5] == 7.0).all()
    assert (out[:, 25:] == 7.0).all()


def test_values_of_rows_have_the_shape_without_the_axis_and_parameters_the_axis_alone() -> None:
    kernel = normgen.kernel("layernorm", shape=SHAPE, axis=1, device="cpu")
    x, weight, bias = drawn(*SHAPE), drawn(20), drawn(20)
    y, mean, rstd = kernel(x, weight, bias)
    wanted = 1 / np.sqrt(x.var(1) + 1e-5)
    np.testing.assert_allclose(mean, x.mean(1), atol=1e-6)
    np.testing.assert_allclose(rstd, wanted, rtol=1e-5)
    turned = ((x - x.mean(1, keepdims=True)) * wanted[:, None]).swapaxes(1, 3)
    np.testing.assert_allclose(y, (turned * weight + bias).swapaxes(1, 3), atol=1e-5)


def test_a_sum_over_the_first_axis_is_that_of_columns() -> None:
    x = drawn(50, 33)
    np.testing.assert_allclose(normgen.kernel("row_sum", shape=x.shape, axis=0, device="cpu")(x), x.sum(0), atol=1e-5)


def test_an_array_off_its_alignment_is_taken_by_a_kernel_that_reads_elements() -> None:
    wide = changed(Schedule(), "threads_per_row=8 rows_per_block=16 vector=4 hold=reload")
    kernel = normgen.kernel("softmax", shape=SHAPE, axis=1, device="cpu", schedule=wide)
    x = np.empty(3 * 20 * 24 + 1, np.float32)[1:].reshape(SHAPE)
    x[...] = drawn(*SHAPE)
    np.testing.assert_allclose(kernel(x), softmax(x, 1), atol=1e-6)


def test_the_last_axis_is_the_plain_kernel() -> None:
    plain, named = (normgen.kernel("softmax", shape=(6, 32), device="cpu", **a) for a in ({}, {"axis": -1}))  # type: ignore[arg-type]
    assert plain.problem == named.problem


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (drawn(3, 19, 4, 6), r"\[.., cols, ..\] with cols = 20 and 24 elements"),
        (drawn(3, 20, 4, 7), r"\[.., cols, ..\] with cols = 20 and 24 elements"),
        (drawn(3, 20, 6, 4).swapaxes(2, 3), "a contiguous array from axis 1 on"),
        (drawn(3, 20, 4, 12)[..., ::2], "a contiguous array from axis 1 on"),
        (np.lib.stride_tricks.as_strided(drawn(3, 20, 4, 6), SHAPE, (400, 96, 24, 4)), "one distance of at least 480"),
    ],
    ids=["other cols", "other sizes behind", "turned", "every second", "overlapping"],
)
def test_an_array_that_lies_otherwise_is_refused(array: Array, said: str) -> None:
    kernel = normgen.kernel("softmax", shape=SHAPE, axis=1, device="cpu")
    with pytest.raises(UsageError, match=said):
        kernel(array)


def test_any_number_of_rows_is_not_asked_for_along_another_axis() -> None:
    with pytest.raises(UsageError, match="of which the first alone is free"):
        normgen.kernel("softmax", shape=SHAPE, axis=1, rows="any", device="cpu")


@pytest.mark.parametrize(("shape", "axis"), [((3, 20, 1), 1), ((20, 1), 0), ((2, 3, 20, 1, 1), -3)])
def test_an_axis_with_nothing_but_ones_behind_it_keeps_them(shape: tuple[int, ...], axis: int) -> None:
    x, weight, bias = drawn(*shape), drawn(20), drawn(20)
    np.testing.assert_allclose(
        normgen.kernel("softmax", shape=shape, axis=axis, device="cpu")(x), softmax(x, axis), atol=1e-6
    )
    kernel = normgen.kernel("layernorm", shape=shape, axis=axis, device="cpu")
    y, mean, rstd = kernel(x, weight, bias)
    np.testing.assert_allclose(mean, x.mean(axis), atol=1e-6)
    assert (y.shape, rstd.shape) == (shape, mean.shape)
    wide = drawn(*shape[:axis], 40, *shape[axis:][1:])
    part = wide.swapaxes(axis, 0)[4:24].swapaxes(axis, 0)  # not aligned to vectors: the general kernel's
    again = np.empty_like(y)
    kernel(part, weight, bias, out=again, mean=np.empty_like(mean), rstd=np.empty_like(rstd))
    turned = np.moveaxis(part, axis, -1)
    wanted = (turned - turned.mean(-1, keepdims=True)) / np.sqrt(turned.var(-1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(np.moveaxis(again, axis, -1), wanted, atol=1e-5)
    with pytest.raises(UsageError, match=r"wrong shape of 'x': expected \[.., cols, 1"):
        kernel(drawn(*shape, 2), weight, bias)


def test_any_number_of_rows_along_the_last_axis_is_the_plain_handle() -> None:
    for shape, axis in (((-1, 20), -1), ((-1, 20), 1), ("*x20", 1)):
        kernel = normgen.kernel("softmax", shape=shape, axis=axis, device="cpu")  # type: ignore[arg-type]
        x = drawn(7, 20)
        np.testing.assert_allclose(kernel(x), softmax(x, -1), atol=1e-6)
