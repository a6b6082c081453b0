"""Statistics of the left side's rows that its factors wait for: a look ahead, or maxima that move with the products.

A row's maximum must be known before its exponentials are. Either warps look at all rows of the tile first
(`LooksAhead`), and the products' loop reads these rows again. Or each tile of k has a maximum so far (`MovingMaximum`):
when it moves, everything that was summed of exponentials about the old one is multiplied by exp(old - new), the
products' sums among them. Then a row is read once.
"""

from __future__ import annotations

from collections.abc import Sequence

from normgen.codegen.printer import MINUS_INFINITE, Printer
from normgen.codegen.reductions import CONSTANTS, single_combine, single_identity, single_step
from normgen.codegen.statements import Comment, Do, For, Gap, If, Let, Set, Statement, loop, when
from normgen.codegen.tiles.access import TileAccess
from normgen.codegen.tiles.side import UNROLL, SideText
from normgen.codegen.tiles.streamed import MadeSide
from normgen.program.ir import Reduce
from normgen.program.monoid import LOWEST
from normgen.schedule.tiles.cut import Side
from normgen.schedule.tiles.fragment import K_LANES
from normgen.schedule.tiles.online import moving_maximum
from normgen.spec.formula import Binary, Call, Name

LANES = 32


class LooksAhead:
    """A warp reduces a row of the tile at a time; what it finds waits in shared memory, a line for each statistic."""

    def __init__(self, access: TileAccess) -> None:
        self.access, self.plan = access, access.plan

    @property
    def reduces(self) -> list[Reduce]:
        return [reduce for look in self.plan.cut.ahead for reduce in look.riding]

    def shared(self) -> list[Statement]:
        start, found = "reinterpret_cast<float*>(dynamic_shared()) + kSlots", list[Statement]()
        for reduce in self.reduces:
            name = f"{reduce.names[0]}_found"
            found.append(Let("float* const", name, start))
            start = f"{name} + kTileM"
        return found

    def statements(self) -> list[Statement]:
        found: list[Statement] = []
        for look in self.plan.cut.ahead:
            found += [*self._look(look), Do("__syncthreads()"), Gap()]
        return [Comment("What the rows' elements wait for: a warp looks at a row."), *found] if found else []

    def _look(self, look: Side) -> list[Statement]:
        side = SideText(self.access, look, "ahead")
        k, size = self.plan.cut.k, self.access.size(self.plan.cut.k)
        at = {look.axis: "m", k: "k"}
        vectors = [
            Let(
                f"const {self.access.vec(load.tensor, side.width(load))}",
                f"{load.name}_ahead",
                self.access.read(load.tensor, at, side.width(load), hint=", Load"),
            )
            for load in side.loads
        ]
        texts = {ld.name: f"element({ld.name}_ahead, {'i' if side.is_wide(ld) else '0'})" for ld in side.loads}
        values, names = side.values(texts, side.found("line"), at | {k: "(k + i)"})
        steps = [s for r in look.riding for s in single_step(r, f"{r.names[0]}_ahead", names, prefix=f"{r.names[0]}_")]
        over_k = For(
            f"for (int k = threadIdx.x % {LANES} * kVector; k < {size}; k += {LANES} * kVector)",
            (*vectors, loop("i", "kVector", [*values, *steps], unroll=UNROLL)),
            f"{UNROLL} 4",
        )
        lanes = [
            Let("const float", f"{r.names[0]}_other", f"__shfl_xor_sync(0xffffffffu, {r.names[0]}_ahead, lanes)")
            for r in look.riding
        ]
        combined = [s for r in look.riding for s in single_combine(r, f"{r.names[0]}_ahead", f"{r.names[0]}_other")]
        kept = [Set(f"{r.names[0]}_found[line]", f"{r.names[0]}_ahead") for r in look.riding]
        body: list[Statement] = [
            Let("const int", "m", "m0 + line"),
            *(Let("float", f"{r.names[0]}_ahead", single_identity(r)) for r in look.riding),
            *when(self.access.inside({look.axis: "m"}), over_k),
            For(f"for (int lanes = {LANES // 2}; lanes > 0; lanes /= 2)", (*lanes, *combined), UNROLL),
            If(f"threadIdx.x % {LANES} == 0", tuple(kept)),
        ]
        return [For(f"for (int line = threadIdx.x / {LANES}; line < kTileM; line += kThreads / {LANES})", tuple(body))]


class MovingMaximum:
    """The lanes that hold a row's vectors of a tile agree on its maximum so far; each tile says by what it moved."""

    row = ("step", "kStepsM")  # of a thread's, and how many it has

    def __init__(self, side: SideText) -> None:
        self.side, self.plan = side, side.plan
        self.moving = moving_maximum(self.plan.cut)
        self.top = self.moving.top.names[0]

    def shared(self) -> list[Statement]:
        return [Let("float* const", "moved", "reinterpret_cast<float*>(dynamic_shared()) + kSlots")]

    def stop(self) -> list[Statement]:
        """Where tiles end that some row of the tile has a number in."""
        if self.plan.last is None:
            return []
        access, m, k = self.side.access, self.plan.cut.m, self.plan.cut.k
        last = Printer(access.numbers({m: "(m0 + line)"})).whole(self.plan.last)
        over = For(f"for (int line = threadIdx.x % {LANES}; line < kTileM; line += {LANES})",
                   (Set("k_stop", f"max(k_stop, {last} + 1)"),))  # fmt: skip
        other = Set("k_stop", "max(k_stop, __shfl_xor_sync(0xffffffffu, k_stop, lanes))")
        return [
            Comment("No row of the tile has a number from here on."),
            Do("int k_stop = 0"),
            over,
            For(f"for (int lanes = {LANES // 2}; lanes > 0; lanes /= 2)", (other,), UNROLL),
            Set("k_stop", f"min(k_stop, {access.end(k)})"),
            Gap(),
        ]

    def start(self) -> list[Statement]:
        """A thread's rows are the same in all tiles."""
        i, rows = self.row
        return [
            Do(f"float {self.top}_own[{rows}]"),
            loop(i, rows, [Set(f"{self.top}_own[{i}]", CONSTANTS[LOWEST.name])], unroll=UNROLL),
        ]

    def move(self, texts: dict[str, str], inside: str) -> list[Statement]:
        """The maximum so far of a vector's row, and everything that the thread has summed about the old one."""
        values, step = self.step(texts, "seen")
        seen = [loop("i", "kVector", [*values, *when(inside, *step)], unroll=UNROLL)]
        return [
            *self.agreed(seen, "kLineM"),
            If("k == 0", (Set(f"moved[{self._line()}]", f"{self.top}_moved"),), alone=True),
        ]

    def step(
        self, texts: dict[str, str], into: str, at: dict[str, str] | None = None
    ) -> tuple[list[Statement], list[Statement]]:
        """An element's values; and how it enters a maximum."""
        look = SideText(self.side.access, self.plan.cut.ahead[0], "ahead")
        own = {name: text for name, text in texts.items() if name in {load.name for load in look.loads}}
        values, names = look.values(own, at=at)
        return values, single_step(self.moving.top, f"{self.top}_{into}", names, prefix=f"{self.top}_")

    def agreed(self, seen: Sequence[Statement], lanes: str) -> list[Statement]:
        """The maximum of what the lanes of a row have seen, and by what all about the old one is multiplied."""
        top, (i, _) = self.top, self.row
        other = Let("const float", f"{top}_other", f"__shfl_xor_sync(0xffffffffu, {top}_seen, lanes)")
        combined = single_combine(self.moving.top, f"{top}_seen", f"{top}_other")
        moved = Call(self.moving.exponential, (Binary("-", Name("old"), Name("new")),))
        factor = Printer({"old": f"{top}_own[{i}]", "new": f"{top}_seen"}).text(moved)
        return [
            Let("float", f"{top}_seen", f"{top}_own[{i}]"),
            *seen,
            For(f"for (int lanes = 1; lanes < {lanes}; lanes *= 2)", (other, *combined), UNROLL),
            Let("const float", f"{top}_moved", factor),
            Set(f"{top}_own[{i}]", f"{top}_seen"),
            *self.moved_sums(),
        ]

    def moved_sums(self) -> list[Statement]:
        i, _ = self.row
        return [Set(f"{name}_own[{i}]", f"{self.top}_moved", "*=") for name in self.moving.sums]

    def keep(self) -> list[Statement]:
        """The maximum of each row, once its tiles are done."""
        put = If("k == 0", (Set("moved[m]", f"{self.top}_own[step]"),), alone=True)
        return [self.side.steps(self.side.of_vectors([put]))] if self.moving.hidden else []

    def show(self) -> list[Statement]:
        """What the thread's rows show: a maximum that is no number yet, and sums about it, are those of -inf."""
        if not self.moving.hidden:
            return []
        top, total = f"{self.top}_all", f"{self.moving.hidden}_all[i]"
        none = (
            Set(f"{top}[i]", MINUS_INFINITE),
            Set(total, f"{top}[i] - {top}[i]", comment="NaN, as exponentials about -inf are"),
        )
        body: list[Statement] = [Set(f"{top}[i]", self.kept), If(f"{total} == 0.0f", none)]
        return [Do(f"float {top}[kThreadM]"), loop("i", "kThreadM", body, unroll=UNROLL)]

    @property
    def kept(self) -> str:
        """The maximum of a thread's row."""
        return "moved[own_m(i)]"

    def _line(self) -> str:
        return "stage * kTileM + m" if self.plan.schedule.stages > 1 else "m"

    def rescale(self) -> list[Statement]:
        """What a thread has summed of products so far, before those of a tile join."""
        at = "stage * kTileM + own_m(i)" if self.plan.schedule.stages > 1 else "own_m(i)"
        known = [Let("const float", f"{self.top}_moved", f"moved[{at}]")]
        return [loop("i", "kThreadM", [*known, self.scaled(f"{self.top}_moved")], unroll=UNROLL)]

    def scaled(self, by: str) -> Statement:
        """What a thread has summed of a row's products, multiplied."""
        scaled = [Set(f"{name}_sum[i][j]", by, "*=") for name in self.moving.dots]
        return If(f"{by} != 1.0f", (loop("j", "kThreadN", scaled, unroll=UNROLL),))


class MovingInLanes(MovingMaximum):
    """The same of lanes that make the factors which they multiply: all of a row's are in the registers of four."""

    row = ("i", "kThreadM")

    def __init__(self, side: MadeSide) -> None:
        super().__init__(side)
        self.made = side

    @property
    def kept(self) -> str:
        return f"{self.top}_own[i]"

    def shared(self) -> list[Statement]:
        return []

    def start(self) -> list[Statement]:
        return [*super().start(), Do(f"float {self.top}_by[kThreadM]")]

    def move(self, texts: dict[str, str], inside: str) -> list[Statement]:
        """Each vector has a maximum of its own first: the processor works on several at once."""
        top, values, step = self.top, *self.step(texts, "part", self.made.at)
        over: list[Statement] = [
            Let("float", f"{top}_part", single_identity(self.moving.top)),
            loop("e", "kVector", [*values, *when(inside, *step)], unroll=UNROLL),
            *single_combine(self.moving.top, f"{top}_seen", f"{top}_part"),
        ]
        return [*self.agreed([self.made.vectors(over)], str(K_LANES)), Set(f"{top}_by[i]", f"{top}_moved")]

    def moved_sums(self) -> list[Statement]:
        scaled = [Set(f"{name}_own[ahead][i]", f"{self.top}_moved", "*=") for name in self.moving.sums]
        return [loop("ahead", "kAhead", scaled, unroll=UNROLL)] if scaled else []

    def keep(self) -> list[Statement]:
        return []

    def rescale(self) -> list[Statement]:
        """One branch for all rows of a thread: within it the factors of those that did not move are 1."""
        by = f"{self.top}_by[i]"
        scaled = [Set(f"{name}_sum[i][j]", by, "*=") for name in self.moving.dots]
        over_n = loop("j", "kThreadN", scaled, unroll=UNROLL)
        return [
            Do("bool moved = false"),
            loop("i", "kThreadM", [Set("moved", f"moved || {by} != 1.0f")], unroll=UNROLL),
            If("moved", (loop("i", "kThreadM", [over_n], unroll=UNROLL),)),
        ]


def moving_of(side: SideText) -> MovingMaximum:
    """Where the side's tiles pass through shared memory, and where they do not."""
    return MovingInLanes(side) if isinstance(side, MadeSide) else MovingMaximum(side)
