"""All legal schedules of a problem on a device, each refusal with its reason, and the default among them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from normgen.device import Device
from normgen.knobs import (
    KNOBS,
    TABLE,
    ArithmeticMode,
    Group,
    Hold,
    Params,
    names_of,
)
from normgen.problem.problem import Problem
from normgen.program.classes import ProgramClass, class_of
from normgen.program.rewrites.approximate import has_exponentials
from normgen.program.rewrites.reductions import applicable
from normgen.program.source import written_program
from normgen.schedule.lanes.space import points as points_of_lanes
from normgen.schedule.legality import (
    CUT,
    FREE,
    STRUCTURAL,
    hints,
    reduces_rows,
    refusal,
    rules_of,
    without_remainders,
)
from normgen.schedule.meeting import are_giant, shared_rows
from normgen.schedule.policy import (
    ONE_KNOB,
    plain_only,
    searched_cluster,
    searched_columns,
    searched_cut,
    searched_division,
    searched_hint,
    searched_keep,
    searched_launch,
    searched_method,
    searched_order,
    searched_params,
    searched_place,
    searched_tile,
)
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.space import points

# What a spec that says nothing searches. Knobs that are not listed keep their plain value.
DEFAULT_KNOBS: dict[str, tuple[Any, ...]] = {k.name: k.forward for k in TABLE if k.forward}
# Backward programs with column reductions: a persistent grid that keeps column sums in registers.
BACKWARD_KNOBS: dict[str, tuple[Any, ...]] = {k.name: k.backward for k in TABLE if k.backward}
CUT_KNOBS, PLACE_KNOBS = names_of(Group.CUT), names_of(Group.PLACE)
METHOD_KNOBS, FREE_KNOBS = names_of(Group.METHOD), names_of(Group.FREE)

SEARCHED = (searched_hint, searched_keep, searched_division, searched_order, searched_params, searched_launch)
# Rules for a cut that is legal, in one place.
PLACED = (*(rule for rule in STRUCTURAL if rule not in CUT), searched_tile, searched_cluster, searched_place)


@dataclass(kw_only=True)
class Refusal:
    """One reason, how many points it refused, and one of them."""

    reason: str
    count: int
    example: Schedule


@dataclass(frozen=True, kw_only=True)
class Space:
    """`legal` in a fixed order; `refusals` by how many points they cost."""

    problem: Problem
    device: Device
    legal: tuple[Schedule, ...]
    refusals: tuple[Refusal, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.legal)


def with_default(legal: Sequence[Schedule], default: Schedule) -> list[Schedule]:
    """The legal schedules with the default among them: a spec's own search space may leave it out."""
    return list(legal) if default in legal else [default, *legal]


def knob_values(problem: Problem, rewrites: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[Any, ...]]:
    """The values searched for every knob: the spec's of this direction, else the defaults.

    Of knobs that change nothing here, as rewrites do without a variance and `columns` without column sums, one value.
    """
    default = Schedule()
    values: dict[str, tuple[Any, ...]] = {}
    asked = problem.searched_knobs
    chosen = {**(BACKWARD_KNOBS if problem.sums_rows else DEFAULT_KNOBS), **asked}
    for name in KNOBS:
        searched = chosen.get(name, (getattr(default, name),))
        if name in ("variance", "softmax"):
            applicable = rewrites.get(name, ())
            searched = tuple(v for v in searched if v in applicable) or (getattr(default, name),)
        if name == "params":
            searched = tuple(v for v in searched if v in _params_values(problem)) or (default.params,)
        if name == "columns" and not problem.sums_rows:
            searched = (default.columns,)
        if name == "division" and without_remainders(problem):
            searched = (default.division,)
        if name == "arithmetic" and name not in asked and is_approximate(problem):
            searched = (ArithmeticMode.APPROXIMATE,)
        values[name] = tuple(searched)
    if reduces_rows(problem):
        return values | {"parts": (default.parts,)}
    if "threads_per_row" not in asked:
        values["threads_per_row"] = tuple(sorted({*values["threads_per_row"], *_whole_parts(problem, values)}))
    return values | {"parts": _parts(problem, values)}


def _whole_parts(problem: Problem, values: Mapping[str, tuple[Any, ...]]) -> set[int]:
    """Threads of a block, in warps, all of which own one vector of a row: 192 of 6144 cols in 8 parts, by 4.

    Such are the best of few rows of groups where no power of two leaves as few idle (by 0.5 to 3 %; H200).
    """
    lanes = {problem.cols / (vector * parts) for vector in values["vector"] for parts in values["parts"]}
    return {int(n) for n in lanes if n % 32 == 0 and 64 <= n <= 1024}


def _parts(problem: Problem, values: Mapping[str, tuple[Any, ...]]) -> tuple[int, ...]:
    """The blocks a row may be shared by so that one fewer would need another step: of one to four vectors a thread."""
    lanes = {
        problem.cols // vector / (threads * steps)
        for vector in values["vector"]
        for threads in values["threads_per_row"]
        for steps in range(1, 5)
    }
    useful = {1, *map(math.ceil, lanes)}
    return tuple(parts for parts in values["parts"] if parts in useful)


def is_approximate(problem: Problem) -> bool:
    """Whether exponentials are approximate: outputs of 16 bits hide it, and it takes 3 instructions instead of 8.

    Numbers of rows or groups beside such outputs, as scales and losses, do not count: they come of many elements.
    """
    elems = [t for t in problem.tensors if t.is_written and t.kind.is_elem]
    return (
        bool(elems)
        and all(t.dtype.bytes <= 2 for t in elems)
        and ArithmeticMode.APPROXIMATE in problem.searched_knobs.get("arithmetic", (ArithmeticMode.APPROXIMATE,))
        and has_exponentials(written_program(problem))
    )


def _params_values(problem: Problem) -> tuple[str, ...]:
    """Values of `params` that mean something: 32-bit parameters have no packed form."""
    if not problem.parameter_bytes:
        return (Params.LATE,)
    narrow = any(t.dtype.bytes < 4 for t in problem.tensors if t.is_parameter)
    return tuple(value for value in Params if narrow or value is not Params.PACKED)


def space(problem: Problem, device: Device) -> Space:
    """Enumerate the search space of `problem` on `device`."""
    return SPACES[class_of(problem)](problem, device)


def _space_of_rows(problem: Problem, device: Device) -> Space:
    values = knob_values(problem, applicable(written_program(problem)))
    legal: list[Schedule] = []
    refusals: dict[str, Refusal] = {}
    for structure in _structures(problem, device, values, refusals):
        reason = refusal(problem, structure, device, PLACED)
        if reason is not None:
            _count(refusals, reason, structure)
            continue
        for base in _points(structure, METHOD_KNOBS, values):
            unsearched = refusal(problem, base, device, (searched_method, searched_columns))
            if unsearched is not None:
                _count(refusals, unsearched, base)
                continue
            plain = plain_only(problem, base)
            if plain is not None:
                _count(refusals, plain, base)
            if plain is not None and base.persistent > (1 if problem.sums_rows else 0):
                continue
            lists = values if plain is None else _plain(problem, base, device, values)
            for schedule in _points(base, FREE_KNOBS, _promising(problem, base, device, lists, refusals)):
                reason = refusal(problem, schedule, device, (*FREE, *SEARCHED))
                if reason is None:
                    legal.append(schedule)
                else:
                    _count(refusals, reason, schedule)
    for schedule in _meetings(problem, device, values):
        reason = refusal(problem, schedule, device, (*rules_of(problem), searched_method))
        if reason is None:
            legal.append(schedule)
        else:
            _count(refusals, reason, schedule)
    return Space(problem=problem, device=device, legal=tuple(legal), refusals=_ordered(refusals))


def _meetings(problem: Problem, device: Device, values: Mapping[str, tuple[Any, ...]]) -> Iterator[Schedule]:
    """Blocks of the grid that share giant rows: few cuts, with the methods and the knobs that such rows may gain by."""
    if not are_giant(problem):
        return
    for cut in shared_rows(problem, device):
        unrolls = (cut.unroll, *((8,) if cut.hold is Hold.RELOAD and cut.unroll else ()))
        free = {"unroll": unrolls, "store": values["store"]}
        free |= {"params": tuple(v for v in values["params"] if v in (Params.LATE, Params.KEPT, Params.PACKED))}
        yield from _points(cut, (*free, "variance", "softmax", "arithmetic"), {**values, **free})


def _ordered(refusals: Mapping[str, Refusal]) -> tuple[Refusal, ...]:
    return tuple(sorted(refusals.values(), key=lambda r: (-r.count, r.reason)))


def _plain(
    problem: Problem, base: Schedule, device: Device, values: Mapping[str, tuple[Any, ...]]
) -> dict[str, tuple[Any, ...]]:
    """The values of the free knobs at a point that is searched only once: the first ones that this policy allows."""
    lists = {n: v[:1] for n, v in values.items()} | {"unroll": values["unroll"]}
    for name, rule in (("load", hints), ("dependent_launch", searched_launch)):
        allowed = [v for v in values[name] if rule(problem, base.varied(**{name: v}), device) is None]
        lists[name] = tuple(allowed[:1]) or lists[name]
    return lists


def _structures(
    problem: Problem, device: Device, values: Mapping[str, tuple[Any, ...]], refusals: dict[str, Refusal]
) -> Iterator[Schedule]:
    """Cuts of a row that are legal by themselves, with every place and number of rows: most of the product is not."""
    places = math.prod(len(values[n]) for n in PLACE_KNOBS)
    plainest = Schedule(params=Params.LATE, unroll=1, columns=values["columns"][0])
    for cut in _points(plainest, CUT_KNOBS, values):
        reason = refusal(problem, cut, device, (*CUT, searched_cut))
        if reason is None:
            yield from _points(cut, PLACE_KNOBS, values)
        else:
            _count(refusals, reason, cut, places)


def _promising(
    problem: Problem,
    base: Schedule,
    device: Device,
    values: Mapping[str, tuple[Any, ...]],
    refusals: dict[str, Refusal],
) -> dict[str, tuple[Any, ...]]:
    """`values` without those that no other free knob can make legal: most points of a space need not be visited.

    A rule that names one free knob and structure alone refuses its value at all points of `base`.
    """
    left = dict(values)
    for name in ONE_KNOB:
        for value in values[name]:
            example = base.varied(**{name: value})
            reason = next((r for rule in ONE_KNOB[name] if (r := rule(problem, example, device)) is not None), None)
            if reason is not None and len(left[name]) > 1:
                left[name] = tuple(v for v in left[name] if v != value)
                points = math.prod(len(left[n]) for n in FREE_KNOBS if n != name)
                _count(refusals, reason, example, points)
    return left


def _points(base: Schedule, names: tuple[str, ...], values: Mapping[str, tuple[Any, ...]]) -> Iterator[Schedule]:
    for combination in itertools.product(*(values[n] for n in names)):
        yield base.varied(**dict(zip(names, combination, strict=True)))


def _count(refusals: dict[str, Refusal], reason: str, schedule: Schedule, points: int = 1) -> None:
    if reason in refusals:
        refusals[reason].count += points
    else:
        refusals[reason] = Refusal(reason=reason, count=points, example=schedule)


def _space_of_tiles(problem: Problem, device: Device) -> Space:
    return _space_of(points(problem, device), problem, device)


def _space_of_lanes(problem: Problem, device: Device) -> Space:
    return _space_of(points_of_lanes(problem, device), problem, device)


def _space_of(found: Iterator[Schedule], problem: Problem, device: Device) -> Space:
    legal: list[Schedule] = []
    refusals: dict[str, Refusal] = {}
    for schedule in found:
        if (reason := refusal(problem, schedule, device)) is None:
            legal.append(schedule)
        else:
            _count(refusals, reason, schedule)
    return Space(problem=problem, device=device, legal=tuple(legal), refusals=_ordered(refusals))


SPACES: dict[ProgramClass, Callable[[Problem, Device], Space]] = {
    ProgramClass.ROWS: _space_of_rows,
    ProgramClass.TILES: _space_of_tiles,
    ProgramClass.LANES: _space_of_lanes,
}
