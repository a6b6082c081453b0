"""docs/frameworks.md: its snippets for JAX run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason="jax is not installed")

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"


@pytest.mark.usefixtures("device")
def test_the_snippets_of_the_page_run_in_order() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("\n## JAX\n")[2]
    snippets = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) == 1
    scope: dict[str, Any] = {"__name__": "page"}
    exec(compile(snippets[0], "frameworks.md, JAX", "exec"), scope)
    assert scope["dweight"].shape == (768,)
    assert abs(scope["dx"]).sum() > 0
    assert scope["q"].shape == scope["y"].shape == (4, 128, 768)
    assert abs(scope["each"].sum(-1) - 1).max() < 1e-5
