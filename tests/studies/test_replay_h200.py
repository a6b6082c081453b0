"""The strategy on landscapes measured on an H200 (generated/sweeps), and docs/search.md, which says how good it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from normgen.report.search_page import search_page
from normgen.studies.replay import EVALUATIONS, ReplayReport, exact_random, landscape_of, replay
from normgen.studies.sweep_file import read_sweep

ROOT = Path(__file__).parents[2]
SWEEPS = sorted((ROOT / "generated" / "sweeps").glob("*.jsonl.xz"))
PAGE = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")
SEEDS = 12
ROUNDED = 0.0006  # the page has three decimals


def documented(path: Path) -> dict[tuple[str, str], dict[int, float]]:
    """(strategy, median or worst) -> fraction of the optimum after so many evaluations, of the page's table."""
    section = next(part for part in PAGE.split("\n## ") if f"`{path.name}`" in part)
    rows = re.findall(r"^\| (\w+) \| (median|worst) \| (.+) \|$", section, re.MULTILINE)
    found = {(s, what): [float(cell) for cell in cells.split("|")] for s, what, cells in rows}
    return {key: dict(zip(EVALUATIONS, values, strict=True)) for key, values in found.items()}


@pytest.mark.parametrize("path", SWEEPS, ids=lambda p: p.name.split(".")[0])
def test_the_page_is_what_a_replay_says_now(path: Path) -> None:
    """A few of the page's seeds: none may be worse than its worst; the exact figures must be equal."""
    land, table = landscape_of(read_sweep(path)), documented(path)
    command = "normgen replay generated/sweeps/NAME --seeds 12 --page docs/search.md, all sweeps in one command"
    ours = replay(land, "normgen", seeds=2, workers=1)
    for n in EVALUATIONS:
        assert ours.worst[n] >= table["normgen", "worst"][n] - ROUNDED, command
    chance = exact_random(land, seeds=SEEDS)
    for what, values in (("median", chance.median), ("worst", chance.worst)):
        assert table["random", what] == pytest.approx(values, abs=ROUNDED), command


@pytest.mark.parametrize("path", SWEEPS, ids=lambda p: p.name.split(".")[0])
def test_the_worst_seed_is_at_the_optimum_after_50_and_ahead_of_random_and_tpe(path: Path) -> None:
    """Medians may meet at the optimum itself, where nobody is ahead; worst seeds do not."""
    table = documented(path)
    assert table["normgen", "worst"][50] >= 0.98
    for n in (25, 50, 100):
        for other in ("random", "tpe"):
            median = table["normgen", "median"][n]
            assert median > table[other, "median"][n] or median == table[other, "median"][n] == 1.0
            assert table["normgen", "worst"][n] > table[other, "worst"][n]


def test_the_page_has_its_head_and_every_sweep_in_the_words_of_today() -> None:
    def facts(text: str) -> str:
        return re.sub(r"^\| \w+ \| (?:median|worst) \|.*$\n", "", text, flags=re.MULTILINE)

    sweeps = [(path.relative_to(ROOT), read_sweep(path)) for path in SWEEPS]
    empty: list[ReplayReport] = []
    written = search_page([(path, s, landscape_of(s), empty) for path, s in sweeps], seeds=SEEDS)
    assert facts(PAGE) == facts(written)


def test_three_sweeps_ship_and_are_small() -> None:
    assert len(SWEEPS) == 3
    assert sum(p.stat().st_size for p in SWEEPS) < 3_000_000
