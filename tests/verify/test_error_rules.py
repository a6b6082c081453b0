"""Each rule of the error model by itself, on numbers small enough to see what the bound must be."""

from __future__ import annotations

import numpy as np
import pytest

from normgen.dtypes import BF16, F16, F32, DType
from normgen.verify.error_model import REARRANGED, Bounded, Float32Error, U, stored

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
def test_storing_rounds_once(dtype: DType) -> None:
    u, least = dtype.unit_roundoff, dtype.smallest_subnormal / 2
    assert stored(of(1.0), dtype).item() == pytest.approx(u + least)
    grown = REARRANGED * 2.0**-12
    assert stored(of(1.0, error=2.0**-12), dtype).item() == pytest.approx(grown + u * (1.0 + grown) + least)


def test_a_float32_result_that_is_stored_is_not_rounded_again() -> None:
    assert stored(of(1.0, error=U), F32).item() == pytest.approx(REARRANGED * U)


@pytest.mark.parametrize(("value", "error"), [(0.5, 2.0), (1.0, 2.0), (1.9, 2.0), (2.1, 0.0)])
def test_a_sign_is_uncertain_as_far_as_schedules_may_differ(value: float, error: float) -> None:
    found = Float32Error(cols=1).call("sign", of(value, error=1.0))
    assert (0.0 if found.error is None else found.error.item()) == error
