"""A sweep: what every measured point of a legal set took, in one small file.

JSON lines, compressed with xz when the sweep is complete (FILE), plain while it grows (FILE.part, append-only):

    first line   {schema, problem, context, setting, device, versions, roof_us, chain_us, noise_floor, bytes, legal,
                 seed, default, knobs}
    every other  [[code of each knob], outcome, us or null, registers, spill bytes a thread, number of its twin or -1]

`knobs` lists the values a code counts into, for the knobs that vary; the other knobs have their value there alone.
A twin is an earlier point with the same machine code, whose figures the point shares; points are numbered from 0 in
the order in which they first appear. A later line for the same point replaces an earlier one: the fastest are timed
again at the end.
"""

from __future__ import annotations

import json
import lzma
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from normgen.device import device_from
from normgen.errors import NormgenError, UsageError
from normgen.files.decoded import XZ_MAGIC, parse_json, unpacked
from normgen.files.private import write_atomically
from normgen.records.place import Place
from normgen.records.record import Outcome, key_of, place_of
from normgen.records.validity import check_fields
from normgen.schedule.schedule import Schedule, schedule_from

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Point:
    """One evaluated schedule; `us` only for outcome ok."""

    schedule: Schedule
    outcome: Outcome
    us: float | None = None
    registers: int = 0
    spill_bytes: int = 0
    twin: Schedule | None = None  # an earlier point with the same machine code


@dataclass(frozen=True, kw_only=True)
class Header:
    """What was swept, where, and how exactly; `legal` counts the whole legal set, of which the file may hold a sample.

    problem, device   plain values, as in a record
    place             context and setting of a line; older ones have `cache`: alone
    roof_us           what the best hand-written kernel that moves the problem's bytes costs, same run
    chain_us          what the chain takes without a kernel, same run; None alone
    noise_floor       the default schedule against itself: a relative difference below it is a tie
    """

    problem: Mapping[str, Any] = field(hash=False)
    place: Place
    device: Mapping[str, Any] = field(hash=False)
    versions: Mapping[str, str] = field(hash=False)
    roof_us: float | None
    noise_floor: float | None
    bytes: int
    legal: int
    seed: int
    default: Schedule
    knobs: Mapping[str, tuple[Any, ...]] = field(hash=False)
    chain_us: float | None = None

    def line(self) -> str:
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain |= plain.pop("place").as_dict()
        plain |= {"default": self.default.as_dict(), "knobs": {n: list(v) for n, v in self.knobs.items()}}
        return json.dumps({"schema": SCHEMA, **plain}, allow_nan=False) + "\n"

    def encode(self, point: Point, number: Mapping[Schedule, int]) -> str:
        """The line of a point; `number` says which point of the file a schedule is."""
        codes = [values.index(getattr(point.schedule, name)) for name, values in self.knobs.items() if len(values) > 1]
        us = None if point.us is None else float(f"{point.us:.5g}")
        twin = -1 if point.twin is None else number[point.twin]
        row = [codes, point.outcome.value, us, point.registers, point.spill_bytes, twin]
        return json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n"

    def decode(self, row: Sequence[Any], known: Sequence[Schedule]) -> Point:
        """The point of a line; `known` are the schedules of the points before it."""
        codes, outcome, us, registers, spill_bytes, twin = row
        _check_time(us)
        if not all(type(count) is int for count in (registers, spill_bytes, twin)) or min(registers, spill_bytes) < 0:
            raise ValueError(f"registers, spill bytes and the twin are whole numbers: {row[3:]}")
        varied = iter(codes)
        knobs = {name: values[next(varied) if len(values) > 1 else 0] for name, values in self.knobs.items()}
        return Point(
            schedule=Schedule(**knobs),
            outcome=Outcome(outcome),
            us=us,
            registers=registers,
            spill_bytes=spill_bytes,
            twin=known[twin] if twin >= 0 else None,
        )


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A recorded sweep; every schedule once, in the order first measured."""

    header: Header
    points: tuple[Point, ...] = field(repr=False)

    @property
    def optimum(self) -> Point:
        """The fastest point. Raises UsageError when none has a time."""
        timed = [p for p in self.points if p.us is not None]
        if not timed:
            raise UsageError("a sweep to replay needs a point with a time", received=f"{len(self.points)} points")
        return min(timed, key=lambda p: p.us or 0.0)


def header_of(legal: Sequence[Schedule], *, default: Schedule, **facts: Any) -> Header:
    """The header for points of `legal`; `facts` are the other fields of Header."""
    names = [f.name for f in fields(Schedule)]
    knobs = {name: tuple(sorted({getattr(s, name) for s in (*legal, default)})) for name in names}
    return Header(legal=len(legal), default=default, knobs=knobs, **facts)


def is_sweep(path: Path) -> bool:
    """Whether the first line of a file, plain or xz, describes a set of legal schedules."""
    try:
        with path.open("rb") as file:
            start = file.readline()
        if start.startswith(XZ_MAGIC):
            start = unpacked(path.read_bytes()).partition(b"\n")[0]
        header = parse_json(start)
    except (OSError, ValueError):  # whoever reads it as something else says what is wrong
        return False
    return isinstance(header, dict) and {"legal", "knobs"} <= header.keys()


def read_sweep(path: Path) -> Sweep:
    """The sweep of a complete (.xz) or growing (.part) file. Raises UsageError with what is wrong with it."""
    try:
        text = unpacked(path.read_bytes()).decode()
    except (OSError, ValueError) as error:
        raise UsageError("a sweep is a file of JSON lines, plain or xz", received=f"{path}: {error}") from None
    lines = text.split("\n")
    whole = lines[:-1]  # what stands behind the last line end was cut off
    if not whole:
        raise UsageError("a sweep begins with its header line", received=f"{path}: no whole line")
    header = _header(path, whole[0])
    points: dict[Schedule, Point] = {}
    known: list[Schedule] = []
    for number, line in enumerate(whole[1:], start=2):
        try:
            point = header.decode(parse_json(line), known)
        except (ValueError, TypeError, IndexError, StopIteration) as error:
            raise UsageError("every line of a sweep is a point", received=f"{path}:{number}: {error}") from None
        if point.schedule not in points:
            known.append(point.schedule)
        points[point.schedule] = point
    return Sweep(header=header, points=tuple(points.values()))


def _check_time(us: object) -> None:
    """Raises ValueError for what is no time."""
    if us is not None and not (isinstance(us, int | float) and type(us) is not bool and 0 < us < math.inf):
        raise ValueError(f"a time is a positive number of microseconds, or null: {us!r}")


def _header(path: Path, line: str) -> Header:
    try:
        plain = parse_json(line)
        if not isinstance(plain, dict) or plain.pop("schema", None) != SCHEMA:
            raise ValueError("another schema, or no sweep")
        knobs = {name: tuple(values) for name, values in plain.pop("knobs").items()}
        where = {name: plain.pop(name) for name in ("cache", "context", "setting") if name in plain}
        check_fields(where)
        header = Header(default=schedule_from(plain.pop("default")), knobs=knobs, place=place_of(where), **plain)
        same = {name: getattr(header, name) for name in ("device", "versions", "roof_us", "bytes", "seed")}
        check_fields({**header.problem, **same, "search": {"noise_floor": header.noise_floor}})
        key_of({"spec_sha256": "", **header.problem})
        device_from(header.device)
        _check_time(header.chain_us)
        return header
    except (ValueError, TypeError, KeyError, AttributeError, NormgenError) as error:
        raise UsageError("a sweep begins with its header line", received=f"{path}:1: {error}") from None


class SweepWriter:
    """Appends points to FILE.part, each batch durable; `finish` turns it into FILE.

    A point's line that a killed process left unfinished is cut off when the file is opened again.
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self.part = path.with_name(path.name + ".part")
        self.header = header
        self.part.parent.mkdir(parents=True, exist_ok=True)
        if not self.part.exists() and path.exists():
            write_atomically(self.part, unpacked(path.read_bytes()))
        if not self.part.exists() or b"\n" not in self.part.read_bytes():
            write_atomically(self.part, header.line())
        data = self.part.read_bytes()
        os.truncate(self.part, data.rfind(b"\n") + 1)
        self._numbers = {p.schedule: i for i, p in enumerate(read_sweep(self.part).points)}
        self._file = self.part.open("a", encoding="utf-8")

    def append(self, points: Iterable[Point]) -> None:
        """Write the points' lines; they are on disk when this returns."""
        for point in points:
            self._file.write(self.header.encode(point, self._numbers))
            self._numbers.setdefault(point.schedule, len(self._numbers))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def finish(self) -> None:
        """Compress what there is into FILE, whole or not at all, and remove FILE.part."""
        self.close()
        write_atomically(self.path, lzma.compress(self.part.read_bytes(), preset=9 | lzma.PRESET_EXTREME))
        self.part.unlink()


def resumed(path: Path) -> Sweep | None:
    """What a file holds so far: the growing part if there is one, else the complete file, else None."""
    part = path.with_name(path.name + ".part")
    if part.exists() and b"\n" in part.read_bytes():
        return read_sweep(part)
    return read_sweep(path) if path.exists() else None
