"""The schedule of a problem that nobody tuned, and of a header's general kernel: rules, each with what was measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from normgen.device import Device
from normgen.errors import NothingValidError
from normgen.knobs import (
    ArithmeticMode,
    ColumnWay,
    Copy,
    Division,
    Edges,
    Hold,
    Keep,
    ReduceWith,
    RowOrder,
    SoftmaxMethod,
    VarianceMethod,
)
from normgen.problem.problem import Problem
from normgen.program.classes import ProgramClass, class_of
from normgen.program.rewrites.reductions import applicable
from normgen.program.source import written_program
from normgen.schedule.cutting import PLAIN
from normgen.schedule.lanes.space import default_of_lanes, fallbacks_of_lanes
from normgen.schedule.legality import (
    finds_pairs,
    has_means,
    has_quotients,
    has_softmax,
    has_variance,
    in_place,
    refusal,
    without_remainders,
)
from normgen.schedule.plan import WARP
from normgen.schedule.policy import LEAST_DIVIDED, are_few, leave_room, look_once, shows_in_float32, wants_last_first
from normgen.schedule.schedule import Schedule
from normgen.schedule.space import is_approximate
from normgen.schedule.tiles.default import default_of_tiles, fallbacks_of_tiles
from normgen.schedule.ways import ways


def default_schedule(problem: Problem, device: Device) -> Schedule:
    """A legal schedule that is good without any measurement: what the tuner has to beat.

    Raises NothingValidError if no schedule is legal, which would be a hole in the space.
    """
    return DEFAULTS[class_of(problem)](problem, device)


def _default_of_rows(problem: Problem, device: Device) -> Schedule:
    """Rows wait in registers, in as few blocks as hold them, else in shared memory, else they are read again; one block
    owns several short rows. Many long rows go to shared memory first: see `ways`.
    """
    arithmetic = ArithmeticMode.APPROXIMATE if is_approximate(problem) else ArithmeticMode.EXACT
    # One look and one exchange less pay from 16 KiB on: 1 % at 8192x4096 bf16, where two looks win, 4 to 14 % above.
    long = problem.row_bytes >= 16384
    known = applicable(written_program(problem))
    online = [SoftmaxMethod.ONLINE] if long and has_softmax(problem) else []
    few = are_few(problem, device) and not problem.any_cols
    looks_once = [VarianceMethod.GUARDED] if look_once(problem, device) else []
    looks_twice = [v for v in (VarianceMethod.TWO_PASS, VarianceMethod.CORRECTED_TWO_PASS) if v in known["variance"]]
    last_first = [RowOrder.DESCENDING] if wants_last_first(problem, device) else []
    softmaxes, orders = [*online, SoftmaxMethod.TWO_PASS], [*last_first, RowOrder.ASCENDING]
    reasons: list[str] = []
    for cut in ways(problem, device):
        is_short = (few and _chains_pay(problem, cut)) or finds_pairs(problem, cut)
        trees = (ReduceWith.SHORT_CHAINS,) if is_short else ()
        division = _division(problem, cut, device)
        variances = [*looks_once, *looks_twice] if cut.variance is PLAIN.variance else [cut.variance]
        for tree, variance, softmax, order in itertools.product(
            (*trees, cut.reduce_with), variances, softmaxes, orders
        ):
            if variance is VarianceMethod.GUARDED and cut.keep is Keep.VALUES:
                continue  # what such a thread keeps is what two passes share
            found = cut.varied(reduce_with=tree, variance=variance, softmax=softmax, row_order=order)
            found = found.varied(arithmetic=arithmetic, division=division)
            reason = shows_in_float32(problem, found) or refusal(problem, found, device)
            if reason is None:
                return found
            reasons.append(reason)
    taken = in_place(problem, PLAIN, device)  # of every cut, and not the first one's reason
    hint = f"{taken}: leave in_place out" if taken else next(iter(reasons), None)
    raise NothingValidError("no schedule is legal for this problem", received=str(problem), hint=hint)


def _division(problem: Problem, cut: Schedule, device: Device) -> Division:
    """Without the division's branch where rows are peeled, whose loads it keeps in their places: 2 to 5 % at 2730,
    3333 and 5726 cols of bf16; 1023 and aligned rows are level. And of few rows with scales: 3 to 6 % of their prices.
    Of rows that leave SMs room 2 to 17 % (rmsnorm 526x10560, 300x5120, layernorm 400x6144), but for those with scales,
    where it costs up to 21 % (rmsnorm_to_fp8_token 436x1792). Of rows with a variance and a scale 1 to 5 % of the
    chains (layernorm to int8 4096x4096, 4096x768), of many short rows with scales up to 6 % (H100:
    add_rmsnorm_to_fp8_token 2687x128 0.94 of the chain, rmsnorm_to_fp8 552x907 and add_rmsnorm_to_fp8_group 2820x896
    0.98, 1271x256 0.99, 10390x128 level), and where groups are compared in pairs (quantize_to_fp8_group 9000x2048
    0.99). Clusters that copy the next row meanwhile were timed with it alone.
    """
    if without_remainders(problem):
        return Division.IEEE
    pays = cut.peels and problem.cols >= LEAST_DIVIDED and has_means(problem)
    pays = pays or (cut.cluster == 8 and cut.copy is Copy.CP_ASYNC and has_means(problem))
    is_roomy = device.sm_count <= problem.rows and leave_room(problem, device) and cut.hold is Hold.REGISTERS
    is_roomy = is_roomy and problem.cols >= LEAST_DIVIDED and not (problem.sums_rows or problem.any_cols)
    pays = pays or (is_roomy and has_means(problem) and not has_quotients(problem))
    is_short = problem.row_bytes < 4096 and not (problem.any_cols or has_softmax(problem))
    are_many_short = is_short and not leave_room(problem, device)
    pays = pays or (has_quotients(problem) and (are_few(problem, device) or has_variance(problem) or are_many_short))
    pays = pays or finds_pairs(problem, cut)
    return Division.REMAINDER if pays else Division.IEEE


def _chains_pay(problem: Problem, cut: Schedule) -> bool:
    """Whether few rows gain by short chains: where threads wait for each other more than once, or for their group, 1 to
    5 % of the prices (layernorm, quantised norms, gates and groups, H200), and nothing of an rmsnorm's but by narrow or
    peeled accesses: there all of the winners have them (12x4409, 30x449, 2x1807, 54x1345 bf16).
    Not in clusters of larger blocks than of 128 threads, nor of 512 with a longer row's variance: the states of all
    warps take registers, and time (H100: add_rmsnorm_to_fp8_group 16x159744 1.16 x, cross_entropy_grad 100x24576
    1.56 x, softmax 36x30528 1.09 x, rmsnorm_to_fp8 13x169600 1.04 x, layernorm 4x65152 1.02 x, 52x11136 1.05 x).
    """
    is_narrow = cut.peels or cut.vector == 1
    twice = bool(problem.spec.group) or len(written_program(problem).row_reduces) > 1
    is_long = has_variance(problem) and problem.row_bytes > 16384
    most = 128 if cut.cluster > 1 else 256 if is_long else 1024
    return (twice or is_narrow) and cut.hold is Hold.REGISTERS and cut.threads_per_row <= most


def fallback_schedules(problem: Problem) -> tuple[Schedule, ...]:
    """The schedules of an exported header's general kernel: any cols and any row pitch; never tuned."""
    return FALLBACKS[class_of(problem)](problem)


def _fallbacks_of_rows(problem: Problem) -> tuple[Schedule, ...]:
    """A block owns a row and reads it once a look; formulas as written. The last one takes any alignment, element by
    element. The one before it, where there is one, reads vectors of 16 bytes with what is left at both ends, and asks
    that the rows of all tensors shift alike; both are one text. With groups of columns there is one, whose vectors let
    a warp own a group. Where sums of columns must be deterministic, one block
    walks all rows.
    """
    columns = ColumnWay.ATOMIC if problem.sums_rows else Schedule().columns
    single = Schedule(threads_per_row=256, vector=1, hold=Hold.RELOAD, columns=columns)
    if problem.spec.group:  # the lanes of one warp own a group
        return (single.varied(vector=max(problem.packed, problem.spec.group // WARP)),)
    sizes = {t.dtype.bytes for t in problem.elem_tensors}
    if len(sizes) > 1:
        return (single.varied(vector=problem.packed),)
    peeled = single.varied(edges=Edges.PEEL)
    return peeled.varied(vector=16 // sizes.pop()), peeled


DEFAULTS: dict[ProgramClass, Callable[[Problem, Device], Schedule]] = {
    ProgramClass.ROWS: _default_of_rows,
    ProgramClass.TILES: default_of_tiles,
    ProgramClass.LANES: default_of_lanes,
}
FALLBACKS: dict[ProgramClass, Callable[[Problem], tuple[Schedule, ...]]] = {
    ProgramClass.ROWS: _fallbacks_of_rows,
    ProgramClass.TILES: fallbacks_of_tiles,
    ProgramClass.LANES: fallbacks_of_lanes,
}
