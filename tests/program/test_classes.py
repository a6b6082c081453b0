"""The class of a program is asked in few places: what depends on it is looked up in a table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import normgen
from normgen.choice.first import CHOICES
from normgen.cost.model import MODELS
from normgen.pipeline import SOURCES
from normgen.program.classes import ProgramClass, class_of, program_class
from normgen.program.source import problem_for, written_program
from normgen.records.nearest import LIKENESS
from normgen.schedule.fallback import FALLBACKS
from normgen.schedule.legality import RULES
from normgen.schedule.space import SPACES
from normgen.spec.reader import load

MOST = 8  # files that ask
HOME = "program/classes.py"


def asked(tree: ast.AST) -> Iterator[int]:
    """The lines that call for a class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield from [node.lineno] if node.func.id in ("class_of", "program_class") else []


def test_few_files_ask_for_the_class_of_a_program() -> None:
    package = Path(normgen.__file__).parent
    files = {p.relative_to(package).as_posix() for p in package.rglob("*.py") if [*asked(ast.parse(p.read_text()))]}
    assert 0 < len(files - {HOME}) <= MOST, sorted(files)


def test_no_file_compares_classes() -> None:
    """A branch on a class is a row that its table lacks."""
    package = Path(normgen.__file__).parent
    for path in (p for p in package.rglob("*.py") if p.relative_to(package).as_posix() != HOME):
        compared = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Compare | ast.MatchValue))
        found = [n.lineno for n in compared if "ProgramClass." in ast.unparse(n)]
        assert not found, f"{path}: {found}"


@pytest.mark.parametrize("table", [RULES, SPACES, CHOICES, FALLBACKS, MODELS, LIKENESS, SOURCES])
def test_every_class_has_its_line_in_every_table(table: dict[ProgramClass, object]) -> None:
    assert set(table) == set(ProgramClass)


def test_the_class_of_a_problem_is_that_of_its_program_in_both_directions() -> None:
    for direction in ("forward", "backward"):
        problem = problem_for(load("layernorm"), shape="8x64", direction=direction)
        assert class_of(problem) is program_class(written_program(problem)) is ProgramClass.ROWS
