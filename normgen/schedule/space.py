"""All legal schedules of a problem on a device, each refusal with its reason, and the default among them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from normgen.device import Device
from normgen.errors import NothingValidError
from normgen.problem import Problem
from normgen.program.rewrites import applicable
from normgen.program.source import written_program
from normgen.schedule.legality import (
    FREE,
    STRUCTURAL,
    column_outputs,
    held_bytes_per_thread,
    plain_only,
    refusal,
    searched_cluster,
    searched_columns,
    searched_tile,
    steps_per_lane,
)
from normgen.schedule.schedule import KNOBS, Schedule
from normgen.spec import Kind

# What a spec that says nothing searches. Knobs that are not listed keep the schedule's default.
DEFAULT_KNOBS: dict[str, tuple[Any, ...]] = {
    "threads_per_row": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    "cluster": (1, 2, 4, 8, 16),
    "rows_per_block": (1, 2, 4, 8, 16, 32, 128),  # as far as 256 threads a block
    "vector": (1, 2, 4, 8),
    "hold": ("registers", "shared", "reload"),
    "edges": ("exact", "masked", "peel"),
    "persistent": (0, 4),
    "reduce_with": ("shuffle", "cooperative_groups", "shared_tree"),
    "variance": ("two_pass", "sum_of_squares", "shifted", "welford"),
    "softmax": ("two_pass", "online"),
    "unroll": (0, 1, 4),
    "load": ("default", "streaming", "no_allocate"),
    "store": ("default", "streaming"),
    "params": ("late", "early", "kept"),
    "blocks_per_sm": (0,),
}
# Backward programs with column reductions: a persistent grid that keeps column sums in registers.
BACKWARD_KNOBS: dict[str, tuple[Any, ...]] = {
    "threads_per_row": (1, 8, 16, 32, 64, 128, 256, 512, 1024),
    "rows_per_block": (1, 2, 4, 8, 16, 32, 128),
    "cluster": (1, 2, 4, 8),
    "vector": (1, 2, 4, 8),
    "hold": ("registers", "reload"),
    "edges": ("exact", "masked", "peel"),
    "persistent": (0, 1, 2, 3, 4),
    "stages": (1, 2),
    "columns": ("partials_two_kernels", "partials_last_tile", "register_atomic", "shared_atomic", "atomic"),
    "unroll": (0, 1),
    "load": ("default", "no_allocate"),
    "store": ("default", "streaming"),
    "params": ("late", "kept"),
    "dependent_launch": ("off", "on"),
}
STRUCTURAL_KNOBS = (
    "threads_per_row",
    "rows_per_block",
    "cluster",
    "vector",
    "hold",
    "edges",
    "copy",
    "persistent",
    "stages",
)
METHOD_KNOBS = ("reduce_with", "variance", "softmax", "columns")
FREE_KNOBS = tuple(name for name in KNOBS if name not in (*STRUCTURAL_KNOBS, *METHOD_KNOBS))


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


def knob_values(problem: Problem, rewrites: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[Any, ...]]:
    """The values searched for every knob: the spec's, else the defaults; rewrites where they change the program."""
    default = Schedule()
    values: dict[str, tuple[Any, ...]] = {}
    chosen = BACKWARD_KNOBS if column_outputs(problem) else {**DEFAULT_KNOBS, **problem.spec.knobs}
    for name in KNOBS:
        searched = chosen.get(name, (getattr(default, name),))
        if name in ("variance", "softmax"):
            applicable = rewrites.get(name, ())
            searched = tuple(v for v in searched if v in applicable) or (getattr(default, name),)
        values[name] = tuple(searched)
    return values


def space(problem: Problem, device: Device) -> Space:
    """Enumerate the search space of `problem` on `device`."""
    values = knob_values(problem, applicable(written_program(problem)))
    legal: list[Schedule] = []
    refusals: dict[str, Refusal] = {}
    for structure in _points(Schedule(params="late", unroll=1), STRUCTURAL_KNOBS, values):
        reason = refusal(problem, structure, device, (*STRUCTURAL, searched_tile, searched_cluster))
        if reason is not None:
            _count(refusals, reason, structure)
            continue
        for base in _points(structure, METHOD_KNOBS, values):
            plain = plain_only(problem, base)
            if plain is not None:
                _count(refusals, plain, base)
            if plain is not None and base.persistent:
                continue
            lists = (
                {n: v[:1] for n, v in values.items()} | {"unroll": values["unroll"]} if plain is not None else values
            )
            for schedule in _points(base, FREE_KNOBS, lists):
                reason = refusal(problem, schedule, device, (*FREE, searched_columns))
                if reason is None:
                    legal.append(schedule)
                else:
                    _count(refusals, reason, schedule)
    ordered = sorted(refusals.values(), key=lambda r: (-r.count, r.reason))
    return Space(problem=problem, device=device, legal=tuple(legal), refusals=tuple(ordered))


def _points(base: Schedule, names: tuple[str, ...], values: Mapping[str, tuple[Any, ...]]) -> Iterator[Schedule]:
    knobs = dict(vars(base))  # dataclasses.replace looks at every field again for each point
    for combination in itertools.product(*(values[n] for n in names)):
        knobs.update(zip(names, combination, strict=True))
        yield Schedule(**knobs)


def _count(refusals: dict[str, Refusal], reason: str, schedule: Schedule) -> None:
    if reason in refusals:
        refusals[reason].count += 1
    else:
        refusals[reason] = Refusal(reason=reason, count=1, example=schedule)


def default_schedule(problem: Problem, device: Device) -> Schedule:
    """A good schedule without measuring: 16-byte accesses, two to four of them a thread, the row in registers.

    Raises NothingValidError if no schedule is legal, which would be a hole in the space.
    """
    widths = [v for v in (16, 8, 4, 2, 1) if v * problem.dtype.bytes <= 16]
    clusters = (1, 2, 4, 8, 16) if device.arch >= 90 else (1,)
    places = [*(("registers", c) for c in clusters), ("shared", 1), ("reload", 1)]
    if column_outputs(problem):  # sums over rows in registers, over a cluster if need be; else by atomics
        places.insert(len(clusters), ("registers", 1))
    edges = ("exact", "masked", "peel")
    for (index, (hold, cluster)), vector, edge in itertools.product(enumerate(places), widths, edges):
        for threads in _thread_preference(problem, vector, cluster):
            schedule = Schedule(
                threads_per_row=threads,
                rows_per_block=max(1, 128 // threads) if cluster == 1 else 1,
                cluster=cluster,
                vector=vector,
                edges=edge,
                hold=hold,
                unroll=0 if hold == "registers" else 1,
                load="streaming",
                store="streaming",
                params="early" if hold == "registers" and _has_parameters(problem) else "late",
            )
            variants: tuple[Schedule, ...] = (schedule,)
            if column_outputs(problem):
                variants = _with_columns(problem, schedule, device, in_registers=index < len(clusters))
            crowded = hold == "registers" and held_bytes_per_thread(problem, schedule) > 256
            for variant in variants if not crowded else ():
                if refusal(problem, variant, device) is None:
                    return variant
    raise NothingValidError("no schedule is legal for this problem", received=str(problem))


def _has_parameters(problem: Problem) -> bool:
    return any(t.kind is Kind.COL and not t.is_written for t in problem.tensors)


def _with_columns(problem: Problem, s: Schedule, device: Device, *, in_registers: bool) -> tuple[Schedule, ...]:
    """Backward variants of a forward default, the best first: column sums in registers, else by atomics.

    512 threads an SM leave each 128 registers; rows of a block or more have the next row in flight, narrower rows
    have their neighbours to hide behind (8192x768 to 16384x8192 bf16 on an H200).
    """
    plain = replace(s, load="default", store="default", params="late")
    if not in_registers:
        return (replace(plain, columns="atomic"),)
    sums = replace(
        plain,
        columns="partials_two_kernels",
        persistent=max(1, 512 // s.threads),
        dependent_launch="on" if device.arch >= 90 else "off",
    )
    kept = replace(sums, params="kept" if _has_parameters(problem) else "late")
    ahead = (replace(kept, stages=2),) if s.threads_per_row >= 128 else ()
    return (*ahead, kept, sums)


def fallback_schedule(problem: Problem) -> Schedule:
    """The schedule of an exported header's general kernel: any cols, any row pitch and any alignment; never tuned.

    A block owns a row, reads it once a look and element by element; formulas as written. Where sums of columns must be
    deterministic, that one block walks all rows.
    """
    writes_columns = any(t.is_written and t.kind is Kind.COL for t in problem.tensors)
    columns = "atomic" if writes_columns else Schedule().columns
    return Schedule(threads_per_row=256, vector=1, hold="reload", columns=columns)


def _thread_preference(problem: Problem, vector: int, cluster: int) -> list[int]:
    """Threads per row by how close they come to three vectors each (two where column sums take registers too)."""
    aim = 2 if column_outputs(problem) else 3

    def distance(threads: int) -> tuple[float, int]:
        steps = steps_per_lane(problem, Schedule(threads_per_row=threads, vector=vector, cluster=cluster))
        return (abs(steps - aim) if steps >= 2 else 1.5, threads)

    return sorted((32, 64, 128, 256, 512, 1024, 16, 8, 4, 2, 1), key=distance)
