"""Three people's tasks take each of their lines from the docs, and reach their end in a folder of their own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from normgen.cpu import find_compiler

from .pages import ROOT, Folder, commands
from .people import INSTALL, MINUTES, TASKS, TORCH, block_of, first_hour, run_task
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


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("name", ["header", "norm"])
def test_a_task_reaches_its_end(name: str, tmp_path: Path) -> None:
    have = {tool for tool in ("nvcc",) if shutil.which(tool)}
    have |= {library for library in ("torch",) if importlib.util.find_spec(library) is not None}
    environment = {**os.environ, "NORMGEN_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": _paths()}
    run_task(name, Folder(tmp_path, sys.executable, environment), have=have)
    made = {"header": "headers/capped_rmsnorm_fwd_f32_sm90.cu", "norm": "capped.toml"}
    assert (tmp_path / made[name]).is_file()
    assert (tmp_path / "main").is_file() == (name == "header" and "nvcc" in have)


def test_a_task_from_nothing_takes_less_than_a_person_has(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--full"):
        pytest.skip("installs environments of its own: --full")
    assert all(first_hour(name) < 60 * MINUTES for name in TASKS)


def _paths() -> str:
    return f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
