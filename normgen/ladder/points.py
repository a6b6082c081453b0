"""`--schedule`: a named point, then the knobs that differ from it: `plain,threads_per_row=32,vector=float4`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from normgen.choice.first import default_schedule
from normgen.choice.repair import repair
from normgen.device import Device
from normgen.errors import UsageError, did_you_mean
from normgen.files.names import plain_path
from normgen.knobs import KNOBS
from normgen.ladder.kernels import knobs_of
from normgen.ladder.rungs import load_ladder
from normgen.problem.problem import Problem
from normgen.records.record import Record
from normgen.records.winners import gpu_slug, kept, kept_of, record_folders
from normgen.schedule.schedule import Schedule, schedule_from

POINTS = ("default", "plain", "record")


@dataclass(frozen=True, kw_only=True)
class PointText:
    """A text taken apart: the point it starts from, and knob -> value."""

    point: str
    knobs: dict[str, str]


def parsed(text: str) -> PointText:
    """`plain,vector=4` or `vector=4 hold=shared`, which starts from the default. Raises UsageError for another text."""
    point = ""
    knobs: dict[str, str] = {}
    for part in text.replace(",", " ").split():
        name, equals, value = part.partition("=")
        if not equals and not point and not knobs and part not in KNOBS:
            point = part
        elif not (name and equals and value):
            raise UsageError("expected name=value", received=part, hint="a point such as plain stands in front, once")
        elif name in knobs:
            raise UsageError("a schedule names a knob once", received=text, hint=f"leave out one {name}=")
        else:
            knobs[name] = value
    return PointText(point=point or "default", knobs=knobs)


def read_schedule(problem: Problem, device: Device, text: str) -> Schedule:
    """The schedule that a text names. Raises UsageError with knobs, reason and least change if it is not legal."""
    asked = parsed(text)
    schedule = schedule_from(asked.knobs, named_point(problem, device, asked.point))
    broken = repair(problem, schedule, device, asked.knobs)
    if broken is not None:
        raise broken.error(schedule)
    return schedule


def named_point(problem: Problem, device: Device, name: str) -> Schedule:
    """The schedule of that name: default, plain, record, FILE.jsonl, a rung, or the id that a record has as its `text`.

    A rung is LADDER/RUNG, or LADDER/RUNG/BLOCK for another of its launches than the source's fastest.

    Raises UsageError for an unknown name.
    """
    if name == "default":
        return default_schedule(problem, device)
    if name == "plain":
        return Schedule()
    if "/" in name and not name.endswith(".jsonl"):
        return _of_rung(name)
    known = _records(device, name)
    if name == "record" or name.endswith(".jsonl"):
        return _best(problem, known, name).schedule
    if len(name) >= 6 and (found := [r for r in known if r.text.startswith(name)]):
        return found[0].schedule
    raise UsageError("unknown schedule point", received=name, hint=did_you_mean(name, (*POINTS, "LADDER/RUNG")))


def _of_rung(name: str) -> Schedule:
    """The knobs of a rung on plain, whatever the problem: its own or another."""
    ladder_name, rung_name, *rest = name.split("/", 2)
    ladder = load_ladder(ladder_name)
    rung = ladder.rung(rung_name)
    if rung.missing or rung.kernels:
        why = rung.missing or f"it is {len(rung.kernels)} kernels: " + ", ".join(k.op for k in rung.kernels)
        raise UsageError(f"the rung {ladder_name}/{rung_name} is no schedule of one kernel", received=name, hint=why)
    blocks = {block.block: block for block in rung.blocks}
    block = blocks.get(rest[0]) if rest else rung.best
    if block is None:
        raise UsageError(f"{ladder_name}/{rung_name} has no such launch", received=name, hint=did_you_mean("", blocks))
    return schedule_from(knobs_of(rung.knobs) | knobs_of(block.knobs))


def _records(device: Device, name: str) -> list[Record]:
    if name.endswith(".jsonl"):
        file: Path = plain_path(name)
        if not file.is_file():
            raise UsageError("there is no such file of records", received=name)
        return list(kept_of(file))
    return [r for folder in record_folders() for r in kept(folder / f"{gpu_slug(device)}.jsonl")]


def _best(problem: Problem, records: list[Record], name: str) -> Record:
    """The fastest usable record of the problem, measured before predicted; else the only usable one of a file."""
    usable = [r for r in records if r.is_usable]
    key = problem.question
    is_meant = name.endswith(".jsonl") and len(usable) == 1
    found = [r for r in usable if r.serves(key)] or (usable if is_meant else [])
    if not found:
        rule = f"no record of {problem} is there"
        raise UsageError(rule, received=name, hint="name one by the first digits of its text, or another file")
    return min(found, key=lambda r: (not r.measured, r.cost_us or float("inf")))
