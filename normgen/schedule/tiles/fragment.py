"""How the threads of a block multiply a tile: what its slots hold, what of the result a lane owns, and what that takes.

simt   a thread multiplies factors of its own, which it reads as floats, a piece at a time
mma    the lanes of a warp multiply 16 x 16 by 16 x 8 factors of 16 bits in one instruction of the tensor cores, or half
       as deep ones of TF32: they read them of shared memory, or with hold = reload straight from memory; with
       hold = registers they make those of the left side of what they read straight from memory
wgmma  the lanes of four warps multiply 64 lines by up to 256 columns, which lie in shared memory (wgmma.py)

Either way the lanes of a warp are a rectangle, and a lane owns pieces of the result's lines, equally far apart along m
and along n: all that is behind the products knows no more of them.
"""

from __future__ import annotations

from normgen.device import Device
from normgen.dtypes import BF16, CASTS, F16, F32, TF32, DType
from normgen.errors import ProgramError
from normgen.knobs import ArithmeticMode, Copy, Fragment, Hold, SoftmaxMethod
from normgen.problem.problem import Problem
from normgen.program.ir import Load, value_alone
from normgen.schedule.plan import TICKET_BYTES
from normgen.schedule.schedule import Schedule
from normgen.schedule.tiles.cut import Contraction, Side, contraction
from normgen.spec.formula import Cast, Expression, Name

WARP = 32
PIECE = 4  # floats that a thread reads of shared memory at a time: 16 bytes
PAD = 4  # floats behind each line of a slot: those of one k lie in other banks than those of the next
TENSOR_TYPES = (F16, BF16)  # as they are stored; float32 is rounded to TF32
FMAS_PER_CLOCK = 128  # of an SM, in float32
VECTOR = 8  # elements of 16 bits that a lane reads of memory: 16 bytes
DEEP_BYTES = 32  # of k, what one instruction multiplies: two pieces
PIECE_BYTES = 16  # of a line of a slot, what changes places
K_LANES = 4  # lanes that share a line along k
TOGETHER = 8  # of a thread's columns, what it reads of the other side while it multiplies as many
# Issue slots of a thread for an element that it makes a factor of, for an exponential by either arithmetic, and for a
# product of matrices beside these; clocks that a warp waits alone, and for each of its slots. Fitted to 20 trials of
# softmax @ v of 131,072 rows of 1,024 on an H200.
ELEMENT, APPROXIMATE, EXACT, PRODUCT = 3.0, 17.0, 27.0, 8.0
ALONE, ALONE_SLOT = 900.0, 1.6
ACROSS = 64  # columns that the lanes of a warp read of a line across k
# Clocks of streamed products, fitted to 1,000 trials of decode shapes on an H200 (tests/data/decode.json.xz).
MEMORY_WAIT, VECTOR_WAIT, PRODUCT_WAIT, ELEMENT_WAIT = 1100.0, 9.1, 7.7, 5.35
MADE_REGISTERS = 24  # for a vector as floats, and for the factors that a lane makes of them
_ANY = Schedule(hold=Hold.SHARED, tile_m=16, tile_n=16, tile_k=32, thread_m=2, thread_n=4, fragment=Fragment.MMA)


class Simt:
    """Floats in slots whose lines are padded; lanes of a warp 4 x 8, or as many as the tile has."""

    scaled: DType | None = F32  # of what a slot holds, what a thread may multiply where it lies
    reads_ahead = False  # whether factors of a step are read while those of the step before are multiplied
    producers = 0  # threads of a block that own nothing of the result: they ask for tiles
    resident = 0  # blocks of an SM that go from tile to tile; 0: a block has one
    step_clocks = 150  # from one step to the next of a block, which other blocks on its SM fill
    group = 1  # tiles along m that follow each other, column by column: blocks that run together share both sides in L2
    moves = True  # whether threads bring tiles to shared memory
    exponential = 0.0  # instructions of a thread for one, beside what else an element takes
    unbound = 1.25  # what a compiler takes of registers that no bound on blocks forbids it
    busy_warps = 0  # of an SM, without which its units wait for their latency
    l2_bytes = 20.0  # from L2, of an SM while all ask, a clock

    def __init__(self, problem: Problem, schedule: Schedule, cut: Contraction) -> None:
        self.problem, self.schedule, self.cut = problem, schedule, cut

    def own(self, side: Side) -> int:
        """Elements of a side's axis that a thread owns."""
        return self.schedule.thread_m if side is self.cut.left else self.schedule.thread_n

    def lies_deep(self, side: Side) -> bool:
        """Whether a side's lines lie along k."""
        return side.along == self.cut.k

    def line_and_lines(self, side: Side) -> tuple[int, int]:
        """Elements of a line of a side's tile, as it lies in memory, and how many lines it has."""
        s = self.schedule
        flat = s.tile_m if side is self.cut.left else s.tile_n
        return (s.tile_k, flat) if self.lies_deep(side) else (flat, s.tile_k)

    def is_deep(self, side: Side) -> bool:
        """The same of what waits in shared memory."""
        return self.schedule.hold is Hold.SHARED and self.lies_deep(side)

    def refusal(self) -> str | None:
        """Why the schedule's tiles cannot be multiplied so."""
        return None

    @property
    def reads_pieces_of_k(self) -> bool:
        """Whether a thread reads pieces along k of a side in shared memory."""
        return any(map(self.is_deep, self.cut.sides))

    def piece(self, axis: str) -> int:
        """Elements of an axis that a thread owns side by side: what it reads, and stores, at a time."""
        deep = axis == self.cut.m and self.is_deep(self.cut.left)
        own = self.schedule.thread_m if axis == self.cut.m else self.schedule.thread_n
        return 1 if deep else min(PIECE, own)

    @property
    def lanes(self) -> tuple[int, int]:
        """The threads of a warp along m and along n."""
        s = self.schedule
        across = max(WARP // (s.tile_m // s.thread_m), min(8, s.tile_n // s.thread_n))
        return WARP // across, across

    @property
    def lanes_apart(self) -> int:
        """From a lane of a warp to the next one along n."""
        return 2 if self.lanes[0] > 1 else 1

    def slot_bytes(self, side: Side) -> int:
        """Of one tile of one factor: lines as in memory, and what lies behind each."""
        line, lines = self.line_and_lines(side)
        return lines * (line + PAD) * F32.bytes

    @property
    def exchanged_floats(self) -> int:
        """Of shared memory, through which warps that share k add up their sums."""
        return 0

    def registers(self, device: Device) -> int:
        """What a thread may have at most."""
        s = self.schedule
        return min(255, device.registers_per_sm // max(1, s.threads) // max(1, s.blocks_per_sm))

    @property
    def barrier_bytes(self) -> int:
        """Of shared memory, of what tells that tiles have come."""
        return 0

    @property
    def ticket_bytes(self) -> int:
        """Of the workspace, where whoever comes last combines reductions of the result."""
        return TICKET_BYTES

    @property
    def tile_clocks(self) -> float:
        """Of a tile beside its steps."""
        return 0.0

    @property
    def wait(self) -> float:
        """Clocks from asking L2 or memory for what a step needs until it has arrived."""
        return 800.0

    @property
    def behind(self) -> float:
        """Clocks of a block behind its steps."""
        return 0.0

    @property
    def factors(self) -> int:
        """Registers of a thread for factors on their way to the sums."""
        s, cut = self.schedule, self.cut
        deep = [*map(self.is_deep, cut.sides)]
        left = s.thread_m * (PIECE if deep[0] else 1)
        right = PIECE if all(deep) else s.thread_n * (PIECE if deep[1] else 1)
        return left * len(cut.left.slots) + right * len(cut.right.slots)

    # ---- factors that tensor cores multiply ----------------------------------------------------------------------

    @property
    def moved(self) -> tuple[DType, ...]:
        """What copies bring to a slot as it is stored."""
        return (F32,)

    def source(self, slot: Expression) -> str:
        """The load that a factor is a copy of, or nothing."""
        return value_alone(slot)

    def held_as(self, slot: Expression) -> DType | None:
        """The type that a factor is stored as, or cast to; None of what float32 alone holds."""
        loads: dict[str, Load] = {load.name: load for side in self.cut.sides for load in side.loads}
        maps = {step.name: step.expr for side in self.cut.sides for step in side.maps}
        while isinstance(slot, Name) and slot.name in maps:
            slot = maps[slot.name]
        if isinstance(slot, Cast):
            return CASTS[slot.to]
        return (
            self.problem.tensor(loads[slot.name].tensor).dtype
            if isinstance(slot, Name) and slot.name in loads
            else None
        )

    @property
    def dtype(self) -> DType:
        """That of all factors of a legal schedule."""
        found = self.held_as(self.cut.left.slots[0])
        assert found is not None, "legality asks"
        return found

    @property
    def untensored(self) -> str | None:
        """Why tensor cores do not multiply the factors."""
        types = {self.held_as(slot) for side in self.cut.sides for slot in side.slots}
        if types in ({F16}, {BF16}, {TF32}):
            return None
        rule = "tensor cores multiply factors that are stored or cast, all in f16 or all in bf16, or all cast to tf32"
        return f"{rule}; anything else is float32 arithmetic: fragment = simt"

    # ---- where lanes of the first warp find their data in a slot ----------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Of an element in a slot."""
        return F32.bytes

    def cell(self, side: Side, line: int, place: int) -> int:
        """Where in a slot an element lies, in bytes."""
        return (line * (self.line_and_lines(side)[0] + PAD) + place) * F32.bytes

    def reads(self, side: Side) -> tuple[list[int], int]:
        """What each lane reads first, in bytes; and how many bytes."""
        down, across = self.lanes
        lanes = range(min(WARP, self.schedule.threads))
        along_m = [lane // (2 * across) * 2 + lane % 2 if down > 1 else 0 for lane in lanes]
        along_n = [lane // 2 % across if down > 1 else lane for lane in lanes]
        own = along_m if side is self.cut.left else along_n
        if self.lies_deep(side):
            return [self.cell(side, place, 0) for place in own], PIECE * F32.bytes
        piece = self.piece(side.axis)
        return [self.cell(side, 0, place * piece) for place in own], piece * F32.bytes

    def writes(self, side: Side) -> tuple[list[int], int]:
        """Where the first vector of each lane goes, in bytes; and bytes of a vector."""
        s, (line, lines) = self.schedule, self.line_and_lines(side)
        firsts = (lane * s.vector for lane in range(min(WARP, s.threads, line * lines // s.vector)))
        return [self.cell(side, self.line_of(side, at // line), at % line) for at in firsts], s.vector * self.held_bytes

    def line_of(self, side: Side, line: int) -> int:
        """Where a line of memory lies: neighbouring ones of a piece lie apart."""
        piece, flat = self.piece(side.axis), self.line_and_lines(side)[1]
        return line % piece * (flat // piece) + line // piece if self.lies_deep(side) and piece > 1 else line

    # ---- clocks of a step of a block, a tile of k --------------------------------------------------------------

    @property
    def instructions(self) -> float:
        """Of a thread: products, and reads of what they are made of."""
        s = self.schedule
        products = s.thread_m * s.thread_n * len(self.cut.sums)
        return s.tile_k * (products + sum(map(self._reads, self.cut.sides)))

    @property
    def read_clocks(self) -> float:
        """Of shared memory: of 16 bytes a lane two, as lanes lie."""
        warps = -(-self.schedule.threads // WARP)
        passes = [2 if self.lies_deep(side) or self.own(side) >= PIECE else 1 for side in self.cut.sides]
        reads = map(self._reads, self.cut.sides)
        return warps * self.schedule.tile_k * sum(n * clocks for n, clocks in zip(reads, passes, strict=True))

    def fmas(self, _: Device) -> float:
        """Products that an SM adds up in a clock at most."""
        return FMAS_PER_CLOCK

    @property
    def depth(self) -> int:
        """Of k, what a block takes in a step."""
        return self.schedule.tile_k

    @property
    def products(self) -> int:
        """Of a step."""
        return self.schedule.tile_m * self.schedule.tile_n * self.depth * len(self.cut.sums)

    def _reads(self, side: Side) -> float:
        """Reads of shared memory by a thread for one k."""
        own = self.own(side)
        return len(side.slots) * (own / PIECE if self.lies_deep(side) else -(-own // PIECE))


class TensorCores(Simt):
    """What fragments of tensor cores share."""

    scaled = None
    l2_bytes = 36.0

    @property
    def busy_warps(self) -> int:  # type: ignore[override]
        """More where threads make exponentials before any multiplies, and most where a maximum moves meanwhile."""
        if not any(side.exponentials for side in self.cut.sides):
            return 6
        return 40 if self.schedule.softmax is SoftmaxMethod.ONLINE else 20

    @property
    def exponential(self) -> float:  # type: ignore[override]
        return APPROXIMATE if self.schedule.arithmetic is ArithmeticMode.APPROXIMATE else EXACT

    @property
    def wait(self) -> float:
        return 1400.0

    @property
    def held_bytes(self) -> int:
        return self.dtype.bytes

    @property
    def moved(self) -> tuple[DType, ...]:
        return TENSOR_TYPES

    @property
    def deep(self) -> int:
        """Of k, what one instruction multiplies."""
        return DEEP_BYTES // self.held_bytes

    @property
    def whole(self) -> int:
        """Elements of a piece of 16 bytes."""
        return PIECE_BYTES // self.held_bytes

    def fmas(self, device: Device) -> float:
        return device.mma_fmas * 2 / self.held_bytes


class Mma(TensorCores):
    """Slots whose lines change the places of their 16-byte pieces; lanes 8 x 4, as the instruction has them.

    A lane owns two elements side by side of every eighth line and column of what a warp owns.
    """

    reads_ahead = True
    group = 8
    reads_pieces_of_k = False
    lanes = (8, 4)
    lanes_apart = 1

    def refusal(self) -> str | None:
        s = self.schedule
        if self.untensored:
            return self.untensored
        if s.copy is Copy.CP_ASYNC and s.vector < 2:
            return "cp.async moves 4 bytes at least: vector = 2 or more, or copy = direct"
        down, across = self.lanes
        if s.thread_m % 2 or s.thread_n % 4:
            return f"a lane has 2 x 4 of a matrix: thread_m = {s.thread_m} is odd, or thread_n no multiple of 4"
        if s.tile_m % (down * max(1, s.thread_m)) or s.tile_n % (across * max(1, s.thread_n)):
            return f"a warp owns {down} x thread_m lines and {across} x thread_n columns, and a tile whole warps"
        if s.tile_k % (2 * self.deep):
            step = f"while factors of one step of {self.deep} along k are multiplied"
            return f"{step}, those of the next are read: two a tile"
        if self.dtype is TF32 and not all(map(self.lies_deep, self.cut.sides)):
            return f"lanes read lines along {self.cut.k} of what is no 16 bits: another layout, or fragment = simt"
        return None

    def piece(self, axis: str) -> int:
        return 1 if axis == self.cut.m else 2

    def slot_bytes(self, side: Side) -> int:
        line, lines = self.line_and_lines(side)
        return lines * line * self.held_bytes

    def cell(self, side: Side, line: int, place: int) -> int:
        length = self.line_and_lines(side)[0]
        kinds, whole = min(length // self.whole, 8), self.whole
        piece = place // whole ^ line // (8 // kinds) % kinds
        return (line * length + piece * whole + place % whole) * self.held_bytes

    def reads(self, side: Side) -> tuple[list[int], int]:
        """A line of 8 elements a lane."""
        apart = self.piece(side.axis) * (self.line_and_lines(side)[1 if self.lies_deep(side) else 0] // self.own(side))
        found = []
        for lane in range(WARP):
            half, k = (lane // 8 % 2, lane // 16) if side is self.cut.left else (lane // 16, lane // 8 % 2)
            deep = self.lies_deep(side)
            line, place = (half * apart + lane % 8, k * self.whole) if deep else (k * 8 + lane % 8, half * apart)
            found.append(self.cell(side, line, place))
        return found, 16

    def line_of(self, _: Side, line: int) -> int:
        return line

    @property
    def factors(self) -> int:
        """Of the step that is multiplied and of the next one."""
        s, cut = self.schedule, self.cut
        return 2 * (2 * s.thread_m * len(cut.left.slots) + s.thread_n * len(cut.right.slots))

    @property
    def instructions(self) -> float:
        s = self.schedule
        products = s.thread_m * s.thread_n // 4 * len(self.cut.sums)
        return s.tile_k / self.deep * (products + sum(map(self._reads, self.cut.sides)))

    @property
    def read_clocks(self) -> float:
        """Four matrices of 128 bytes a read."""
        warps = -(-self.schedule.threads // WARP)
        return warps * self.schedule.tile_k / self.deep * 4 * sum(map(self._reads, self.cut.sides))

    def _reads(self, side: Side) -> float:
        """Reads of four matrices by a warp for a step along k."""
        return len(side.slots) * self.own(side) / (2 if side is self.cut.left else 4)


class Made(Mma):
    """Lanes make the left side's factors, in registers, of lines that they read once; the other side is as in `Mma`.

    A lane reads 16 bytes of a line along k, which are its elements of two steps of the instruction: which k a lane has
    is free, as long as the lines across k of the other side come in the same order.
    """

    busy_warps = 6
    unbound = 1.15

    def registers(self, device: Device) -> int:
        return int(super().registers(device) / self.unbound)

    def refusal(self) -> str | None:
        s, cut = self.schedule, self.cut
        if why := super().refusal():
            return why
        if s.copy is not Copy.CP_ASYNC or s.stages < 2:
            return "beside factors in registers the other side's tiles come by cp.async: copy = cp_async, stages = 2"
        loads = [load for load in cut.left.loads if load.kind.axes]
        stored = {self.problem.tensor(load.tensor).dtype.bytes for load in loads}
        if self.held_bytes != 2 or stored != {2} or not all(load.kind.is_matrix for load in loads):
            return "a lane makes factors of 16 bytes of a line, of tensors of 16 bits that lie along it: hold = shared"
        if not self.lies_deep(cut.left) or self.lies_deep(cut.right):
            return f"lanes read lines along {cut.k} of the side of {cut.m}, and across it of the other: hold = shared"
        if s.vector != VECTOR:
            return f"a lane reads 16 bytes of a line: vector = {VECTOR}, or hold = shared"
        return None

    @property
    def factors(self) -> int:
        """Of a tile those that a lane has made, and what it reads for the next one; of the other side those of a part
        of a step and of the next part; of each line its maximum, by what that moved, and what rides along.
        """
        s, cut = self.schedule, self.cut
        loads = sum(bool(load.kind.axes) for load in cut.left.loads)
        line = s.tile_k // 8 * (len(cut.left.slots) + loads) + len(cut.left.riding) + 2 * len(cut.ahead)
        return s.thread_m * line + 2 * TOGETHER * len(cut.right.slots)

    @property
    def read_clocks(self) -> float:
        warps = -(-self.schedule.threads // WARP)
        return warps * self.schedule.tile_k / self.deep * 4 * self._reads(self.cut.right)

    @property
    def instructions(self) -> float:
        """Products, reads of the other side, and of each element what makes a factor of it."""
        s, cut = self.schedule, self.cut
        products = PRODUCT * s.thread_m * s.thread_n / 4 * len(cut.sums)
        element = ELEMENT * len(cut.left.loads) + self.exponential * cut.left.exponentials
        return s.tile_k / self.deep * (products + self._reads(cut.right)) + s.tile_k / 4 * s.thread_m * element

    @property
    def wait(self) -> float:
        """Of a warp alone."""
        return ALONE + ALONE_SLOT * self.instructions


class Streamed(TensorCores):
    """16 bits straight from memory to registers, for few lines along m, which lie along k.

    A lane reads 16 bytes of a line, two steps of the instruction; of a side that lies across k it reads 8 columns of
    each of as many lines. Of the lines along m it makes factors, where a formula says how, before it multiplies them.
    The instruction's left matrix is of the side along n, 16 lines, its right one of the side along m, 8 lines. Warps
    take tile_k of k by turns, and add up their sums through shared memory in the order of their numbers: a result
    depends on no other line.
    """

    moves = False
    busy_warps = 0
    l2_bytes = 56.6

    @property
    def moved(self) -> tuple[DType, ...]:
        return ()

    def refusal(self) -> str | None:
        s, cut = self.schedule, self.cut
        if self.untensored:
            return self.untensored
        is_bare = all(isinstance(slot, Name) for slot in cut.right.slots) and not cut.right.maps
        if not is_bare or any(not load.kind.is_matrix for load in cut.right.loads) or cut.right.riding:
            return f"factors of {cut.n} that come straight from memory are as they are stored: hold = shared for others"
        if cut.ahead or any(load.kind.axes and cut.k not in load.kind.axes for load in cut.left.loads):
            return f"of each row lanes know what they read along {cut.k}: hold = shared for factors of more"
        if not self.lies_deep(cut.left):
            return f"lanes read lines along {cut.k} of the side of {cut.m}: hold = shared, or another layout"
        if not self.lies_deep(cut.right) and s.tile_n % ACROSS:
            return f"lanes read {ACROSS} columns of a line across {cut.k}: tile_n, or hold = shared"
        if s.vector != VECTOR:
            return f"a lane reads 16 bytes of a line: vector = {VECTOR}, or hold = shared"
        if s.tile_k % (WARP // 8 * VECTOR):
            return f"the lanes of a warp read {WARP // 8 * VECTOR} of a line: tile_k, or hold = shared"
        return None

    @property
    def warps(self) -> int:
        return max(1, self.schedule.threads // WARP)

    @property
    def matrices(self) -> tuple[int, int]:
        """Of 8 lines along m, and of 16 along n."""
        return self.schedule.tile_m // 8, self.schedule.tile_n // 16

    @property
    def depth(self) -> int:
        return self.warps * self.schedule.tile_k

    @property
    def exchanged_floats(self) -> int:
        """Of each warp its sums, in padded lines, and its lanes' parts of what rides along."""
        s = self.schedule
        sums = s.tile_m * (s.tile_n + PAD) * len(self.cut.sums)
        return self.warps * (sums + 4 * s.tile_m * len(self.cut.left.riding))

    @property
    def makes(self) -> bool:
        """Whether lanes make factors of what they read of the lines along m."""
        return not {*self.cut.left.slots} <= {Name(load.name) for load in self.cut.left.loads}

    @property
    def vectors(self) -> int:
        """Of a lane, that it reads for the products of one: of lines along m, of these along k alone, and along n."""
        along_m, along_n = self.matrices
        loads = [load for load in self.cut.left.loads if load.kind.axes]
        left = sum(along_m if load.kind.is_matrix else 1 for load in loads)
        return left + 2 * along_n * len(self.cut.right.slots)

    @property
    def factors(self) -> int:
        """Sums of a warp, vectors on their way, and those that it has made of them."""
        along_m, along_n = self.matrices
        made = MADE_REGISTERS * len(self.cut.left.slots) if self.makes else 0
        return 4 * (along_m * along_n * len(self.cut.sums) + self.schedule.tile_k // WARP * self.vectors) + made

    @property
    def instructions(self) -> float:
        """Loads with their addresses, what elements become, and two products of matrices for each pair of vectors."""
        along_m, along_n = self.matrices
        element = ELEMENT * len(self.cut.left.loads) + self.exponential * self.cut.left.exponentials
        made = VECTOR * along_m * element if self.makes else 0.0
        return self.schedule.tile_k / WARP * (4 * self.vectors + made + 2 * along_m * along_n * len(self.cut.sums))

    @property
    def wait(self) -> float:
        """Of memory while all SMs ask, and of a warp alone with its vectors: to ask for them, and to multiply them."""
        along_m, along_n = self.matrices
        products = 2 * along_m * along_n * len(self.cut.sums)
        return MEMORY_WAIT + self.schedule.tile_k / WARP * (VECTOR_WAIT * self.vectors + PRODUCT_WAIT * products)

    @property
    def behind(self) -> float:
        """The exchange of warps, the epilogue, and the next block's start."""
        s = self.schedule
        return ELEMENT_WAIT * s.tile_m * s.tile_n * len(self.cut.sums)

    @property
    def read_clocks(self) -> float:
        return 0.0

    def slot_bytes(self, _: Side) -> int:
        return 0


def added_at_once(problem: Problem) -> int:
    """Products that tensor cores take at a step at least, as those of sm_80: half of an instruction's; 0: take none."""
    try:
        found = Mma(problem, _ANY, contraction(problem))
        return found.deep // 2 if found.refusal() is None else 0
    except ProgramError:  # of no product, or of one that no kernel computes
        return 0


def has_tensor_cores(problem: Problem, device: Device) -> bool:
    """Whether the device has tensor cores that multiply the factors of the problem's products."""
    return tensor_fmas(problem, device) > 0


def tensor_fmas(problem: Problem, device: Device) -> float:
    """Products that an SM's tensor cores have in a clock: of TF32 half as many as of 16 bits; 0: none."""
    return device.tensor_fmas * added_at_once(problem) / (DEEP_BYTES // F16.bytes // 2)
