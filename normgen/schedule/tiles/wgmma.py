"""Tiles that four warps at a time multiply where they lie in shared memory, and that a thread of its own asks for."""

from __future__ import annotations

from functools import cached_property
from math import gcd

from normgen.device import Device
from normgen.dtypes import F32, TF32, DType
from normgen.knobs import Copy, Hold, LoadHint, SoftmaxMethod, StoreHint
from normgen.problem.tensors import TensorUse
from normgen.program.ir import Load, Store, value_alone
from normgen.schedule.tiles.cut import Side
from normgen.schedule.tiles.fragment import DEEP_BYTES, PIECE_BYTES, TENSOR_TYPES, VECTOR, WARP, TensorCores
from normgen.spec.formula import Cast, Expression

TEAM = 4 * WARP  # threads that share an instruction
LINES = 64  # along m, of one instruction
COLUMNS = range(64, 257, 32)  # along n: as many as let the tiles of a result come out even on the SMs
LINE_BYTES = 128  # of a slot's line, within which pieces of 16 change places
ALIGNMENT = 16  # bytes that divide the addresses and pitches of what is copied by boxes
PASSED_BYTES = 2  # of an element of what passes through stages behind the products
BARRIERS = 3  # of a stage: it is full, results lie there, it is free again
BESIDE = 3  # warps of a team beside the one whose first thread asks for tiles
TICKETS = 64  # for lines of tiles: more lines share these
# EFFICIENCY, SHARING, `l2_bytes` and `wait` are fitted to 64 and 256 rows on an H200 (tests/data/few_rows.json.xz).
EFFICIENCY = 0.8  # of the peak, that the card's power leaves: 4096^3 in bf16 takes 175 to 200 us on an H200
SHARING = 3500  # clocks of a cluster more than those of one that hands sums on behind its tiles
PAD_CLOCKS = 900  # of a tile that are no products: its first factors, and the wait for its last ones
# Of the result that an SM stores in a clock: on an H200 kernels of 128 x 256 tiles that store nothing take 7 % less at
# 2048^3 in bf16, and 4 % less at 4096^3.
STORED_BYTES = 24


class Wgmma(TensorCores):
    """Slots of 128-byte lines, which the copy engine swizzles; a team of four warps has 64 lines a time.

    Blocks stay, one on each SM, and go from tile to tile, or share one: a thread of its own asks for boxes of both
    sides as stages get free, while teams multiply, or work on what is behind the products. A lane owns two elements
    side by side of every eighth column, of lines 8 apart. What is as large as the result passes through stages, too:
    the thread that asks brings it while the last products are under way, teams put results in its place, and another
    thread has the copy engine store them.
    Float32 that a formula rounds to TF32 the copy engine rounds on its way, to nearest, ties to even.
    """

    producers = TEAM
    resident = 1
    left_registers = 24  # of a thread that asks for tiles
    most_registers = 240  # of one that multiplies: 2 x 128 of these and 128 of those are an SM's
    group = 16  # on an H200 at 4096^3 and more 1 to 2 % faster than 8
    moves = False
    reads_pieces_of_k = False
    lanes = (8, 4)
    lanes_apart = 1
    busy_warps = 1
    step_clocks = 0
    l2_bytes = 67.0

    def refusal(self) -> str | None:
        return self._of_program() or self._of_tiles()

    def _of_program(self) -> str | None:
        s, cut = self.schedule, self.cut
        if s.softmax is SoftmaxMethod.ONLINE:
            return "a factor that waits for a maximum which moves is rounded anew by each move: softmax = two_pass"
        if self.untensored:
            return self.untensored
        if any(not self.is_copied(slot, side) for side in cut.sides for slot in side.slots):
            return "the copy engine brings factors as they are stored: fragment = mma for what is cast or computed"
        if cut.ahead or cut.riding:
            return "blocks that go from tile to tile reduce nothing of their sides: fragment = mma"
        if any(t.kind.by_batch for t in self.problem.tensors):
            return "a box of the copy engine has lines of one matrix: fragment = mma for those of batches"
        if not all(map(self.lies_deep, cut.sides)) or cut.k == "rows":
            return f"boxes have lines along {cut.k}, of a length that the text knows: fragment = mma, or another layout"
        return None

    def is_copied(self, slot: Expression, side: Side) -> bool:
        """Whether a factor is a tensor as it is stored, or rounded to TF32, which is always there."""
        loads = {load.name: self.problem.tensor(load.tensor) for load in side.loads if load.kind.is_matrix}
        found = loads.get(self.source(slot))
        return found is not None and found.dtype in self.moved and found.null_as is None and not found.under

    def source(self, slot: Expression) -> str:
        is_rounded = isinstance(slot, Cast) and slot.to == TF32.name
        return value_alone(slot.arg if is_rounded and isinstance(slot, Cast) else slot)

    @property
    def moved(self) -> tuple[DType, ...]:
        return (F32,) if self.rounds else TENSOR_TYPES

    @property
    def rounds(self) -> bool:
        """Whether the copy engine rounds what it brings."""
        return self.dtype is TF32

    def _of_tiles(self) -> str | None:
        s, cut = self.schedule, self.cut
        if s.hold is not Hold.SHARED or s.copy is not Copy.BULK:
            return "tiles are multiplied where the copy engine has put them: hold = shared and copy = bulk"
        if s.vector != self.whole:
            return f"lines of boxes start at multiples of {ALIGNMENT} bytes, in all tensors: vector = {self.whole}"
        if s.tile_k != self.line:
            return f"a line of a slot is {LINE_BYTES} bytes: tile_k = {self.line}"
        if s.tile_n not in COLUMNS or s.thread_n != s.tile_n // self.lanes[1]:
            ns = ", ".join(map(str, COLUMNS))
            return f"an instruction has {ns} columns, and four lanes share a line: tile_n is one of these, 4 x thread_n"
        if s.thread_m % 2 or s.tile_m % (LINES * max(1, s.thread_m // 2)) or self.teams > 2:
            return f"a team has {LINES} lines for each two of thread_m, and a tile one team or two"
        if s.stages < 2:
            return "a stage is multiplied while others are on their way: stages = 2 or more"
        if s.load is not LoadHint.DEFAULT:
            return "boxes of the copy engine carry no cache hint here: load = default"
        if s.cluster > 1 and cut.reduced:
            return "blocks that share a tile reduce no rows of it: cluster = 1"
        if s.blocks_per_sm:
            return "a block stays on each SM: blocks_per_sm = 0"
        return None

    @property
    def line(self) -> int:
        """Elements of a slot's line."""
        return LINE_BYTES // self.held_bytes

    @property
    def teams(self) -> int:
        """Of four warps, which multiply."""
        return self.schedule.threads // TEAM

    def registers(self, _: Device) -> int:
        return self.most_registers

    @property
    def ticket_bytes(self) -> int:
        return 4 * TICKETS * BESIDE

    @property
    def barrier_bytes(self) -> int:
        return 8 * BARRIERS * self.schedule.stages

    def piece(self, axis: str) -> int:
        return 1 if axis == self.cut.m else 2

    @cached_property
    def passing(self) -> tuple[tuple[Load, ...], tuple[Store, ...]]:
        """What passes through stages behind the products, as far as one has room: loads, and stores in their places.

        Of 16 bits; blocks that share a tile have the sums of others in their stages.
        """
        s = self.schedule
        if s.cluster > 1:
            return (), ()
        columns = [s for s in self.cut.epilogue if isinstance(s, Load | Store) and {*s.kind.axes} == self.result]
        room = self._stage_bytes // (s.tile_m * self.box * PASSED_BYTES)
        loads = [s for s in columns if isinstance(s, Load) and self._is_box(s.tensor)]
        stores = [s for s in columns if isinstance(s, Store) and self._is_box(s.tensor) and not s.accumulate]
        if self.cut.grouped:  # elements are known before groups are, and these before anything passes
            loads = []
        return tuple(loads[:room]), tuple(stores[:room]) if s.store is StoreHint.DEFAULT else ()

    @cached_property
    def exchanged(self) -> tuple[Store, ...]:
        """Of 8 bits, in whole pieces: the four lanes of a line exchange pairs, and store pieces of 8 columns each."""
        stores = [s for s in self.cut.epilogue if isinstance(s, Store) and {*s.kind.axes} == self.result]
        uses = {s: self.problem.tensor(s.tensor) for s in stores if not s.accumulate}
        return tuple(s for s, use in uses.items() if use.dtype.bytes == use.dtype.packed == 1 and self._is_whole(use))

    def _is_whole(self, use: TensorUse) -> bool:
        """Whether lines of the result are pieces that start at their size: of TF32 four columns are a vector."""
        is_aligned = min(self.problem.align, self.problem.row_alignment(use)) >= VECTOR * use.dtype.bytes
        return is_aligned and self.problem.sizes.along(self.cut.n) % VECTOR == 0

    def _is_box(self, tensor: str) -> bool:
        use = self.problem.tensor(tensor)
        is_aligned = min(self.problem.align, self.problem.row_alignment(use)) >= ALIGNMENT
        return is_aligned and use.dtype.bytes == PASSED_BYTES and not use.may_be_null

    @property
    def box(self) -> int:
        """Columns of what passes that the copy engine moves at a time: a tile has whole boxes."""
        return gcd(self.schedule.tile_n, LINE_BYTES // PASSED_BYTES)

    @property
    def pass_columns(self) -> int:
        """Of a tile, that pass through a stage at a time, also where nothing but reductions do; 0: nothing does."""
        places, columns = max(map(len, self.passing)), self.schedule.tile_n
        if not places:
            return columns if self.cut.reduced else 0
        most = self._stage_bytes // (self.schedule.tile_m * PASSED_BYTES * places)
        box = self.box
        return max(found for found in range(box, columns + 1, box) if columns % found == 0 and found <= most)

    @property
    def _stage_bytes(self) -> int:
        return sum(self.slot_bytes(side) * len(side.slots) for side in self.cut.sides)

    @property
    def result(self) -> set[str]:
        return {self.cut.m, self.cut.n}

    def slot_bytes(self, side: Side) -> int:
        line, lines = self.line_and_lines(side)
        return lines * line * self.held_bytes

    def cell(self, _: Side, line: int, place: int) -> int:
        piece = place // self.whole ^ line % 8
        return line * LINE_BYTES + piece * PIECE_BYTES + place % self.whole * self.held_bytes

    def reads(self, side: Side) -> tuple[list[int], int]:
        """Of the tensor cores: eight lines of 16 bytes, four times."""
        return [self.cell(side, lane % 8, lane // 8 * self.whole) for lane in range(WARP)], 16

    def writes(self, side: Side) -> tuple[list[int], int]:
        """Of the copy engine, line by line."""
        return [self.cell(side, lane // 8, lane % 8 * self.whole) for lane in range(WARP)], 16

    def line_of(self, _: Side, line: int) -> int:
        return line

    @property
    def factors(self) -> int:
        """Registers of a piece on its way to the lane that owns it."""
        return VECTOR

    # ---- clocks --------------------------------------------------------------------------------------------------

    def fmas(self, device: Device) -> float:
        return device.tensor_fmas * EFFICIENCY * 2 / self.held_bytes

    @property
    def instructions(self) -> float:
        s = self.schedule
        return s.tile_k / self.deep * s.thread_m / 2 * len(self.cut.sums)

    @property
    def read_clocks(self) -> float:
        """Of shared memory: factors of each instruction; on an H200 about half of the left lines take their time."""
        s = self.schedule
        each = (LINES / 2 + s.tile_n) * DEEP_BYTES / 128
        return self.teams * self.instructions * each

    @property
    def wait(self) -> float:
        return 2300.0

    @property
    def behind(self) -> float:
        """Of blocks that share a tile, until all are done with their tiles and sums have come over."""
        return SHARING if self.schedule.cluster > 1 else 0.0

    @property
    def tile_clocks(self) -> float:
        """Of a tile beside its steps."""
        return PAD_CLOCKS + self.schedule.tile_m * self.schedule.tile_n * self.held_bytes / STORED_BYTES
