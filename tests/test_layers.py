"""Imports go one way: no module imports one that stands below it in the list of layers."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import normgen

PACKAGE = Path(normgen.__file__).parent
ROOT = Path(__file__).parents[1]
# From the top; what stands in one line is one layer, whose modules may import each other.
LAYERS = (
    ("errors", "text"),
    ("files",),
    ("dtypes", "device", "knobs"),
    ("spec",),
    ("problem",),
    ("program",),
    ("schedule",),
    ("cost",),
    ("choice",),
    ("codegen",),
    ("pipeline",),
    ("cuda", "cpu"),
    ("verify",),
    ("traced",),
    ("records",),
    ("measure",),
    ("trials",),
    ("export",),
    ("tuning",),
    ("suites",),
    ("studies",),
    ("python",),
    ("operators",),
    ("torch",),
    ("jax",),
    ("bench",),
    ("ladder",),
    ("report",),
    ("engines",),
    ("cli",),
    ("__main__",),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# cuda and cpu get text, names and sizes: of the layers above them they know these and no formula.
EXECUTORS_KNOW = {"errors", "files.private", "dtypes", "device", "codegen.module"}
FILES = sorted(PACKAGE.rglob("*.py"))
# Imports of ours inside functions, and why each stands there.
LATE = {
    ("bench.peers.bench", "bench.peers.device"): "it imports torch, which a bench without peers does without",
    ("bench.accuracy.bits", "bench.peers.host"): "it imports torch, which is not always there",
    ("bench.accuracy.measure", "bench.peers.host"): "it imports torch, which is not always there",
    ("cli.bench_command", "bench.host_times"): "it imports torch, which is not always there",
    ("cli.bench_command", "bench.model_times"): "it imports torch, which is not always there",
    ("cli.options", "problem.problem"): "it imports numpy, which what starts the processes of a tune does without",
    ("tuning.measured", "tuning.search.dashboard"): "it loads optuna, while the first kernels compile",
    ("tuning.measured", "tuning.search.search"): "it loads optuna, while the first kernels compile",
    ("studies.replay", "tuning.search.sampler"): "it imports Optuna, which sweeps and explanations do without",
    ("studies.replay", "tuning.search.search"): "it imports Optuna, which sweeps and explanations do without",
    ("cli.tune.run", "suites.crew"): "it imports SQLAlchemy, a fifth of a tune's start, for suites alone",
}
MOST_FILES = 14  # of one folder
MOST_LOOSE = 7  # on top


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file) for file in FILES}


@functools.cache
def imported(file: Path, *, late: bool = False) -> frozenset[str]:
    """Modules of normgen that a file imports, for type checkers too; late: only those in functions."""
    found: set[str] = set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inside = {n for part in ast.walk(tree) if isinstance(part, ast.FunctionDef) for n in ast.walk(part)}
    for node in ast.walk(tree):
        if late and node not in inside:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    names = {name.removeprefix("normgen.") for name in found if name.startswith("normgen.")}
    return frozenset(name if name in MODULES else name.rpartition(".")[0] for name in names) - {""}


def layer(module: str) -> str:
    return module if module in RANK else module.partition(".")[0]


@pytest.mark.parametrize("file", FILES, ids=lambda f: module_of(f) or "normgen")
def test_a_module_imports_only_what_stands_above_it(file: Path) -> None:
    own = layer(module_of(file))
    if not own:
        return  # normgen/__init__.py names the public functions
    assert own in RANK, f"{own} has no place in LAYERS"
    for name in imported(file):
        assert RANK[layer(name)] <= RANK[own], f"{module_of(file)} imports {name}, which stands below it"


def test_no_import_of_ours_stands_inside_a_function_but_for_those_with_a_reason() -> None:
    found = {(module_of(f), name) for f in FILES if module_of(f) for name in imported(f, late=True)}
    assert found == set(LATE)


def test_no_modules_import_each_other_in_a_circle() -> None:
    edges = {module_of(f): imported(f) - imported(f, late=True) for f in FILES if module_of(f)}
    left = dict(edges)
    while True:  # what imports nothing that is left, or is imported by nothing, is in no circle
        imported_by_some = {name for above in left.values() for name in above}
        free = [m for m, above in left.items() if not above & left.keys() or m not in imported_by_some]
        if not free:
            break
        for module in free:
            del left[module]
    assert sorted(left) == []


def test_no_folder_is_too_full_to_be_read_at_a_glance() -> None:
    folders = Counter(file.parent for file in FILES)
    assert {str(f): n for f, n in folders.items() if n > (MOST_LOOSE if f == PACKAGE else MOST_FILES)} == {}


@pytest.mark.parametrize("own", ["cuda", "cpu"])
def test_executors_know_no_formula(own: str) -> None:
    for file in (f for f in FILES if layer(module_of(f)) == own):
        names = {name for name in imported(file) if layer(name) != own}
        assert names <= EXECUTORS_KNOW, f"{module_of(file)} knows {sorted(names - EXECUTORS_KNOW)}"


UP_TO_CODEGEN = [m for f in FILES if layer(m := module_of(f)) in RANK and RANK[layer(m)] <= RANK["codegen"]]


def test_codegen_and_everything_above_it_import_without_cuda_and_optuna() -> None:
    program = (
        "import importlib, sys\n"
        f"for name in {UP_TO_CODEGEN!r}: importlib.import_module('normgen.' + name)\n"
        "print([m for m in ('cuda', 'optuna', 'rich', 'click') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_map_in_the_docs_names_every_folder_in_the_order_of_imports() -> None:
    """Each row of the map stands below those that it may import: the first name of a row gives its place."""
    rows = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## The folders")[2]
    table = [line.split("|")[1] for line in rows.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    places = [[name.removesuffix("/").removesuffix(".py") for name in re.findall(r"`([^`]+)`", row)] for row in table]
    named = [name for place in places for name in place]
    assert sorted(named) == sorted({name.split(".")[0] for name in RANK} - {"text", "__main__"})
    ranks = [RANK[place[-1]] for place in places[1:]]
    assert ranks == sorted(ranks)
