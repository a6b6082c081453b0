"""Engines and torch warn as they are imported and compile: of what is theirs, not ours."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for message in ("no record for", ".torch.jit.*is deprecated", "Mismatch dtype between input and weight"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{message}"))
