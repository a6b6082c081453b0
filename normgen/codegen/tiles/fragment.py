"""The products of a tile as text: which lanes own what, and how factors get from the slots to the sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from normgen.codegen.module import Param
from normgen.codegen.statements import Comment, Do, For, Gap, If, Let, Set, Statement, constant, function, loop, setting
from normgen.codegen.tiles.access import TileAccess
from normgen.codegen.tiles.raster import Raster
from normgen.codegen.tiles.side import UNROLL, MatrixSide, SideText
from normgen.schedule.tiles.fragment import PAD, PIECE, TensorCores

Sides = tuple[SideText, SideText]


class SimtText:
    """Each thread reads pieces of its factors, and multiplies them one by one."""

    side: type[SideText] = SideText
    left: type[SideText] = SideText
    said: tuple[str, ...] = ()
    places = "Pieces of a thread lie apart: side by side are those of its neighbours, in banks of their own."

    def __init__(self, access: TileAccess, sides: Sides) -> None:
        self.access, self.plan, self.sides = access, access.plan, sides

    def params(self) -> list[Param]:
        """Of the kernel, beside those of its tensors."""
        return []

    def place(self) -> list[Statement]:
        """Which tile a block owns."""
        return Raster(self.access).of_block()

    def own(self, letter: str) -> str:
        """The place in a tile of a thread's element i of an axis."""
        own = "[&](int i) {{ return t{0} * kPiece{1} + i / kPiece{1} * kApart{1} + i % kPiece{1}; }}"
        return own.format(letter.lower(), letter)

    def depth(self) -> list[Let]:
        """Constants of a step along k."""
        said = "of these, what a thread reads at a time where a side lies along k"
        return [setting("kPieceK", PIECE, said)] if self.plan.reads_pieces_of_k else []

    def between(self) -> list[Let]:
        """Constants of what lies between lines of slots."""
        why = "floats behind each line of a slot: the lines start in different banks"
        return [constant("kPad", str(PAD), why)]

    def lanes(self) -> list[Statement]:
        """Which part of the tile a thread owns: those of a warp lie in a rectangle, so that its lanes share pieces.

        Shared memory serves 16 lanes at a time with 16 bytes each where neighbouring lanes, or those two apart, read
        the same: lanes alternate along m, and then go on along n.
        """
        down, _ = self.plan.lanes
        m, n = ("lane / (2 * kLanesN) * 2 + lane % 2", "lane / 2 % kLanesN") if down > 1 else ("0", "lane")
        return self.rectangle(m, n)

    def asked(self) -> list[Statement]:
        """What comes to L2 while the block waits for the kernels in front."""
        return []

    def rectangle(self, m: str, n: str) -> list[Statement]:
        """The lanes' rectangle; m, n: where a lane is in it."""
        down, across = self.plan.lanes
        return [
            setting("kLanesM", down, "lanes of a warp along m"),
            setting("kLanesN", across, "and along n"),
            constant("kWarpsN", "kTileN / kThreadN / kLanesN", "warps along n"),
            Let("const int", "lane", "threadIdx.x % 32"),
            Let("const int", "warp", "threadIdx.x / 32"),
            Let("const int", "tm", f"kept(warp / kWarpsN * kLanesM + {m})"),
            Let("const int", "tn", f"kept(warp % kWarpsN * kLanesN + {n})"),
        ]

    def lines(self) -> list[Statement]:
        """Where a thread's factors lie in the slots."""
        line = "[&](int i) {{ return t{0} + i / kPiece{1} * (kTile{1} / kThread{1}) + i % kPiece{1} * "
        line += "(kTile{1} / kPiece{1}); }}"
        found: list[Statement] = [
            Let("const auto", f"line_{side.index}", line.format(side.index, side.letter))
            for side in self.sides
            if side.lies_deep and self.plan.in_shared
        ]
        said = Comment("Pieces along k lie in lines, of which neighbours' are neighbours.")
        return [said, *found] if found else []

    def products(self, left: str = "_part[i]", right: str = "_part[j]") -> list[Statement]:
        """One of each thread's products, of parts at i and j."""
        added: list[Statement] = []
        for reduce, x, y in self.factors():
            total = f"{reduce}_sum[i][j]"
            added.append(Set(total, f"fmaf({x}{left}, {y}{right}, {total})"))
        return added

    def from_memory(self) -> list[Statement]:
        """No thread knows what another one reads."""
        over_n = loop("j", "kThreadN", self.products(), unroll=UNROLL)
        body = [*(s for side in self.sides for s in side.reload()), loop("i", "kThreadM", [over_n], unroll=UNROLL)]
        k = self.plan.cut.k
        head = f"for (int k = {self.access.begin(k)}; k < {self.access.end(k)}; ++k)"
        return [For(head, tuple(body), "#pragma unroll kTileK")]

    def factors(self) -> list[tuple[str, str, str]]:
        """Of each sum: its name, and those of its left and right factors."""
        left, right = (side.slots for side in self.sides)
        pairs = [(r.names[0], *(r.args if r.args[0] in left else reversed(r.args))) for r in self.plan.cut.sums]
        return [(name, left[x], right[y]) for name, x, y in pairs]

    def multiply(self, stage: str, rescale: Sequence[Statement]) -> list[Statement]:
        """The function that multiplies a tile of k."""
        step = "k += kPieceK" if self.plan.reads_pieces_of_k else "++k"
        over_k = For(f"for (int k = 0; k < kTileK; {step})", tuple(self._step()), UNROLL)
        return [function("multiply", stage, [*rescale, over_k])]

    def _step(self) -> list[Statement]:
        """A step's products of a thread.

        A product reads one register of each of two banks in a clock, beside one that the product before has read. With
        k in the same order for all lines, sums of one bank wait half of the time: on an H200 f32 at 4096^3 in torch's
        order then takes 3143 us instead of 3018.
        """
        left, right = self.sides
        i, j = (partial(loop, index, f"kThread{x}", unroll=UNROLL) for x, index in (("M", "i"), ("N", "j")))
        if not self.plan.reads_pieces_of_k:
            return [*left.read_parts(), *right.read_parts(), i([j(self.products())])]
        if left.lies_deep and right.lies_deep:  # a line at a time, of which a thread has registers for one
            line = [Do(f"float {name}_line[kPieceK]") for name in right.slots.values()]
            at = Let(
                "const int",
                "at",
                "e ^ j % 2",
                "of odd lines in another order: their sums lie in the other bank of registers",
            )
            over = loop("e", "kPieceK", [at, i(self.products("_part[i][at]", "_line[at]"))], unroll=UNROLL)
            return [*left.read_parts(), j([*line, *right.read_line("j", "_line"), over])]
        deep, flat = (left, right) if left.lies_deep else (right, left)
        names = ("_part[i][e]", "_part[j]") if left.lies_deep else ("_part[i]", "_part[j][e]")
        over = loop("e", "kPieceK", [*flat.read_parts(), i([j(self.products(*names))])], unroll=UNROLL)
        return [*deep.read_parts(), over]


class MmaText(SimtText):
    """A warp reads matrices for a step along k while it multiplies those of the step before."""

    side = left = MatrixSide
    places = "The line and the column of a lane's sums: the layout of mma's accumulators."
    said = ("Warps multiply by tensor cores.",)

    @property
    def cores(self) -> TensorCores:
        assert isinstance(self.plan.fragment, TensorCores)
        return self.plan.fragment

    def depth(self) -> list[Let]:
        return [constant("kSteps", f"kTileK / {self.cores.deep}", "of these, what tensor cores multiply at a time")]

    def between(self) -> list[Let]:
        return []

    def lanes(self) -> list[Statement]:
        return self.rectangle("lane / kLanesN", "lane % kLanesN")

    def lines(self) -> list[Statement]:
        """The line that a lane points at, of the four matrices of a read: two along the side's axis by two along k."""
        whole = self.cores.whole
        found: list[Statement] = [Comment(f"A lane points at a line of {whole} of one of four matrices.")]
        for side, warp, half, k_half in zip(
            self.sides,
            ("warp / kWarpsN", "warp % kWarpsN"),
            ("lane / 8 % 2", "lane / 16"),
            ("lane / 16", "lane / 8 % 2"),
            strict=True,
        ):
            x, own = side.letter, f"{warp} * 8 + {half} * kApart{side.letter}"
            deep = f"{own} + lane % 8", f"{k_half} * {whole}"
            at, k = deep if side.lies_deep else (own, f"{k_half} * 8 + lane % 8")
            found += [Let("const int", f"at_{x.lower()}", at), Let("const int", f"k_{x.lower()}", k)]
        return found

    def multiply(self, stage: str, rescale: Sequence[Statement]) -> list[Statement]:
        parts = [part for side in self.sides for part in side.parts()]
        read = [statement for side in self.sides for statement in side.read_parts()]
        of = "[step % 2]"
        added = [
            Do(f"mma_{self.plan.fragment.dtype.name}(&{x}_part{of}[2 * i], &{y}_part{of}[j], &{total}_sum[i][j], "
               f"&{total}_sum[i + 1][j])")
            for total, x, y in self.factors()
        ]  # fmt: skip
        over_n = For("for (int j = 0; j < kThreadN; j += 2)", tuple(added), UNROLL)
        over_m = For("for (int i = 0; i < kThreadM; i += 2)", (over_n,), UNROLL)
        found = [
            *parts,
            function("read_parts", ", ".join(filter(None, (stage, "int step"))), read),
            Gap(),
            function("add_products", "int step", [over_m]),
        ]
        if self.plan.runs_ahead:
            return found
        return [*found, Gap(), function("multiply", stage, [*rescale, *self._tile(stage)])]

    def _tile(self, stage: str) -> list[Statement]:
        place = stage.replace("int ", "")
        read = [f"read_parts({', '.join(filter(None, (place, step)))})" for step in ("0", "step + 1")]
        ahead = If("step + 1 < kSteps", (Do(read[1]),), alone=True)
        return [Do(read[0]), loop("step", "kSteps", [ahead, Do("add_products(step)")], unroll=UNROLL)]
