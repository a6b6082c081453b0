"""The smallest spec that still shows a fault: parts of formulas give way to their own parts, or to a name or number."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.fuzz.specs import Asked
from tests.fuzz.stages import Answer, answered

_FORMULA = re.compile(r'(\w+) = "(.*)"')
_SECTION = re.compile(r"\[(\w+)\]")
_LEAVES = ("x", "1", "2")


def shrunk(step: Callable[[Any], Answer], asked: Asked, answer: Answer) -> tuple[Asked, Answer]:
    """The last of ever smaller draws with a fault of the same state and, of a crash, the same words."""
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for smaller in _smaller(asked):
            found = answered(step, smaller)
            if _kind(found) == _kind(answer):
                asked, answer, is_smaller = smaller, found, True
                break
    return asked, answer


def _kind(answer: Answer) -> tuple[str, str]:
    return answer.state, re.sub(r"\W.*", "", answer.why.split("\n")[0]) if answer.state == "crash" else ""


def _smaller(asked: Asked) -> Iterator[Asked]:
    """Draws with one line less, a shorter formula, or a plainer question."""
    lines = asked.text.splitlines()
    section = ""
    for at, line in enumerate(lines):
        if found := _SECTION.fullmatch(line):
            section = found[1]
            continue
        others = [*lines[:at], *lines[at + 1 :]]
        yield replace(asked, text="\n".join(others) + "\n")
        formula = _FORMULA.fullmatch(line)
        if section == "formulas" and formula:
            for text in _shorter(formula[2]):
                changed = [*lines[:at], f'{formula[1]} = "{text}"', *lines[at + 1 :]]
                yield replace(asked, text="\n".join(changed) + "\n")
    yield from (replace(asked, cols=cols) for cols in (8, 64) if cols < asked.cols)
    if asked.dtype != "f32":
        yield replace(asked, dtype="f32")


def _shorter(text: str) -> Iterator[str]:
    """The formula with one part replaced by something shorter, the largest parts first."""
    tree = ast.parse(text, mode="eval").body
    parts = sorted((node for node in ast.walk(tree) if isinstance(node, ast.expr)), key=_length, reverse=True)
    for part in parts:
        inner = [ast.unparse(child) for child in ast.iter_child_nodes(part) if isinstance(child, ast.expr)]
        whole = ast.unparse(part)
        for other in dict.fromkeys((*_LEAVES, *inner)):
            if len(other) < len(whole):
                yield ast.unparse(_Replaced(part, other).visit(ast.parse(text, mode="eval"))).strip()


def _length(node: ast.expr) -> int:
    return len(ast.unparse(node))


class _Replaced(ast.NodeTransformer):
    """The tree with one part, found by its place in the text, replaced."""

    def __init__(self, part: ast.expr, other: str) -> None:
        self.place = (part.lineno, part.col_offset, part.end_col_offset)
        self.other = ast.parse(other, mode="eval").body

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and (node.lineno, node.col_offset, node.end_col_offset) == self.place:
            return self.other
        return super().visit(node)
