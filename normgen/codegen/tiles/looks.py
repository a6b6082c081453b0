"""Statistics of the left side's rows that its factors wait for: a look ahead, or maxima that move with the products.

A row's maximum must be known before its exponentials are. Either warps look at all rows of the tile first
(`LooksAhead`), and the products' loop reads these rows again. Or each tile of k has a maximum so far (`MovingMaximum`):
when it moves, everything that was summed of exponentials about the old one is multiplied by exp(old - new), the
products' sums among them. Then a row is read once.
"""

from __future__ import annotations

from normgen.codegen.printer import MINUS_INFINITE, Printer
from normgen.codegen.reductions import CONSTANTS, single_combine, single_identity, single_step
from normgen.codegen.statements import Comment, Do, For, Gap, If, Let, Set, Statement, loop, when
from normgen.codegen.tiles.access import TileAccess
from normgen.codegen.tiles.side import UNROLL, SideText
from normgen.program.ir import Reduce
from normgen.program.monoid import LOWEST
from normgen.schedule.tiles.cut import Side
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

    def __init__(self, side: SideText) -> None:
        self.side, self.plan = side, side.plan
        self.moving = moving_maximum(self.plan.cut)
        self.top = self.moving.top.names[0]

    def shared(self) -> list[Statement]:
        return [Let("float* const", "moved", "reinterpret_cast<float*>(dynamic_shared()) + kSlots")]

    def start(self) -> list[Statement]:
        """A thread's rows are the same in all tiles."""
        lowest = CONSTANTS[LOWEST.name]
        return [
            Do(f"float {self.top}_own[kStepsM]"),
            loop("step", "kStepsM", [Set(f"{self.top}_own[step]", lowest)], unroll=UNROLL),
        ]

    def move(self, texts: dict[str, str], inside: str) -> list[Statement]:
        """The maximum so far of a vector's row, and everything that the thread has summed about the old one."""
        top, seen = self.top, f"{self.top}_seen"
        look = SideText(self.side.access, self.plan.cut.ahead[0], "ahead")
        own = {name: text for name, text in texts.items() if name in {load.name for load in look.loads}}
        values, names = look.values(own)
        step = single_step(self.moving.top, seen, names, prefix=f"{top}_")
        other = Let("const float", f"{top}_other", f"__shfl_xor_sync(0xffffffffu, {seen}, lanes)")
        combined = single_combine(self.moving.top, seen, f"{top}_other")
        moved = Call(self.moving.exponential, (Binary("-", Name("old"), Name("new")),))
        factor = Printer({"old": f"{top}_own[step]", "new": seen}).text(moved)
        scaled = [Set(f"{name}_own[step]", f"{top}_moved", "*=") for name in self.moving.sums]
        return [
            Let("float", seen, f"{top}_own[step]"),
            loop("i", "kVector", [*values, *when(inside, *step)], unroll=UNROLL),
            For("for (int lanes = 1; lanes < kLineM; lanes *= 2)", (other, *combined), UNROLL),
            Let("const float", f"{top}_moved", factor),
            Set(f"{top}_own[step]", seen),
            *scaled,
            If("k == 0", (Set(f"moved[{self._line()}]", f"{top}_moved"),), alone=True),
        ]

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
        body: list[Statement] = [Set(f"{top}[i]", "moved[own_m(i)]"), If(f"{total} == 0.0f", none)]
        return [Do(f"float {top}[kThreadM]"), loop("i", "kThreadM", body, unroll=UNROLL)]

    def _line(self) -> str:
        return "stage * kTileM + m" if self.plan.schedule.stages > 1 else "m"

    def rescale(self) -> list[Statement]:
        """What a thread has summed of products so far, before those of a tile join."""
        at = "stage * kTileM + own_m(i)" if self.plan.schedule.stages > 1 else "own_m(i)"
        scaled = [Set(f"{name}_sum[i][j]", f"{self.top}_moved", "*=") for name in self.moving.dots]
        body: list[Statement] = [
            Let("const float", f"{self.top}_moved", f"moved[{at}]"),
            If(f"{self.top}_moved != 1.0f", (loop("j", "kThreadN", scaled, unroll=UNROLL),)),
        ]
        return [loop("i", "kThreadM", body, unroll=UNROLL)]
