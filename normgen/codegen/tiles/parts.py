"""The blocks of a cluster share a tile, each with a part of k: what they have is added up by the first of them."""

from __future__ import annotations

from normgen.codegen.reductions import single_combine
from normgen.codegen.statements import Comment, Do, For, Gap, If, Let, Set, Statement, constant, loop, setting
from normgen.codegen.tiles.access import TileAccess
from normgen.codegen.tiles.side import UNROLL
from normgen.schedule.tiles.fragment import WARP

FOUR = 4  # numbers of 16 bytes


class PartsText:
    """Each thread hands its sums to the thread of the same number in the first block, which adds in order of blocks."""

    def __init__(self, access: TileAccess) -> None:
        self.access, self.plan = access, access.plan
        self.in_slots = self.plan.hands_in_slots

    def constants(self) -> list[Let]:
        if self.plan.parts == 1:
            return []
        steps = f"({self.access.size(self.plan.cut.k)} + kParts * kTileK - 1) / (kParts * kTileK)"
        return [
            setting("kParts", self.plan.parts, "blocks of a cluster that share a tile"),
            constant("kPartK", f"{steps} * kTileK", f"of {self.plan.cut.k}, what each of them sums"),
        ]

    def begin(self) -> list[Statement]:
        """Where along k a block begins and ends."""
        if self.plan.parts == 1:
            return []
        size = self.access.size(self.plan.cut.k)
        started = Do("cluster_arrive_relaxed()", "the others may write to this block's shared memory")
        return [
            Let("const int", "k_begin", "cluster_rank() * kPartK"),
            Let("const int", "k_end", f"min({size}, k_begin + kPartK)"),
            *([] if self.in_slots else [started]),
        ]

    def meet(self) -> list[Statement]:
        if self.plan.parts == 1:
            return []
        cut = self.plan.cut
        left: list[Statement] = []
        added: list[Statement] = []
        place, handed = "* kThreads + threadIdx.x", list[str]()
        for reduce in cut.sums:
            cell, name = " + ".join([*handed, "i * kThreadN + j"]), reduce.names[0]
            if self.in_slots:
                left.append(self._by_fours(self._sent(cell, name)))
                added.append(self._by_fours(*self._received(cell, name)))
            else:
                left.append(self._all(cell, f"{name}_sum[i][j]", two=True))
                total = Set(f"{name}_sum[i][j]", f"left[(part * kLeft + {cell}) {place}]", "+=")
                added.append(self._over(total, two=True))
            handed.append("kThreadM * kThreadN")
        for reduce in cut.left.riding:
            own, cell = f"{reduce.names[0]}_all[i]", " + ".join([*handed, "i"])
            left.append(self._all(cell, own, two=False))
            one = single_combine(reduce, own, f"left[(part * kLeft + {cell}) {place}]")
            added.append(loop("i", "kThreadM", one, unroll=UNROLL))
            handed.append("kThreadM")
        return [
            Gap(),
            Comment("The first block of the cluster adds up what all have, in their order."),
            constant("kLeft", " + ".join(handed), "numbers that a thread hands on"),
            *self.place(),
            If("cluster_rank() > 0", tuple(left)),
            Do("cluster_arrive()"),
            Do("cluster_wait()"),
            If("cluster_rank() > 0", (Do("return"),), alone=True),
            loop("part", "kParts - 1", added),
        ]

    def place(self) -> list[Statement]:
        """Where the first block has what others hand on, when it has room: behind its slots, or in their place."""
        start = "reinterpret_cast<float*>(dynamic_shared())"
        if self.in_slots:
            free = Do("cluster_wait()", "nobody reads the slots of the first block any more")
            return [Let("float* const", "left", start), Do("cluster_arrive()"), free]
        return [Let("float* const", "left", f"{start} + kSlots"), Do("cluster_wait()", "the first block has started")]

    # ---- of teams, whose threads have fours of sums side by side, in another order -----------------------------------

    def _sent(self, cell: str, name: str) -> Statement:
        values = ", ".join(f"{name}_part[i / 2][i % 2 * kThreadN + j + {e}]" for e in range(FOUR))
        return Do(f"cluster_store_four({self._fours('(cluster_rank() - 1)', cell)}, 0, {values})")

    def _received(self, cell: str, name: str) -> list[Statement]:
        total = Set(f"{name}_part[i / 2][i % 2 * kThreadN + j + e]", "element(handed, e)", "+=")
        vector = Let(f"const Vec<float, {FOUR}>", "handed", f"read<{FOUR}>({self._fours('part', cell)})")
        return [vector, loop("e", str(FOUR), [total], unroll=UNROLL)]

    def _fours(self, part: str, cell: str) -> str:
        return f"left + (({part} * kLeft + {cell}) / {FOUR} * ({WARP} * kWarps) + threadIdx.x) * {FOUR}"

    def _by_fours(self, *body: Statement) -> Statement:
        inner = For(f"for (int j = 0; j < kThreadN; j += {FOUR})", tuple(body), UNROLL)
        return loop("i", "kThreadM", [inner], unroll=UNROLL)

    # ---- of others ---------------------------------------------------------------------------------------------------

    def _all(self, cell: str, value: str, *, two: bool) -> Statement:
        at = f"left + ((cluster_rank() - 1) * kLeft + {cell}) * kThreads + threadIdx.x"
        return self._over(Do(f"cluster_store({at}, 0, {value})"), two=two)

    def _over(self, one: Statement, *, two: bool) -> Statement:
        inner = [loop("j", "kThreadN", [one], unroll=UNROLL)] if two else [one]
        return loop("i", "kThreadM", inner, unroll=UNROLL)
