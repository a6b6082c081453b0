"""Three people's tasks take each of their lines from the docs, whose blocks test_snippets runs, and end in time."""

from __future__ import annotations

import pytest

from .pages import ROOT, commands
from .people import INSTALL, MINUTES, TASKS, TORCH, block_of, first_hour
from .test_notebooks import cells_of


def test_each_line_of_a_task_is_one_block_of_a_page() -> None:
    for step in (INSTALL, TORCH, *(step for steps in TASKS.values() for step in steps)):
        assert block_of(*step).text
    with pytest.raises(LookupError, match=r"docs/tutorial\.md: 0 blocks"):
        block_of("docs/tutorial.md", "normgen no_such_command")


def test_the_notebook_on_a_tune_types_what_the_page_on_ladders_gives() -> None:
    lines = set(commands(block_of(*TASKS["ladder"][0])))
    cells = cells_of(ROOT / "examples" / "notebooks" / "reading_a_tune.ipynb")
    typed = {line[1:].strip() for cell in cells for line in cell["source"] if line.startswith("!normgen ladder")}
    assert typed
    assert typed <= lines


def test_a_task_from_nothing_takes_less_than_a_person_has(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--full"):
        pytest.skip("installs environments of its own: --full")
    took = {name: first_hour(name) for name in TASKS}
    assert max(took.values()) < 60 * MINUTES, took
