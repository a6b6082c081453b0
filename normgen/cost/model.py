"""An analytic cost model: orders schedules before anything is measured, never excludes one.

A kernel takes a launch, then about the largest of three times, blended smoothly, then a tail:

    memory   bytes through DRAM (spills among them), re-reads and partial column sums through L2
    latency  row tiles one after another in every resident slot: load, reductions, arithmetic, store
    issue    instructions through the SMs' schedulers

but, where kernels start early, never less than it takes to start all blocks.

With a hot cache the row comes from L2: its latency and bandwidth stand in for DRAM's, and hints change nothing.
Backward adds what its column sums cost: atomics, or partial rows and the kernel that adds them. Hints and the place
of the parameters multiply the time by a factor each. Constants are those of `schedule.constants`: microbenchmarks
give the latencies and rates, a fit on measured schedules the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, Unpack

from normgen.cost.constants import Constants, constants_of
from normgen.device import Device
from normgen.knobs import (
    ColumnWay,
    Copy,
    Edges,
    Hold,
    Keep,
    LoadHint,
    Params,
    ReduceWith,
    SoftmaxMethod,
    StoreHint,
    VarianceMethod,
)
from normgen.problem.problem import Problem
from normgen.program.classes import ProgramClass, class_of
from normgen.program.source import stages_of
from normgen.schedule.lanes.clocks import walks, work
from normgen.schedule.meeting import left_in_l2
from normgen.schedule.plan import (
    held_bytes_per_thread,
    last_tiles,
    param_bytes_per_thread,
    register_steps,
    steps_per_lane,
    sums_in_registers,
    vector_registers,
)
from normgen.schedule.plan import shared_bytes as dynamic_shared_bytes
from normgen.schedule.policy import overflows_l2
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.clocks import busy_clocks, expected_registers, tiles_of
from normgen.schedule.tiles.plan import tile_problem_plan

REGISTERS_PER_SM = 65536  # of every GPU since compute capability 5.0
L1_BYTES = 128 << 10  # of an SM, beside some shared memory
FOUND_IN_L2 = 0.33  # of L2: what DRAM need not move where the last rows come first (134 and 235 MB, H200)
ROW_ATOMICS = ("atomic", "shared_atomic")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Predicted time and what it is made of, in µs; `factor` multiplies the bound."""

    us: float
    memory_us: float
    latency_us: float
    issue_us: float
    starts_us: float
    columns_us: float
    tail_us: float
    factor: float
    bytes: int
    registers: int
    spilled: int
    blocks_per_sm: int
    occupancy: float
    waves: float
    looks: int

    def lines(self) -> list[str]:
        """One line for each part, for people."""
        of_rows = [
            f"passes      {self.looks} over every row",
            f"latency     {self.latency_us:.2f} us of row tiles one after another",
            f"issue       {self.issue_us:.2f} us of instructions",
            f"starts      {self.starts_us:.2f} us of starting blocks while another kernel ends",
            f"columns     {self.columns_us:.2f} us for sums over rows",
        ]
        of_tiles = [f"latency     {self.latency_us:.2f} us of the first loads", of_rows[2]]
        return [
            f"bytes       {self.bytes:,} through memory: {self.memory_us:.2f} us",
            *(of_rows if self.looks else of_tiles),
            f"registers   about {self.registers} a thread" + (f", {self.spilled} spilled" if self.spilled else ""),
            f"occupancy   {self.occupancy:.0%}: {self.blocks_per_sm} blocks an SM, {self.waves:.2f} waves",
            f"hints       x {self.factor:.3f}",
            f"predicted   {self.us:.2f} us",
        ]


def estimated_registers(problem: Problem, s: Schedule, c: Constants | None = None) -> tuple[int, int]:
    """(registers, spilled registers) of a thread, before the compiler says."""
    c = c or Constants()
    vectors = steps_per_lane(problem, s) if s.hold is Hold.REGISTERS else max(1, s.unroll)
    if s.hold is Hold.HYBRID:
        vectors += register_steps(problem, s)
    held = vectors * vector_registers(problem, s)
    params = param_bytes_per_thread(problem, s) / 4 if s.params.in_registers else 0
    sums = sums_in_registers(problem, s)
    indexed = 0.0  # an array indexed by a loop that stays a loop lies in local memory
    if s.hold is not Hold.REGISTERS and 0 < s.unroll < steps_per_lane(problem, s):
        indexed, params = params, 0.0
    rows = s.stages if s.copy is Copy.DIRECT else 1  # others on their way wait in shared memory
    need = c.base_registers + c.held_registers * held * rows + c.param_registers * params
    need += c.sum_registers * sums + c.vector_registers * s.vector
    if s.keep is Keep.VALUES:
        need += held_bytes_per_thread(problem, s) / 4 * (4 / problem.dtype.bytes - 1)
    limit = min(255, REGISTERS_PER_SM // (max(1, s.blocks_per_sm) * s.threads) // 8 * 8)
    return int(min(need, limit)), max(0, int(need - limit)) + int(indexed)


def blocks_resident(s: Schedule, device: Device, registers: int, shared_bytes: int) -> int:
    """Blocks of this kernel that fit an SM at once."""
    by_threads = device.threads_per_sm // s.threads
    warp_registers = -(-registers * 32 // 256) * 256
    by_registers = device.registers_per_sm // (warp_registers * max(1, s.threads // 32))
    by_shared = device.shared_per_sm // (shared_bytes + 1024) if shared_bytes else device.blocks_per_sm
    return max(1, min(by_threads, by_registers, by_shared, device.blocks_per_sm))


def row_looks(s: Schedule, stages: int, writes: bool) -> int:
    """How often a row is walked: one look a stage of reductions, one to write."""
    one_stage = s.variance.looks_once or s.softmax is SoftmaxMethod.ONLINE
    return (min(stages, 1) if one_stage else stages) + (1 if writes else 0)


def _issue_us(problem: Problem, s: Schedule, device: Device, looks: int, blocks: int, c: Constants) -> float:
    """Warp instructions over the busy SMs' issue rate: some an element and look, reads and writes by vector."""
    per_element = 2.0 * looks + 3.0 + 2.0 * problem.column_outputs
    per_element -= 2.0 * (looks - 1) if s.keep is Keep.VALUES else 0.0  # a conversion and a difference each
    per_element += {VarianceMethod.WELFORD: 6.0, VarianceMethod.CORRECTED_TWO_PASS: 1.0}.get(s.variance, 0.0)
    # A maximum of the vector first, then one more exponential a vector, which rescales the sum so far.
    per_element += 2.0 + 10.0 / s.vector if s.softmax is SoftmaxMethod.ONLINE else 0.0
    if s.edges is not Edges.EXACT:
        per_element *= 1.6
    reads = (looks if s.hold is not Hold.REGISTERS else 1) * len(problem.elem_inputs) + 1
    elements = problem.rows * steps_per_lane(problem, s) * s.vector * s.threads_per_row * s.row_blocks
    instructions = elements * (per_element + 6.0 * reads / s.vector) / 32
    warps = max(1.0, s.threads_per_row / 32)
    steps = math.log2(max(2, min(32, s.threads_per_row))) * 2 * max(1, looks - 1)
    rows_in_warp = max(1, 32 // s.threads_per_row)
    instructions += problem.rows * s.row_blocks * warps / rows_in_warp * (steps * 2 + 40)
    busy = max(1, min(blocks, device.sm_count))
    return instructions / (busy * c.instructions_per_clock * device.sm_clock_ghz * 1e3)


def _reduce_us(s: Schedule, c: Constants) -> float:
    """One reduction over the threads of a row."""
    width = min(s.threads_per_row, 32)
    shuffles = math.log2(width) if width > 1 else 0.0
    reduce = shuffles * c.shuffle_us
    if s.threads_per_row > 32:
        tree = math.log2(s.threads_per_row) * c.barrier_us
        warps = s.threads / 32
        # A read of all states and additions in pairs wait about as long as two shuffles.
        steps = 2 if s.reduce_with.is_short else shuffles
        reduce += (
            tree if s.reduce_with is ReduceWith.SHARED_TREE else (1 + warps / 8) * c.barrier_us + steps * c.shuffle_us
        )
    if s.reduce_with is ReduceWith.SHARED_TREE and s.threads_per_row <= 32:
        reduce *= 2
    reduce += c.cluster_barrier_us if s.cluster > 1 else 0.0
    return reduce + (c.grid_exchange_us if s.meets_in_memory else 0.0)


def _rereads_l1(problem: Problem, s: Schedule) -> bool:
    """Whether a row that is read again comes from L1: it was allowed to stay there, and some blocks' rows fit."""
    row_bytes = problem.row_bytes // s.row_blocks
    return s.load is LoadHint.DEFAULT and row_bytes * s.rows_per_block <= L1_BYTES // 4


def _tile_us(problem: Problem, s: Schedule, looks: int, c: Constants, *, hot: bool) -> float:
    """One tile of rows from its first load to its last store, alone in its slot."""
    steps = steps_per_lane(problem, s)
    arithmetic = steps * s.vector * c.element_us * looks * (3.0 if s.variance is VarianceMethod.WELFORD else 1.0)
    trips = 1 if s.hold is Hold.REGISTERS else math.ceil(steps / (s.unroll or steps))
    again = {"registers": 0.0, "hybrid": 0.0, "shared": c.l1_latency_us, "reload": c.l1_latency_us}[s.hold]
    if s.hold is Hold.RELOAD and not _rereads_l1(problem, s):
        again = c.l2_latency_us
    first = (c.l2_latency_us if hot else c.dram_latency_us) * (1 + c.trip_share * (trips - 1))
    is_late = problem.rows_per_batch or (s.params is Params.LATE and param_bytes_per_thread(problem, s))
    params = c.l2_latency_us if is_late else 0.0
    rest = max(0, looks - 1) * (_reduce_us(s, c) + again * trips) + arithmetic + params + c.store_us
    if s.persistent and (s.stages > 1 or s.copy is not Copy.DIRECT):  # the next row's loads travel meanwhile
        return max(first, rest) + c.prefetch_left * min(first, rest)
    return first + rest


def _memory_us(
    problem: Problem, s: Schedule, device: Device, looks: int, spilled: float, blocks: int, c: Constants, *, hot: bool
) -> float:
    """Bytes through DRAM or L2, of which a few blocks get no more than their SMs take in."""
    dram = device.dram_gb_per_s * 1e3  # bytes per µs
    l2 = min(dram * c.l2_over_dram, max(1, min(blocks, device.sm_count)) * c.sm_gb_per_s * 1e3)
    width = s.vector * problem.dtype.bytes
    narrow = 1 + c.narrow_penalty * max(0.0, math.log2(16 / min(16, width)))
    read = problem.rows * problem.row_bytes
    again = read * max(0, looks - 1) if s.hold is Hold.RELOAD and not _rereads_l1(problem, s) else 0
    local = 8.0 * spilled * s.threads_per_row * s.row_blocks * problem.rows  # stored and loaded once a row
    is_found = s.row_order.descends and overflows_l2(problem.main_bytes, device)
    found = FOUND_IN_L2 * device.l2_bytes if is_found else 0.0
    moved = problem.compulsory_bytes / l2 if hot else (problem.compulsory_bytes - found) / min(dram, l2)
    missed = again * (1 - left_in_l2(problem, s, device, walkers=max(1, blocks // s.row_blocks)))
    return (moved + missed / min(dram, l2) + (again - missed + local) / l2) * narrow


def _columns_us(problem: Problem, s: Schedule, device: Device, blocks: float, c: Constants) -> float:
    """What sums over rows add beside the row loop: atomics, partial rows, the finish."""
    sums = problem.column_outputs * problem.cols + problem.totals
    if not sums:
        return 0.0
    if s.columns in ROW_ATOMICS:
        share = 1.0 if s.columns is ColumnWay.ATOMIC else 0.25
        return share * problem.rows * sums / c.atomics_per_us + c.barrier_us
    groups = s.threads / max(32, s.threads_per_row)
    in_block = groups * -(-sums // s.threads) * c.l1_latency_us
    blocks /= s.cluster  # the blocks of a cluster fill one partial row together
    if s.columns is ColumnWay.REGISTER_ATOMIC:
        return in_block + blocks * sums / c.atomics_per_us + 2 * c.l2_latency_us
    if s.columns is ColumnWay.PARTIALS_LAST_TILE:
        tiles = max(1, last_tiles(problem))  # totals alone are one
        return in_block + 2 * tiles * c.l2_latency_us + blocks * -(-sums // (4 * tiles * s.threads)) * c.last_tile_us
    moved = 2 * blocks * sums * 4 / (c.l2_over_dram * device.dram_gb_per_s * 1e3)
    return in_block + moved + c.second_kernel_us


def _factor(problem: Problem, s: Schedule, device: Device, c: Constants, *, hot: bool) -> float:
    """Hints, the place of parameters, the shape of a block: factors that were measured, not derived."""
    factor = 1.0
    if not hot:
        streams = len(problem.elem_inputs)
        if s.load is LoadHint.EVICT_LAST:  # rows that stay in L2 push parameters out, which late ones wait for
            pays = s.params is not Params.LATE or not problem.parameter_bytes
            factor *= c.load_evict_last if pays and problem.compulsory_bytes > 2 * device.l2_bytes else 1.0
        elif s.load is not LoadHint.DEFAULT and s.hold is not Hold.RELOAD:
            factor *= c.load_past_l1 if streams == 1 else c.load_streams_past_l1
        factor *= c.store_streaming if s.store is StoreHint.STREAMING and not problem.column_outputs else 1.0
        factor *= {"early": c.params_early, "kept": c.params_kept, "packed": c.params_kept}.get(s.params, 1.0)
    lanes = s.threads_per_row * s.row_blocks * steps_per_lane(problem, s) * s.vector
    factor *= float((lanes / problem.cols) ** c.idle_exponent)
    factor *= 1 + c.side_by_side * math.log2(s.rows_per_block) * (s.threads > 64)
    factor *= 1 + c.few_vectors * (steps_per_lane(problem, s) == 1)
    factor *= c.held_shared if s.hold is Hold.SHARED and s.copy is Copy.DIRECT else 1.0
    return factor * (c.persistent_penalty if s.persistent and s.stages == 1 and s.copy is Copy.DIRECT else 1.0)


class _Grid(NamedTuple):
    """How the tiles of rows meet the slots of the chip.

    running  blocks of the fullest SM at once
    waves    blocks over all slots of the chip
    rounds   tiles one after another through a slot of the fullest SM
    """

    blocks: int
    running: int
    waves: float
    rounds: float


def _grid(problem: Problem, s: Schedule, device: Device, registers: int, shared_bytes: int | None) -> _Grid:
    shared = dynamic_shared_bytes(problem, s) if shared_bytes is None else shared_bytes
    resident = blocks_resident(s, device, registers, shared)
    tiles = -(-problem.rows // s.rows_per_block)
    blocks = tiles * s.row_blocks
    if s.persistent:
        blocks = min(blocks, s.persistent * device.sm_count)
    running = min(resident, max(1, -(-blocks // device.sm_count)))
    return _Grid(
        blocks=blocks,
        running=running,
        waves=blocks / (device.sm_count * resident),
        rounds=max(1.0, tiles * s.row_blocks / (device.sm_count * running)),
    )


class KnownKernel(TypedDict, total=False):
    """What is known of a kernel and of where it runs.

    stages     dependent row reductions
    hot        its tensors lie in L2, as a small one does that the kernel before has written; one too large does not
    registers, spill_bytes, shared_bytes   the compiler's figures, else guessed
    constants  of the device, else its own
    """

    stages: int
    hot: bool
    registers: int | None
    spill_bytes: int
    shared_bytes: int | None
    constants: Constants | None


def predict(problem: Problem, s: Schedule, device: Device, **known: Unpack[KnownKernel]) -> Cost:
    """Predicted time of a kernel, forward or backward."""
    return MODELS[class_of(problem)](problem, s, device, **known)


def _predict_rows(
    problem: Problem,
    s: Schedule,
    device: Device,
    *,
    stages: int = 1,
    hot: bool = False,
    registers: int | None = None,
    spill_bytes: int = 0,
    shared_bytes: int | None = None,
    constants: Constants | None = None,
) -> Cost:
    c = constants or constants_of(device)
    hot = hot and problem.compulsory_bytes <= device.l2_bytes
    looks = row_looks(s, stages, any(t.is_written and t.kind.is_elem for t in problem.tensors))
    spilled = spill_bytes / 8
    if registers is None:
        registers, spilled = estimated_registers(problem, s, c)
    grid = _grid(problem, s, device, registers, shared_bytes)
    tile_us = _tile_us(problem, s, looks, c, hot=hot)
    latency = grid.rounds * tile_us
    memory = _memory_us(problem, s, device, looks, spilled, grid.blocks, c, hot=hot)
    issue = _issue_us(problem, s, device, looks, grid.blocks, c)
    starts = grid.blocks / device.sm_count * c.chained_block_us if s.chained else 0.0
    bound = max(starts, (memory**c.blend + latency**c.blend + issue**c.blend) ** (1 / c.blend))
    factor = _factor(problem, s, device, c, hot=hot)
    columns = _columns_us(problem, s, device, grid.blocks, c)
    # While the first tiles load and the last ones end, memory is not busy.
    tail = c.tail_share * tile_us * memory / bound
    launch = c.launch_us * (c.chained if s.chained else 1.0)
    return Cost(
        us=launch + bound * factor + columns + tail,
        memory_us=memory,
        latency_us=latency,
        issue_us=issue,
        starts_us=starts,
        columns_us=columns,
        tail_us=tail,
        factor=factor,
        bytes=problem.compulsory_bytes,
        registers=registers,
        spilled=int(spilled),
        blocks_per_sm=grid.running,
        occupancy=grid.running * s.threads / device.threads_per_sm,
        waves=grid.waves,
        looks=looks,
    )


def _predict_tiles(
    problem: Problem,
    s: Schedule,
    device: Device,
    *,
    stages: int = 1,  # noqa: ARG001
    hot: bool = False,
    registers: int | None = None,
    spill_bytes: int = 0,
    shared_bytes: int | None = None,
    constants: Constants | None = None,
) -> Cost:
    """The clocks of the busiest SM, or the bytes: every tensor once from memory."""
    c, plan = constants or constants_of(device), tile_problem_plan(problem, s)
    blocks = tiles_of(problem, s)
    registers = registers or expected_registers(plan)
    spills = 1 + c.spilled_products * spill_bytes / 4 / plan.accumulators
    clocks = busy_clocks(problem, s, device, registers=registers) * spills
    issue = clocks / (device.sm_clock_ghz * 1e3 * c.products_share)
    hot = hot and problem.compulsory_bytes <= device.l2_bytes
    memory = problem.compulsory_bytes / (device.dram_gb_per_s * 1e3 * (c.l2_over_dram if hot else 1.0))
    resident = blocks_resident(s, device, registers, plan.shared_bytes if shared_bytes is None else shared_bytes)
    latency = c.l2_latency_us if hot else c.dram_latency_us
    us = c.launch_us + latency + (memory**c.blend + issue**c.blend) ** (1 / c.blend)
    running = min(resident, max(1, -(-blocks // device.sm_count)))
    return Cost(
        us=us,
        memory_us=memory,
        latency_us=latency,
        issue_us=issue,
        starts_us=0.0,
        columns_us=0.0,
        tail_us=0.0,
        factor=1.0,
        bytes=problem.compulsory_bytes,
        registers=registers,
        spilled=spill_bytes // 8,
        blocks_per_sm=running,
        occupancy=running * s.threads / device.threads_per_sm,
        waves=blocks / (device.sm_count * resident),
        looks=0,
    )


def _predict_lanes(
    problem: Problem,
    s: Schedule,
    device: Device,
    *,
    stages: int = 1,  # noqa: ARG001
    hot: bool = False,
    registers: int | None = None,
    spill_bytes: int = 0,
    shared_bytes: int | None = None,  # noqa: ARG001
    constants: Constants | None = None,
) -> Cost:
    """Bytes, the latency of blocks one after another, and instructions."""
    c = constants or constants_of(device)
    hot = hot and problem.compulsory_bytes <= device.l2_bytes
    found = work(problem, s, device, registers=registers, hot=hot)
    spilled = spill_bytes // 8
    memory = found.memory_us * (1 + 8.0 * spilled * s.threads_per_row * s.rows_per_block / max(1, problem.row_bytes))
    return Cost(
        us=c.launch_us + found._replace(memory_us=memory).us,
        memory_us=memory,
        latency_us=found.latency_us,
        issue_us=found.issue_us,
        starts_us=0.0,
        columns_us=found.columns_us,
        tail_us=0.0,
        factor=1.0,
        bytes=problem.compulsory_bytes,
        registers=found.registers,
        spilled=spilled,
        blocks_per_sm=found.resident,
        occupancy=found.resident * s.threads / device.threads_per_sm,
        waves=found.blocks / (device.sm_count * found.resident),
        looks=walks(problem, s),
    )


MODELS: dict[ProgramClass, Callable[..., Cost]] = {
    ProgramClass.ROWS: _predict_rows,
    ProgramClass.TILES: _predict_tiles,
    ProgramClass.LANES: _predict_lanes,
}


def costs_of(problem: Problem, schedules: Iterable[Schedule], device: Device, *, hot: bool = False) -> list[Cost]:
    """What the model says of many schedules."""
    stages = stages_of(problem)
    return [predict(problem, schedule, device, stages=stages, hot=hot) for schedule in schedules]


def predicted_us(
    problem: Problem, schedule: Schedule, device: Device, figures: Mapping[str, Any] | None = None, *, hot: bool = False
) -> float:
    """The model's µs of a kernel; with the kernel's figures from the compiler it need not guess its registers."""
    stages = stages_of(problem)
    if figures is None:
        return predict(problem, schedule, device, stages=stages, hot=hot).us
    return predict(
        problem,
        schedule,
        device,
        stages=stages,
        hot=hot,
        registers=int(figures["registers"]),
        spill_bytes=int(figures["spill_bytes"]),
        shared_bytes=int(figures["static_shared_bytes"]) + int(figures["dynamic_shared_bytes"]),
    ).us
