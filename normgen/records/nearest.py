"""The schedule of the nearest tuned problem, for a shape that nobody tuned.

Near is: the same operation, direction and dtypes (statistics may be there or not), rows and cols by ratio. The
distance is in octaves of rows; an octave of cols, which decides how many threads a row keeps busy, counts four times.
The schedule is fitted: with twice the cols a row gets twice the threads, and edges follow what cols divides into.
What is not legal after that is not taken, whatever its distance. Nor is a variance method that is searched no more.

A record of another GPU of the same architecture is a neighbour as far off as one of twice the rows.

A measurement is worth less the farther away it was made: a neighbour is trusted while what is expected of its schedule
here, by the ranker, is no slower than the default, give or take what its distance leaves of a measurement's worth.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from normgen.choice.first import behind, default_schedule
from normgen.device import Device
from normgen.knobs import KNOBS, Division, RowOrder, Statistics, VarianceMethod
from normgen.problem.problem import Problem
from normgen.problem.question import Question
from normgen.program.classes import ProgramClass, class_of
from normgen.records.place import DEFAULT_PLACE, Context, Place
from normgen.records.questions import why_other
from normgen.records.record import Record
from normgen.schedule.legality import refusal, without_remainders
from normgen.schedule.policy import leaves_rounding, searched_order
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import DEFAULT_KNOBS

OCTAVE_OF_COLS = 4.0
# Tuned for wider or narrower accesses than these rows allow: narrow ones would stay narrow, and wide ones win for other
# reasons than peeled or masked ones do (rmsnorm 757x34631 after 8192x32768: 7 % behind the default; backward
# 154897x161 after 65536x128: 6 %).
OTHER_WIDTH = 5.0
OTHER_SETTING = 1.0  # hot, and not
OTHER_STATISTICS = 0.25
OTHER_GPU = 1.0
OTHER_PROMISE = 0.25  # stable parameters: a launch may begin earlier
FARTHEST = 6.0  # 2.8 x the cols, 64 x the rows: the default schedule knows as much
VECTOR_BYTES = 16
WORTH = 0.02  # of the default's time, what a measurement of the same shape may be expected behind it
WORTH_LOST = 0.008  # of that, with each octave of distance: from 2.5 octaves on it must be expected to be faster


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A record, its distance, and its schedule as it fits the problem that was asked for."""

    record: Record
    distance: float
    schedule: Schedule


def nearest(problem: Problem, device: Device, records: Iterable[Record], *, place: Place) -> Neighbour | None:
    """The nearest usable record whose schedule fits and is trusted; None when there is none.

    The problem's own record on this GPU is not its neighbour: this says what the others make of it.
    """
    found = neighbours(problem, device, records, place=place)
    trusted = (near for near in found if is_trusted(near, problem, device))
    return next((near for near in trusted if why_other(near.record, problem) is None), None)


def neighbours(problem: Problem, device: Device, records: Iterable[Record], *, place: Place) -> Iterator[Neighbour]:
    """Usable records whose schedules fit, the nearest first.

    Measured ones come before predicted ones, what was measured in place before what was measured alone.
    """
    own = problem.question

    def far_off(record: Record) -> float:
        far = distance(record.problem, problem)
        far += OTHER_SETTING if record.place.is_hot != place.is_hot else 0.0
        return far + (OTHER_GPU if is_of_kin(record, device) else 0.0)

    near = [
        (far_off(r), r)
        for r in records
        if r.is_usable
        and (r.problem != own or is_of_kin(r, device))
        and is_same_kind(r.problem, problem)
        and place_rank(r.place, place) is not None
    ]
    near.sort(
        key=lambda found: (
            not found[1].measured,
            found[1].is_alone,
            found[0],
            found[1].us or math.inf,
            found[1].schedule.key,
        )
    )
    for far, record in near:
        schedule = fitted(record, problem, device) if far <= FARTHEST else None
        if schedule is not None:
            yield Neighbour(record=record, distance=far, schedule=schedule)


def is_of(record: Record, device: Device) -> bool:
    """Whether a record is of this GPU model; one that names none may be of any."""
    return str(record.device.get("name", device.name)) == device.name


def is_of_kin(record: Record, device: Device) -> bool:
    """Whether a record is of another GPU model of this one's architecture."""
    return not is_of(record, device) and record.device.get("arch") == device.arch


def is_trusted(near: Neighbour, problem: Problem, device: Device) -> bool:
    """Whether what is expected of a neighbour is not behind the default by more than its measurement is worth."""
    ours, default = behind(problem, (near.schedule, default_schedule(problem, device)), device)
    return bool(ours <= default + WORTH - WORTH_LOST * near.distance)


def place_rank(place: Place, asked: Place) -> int | None:
    """How soon a record of a place serves one who asks for another; None: not at all."""
    if place == asked:
        return 0
    if place == DEFAULT_PLACE:
        return 1
    if place.context is Context.ALONE:
        return 2 if place.is_hot == asked.is_hot else 3
    return None


def is_same_kind(tuned: Question, problem: Problem) -> bool:
    """Whether two problems differ in shape, layout and statistics at most; a promise is no less than the tuned one.

    A kernel that writes in place is the same kernel but for its pointers: its problem takes what was tuned without.
    """
    statistics = _statistics(problem)

    def kind(key: Question) -> tuple[object, ...]:
        dtypes = tuple((name, dtype) for name, dtype in key.dtypes if name not in statistics)
        beside = key.col_stride > 1
        return key.op, key.spec_sha256, key.direction, dtypes, key.any_cols, key.accumulate, beside

    kept = problem.stable_parameters or not tuned.stable_parameters
    kept = kept and tuned.in_place in ((), problem.in_place)
    return kept and kind(tuned) == kind(problem.question)


def distance(tuned: Question, problem: Problem) -> float:
    """In octaves of rows; see the module's docstring."""
    return LIKENESS[class_of(problem)].distance(tuned, problem)


def _distance_of_rows(tuned: Question, problem: Problem) -> float:
    own, statistics, size = problem.question, _statistics(problem), problem.dtype.bytes
    far = _octaves(tuned.rows, own.rows) + OCTAVE_OF_COLS * _octaves(tuned.cols, own.cols)
    there, here = _vector_bytes(tuned, size), _vector_bytes(own, size)
    far += OTHER_WIDTH if there != here else 0.0
    far += OTHER_PROMISE if tuned.stable_parameters != own.stable_parameters else 0.0
    far += OTHER_PROMISE if tuned.in_place != own.in_place else 0.0
    far += OTHER_PROMISE if tuned.layout != own.layout else 0.0
    return far + (OTHER_STATISTICS if tuned.present & statistics != own.present & statistics else 0.0)


def fitted(record: Record, problem: Problem, device: Device) -> Schedule | None:
    """The record's schedule for another shape, with as few changes as make it legal; None when that is not enough."""
    return LIKENESS[class_of(problem)].fitted(record, problem, device)


def _fitted_rows(record: Record, problem: Problem, device: Device) -> Schedule | None:
    # Whether leaving statistics out pays was found at the record's shape alone.
    own = replace(searched_today(record.schedule, problem), statistics=Statistics.NULLABLE)
    if leaves_rounding(problem, own):  # what that saves was found there alone as well
        own = replace(own, variance=VarianceMethod.CORRECTED_TWO_PASS)
    if without_remainders(problem):
        own = replace(own, division=Division.IEEE)
    if searched_order(problem, own, device) is not None:
        own = replace(own, row_order=RowOrder.ASCENDING)
    variants = _variants(own, problem.cols / record.problem.cols)
    return next((s for s in variants if refusal(problem, s, device) is None), None)


def searched_today(schedule: Schedule, problem: Problem) -> Schedule:
    """The schedule, with two passes in place of a variance method that is searched no more.

    Older records hold sum_of_squares, which loses rows that 16-bit types can hold.
    """
    searched = problem.searched_knobs.get("variance", DEFAULT_KNOBS["variance"])
    return schedule if schedule.variance in searched else replace(schedule, variance=VarianceMethod.TWO_PASS)


def _variants(own: Schedule, ratio: float) -> Iterator[Schedule]:
    """Threads after the cols, then what legality asks for: other edges, a grid without a loop, narrower accesses."""
    loops = [{}, *([{"persistent": 0, "stages": 1, "params": "late"}] if own.persistent else [])]
    edges = dict.fromkeys((own.edges, "exact", "masked", "peel"))
    unrolls = dict.fromkeys((own.unroll, 0, 1))
    vectors = [v for v in reversed(KNOBS["vector"].values) if v <= own.vector]
    for vector, loop, grid, edge, unroll in itertools.product(vectors, loops, _grids(own, ratio), edges, unrolls):
        knobs = {**grid, **loop, "vector": vector, "edges": edge, "unroll": unroll}
        yield replace(own, **knobs)


def _grids(own: Schedule, ratio: float) -> list[dict[str, int]]:
    """Threads a row in proportion to cols, first beside as many rows, then in a block of the same size; then as is."""
    factor = 2.0 ** round(math.log2(ratio))
    threads = _at_most("threads_per_row", own.threads_per_row * factor)
    rows = _at_most("rows_per_block", own.threads / threads)
    kept = {"threads_per_row": own.threads_per_row, "rows_per_block": own.rows_per_block}
    scaled = {**kept, "threads_per_row": threads}
    return [scaled, {"threads_per_row": threads, "rows_per_block": rows}, kept]


def _at_most(name: str, wanted: float) -> int:
    """The largest value of the knob that does not exceed `wanted`, and at least one block or row."""
    return int(max(v for v in KNOBS[name].values if v <= max(1, wanted)))


def _octaves(a: int, b: int) -> float:
    return abs(math.log2(max(a, 1) / max(b, 1)))


def _statistics(problem: Problem) -> frozenset[str]:
    return frozenset(tensor.name for tensor in problem.spec.statistics)


def _vector_bytes(key: Question, size: int) -> int:
    """The widest access, up to 16 bytes, that rows of elements of `size` bytes are made of."""
    return math.gcd(key.align, size * key.pitch, size * key.cols, VECTOR_BYTES)


def _distance_of_tiles(tuned: Question, problem: Problem) -> float:
    own = problem.question
    sizes = ((tuned.rows, own.rows), (tuned.cols, own.cols), (tuned.inner, own.inner))
    return sum(_octaves(there, here) for there, here in sizes)


def _distance_of_lanes(tuned: Question, problem: Problem) -> float:
    own = problem.question
    shared_out = _octaves(tuned.cols, own.cols) + _octaves(tuned.col_stride, own.col_stride)
    return _octaves(tuned.rows, own.rows) + OCTAVE_OF_COLS * shared_out


def _fitted_tiles(record: Record, problem: Problem, device: Device) -> Schedule | None:
    """The same tiles, with narrower accesses where the sizes ask for these."""
    vectors = (v for v in reversed(KNOBS["vector"].values) if v <= record.schedule.vector)
    found = (replace(record.schedule, vector=vector) for vector in vectors)
    return next((schedule for schedule in found if refusal(problem, schedule, device) is None), None)


class Likeness(NamedTuple):
    """How far off a record is from a problem, and its schedule as it fits there."""

    distance: Callable[[Question, Problem], float]
    fitted: Callable[[Record, Problem, Device], Schedule | None]


LIKENESS: dict[ProgramClass, Likeness] = {
    ProgramClass.ROWS: Likeness(_distance_of_rows, _fitted_rows),
    ProgramClass.TILES: Likeness(_distance_of_tiles, _fitted_tiles),
    ProgramClass.LANES: Likeness(_distance_of_lanes, _fitted_tiles),
}
