"""The notebooks of examples/ run from top to bottom in an empty folder, without a GPU, each within its time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from normgen.cpu import find_compiler

from .pages import ROOT, Folder

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
NEEDS = {"norm_in_torch": "torch"}
SECONDS = 900  # a person's first quarter of an hour
COMMAND = "import subprocess as _s; _s.run({line!r}, shell=True, check=True)\n"

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


def cells_of(path: Path) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["metadata"]["language_info"]["name"]) == (4, "python")
    return list(notebook["cells"])


def program_of(cells: list[dict[str, Any]]) -> str:
    """All cells of code, in order; a line that begins with ! is a command."""
    lines = [line for cell in cells if cell["cell_type"] == "code" for line in [*cell["source"], "\n"]]
    plain = [COMMAND.format(line=line[1:].strip()) if line.startswith("!") else line for line in lines]
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in plain)


def test_there_are_three_and_none_keeps_what_it_printed() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_kernel", "norm_in_torch", "reading_a_tune"]
    for path in NOTEBOOKS:
        cells = cells_of(path)
        assert len({cell["id"] for cell in cells}) == len(cells)
        assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code"), path.name
        assert cells[0]["source"][0].startswith("# "), path.name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_an_empty_folder(path: Path, tmp_path: Path) -> None:
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem], reason=f"{NEEDS[path.stem]} is not installed")
    known = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "NORMGEN_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": known}
    folder = Folder(tmp_path, sys.executable, environment)
    program = tmp_path / "notebook.py"
    program.write_text(program_of(cells_of(path)), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, program.name],
        cwd=tmp_path,
        env=folder.environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    says = {"first_kernel": "verified", "norm_in_torch": "random(", "reading_a_tune": "wrong, as expected"}
    assert says[path.stem] in ran.stdout
