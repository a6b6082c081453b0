"""Factors straight from memory to registers: of products of few lines both, else those that lanes make on their way.

Products of few lines end with sums of the warps that share k. Of others a left side comes so, and is computed where it
is multiplied, while the right side waits in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from normgen.codegen.reductions import single_combine, single_identity
from normgen.codegen.statements import Comment, Do, For, Gap, If, Let, Set, Statement, constant, function, loop
from normgen.codegen.tiles.fragment import MmaText, SimtText
from normgen.codegen.tiles.side import UNROLL, MatrixSide, SideText
from normgen.program.ir import Load
from normgen.schedule.tiles.fragment import ACROSS, K_LANES, PAD, TOGETHER, VECTOR, WARP, Streamed
from normgen.spec.formula import Cast, Expression

LINES = 8  # of a matrix
# Vectors of a lane that are multiplied, then asked for, together: 128 bytes of a line. Memory gives the two halves of
# these 1.1 times as fast if they are asked for one after the other (4096 -> 28672, H200).
AT_A_TIME = 2


class StreamedSide(SideText):
    """Lines of which a lane has vectors in registers."""

    def computed(self, slot: Expression) -> Expression:
        """Packing rounds it."""
        return slot.arg if isinstance(slot, Cast) else slot

    @property
    def own_index(self) -> str:
        return "[i]"


class StreamedText(SimtText):
    """A lane reads 16 bytes along k of lines 8 apart: factors of two steps, and the same k of both sides.

    Of a side along n that lies across k a lane reads 16 bytes of each of these 8 lines, 8 columns: two neighbouring
    lines have the pairs of k that an instruction multiplies, of two columns, which are two lines of its matrix.
    """

    places = "The line and the column of a thread's results, once the warps' sums are added."

    left = StreamedSide
    said = ("Warps share k, and multiply by tensor cores.",)

    @property
    def makes(self) -> bool:
        assert isinstance(self.plan.fragment, Streamed)
        return self.plan.fragment.makes

    def depth(self) -> list[Let]:
        said = "vectors of a line that a lane has on their way"
        return [
            constant("kAhead", f"kTileK / {K_LANES * VECTOR}", said),
            constant(
                "kTogether", f"kAhead < {AT_A_TIME} ? kAhead : {AT_A_TIME}", "of these, what it asks for at a time"
            ),
        ]

    def between(self) -> list[Let]:
        return [
            constant("kPad", str(PAD), "floats behind each line of a warp's sums"),
            constant("kWarps", f"kThreads / {WARP}", "that share k"),
        ]

    def lanes(self) -> list[Statement]:
        said = "A lane reads 8 elements along k, of every eighth line."
        if not self.sides[1].lies_deep:
            said = f"{said[:-1]} of m, and of these 8 lines of the other side 8 columns."
        return [*super().lanes(), Comment(said), Let("const int", "line", f"lane / {K_LANES}")]

    def asked(self) -> list[Statement]:
        """The first vectors of the side that comes from memory."""
        if not self.plan.schedule.chained:
            return []
        side = self.sides[1]
        lines: list[Statement] = [Let("const int", side.index, self.line(side))]
        place = {side.axis: side.index, side.k: "k" if side.lies_deep else f"k + i % {VECTOR}"}
        lines += [Do(f"ask_l2({self.access.address(load.tensor, place)})") for load in side.side.loads]
        inside = f"k < {self.access.end(side.k)}"
        over = loop("i", f"kTile{side.letter} / {LINES}", lines, unroll=UNROLL)
        body: list[Statement] = [Let("const int", "k", self.along_k(self.first)), If(inside, (over,))]
        return [loop("ahead", "kAhead", body, unroll=UNROLL)]

    @property
    def first(self) -> str:
        """Where along k a warp begins."""
        begin = self.access.begin(self.plan.cut.k)
        return "warp * kTileK" if begin == "0" else f"{begin} + warp * kTileK"

    def along_k(self, start: str, ahead: str = "ahead") -> str:
        """Where along k a lane's vector is, of those that a warp has from `start` on."""
        return f"{start} + {K_LANES * VECTOR} * {ahead} + lane % {K_LANES} * kVector"

    def from_memory(self) -> list[Statement]:
        k = self.plan.cut.k
        parts = [Do(f"float {name}_part[kTileN / 16][kTileM / {LINES}][4] = {{}}") for name, _, _ in self.factors()]
        first, end = self.first, self.access.end(k)
        step = loop("ahead", "kTogether", [*self.make(), Do("add_products(first + ahead)")], unroll=UNROLL)
        read = [If("more", (Do("read_vectors(first, k0 + kWarps * kTileK)"),), alone=True)]
        each = partial(For, "for (int first = 0; first < kAhead; first += kTogether)", unroll=UNROLL)
        body = (Let("const bool", "more", f"{end} - k0 > kWarps * kTileK"), each((step, *read)))
        start = If(f"{first} < {end}", (each((Do(f"read_vectors(first, {first})"),)),))
        return [
            *parts,
            *self.start_riding(),
            *(self.held(side, load) for side in self.sides for load in side.loads),
            *self.made(),
            Gap(),
            function("read_vectors", "int first, int k0", self.read()),
            Gap(),
            function("add_products", "int ahead", [self.multiply_vectors()]),
            Gap(),
            start,
            For(f"for (int k0 = {first}; k0 < {end}; k0 += kWarps * kTileK)", body),
            Gap(),
            *self.add_up(),
        ]

    def held(self, side: SideText, load: Load) -> Statement:
        """A lane's vectors of a load: of each line of a tile, kAhead of them."""
        vec = self.access.vec(load.tensor, "kVector")
        lines = f"[kTile{side.letter} / {LINES}]" if load.kind.is_matrix else ""
        return Do(f"{vec} {load.name}_vec[kAhead]{lines}")

    def made(self) -> list[Statement]:
        """Where the factors lie that a lane makes of vectors."""
        vec = f"Vec<{self.plan.fragment.dtype.ctype}, kVector>"
        names = self.sides[0].slots.values() if self.makes else ()
        return [Do(f"{vec} {name}_made[kTileM / {LINES}]") for name in names]

    def read(self) -> list[Statement]:
        """The vectors of a turn, first those that come from memory; nothing is asked for beyond the end of k.

        Beyond the last line a lane reads that one again: what becomes of it is stored nowhere, and a load without a
        condition needs no registers cleared.
        """
        found: list[Statement] = []
        for side in reversed(self.sides):
            along_k = self.along_k("k0", "(first + ahead)") + ("" if side.lies_deep else f" + i % {VECTOR}")
            lines: list[Statement] = [Let("const int", "k", along_k)]
            hint = ", Load" if side.axis == self.plan.cut.n else ""  # lines along m are read by all blocks
            inside = self.access.inside({side.k: "k"})
            of_all: list[Statement] = [*lines]
            for load in side.loads:
                read = self.access.read(load.tensor, {side.axis: side.index, side.k: "k"}, "kVector", hint=hint)
                read = f"({read})" if " ? " in read else read
                beyond = f"filled<{self.access.ctype(load.tensor)}, kVector>(0.0f)"
                place, own = ("[i]", lines) if load.kind.is_matrix else ("", of_all)
                own.append(Set(f"{load.name}_vec[first + ahead]{place}", f"{inside} ? {read} : {beyond}"))
            over = loop("ahead", "kTogether", lines, unroll=UNROLL)
            body: list[Statement] = [Let("const int", side.index, self.line(side)), over]
            found.append(loop("i", f"kTile{side.letter} / {LINES}", body, unroll=UNROLL))
            found += [loop("ahead", "kTogether", of_all, unroll=UNROLL)] if len(of_all) > 1 else []
        return found

    def line(self, side: SideText) -> str:
        """The line that a lane reads, or the first of its columns."""
        own, width = f"{LINES} * i + line", "1"
        if not side.lies_deep:
            own, width = f"i / {VECTOR} * {ACROSS} + line * kVector", "kVector"
        own = f"{side.index}0 + {own}"
        inside = f"min({own}, {self.access.end(side.axis)} - {width})"
        return f"kWhole{side.letter} ? {own} : {inside}" if self.plan.is_fixed(side.axis) else inside

    def multiply_vectors(self) -> Statement:
        """Two steps of 16 along k for each vector: halves of it, of both sides the same."""
        added, mma = list[Statement](), f"mma_{self.plan.fragment.dtype.name}"
        own = "made" if self.makes else "vec[ahead]"
        for total, x, y in self.factors():
            left = ", ".join(self.matrix(y))
            part = f"{total}_part[j][i]"
            of_m = Do(f"{mma}({y}_lines, &{x}_{own}[i].bits[2 * step], &{part}[0], &{part}[2])")
            over_m = loop("i", f"kTileM / {LINES}", [of_m], unroll=UNROLL)
            lines = Do(f"const unsigned {y}_lines[4] = {{{left}}}")
            added += [*([] if lines in added else [lines]), over_m]
        over_n = loop("j", "kTileN / 16", added, unroll=UNROLL)
        return loop("step", "2", [over_n], unroll=UNROLL)

    def matrix(self, y: str) -> list[str]:
        """A lane's four registers of the instruction's left matrix: two lines, each with two pairs along k."""
        if self.sides[1].lies_deep:
            return [f"{y}_vec[ahead][2 * j + {i % 2}].bits[2 * step + {i // 2}]" for i in range(4)]
        line = y + "_vec[ahead][j / 4 * 8 + 4 * step + {}].bits[j % 4]"
        return [f"{('low', 'high')[i % 2]}_halves({line.format(i // 2 * 2)}, {line.format(i // 2 * 2 + 1)})"
                for i in range(4)]  # fmt: skip

    # ---- what rides along --------------------------------------------------------------------------------------

    def start_riding(self) -> list[Statement]:
        found: list[Statement] = []
        for reduce in self.sides[0].side.riding:
            own = f"{reduce.names[0]}_own"
            start = Set(f"{own}[i]", single_identity(reduce))
            found += [Do(f"float {own}[kTileM / {LINES}]"), loop("i", f"kTileM / {LINES}", [start], unroll=UNROLL)]
        return found

    def make(self) -> list[Statement]:
        """Of a lane's vectors of the lines along m: what rides along, and factors that are not as they are stored."""
        side = self.sides[0]
        if not (side.side.riding or self.makes):
            return []
        here = {load: f"{load.name}_vec[first + ahead]" + "[i]" * load.kind.is_matrix for load in side.loads}
        texts = {load.name: f"element({vec}, e)" for load, vec in here.items()}
        place = f"({self.along_k('k0', '(first + ahead)')} + e)"
        at = {side.axis: f"({side.index}0 + {LINES} * i + line)", side.k: place}
        values, names = side.values(texts, {}, at)
        arrays, packed = list[Statement](), list[Statement]()
        body, inside = [*values], self.access.inside(at)
        if self.makes:
            for name in side.slots.values():
                arrays.append(Do(f"float {name}_values[kVector]"))
                packed.append(Do(f"pack({name}_made[i], {name}_values)"))
            body += side.factors(names, inside, "[e]")
        else:
            body += side.ride(names, inside, side.own_index)
        vector = [*arrays, loop("e", "kVector", body, unroll=UNROLL), *packed]
        return [loop("i", f"kTileM / {LINES}", vector, unroll=UNROLL)]

    # ---- sums of all warps -------------------------------------------------------------------------------------

    def add_up(self) -> list[Statement]:
        """What the warps have goes through shared memory, and is added in the order of their numbers."""
        names = [name for name, _, _ in self.factors()]
        riding = self.sides[0].side.riding
        places, start = list[Statement](), "reinterpret_cast<float*>(dynamic_shared())"
        for name in names:
            places.append(Let("float* const", f"{name}_left", start))
            start = f"{name}_left + kWarps * kTileM * (kTileN + kPad)"
        for reduce in riding:
            places.append(Let("float* const", f"{reduce.names[0]}_left", start))
            start = f"{reduce.names[0]}_left + {K_LANES} * kWarps * kTileM"
        m = f"{LINES} * i + lane % {K_LANES} * 2 + e % 2"
        cell = "_left[(warp * kTileM + {}) * (kTileN + kPad) + {}]"
        deep, flat = "16 * j + line + e / 2 * 8", f"j / 4 * {ACROSS} + line * kVector + j % 4 * 2 + e / 2"
        column = deep if self.sides[1].lies_deep else flat
        put = [Set(name + cell.format(m, column), f"{name}_part[j][i][e]") for name in names]
        over_m = loop("i", f"kTileM / {LINES}", [loop("e", "4", put, unroll=UNROLL)], unroll=UNROLL)
        at = f"(warp * {K_LANES} + lane % {K_LANES}) * kTileM + {LINES} * i + line"
        ridden = [Set(f"{r.names[0]}_left[{at}]", f"{r.names[0]}_own[i]") for r in riding]
        left = [loop("j", "kTileN / 16", [over_m], unroll=UNROLL)]
        left += [loop("i", f"kTileM / {LINES}", ridden, unroll=UNROLL)] if ridden else []
        of_warp = "_left[(other * kTileM + own_m(i)) * (kTileN + kPad) + own_n(j)]"
        added = [Set(f"{name}_sum[i][j]", name + of_warp, "+=") for name in names]
        over_n = loop("j", "kThreadN", added, unroll=UNROLL)
        sums: list[Statement] = [loop("other", "kWarps", [loop("i", "kThreadM", [over_n], unroll=UNROLL)])]
        for r in riding:
            one = single_combine(r, f"{r.names[0]}_all[i]", f"{r.names[0]}_left[other * kTileM + own_m(i)]")
            sums.append(loop("other", f"{K_LANES} * kWarps", [loop("i", "kThreadM", one, unroll=UNROLL)]))
        return [*places, *left, Do("__syncthreads()"), *sums]


class MadeSide(MatrixSide):
    """A lane's vectors of its lines wait in registers, and become the factors of two steps of 16 along k each.

    Pairs of a vector, p = 0 to 3, are pairs of matrix p of these steps: see `spread_pairs`.
    """

    @property
    def own_index(self) -> str:
        return "[ahead][i]"

    @property
    def at(self) -> dict[str, str]:
        """The place of an element in the tensors."""
        return {self.axis: self.index, self.k: "(k0 + k + e)"}

    @property
    def fetched(self) -> list[Load]:
        """What it reads it asks for line by line, as lines are made factors."""
        return []

    def held(self, load: Load) -> str:
        return f"{self.own(load, 'held')}[ahead][i]"

    def constants(self) -> list[Let]:
        said = "vectors of a line that a lane has of a tile"
        return [constant("kAhead", f"kTileK / {K_LANES * VECTOR}", said)]

    @property
    def walked(self) -> list[Load]:
        """The loads of whose lines a lane keeps pointers: of tensors that are there."""
        tensors = [(load, self.plan.tensor(load)) for load in self.loads]
        return [load for load, use in tensors if use.null_as is None and not use.witness]

    def pointers(self) -> list[Statement]:
        """Where a lane's vectors of its lines begin; what becomes of those beyond the last line is stored nowhere."""
        i, x = self.index, self.letter
        line = Let("const int", i, f"min({i}0 + own_{i}(i), {self.access.end(self.axis)} - 1)", "or the last one again")
        found: list[Statement] = []
        put: list[Statement] = [line]
        for load in self.walked:
            found.append(Do(f"const {self.access.ctype(load.tensor)}* {self.own(load, 'lines')}[kThread{x}]"))
            first = self.access.address(load.tensor, {self.axis: i, self.k: f"lane % {K_LANES} * kVector"})
            put.append(Set(f"{self.own(load, 'lines')}[i]", first))
        return [*found, loop("i", f"kThread{x}", put, unroll=UNROLL)] if found else []

    def here(self, load: Load) -> str:
        return f"{self.own(load, 'lines')}[i] + k0 + {K_LANES * VECTOR} * ahead" if load in self.walked else ""

    def declarations(self) -> list[Statement]:
        size = f"[kAhead][kThread{self.letter}]"
        vectors = [Do(f"{self.access.vec(ld.tensor, 'kVector')} {self.own(ld, 'held')}{size}") for ld in self.loads]
        return [*vectors, *self.parts("[kSteps]")]

    def vectors(self, body: Sequence[Statement]) -> Statement:
        """What is done with each vector of line i."""
        k = Let("const int", "k", f"{K_LANES * VECTOR} * ahead + lane % {K_LANES} * kVector")
        inside = Let("const bool", "inside", self.access.inside({self.k: "k0 + k"}))
        return loop("ahead", "kAhead", [k, inside, *body], unroll=UNROLL)

    def over_lines(self, body: Sequence[Statement]) -> Statement:
        return loop("i", f"kThread{self.letter}", body, unroll=UNROLL)

    def fetch(self) -> list[Statement]:
        """The vectors of line i."""
        i = self.index
        line = Let("const int", i, f"min({i}0 + own_{i}(i), {self.access.end(self.axis)} - 1)")
        place = {self.axis: i, self.k: "k0 + k"}
        return [line, self.vectors([self._fetched(load, place, "inside") for load in self.loads])]

    def first(self, begin: str) -> Statement:
        return self.over_lines([Do(f"fetch(i, {begin})")])

    def make(self) -> list[Statement]:
        """The vectors of a tile become factors, line by line, and those of the next tile set out in their place.

        Behind the last tile a lane reads that one again: a load without a condition needs no registers cleared.
        """
        texts = {load.name: f"element({self.held(load)}, e)" for load in self.loads}
        moved = self.moves(texts, "inside") if self.moves else []
        top = {name: f"{name}_own[i]" if self.moves else f"{name}_found[own_{self.index}(i)]" for name in self.known}
        values, names = self.values(texts, top, self.at)
        elements = loop("e", "kVector", [*values, *self.factors(names, "inside", "[e]")], unroll=UNROLL)
        arrays = [Do(f"float {name}_values[kVector]") for name in self.slots.values()]
        packed: list[Statement] = []
        for name in self.slots.values():
            part = f"{name}_part[2 * ahead + pair / 2][i / 2 * 4 + i % 2 + pair % 2 * 2]"
            packed += [Do(f"Vec<{self.held_as}, kVector> {name}_vec"), Do(f"pack({name}_vec, {name}_values)")]
            packed.append(loop("pair", "4", [Set(part, f"{name}_vec.bits[pair]")], unroll=UNROLL))
        line = Let("const int", self.index, f"{self.index}0 + own_{self.index}(i)")
        body: list[Statement] = [line, *moved, self.vectors([*arrays, elements, *packed]), Do("fetch(i, next)")]
        more = f"{self.access.stop(self.k)} - k0 > kTileK"
        return [Let("const int", "next", f"{more} ? k0 + kTileK : k0"), self.over_lines(body)]

    def start_riding(self) -> list[Statement]:
        found: list[Statement] = []
        for reduce in self.side.riding:
            own, bound = f"{reduce.names[0]}_own", f"kThread{self.letter}"
            start = loop("i", bound, [Set(f"{own}[ahead][i]", single_identity(reduce))], unroll=UNROLL)
            found += [Do(f"float {own}[kAhead][{bound}]"), loop("ahead", "kAhead", [start], unroll=UNROLL)]
        return found

    def leave(self) -> list[Statement]:
        return []

    def gather(self) -> list[Statement]:
        """A line's reductions, of what its lanes have."""
        found: list[Statement] = []
        for reduce in self.side.riding:
            name = reduce.names[0]
            other = Let("const float", f"{name}_other", f"__shfl_xor_sync(0xffffffffu, {name}_all[i], lanes)")
            combined = (other, *single_combine(reduce, f"{name}_all[i]", f"{name}_other"))
            over = For(f"for (int lanes = 1; lanes < {K_LANES}; lanes *= 2)", combined, UNROLL)
            own = single_combine(reduce, f"{name}_all[i]", f"{name}_own[ahead][i]")
            first: Statement = Set(f"{name}_all[i]", f"{name}_own[0][i]")
            body = [first, loop("ahead", "kAhead", own, first="1", unroll=UNROLL)]
            bound = f"kThread{self.letter}"
            found += [Do(f"float {name}_all[{bound}]"), loop("i", bound, [*body, over], unroll=UNROLL)]
        return found


class MadeText(MmaText):
    """A warp reads a part of the right side's columns of a step while it multiplies those of the part before."""

    left = MadeSide

    def depth(self) -> list[Let]:
        together = f"kThreadN < {TOGETHER} ? kThreadN : {TOGETHER}"
        return [
            *super().depth(),
            constant("kTogether", together, "of a thread's columns, what it reads at a time"),
            constant("kParts", "kSteps * (kThreadN / kTogether)", "of a tile, what a warp multiplies at a time"),
        ]

    def lines(self) -> list[Statement]:
        return super().lines()[:1] + super().lines()[3:]

    def multiply(self, stage: str, rescale: Sequence[Statement]) -> list[Statement]:
        right = self.sides[1]
        place = [
            Let("const int", "step", "part / (kThreadN / kTogether)"),
            Let("const int", "first", "part % (kThreadN / kTogether) * kTogether"),
        ]
        length, column = right.line_length, "at_n + (first + j) / 2 * kApartN"
        # Whole periods of places: a lane's are the same in each.
        lines = f"(stage * kTileK + {2 * VECTOR} * step) * {length}"
        cells = {y: f"({y}_tiles + {lines})[swizzled<{length}>(k_n, {column})]" for y in right.slots.values()}
        four = [Do(f"read_matrices<true>(&{cell}, &{y}_part[part % 2][j])") for y, cell in cells.items()]
        read: list[Statement] = [*place, For("for (int j = 0; j < kTogether; j += 4)", tuple(four), UNROLL)]
        added: list[Statement] = []
        for total, x, y in self.factors():
            sums = ", ".join(f"&{total}_sum[i{further}][first + j]" for further in ("", " + 1"))
            added.append(
                Do(f"mma_{self.plan.fragment.dtype.name}(&{x}_part[step][2 * i], &{y}_part[part % 2][j], {sums})")
            )
        over_n = For("for (int j = 0; j < kTogether; j += 2)", tuple(added), UNROLL)
        over_m = For("for (int i = 0; i < kThreadM; i += 2)", (over_n,), UNROLL)
        part = ", ".join(filter(None, (stage, "int part")))
        ahead = If("part + 1 < kParts", (Do("read_parts(stage, part + 1)"),), alone=True)
        tile = loop("part", "kParts", [ahead, Do("add_products(part)")], unroll=UNROLL)
        return [
            *(Do(f"unsigned {y}_part[2][kTogether]") for y in right.slots.values()),
            function("read_parts", part, read),
            Gap(),
            function("add_products", "int part", [*place, over_m]),
            Gap(),
            function("multiply", stage, [*rescale, Do("read_parts(stage, 0)"), tile]),
        ]
