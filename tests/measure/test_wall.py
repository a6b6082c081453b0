"""The tool that says what a check takes of a tune tells the truth about a tune on the CPU executor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from normgen.cpu import find_compiler
from tests.measure import wall
from tests.measure.wall import Wall, main


def test_growth_is_what_the_other_calls_add_to_a_tune_without_them() -> None:
    found = Wall(
        asked="it",
        wall_s=11.0,
        checked_s=4.0,
        candidates=9,
        calls_s={"": 3.0, "at 1 row": 0.25, "with null mean": 0.75},
    )
    assert found.growth == pytest.approx(0.1)


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler for the CPU executor")
def test_a_tune_without_a_gpu_is_taken_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wall.json"
    words = ["row_sum:8x40:f32:forward", "--device", "cpu", "--budget", "5", "--trials", "2", "--json", str(file)]
    assert main(words) == 0
    [told] = json.loads(file.read_text())
    assert {"", "at 1 row"} < set(told["calls_s"])
    assert all(seconds > 0 for seconds in told["calls_s"].values())
    assert 0 < told["checked_s"] < told["wall_s"]
    assert told["growth"] > 0
    assert "other calls" in capsys.readouterr().out


def test_growth_over_the_bar_of_a_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Wall(asked="it", wall_s=2.0, checked_s=1.5, candidates=1, calls_s={"": 0.1, "at 1 row": 1.0})
    monkeypatch.setattr(wall, "measured", lambda *_, **__: slow)
    assert main(["it", "--device", "0"]) == 1
    assert main(["it", "--device", "cpu"]) == 0
