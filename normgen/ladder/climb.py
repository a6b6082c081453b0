"""Every rung of a ladder proven and timed: on a GPU measured, without one predicted.

A `Climb` is one JSON object:

ladder, problem, device, place, measured, versions      what, where, and whether times were measured
rungs: [{name, title, state, reason, checked, block, launches, kernels}]
  state     right | wrong | missing | refused | not checked; a rung that says `unsafe` may be wrong
  reason    why it is wrong, missing or refused, or not checked
  checked   what the check found, line by line
  block     the launch that was checked
  kernels   [{problem, schedule}] of that launch
  launches  [{block, us, gb_per_s, tflops, reason, source_ms, source_gb_per_s}]: us is null where `reason` says why,
            tflops where there are no products
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from normgen.choice.first import default_schedule
from normgen.cost.model import predicted_us
from normgen.cost.work import flops
from normgen.device import TARGETS, Device
from normgen.errors import UsageError
from normgen.files.decoded import parse_json
from normgen.files.plain import made
from normgen.files.shipped import shipped
from normgen.ladder.kernels import RungPart, around_tile, parts_of, problem_of
from normgen.ladder.rungs import Block, Ladder, Rung
from normgen.measure.check import check_on_gpu
from normgen.measure.cpu_check import check_on_cpu, why_unchecked
from normgen.measure.protocol import DeviceLostError
from normgen.problem.problem import Problem
from normgen.records.place import Place, place_of
from normgen.records.winners import lookup, shipped_folder
from normgen.schedule.schedule import Schedule
from normgen.spec.toml_lines import read_text
from normgen.trials.contest import Contest, Venue, hold
from normgen.trials.head import reason_of
from normgen.trials.versions import environment

CHECKED_ELEMENTS = 1 << 20  # of a call on the CPU executor
RIGHT, WRONG, MISSING, REFUSED, UNCHECKED = "right", "wrong", "missing", "refused", "not checked"


@dataclass(frozen=True, kw_only=True)
class RungLaunch:
    """One launch of a rung.

    `us` of all its kernels, `gb_per_s` of the bytes that the rung's problem must move, `tflops` of its products.
    """

    block: str
    us: float | None
    gb_per_s: float | None
    reason: str = ""
    source_ms: float | None = None
    source_gb_per_s: float | None = None
    tflops: float | None = None

    @property
    def rate(self) -> float | None:
        """What the problem is limited by: TFLOP/s of products, else GB/s."""
        return self.gb_per_s if self.tflops is None else self.tflops


@dataclass(frozen=True, kw_only=True)
class Climbed:
    """What was found of one rung; see the module's docstring."""

    name: str
    title: str
    state: str
    reason: str = ""
    checked: tuple[str, ...] = ()
    block: str = ""
    launches: tuple[RungLaunch, ...] = ()
    kernels: tuple[Mapping[str, str], ...] = ()
    is_unsafe: bool = False

    @property
    def best(self) -> RungLaunch | None:
        """The fastest launch."""
        timed = [launch for launch in self.launches if launch.us is not None]
        return min(timed, key=lambda launch: launch.us or 0.0, default=None)

    @property
    def unit(self) -> str:
        """Of the rates of its launches."""
        return "TFLOP/s" if any(launch.tflops is not None for launch in self.launches) else "GB/s"

    @property
    def is_surprise(self) -> bool:
        """Whether it is wrong and nobody said that it may be."""
        return self.state == WRONG and not self.is_unsafe


@dataclass(frozen=True, kw_only=True)
class Climb:
    """A ladder, climbed; see the module's docstring."""

    ladder: str
    problem: str
    device: str
    place: str
    measured: bool
    versions: Mapping[str, Any]
    rungs: tuple[Climbed, ...]

    @property
    def unit(self) -> str:
        """Of the rates of its rungs."""
        return next((rung.unit for rung in self.rungs if rung.best), "GB/s")

    def own_unit(self, rung: Climbed) -> str:
        """What stands behind the rate of a rung whose unit is another one."""
        return "" if rung.unit == self.unit else f" {rung.unit}"


def read_climbs(file: Path) -> list[Climb]:
    """The climbs that `normgen ladder --json` printed into a file. Raises UsageError for another file."""
    try:
        return [made(Climb, one) for one in parse_json(read_text(file, what="ladder"))["ladders"]]
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError("this is no output of `normgen ladder --json`", received=f"{file}: {error}") from None


def shipped_climbs(root: Path | None = None) -> list[Climb]:
    """What was measured and comes with normgen, or stands in another folder."""
    folder = (root / "generated" if root else shipped("generated")) / "evidence"
    return [one for file in sorted(folder.glob("ladder_*.json")) for one in read_climbs(file)]


def shipped_climb(ladder: Ladder, device: Device) -> Climb | None:
    """What was measured of a ladder's problem on this GPU model; None where nothing was."""
    wanted = (ladder.name, str(problem_of(ladder)), device.name, True)
    return next((c for c in shipped_climbs() if (c.ladder, c.problem, c.device, c.measured) == wanted), None)


def why_behind(ladder: Ladder, found: Climb) -> str:
    """Why the record is not as fast as the default schedule in this climb; empty where it is."""
    us = {rung.name: rung.best.us for rung in found.rungs if rung.best and rung.best.us}
    if not us.get("record", 0.0) > us.get("default", float("inf")):
        return ""
    if not found.measured:
        return "record is slower than default by the cost model, which is no measurement"
    device = next((device for device in TARGETS.values() if device.name == found.device), None)
    record = lookup(problem_of(ladder), device, folders=[shipped_folder()]).record if device else None
    if record is None or str(record.place) == found.place:
        return "record is slower than default here: it was tuned in another run"
    return (
        f"record is slower than default here: it was tuned {record.place.words}, and timed "
        f"{place_of(found.place).words}; the fastest kernel of one setting need not be that of another"
    )


@dataclass(frozen=True, kw_only=True)
class Ground:
    """Where a ladder is climbed; `index` is the GPU's number, None predicts."""

    device: Device
    place: Place
    index: int | None = None
    samples: int = 60
    seed: int = 0


Clock = Mapping[tuple[Problem, Schedule], float | str]  # µs, or why there are none


def climb(
    ladder: Ladder, ground: Ground, *, rungs: Sequence[str] = (), tell: Callable[[str], None] = lambda _: None
) -> Climb:
    """Check each rung at its best launch, and time all its launches; then normgen's own schedules beside them.

    rungs  names; () is all of them, and our own
    """
    chosen = [ladder.rung(name) for name in rungs] or [*ladder.rungs, *own_rungs(ladder, ground)]
    drafts = [(rung, _drafts(ladder, rung, ground.device)) for rung in chosen]
    parts = [
        part for _, launches in drafts for found in launches.values() if not isinstance(found, str) for part in found
    ]
    tell(f"time {len(parts)} kernels" if ground.index is not None else f"predict {len(parts)} kernels")
    clock = _measured(parts, ground, tell) if ground.index is not None else _predicted(parts, ground)
    found = []
    for number, (rung, launches) in enumerate(drafts, start=1):
        tell(f"check {rung.name} ({number} of {len(drafts)})")
        found.append(_climbed(ladder, rung, launches, clock, ground))
    return Climb(
        ladder=ladder.name,
        problem=str(problem_of(ladder)),
        device=ground.device.name,
        place=str(ground.place),
        measured=ground.index is not None,
        versions=environment(measured=ground.index is not None),
        rungs=tuple(found),
    )


def own_rungs(ladder: Ladder, ground: Ground) -> list[Rung]:
    """The default schedule of the ladder's problem, and that of its record where there is one."""
    if all(rung.missing for rung in ladder.rungs):
        return []
    problem = problem_of(ladder)
    own = {"default": (default_schedule(problem, ground.device), "normgen's schedule without any measurement")}
    tuned = lookup(problem, ground.device)
    if tuned.schedule is not None:
        own["record"] = (tuned.schedule, f"normgen's record: {tuned.reason}")
    return [
        Rung(name=name, title=title, idea=title, blocks=(Block(block="own", knobs=_knobs(schedule)),))
        for name, (schedule, title) in own.items()
    ]


def _knobs(schedule: Schedule) -> str:
    return " ".join(f"{name}={value}" for name, value in schedule.chosen.items())


def _drafts(ladder: Ladder, rung: Rung, device: Device) -> dict[str, tuple[RungPart, ...] | str]:
    """Launch -> its kernels, or why it is refused."""
    found: dict[str, tuple[RungPart, ...] | str] = {}
    for block in rung.blocks:
        try:
            found[block.block] = parts_of(ladder, rung, block, device)
        except UsageError as error:
            found[block.block] = reason_of(error)
    return found


def _predicted(parts: Sequence[RungPart], ground: Ground) -> Clock:
    hot = ground.place.is_hot
    return {(p.timed, p.schedule): predicted_us(p.problem, p.schedule, ground.device, hot=hot) for p in parts}


def _measured(parts: Sequence[RungPart], ground: Ground, tell: Callable[[str], None]) -> Clock:
    """The kernels of one problem race each other; a wrong one has no time."""
    assert ground.index is not None
    venue = Venue(facts=ground.device, index=ground.index, samples=ground.samples, seed=ground.seed)
    clock: dict[tuple[Problem, Schedule], float | str] = {}
    for problem in dict.fromkeys(part.timed for part in parts):
        mine = {p.schedule.key: p.schedule for p in parts if p.timed == problem}
        tell(f"race {len(mine)} kernels of {problem}")
        try:
            contest = hold(problem, ground.place, mine, venue, note=tell)
        except DeviceLostError as error:
            contest = Contest(failed=dict.fromkeys(mine, reason_of(error)))
        for key, schedule in mine.items():
            us = contest.cost_us(key)
            clock[problem, schedule] = us if us is not None else contest.failed.get(key, "it was not timed")
    return clock


def _climbed(
    ladder: Ladder, rung: Rung, launches: Mapping[str, tuple[RungPart, ...] | str], clock: Clock, ground: Ground
) -> Climbed:
    start = Climbed(name=rung.name, title=rung.title, state=MISSING, reason=rung.missing, is_unsafe=bool(rung.unsafe))
    if rung.missing or rung.best is None:
        return start
    problem = problem_of(ladder, rung)
    timed = tuple(_launch(block, launches[block.block], clock, problem) for block in rung.blocks)
    legal = [block.block for block in rung.blocks if not isinstance(launches[block.block], str)]
    if not legal:
        return replace(start, state=REFUSED, reason=timed[0].reason, launches=timed)
    block = rung.best.block if rung.best.block in legal else legal[0]
    parts = launches[block]
    assert not isinstance(parts, str)
    state, reason, checked = _checked(parts, ground)
    kernels = tuple({"problem": str(p.problem), "schedule": str(p.schedule)} for p in parts)
    because = rung.unsafe if state == WRONG and rung.unsafe else reason
    return replace(start, state=state, reason=because, checked=checked, block=block, launches=timed, kernels=kernels)


def _launch(block: Block, parts: tuple[RungPart, ...] | str, clock: Clock, problem: Problem) -> RungLaunch:
    source = {"source_ms": block.ms, "source_gb_per_s": block.gb_per_s}
    if isinstance(parts, str):
        return RungLaunch(block=block.block, us=None, gb_per_s=None, reason=parts, **source)
    times = [clock[part.timed, part.schedule] for part in parts]
    why = next((time for time in times if isinstance(time, str)), "")
    us = None if why else sum(float(time) for time in times)
    rate = problem.compulsory_bytes / us / 1e3 if us else None
    tflops = flops(problem) / us / 1e6 if us and flops(problem) else None
    return RungLaunch(block=block.block, us=us, gb_per_s=rate, tflops=tflops, reason=why, **source)


def _checked(parts: Sequence[RungPart], ground: Ground) -> tuple[str, str, tuple[str, ...]]:
    """(state, reason, lines) of a launch: each kernel against the reference, on all families of rows."""
    lines: list[str] = []
    if ground.index is None and any(part.problem.inner for part in parts):
        return _checked_around(parts, ground)
    for part in parts:
        if ground.index is None and (why := why_unchecked(part.problem)):
            return UNCHECKED, why, ()
        if ground.index is not None:
            found = check_on_gpu(part.problem, part.module, ground.device, index=ground.index, seed=ground.seed)
        else:
            found = check_on_cpu(part.problem, part.module, seed=ground.seed, most_elements=CHECKED_ELEMENTS)
        summary = found.summary.splitlines()
        lines += [line for line in summary if not line.startswith("  ok ")]
        if not found.ok:
            return WRONG, "; ".join(line.strip() for line in summary[1:2]), tuple(lines)
    return RIGHT, "", tuple(lines)


def _checked_around(parts: Sequence[RungPart], ground: Ground) -> tuple[str, str, tuple[str, ...]]:
    """The same of products, at sizes around the tile instead of the problem's."""
    lines: list[str] = []
    for part in [near for one in parts for near in around_tile(one)]:
        if why := why_unchecked(part.problem):
            return UNCHECKED, why, ()
        found = check_on_cpu(part.problem, part.module, seed=ground.seed, is_over=lambda: True)
        sizes = part.problem.sizes
        lines.append(f"checked around the tile: rows {sizes.rows}, cols {sizes.cols}, inner {sizes.inner}")
        if not found.ok:
            summary = found.summary.splitlines()
            return WRONG, "; ".join(line.strip() for line in summary[1:2]), (*lines, *summary)
    return RIGHT, "", tuple(lines)
