"""Each kind of fault, planted and caught with the kernel's line."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from normgen.cpu import FaultKind, Program, ProgramRun, build
from tests.cpu.cases import ROWS, kernel, lines_of, module, pointer
from tests.cpu.faulty import PLANTED as PLANTED_ALONE
from tests.cpu.faulty_order import LEGAL, ORDER, ordered

PLANTED = {**PLANTED_ALONE, **ORDER}


def run_planted(program: Program, *, seed: int = 0) -> ProgramRun:
    x = np.ones((4, 64), dtype=np.float32)[:, :60]
    y = np.zeros((4, 64), dtype=np.float32)
    counter = np.zeros(1, dtype=np.uint32)
    slow = {"loop without end or memory access", "spinning on memory"}
    limit = 0.2 if any(program.module is PLANTED[name].module for name in slow) else 20.0
    return program.run({"x": x, "y": y, "counter": counter}, rows=4, cols=60, seed=seed, time_limit_s=limit)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_reported_with_its_kernel_and_line(name: str, programs: dict[str, Program]) -> None:
    planted = PLANTED[name]
    run = run_planted(programs[name])
    fault = next((fault for fault in run.faults if fault.kind is planted.kind), None)
    assert fault is not None, run.faults
    same = {FaultKind.SHARED_RACE, FaultKind.UNINITIALISED_SHARED}  # a race may read before or after the write
    assert {fault.kind for fault in run.faults} <= ({planted.kind} if planted.kind not in same else same), run.faults
    assert fault.kernel == "planted"
    assert fault.line in lines_of(planted.module.text, "HERE"), str(fault)
    assert "HERE" in fault.line_text
    if planted.kind not in same:
        assert planted.says in fault.message
    else:
        assert any(planted.says in other.message for other in run.faults)


def test_every_kind_of_fault_has_been_planted() -> None:
    assert {planted.kind for planted in PLANTED.values()} == set(FaultKind)


def test_a_thread_of_a_dependent_launch_that_never_waits_is_reported() -> None:
    """A kernel behind it may rely on its end: it must imply the end of the kernels in front."""
    head = 'extern "C" __global__ void __launch_bounds__(64) silent(int rows)'
    text = f"{head} {{ if (threadIdx.x > 3) griddepcontrol_wait(); }}"
    lazy = module(text, kernel("silent", [ROWS], threads=64, blocks=1, dependent=True))
    run = build(lazy).run({}, rows=4, cols=60)
    assert [fault.kind for fault in run.faults] == [FaultKind.TOO_EARLY]
    assert "thread 0 ends without having waited" in run.faults[0].message


@pytest.mark.parametrize("stable", [False, True])
def test_only_promised_tensors_may_be_read_before_the_wait(stable: bool) -> None:
    text = """extern "C" __global__ void __launch_bounds__(32) ahead(float* y, const float* w) {
  const float value = w[threadIdx.x];
  griddepcontrol_wait();
  y[threadIdx.x] = value;
}"""
    promised = replace(pointer("w", "const float*"), stable=stable)
    early = module(text, kernel("ahead", [pointer("y", "float*"), promised], threads=32, blocks=1, dependent=True))
    w, y = np.arange(32, dtype=np.float32), np.zeros(32, dtype=np.float32)
    run = build(early).run({"w": w, "y": y}, rows=1, cols=32)
    assert [fault.kind for fault in run.faults] == ([] if stable else [FaultKind.TOO_EARLY])
    assert not stable or y.tolist() == w.tolist()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_race_is_seen_in_any_order_of_threads(seed: int, programs: dict[str, Program]) -> None:
    run = run_planted(programs["no barrier between write and read"], seed=seed)
    assert FaultKind.SHARED_RACE in {fault.kind for fault in run.faults} or FaultKind.UNINITIALISED_SHARED in {
        fault.kind for fault in run.faults
    }


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("name", LEGAL)
def test_ordered_accesses_are_no_fault(name: str, seed: int) -> None:
    body, cluster = LEGAL[name]
    sound = ordered(FaultKind.GLOBAL_RACE, "", body, cluster=cluster)
    assert run_planted(build(sound.module), seed=seed).faults == ()


PARTS = {
    "const float part = s[1];": {1},
    "const float2 two = reinterpret_cast<const float2*>(s)[1]; const float part = two.x + two.y;": {2, 3},
    "const float4 all = *reinterpret_cast<const float4*>(s); const float part = all.x + all.w;": {0, 1, 2, 3},
}


@pytest.mark.parametrize("part", PARTS)
def test_who_reads_a_part_of_a_vector_is_told_from_who_reads_all_of_it(part: str) -> None:
    """Two lanes read a vector, a thread of another warp some of it; a third lane writes an element behind the two."""
    for written in range(4):
        body = f"""
  __shared__ alignas(16) float s[4];
  if (threadIdx.x < 4) s[threadIdx.x] = 1.0f;
  __syncthreads();
  if (threadIdx.x < 2) {{
    const float4 all = *reinterpret_cast<const float4*>(s);
    y[threadIdx.x] = all.x + all.w;
  }}
  if (threadIdx.x == 32) {{
    {part}
    y[threadIdx.x] = part;
  }}
  __syncwarp();
  if (threadIdx.x == 2) s[{written}] = 2.0f;
"""
        program = build(ordered(FaultKind.SHARED_RACE, "", body, blocks=1).module)
        for seed in range(6):
            kinds = {fault.kind for fault in run_planted(program, seed=seed).faults}
            assert kinds == ({FaultKind.SHARED_RACE} if written in PARTS[part] else set()), (written, seed)


def test_a_fault_leaves_the_process_able_to_run_the_next_program(programs: dict[str, Program]) -> None:
    assert run_planted(programs["null pointer"]).faults
    x, total = np.ones((3, 40), dtype=np.float32), np.zeros(3, dtype=np.float32)
    run = programs["row_sum"].run({"x": x, "total": total}, rows=3, cols=40)
    assert run.faults == ()
    assert total.tolist() == [40.0, 40.0, 40.0]


def test_a_fault_reads_as_kind_kernel_line_and_text(programs: dict[str, Program]) -> None:
    fault = run_planted(programs["null pointer"]).faults[0]
    assert str(fault).startswith(
        "out_of_bounds: planted, line 5: writes 4 bytes at an address that belongs to no tensor"
    )
    assert str(fault).endswith("none[threadIdx.x] = 1.0f;  // HERE")


STOPPED = """
import os, subprocess, time
import numpy as np
from normgen.cpu import build
from tests.cpu.cases import ROW_SUM
program = build(ROW_SUM)
x, total = np.ones((4096, 64), dtype=np.float32), np.zeros(4096, dtype=np.float32)
subprocess.Popen(["sh", "-c", f"sleep 0.1; kill -STOP {os.getpid()}; sleep 1.5; kill -CONT {os.getpid()}"])
started = time.monotonic()
while time.monotonic() - started < 1.8:
    run = program.run({"x": x, "total": total}, rows=4096, cols=64, time_limit_s=1.0)
    assert run.faults == (), run.faults[0]
"""


def test_a_kernel_that_waits_for_a_busy_machine_is_not_called_endless() -> None:
    """A process that is stopped for longer than the limit of what a kernel may compute."""
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
