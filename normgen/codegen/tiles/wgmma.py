"""Blocks that go from tile to tile as text: a thread asks for boxes ahead, teams of four warps multiply them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from normgen.codegen.module import Boxes, Param, Source
from normgen.codegen.statements import Do, For, Gap, If, Let, Statement, constant, loop
from normgen.codegen.tiles.access import SOURCES, TileAccess
from normgen.codegen.tiles.fragment import Sides, SimtText
from normgen.codegen.tiles.raster import Raster
from normgen.codegen.tiles.reduced import ReducedText
from normgen.codegen.tiles.ring import Ring
from normgen.codegen.tiles.side import UNROLL, MatrixSide
from normgen.codegen.tiles.staged import MAP, Passing
from normgen.schedule.tiles.fragment import WARP
from normgen.schedule.tiles.wgmma import BESIDE, LINES, TEAM, TICKETS, Wgmma


class BoxSide(MatrixSide):
    """A side whose tiles the copy engine brings, box by box."""

    way = "in boxes by the copy engine"

    def constants(self) -> list[Let]:
        return []

    def params(self) -> list[Param]:
        """The maps of its tensors."""
        tile, loads = self.plan.tile(self.axis), {load.name: load.tensor for load in self.side.loads}
        own = self.plan.fragment
        assert isinstance(own, Wgmma)
        line, lines = (SOURCES[self.k], self.plan.schedule.tile_k), (SOURCES[self.axis], tile)
        boxes = Boxes(line=line, lines=lines, rounds=own.rounds)
        tensors = [loads[own.source(slot)] for slot in self.slots]
        found = (Param(name=f"{t}_map", ctype=MAP, source=Source.TENSOR_MAP, key=t, boxes=boxes) for t in tensors)
        return list(found)

    def copies_of_stage(self) -> list[Statement]:
        i = self.index
        return [
            Do(f"tensor_load(&{name}_tiles[stage * kStage], &{param.name}, k0, {i}0, &full[stage])")
            for name, param in zip(self.slots.values(), self.params(), strict=True)
        ]


class WgmmaText(SimtText):
    """Sums stay in the order of the instruction until a tile is done."""

    side = left = BoxSide
    places = "The line and the column of a lane's sums: the layout of wgmma's accumulators."
    said: tuple[str, ...] = (
        f"A thread asks for tiles ahead; teams of four warps multiply them by tensor cores, {LINES} lines at a time.",
        "Blocks go from tile to tile: the next one is asked for while results of the one before are stored.",
    )

    def __init__(self, access: TileAccess, sides: Sides) -> None:
        super().__init__(access, sides)
        self.raster = Raster(access)
        self.passing = Passing(access, self.cores)
        if self.plan.parts > 1:
            self.said = self.said[:1]

    @property
    def cores(self) -> Wgmma:
        assert isinstance(self.plan.fragment, Wgmma)
        return self.plan.fragment

    def depth(self) -> list[Let]:
        return [
            constant("kSteps", f"kTileK / {self.cores.deep}", "of these, what tensor cores multiply at a time"),
            constant("kWarps", f"(kThreads - {TEAM}) / {WARP}", "that multiply: behind these a thread asks for tiles"),
            constant("kStage", f"({self._held}) * kTileK", "elements of a stage"),
            constant("kBeside", str(BESIDE), "warps beside the one that asks"),
            constant("kTickets", str(TICKETS), "for lines of tiles"),
            *self.passing.constants(),
        ]

    @property
    def _held(self) -> str:
        return " + ".join(f"{len(s.slots)} * kTile{s.letter}".removeprefix("1 * ") for s in self.sides)

    def slots(self) -> tuple[list[Statement], str]:
        """A stage holds tiles of all factors, and behind the products what passes through it."""
        found: list[Statement] = []
        place, start = f"reinterpret_cast<{self.sides[0].held_as}*>(dynamic_shared())", ""
        for side in self.sides:
            for name in side.slots.values():
                found.append(Let(f"{side.held_as}* const", f"{name}_tiles", place))
                start = start or f"{name}_tiles + kStages * kStage"
                place = f"{name}_tiles + kTile{side.letter} * kTileK"
        return [*found, *self.passing.places()], start

    def between(self) -> list[Let]:
        return []

    def lanes(self) -> list[Statement]:
        own_m = f"warp / 4 * ({LINES // 2} * kThreadM) + warp % 4 * 16 + lane / 4"
        return [
            Let("const int", "lane", f"threadIdx.x % {WARP}"),
            Let("const int", "warp", f"threadIdx.x / {WARP}"),
            Let("const int", "tm", f"kept({own_m})"),
            Let("const int", "tn", "kept(lane % 4)"),
        ]

    def own(self, letter: str) -> str:
        if letter == "N":
            return super().own(letter)
        return f"[&](int i) {{ return tm + i / 2 * {LINES} + i % 2 * 8; }}"

    def lines(self) -> list[Statement]:
        return []

    def place(self) -> list[Statement]:
        return self.raster.walk() if self.plan.parts == 1 else self.raster.of_block()

    def params(self) -> list[Param]:
        """Tensor maps."""
        sides = [param for side in self.sides if isinstance(side, BoxSide) for param in side.params()]
        return [*sides, *self.passing.params()]

    def work(
        self,
        ring: Ring,
        over_k: Callable[[Sequence[Statement]], For],
        behind: Sequence[Statement],
        reduced: ReducedText | None,
    ) -> list[Statement]:
        """What the thread that asks does, the warps beside it, and those that multiply.

        behind   what is made of a tile's sums
        reduced  reductions of the result
        """
        sides = [side for side in self.sides if isinstance(side, BoxSide)]
        copies = [one for side in sides for one in side.copies_of_stage()]
        own = self.cores
        asked = [over_k(ring.filled(f"{own.held_bytes} * kStage", copies)), *self.passing.asked(ring)]
        names = [name for name, _, _ in self.factors()]
        parts = [Do(f"float {name}_part[kThreadM / 2][2 * kThreadN]") for name in names]
        tile: list[Statement] = [
            *parts,
            *ring.consumed(over_k(ring.multiplied([self.products_of_stage()])), [f"{name}_part" for name in names]),
            Gap(),
            *behind,
        ]
        producer: list[Statement] = [
            Do(f"leave_registers<{own.left_registers}>()"),
            If(f"threadIdx.x == {WARP} * kWarps", tuple(self.raster.over_tiles(asked))),
        ]
        if ring.hands_on:
            combined = reduced.statements() if reduced else []
            beside = self.raster.over_tiles([*self.passing.stored(ring), *combined])
            parity = Do("unsigned made_parity = 0", "of a stage's results: a bit for each")
            mine = Let("const int", "beside", "warp - kWarps - 1")
            producer.append(If("warp > kWarps" if reduced else "warp == kWarps + 1", (mine, parity, *beside)))
        consumer = [Do(f"take_registers<{own.most_registers}>()"), *self.raster.over_tiles(tile)]
        return [
            *ring.state(),
            *self.passing.cell(),
            If("warp >= kWarps", tuple(producer), otherwise=tuple(consumer)),
        ]

    def products_of_stage(self) -> Statement:
        team = f"warp / 4 * ({LINES // 2} * kThreadM) + {LINES} * i"
        dtype, deep, begin = self.cores.dtype.name, self.cores.deep, self.access.begin(self.plan.cut.k)
        added: list[Statement] = []
        for total, x, y in self.factors():
            left = f"&{x}_tiles[stage * kStage + ({team}) * kTileK + {deep} * step]"
            right = f"&{y}_tiles[stage * kStage + {deep} * step]"
            added.append(Do(f"wgmma_{dtype}<kTileN>({total}_part[i], {left}, {right}, k0 + step > {begin})"))
        return loop("step", "kSteps", [loop("i", "kThreadM / 2", added, unroll=UNROLL)], unroll=UNROLL)
