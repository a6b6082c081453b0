"""Records for the export's tests: real problems and schedules, figures that no GPU has measured."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from normgen.choice.first import default_schedule
from normgen.cuda.compiler import identity_of
from normgen.device import Device, target
from normgen.export import Header
from normgen.pipeline import emit
from normgen.program.source import problem_for
from normgen.records.place import DEFAULT_PLACE, Place
from normgen.records.record import Outcome, Record
from normgen.records.statistics import Times
from normgen.records.verified import CPU, GPU, Verified, VerifiedOn
from normgen.schedule.schedule import Schedule
from normgen.spec.reader import load
from normgen.spec.spec import Spec

H200 = target("h200")
GPU_CHECK = Verified(
    site=VerifiedOn(executor=GPU, device=H200.name, version="13.0"),
    calls=11,
    rows=(1, 8192),
    cols=(768,),
    compared=5461,
    families=("normal", "inf"),
)
CPU_CHECK = replace(GPU_CHECK, site=VerifiedOn(executor=CPU, device="x86_64", version="g++ 12.2.0"))
CREATED = "2026-11-20T12:00:00Z"
HELD_IN_SHARED = Schedule(threads_per_row=512, vector=4, hold="shared", unroll=1, store="streaming")
PERSISTENT = Schedule(threads_per_row=128, vector=4, hold="registers", unroll=0, persistent=4)
PEELED = Schedule(threads_per_row=32, rows_per_block=4, vector=4, hold="registers", unroll=0, edges="peel")
PEELED_COPIES = replace(PEELED, hold="shared", copy="bulk", unroll=1)
WELFORD_TREE = Schedule(threads_per_row=256, reduce_with="shared_tree", variance="welford")
COOPERATIVE = Schedule(threads_per_row=256, reduce_with="cooperative_groups", vector=4)


def record(
    op: str | Spec = "layernorm",
    *,
    shape: str = "8192x768",
    schedule: Schedule | None = None,
    us: float = 15.0,
    place: Place = DEFAULT_PLACE,
    measured: bool = False,
    text: str = "",
    device: Device = H200,
    **problem: Any,
) -> Record:
    """A record of that problem as it may leave; by default of the default schedule, and predicted.

    text  of the kernel that was timed; by default today's
    """
    spec = op if isinstance(op, Spec) else load(op)
    found = problem_for(spec, shape=shape, **problem)
    schedule = schedule or default_schedule(found, device)
    now = identity_of(emit(found, schedule))
    times = Times(n=9, median=us, p05=us, p95=us, low=us, high=us) if measured else None
    return Record(
        problem=found.question,
        place=place,
        schedule=schedule,
        text=text or now,
        outcome=Outcome.OK if measured else Outcome.PREDICTED,
        measured=measured,
        times_us=times,
        predicted_us=us,
        roof_us=0.98 * us if measured else None,
        default_us=1.5 * us if measured else None,
        bytes=found.compulsory_bytes,
        error={t.name: 0.25 for t in found.tensors if t.is_written},
        verified=replace(
            GPU_CHECK if measured else CPU_CHECK, cols=(found.cols,), text=now if text not in ("", now) else ""
        ),
        device=device.as_dict(),
        versions={"normgen": "0.1.0", "nvrtc": "13.0"},
        command=f"normgen tune --shape {shape}",
        created=CREATED,
    )


def layernorm_records() -> list[Record]:
    """Every way a header chooses by: rows, cols, alignment, absent tensors, peeled rows; four kinds of kernels."""
    return [
        record(shape="8192x768", schedule=PERSISTENT),
        record(shape="64x768"),
        record(shape="64x768", without=("mean", "rstd")),  # nearer only in what it writes
        record(shape="8192x768", without=("bias",), schedule=WELFORD_TREE),
        record(shape="512x770", pitch=771, align=4, schedule=PEELED),
        record(shape="512x771", align=4, schedule=PEELED_COPIES),
        record(shape="128x16384", schedule=HELD_IN_SHARED),
        record(shape="256x1024", schedule=COOPERATIVE),
    ]


def build(folder: Path, *sources: str) -> Path:
    """A program of these source files, linked by nvcc; any warning fails."""
    program = folder / "program"
    done = nvcc("-o", program, *(folder / source for source in sources))
    assert done.returncode == 0, done.stderr
    return program


def nvcc(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """nvcc with every warning an error, unless told otherwise for compute capability 9.0, as PTX.

    NVRTC makes machine code of every header's device part in other tests; here it would take a third of the time.
    """
    arch = () if any(str(a).startswith(("-arch", "-gencode")) for a in arguments) else ("-arch=compute_90",)
    command = ["nvcc", "-Werror", "all-warnings", "-std=c++17", *arch, "-Xcompiler", "-Wall,-Wextra"]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, check=False)


def put(header: Header, folder: Path) -> Path:
    """The header as a file for nvcc; `write` would compile it by NVRTC before."""
    path = folder / header.file_name
    path.write_text(header.text, encoding="utf-8")
    return path
