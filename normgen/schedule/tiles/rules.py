"""Which schedules a contraction allows on a device, and the sentence that refuses each of the others."""

from __future__ import annotations

from normgen.device import MOST_BLOCKS, Device
from normgen.errors import ProgramError
from normgen.knobs import KNOBS, Copy, DependentLaunch, Fragment, Group, Hold, SoftmaxMethod
from normgen.knobs import names_of as knobs_of
from normgen.problem.problem import Problem
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.cut import contraction
from normgen.schedule.tiles.fragment import WARP
from normgen.schedule.tiles.online import moving_maximum
from normgen.schedule.tiles.plan import OTHER_REGISTERS, tile_problem_plan

# The knobs that tiles have; all others are plain.
OWN = {*knobs_of(Group.TILE), "vector", "hold", "copy", "stages", "load", "store", "arithmetic", "dependent_launch"}
OWN |= {"blocks_per_sm", "softmax", "cluster"}
MOST_PARTS = 8  # of a tile: blocks of a cluster that every device of clusters can have
WIDEST = 16  # bytes of an access
MOST_ROWS_AHEAD = 4


def cut(_: Problem, s: Schedule, __: Device) -> str | None:
    missing = [name for name in knobs_of(Group.TILE) if not getattr(s, name)]
    if missing:
        return f"a contraction is cut into tiles: {', '.join(missing)} must not be 0"
    other = next((name for name in s.chosen if name not in OWN), "")
    if other:
        return f"{other} is a knob of kernels of rows: {other} = {KNOBS[other].plain}"
    if not 32 <= s.threads <= 1024:
        rule = "tile_m / thread_m x tile_n / thread_n is 32 to 1024 threads a block"
        return f"{rule}; here they are {s.threads}"
    odd = next((n for n in ("tile_n", "thread_n") if not is_power(s, n)), "")
    if odd and s.fragment is not Fragment.WGMMA:
        return f"lanes of a warp share powers of two: {odd} = {getattr(s, odd)} is of teams, fragment = wgmma"
    return None


def is_power(s: Schedule, name: str) -> bool:
    value: int = getattr(s, name)
    return value & (value - 1) == 0


def grid(problem: Problem, s: Schedule, _: Device) -> str | None:
    cut, sizes = contraction(problem), problem.sizes
    blocks = -(-sizes.along(cut.m) // s.tile_m) * -(-sizes.along(cut.n) // s.tile_n)
    if blocks > MOST_BLOCKS // s.cluster:
        return f"a launch has at most {MOST_BLOCKS} blocks, and {blocks} tiles have one each: larger tiles"
    return None


def place(_: Problem, s: Schedule, __: Device) -> str | None:
    if s.hold is Hold.REGISTERS and s.fragment is not Fragment.MMA:
        return "lanes make factors in registers, where tensor cores read them, with fragment = mma: hold = shared"
    if s.hold is Hold.HYBRID:
        return "tiles wait in shared memory, or each thread reads what it multiplies: hold = shared or reload"
    is_wide = s.vector > 1 and s.fragment is Fragment.SIMT
    if s.hold is Hold.RELOAD and (s.stages > 1 or s.copy is not Copy.DIRECT or is_wide):
        return (
            "a thread that reads what it multiplies reads it element by element: stages = 1, copy = direct, vector = 1"
        )
    if s.copy is Copy.BULK and s.fragment is not Fragment.WGMMA:
        return "bulk copies move rows to shared memory as they are: copy = direct or cp_async"
    if s.stages > 2 and s.copy is Copy.DIRECT:
        return "by way of registers one tile is on its way while another is multiplied: stages = 1 or 2"
    return None


def vector(problem: Problem, s: Schedule, _: Device) -> str | None:
    if min(s.vector, s.thread_n) % problem.packed:
        return f"a thread writes whole bytes of {problem.packed} elements: vector and thread_n are multiples of it"
    if s.vector == 1:
        return None
    if problem.any_cols:
        return "cols and inner are run-time values, and may be no whole vectors: vector = 1"
    if s.vector * problem.dtype.bytes > WIDEST:
        return f"one access moves at most {WIDEST} bytes"
    if s.tile_k % s.vector:
        return f"a tile of {s.tile_k} along k is whole vectors: a narrower vector, or a larger tile_k"
    plan = tile_problem_plan(problem, s)
    for side in plan.cut.sides:
        along = side.along
        if any(t.kind.is_matrix and t.axes[-1] != along for t in map(plan.tensor, side.loads)):
            return "the tensors of a side lie along different axes: vector = 1"
    result = {plan.cut.m, plan.cut.n}
    if any({*t.axes} - {"batches"} == result and t.axes[-1] != plan.cut.n for t in problem.tensors):
        return "the tensors of the result lie along different axes: vector = 1"
    for t in (t for t in problem.tensors if t.kind.is_matrix and not t.kind.is_groups):
        length = problem.sizes.along(t.axes[-1])
        if length % s.vector:
            return f"{t.axes[-1]} = {length} is no whole vectors of {s.vector}: use a narrower vector"
        if problem.row_alignment(t) < min(WIDEST, s.vector * t.dtype.bytes):
            return f"rows of '{t.name}' are not aligned to vectors of {s.vector} elements: use a narrower vector"
    if any(problem.align < min(WIDEST, s.vector * t.dtype.bytes) for t in problem.tensors if t.axes):
        return f"tensors are not aligned to vectors of {s.vector} elements: use a narrower vector"
    return None


def groups(problem: Problem, s: Schedule, _: Device) -> str | None:
    grouped = contraction(problem).grouped
    if grouped is None:
        return None
    if s.tile_n % grouped.size:
        return f"a tile has whole groups of {grouped.size} columns: tile_n = {s.tile_n} is no multiple"
    piece = tile_problem_plan(problem, s).piece("cols")
    if grouped.size < piece:
        return f"a thread has whole groups or parts of one: {piece} columns side by side are more than a group"
    return None


def fragment(problem: Problem, s: Schedule, device: Device) -> str | None:
    least = KNOBS["fragment"].least_arch.get(s.fragment, 0)
    if device.arch < least:
        return f"fragment = {s.fragment} needs sm_{least}"
    if s.fragment is Fragment.WGMMA and device.arch != least:
        return (
            f"fragment = wgmma is made of instructions that sm_{least} alone has; this is {device.sm}: fragment = mma"
        )
    return tile_problem_plan(problem, s).fragment.refusal()


def copy(problem: Problem, s: Schedule, device: Device) -> str | None:
    if s.copy is Copy.DIRECT:
        return None
    if device.arch < KNOBS["copy"].least_arch[s.copy]:
        return f"copy = {s.copy} needs sm_{KNOBS['copy'].least_arch[s.copy]}"
    plan = tile_problem_plan(problem, s)
    left, right = map(plan.way_through_registers, plan.cut.sides)
    if left and right:
        return left
    return None


def moving(problem: Problem, s: Schedule, _: Device) -> str | None:
    if s.softmax is not SoftmaxMethod.ONLINE:
        return None
    try:
        moving_maximum(contraction(problem))
    except ProgramError as error:
        return error.rule
    if s.hold is Hold.RELOAD:
        return "a maximum moves while tiles pass through registers: hold = shared, or registers"
    if s.hold is Hold.SHARED and s.tile_m * s.tile_k // s.vector % max(1, s.threads):
        return "each thread has as many vectors of the tile whose maximum moves: fewer threads, or a larger tile_k"
    if s.hold is Hold.SHARED and s.tile_k > WARP * s.vector:
        return f"the lanes of a warp share a row of the tile whose maximum moves: tile_k = {WARP * s.vector} or less"
    return None


def registers(problem: Problem, s: Schedule, device: Device) -> str | None:
    plan = tile_problem_plan(problem, s)
    limit = plan.fragment.registers(device) - OTHER_REGISTERS
    if plan.held_registers > limit:
        return f"a thread would hold {plan.held_registers} registers of data; {plan.threads} threads leave it {limit}"
    return None


def shared(problem: Problem, s: Schedule, device: Device) -> str | None:
    used, limit = tile_problem_plan(problem, s).shared_bytes, device.shared_per_block
    if used > limit:
        return f"the buffers of a block need {used} bytes of shared memory; {device.name} has {limit}"
    return None


def parts(problem: Problem, s: Schedule, device: Device) -> str | None:
    if s.cluster == 1:
        return None
    if not device.has_clusters:
        return "thread-block clusters need sm_90"
    if s.cluster > MOST_PARTS:
        return f"a tile has at most {MOST_PARTS} parts: a smaller cluster"
    plan = tile_problem_plan(problem, s)
    cut = plan.cut
    if not plan.is_fixed(cut.k):
        return f"parts of {cut.k} are cut when its length is known: cluster = 1"
    if cut.ahead or cut.reduced or cut.right.riding or s.softmax is SoftmaxMethod.ONLINE:
        return "blocks that share a tile know no statistics of its rows but sums beside the products: cluster = 1"
    if plan.part * (s.cluster - 1) >= problem.sizes.along(cut.k):
        return f"each block of a cluster has a part of {cut.k}, whole tiles of {s.tile_k}: a smaller cluster, or tile_k"
    if plan.hands_in_slots and plan.handed_floats > plan.slots_floats:
        handed = f"{4 * plan.handed_floats} bytes of other blocks' sums"
        return f"{handed} take the place of tiles: more stages, or cluster = 1"
    return None


def early(_: Problem, s: Schedule, device: Device) -> str | None:
    if s.dependent_launch is DependentLaunch.OFF:
        return None
    if device.arch < 90:
        return "programmatic dependent launch needs sm_90"
    return "there is no second kernel to start early" if s.dependent_launch is DependentLaunch.ON else None


def of_rows(_: Problem, s: Schedule, __: Device) -> str | None:
    """A kernel of rows has no tiles."""
    if s.tile_m or s.tile_n or s.tile_k or s.thread_m or s.thread_n:
        return "a row has no tiles: tile_m, tile_n, tile_k, thread_m and thread_n are 0"
    if s.stages > MOST_ROWS_AHEAD:
        return f"at most {MOST_ROWS_AHEAD} rows are in flight: stages = {MOST_ROWS_AHEAD} or less"
    if s.fragment is not Fragment.SIMT:
        return "a row has no products of matrices: fragment = simt"
    return None


RULES = (cut, grid, place, vector, fragment, groups, copy, moving, parts, registers, shared, early)
