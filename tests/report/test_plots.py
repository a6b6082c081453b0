"""PNG files of the page's plots; without matplotlib an error that says what to do."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from normgen.errors import UsageError
from normgen.report.evidence import gather
from normgen.report.plots import draw
from tests.report import made


def size_of(path: Path) -> tuple[int, int]:
    """Width and height in pixels, from the first chunk of a PNG file."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_three_plots_are_drawn_from_searches_winners_and_a_sweep(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra [plot])")
    evidence = gather([*made.files(tmp_path), made.sweep(tmp_path / "sweep.jsonl.xz")])
    paths = draw(evidence, tmp_path / "png")
    assert [p.name for p in paths] == ["search_progress.png", "percent_of_roof.png", "knob_importance.png"]
    assert all(size_of(p)[0] == 1440 for p in paths)
    assert paths == tuple(sorted((tmp_path / "png").iterdir(), key=lambda p: paths.index(p)))


def test_what_was_only_predicted_is_not_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra [plot])")
    path = made.write(
        tmp_path / "a.jsonl", [made.predicted(made.key()), made.predicted(made.key(), search={"trials": 1})]
    )
    assert draw(gather([path]), tmp_path / "png") == ()


def test_without_matplotlib_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    evidence = gather(made.files(tmp_path))
    with pytest.raises(UsageError, match=r"drawn by matplotlib(.|\n)*pip install 'normgen\[plot\]'"):
        draw(evidence, tmp_path / "png")
