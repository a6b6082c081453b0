"""All legal schedules of a problem on a device, each refusal with its reason, and the default among them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    PASSES,
    STRUCTURAL,
    Rule,
    hints,
    reduces_rows,
    rules_of,
    without_remainders,
)
from normgen.schedule.many import NAMES, Rows, Schedules, combinations
from normgen.schedule.meeting import are_giant, shared_rows
from normgen.schedule.policy import (
    ONE_KNOB,
    is_tiny,
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


TRIED = 32  # schedules that tell what a rule reads, before it is asked for all combinations of that


@dataclass(kw_only=True)
class Refusal:
    """One reason, how many points it refused, and one of them."""

    reason: str
    count: int
    example: Schedule


class Answers(NamedTuple):
    """What rules say of schedules: `codes` [schedules] into the reasons, of which the first is None, no refusal."""

    codes: NDArray[np.int32]
    reasons: tuple[str | None, ...]


@dataclass(frozen=True, kw_only=True)
class Space:
    """`legal` in a fixed order; `refusals` by how many points they cost."""

    problem: Problem
    device: Device
    legal: Schedules
    refusals: tuple[Refusal, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.legal)


class Sieve:
    """What rules refuse of many schedules of a problem, and how many points each reason has cost.

    A rule is asked once for each combination of the knobs that it reads. Which these are it tells itself: it is asked
    about schedules that note what is read of them. What it answers follows from what it reads, so that schedules that
    agree on that have the same answer: of 10^5 a rule sees some hundreds, and stays a function of one schedule.
    """

    def __init__(self, problem: Problem, device: Device) -> None:
        self.problem, self.device = problem, device
        self._refusals: dict[str, Refusal] = {}

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """By how many points they cost."""
        return tuple(sorted(self._refusals.values(), key=lambda r: (-r.count, r.reason)))

    def legal(self, schedules: Schedules, rules: Iterable[Rule], points: int = 1) -> Schedules:
        """Those that no rule refuses; each of the others is counted as so many points."""
        refused = self.refused(schedules, rules)
        self.count(schedules, refused, np.full(len(schedules), points))
        return schedules.taken(np.flatnonzero(refused.codes == 0))

    def refused(self, schedules: Schedules, rules: Iterable[Rule]) -> Answers:
        """For each schedule the reason of the first rule that refuses it."""
        codes = np.zeros(len(schedules), dtype=np.int32)
        left, reasons = np.arange(len(schedules)), _Numbered()
        for rule in rules:
            asked = left
            if rule in PASSES and len(left):
                passes = PASSES[rule](self.problem, schedules.taken(left).columns, self.device)
                asked = left[~np.broadcast_to(passes, len(left))]
            codes[asked] = self._ask(rule, schedules, asked, reasons)
            left = left[codes[left] == 0]
        return Answers(codes, tuple(reasons))

    def count(self, schedules: Schedules, refused: Answers, points: NDArray[Any]) -> None:
        """Count what is refused, each schedule as so many points."""
        counts = np.bincount(refused.codes, weights=points, minlength=len(refused.reasons)).astype(int).tolist()
        for code, reason in enumerate(refused.reasons):
            if not reason or not counts[code]:
                continue
            if reason in self._refusals:
                self._refusals[reason].count += counts[code]
            else:
                example = schedules[int(np.argmax((refused.codes == code) & (points > 0)))]
                self._refusals[reason] = Refusal(reason=reason, count=counts[code], example=example)

    def _ask(self, rule: Rule, schedules: Schedules, rows: Rows, reasons: _Numbered) -> NDArray[np.int32]:
        """The rule's answer to each of the rows."""
        watched = _Watched(schedules)
        for row in schedules.codes[rows[:: max(1, len(rows) // TRIED)]].tolist():
            rule(self.problem, watched.at(row), self.device)
        while True:
            known = len(watched.read)
            first, which = combinations(schedules, rows, sorted(watched.read))
            found: list[int] = []
            for row in schedules.codes[first].tolist():
                found.append(reasons[rule(self.problem, watched.at(row), self.device)])
                if len(watched.read) > known:
                    break
            else:
                return np.array(found, dtype=np.int32)[which]


class _Numbered(dict[str | None, int]):
    """A number for each reason, in the order in which they come; 0 for none."""

    def __init__(self) -> None:
        super().__init__({None: 0})

    def __missing__(self, reason: str | None) -> int:
        return self.setdefault(reason, len(self))


class _Watched(Schedule):
    """A schedule of a row of codes at a time, which notes the knobs that are read."""

    read: set[int]

    def __init__(self, schedules: Schedules) -> None:
        vars(self).update(values=schedules.values, codes=(), read=set())

    def at(self, codes: list[int]) -> _Watched:
        own = vars(self)
        own["codes"], values = codes, own["values"]
        for knob in own["read"]:
            own[NAMES[knob]] = values[knob][codes[knob]]
        return self

    def varied(self, **knobs: Any) -> Schedule:
        return Schedule().varied(**{name: getattr(self, name) for name in NAMES} | knobs)


class _Noted:
    """A knob that nobody has read yet; from then on it stands in the dict of what is watched, which comes first."""

    def __init__(self, knob: int) -> None:
        self.knob = knob

    def __get__(self, watched: _Watched, _: type) -> Any:
        own, knob = vars(watched), self.knob
        own["read"].add(knob)
        value = own[NAMES[knob]] = own["values"][knob][own["codes"][knob]]
        return value


for _knob, _name in enumerate(NAMES):
    setattr(_Watched, _name, _Noted(_knob))


def with_default(legal: Sequence[Schedule], default: Schedule) -> Schedules:
    """The legal schedules with the default among them: a spec's own search space may leave it out."""
    found = Schedules.of(legal)
    return found if default in found else Schedules.of([default]).followed_by(found).compact()


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
    most = max(values["parts"])  # of rows that are longer still
    useful = {1, *(min(most, math.ceil(n)) for n in lanes)}
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
    sieve = Sieve(problem, device)

    def lists(names: Iterable[str]) -> dict[str, tuple[Any, ...]]:
        return {name: values[name] for name in names}

    # Cuts of a row that are legal by themselves, with every place and number of rows: most of the product is not.
    plainest = Schedules.of([Schedule(params=Params.LATE, unroll=1, columns=values["columns"][0])])
    places = math.prod(len(values[name]) for name in PLACE_KNOBS)
    cuts = sieve.legal(plainest.times(lists(CUT_KNOBS)), (*CUT, searched_cut), places)
    placed = sieve.legal(cuts.times(lists(PLACE_KNOBS)), PLACED)
    bases = sieve.legal(placed.times(lists(METHOD_KNOBS)), (searched_method, searched_columns))
    plain = sieve.refused(bases, (plain_only,))
    sieve.count(bases, plain, np.ones(len(bases)))
    walks = bases.columns.persistent > (1 if problem.sums_rows else 0)
    # Of tiny rows there is little but a thread a row: an SM has many of its blocks, or idles.
    walks_tiny = problem.sums_rows and is_tiny(problem)
    kept = np.flatnonzero((plain.codes == 0) | walks_tiny | np.broadcast_to(~walks, len(bases)))
    bases, is_plain = bases.taken(kept), plain.codes[kept] > 0
    free = lists(FREE_KNOBS)
    searched = bases.times(free, _promising(sieve, bases, free, is_plain))
    found = sieve.legal(searched, (*FREE, *SEARCHED))
    meetings = Schedules.of(_meetings(problem, device, values))
    met = sieve.legal(meetings, (*rules_of(problem), searched_method)) if len(meetings) else meetings
    return Space(problem=problem, device=device, legal=found.followed_by(met).compact(), refusals=sieve.refusals)


def _promising(
    sieve: Sieve, bases: Schedules, free: Mapping[str, tuple[Any, ...]], is_plain: NDArray[np.bool_]
) -> dict[str, NDArray[np.bool_]]:
    """Which values of the free knobs are worth a look at each of the bases: name -> [bases, values].

    At a plain base the first one of each that the policy allows. Elsewhere all but those that no other free knob can
    make legal: a rule that names one free knob and structure alone refuses its value at all points of a base.
    """

    def refused(name: str, rules: Sequence[Rule]) -> Answers:
        return sieve.refused(bases.times({name: free[name]}), rules)

    allowed = {name: np.ones((len(bases), len(values)), dtype=bool) for name, values in free.items()}
    for name, mask in allowed.items():
        if name != "unroll":
            mask[is_plain, 1:] = False
    for name, rule in (("load", hints), ("dependent_launch", searched_launch)):
        legal = (refused(name, (rule,)).codes == 0).reshape(allowed[name].shape)
        first = legal & (np.cumsum(legal, axis=1) == 1)
        allowed[name] = np.where((is_plain & legal.any(axis=1))[:, None], first, allowed[name])
    for name, rules in ONE_KNOB.items():
        answers, mask = refused(name, rules), allowed[name]
        left = mask & (answers.codes == 0).reshape(mask.shape)
        none = ~left.any(axis=1)  # the last one stays: the rules of all knobs have their say about it
        last = mask & (np.cumsum(mask[:, ::-1], axis=1)[:, ::-1] == 1)
        left[none] = last[none]
        others = np.prod([allowed[n].sum(axis=1) for n in free if n != name], axis=0)
        sieve.count(bases.times({name: free[name]}), answers, ((mask & ~left) * others[:, None]).ravel())
        allowed[name] = left
    return allowed


def _meetings(problem: Problem, device: Device, values: Mapping[str, tuple[Any, ...]]) -> Iterator[Schedule]:
    """Blocks of the grid that share giant rows: few cuts, with the methods and the knobs that such rows may gain by."""
    if not are_giant(problem, device):
        return
    for cut in shared_rows(problem, device):
        unrolls = (cut.unroll, *((8,) if cut.hold is Hold.RELOAD and cut.unroll else ()))
        free = {"unroll": unrolls, "store": values["store"]}
        free |= {"params": tuple(v for v in values["params"] if v in (Params.LATE, Params.KEPT, Params.PACKED))}
        yield from _points(cut, (*free, "variance", "softmax", "arithmetic"), {**values, **free})


def _points(base: Schedule, names: tuple[str, ...], values: Mapping[str, tuple[Any, ...]]) -> Iterator[Schedule]:
    for combination in itertools.product(*(values[n] for n in names)):
        yield base.varied(**dict(zip(names, combination, strict=True)))


def _space_of_tiles(problem: Problem, device: Device) -> Space:
    return _space_of(points(problem, device), problem, device)


def _space_of_lanes(problem: Problem, device: Device) -> Space:
    return _space_of(points_of_lanes(problem, device), problem, device)


def _space_of(found: Iterable[Schedule], problem: Problem, device: Device) -> Space:
    sieve = Sieve(problem, device)
    legal = sieve.legal(Schedules.of(found), rules_of(problem))
    return Space(problem=problem, device=device, legal=legal.compact(), refusals=sieve.refusals)


SPACES: dict[ProgramClass, Callable[[Problem, Device], Space]] = {
    ProgramClass.ROWS: _space_of_rows,
    ProgramClass.TILES: _space_of_tiles,
    ProgramClass.LANES: _space_of_lanes,
}
