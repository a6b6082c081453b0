"""Of a schedule that a problem refuses: the knobs that the broken rule looks at, and the least change that is legal."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from normgen.choice.first import default_schedule
from normgen.device import Device
from normgen.errors import UsageError
from normgen.knobs import TABLE, Knob
from normgen.problem.problem import Problem
from normgen.schedule.legality import Rule, rules_of
from normgen.schedule.schedule import Schedule

FAR = 4  # knobs that may change at once
Change = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Repair:
    """Why a schedule is refused, and what would make it legal.

    reason    the sentence of the rule
    knobs     those that the rule looks at: another value of one of these alone satisfies it
    changes   knob -> value: the fewest, first of knobs that nobody asked for; None where none was found
    """

    reason: str
    knobs: tuple[str, ...]
    changes: dict[str, Any] | None

    def error(self, schedule: Schedule) -> UsageError:
        """The refusal as an error that names the knobs and the least change."""
        named = ", ".join(f"{name}={getattr(schedule, name)}" for name in self.knobs)
        rule = f"{self.reason} ({named})" if named else self.reason
        why = "`normgen space --why` lists every rule"
        if self.changes is None:
            hint = f"no change of up to {FAR} knobs makes it legal, nor the default with it; {why}"
        else:
            least = " ".join(f"{name}={value}" for name, value in self.changes.items())
            hint = f"the least change that is legal: {least}; {why}"
        return UsageError(rule, received=str(schedule), hint=hint)


def repair(problem: Problem, schedule: Schedule, device: Device, asked: Collection[str] = ()) -> Repair | None:
    """None for a legal schedule. `asked` are knobs that somebody named: they change last."""
    broken = _broken(problem, schedule, device)
    if broken is None:
        return None
    rule, reason = broken
    knobs = tuple(k.name for k in TABLE if _satisfies(rule, problem, schedule, device, k))
    change = _least_change(problem, schedule, device, knobs, asked)
    return Repair(reason=reason, knobs=knobs, changes=None if change is None else dict(change))


def _broken(problem: Problem, schedule: Schedule, device: Device) -> tuple[Rule, str] | None:
    for rule in rules_of(problem):
        if (reason := rule(problem, schedule, device)) is not None:
            return rule, reason
    return None


def _satisfies(rule: Rule, problem: Problem, schedule: Schedule, device: Device, knob: Knob) -> bool:
    """Whether another value of the knob alone changes what the rule says, numbers aside."""
    own = _wording(rule(problem, schedule, device))
    others = (schedule.varied(**{knob.name: value}) for value in knob.values)
    return any(_wording(rule(problem, other, device)) != own for other in others)


def _wording(reason: str | None) -> str | None:
    return None if reason is None else re.sub(r"[0-9]+", "#", reason)


def _least_change(
    problem: Problem, schedule: Schedule, device: Device, knobs: Collection[str], asked: Collection[str]
) -> Change | None:
    """The smallest change, of knobs that nobody asked for before the others.

    One and two knobs at every value, the nearest values first. More are tried at their plain and default values only:
    each way to be legal that somebody means passes there.
    Last comes the default, but for what was asked.
    """
    default = default_schedule(problem, device)
    free = [k for k in TABLE if k.name not in asked]

    def is_legal(change: Change) -> bool:
        return _broken(problem, schedule.varied(**dict(change)), device) is None

    def every(knob: Knob) -> list[Any]:
        return _nearest_first(knob, getattr(schedule, knob.name))

    def usual(knob: Knob) -> list[Any]:
        known = dict.fromkeys((knob.plain, getattr(default, knob.name)))
        return [value for value in known if value != getattr(schedule, knob.name)]

    first = [k for k in free if k.name in knobs]  # a rule's own knobs lead, for their change is the one to understand
    tries: tuple[tuple[int, Iterable[Knob], Callable[[Knob], list[Any]]], ...] = (
        (1, first, usual),
        (1, free, every),
        (2, free, usual),
        (1, TABLE, every),
        (3, free, usual),
        (2, [k for k in TABLE if k in free or k.name in knobs], every),
        (4, free, usual),
    )
    for count, among, values in tries:
        found = next(filter(is_legal, _changes(list(among), count, values)), None)
        if found is not None:
            return found
    # A product's tiles are five knobs, which the plain point has none of.
    rest = tuple((k.name, value) for k in free if (value := getattr(default, k.name)) != getattr(schedule, k.name))
    return rest if is_legal(rest) else None


def _changes(knobs: list[Knob], count: int, values: Callable[[Knob], list[Any]]) -> Iterator[Change]:
    lists = {knob.name: values(knob) for knob in knobs}
    for chosen in itertools.combinations(lists, count):
        for combination in itertools.product(*(lists[name] for name in chosen)):
            yield tuple(zip(chosen, combination, strict=True))


def _nearest_first(knob: Knob, own: Any) -> list[Any]:
    """The other values of a knob by their distance in the table from its own; of named ones the plain one leads."""
    order = {value: place for place, value in enumerate(knob.values)}
    others = [value for value in knob.values if value != own]
    return sorted(others, key=lambda value: (not knob.is_size and value != knob.plain, abs(order[value] - order[own])))
