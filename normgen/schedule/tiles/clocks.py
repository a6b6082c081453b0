"""The clocks that the busiest SM has for its tiles: waves of tiles, and of each step along k what issues and arrives.

A step of a block, a tile of k, takes the longest of three times, of which the first two are shared by the blocks that
an SM holds at once:

    issue    warp instructions over four schedulers: fmas, reads of their factors, the way of the next tile
    shared   128 bytes a clock: what lanes read together, and what is written
    arrival  the latency of memory over the tiles that are asked for ahead, or an SM's share of what L2 gives; of
             streamed products also what a warp alone takes to ask for its vectors and to multiply them

What memory gives all SMs is the same for all schedules of a problem, which reads each side's tensors once.
"""

from __future__ import annotations

from normgen.device import Device
from normgen.problem.problem import Problem
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.cut import Side, contraction
from normgen.schedule.tiles.plan import OTHER_REGISTERS, TilePlan, tile_problem_plan

WARP = 32
SCHEDULERS = 4  # of an SM: a warp instruction each a clock
SHARED_BYTES = 128  # of shared memory, a clock
STEP = 40  # instructions of a thread beside products and accesses, a step
MEETING = 900  # clocks until the first block of a cluster has what another one hands on
HANDED = 0.45  # ... and for each number
FILLED = 0.9  # of the SMs, what clusters of more than two fill: groups of SMs hold no whole number of them
A_VECTOR = 4  # instructions of a thread for a vector on its way to shared memory
UNBOUND = 1.25  # what a compiler takes of registers that no bound on blocks forbids it


def busy_clocks(problem: Problem, s: Schedule, device: Device, *, registers: int | None = None) -> float:
    """Clocks of the SM with the most tiles; `registers` of a thread, where the compiler has told them."""
    plan = tile_problem_plan(problem, s)
    steps = -(-plan.part // plan.fragment.depth)
    filled = device.sm_count if plan.parts <= 2 else int(FILLED * device.sm_count)
    held, busiest = resident(plan, device, registers), -(-tiles_of(problem, s) * plan.parts // filled)
    rounds, rest = divmod(busiest, held)
    last = _step(plan, rest, device) if rest else 0.0
    behind = plan.fragment.behind + MEETING * (plan.parts - 1) + HANDED * plan.handed_floats
    beside = busiest * (_looks(plan) + plan.fragment.tile_clocks) + (rounds + (rest > 0)) * behind
    return beside + rounds * steps * _step(plan, held, device) + steps * last


def tiles_of(problem: Problem, s: Schedule) -> int:
    """Tiles of the result, of all batches."""
    cut, batches = contraction(problem), problem.batches if problem.rows_per_batch else 1
    return batches * -(-along(problem, cut.m) // s.tile_m) * -(-along(problem, cut.n) // s.tile_n)


def results_of(problem: Problem) -> int:
    """Elements of the result, of all batches."""
    cut, batches = contraction(problem), problem.batches if problem.rows_per_batch else 1
    return batches * along(problem, cut.m) * along(problem, cut.n)


def asked_bytes(problem: Problem, s: Schedule) -> int:
    """What all blocks ask L2 for of both sides, for one k."""
    return tiles_of(problem, s) * _asked(tile_problem_plan(problem, s))


def _asked(plan: TilePlan) -> int:
    """By a block for one k: lines that are there."""
    lines = {side: min(plan.tile(side.axis), along(plan.problem, side.axis)) for side in plan.cut.sides}
    return sum(lines[side] * plan.tensor(ld).dtype.bytes for side in plan.cut.sides for ld in side.loads)


def along(problem: Problem, axis: str) -> int:
    """The length of an axis: of rows those of a batch, where each has tiles of its own."""
    return problem.rows_per_batch or problem.rows if axis == "rows" else problem.sizes.along(axis)


def _looks(plan: TilePlan) -> float:
    """Clocks of a block that looks at its rows ahead: what L2 gives an SM."""
    if plan.is_online:
        return 0.0
    loads = [ld for look in plan.cut.ahead for ld in look.loads]
    of_an_element = sum(plan.tensor(ld).dtype.bytes for ld in loads)
    return of_an_element * plan.schedule.tile_m * plan.size(plan.cut.k) / plan.fragment.l2_bytes


def expected_registers(plan: TilePlan) -> int:
    """Of a thread, before the compiler says."""
    s = plan.schedule
    need = plan.held_registers + OTHER_REGISTERS
    bound = min(255, 65536 // plan.threads // max(1, s.blocks_per_sm))
    return min(bound, need if s.blocks_per_sm or not plan.fragment.moves else int(need * UNBOUND))


def resident(plan: TilePlan, device: Device, registers: int | None = None) -> int:
    """Blocks that fit an SM at once."""
    s = plan.schedule
    a_warp = -(-(registers or expected_registers(plan)) * WARP // 256) * 256
    by_registers = device.registers_per_sm // (a_warp * -(-plan.threads // WARP))
    by_shared = device.shared_per_sm // (plan.shared_bytes + 1024)
    if plan.fragment.resident:
        return plan.fragment.resident
    return max(1, min(by_registers, by_shared, device.threads_per_sm // s.threads, device.blocks_per_sm))


def issued(plan: TilePlan) -> float:
    """Instructions of a thread in one step."""
    moved = sum(_moved(plan, side) for side in plan.cut.sides) if plan.fragment.moves else 0.0
    return plan.fragment.instructions + STEP + moved


def _step(plan: TilePlan, blocks: int, device: Device) -> float:
    """Clocks of a step of so many blocks side by side."""
    s, warps = plan.schedule, -(-plan.schedule.threads // WARP)
    issue = max(warps * issued(plan) / SCHEDULERS, plan.fragment.products / plan.fragment.fmas(device))
    passes = [(side, 3 if plan.scales(side) else 1) for side in plan.cut.sides]  # copied, read, and written again
    written = sum(plan.fragment.slot_bytes(side) * len(side.slots) * times for side, times in passes) / SHARED_BYTES
    ahead = s.stages - 1 if all(map(plan.copies, plan.cut.sides)) else 1
    few = max(1.0, plan.fragment.busy_warps / (warps * blocks))
    busy = few * blocks * max(issue, plan.fragment.read_clocks + written) + plan.fragment.step_clocks / blocks
    busy = max(busy, blocks * _asked(plan) * plan.fragment.depth / plan.fragment.l2_bytes)
    wait = plan.fragment.wait
    return max(busy, wait / ahead) if ahead else busy + wait / blocks


def _moved(plan: TilePlan, side: Side) -> float:
    """Instructions of a thread for its vectors of the next tile: their addresses, and what elements become of."""
    s = plan.schedule
    vectors = plan.tile(side.axis) * s.tile_k / (s.vector * s.threads)
    moved = plan.fragment.moved
    bare = all(map(plan.fragment.source, side.slots)) and all(plan.tensor(ld).dtype in moved for ld in side.loads)
    elements = 0.0 if bare else 2.0 * s.vector * max(1, len(side.loads) + len(side.maps))
    if plan.scales(side):
        return vectors * (2 * A_VECTOR + elements)
    return vectors * (A_VECTOR + elements) * len(side.loads)
