"""A kernel's hardware counters by Nsight Compute, beside what the cost model derives: `normgen profile`.

`ncu` runs a program and writes a row of CSV for each kernel that it saw between cuProfilerStart and cuProfilerStop. The
program is normgen itself, which launches each schedule once there (`launch_for_ncu`), in an NVTX range of its id where
the package nvtx is installed. Rows and schedules meet by their order, and each row must bear its kernel's name.
"""

from __future__ import annotations

import csv
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from normgen.codegen.module import Module
from normgen.cost.checklist import Answer, checklist
from normgen.cost.model import Cost, predict
from normgen.cuda.compiler import compile_module, identity_of
from normgen.cuda.driver import OnDevice, check, driver
from normgen.device import Device
from normgen.errors import NoDeviceError, UsageError
from normgen.measure.gpu import GpuBench
from normgen.pipeline import emit
from normgen.problem.problem import Problem
from normgen.program.source import stages_of
from normgen.records.place import Context, Place, Setting
from normgen.schedule.schedule import Schedule
from normgen.text import figure, table

RANGE = "normgen:"  # the name of an NVTX range, in front of the id
_TOTALS = {  # added up over the kernels of a call
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "l2_sectors": "lts__t_sectors.sum",
    "conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "ns": "gpu__time_duration.sum",
}
_RATES = {  # of the longest kernel of a call
    "dram_percent": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_hit_percent": "lts__t_sector_hit_rate.pct",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
_STALLS = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
_UNITS = {"Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}  # else 1
_SECTOR = 32  # bytes
_MOST_STALLS = 3
_HEAD = ("counter", "kernel", "counted by ncu", "derived by `normgen explain`")
_FORBIDDEN = "ERR_NVGPUCTRPERM"


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """One schedule of a problem: its id, its kernels, and what the cost model makes of it.

    id  of the emitted text, as in a record's `text`
    """

    id: str
    schedule: Schedule
    module: Module
    cost: Cost
    answers: Mapping[str, Answer]

    @staticmethod
    def of(problem: Problem, schedule: Schedule, device: Device, *, hot: bool) -> Profiled:
        """Raises UsageError where the emitter refuses the schedule."""
        module = emit(problem, schedule)
        cost = predict(problem, schedule, device, stages=stages_of(problem), hot=hot)
        answers = {answer.question: answer for answer in checklist(problem, schedule, device, cost)}
        return Profiled(id=identity_of(module), schedule=schedule, module=module, cost=cost, answers=answers)


@dataclass(frozen=True, kw_only=True)
class CounterRow:
    """What ncu says of one kernel, by the names of its metrics, in bytes, ns and %."""

    kernel: str
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Counters:
    """The counters of one call; None where ncu did not say. `stalls`: warps that wait, for each that issues."""

    dram_read_bytes: float | None
    dram_write_bytes: float | None
    dram_percent: float | None
    l2_sectors: float | None
    l2_hit_percent: float | None
    occupancy_percent: float | None
    stalls: Mapping[str, float]
    conflicts: float | None
    wavefronts: float | None
    ns: float | None

    @staticmethod
    def of(rows: Sequence[CounterRow]) -> Counters:
        """Of the kernels of a call: their sums, and the rates of the longest one."""
        longest = max(rows, key=lambda row: row.values.get(_TOTALS["ns"], 0.0)).values
        found: dict[str, float | None] = {name: longest.get(metric) for name, metric in _RATES.items()}
        for name, metric in _TOTALS.items():
            said = [row.values[metric] for row in rows if metric in row.values]
            found[name] = sum(said) if len(said) == len(rows) else None
        waits = {m[1]: value for metric, value in longest.items() if (m := _STALLS.fullmatch(metric))}
        stalls = {name: value for name, value in waits.items() if name != "selected" and "not_issued" not in name}
        return Counters(stalls=dict(sorted(stalls.items(), key=lambda pair: -pair[1])), **found)

    @property
    def dram_bytes(self) -> float | None:
        """Read and written."""
        if self.dram_read_bytes is None or self.dram_write_bytes is None:
            return None
        return self.dram_read_bytes + self.dram_write_bytes


def command(ncu: str, program: Sequence[str], *, hot: bool) -> list[str]:
    """The command line that counts what `program` launches between its cuProfilerStart and cuProfilerStop.

    hot  memory stays as the launch before left it; else ncu empties the caches. Clocks are left alone.
    """
    metrics = ",".join((*_TOTALS.values(), *_RATES.values()))
    how = ["--csv", "--page", "raw", "--print-units", "base", "--profile-from-start", "off", "--nvtx"]
    how += ["--cache-control", "none" if hot else "all", "--clock-control", "none"]
    return [ncu, *how, "--section", "WarpStateStats", "--metrics", metrics, *program]


def launch_for_ncu(problem: Problem, profiled: Sequence[Profiled], device: Device, *, index: int, hot: bool) -> None:
    """Launch each schedule once where ncu counts; hot: a second time, behind one that it does not see."""
    place = Place(context=Context.ALONE, setting=Setting.HOT if hot else Setting.COLD)
    bench = GpuBench(problem, device, index=index, place=place, seed=0)
    for number, one in enumerate(profiled):
        key = f"{number}:{one.id}"
        bench.load(key, one.module, compile_module(one.module, device.arch))
        bench.launch_once(key)
        with OnDevice(index), _named_range(one.id):
            check(driver().cuProfilerStart(), "start the profiler")
            bench.launch_once(key)
            check(driver().cuProfilerStop(), "stop the profiler")
        bench.unload(key)
    bench.close()


@contextmanager
def _named_range(name: str) -> Iterator[None]:
    """An NVTX range around what runs inside, where the package nvtx is there."""
    if importlib.util.find_spec("nvtx") is None:
        yield
        return
    from nvtx import annotate

    with annotate(RANGE + name):
        yield


def read(text: str) -> list[CounterRow]:
    """The rows of what ncu printed, with what it says beside the CSV.

    Raises NoDeviceError where ncu counted nothing, with the reason that it gives.
    """
    lines = [line for line in text.splitlines() if not line.startswith("==")]
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        raise _refusal(text)
    header, *rows = csv.reader(lines[start:])
    units = rows.pop(0) if rows and not rows[0][0] else [""] * len(header)
    return [_row(header, units, row) for row in rows if len(row) == len(header)]


def _row(header: Sequence[str], units: Sequence[str], row: Sequence[str]) -> CounterRow:
    cells = dict(zip(header, row, strict=True))
    values = {}
    for name, unit, cell in zip(header, units, row, strict=True):
        if "__" in name and (number := _number(cell)) is not None:
            values[name] = number * _UNITS.get(unit, 1.0)
    return CounterRow(kernel=cells.get("Kernel Name", ""), values=values)


def _number(cell: str) -> float | None:
    """The number of a cell, with or without commas between thousands; None of n/a."""
    try:
        return float(cell.replace(",", ""))
    except ValueError:
        return None


def _refusal(text: str) -> NoDeviceError:
    """Why ncu counted nothing."""
    if _FORBIDDEN in text:
        hint = (
            "the system lets only its administrator read them: run as root, in a container with --cap-add SYS_ADMIN, "
            "or load the driver with NVreg_RestrictProfilingToAdminUsers=0"
        )
        return NoDeviceError("ncu must be allowed to read the GPU's counters", received=_FORBIDDEN, hint=hint)
    said = [line for line in text.splitlines() if line.startswith(("==ERROR==", "error:", "==WARNING=="))]
    received = "; ".join(said[:3]) or (text.strip().splitlines() or ["nothing"])[-1]
    return NoDeviceError("ncu must print a row of counters for each kernel", received=received)


def counted(rows: Sequence[CounterRow], profiled: Sequence[Profiled]) -> list[Counters]:
    """The counters of each schedule, whose kernels are the rows in their order. Raises UsageError for other kernels."""
    wanted = [(one, kernel.name) for one in profiled for kernel in one.module.kernels]
    fits = len(rows) == len(wanted) and all(name in row.kernel for row, (_, name) in zip(rows, wanted, strict=True))
    if not fits:
        received = ", ".join(row.kernel for row in rows) or "none"
        hint = "the same problem and --schedule as in the command that ncu ran: " + ", ".join(n for _, n in wanted)
        raise UsageError("the rows of ncu are those of the schedules' kernels", received=received, hint=hint)
    of = [[row for row, (owner, _) in zip(rows, wanted, strict=True) if owner is one] for one in profiled]
    return [Counters.of(own) for own in of]


def lines(profiled: Sequence[Profiled], counters: Sequence[Counters | None]) -> str:
    """For people: each counter of all schedules, beside what the cost model derives."""
    told = [_said(one, found) for one, found in zip(profiled, counters, strict=True)]
    rows = []
    for name in told[0]:
        for one, said in zip(profiled, told, strict=True):
            rows.append((name if one is profiled[0] else "", one.id[:8], *said[name]))
    legend = [f"{one.id[:8]}  {one.schedule}" for one in profiled]
    return "\n".join([*legend, "", table(_HEAD, rows)])


def _said(one: Profiled, found: Counters | None) -> dict[str, tuple[str, str]]:
    """Counter -> what was counted, and what is derived."""
    cost, answers = one.cost, one.answers
    parts = {"memory": cost.memory_us, "latency": cost.latency_us, "instructions": cost.issue_us}
    bound = ", ".join(f"{name} {us:.2f} us" for name, us in sorted(parts.items(), key=lambda pair: -pair[1]))
    banks, looks = (answers[name].answer if name in answers else "-" for name in ("bank conflicts", "looks at memory"))
    derived = {
        "DRAM": f"{cost.bytes:,} bytes",
        "L2": looks,
        "occupancy": f"{cost.occupancy:.0%}",
        "stalls": bound,
        "bank conflicts": banks,
        "time": f"{cost.us:.2f} us predicted",
    }
    return {name: (_counted(found)[name] if found else "-", text) for name, text in derived.items()}


def _counted(found: Counters) -> dict[str, str]:
    stalls = [f"{name} {value:.1f}" for name, value in [*found.stalls.items()][:_MOST_STALLS]]
    l2_bytes = None if found.l2_sectors is None else found.l2_sectors * _SECTOR
    return {
        "DRAM": f"{_whole(found.dram_bytes)} bytes, {figure(found.dram_percent, 3)} % of its peak",
        "L2": f"{_whole(l2_bytes)} bytes, {figure(found.l2_hit_percent, 3)} % of the sectors hit",
        "occupancy": f"{figure(found.occupancy_percent, 3)} %",
        "stalls": ", ".join(stalls) or "-",
        "bank conflicts": f"{_whole(found.conflicts)} of {_whole(found.wavefronts)} wavefronts",
        "time": "-" if found.ns is None else f"{found.ns / 1e3:.2f} us under ncu, not comparable with a bench",
    }


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def as_dict(one: Profiled, found: Counters | None) -> dict[str, Any]:
    """Plain JSON values."""
    derived = {name: text for name, (_, text) in _said(one, found).items()}
    counters = asdict(found) if found else None
    return {"id": one.id, "schedule": one.schedule.as_dict(), "counters": counters, "derived": derived}
