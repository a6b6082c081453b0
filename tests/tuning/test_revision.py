"""Revisions follow the sources that decide a text or a time, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

import normgen
from normgen.tuning import revision


def made(root: Path) -> Path:
    for name in ("verify/check.py", "verify/deep/rows.py", "tuning/plan.py", "tuning/search.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def test_a_digest_changes_with_what_is_named_and_with_nothing_else(tmp_path: Path) -> None:
    root = made(tmp_path)
    names = ("verify", "tuning/plan.py")
    before = revision.digest_of(names, root)
    (root / "tuning" / "search.py").write_text("another search times nothing")
    (root / "verify" / "__pycache__").mkdir()
    (root / "verify" / "__pycache__" / "check.pyc").write_text("compiled")
    assert revision.digest_of(names, root) == before
    for name in ("verify/deep/rows.py", "tuning/plan.py"):
        (root / name).write_text("changed")
        changed = revision.digest_of(names, root)
        assert changed != before
        before = changed
    (root / "tuning" / "plan.py").rename(root / "tuning" / "planning.py")
    with pytest.raises(FileNotFoundError):
        revision.digest_of(names, root)


def test_the_measuring_revision_covers_every_module_that_a_bench_imports_to_time() -> None:
    """What `gpu_bench` takes from the tuner must be named, but for nouns that time nothing."""
    root = Path(normgen.__file__).parent
    lines = (root / "tuning" / "gpu_bench.py").read_text().splitlines()
    used = {line.split()[1].removeprefix("normgen.") for line in lines if line.startswith("from normgen.tuning")}
    nouns = {"tuning.bench", "tuning.records"}
    named = {name.removesuffix(".py").replace("/", ".") for name in revision._MEASURING}
    assert used - nouns <= named
    assert revision.measuring_revision() != revision.generator_revision()
