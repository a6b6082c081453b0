"""The questions that tutorials tell one to ask of a kernel, answered from its schedule: `normgen explain`.

Coalescing and bank conflicts are counted on the addresses of one warp; registers and occupancy are the cost model's
estimates, which `normgen tune` replaces by the compiler's figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from normgen.cost.model import Cost
from normgen.cost.work import arithmetic_us, flops
from normgen.device import Device
from normgen.dtypes import F32
from normgen.knobs import ColumnWay, Edges, Hold, ReduceWith, VarianceMethod
from normgen.problem.problem import Problem
from normgen.program.ir import Load, Map, Reduce, used_names, value_kinds
from normgen.program.source import written_program
from normgen.schedule.plan import WARP, held_register_limit, steps_per_lane, vectors_per_row
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.plan import tile_problem_plan

SECTOR = 32  # bytes that memory moves at least
BANKS, WORD = 32, 4
WIDEST = 16  # bytes of one access, but for sm_100
LOW_OCCUPANCY = 0.25


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One question of the list, its answer, whether that is as it should be, and knobs to try where it is not."""

    question: str
    answer: str
    is_good: bool
    knobs: tuple[str, ...] = ()

    def line(self) -> str:
        """For people."""
        state = "ok" if self.is_good else "poor"
        hint = f" (knobs: {', '.join(self.knobs)})" if self.knobs and not self.is_good else ""
        return f"{state:<5} {self.question:<15} {self.answer}{hint}"


def checklist(problem: Problem, s: Schedule, device: Device, cost: Cost) -> tuple[Answer, ...]:
    """All answers, in the order of the tutorials."""
    if s.tile_m:
        return (
            _intensity(problem, s, device),
            _coalescing_of_tiles(problem, s),
            _banks_of_tiles(problem, s),
            _reuse(problem, s),
            _idle_products(problem, s),
            _registers(s, device, cost),
            _occupancy(s, device, cost),
            _width(problem, s, device),
            _fusion(problem),
        )
    return (
        _coalescing(problem, s),
        _banks(problem, s),
        _divergence(problem, s),
        _registers(s, device, cost),
        _occupancy(s, device, cost),
        _width(problem, s, device),
        _looks(problem, s, cost),
        _fusion(problem),
    )


def lane_addresses(s: Schedule, width: int, pitch: int) -> list[int]:
    """Where the lanes of the first warp read at once: `width` bytes each, rows `pitch` bytes apart."""
    lanes = [(thread // s.threads_per_row, thread % s.threads_per_row) for thread in range(min(WARP, s.threads))]
    return [row * pitch + lane * width for row, lane in lanes]


def sectors(addresses: Sequence[int], width: int) -> int:
    """Sectors of 32 bytes that an access of a warp touches: byte addresses of its lanes, `width` bytes each."""
    return len({(at + byte) // SECTOR for at in addresses for byte in range(0, width, min(width, SECTOR))})


def bank_ways(addresses: Sequence[int], width: int, *, is_atomic: bool = False) -> int:
    """How often the busiest bank is asked in one go; lanes that read one word share it, atomics on it queue."""
    at_once = max(1, WARP * WORD // max(width, WORD))  # wider accesses are served by halves and quarters of a warp
    worst = 1
    for first in range(0, len(addresses), at_once):
        words = [at // WORD + i for at in addresses[first : first + at_once] for i in range(max(1, width // WORD))]
        counted = words if is_atomic else sorted(set(words))
        worst = max(worst, *Counter(word % BANKS for word in counted).values())
    return worst


def _coalescing(problem: Problem, s: Schedule) -> Answer:
    width = s.vector * problem.dtype.bytes
    addresses = lane_addresses(s, width, problem.pitch * problem.dtype.bytes)
    touched, asked = sectors(addresses, width), len(addresses) * width
    share = min(1.0, asked / (touched * SECTOR))
    answer = f"a warp's load of {asked} bytes touches {touched} sectors of {SECTOR}: {share:.0%} of them is used"
    return Answer(question="coalescing", answer=answer, is_good=share > 0.9, knobs=("threads_per_row", "vector"))


def _coalescing_of_tiles(problem: Problem, s: Schedule) -> Answer:
    """Of the side whose loads use least of what they touch."""
    plan, found = tile_problem_plan(problem, s), []
    for side in plan.cut.sides:
        line = s.tile_k if side.along == plan.cut.k else plan.tile(side.axis)  # elements side by side
        for tensor in (plan.tensor(load) for load in side.loads if len(load.kind.axes) > 1):
            size, pitch = tensor.dtype.bytes, problem.pitch_of(tensor) * tensor.dtype.bytes
            firsts = [lane * s.vector for lane in range(min(WARP, s.threads))]
            addresses = [first // line * pitch + first % line * size for first in firsts]
            found.append(
                (len(addresses) * s.vector * size / (sectors(addresses, s.vector * size) * SECTOR), tensor.name)
            )
    share, name = min(found)
    answer = f"a warp's load of '{name}' uses {min(1.0, share):.0%} of the sectors of {SECTOR} bytes that it touches"
    return Answer(question="coalescing", answer=answer, is_good=share > 0.9, knobs=("tile_k", "vector"))


def _intensity(problem: Problem, s: Schedule, device: Device) -> Answer:
    """Operations for a byte through memory, and for one that a block takes from L2, beside what the device has."""
    plan = tile_problem_plan(problem, s)
    peak = flops(problem) / max(arithmetic_us(problem, device), 1e-9)  # a µs
    of_bytes = flops(problem) / max(1, problem.compulsory_bytes)
    loads = [(side, plan.tensor(ld)) for side in plan.cut.sides for ld in side.loads if len(ld.kind.axes) > 1]
    read = sum(plan.tile(side.axis) * tensor.dtype.bytes for side, tensor in loads)
    of_block = 2 * len(plan.cut.sums) * s.tile_m * s.tile_n / read
    even, even_l2 = peak / (device.dram_gb_per_s * 1e3), 2 * plan.fragment.fmas(device) / plan.fragment.l2_bytes
    bound = "products" if of_bytes >= even else "memory"
    answer = f"{of_bytes:.3g} operations for a byte of memory ({bound} bound: {even:.3g} are even), "
    answer += f"{of_block:.3g} for one from L2 ({even_l2:.3g})"
    good = of_block >= even_l2 or of_bytes < even
    return Answer(question="intensity", answer=answer, is_good=good, knobs=("tile_m", "tile_n"))


def _banks_of_tiles(problem: Problem, s: Schedule) -> Answer:
    plan = tile_problem_plan(problem, s)
    if not plan.in_shared:
        return Answer(question="bank conflicts", answer="none: no tile waits in shared memory", is_good=True)
    found = {
        f"{what} of the side along {side.axis}": bank_ways(*lanes(side))
        for side in plan.cut.sides
        for what, lanes in (("reads", plan.fragment.reads), ("writes", plan.fragment.writes))
    }
    worst = {what: ways for what, ways in found.items() if ways > 1}
    answer = ", ".join(f"{what} {ways}-way" for what, ways in worst.items()) or "reads and writes of both sides without"
    return Answer(question="bank conflicts", answer=answer, is_good=not worst, knobs=("vector", "tile_k", "thread_n"))


def _reuse(problem: Problem, s: Schedule) -> Answer:
    """How often a tile's elements are multiplied for a read of them: from memory, and from shared memory."""
    block, thread = (m * n / (m + n) for m, n in ((s.tile_m, s.tile_n), (s.thread_m, s.thread_n)))
    dots = len(tile_problem_plan(problem, s).cut.sums)
    answer = f"{dots * block:.0f} products for an element from L2, {dots * thread:.1f} for one from shared memory"
    good = thread >= 2 and block >= 16
    return Answer(question="reuse", answer=answer, is_good=good, knobs=("tile_m", "tile_n", "thread_m", "thread_n"))


def _idle_products(problem: Problem, s: Schedule) -> Answer:
    cut = tile_problem_plan(problem, s).cut
    whole = 1.0
    for axis, tile in ((cut.m, s.tile_m), (cut.n, s.tile_n), (cut.k, s.tile_k)):
        size = problem.sizes.along(axis)
        whole *= size / (-(-size // tile) * tile)
    answer = f"{1 - whole:.0%} of the products lie beyond the result's edges" if whole < 1 else "all tiles are whole"
    return Answer(question="edges", answer=answer, is_good=whole > 0.875, knobs=("tile_m", "tile_n", "tile_k"))


def _banks(problem: Problem, s: Schedule) -> Answer:
    width = s.vector * problem.dtype.bytes
    found: dict[str, int] = {}
    if s.hold.in_shared or s.copy.is_asynchronous:
        # Bulk copies lay a row behind the other; threads that copy for themselves lie side by side.
        steps = steps_per_lane(problem, s) if s.copy.is_by_rows else 1
        found["rows"] = bank_ways(lane_addresses(s, width, steps * s.threads_per_row * width), width)
    if s.reduce_with is ReduceWith.SHARED_TREE:
        found["the tree"] = 1  # neighbouring threads, neighbouring slots
    if problem.column_outputs and s.columns is ColumnWay.SHARED_ATOMIC:
        found["column sums"] = bank_ways(lane_addresses(s, s.vector * WORD, 0), WORD, is_atomic=True)
    if not found:
        what = "shared memory has a number a warp at most"
        return Answer(question="bank conflicts", answer=f"none: {what}", is_good=True)
    ways = ", ".join(f"{what} {n}-way" if n > 1 else f"{what} without" for what, n in found.items())
    return Answer(question="bank conflicts", answer=ways, is_good=max(found.values()) == 1, knobs=("vector", "columns"))


def _divergence(problem: Problem, s: Schedule) -> Answer:
    lanes = s.threads_per_row * s.row_blocks
    vectors, steps = vectors_per_row(problem, s), steps_per_lane(problem, s)
    idle = 1 - vectors / (lanes * steps) if steps else 0.0
    said = [f"{idle:.0%} of the lanes idle in a row's last step" if idle else "all lanes own as many vectors"]
    if s.edges is not Edges.EXACT:
        said.append(f"edges={s.edges}: a branch at the ends of a row")
    if s.variance is VarianceMethod.GUARDED:
        said.append("a second pass over rows that cancel: rows of a warp go together")
    good = idle < 0.125 and s.edges is Edges.EXACT
    return Answer(question="divergence", answer="; ".join(said), is_good=good, knobs=("threads_per_row", "vector"))


def _registers(s: Schedule, device: Device, cost: Cost) -> Answer:
    spilled = f", {cost.spilled} spilled to local memory" if cost.spilled else ", none spilled"
    room = held_register_limit(s, device)
    answer = f"about {cost.registers} a thread{spilled}; a block of {s.threads} leaves room for {room} of data"
    knobs = ("thread_m", "thread_n") if s.tile_m else ("threads_per_row", "hold", "params", "blocks_per_sm")
    return Answer(question="registers", answer=answer, is_good=not cost.spilled, knobs=knobs)


def _occupancy(s: Schedule, device: Device, cost: Cost) -> Answer:
    threads = cost.blocks_per_sm * s.threads
    answer = f"{cost.occupancy:.0%}: {threads} of {device.threads_per_sm} threads an SM, {cost.waves:.2f} waves"
    knobs = ("tile_m", "tile_n", "stages") if s.tile_m else ("threads_per_row", "rows_per_block", "persistent")
    return Answer(question="occupancy", answer=answer, is_good=cost.occupancy >= LOW_OCCUPANCY, knobs=knobs)


def _width(problem: Problem, s: Schedule, device: Device) -> Answer:
    width = s.vector * problem.dtype.bytes
    rows = min((problem.row_alignment(t) for t in problem.matrices), default=problem.align)
    possible = max(w for w in (1, 2, 4, 8, WIDEST) if w <= rows)
    answer = f"{width} bytes an access; aligned rows allow {possible}"
    if s.edges is Edges.PEEL:
        answer += ", and edges=peel 16 inside a row"
    least = min(possible, 8)
    knobs = ("vector",) if rows >= WIDEST else ("vector", "edges")
    return Answer(question="vector width", answer=f"{answer} on sm_{device.arch}", is_good=width >= least, knobs=knobs)


def _looks(problem: Problem, s: Schedule, cost: Cost) -> Answer:
    where = {
        Hold.REGISTERS: "from memory once, then from registers",
        Hold.SHARED: "from memory once, then from shared memory",
        Hold.HYBRID: "from memory once, then from registers and shared memory",
        Hold.RELOAD: "from memory each time, L1 and L2 in between",
    }[s.hold]
    answer = f"{cost.looks} over a row: {where}"
    short = problem.row_bytes <= 64 << 10
    good = cost.looks == 1 or not s.hold.reads_again or not short
    return Answer(question="passes", answer=answer, is_good=good, knobs=("hold", "variance", "softmax"))


def _fusion(problem: Problem) -> Answer:
    apart = unfused_bytes(problem)
    times = apart / max(1, problem.compulsory_bytes)
    answer = (
        f"one pass moves {problem.compulsory_bytes:,} bytes; an operation a kernel would move {times:.1f} x as many"
    )
    return Answer(question="fusion", answer=answer, is_good=True)


def unfused_bytes(problem: Problem) -> int:
    """Bytes through memory where each statement of the program is a kernel of its own, with float32 in between."""
    program = written_program(problem)
    kinds = value_kinds(program)
    stored = {t.name: t.dtype for t in problem.tensors}
    groups = {ld.name: ld.group or 1 for ld in program.loads}

    def size(name: str) -> int:
        kind = kinds.get(name)
        if kind is None:
            return 0
        count = (problem.rows if kind.by_row else 1) * (problem.cols if kind.by_col else 1)
        count *= problem.inner if kind.by_inner else 1
        return stored.get(name, F32).bytes_of(count // groups.get(name, 1))

    moved = 0
    for statement in program.statements:
        if isinstance(statement, Map | Reduce):
            written = statement.names if isinstance(statement, Reduce) else (statement.name,)
            moved += sum(map(size, used_names(statement))) + sum(map(size, written))
    loads = {statement.name for statement in program.statements if isinstance(statement, Load)}
    return max(moved, sum(map(size, loads)), problem.compulsory_bytes)
