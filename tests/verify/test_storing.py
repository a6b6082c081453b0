"""Cells: which values are stored as which number, of every dtype; what the check makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.dtypes import BF16, BOOL, DTYPES, F8E4M3, F8E5M2, F8E8M0, F16, F32, I8, I32, U8, DType
from normgen.verify.bounded import BEYOND, NOTHING, REARRANGED, Bounded, U, allowed, half_spacing, outside, within_cells
from normgen.verify.error_model import Float32Error, stored

NARROW = (F16, BF16, F8E4M3, F8E5M2, I8, U8)


def numbers(dtype: DType) -> np.ndarray:
    """Every finite number of the dtype, ascending."""
    codes = np.arange(1 << (8 * dtype.bytes)).astype(f"u{dtype.bytes}").view(dtype.numpy)
    with np.errstate(invalid="ignore"):  # of a NaN that signals
        codes = codes.astype(np.float64)
    return np.unique(codes[np.isfinite(codes)])


def off(got: np.ndarray | float, want: np.ndarray | float, dtype: DType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return outside(np.atleast_1d(np.asarray(got)).astype(dtype.numpy), np.atleast_1d(want), dtype)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_float32_lies_in_the_cell_of_the_number_that_is_nearest_and_in_no_other(dtype: DType) -> None:
    told = numbers(dtype)
    middles = (told[1:] + told[:-1]) / 2
    rng = np.random.default_rng(0)
    between = (told[:-1] + (told[1:] - told[:-1]) * rng.random(len(middles))).astype(np.float32).astype(np.float64)
    values = np.concatenate([told, middles, between])
    nearest = np.array([told[np.abs(told - value).argmin()] for value in values[:: max(1, len(values) // 4000)]])
    values = values[:: max(1, len(values) // 4000)]
    tied = np.isin(values, middles)
    assert np.all(off(nearest, values, dtype)[~tied] == 0)
    other = np.where(nearest < values, told[np.minimum(np.searchsorted(told, values), len(told) - 1)], np.nan)
    beside = np.isfinite(other) & ~tied & (other != nearest)
    assert np.all(off(other[beside], values[beside], dtype) > 0)


@pytest.mark.parametrize("dtype", [*NARROW, I32], ids=str)
def test_a_tie_lies_in_the_cell_of_the_even_neighbour_alone(dtype: DType) -> None:
    told = np.arange(-300.0, 300.0) if dtype is I32 else numbers(dtype)
    middles = (told[1:] + told[:-1]) / 2
    below, above = off(told[:-1], middles, dtype), off(told[1:], middles, dtype)
    assert np.all((below == 0) != (above == 0))
    is_odd = np.abs(np.arange(len(told)) - np.searchsorted(told, 0.0)) % 2 == 1
    assert np.array_equal(below > 0, is_odd[:-1])


@pytest.mark.parametrize("dtype", [BF16, F16, F8E4M3, F8E5M2], ids=str)
def test_the_even_neighbour_is_the_one_that_others_round_a_tie_to(dtype: DType) -> None:
    told = numbers(dtype)
    middles = ((told[1:] + told[:-1]) / 2).astype(np.float32)
    rounded = middles.astype(dtype.numpy)
    assert np.all(off(rounded, middles.astype(np.float64), dtype) == 0)


@pytest.mark.parametrize("dtype", [F8E4M3, F8E5M2, I8, U8], ids=str)
def test_what_is_too_large_is_stored_as_the_largest_number(dtype: DType) -> None:
    for value in (dtype.largest * 1.2, 1e9, np.inf):
        want = within_cells(np.array([value]), dtype)
        assert off(dtype.largest, want, dtype) == 0
        assert off(numbers(dtype)[-2], want, dtype) > 0
    assert off(dtype.least, within_cells(np.array([-np.inf]), dtype), dtype) == 0


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_what_is_too_large_is_stored_as_an_infinity_from_half_a_spacing_on(dtype: DType) -> None:
    edge = dtype.largest * (1 + dtype.unit_roundoff / (2 - 2 * dtype.unit_roundoff))
    assert off(np.inf, edge * 1.0001, dtype) == off(dtype.largest, edge * 0.9999, dtype) == 0
    assert off(dtype.largest, edge * 1.0001, dtype) > 0
    assert off(np.inf, edge * 0.9999, dtype) > 0
    assert off(np.inf, BEYOND, dtype) == 0


def test_a_power_of_two_of_e8m0_has_the_values_from_the_one_below() -> None:
    for value, code in ((1.0, 127), (1.0001, 128), (2.0, 128), (1.9, 128), (2.0**-140, 0), (0.0, 0), (3e38, 254)):
        want = within_cells(np.array([value]), F8E8M0)
        found = [int(c) for c in range(256) if outside(np.array([c], np.uint8).view(F8E8M0.numpy), want, F8E8M0) == 0]
        assert found == [code]
    assert np.isnan(within_cells(np.array([-1.0]), F8E8M0)).all()
    wide = Bounded(np.array([1.0]), np.array([2.0]))
    assert np.isinf(allowed(wide, F8E8M0)).all()  # negative for all that is known: NaN
    assert np.isfinite(allowed(wide.from_least(0.5), F8E8M0)).all()


def test_a_saturated_value_may_be_as_far_off_as_its_bound_says() -> None:
    """The quotient of a row of nearly equal numbers by its scale, -4e11 ± 1e12: 127 is right, too."""
    loose = Bounded(np.array([-4e11]), np.array([5e11]))
    assert off(127.0, within_cells(loose.value, I8), I8) <= allowed(loose, I8)


def test_a_nan_is_stored_as_0_where_numbers_are_whole() -> None:
    want = within_cells(np.array([np.nan]), I8)
    assert off(0.0, want, I8) == 0
    assert off(1.0, want, I8) > 0
    assert np.isnan(off(0.0, np.nan, BF16)).all()


def test_any_byte_but_0_and_1_is_no_truth_value() -> None:
    stored_as = np.array([0, 1, 2], np.uint8).view(np.bool_)
    assert outside(stored_as, np.array([0.0, 1.0, 1.0]), BOOL)[:2].tolist() == [0.0, 0.0]
    assert np.isnan(outside(stored_as, np.array([0.0, 1.0, 1.0]), BOOL)[2])


@pytest.mark.parametrize("dtype", [d for d in DTYPES.values() if not d.is_integer and not d.rounds_up], ids=str)
def test_half_a_spacing_is_that_of_the_binade(dtype: DType) -> None:
    sizes = np.array([1.0, 1.99, 2.0, 3.5, dtype.smallest_normal, dtype.smallest_subnormal])
    u, least = dtype.unit_roundoff, dtype.smallest_subnormal / 2
    assert half_spacing(sizes, dtype).tolist() == [u, u, 2 * u, 2 * u, least, least]


def test_rounding_through_bf16_before_fp8_is_outside_the_bound() -> None:
    """The defect passed a bound of a whole spacing at the top of a binade: 0.986 of it."""
    values = np.random.default_rng(0).uniform(-440, 440, (64, 512)).astype(np.float32)
    twice = values.astype(BF16.numpy).astype(np.float32).astype(F8E4M3.numpy)
    once = F8E4M3.stored(values.astype(np.float64))
    want = values.astype(np.float64)
    bound = allowed(Bounded(want, 8 * U * np.abs(want)), F8E4M3)
    assert 0.001 < (twice.view(np.uint8) != once.view(np.uint8)).mean() < 0.05
    assert (outside(once, want, F8E4M3) <= bound).all()
    assert (outside(twice, want, F8E4M3) / bound).max() > 100


def test_a_sum_of_two_numbers_that_float32_holds_is_exact_and_its_tie_told() -> None:
    do = Float32Error(cols=2)
    x, y = Bounded(np.array([[1.0, 1.0]])), Bounded(np.array([[2.0**-8, 2.0**-30]]))
    bound = allowed(do.add(x, y), BF16)
    assert bound[0, 0] == NOTHING
    assert bound[0, 1] >= REARRANGED * U
    tie = np.array([[1 + 2.0**-8]])
    assert outside(np.array([[1.0]]).astype(BF16.numpy), tie, BF16)[0, 0] == 0
    assert outside(np.array([[1 + 2.0**-7]]).astype(BF16.numpy), tie, BF16)[0, 0] > NOTHING


def test_what_another_order_may_round_is_not_exact() -> None:
    """(1 - 1) + 2^-30 is exact as it is written, and not as 1 + (-1 + 2^-30); 3 (a + b) may be 3 a + 3 b."""
    do = Float32Error(cols=1)
    one, tiny = Bounded(np.array([[1.0]])), Bounded(np.array([[2.0**-30]]))
    difference = do.subtract(one, one)
    assert difference.exact is not None
    assert do.add(difference, tiny).exact is None
    assert do.multiply(do.constant(3.0), difference).exact is None
    assert do.multiply(do.constant(3.0), do.named(difference)).exact is not None


def test_a_product_is_exact_where_float32_holds_it_and_counts_its_roundings_in_what_follows() -> None:
    do = Float32Error(cols=2)
    found = do.multiply(Bounded(np.array([[3.0, 1 + 2.0**-23]])), Bounded(np.array([[5.0, 1 + 2.0**-23]])))
    assert found.exact is not None
    assert found.exact.tolist() == [[True, False]]
    assert found.error is not None
    assert found.error[0, 0] >= U * 15


def test_a_quotient_is_exact_by_a_power_of_two_or_by_a_number_of_the_formula() -> None:
    do = Float32Error(cols=3)
    x = Bounded(np.array([[896.0, 3.5, 1.0]]))
    scale = do.divide(x, do.constant(448.0))
    assert scale.exact is not None
    assert scale.exact.tolist() == [[True, True, False]]
    by_scale = do.divide(Bounded(np.array([[5.0, 5.0, 5.0]])), do.named(scale))
    assert by_scale.exact is not None
    assert by_scale.exact.tolist() == [[True, True, False]]  # by 2, by 2^-7
    assert do.divide(Bounded(np.array([[5.0]])), scale).exact is None  # 448 * 5 / 896, without a name
    by_scalar = do.divide(Bounded(np.array([[6.0]])), do.scalar(3.0))  # 6 * (1 / 3)
    assert by_scalar.exact is not None
    assert not by_scalar.exact.any()


def test_an_exact_float32_result_is_stored_as_it_is() -> None:
    assert stored(Bounded(np.array([1.5])), F32)[0] == NOTHING
    assert stored(Bounded(np.array([2.0**31 + 1])), F32)[0] == 2.0**31 * U  # of an i64
