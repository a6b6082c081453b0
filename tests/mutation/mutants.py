"""Mutants of emitted kernels: which matches of which class become one, always the same for a seed."""

from __future__ import annotations

import functools
import random
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from normgen.codegen.module import Module
from tests.codegen.kernels import Named
from tests.mutation.cases import CASES
from tests.mutation.classes import CLASSES as OTHER_CLASSES
from tests.mutation.classes import MutationClass
from tests.mutation.ends import END_CASES, ENDS
from tests.mutation.grids import GRID_CASES, GRIDS
from tests.mutation.group_sums import GROUP_CASES, GROUP_SUMS
from tests.mutation.products import PRODUCT_CASES, PRODUCTS
from tests.mutation.rounding_classes import ROUNDING_CLASSES
from tests.mutation.varied import VARIED as OFF_DEFAULTS
from tests.mutation.varied import VARIED_CASES as OFF_DEFAULT_CASES

CLASSES = (*OTHER_CLASSES, *ROUNDING_CLASSES)
QUOTA = 8  # mutants of a class
VARIED = (*OFF_DEFAULTS, *ENDS)
VARIED_CASES = OFF_DEFAULT_CASES | END_CASES
ALL_CASES = CASES | VARIED_CASES | PRODUCT_CASES | GRID_CASES | GROUP_CASES
ALL_CLASSES = (*CLASSES, *VARIED, *PRODUCTS, *GRIDS, *GROUP_SUMS)
# Classes that have kernels of their own, and these.
OWN_CASES: tuple[tuple[tuple[MutationClass, ...], dict[str, Named]], ...] = (
    (VARIED, CASES | VARIED_CASES),
    (PRODUCTS, PRODUCT_CASES),
    (GRIDS, GRID_CASES),
    (GROUP_SUMS, GROUP_CASES),
)
_COMMENT = re.compile(r"//[^\n]*")


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One changed place of one kernel; `line` counts from 1 in the text, `column` from 1 in its line."""

    case: str
    kind: str
    line: int
    column: int
    before: str
    after: str
    following: str  # the line behind the changed one
    text: str

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.case}:{self.line}:{self.column}"

    def diff(self) -> str:
        """The changed lines as in a unified diff."""
        lost = [f"- {line.strip()}" for line in self.before.splitlines()]
        return "\n".join([*lost, *(f"+ {line.strip()}" for line in self.after.splitlines())])

    def module(self) -> Module:
        return replace(module_of(self.case), text=self.text)


@functools.cache
def module_of(case: str) -> Module:
    return ALL_CASES[case].module()


def without_comments(text: str) -> str:
    """The text with blanks in place of its comments: every place keeps its line and column."""
    return _COMMENT.sub(lambda match: " " * len(match[0]), text)


def sites(mutation: MutationClass, case: str, text: str) -> list[Mutant]:
    """A mutant for every place of the text that the class changes."""
    found = []
    for match in re.finditer(mutation.pattern, without_comments(text)):
        start, end = match.span()
        new = mutation.replacement(match)
        if new == match[0]:
            continue
        first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
        found.append(
            Mutant(
                case=case,
                kind=mutation.name,
                line=text.count("\n", 0, start) + 1,
                column=start - first + 1,
                before=text[first:last],
                after=text[first:start] + new + text[end:last],
                following=text[last + 1 : text.find("\n", last + 1)],
                text=text[:start] + new + text[end:],
            )
        )
    return found


def all_sites() -> dict[str, list[Mutant]]:
    """Every place of every kernel that a class changes, by the class's name.

    A text that two classes give counts for the first of them.
    """
    texts = {case: module_of(case).text for case in ALL_CASES}
    found: dict[str, list[Mutant]] = {}
    seen: set[str] = set()
    for mutation in ALL_CLASSES:
        known = next((cases for classes, cases in OWN_CASES if mutation in classes), CASES)
        served = [case for case in known if mutation.where(known[case])]
        made = [mutant for case in served for mutant in sites(mutation, case, texts[case])]
        found[mutation.name] = [mutant for mutant in made if mutant.text not in seen]
        seen |= {mutant.text for mutant in made}
    return found


def chosen(found: Mapping[str, Sequence[Mutant]], *, seed: int = 0, quota: int = QUOTA) -> list[Mutant]:
    """At most `quota` mutants of each class, from as many kernels as there are, those used least first."""
    used: dict[str, int] = defaultdict(int)
    picked = []
    for kind, mutants in found.items():
        rng = random.Random(f"{seed} {kind}")
        queues: dict[str, list[Mutant]] = defaultdict(list)
        for mutant in rng.sample(mutants, len(mutants)):
            queues[mutant.case].append(mutant)
        taken: dict[str, int] = dict.fromkeys(queues, 0)
        for _ in range(min(quota, len(mutants))):
            case = min((name for name in queues if queues[name]), key=lambda name: (taken[name], used[name], name))
            taken[case] += 1
            used[case] += 1
            picked.append(queues[case].pop())
    return picked


class Classed(Protocol):
    """What is a mutant of some class."""

    @property
    def kind(self) -> str: ...


AnyMutant = TypeVar("AnyMutant", bound=Classed)


def sample(mutants: Sequence[AnyMutant], count: int, *, seed: int = 0) -> list[AnyMutant]:
    """So many of the mutants: one of every class before a second of any class; which, depends on the seed."""
    turn: dict[str, int] = defaultdict(int)
    ranked = []
    for number, mutant in enumerate(random.Random(f"{seed} sample").sample(mutants, len(mutants))):
        ranked.append((turn[mutant.kind], number, mutant))
        turn[mutant.kind] += 1
    return [mutant for _, _, mutant in sorted(ranked, key=lambda item: item[:2])[:count]]
