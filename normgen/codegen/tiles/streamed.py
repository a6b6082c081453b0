"""Products of few lines as text: factors straight from memory to registers, and sums of the warps that share k."""

from __future__ import annotations

from functools import partial

from normgen.codegen.reductions import single_combine, single_identity
from normgen.codegen.statements import Comment, Do, For, Gap, If, Let, Set, Statement, constant, function, loop
from normgen.codegen.tiles.fragment import SimtText
from normgen.codegen.tiles.side import UNROLL, SideText
from normgen.program.ir import Load
from normgen.schedule.tiles.fragment import ACROSS, K_LANES, PAD, VECTOR, WARP

LINES = 8  # of a matrix
# Vectors of a lane that are multiplied, then asked for, together: 128 bytes of a line. Memory gives the two halves of
# these 1.1 times as fast if they are asked for one after the other (4096 -> 28672, H200).
TOGETHER = 2


class StreamedText(SimtText):
    """A lane reads 16 bytes along k of lines 8 apart: factors of two steps, and the same k of both sides.

    Of a side along n that lies across k a lane reads 16 bytes of each of these 8 lines, 8 columns: two neighbouring
    lines have the pairs of k that an instruction multiplies, of two columns, which are two lines of its matrix.
    """

    said = ("Warps share k, and multiply by tensor cores.",)

    def depth(self) -> list[Let]:
        said = "vectors of a line that a lane has on their way"
        return [
            constant("kAhead", f"kTileK / {K_LANES * VECTOR}", said),
            constant("kTogether", f"kAhead < {TOGETHER} ? kAhead : {TOGETHER}", "of these, what it asks for at a time"),
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
        step = loop("ahead", "kTogether", [*self.ride(), Do("add_products(first + ahead)")], unroll=UNROLL)
        read = [If("more", (Do("read_vectors(first, k0 + kWarps * kTileK)"),), alone=True)]
        each = partial(For, "for (int first = 0; first < kAhead; first += kTogether)", unroll=UNROLL)
        body = (Let("const bool", "more", f"{end} - k0 > kWarps * kTileK"), each((step, *read)))
        start = If(f"{first} < {end}", (each((Do(f"read_vectors(first, {first})"),)),))
        return [
            *parts,
            *self.start_riding(),
            *(self.held(side, load) for side in self.sides for load in side.loads),
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
        return Do(f"{vec} {load.name}_vec[kAhead][kTile{side.letter} / {LINES}]")

    def read(self) -> list[Statement]:
        """The vectors of a turn, first those that come from memory; nothing is asked for beyond the end of k.

        Beyond the last line a lane reads that one again: what becomes of it is stored nowhere, and a load without a
        condition needs no registers cleared.
        """
        found: list[Statement] = []
        for side in reversed(self.sides):
            own = self.along_k("k0", "(first + ahead)") + ("" if side.lies_deep else f" + i % {VECTOR}")
            lines: list[Statement] = [Let("const int", "k", own)]
            hint = ", Load" if side.axis == self.plan.cut.n else ""  # lines along m are read by all blocks
            inside = self.access.inside({side.k: "k"})
            for load in side.loads:
                read = self.access.read(load.tensor, {side.axis: side.index, side.k: "k"}, "kVector", hint=hint)
                read = f"({read})" if " ? " in read else read
                beyond = f"filled<{self.access.ctype(load.tensor)}, kVector>(0.0f)"
                lines.append(Set(f"{load.name}_vec[first + ahead][i]", f"{inside} ? {read} : {beyond}"))
            over = loop("ahead", "kTogether", lines, unroll=UNROLL)
            body: list[Statement] = [Let("const int", side.index, self.line(side)), over]
            found.append(loop("i", f"kTile{side.letter} / {LINES}", body, unroll=UNROLL))
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
        for total, x, y in self.factors():
            left = ", ".join(self.matrix(y))
            part = f"{total}_part[j][i]"
            of_m = Do(f"{mma}({y}_lines, &{x}_vec[ahead][i].bits[2 * step], &{part}[0], &{part}[2])")
            over_m = loop("i", f"kTileM / {LINES}", [of_m], unroll=UNROLL)
            added += [Do(f"const unsigned {y}_lines[4] = {{{left}}}"), over_m]
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

    def ride(self) -> list[Statement]:
        side = self.sides[0]
        if not side.side.riding:
            return []
        texts = {load.name: f"element({load.name}_vec[first + ahead][i], e)" for load in side.loads}
        place = f"({self.along_k('k0', '(first + ahead)')} + e)"
        at = {side.axis: f"({side.index}0 + {LINES} * i + line)", side.k: place}
        values, names = side.values(texts, {}, at)
        body = [*values, *side.ride(names, self.access.inside(at), "[i]")]
        return [loop("i", f"kTileM / {LINES}", [loop("e", "kVector", body, unroll=UNROLL)], unroll=UNROLL)]

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
