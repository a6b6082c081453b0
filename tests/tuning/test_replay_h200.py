"""The strategy on landscapes measured on an H200 (tests/data/sweeps: stratified samples of 2500 legal schedules)."""

from __future__ import annotations

from pathlib import Path

import pytest

from normgen.tuning.replay import exact_random, landscape_of, replay
from normgen.tuning.sweep_file import read_sweep

SWEEPS = sorted((Path(__file__).parents[1] / "data" / "sweeps").glob("*.jsonl.xz"))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda p: p.name.split(".")[0])
def test_the_strategy_finds_the_optimum_of_a_measured_sweep(path: Path) -> None:
    land = landscape_of(read_sweep(path))
    ours = replay(land, "normgen", seeds=3, workers=1)
    chance = exact_random(land, seeds=50)
    assert ours.worst[50] >= 0.98
    for evaluations in (25, 50, 100):
        assert ours.median[evaluations] > chance.median[evaluations]


def test_three_sweeps_ship_and_are_small() -> None:
    assert len(SWEEPS) == 3
    assert sum(p.stat().st_size for p in SWEEPS) < 3_000_000
