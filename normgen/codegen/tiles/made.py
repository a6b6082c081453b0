"""Factors that lanes make where they multiply them: a left side straight from memory, a right one in shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from normgen.codegen.reductions import single_combine, single_identity
from normgen.codegen.statements import Do, For, Gap, If, Let, Set, Statement, constant, function, loop
from normgen.codegen.tiles.fragment import MmaText
from normgen.codegen.tiles.side import UNROLL, MatrixSide
from normgen.program.ir import Load
from normgen.schedule.tiles.fragment import DEEP, K_LANES, TOGETHER, VECTOR


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
        lines = f"(stage * kTileK + {DEEP} * step) * {length}"  # whole periods of places: a lane's are the same in each
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
