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
        return "[i]"

    @property
    def at(self) -> dict[str, str]:
        """The place of an element in the tensors."""
        return {self.axis: self.index, self.k: "(k0 + k + e)"}

    @property
    def fetched(self) -> list[Load]:
        return self.loads

    def held(self, load: Load) -> str:
        return f"{self.own(load, 'held')}[ahead][i]"

    def constants(self) -> list[Let]:
        said = "vectors of a line that a lane has of a tile"
        return [constant("kAhead", f"kTileK / {K_LANES * VECTOR}", said)]

    def pointers(self) -> list[Statement]:
        return []

    def declarations(self) -> list[Statement]:
        size = f"[kAhead][kThread{self.letter}]"
        vectors = [Do(f"{self.access.vec(ld.tensor, 'kVector')} {self.own(ld, 'held')}{size}") for ld in self.fetched]
        return [*vectors, *self.parts("[kSteps]")]

    def vectors(self, body: Sequence[Statement]) -> Statement:
        """What is done with each vector of line i."""
        k = Let("const int", "k", f"{K_LANES * VECTOR} * ahead + lane % {K_LANES} * kVector")
        inside = Let("const bool", "inside", self.access.inside({self.k: "k0 + k"}))
        return loop("ahead", "kAhead", [k, inside, *body], unroll=UNROLL)

    def over_lines(self, line: str, body: Sequence[Statement]) -> Statement:
        number = Let("const int", self.index, line)
        return loop("i", f"kThread{self.letter}", [number, *body], unroll=UNROLL)

    def fetch(self) -> list[Statement]:
        """Beyond the last line a lane reads that one again: what becomes of it is stored nowhere."""
        place = {self.axis: self.index, self.k: "k0 + k"}
        read: list[Statement] = []
        for load in self.fetched:
            text = self.access.read(load.tensor, place, "kVector", hint=", Load")
            text = f"({text})" if " ? " in text else text
            beyond = f"filled<{self.access.ctype(load.tensor)}, kVector>(0.0f)"
            read.append(Set(self.held(load), f"inside ? {text} : {beyond}"))
        end = self.access.end(self.axis)
        return [self.over_lines(f"min({self.index}0 + own_{self.index}(i), {end} - 1)", [self.vectors(read)])]

    def make(self) -> list[Statement]:
        """The vectors of a tile become factors."""
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
        body = [*moved, self.vectors([*arrays, elements, *packed])]
        return [self.over_lines(f"{self.index}0 + own_{self.index}(i)", body)]

    def start_riding(self) -> list[Statement]:
        found: list[Statement] = []
        for reduce in self.side.riding:
            own, bound = f"{reduce.names[0]}_own", f"kThread{self.letter}"
            start = Set(f"{own}[i]", single_identity(reduce))
            found += [Do(f"float {own}[{bound}]"), loop("i", bound, [start], unroll=UNROLL)]
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
            bound = f"kThread{self.letter}"
            found += [Do(f"float {name}_all[{bound}]")]
            found.append(loop("i", bound, [Set(f"{name}_all[i]", f"{name}_own[i]"), over], unroll=UNROLL))
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
        assert isinstance(right, MatrixSide)
        place = [
            Let("const int", "step", "part / (kThreadN / kTogether)"),
            Let("const int", "first", "part % (kThreadN / kTogether) * kTogether"),
        ]
        cells = {
            y: right.place_in(y, "at_n + (first + j) / 2 * kApartN", f"{DEEP} * step + k_n")
            for y in right.slots.values()
        }
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
