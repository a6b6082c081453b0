"""A cold replay never finds its data in the L2; a hot one always does."""

from __future__ import annotations

import dataclasses

import pytest

from normgen.measure.replays import MAX_LAUNCHES, layout, plan_of
from normgen.records.record import Cache
from tests.measure.simulated import problem

L2 = 60 << 20


@pytest.mark.parametrize("set_bytes", [1 << 12, 1 << 16, 1 << 20, 5 << 20, 50 << 20, 1 << 31])
@pytest.mark.parametrize("us", [0.5, 14.0, 900.0])
def test_a_cold_replay_passes_three_times_the_l2_or_is_flushed_without_reuse(set_bytes: int, us: float) -> None:
    plan = plan_of(set_bytes, l2_bytes=L2, cache=Cache.COLD)
    launches = plan.launches(us)
    if plan.flushed:
        assert launches <= plan.sets
        assert plan.sets * set_bytes <= 3 * L2
    else:
        assert plan.sets * set_bytes > 3 * L2
        assert launches >= plan.sets
    assert launches <= MAX_LAUNCHES


@pytest.mark.parametrize(("us", "launches"), [(1.5, MAX_LAUNCHES), (14.0, 72), (600.0, 2)])
def test_a_hot_replay_takes_a_millisecond_on_one_set(us: float, launches: int) -> None:
    plan = plan_of(1 << 20, l2_bytes=L2, cache=Cache.HOT)
    assert (plan.sets, plan.flushed) == (1, False)
    assert plan.launches(us) == launches


def test_tensors_of_a_set_do_not_overlap_and_keep_the_promised_alignment() -> None:
    offsets, size = layout(problem(rows=3, cols=5))
    assert offsets == {"y": 0, "x": 256}
    assert size == 512
    loose = dataclasses.replace(problem(rows=3, cols=5), align=4, pitch=7)
    offsets, size = layout(loose)
    assert offsets == {"y": 4, "x": 256 + 4}
    assert size == 512
