"""An analytic cost model: orders schedules before anything is measured, never excludes one.

A kernel is bound by the largest of three times, blended smoothly:

    memory   bytes through DRAM, plus re-reads through L2
    latency  rows one after another in each resident slot: load, reductions, store, each with its latency
    issue    instructions through the SMs' schedulers

plus a launch and the partly filled last wave of blocks. Constants are microseconds on the target; they are
leads from published latencies, to be calibrated by measurement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from normgen.device import Device
from normgen.problem import Problem
from normgen.schedule.legality import held_bytes_per_thread, param_bytes_per_thread, steps_per_lane
from normgen.schedule.schedule import Schedule
from normgen.spec import Kind


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Latencies in µs, rates per SM and clock; see the module's docstring."""

    launch_us: float = 0.6
    dram_latency_us: float = 0.75
    l2_latency_us: float = 0.30
    l1_latency_us: float = 0.04
    shuffle_us: float = 0.014
    barrier_us: float = 0.035
    cluster_barrier_us: float = 0.45
    l2_over_dram: float = 1.35  # L2 bandwidth in units of DRAM bandwidth
    instructions_per_clock: float = 3.0  # warp instructions an SM issues, of 4 schedulers
    blend: float = 3.0
    narrow_penalty: float = 0.10  # per halving of a 16-byte access
    streaming_gain: float = 0.01
    persistent_penalty: float = 1.06  # a row loop without prefetch starts no load before its last store


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Predicted time and what it is made of, in µs."""

    us: float
    memory_us: float
    latency_us: float
    issue_us: float
    tail_us: float
    blocks_per_sm: int
    waves: float
    looks: int


def estimated_registers(problem: Problem, s: Schedule) -> int:
    """Registers a thread will need, before the compiler says."""
    held = held_bytes_per_thread(problem, s) / 4 if s.hold == "registers" else s.vector * problem.dtype.bytes / 4
    params = param_bytes_per_thread(problem, s) / 4 if s.params != "late" else 4 * max(1, s.vector // 4)
    return min(255, int(26 + held + params + s.vector))


def blocks_resident(s: Schedule, device: Device, registers: int, shared_bytes: int) -> int:
    """Blocks of this kernel that fit an SM at once."""
    by_threads = device.threads_per_sm // s.threads
    warp_registers = -(-registers * 32 // 256) * 256
    by_registers = device.registers_per_sm // (warp_registers * (s.threads // 32))
    by_shared = device.shared_per_sm // (shared_bytes + 1024) if shared_bytes else device.blocks_per_sm
    return max(1, min(by_threads, by_registers, by_shared, device.blocks_per_sm))


def row_looks(s: Schedule, stages: int, writes: bool) -> int:
    """How often a row is walked: one look a stage of reductions, one to write."""
    one_stage = s.variance != "two_pass" or s.softmax == "online"
    return (min(stages, 1) if one_stage else stages) + (1 if writes else 0)


def _issue_us(problem: Problem, s: Schedule, device: Device, looks: int, c: Constants) -> float:
    """Warp instructions over the SMs' issue rate: about 2 an element and look, reads and writes by vector."""
    per_element = 2.0 * looks + 3.0 + (6.0 if s.variance == "welford" else 0.0)
    if s.edges != "exact":
        per_element *= 1.6
    reads = (looks if s.hold != "registers" else 1) + 2
    per_vector = 6.0 * reads
    elements = problem.rows * steps_per_lane(problem, s) * s.vector * s.threads_per_row * s.cluster
    instructions = elements * (per_element + per_vector / s.vector) / 32
    reduce_steps = math.log2(max(2, s.threads_per_row)) * 2 * max(1, looks - 1)
    instructions += problem.rows * s.cluster * max(1, s.threads_per_row // 32) * (reduce_steps * 2 + 40)
    return instructions / (device.sm_count * c.instructions_per_clock * device.sm_clock_ghz * 1e3)


def _row_latency_us(problem: Problem, s: Schedule, looks: int, c: Constants) -> float:
    """One row from its first load to its last store, alone on the SM."""
    steps = steps_per_lane(problem, s)
    width = min(s.threads_per_row, 32)
    shuffles = math.log2(width) if width > 1 else 0.0
    reduce = shuffles * c.shuffle_us
    if s.threads_per_row > 32:
        tree = s.reduce_with == "shared_tree"
        reduce += math.log2(s.threads_per_row) * c.barrier_us if tree else c.barrier_us + 0.5 * shuffles * c.shuffle_us
    if s.cluster > 1:
        reduce += c.cluster_barrier_us
    arithmetic = steps * s.vector * 0.0022 * looks * (3.0 if s.variance == "welford" else 1.0)
    again = {"registers": 0.0, "hybrid": 0.0, "shared": 0.03, "reload": c.l2_latency_us}[s.hold]
    trips = math.ceil(steps / (s.unroll or steps)) if s.hold != "registers" else 1
    first = c.dram_latency_us * (trips if s.hold == "reload" else max(1, trips / 4))
    params = c.l2_latency_us if s.params == "late" else 0.0
    if s.params == "kept":
        params = -0.05
    return first + max(0, looks - 1) * (reduce + again * trips) + arithmetic + params


def predict(
    problem: Problem,
    s: Schedule,
    device: Device,
    *,
    stages: int = 1,
    registers: int | None = None,
    spill_bytes: int = 0,
    shared_bytes: int | None = None,
    constants: Constants | None = None,
) -> Cost:
    """Predicted time of a forward kernel with `stages` dependent row reductions."""
    c = constants or Constants()
    looks = row_looks(s, stages, any(t.is_written and t.kind is Kind.ELEM for t in problem.tensors))
    registers = registers or estimated_registers(problem, s)
    if shared_bytes is None:
        shared_bytes = s.threads * held_bytes_per_thread(problem, s) if s.hold == "shared" else 0
    resident = blocks_resident(s, device, registers, shared_bytes)
    if s.persistent:
        resident = min(resident, s.persistent)
    bandwidth = device.dram_gb_per_s * 1e3  # bytes per µs
    width = s.vector * problem.dtype.bytes
    narrow = 1 + c.narrow_penalty * max(0.0, math.log2(16 / min(16, width)))
    hints = 1 - c.streaming_gain * ((s.load == "streaming") + (s.store == "streaming"))
    read_bytes = problem.rows * problem.cols * sum(t.dtype.bytes for t in problem.elem_tensors if not t.is_written)
    again = read_bytes * max(0, looks - 1) if s.hold == "reload" else 0
    memory = (problem.compulsory_bytes * hints + again / c.l2_over_dram) / bandwidth * narrow
    memory += spill_bytes * s.threads * (problem.rows / s.rows_per_block) / bandwidth
    tiles = -(-problem.rows // s.rows_per_block)
    slots = device.sm_count * resident / s.cluster
    waves = tiles / slots
    row_us = _row_latency_us(problem, s, looks, c)
    latency = max(1.0, waves) * row_us
    issue = _issue_us(problem, s, device, looks, c)
    bound = (memory**c.blend + latency**c.blend + issue**c.blend) ** (1 / c.blend)
    ragged = (math.ceil(waves) - waves) / max(1.0, waves) if waves > 1 and not s.persistent else 0.0
    if s.persistent and s.stages == 1:
        bound *= c.persistent_penalty
    tail = ragged * min(bound, 4 * row_us) * 0.3 + 0.5 * row_us
    return Cost(
        us=c.launch_us + bound + tail,
        memory_us=memory,
        latency_us=latency,
        issue_us=issue,
        tail_us=tail,
        blocks_per_sm=resident,
        waves=waves,
        looks=looks,
    )
