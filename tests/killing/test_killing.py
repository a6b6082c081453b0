"""A sample of `python -m tests.killing`: a few commands ended at random moments."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.killing.harness import PATHS, faults_of_a_kill, faults_of_an_interrupt, moment, whole_run_s


@pytest.mark.parametrize("path", PATHS)
def test_a_killed_or_interrupted_tune_loses_nothing_and_leaves_nobody(path: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    length_s, rng = whole_run_s(tmp_path, cache, path), Random(4)
    sure = [(1, 0.0), (0, length_s / 2)]  # behind the first candidate, and half-way: long before the end on any machine
    drawn = [moment(rng, n, length_s) for n in range(2)]
    kills = [faults_of_a_kill(tmp_path / f"k{n}", cache, path, when) for n, when in enumerate(sure)]
    interrupts = [faults_of_an_interrupt(tmp_path / f"i{n}", cache, path, when) for n, when in enumerate(sure + drawn)]
    assert [fault for _, faults in (*kills, *interrupts) for fault in faults] == []
    assert any(in_time for in_time, _ in kills)
    assert any(in_time for in_time, _ in interrupts)
