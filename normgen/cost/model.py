"""An analytic cost model: orders schedules before anything is measured, never excludes one.

Its formulas take one schedule or columns of many (`schedule.many`): `terms` gives what each of 10^5 costs in 0.1 s.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

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
from normgen.schedule.columns import by_value, down, least, log2, most, some, up, where
from normgen.schedule.lanes.clocks import expected_shared, walks, work
from normgen.schedule.lanes.plan import steps_of_part
from normgen.schedule.many import Schedules
from normgen.schedule.meeting import left_in_l2
from normgen.schedule.plan import (
    held_bytes_per_thread,
    idle_lanes,
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
from normgen.schedule.tiles.clocks import along, asked_bytes, busy_clocks, expected_registers, results_of, tiles_of
from normgen.schedule.tiles.plan import tile_problem_plan

REGISTERS_PER_SM = 65536  # of every GPU since compute capability 5.0
L1_BYTES = 128 << 10  # of an SM, beside some shared memory
FOUND_IN_L2 = 0.33  # of L2: what DRAM need not move where the last rows come first (134 and 235 MB, H200)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Predicted time and what it is made of, in µs; `factor` multiplies the bound.

    dram_bytes, l2_bytes   that move there, re-reads and spills too
    shared_bytes           of a block
    steps                  vectors of a thread, along k of a product its tiles
    idle_lanes             of the last step, for each lane with a vector; of a product, results beyond the edges
    rounds                 tiles one after another through a slot of the fullest SM
    """

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
    dram_bytes: float
    l2_bytes: float
    shared_bytes: int
    steps: int
    idle_lanes: float
    blocks: int
    rounds: float

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
    steps = steps_per_lane(problem, s)
    vectors = where(s.hold == Hold.REGISTERS, steps, most(1, s.unroll))
    if some(s.hold == Hold.HYBRID):
        vectors = vectors + where(s.hold == Hold.HYBRID, register_steps(problem, s), 0)
    held = vectors * vector_registers(problem, s)
    params = where(s.params.in_registers, param_bytes_per_thread(problem, s) / 4, 0.0)
    # An array indexed by a loop that stays a loop lies in local memory.
    is_indexed = (s.hold != Hold.REGISTERS) & (s.unroll > 0) & (s.unroll < steps)
    rows = where(s.copy == Copy.DIRECT, s.stages, 1)  # others on their way wait in shared memory
    need = c.base_registers + c.held_registers * held * rows + c.param_registers * where(is_indexed, 0.0, params)
    need += c.sum_registers * sums_in_registers(problem, s) + c.vector_registers * s.vector
    values = held_bytes_per_thread(problem, s) / 4 * (4 / problem.dtype.bytes - 1)
    need += where(s.keep == Keep.VALUES, values, 0.0)
    limit = least(255, REGISTERS_PER_SM // (most(1, s.blocks_per_sm) * s.threads) // 8 * 8)
    return down(least(need, limit)), most(0, down(need - limit)) + down(where(is_indexed, params, 0.0))


def blocks_resident(s: Schedule, device: Device, registers: int, shared_bytes: int) -> int:
    """Blocks of this kernel that fit an SM at once."""
    by_threads = device.threads_per_sm // s.threads
    warp_registers = -(-registers * 32 // 256) * 256
    by_registers = device.registers_per_sm // (warp_registers * most(1, s.threads // 32))
    by_shared = where(shared_bytes > 0, device.shared_per_sm // (shared_bytes + 1024), device.blocks_per_sm)
    return most(1, least(least(by_threads, by_registers), least(by_shared, device.blocks_per_sm)))


def row_looks(s: Schedule, stages: int, writes: bool) -> int:
    """How often a row is walked: one look a stage of reductions, one to write."""
    one_stage = s.variance.looks_once | (s.softmax == SoftmaxMethod.ONLINE)
    return where(one_stage, min(stages, 1), stages) + (1 if writes else 0)


def _issue_us(problem: Problem, s: Schedule, device: Device, looks: int, blocks: int, c: Constants) -> float:
    """Warp instructions over the busy SMs' issue rate: some an element and look, reads and writes by vector."""
    per_element = 2.0 * looks + 3.0 + 2.0 * problem.column_outputs
    # Kept values spare a conversion and a difference each.
    per_element = per_element - where(s.keep == Keep.VALUES, 2.0 * (looks - 1), 0.0)
    per_element += by_value(s.variance, {VarianceMethod.WELFORD: 6.0, VarianceMethod.CORRECTED_TWO_PASS: 1.0})
    # A maximum of the vector first, then one more exponential a vector, which rescales the sum so far.
    per_element += where(s.softmax == SoftmaxMethod.ONLINE, 2.0 + 10.0 / s.vector, 0.0)
    per_element *= where(s.edges == Edges.EXACT, 1.0, 1.6)
    reads = where(s.hold == Hold.REGISTERS, 1, looks) * len(problem.elem_inputs) + 1
    elements = problem.rows * steps_per_lane(problem, s) * s.vector * s.threads_per_row * s.row_blocks
    instructions = elements * (per_element + 6.0 * reads / s.vector) / 32
    warps = most(1.0, s.threads_per_row / 32)
    steps = log2(most(2, least(32, s.threads_per_row))) * 2 * most(1, looks - 1)
    rows_in_warp = most(1, 32 // s.threads_per_row)
    instructions += problem.rows * s.row_blocks * warps / rows_in_warp * (steps * 2 + 40)
    busy = most(1, least(blocks, device.sm_count))
    return instructions / (busy * c.instructions_per_clock * device.sm_clock_ghz * 1e3)


def _reduce_us(s: Schedule, c: Constants) -> float:
    """One reduction over the threads of a row."""
    shuffles = log2(least(s.threads_per_row, 32))
    by_tree, warps = s.reduce_with == ReduceWith.SHARED_TREE, s.threads / 32
    # A read of all states and additions in pairs wait about as long as two shuffles.
    steps = where(s.reduce_with.is_short, 2, shuffles)
    tree = log2(s.threads_per_row) * c.barrier_us
    of_warps = where(by_tree, tree, (1 + warps / 8) * c.barrier_us + steps * c.shuffle_us)
    reduce = shuffles * c.shuffle_us
    reduce = reduce + where(s.threads_per_row > 32, of_warps, where(by_tree, reduce, 0.0))
    reduce = reduce + where(s.cluster > 1, c.cluster_barrier_us, 0.0)
    return reduce + where(s.meets_in_memory, c.grid_exchange_us, 0.0)


def _rereads_l2(problem: Problem, s: Schedule) -> bool:
    """Whether rows are read again past L1: they were not allowed to stay there, or not even a few blocks' rows fit."""
    row_bytes = problem.row_bytes // s.row_blocks
    leaves_l1 = (s.load != LoadHint.DEFAULT) | (row_bytes * s.rows_per_block > L1_BYTES // 4)
    return (s.hold == Hold.RELOAD) & leaves_l1


def _tile_us(problem: Problem, s: Schedule, looks: int, c: Constants, *, hot: bool) -> float:
    """One tile of rows from its first load to its last store, alone in its slot."""
    steps = steps_per_lane(problem, s)
    arithmetic = steps * s.vector * c.element_us * looks * where(s.variance == VarianceMethod.WELFORD, 3.0, 1.0)
    a_trip = most(1, where(s.unroll > 0, s.unroll, steps))
    trips = where(s.hold == Hold.REGISTERS, 1, up(steps / a_trip))
    again = by_value(s.hold, {Hold.SHARED: c.l1_latency_us, Hold.RELOAD: c.l1_latency_us})
    again = where(_rereads_l2(problem, s), c.l2_latency_us, again)
    first = (c.l2_latency_us if hot else c.dram_latency_us) * (1 + c.trip_share * (trips - 1))
    is_late = (s.params == Params.LATE) & (param_bytes_per_thread(problem, s) > 0) | bool(problem.rows_per_batch)
    params = where(is_late, c.l2_latency_us, 0.0)
    rest = most(0, looks - 1) * (_reduce_us(s, c) + again * trips) + arithmetic + params + c.store_us
    # Where the next row's loads travel meanwhile, the longer of the two, and a part of the other.
    meanwhile = most(first, rest) + c.prefetch_left * least(first, rest)
    fetches_ahead = (s.persistent > 0) & ((s.stages > 1) | (s.copy != Copy.DIRECT))
    return where(fetches_ahead, meanwhile, first + rest)


class _Moved(NamedTuple):
    """Bytes by DRAM, bytes by L2, and the µs that both take."""

    dram: float
    l2: float
    us: float


def _moved(
    problem: Problem, s: Schedule, device: Device, looks: int, spilled: float, blocks: int, c: Constants, *, hot: bool
) -> _Moved:
    """Bytes through DRAM or L2, of which a few blocks get no more than their SMs take in."""
    dram_rate = device.dram_gb_per_s * 1e3  # bytes per µs
    l2_rate = least(dram_rate * c.l2_over_dram, most(1, least(blocks, device.sm_count)) * c.sm_gb_per_s * 1e3)
    width = s.vector * problem.dtype.bytes
    narrow = 1 + c.narrow_penalty * log2(16 / least(16, width))
    again = problem.rows * problem.row_bytes * where(_rereads_l2(problem, s), most(0, looks - 1), 0)
    local = 8.0 * spilled * s.threads_per_row * s.row_blocks * problem.rows  # stored and loaded once a row
    is_found = s.row_order.descends & overflows_l2(problem.main_bytes, device)
    found = where(is_found, FOUND_IN_L2 * device.l2_bytes, 0.0)
    left = left_in_l2(problem, s, device, walkers=most(1, blocks // s.row_blocks)) if some(again > 0) else 1.0
    missed = again * (1 - left)
    dram, l2 = missed, again - missed + local
    if hot:
        l2 = l2 + problem.compulsory_bytes
    else:
        dram = dram + problem.compulsory_bytes - found
    return _Moved(dram, l2, (dram / least(dram_rate, l2_rate) + l2 / l2_rate) * narrow)


def _columns_us(problem: Problem, s: Schedule, device: Device, blocks: float, c: Constants) -> float:
    """What sums over rows add beside the row loop: atomics, partial rows, the finish."""
    sums = problem.column_outputs * problem.cols + problem.totals
    if not sums:
        return 0.0
    by_rows = where(s.columns == ColumnWay.ATOMIC, 1.0, 0.25) * problem.rows * sums / c.atomics_per_us + c.barrier_us
    groups = s.threads / most(32, s.threads_per_row)
    in_block = groups * -(-sums // s.threads) * c.l1_latency_us
    blocks = blocks / s.cluster  # the blocks of a cluster fill one partial row together
    by_blocks = blocks * sums / c.atomics_per_us + 2 * c.l2_latency_us
    tiles = max(1, last_tiles(problem))  # totals alone are one
    by_last = 2 * tiles * c.l2_latency_us + blocks * -(-sums // (4 * tiles * s.threads)) * c.last_tile_us
    by_kernel = 2 * blocks * sums * 4 / (c.l2_over_dram * device.dram_gb_per_s * 1e3) + c.second_kernel_us
    behind = where(s.columns == ColumnWay.PARTIALS_LAST_TILE, by_last, by_kernel)
    behind = in_block + where(s.columns == ColumnWay.REGISTER_ATOMIC, by_blocks, behind)
    return where(s.columns.in_registers, behind, by_rows)


def _factor(problem: Problem, s: Schedule, device: Device, c: Constants, *, hot: bool) -> float:
    """Hints, the place of parameters, the shape of a block: factors that were measured, not derived."""
    factor = 1.0
    if not hot:
        streams = len(problem.elem_inputs)
        # Rows that stay in L2 push parameters out, which late ones wait for.
        pays = (s.params != Params.LATE) | (not problem.parameter_bytes)
        stays = where(pays & (problem.compulsory_bytes > 2 * device.l2_bytes), c.load_evict_last, 1.0)
        past_l1 = c.load_past_l1 if streams == 1 else c.load_streams_past_l1
        hinted = where((s.load == LoadHint.DEFAULT) | (s.hold == Hold.RELOAD), 1.0, past_l1)
        factor = where(s.load == LoadHint.EVICT_LAST, stays, hinted)
        if not problem.column_outputs:
            factor = factor * where(s.store == StoreHint.STREAMING, c.store_streaming, 1.0)
        places = {Params.EARLY: c.params_early, Params.KEPT: c.params_kept, Params.PACKED: c.params_kept}
        factor = factor * by_value(s.params, places, 1.0)
    is_direct = s.copy == Copy.DIRECT
    shared_out: float = (1 + idle_lanes(problem.cols, s)) ** c.idle_exponent
    factor = factor * shared_out
    factor *= 1 + c.side_by_side * log2(s.rows_per_block) * (s.threads > 64)
    factor *= 1 + c.few_vectors * (steps_per_lane(problem, s) == 1)
    factor *= where((s.hold == Hold.SHARED) & is_direct, c.held_shared, 1.0)
    return factor * where((s.persistent > 0) & (s.stages == 1) & is_direct, c.persistent_penalty, 1.0)


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
    shared_bytes: int


def _grid(problem: Problem, s: Schedule, device: Device, registers: int, shared_bytes: int | None) -> _Grid:
    shared = dynamic_shared_bytes(problem, s) if shared_bytes is None else shared_bytes
    resident = blocks_resident(s, device, registers, shared)
    tiles = -(-problem.rows // s.rows_per_block)
    blocks = tiles * s.row_blocks
    blocks = where(s.persistent > 0, least(blocks, s.persistent * device.sm_count), blocks)
    if problem.deterministic:  # one walker adds its rows one after another
        blocks = where(s.columns == ColumnWay.ATOMIC, s.row_blocks, blocks)
    running = least(resident, most(1, -(-blocks // device.sm_count)))
    return _Grid(
        blocks=blocks,
        running=running,
        waves=blocks / (device.sm_count * resident),
        rounds=most(1.0, tiles * s.row_blocks / most(1, least(blocks, device.sm_count * running))),
        shared_bytes=shared,
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
    moved = _moved(problem, s, device, looks, spilled, grid.blocks, c, hot=hot)
    memory = moved.us
    issue = _issue_us(problem, s, device, looks, grid.blocks, c)
    starts = where(s.chained, grid.blocks / device.sm_count * c.chained_block_us, 0.0)
    bound = most(starts, (memory**c.blend + latency**c.blend + issue**c.blend) ** (1 / c.blend))
    factor = _factor(problem, s, device, c, hot=hot)
    columns = _columns_us(problem, s, device, grid.blocks, c)
    # While the first tiles load and the last ones end, memory is not busy.
    tail = c.tail_share * tile_us * memory / bound
    launch = c.launch_us * where(s.chained, c.chained, 1.0)
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
        dram_bytes=moved.dram,
        l2_bytes=moved.l2,
        shared_bytes=grid.shared_bytes,
        registers=registers,
        spilled=down(spilled),
        steps=steps_per_lane(problem, s),
        idle_lanes=idle_lanes(problem.cols, s),
        blocks=grid.blocks,
        blocks_per_sm=grid.running,
        occupancy=grid.running * s.threads / device.threads_per_sm,
        waves=grid.waves,
        rounds=grid.rounds,
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
        dram_bytes=0 if hot else problem.compulsory_bytes,
        l2_bytes=asked_bytes(problem, s) * along(problem, plan.cut.k),
        shared_bytes=plan.shared_bytes,
        registers=registers,
        spilled=spill_bytes // 8,
        steps=-(-along(problem, plan.cut.k) // s.tile_k),
        idle_lanes=blocks * s.tile_m * s.tile_n / results_of(problem) - 1,
        blocks=blocks,
        rounds=blocks / (device.sm_count * running),
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
    spills = 8.0 * spilled * s.threads_per_row * s.rows_per_block / max(1, problem.row_bytes)
    found = found._replace(memory_us=found.memory_us * (1 + spills))
    return Cost(
        us=c.launch_us + found.us,
        memory_us=found.memory_us,
        latency_us=found.latency_us,
        issue_us=found.issue_us,
        starts_us=0.0,
        columns_us=found.columns_us,
        tail_us=0.0,
        factor=1.0,
        bytes=problem.compulsory_bytes,
        dram_bytes=found.bytes,
        l2_bytes=found.near_bytes,
        shared_bytes=expected_shared(problem, s),
        registers=found.registers,
        spilled=spilled,
        steps=steps_of_part(problem, s),
        idle_lanes=steps_of_part(problem, s) * s.threads_per_row / problem.cols - 1,
        blocks=found.blocks,
        rounds=found.rounds,
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


def _at_once(told: Callable[[Schedule], Cost], schedules: Schedules) -> Cost:
    """A cost of columns."""
    return told(schedules.columns)


def _each(told: Callable[[Schedule], Cost], schedules: Schedules) -> Cost:
    """The same of a few hundred schedules, of which each has a plan of its own."""
    costs = [told(s) for s in schedules]
    columns: dict[str, Any] = {f.name: np.array([getattr(cost, f.name) for cost in costs]) for f in fields(Cost)}
    return Cost(**columns)


MANY: dict[ProgramClass, Callable[[Callable[[Schedule], Cost], Schedules], Cost]] = {
    ProgramClass.ROWS: _at_once,
    ProgramClass.TILES: _each,
    ProgramClass.LANES: _at_once,
}


def terms(
    problem: Problem,
    schedules: Sequence[Schedule],
    device: Device,
    *,
    hot: bool = False,
    constants: Constants | None = None,
) -> dict[str, NDArray[Any]]:
    """What the model knows of each of the schedules, the fields of `Cost`: name -> [schedules]."""
    found = Schedules.of(schedules)
    if not len(found):
        return {f.name: np.empty(0) for f in fields(Cost)}
    told = partial(predict, problem, device=device, stages=stages_of(problem), hot=hot, constants=constants)
    cost = MANY[class_of(problem)](told, found)
    return {f.name: np.broadcast_to(getattr(cost, f.name), len(found)) for f in fields(Cost)}


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
