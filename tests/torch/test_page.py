"""docs/frameworks.md: its snippets for torch run as they stand."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"


def test_the_snippets_of_the_page_run_in_order() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("\n## JAX\n")[0]
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) >= 11
    scope: dict[str, Any] = {"__name__": "page"}
    for number, snippet in enumerate(snippets):
        name = f"frameworks.md, snippet {number}"
        lines = snippet.splitlines(keepends=True)
        linecache.cache[name] = len(snippet), None, lines, name  # a traced function keeps its author's names
        exec(compile(snippet, name, "exec"), scope)
    assert scope["x"].grad.abs().sum() > 0
    assert scope["weight"].grad.shape == (768,)
    assert scope["q"].shape == (4, 128, 768)
    assert 0 < float(scope["loss"]) < 100
