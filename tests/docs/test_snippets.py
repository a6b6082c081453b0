"""README and docs: files, commands and programs run as they stand; what needs a GPU or a library is marked."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from normgen.cpu import find_compiler
from tests.mutation.cases import CASES
from tests.mutation.ends import END_CASES, ENDS
from tests.mutation.grids import GRID_CASES, GRIDS
from tests.mutation.group_sums import GROUP_CASES, GROUP_SUMS
from tests.mutation.mutants import CLASSES, all_sites, chosen
from tests.mutation.package_changes import CHANGES
from tests.mutation.products import PRODUCT_CASES, PRODUCTS
from tests.mutation.varied import VARIED, VARIED_CASES

from .pages import ROOT, Folder, blocks, run_page

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]
RUN = (
    "tutorial.md",
    "products.md",
    "records.md",
    "engines.md",
    "search.md",
)  # README's commands: tests/test_end_to_end.py, and a release
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    kept = {name: str(tmp_path / name) for name in ("state",)}
    environment = {**os.environ, "NORMGEN_STATE_DIR": kept["state"], "PYTHONPATH": f"{ROOT}:{_path()}"}
    return Folder(tmp_path, sys.executable, environment)


def _path() -> str:
    return os.environ.get("PYTHONPATH", "")


def have() -> set[str]:
    return {"nvcc"} if shutil.which("nvcc") else set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_every_block_says_what_it_is_and_needs(page: Path) -> None:
    for block in blocks(page):
        assert block.text.strip(), block
        assert not (block.needs and block.run_by), block


@needs_compiler
@pytest.mark.parametrize("name", RUN)
def test_the_page_runs_without_a_gpu(name: str, folder: Folder) -> None:
    assert run_page(ROOT / "docs" / name, folder, have=have()) >= 1


@needs_compiler
def test_the_tutorial_runs_with_torch(folder: Folder) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    for block in blocks(ROOT / "docs" / "tutorial.md"):
        if block.file == "capped.toml" or block.needs == "torch":
            folder.run(block)


@needs_compiler
def test_the_page_of_products_runs_with_torch(folder: Folder) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    ran = [b for b in blocks(ROOT / "docs" / "products.md") if b.file == "normed.toml" or b.needs == "torch"]
    for block in ran:
        folder.run(block)
    assert len(ran) >= 4


@pytest.mark.gpu
def test_the_page_of_products_runs_on_a_gpu(folder: Folder) -> None:
    """All but what needs torch, which another test runs; tunes leave records, and the header's program runs."""
    if not have():
        pytest.skip("no nvcc on the path")
    assert run_page(ROOT / "docs" / "products.md", folder, have=have() | {"gpu"}) >= 10
    assert list((folder.path / "state").rglob("*.jsonl")), "the tunes left their winners"


@pytest.mark.gpu
def test_what_the_tutorial_does_on_a_gpu_runs(folder: Folder) -> None:
    """The last step and what it builds on; the other tests run the other steps, on this machine too."""
    if not have():
        pytest.skip("no nvcc on the path")
    ran = [
        block
        for block in blocks(ROOT / "docs" / "tutorial.md")
        if block.file or block.needs in ("nvcc", "gpu") or "--output headers" in block.text
    ]
    for block in ran:
        folder.run(block)
    assert [block.needs for block in ran] == ["", "", "", "nvcc", "gpu"]
    records = list((folder.path / "state").rglob("*.jsonl"))
    assert records, "the tunes left their winners"


def test_the_figures_of_the_page_on_proofs_are_those_of_the_mutants() -> None:
    page = (ROOT / "docs" / "proof.md").read_text(encoding="utf-8")
    mutants = chosen(all_sites())
    more, at_ends = (sum(m.kind in {c.name for c in classes} for m in mutants) for classes in (VARIED, ENDS))
    of_products = sum(mutant.case in PRODUCT_CASES for mutant in mutants)
    of_grids = sum(mutant.case in GRID_CASES for mutant in mutants)
    of_groups = sum(mutant.case in GROUP_CASES for mutant in mutants)
    first = len(mutants) - more - at_ends - of_products - of_grids - of_groups
    assert f"{first} mutants of {len(CLASSES)} classes" in page
    assert f"in {len(CASES)} kernels" in page
    assert f"{more} more of {len(VARIED)} classes, in {len(VARIED_CASES)} kernels of their own" in page
    assert f"{at_ends} more of {len(ENDS)} classes,\nin {len(END_CASES)} more kernels" in page
    assert f"{of_products} of {len(PRODUCTS)} classes, in {len(PRODUCT_CASES)} kernels of products" in page
    assert f"{of_grids} of {len(GRIDS)} classes, in {len(GRID_CASES)} kernels whose blocks share rows" in page
    assert f"{of_groups} of {len(GROUP_SUMS)} classes, in {len(GROUP_CASES)} kernels with gradients of groups" in page
    assert f"{len(CHANGES)} wrong lines" in page
