"""The blocks of a cluster share a tile, each with a part of k: what they have is added up by the first of them."""

from __future__ import annotations

from normgen.codegen.reductions import single_combine
from normgen.codegen.statements import Comment, Do, Gap, If, Let, Set, Statement, constant, loop, setting
from normgen.codegen.tiles.access import TileAccess
from normgen.codegen.tiles.side import UNROLL


class PartsText:
    """Each thread hands its sums to the thread of the same number in the first block, which adds in order of blocks."""

    def __init__(self, access: TileAccess) -> None:
        self.access, self.plan = access, access.plan
        self.in_slots = self.plan.hands_in_slots
        self.threads = "(32 * kWarps)" if self.in_slots else "kThreads"  # of a block, that have sums
        self.cell = "_part[i / 2][i % 2 * kThreadN + j]" if self.in_slots else "_sum[i][j]"

    def constants(self) -> list[Let]:
        if self.plan.parts == 1:
            return []
        steps = f"({self.access.size(self.plan.cut.k)} + kParts * kTileK - 1) / (kParts * kTileK)"
        return [
            setting("kParts", self.plan.parts, "blocks of a cluster that share a tile"),
            constant("kPartK", f"{steps} * kTileK", f"of {self.plan.cut.k}, what each of them sums"),
        ]

    def sum_of(self, name: str) -> str:
        return f"{name}{self.cell}"

    def begin(self) -> list[Statement]:
        """Where along k a block begins and ends."""
        if self.plan.parts == 1:
            return []
        size = self.access.size(self.plan.cut.k)
        started = [] if self.in_slots else [Do("cluster_arrive_relaxed()", "the others may write to its shared memory")]
        return [
            Let("const int", "k_begin", "cluster_rank() * kPartK"),
            Let("const int", "k_end", f"min({size}, k_begin + kPartK)"),
            *started,
        ]

    def meet(self) -> list[Statement]:
        if self.plan.parts == 1:
            return []
        cut = self.plan.cut
        left: list[Statement] = []
        added: list[Statement] = []
        place, handed = f"* {self.threads} + threadIdx.x", list[str]()
        for reduce in cut.sums:
            cell, own = " + ".join([*handed, "i * kThreadN + j"]), self.sum_of(reduce.names[0])
            left.append(self._all(cell, own, two=True))
            total = Set(own, f"left[(part * kLeft + {cell}) {place}]", "+=")
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

    def _all(self, cell: str, value: str, *, two: bool) -> Statement:
        at = f"left + ((cluster_rank() - 1) * kLeft + {cell}) * {self.threads} + threadIdx.x"
        return self._over(Do(f"cluster_store({at}, 0, {value})"), two=two)

    def _over(self, one: Statement, *, two: bool) -> Statement:
        inner = [loop("j", "kThreadN", [one], unroll=UNROLL)] if two else [one]
        return loop("i", "kThreadM", inner, unroll=UNROLL)
