"""Reductions over groups of columns behind products: what a tile's elements go through, round by round.

A group lies in a tile. What reads its value, such as an element that is quantised by it, comes in a later round than
the elements that make it; values of elements that both rounds read are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from normgen.program.classes import is_of_groups
from normgen.program.ir import Load, Map, Reduce, Store, defined_names, used_names

Step = Load | Map | Store | Reduce


@dataclass(frozen=True)
class Round:
    """Elements that enter the values of groups, and what is made of these.

    steps    what is computed of elements for the reductions
    reduces  the reductions
    kept     elements among `steps` that a later round reads
    lines    what is computed of the tile's lines for `finish`
    finish   what is made of the groups' values, and stored
    """

    steps: tuple[Load | Map, ...]
    reduces: tuple[Reduce, ...]
    kept: tuple[str, ...]
    lines: tuple[Load | Map, ...]
    finish: tuple[Map | Store, ...]

    @property
    def values(self) -> tuple[str, ...]:
        """Those of groups that are known behind it."""
        return tuple(name for step in (*self.reduces, *self.finish) for name in defined_names(step))


@dataclass(frozen=True)
class Grouped:
    """The epilogue of a program with groups.

    size    columns of a group
    rounds  each waits for the one before it
    last    what is computed of elements behind them all, and stored or reduced
    """

    size: int
    rounds: tuple[Round, ...]
    last: tuple[Step, ...]

    @property
    def reduces(self) -> tuple[Reduce, ...]:
        return tuple(reduce for one in self.rounds for reduce in one.reduces)

    @property
    def kept(self) -> tuple[str, ...]:
        """The elements of which a thread keeps those that it owns."""
        return tuple(name for one in self.rounds for name in one.kept)

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(name for one in self.rounds for name in one.values)

    @property
    def held(self) -> tuple[str, ...]:
        """The values of groups that are read behind the round which makes them."""
        found = list[str]()
        for number, one in enumerate(self.rounds):
            behind = (s for r in self.rounds[number + 1 :] for s in (*r.steps, *r.reduces, *r.finish))
            read = _read_by((*behind, *self.last))
            found += [name for name in one.values if name in read]
        return tuple(found)


def grouped_of(epilogue: Iterable[Step]) -> Grouped | None:
    """The rounds of an epilogue; None of one without groups."""
    steps = [*epilogue]
    stages = _stages(steps)
    reduces = [s for s in steps if isinstance(s, Reduce) and is_of_groups(s)]
    of_groups = [s for s in steps if isinstance(s, Map | Store) and s.kind.is_groups]
    ends = [s for s in steps if isinstance(s, Store | Reduce) and not s.kind.is_groups]
    known = {name for s in (*reduces, *of_groups) for name in defined_names(s)}
    rounds: list[Round] = []
    for number in range(1, 1 + max((stages[r.names[0]] for r in reduces), default=0)):
        own = tuple(r for r in reduces if stages[r.names[0]] == number)
        found = _leading_to(steps, own, known)
        elements = {s.name for s in found if isinstance(s, Map) and s.kind.is_elem}
        later = [*(r for r in reduces if stages[r.names[0]] > number), *ends]
        read = _read_by((*_leading_to(steps, later, known | elements), *later))
        kept = tuple(s.name for s in found if s.name in elements & read)
        known.update(kept)
        finish = tuple(s for s in of_groups if max(1, _stage(s, stages)) == number)
        rounds.append(Round(found, own, kept, _leading_to(steps, finish, known), finish))
    if not rounds:
        return None
    return Grouped(reduces[0].group, tuple(rounds), _in_order(steps, (*_leading_to(steps, ends, known), *ends)))


def _stages(steps: Iterable[Step]) -> dict[str, int]:
    """How many reductions over groups each value waits for, one behind the other."""
    stages: dict[str, int] = {}
    for step in steps:
        for name in defined_names(step):
            stages[name] = _stage(step, stages) + is_of_groups(step)
    return stages


def _stage(step: Step, stages: dict[str, int]) -> int:
    return max((stages.get(name, 0) for name in used_names(step)), default=0)


def _leading_to(steps: list[Step], roots: Iterable[Step], known: Collection[str]) -> tuple[Load | Map, ...]:
    """The loads and maps that lead to `roots`, but to nothing that is `known`, in program order."""
    needed = _read_by(roots) - {*known}
    found: list[Load | Map] = []
    for step in reversed(steps):
        if isinstance(step, Load | Map) and step.name in needed:
            needed |= used_names(step) - {*known}
            found.append(step)
    return tuple(found[::-1])


def _in_order(steps: list[Step], found: Collection[Step]) -> tuple[Step, ...]:
    return tuple(step for step in steps if step in found)


def _read_by(steps: Iterable[Step]) -> set[str]:
    return set().union(*map(used_names, steps))
