"""Each rule of the error model by itself, on numbers small enough to see what the bound must be."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.dtypes import BF16, F16, F32, DType
from normgen.verify.bounded import REARRANGED, Bounded, U
from normgen.verify.error_model import Float32Error, stored

TINY = F32.smallest_subnormal


def of(*values: float, error: float | None = None) -> Bounded:
    row = np.array([values])
    return Bounded(row, None if error is None else np.full(row.shape, error))


def test_a_product_below_the_smallest_subnormal_may_be_off_by_half_of_one() -> None:
    found = Float32Error(cols=1).multiply(of(2.0**-100), of(1.5 * 2.0**-50))
    off = abs(float(np.float32(2.0**-100) * np.float32(1.5 * 2.0**-50)) - found.value.item())
    assert found.error is not None
    assert off == TINY / 4
    assert off < found.error.item() == pytest.approx(TINY / 2, rel=1e-6, abs=0)


def test_infinity_over_a_number_whose_inverse_is_flushed_has_no_bound() -> None:
    """A kernel may multiply by the inverse, and infinity times 0 is NaN."""
    scales = of(2.0**127, 2.0**100, error=1.0).found_exactly(np.ones((1, 2), dtype=bool))
    found = Float32Error(cols=2).divide(of(np.inf, np.inf), scales).known_error
    assert found is not None
    assert (found == [[np.inf, 0.0]]).all()


@pytest.mark.parametrize(("chain", "depth"), [(None, 1023), (1024, 1023), (1, 10), (4, 3 + 8), (32, 31 + 5)])
def test_a_term_passes_its_chain_and_then_a_tree(chain: int | None, depth: float) -> None:
    assert Float32Error(cols=1024, chain=chain).depth == depth


@pytest.mark.parametrize(("each", "is_bounded"), [(F32.largest / 5, True), (F32.largest / 3, False)])
def test_a_sum_that_may_overflow_on_its_way_has_no_bound(each: float, is_bounded: bool) -> None:
    """The terms cancel, but in some orders four of a sign come first."""
    terms = of(*[each] * 4, *[-each] * 4) if not is_bounded else of(each, each, -each, -each)
    found = Float32Error(cols=terms.value.shape[1]).reduce("sum", terms)
    assert found.error is not None
    assert bool(np.isfinite(found.error).all()) is is_bounded


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("value", [1.0, 1.25, 1.99])
def test_storing_rounds_once_by_half_a_spacing_of_the_binade(dtype: DType, value: float) -> None:
    u, held = dtype.unit_roundoff, float(np.float32(value))
    assert stored(of(held), dtype).item() == pytest.approx(u)
    assert stored(of(held, error=2.0**-12), dtype).item() == pytest.approx(REARRANGED * 2.0**-12 + u)


@pytest.mark.parametrize("largest", [1.0, F32.largest])
def test_a_sum_with_exactly_0_is_the_other_term_and_rounds_nothing(largest: float) -> None:
    do, term = Float32Error(cols=1), Bounded(np.array([[largest]]))
    scaled = do.multiply(do.scalar(0.3), Bounded(np.zeros((1, 1))))
    for found in (do.add(scaled, term), do.add(term, Bounded(np.zeros((1, 1))))):
        assert found.value == largest
        assert found.error is not None
        assert found.error < 1e-40
    unsure = do.add(Bounded(np.zeros((1, 1)), np.full((1, 1), 1e-45)), Bounded(np.ones((1, 1))))
    assert unsure.error is not None
    assert unsure.error >= U


def test_values_of_no_row_may_be_subtracted() -> None:
    """A constant formula: max(1e30) - 1e30."""
    found = Float32Error(cols=8).subtract(
        Bounded(np.asarray(2.0), np.asarray(1e-6)), Bounded(np.asarray(1.0), np.asarray(1e-6))
    )
    assert found.common is None


def test_what_the_terms_of_a_variance_have_in_common_counts_to_second_order() -> None:
    """A mean that is off by 1e-4 moves 64 squares by 64e-8 together, not by 2e-4 each."""
    x = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32).astype(np.float64)
    mean = Bounded(x.mean(axis=1, keepdims=True), np.full((1, 1), 1e-4))
    do = Float32Error(cols=64)
    squares = do.power(do.subtract(Bounded(x), mean), 2)
    found = do.reduce("sum", squares)
    assert squares.error is not None
    assert found.error is not None
    assert found.error.item() < 0.1 * squares.error.sum()


def test_a_float32_result_that_is_stored_is_not_rounded_again() -> None:
    assert stored(of(1.0, error=U), F32).item() == pytest.approx(REARRANGED * U)


@pytest.mark.parametrize(("value", "error"), [(0.5, 2.0), (1.0, 2.0), (1.9, 2.0), (2.1, 0.0)])
def test_a_sign_is_uncertain_as_far_as_schedules_may_differ(value: float, error: float) -> None:
    found = Float32Error(cols=1).call("sign", of(value, error=1.0))
    assert (0.0 if found.error is None else found.error.item()) == error


def bound(name: str, *args: Bounded) -> float:
    with np.errstate(invalid="ignore"):
        found = Float32Error(cols=1).call(name, *args)
    return 0.0 if found.error is None else float(found.error.item())


def test_a_comparison_is_exact_but_where_schedules_may_differ() -> None:
    assert bound("<", of(1.0), of(1.0)) == 0
    assert bound("<", of(1.0, error=0.1), of(1.3)) == 0
    assert bound("<", of(1.0, error=0.1), of(1.15)) == 1
    assert bound("<", of(np.nan, error=0.1), of(1.0)) == 0  # a NaN is never less


@pytest.mark.parametrize(
    ("name", "other", "unsure"), [("and", 0.0, 0), ("and", 1.0, 1), ("or", 0.0, 1), ("or", 1.0, 0)]
)
def test_a_sure_operand_decides_a_condition(name: str, other: float, unsure: float) -> None:
    assert bound(name, of(1.0, error=1.0), of(other)) == unsure


def test_a_branch_that_may_be_the_other_one_is_bounded_by_both() -> None:
    unsure, sure = of(1.0, error=1.0), of(1.0)
    assert bound("where", sure, of(3.0, error=0.5), of(7.0, error=9.0)) == 0.5
    assert bound("where", unsure, of(3.0, error=0.5), of(7.0, error=0.25)) == 4.25
    assert bound("where", unsure, of(3.0), of(np.nan)) == np.inf
    assert bound("where", unsure, of(-np.inf), of(-np.inf)) == 0


@pytest.mark.parametrize(
    ("value", "error", "off"), [(2.5, 0.1, 0.0), (2.95, 0.1, 1.0), (2.5, 1.0, 2.0), (3.0, None, 0.0)]
)
def test_a_whole_number_is_off_by_the_steps_that_the_error_reaches(
    value: float, error: float | None, off: float
) -> None:
    assert bound("floor", of(value, error=error)) == off


def test_sums_of_whole_numbers_are_exact() -> None:
    do = Float32Error(cols=1)
    three = do.subtract(do.constant(5.0), do.constant(2.0))
    assert three.error is None
    assert bound("<=", three, do.constant(3.0)) == 0
    assert do.add(do.constant(2.0**23), do.constant(1.0)).error is not None


INFINITE = [(np.inf, 0.3), (np.inf, 2.3), (-np.inf, 0.3), (np.inf, 1.5), (np.inf, 0.5), (np.inf, 3)]


@pytest.mark.parametrize(
    ("base", "exponent", "error"), [(0.0, -0.3, None), *((*pair, error) for pair in INFINITE for error in (None, 0.0))]
)
def test_an_infinite_power_has_no_error_and_its_inverse_is_0(base: float, exponent: float, error: float | None) -> None:
    do = Float32Error(cols=2)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = do.power(of(base, 2.0, error=error), exponent)
        inverse = do.divide(of(1.0, 1.0), do.add(found, of(1.0, 1.0)))
    assert found.error is not None
    assert inverse.error is not None
    assert np.isinf(found.value[0, 0])
    assert found.error[0, 0] == 0
    assert 0 < found.error[0, 1] < np.inf
    assert inverse.value[0, 0] == 0
    assert inverse.error[0, 0] < 1e-37
    assert 0 < inverse.error[0, 1] < 1e-5


@pytest.mark.parametrize("exponent", [0.3, 0.5, 1.5, 2, 3, -0.3, -1.5])
def test_a_power_of_what_is_infinite_without_a_bound_is_unknown(exponent: float) -> None:
    base = of(np.inf if exponent > 0 else 0.0, error=np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = Float32Error(cols=1).power(base, exponent)
    assert (np.asarray(found.error) == np.inf).all()


def test_an_exponent_that_float32_rounds_moves_the_power_by_its_logarithm() -> None:
    x = 1e-38
    found = Float32Error(cols=1).power(of(x), 0.3)
    off = abs(x ** float(np.float32(0.3)) - x**0.3)
    assert found.error is not None
    assert off > 8 * U * x**0.3
    assert off < found.error.item() < 3 * off


POSITIONS = {  # values, errors -> the column of the largest, and how far off a kernel's may be
    ((1.0, 2.0, 2.0001, 0.0), 1e-3): (2, 1),
    ((1.0, 2.0, 2.0001, 0.0), 1e-6): (2, 0),
    ((3.0, 3.0, 3.0, 3.0), 0.0): (0, 3),
    ((3.0, np.nan, 9.0, np.nan), 1e-3): (1, 0),
    ((3.0, -np.inf, np.inf, 2.0), 1e-3): (2, 0),
}


@pytest.mark.parametrize(("given", "want"), POSITIONS.items())
def test_the_column_of_a_maximum_is_known_up_to_what_else_may_be_the_maximum(
    given: tuple[tuple[float, ...], float], want: tuple[int, int]
) -> None:
    values, error = np.array([given[0]]), np.full((1, 4), given[1])
    for name, sign in (("argmax", 1.0), ("argmin", -1.0)):
        found = Float32Error(cols=4).reduce(name, Bounded(sign * values, error))
        assert found.error is not None
        assert (found.value.item(), found.error.item()) == want
    exact = Float32Error(cols=4).reduce("argmax", Bounded(values))
    assert (exact.value.item(), exact.error) == (want[0], None)


def test_an_element_of_which_nothing_is_known_may_be_the_extremum() -> None:
    error = np.array([[0.0, np.inf, 0.0, np.nan]])
    found = Float32Error(cols=4).reduce("argmax", Bounded(np.array([[5.0, 1.0, 2.0, 1.0]]), error))
    assert found.error is not None
    assert (found.value.item(), found.error.item()) == (0, 3)


def test_an_error_that_is_no_number_leaves_the_sign_open() -> None:
    found = Float32Error(cols=1).call("sign", Bounded(np.array([[2.0, np.nan]]), np.array([[np.nan, np.nan]])))
    assert found.error is not None
    assert found.error.tolist() == [[2.0, 0.0]]


UNKNOWN = of(1.0, error=np.inf)


def is_unknown(found: Bounded) -> bool:
    """Any value is right: a finite one, without a bound."""
    return found.error is not None and bool(np.isfinite(found.value).all() and np.isinf(found.error).all())


@pytest.mark.parametrize("name", ["<", "<=", "==", "!="])
def test_a_comparison_with_what_is_unknown_may_go_either_way(name: str) -> None:
    """inf - unknown says nothing of their difference, though it is infinite."""
    assert bound(name, of(np.inf), Bounded(np.array([[np.inf]]), np.array([[np.inf]]))) == 1.0
    assert bound(name, of(2.0), UNKNOWN) == 1.0
    assert bound(name, of(np.nan), UNKNOWN) == 0.0


def test_an_exponential_that_float32_may_find_0_is_no_divisor() -> None:
    do = Float32Error(cols=1)
    with np.errstate(all="ignore"):
        assert is_unknown(do.divide(of(0.0), do.call("exp", of(-100.0, error=0.0))))
        assert not is_unknown(do.divide(of(0.0), do.call("exp", of(-50.0, error=0.0))))


@pytest.mark.parametrize("operation", ["multiply", "divide"])
def test_an_infinity_with_a_number_of_either_sign_is_unknown(operation: str) -> None:
    do = getattr(Float32Error(cols=1), operation)
    with np.errstate(all="ignore"):
        assert is_unknown(do(of(np.inf), of(0.5, error=1.0)))
        above_0 = of(0.5, error=1.0).from_least(1e-5)
        assert do(of(np.inf), above_0).value.item() == np.inf


def test_a_quotient_by_what_is_known_by_its_least_value_alone() -> None:
    """1 / 55, where 55 may be 1 for all that a schedule finds."""
    found = Float32Error(cols=1).divide(of(1.0), of(55.0, error=54.0).from_least(1.0))
    assert found.error is not None
    assert found.value.item() + found.error.item() >= 1.0
    unknown = Float32Error(cols=1).divide(of(1.0), of(55.0, error=np.inf).from_least(1.0))  # NaN, for all that is known
    assert is_unknown(unknown)


def test_an_exact_value_that_a_dtype_holds_is_cast_exactly() -> None:
    (found, rounded) = (Float32Error(cols=1).cast(of(value), BF16) for value in (-3.0, 0.1))
    assert found.error is not None
    assert found.error.item() == 0.0
    assert rounded.error is not None
    assert rounded.error.item() > 0.0


def test_a_difference_of_whole_numbers_has_a_0_of_either_sign() -> None:
    """sympy makes b - a of -(a - b)."""
    do = Float32Error(cols=1)
    whole_numbers = do.constant(3.0)
    difference = do.subtract(whole_numbers, whole_numbers)
    assert bound_of(do.call("sign", difference)) == 0.0
    with np.errstate(all="ignore"):
        assert is_unknown(do.divide(of(1.0), difference))


def bound_of(found: Bounded) -> float:
    return 0.0 if found.error is None else float(found.error.item())


def test_a_sigmoid_is_next_to_0_where_its_exponential_may_be_infinite() -> None:
    """1 / (1 + inf): of float32's exponential of 200, and of 88.8 with an error of a thousandth."""
    found = Float32Error(cols=3).call("sigmoid", of(-200.0, -88.8, -87.0, error=1e-3)).error
    assert found is not None
    with np.errstate(over="ignore"):
        kernel = 1 / (1 + np.exp(np.array([200.0, 88.8, 87.0], np.float32)))
    assert kernel[0] == 0
    assert (np.abs(kernel - 1 / (1 + np.exp([200.0, 88.8, 87.0]))) <= found).all()
    assert (found < 2.0**-120).all()
    unknown = Float32Error(cols=1).call("sigmoid", of(-200.0, error=np.inf)).error
    assert unknown is not None
    assert np.isinf(unknown).all()
