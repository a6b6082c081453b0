"""What teams make of their sums: four lanes have two elements each of every eighth column, and store whole pieces."""

from __future__ import annotations

from collections.abc import Sequence

from normgen.codegen.statements import Do, For, Let, Set, Statement, loop, when
from normgen.codegen.tiles.access import TileAccess
from normgen.codegen.tiles.epilogue import WIDTH, Epilogue
from normgen.codegen.tiles.reduced import ReducedText
from normgen.codegen.tiles.side import UNROLL
from normgen.program.ir import Load, Map, Reduce, Store
from normgen.schedule.tiles.fragment import VECTOR

Step = Load | Map | Store | Reduce


class ExchangedSums(Epilogue):
    """Lanes exchange their sums in front: accesses to the result and to what is as large are whole pieces."""

    def __init__(self, access: TileAccess, reduced: ReducedText | None) -> None:
        super().__init__(access, reduced)
        self.first = f"n0 == 0 && tn == 0 && {self.start} == 0"

    @property
    def in_parts(self) -> bool:
        """Whether an access is shorter than a piece."""
        return self.plan.schedule.vector < self.plan.piece(self.plan.cut.n)

    @property
    def start(self) -> str:
        """Of a lane's elements the first of a piece."""
        return "piece" if self.in_parts else "j"

    def sum_of(self, name: str) -> str:
        return f"{name}_piece[i][{'j - piece + e' if self.in_parts else 'e'}]"

    def statements(self) -> list[Statement]:
        lines, elements = self.parts()
        inside_m, inside_n = self.inside
        vector = (Let("const int", "n", "n0 + own_n(j)"), *when(inside_n, *self._vector(elements)))
        start, step = self.start, "kPieceN" if self.in_parts else WIDTH
        if self.in_parts:
            vector = (For(f"for (int j = piece; j < piece + kPieceN; j += {WIDTH})", vector, UNROLL),)
        body = (Let("const int", "m", "m0 + own_m(i)"), *when(inside_m, *self._line(lines), *vector))
        names = [r.names[0] for r in self.plan.cut.sums]
        exchanged = [
            Do(f"whole_piece(&{name}_part[i][2 * {start}], {name}_piece[2 * i], {name}_piece[2 * i + 1])")
            for name in names
        ]
        pieces: list[Statement] = [
            *(Do(f"float {name}_piece[kThreadM][kPieceN]") for name in names),
            loop("i", "kThreadM / 2", exchanged, unroll=UNROLL),
            loop("i", "kThreadM", body, unroll=UNROLL),
        ]
        head = f"for (int {start} = 0; {start} < kThreadN; {start} += {step})"
        return [*self._scalars(self.plan.cut.epilogue), For(head, tuple(pieces), UNROLL)]


class ExchangedResults(Epilogue):
    """Lanes exchange what they store, of which two elements are a word: half as many exchanges."""

    first = "n0 == 0 && tn == 0 && piece == 0"

    def sum_of(self, name: str) -> str:
        return f"{name}_part[i / 2][2 * j + i % 2 * 2 + e]"

    def statements(self) -> list[Statement]:
        lines, elements = self.parts()
        inside_m, inside_n = self.inside
        stores = [s for s in elements if isinstance(s, Store)]
        reads_n = any(isinstance(s, Load) for s in elements)
        vector = (Let("const int", "n", "n0 + own_n(j)"), *when(inside_n if reads_n else "", *self._vector(elements)))
        over_n = For(f"for (int j = piece; j < piece + {VECTOR}; j += {WIDTH})", vector, UNROLL)
        m = Let("const int", "m", "m0 + own_m(i)")
        made = [m, *when(inside_m if lines else "", *self._line(lines), over_n)]
        exchanged = [Do(f"whole_words({s.tensor}_pieces[i].bits)") for s in stores]
        written = [one for s in stores for one in self._write_piece(s)]
        whole = when(inside_n, *written)
        stored = [m, *when(inside_m, Let("const int", "n", f"n0 + 4 * piece + {VECTOR} * tn"), *whole)]
        group: list[Statement] = [
            *(Do(f"{self.access.vec(s.tensor, str(VECTOR))} {s.tensor}_pieces[kThreadM]") for s in stores),
            loop("i", "kThreadM", [*made, *exchanged], unroll=UNROLL),
            loop("i", "kThreadM", stored, unroll=UNROLL),
        ]
        head = f"for (int piece = 0; piece < kThreadN; piece += {VECTOR})"
        return [*self._scalars(self.plan.cut.epilogue), For(head, tuple(group), UNROLL)]

    def _write(self, store: Store) -> tuple[Statement, ...]:
        """What a lane has of a piece."""
        tensor = store.tensor
        return (
            Do(f"{self.access.vec(tensor, WIDTH)} {tensor}_vec"),
            Do(f"pack({tensor}_vec, {tensor}_values)"),
            Set(f"{tensor}_pieces[i].bits[(j - piece) / {WIDTH}]", f"{tensor}_vec.bits[0]"),
        )

    def _write_piece(self, store: Store) -> tuple[Statement, ...]:
        address = self.access.address(store.tensor, self.at)
        return self.access.if_wanted(store.tensor, Do(f"write<Store>({address}, {store.tensor}_pieces[i])"))


def exchanged(access: TileAccess, *, results: bool) -> Sequence[Statement]:
    """The one or the other."""
    return (ExchangedResults if results else ExchangedSums)(access, None).statements()
