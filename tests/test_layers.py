"""Imports go one way: no module imports one that stands below it in the list of layers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import normgen

PACKAGE = Path(normgen.__file__).parent
# From the top; what stands in one line is one layer, whose modules may import each other.
LAYERS = (
    ("errors", "shipped"),
    ("file_names", "toml_lines", "spec_names", "dtypes", "device", "private_files"),
    ("spec",),
    ("problem",),
    ("program",),
    ("schedule",),
    ("spec_checks", "spec_reader"),
    ("codegen",),
    ("cuda", "cpu"),
    ("verify",),
    ("tuning",),
    ("interop",),
    ("handle", "export", "report", "doctor", "console", "console_compare", "console_suite"),
    ("bench",),
    ("cli", "cli_options", "cli_study", "cli_bench", "cli_report", "cli_state", "cli_tune", "__main__"),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# cuda and cpu get text, names and sizes: of the layers above them they know these and no formula.
EXECUTORS_KNOW = {"errors", "dtypes", "device", "private_files", "codegen.module"}
FILES = sorted(PACKAGE.rglob("*.py"))
# The tuner writes the header of what it found; it does not need the exporter to be imported.
LATE = {("tuning", "export")}


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(file: Path, *, at_import: bool = False) -> set[str]:
    """Modules of normgen that a file imports; at_import: not those in functions or only for type checkers."""
    found: set[str] = set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    late = {n for part in ast.walk(tree) if at_import and _runs_later(part) for n in ast.walk(part)}
    for node in ast.walk(tree):
        if node in late:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    known = {module_of(f) for f in FILES}
    names = {name.removeprefix("normgen.") for name in found if name.startswith("normgen.")}
    return {name if name in known else name.rpartition(".")[0] for name in names} - {""}


def _runs_later(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef)


def layer(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("file", FILES, ids=lambda f: module_of(f) or "normgen")
def test_a_module_imports_only_what_stands_above_it(file: Path) -> None:
    own = layer(module_of(file))
    if not own:
        return  # normgen/__init__.py names the public functions; the test below holds it to laziness
    assert own in RANK, f"{own} has no place in LAYERS"
    for name in imported(file):
        if layer(name) == own or (own, layer(name)) in LATE:
            continue
        assert RANK[layer(name)] <= RANK[own], f"{module_of(file)} imports {name}, which stands below it"


@pytest.mark.parametrize("own", ["cuda", "cpu"])
def test_executors_know_no_formula(own: str) -> None:
    for file in (f for f in FILES if layer(module_of(f)) == own):
        names = {name for name in imported(file) if layer(name) != own}
        assert names <= EXECUTORS_KNOW, f"{module_of(file)} knows {sorted(names - EXECUTORS_KNOW)}"


def test_no_two_modules_import_each_other() -> None:
    edges = {module_of(f): imported(f, at_import=True) for f in FILES}
    pairs = [(a, b) for a in edges for b in edges[a] if a < b and a in edges.get(b, set())]
    assert pairs == []


UP_TO_CODEGEN = [m for f in FILES if layer(m := module_of(f)) in RANK and RANK[layer(m)] <= RANK["codegen"]]


def test_codegen_and_everything_above_it_import_without_cuda_and_optuna() -> None:
    program = (
        "import importlib, sys\n"
        f"for name in {UP_TO_CODEGEN!r}: importlib.import_module('normgen.' + name)\n"
        "print([m for m in ('cuda', 'optuna', 'rich', 'click') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
