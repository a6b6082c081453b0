"""Where the folders that come with normgen are."""

from __future__ import annotations

from pathlib import Path

VERSION = "0.2.0"


def shipped(name: str) -> Path:
    """The folder `name`, such as specs or generated: inside an installed package, beside the package in a clone."""
    package = Path(__file__).resolve().parents[1]
    installed = package / name
    return installed if installed.is_dir() else package.parent / name
