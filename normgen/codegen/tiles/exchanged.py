"""What teams make of their sums: four lanes have two elements each of every eighth column, and store whole pieces."""

from __future__ import annotations

from collections.abc import Sequence

from normgen.codegen.statements import Do, For, Let, Set, Statement, loop, when
from normgen.codegen.tiles.access import TileAccess
from normgen.codegen.tiles.epilogue import WIDTH, Epilogue
from normgen.codegen.tiles.side import UNROLL
from normgen.program.ir import Load, Map, Reduce, Store
from normgen.schedule.tiles.fragment import VECTOR

Step = Load | Map | Store | Reduce


class ExchangedSums(Epilogue):
    """Lanes exchange their sums in front: accesses to the result and to what is as large are whole pieces."""

    first = "n0 == 0 && tn == 0 && j == 0"

    def sum_of(self, name: str) -> str:
        return f"{name}_piece[i][e]"

    def statements(self) -> list[Statement]:
        lines, elements = self.parts()
        inside_m, inside_n = self.inside
        vector = (Let("const int", "n", "n0 + own_n(j)"), *when(inside_n, *self._vector(elements)))
        body = (Let("const int", "m", "m0 + own_m(i)"), *when(inside_m, *self._line(lines), *vector))
        names = [r.names[0] for r in self.plan.cut.sums]
        exchanged = [
            Do(f"whole_piece(&{name}_part[i][2 * j], {name}_piece[2 * i], {name}_piece[2 * i + 1])") for name in names
        ]
        pieces: list[Statement] = [
            *(Do(f"float {name}_piece[kThreadM][kPieceN]") for name in names),
            loop("i", "kThreadM / 2", exchanged, unroll=UNROLL),
            loop("i", "kThreadM", body, unroll=UNROLL),
        ]
        head = f"for (int j = 0; j < kThreadN; j += {WIDTH})"
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
        reads_n = any(isinstance(s, Load) and self.n in s.kind.axes for s in self.plan.cut.epilogue)
        vector = (Let("const int", "n", "n0 + own_n(j)"), *when(inside_n if reads_n else "", *self._vector(elements)))
        over_n = For(f"for (int j = piece; j < piece + {VECTOR}; j += {WIDTH})", vector, UNROLL)
        m = Let("const int", "m", "m0 + own_m(i)")
        reads_m = any(self.m in s.kind.axes for s in self.plan.cut.epilogue if isinstance(s, Load))
        made = [m, *when(inside_m if lines or reads_m else "", *self._line(lines), over_n)]
        exchanged = [Do(f"whole_{self._unit(s)}({s.tensor}_pieces[i].bits)") for s in stores]
        written = [one for s in stores for one in self._write_piece(s)]
        whole = when(inside_n, *written)
        stored = [m, *when(inside_m, Let("const int", "n", f"n0 + 4 * piece + {VECTOR} * tn"), *whole)]
        group: list[Statement] = [
            *(Do(f"{self.access.vec(s.tensor, str(VECTOR))} {s.tensor}_pieces[kThreadM]") for s in stores),
            loop("i", "kThreadM", [*made, *exchanged], unroll=UNROLL),
            loop("i", "kThreadM", stored, unroll=UNROLL),
        ]
        head = f"for (int piece = 0; piece < kThreadN; piece += {VECTOR})"
        return [*self._scalars(self.plan.cut.epilogue), *self.of_groups(), For(head, tuple(group), UNROLL)]

    def _unit(self, store: Store) -> str:
        """What two elements are."""
        return "words" if self.access.problem.tensor(store.tensor).dtype.bytes == 2 else "halves"

    def _write(self, store: Store) -> tuple[Statement, ...]:
        """What a lane has of a piece."""
        tensor = store.tensor
        place, two = f"{tensor}_pieces[i].bits[(j - piece) / {WIDTH}]", f"{tensor}_vec.bits[0]"
        if self._unit(store) == "halves":
            place = f"{tensor}_pieces[i].bits[(j - piece) / 4]"
            two = f"(j - piece) % 4 == 0 ? {two} : {place} | {two} << 16"
        return (
            Do(f"{self.access.vec(tensor, WIDTH)} {tensor}_vec"),
            Do(f"pack({tensor}_vec, {tensor}_values)"),
            Set(place, two),
        )

    def _write_piece(self, store: Store) -> tuple[Statement, ...]:
        address = self.access.address(store.tensor, self.at)
        return self.access.if_wanted(store.tensor, Do(f"write<Store>({address}, {store.tensor}_pieces[i])"))


def exchanged(access: TileAccess, *, results: bool) -> Sequence[Statement]:
    """The one or the other."""
    return (ExchangedResults if results else ExchangedSums)(access, None).statements()
