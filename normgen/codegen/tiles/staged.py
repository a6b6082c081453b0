"""What teams make of their sums: pairs of columns, which pass through stages on their way from memory and to it."""

from __future__ import annotations

from collections.abc import Sequence

from normgen.codegen.module import Boxes, Param, Source
from normgen.codegen.statements import Do, For, Let, Set, Statement, function, loop, setting, when
from normgen.codegen.tiles.access import SOURCES, TileAccess, both
from normgen.codegen.tiles.epilogue import WIDTH, Epilogue
from normgen.codegen.tiles.reduced import ReducedByTiles, ReducedText
from normgen.codegen.tiles.ring import Ring
from normgen.codegen.tiles.side import UNROLL
from normgen.program.ir import Load, Store
from normgen.schedule.tiles.fragment import VECTOR
from normgen.schedule.tiles.wgmma import BESIDE, PASSED_BYTES, Wgmma

MAP = "const __grid_constant__ TensorMap"
OF_COLUMNS = "for (int n = n0; n < n0 + kTileN; n += kPassN)"


class Passing:
    """What is as large as the result, and goes by boxes of 64 or 32 columns of a tile."""

    def __init__(self, access: TileAccess, fragment: Wgmma) -> None:
        self.access, self.fragment = access, fragment
        self.loads, self.stores = fragment.passing
        places: list[tuple[int, Load | Store]] = [*enumerate(self.loads), *enumerate(self.stores)]
        self.tensors = {step.tensor: place for place, step in places}

    def __bool__(self) -> bool:
        return self.fragment.pass_columns > 0

    @property
    def hands_on(self) -> bool:
        """Whether teams leave results for others: to be stored, or reduced."""
        return bool(self.stores or self.fragment.cut.reduced)

    def constants(self) -> list[Let]:
        said = "columns of a tile that pass through a stage at a time behind the products"
        return [setting("kPassN", self.fragment.pass_columns, said)] if self else []

    def params(self) -> list[Param]:
        """The maps of their memory."""
        m, n = self.fragment.cut.m, self.fragment.cut.n
        boxes = Boxes(line=(SOURCES[n], self.fragment.box), lines=(SOURCES[m], self.fragment.schedule.tile_m))
        names = dict.fromkeys(self.access.problem.tensor(tensor).memory for tensor in self.tensors)
        return [Param(name=f"{t}_map", ctype=MAP, source=Source.TENSOR_MAP, key=t, boxes=boxes) for t in names]

    def places(self) -> list[Statement]:
        """Where in the first stage each of them lies."""
        found: list[Statement] = []
        for tensor, place in self.tensors.items():
            ctype, behind = self.access.ctype(tensor), f" + {place} * kTileM * kPassN".replace(" 1 *", "")
            start = f"reinterpret_cast<{ctype}*>(dynamic_shared()){behind if place else ''}"
            found.append(Let(f"{ctype}* const", f"{tensor}_tiles", start))
        return found

    def cell(self) -> list[Statement]:
        """Where in a stage a lane's pair lies, which is the same of each of them."""
        box = self.fragment.box
        pieces = box // VECTOR  # of a line, which change places
        line = f"(j / {box // 4} % (kPassN / {box}) * kTileM + own_m(i)) * {box}"
        piece = f"(j / 2 % {pieces} ^ tm / {8 // pieces} % {pieces})".replace(" / 1 ", " ")
        body = Do(f"return {self._stage} + {line} + {piece} * {VECTOR} + 2 * tn")
        return [function("cell_of", "int i, int j", [body])] if self.tensors else []

    def asked(self, ring: Ring) -> list[Statement]:
        """By the thread that asks for tiles: behind those of the sides a stage for each pass."""
        if not self:
            return []
        count = f"{len(self.loads)} * ".removeprefix("1 * ")
        boxes = [self._box("tensor_load({0}, {1}, &full[stage])", load.tensor) for load in self.loads]
        filled = ring.filled(f"{count}kTileM * kPassN * {PASSED_BYTES}" if boxes else "", self._over_boxes(boxes))
        return [For(OF_COLUMNS, tuple(filled))]

    def stored(self, ring: Ring) -> list[Statement]:
        """By the warp beside the one that asks for tiles, or by all warps beside it."""
        boxes = [self._box("tensor_store({1}, {0})", store.tensor) for store in self.stores]
        warps = BESIDE if self.fragment.cut.reduced else 1
        steps = f"({self.access.size(self.fragment.cut.k)} + kTileK - 1) / kTileK"
        behind = Set("stage", f"(stage + {steps}) % kStages", comment="behind those of the sides")
        return [behind, For(OF_COLUMNS, tuple(ring.stored(self._over_boxes(boxes), warps=warps)))]

    @property
    def _stage(self) -> str:
        """Where a stage begins, in elements of what passes."""
        return f"{self.fragment.held_bytes // PASSED_BYTES} * stage * kStage".removeprefix("1 * ")

    def _over_boxes(self, boxes: list[Statement]) -> list[Statement]:
        return [For(f"for (int at = 0; at < kPassN; at += {self.fragment.box})", tuple(boxes))] if boxes else []

    def _box(self, call: str, tensor: str) -> Statement:
        memory = self.access.problem.tensor(tensor).memory
        return Do(call.format(f"&{tensor}_tiles[{self._stage} + at * kTileM]", f"&{memory}_map, n + at, m0"))


class StagedEpilogue(Epilogue):
    """Lanes have two columns side by side of every eighth: what does not pass through stages they read and write so."""

    def __init__(self, access: TileAccess, passing: Passing, ring: Ring, reduced: ReducedText | None) -> None:
        super().__init__(access, reduced)
        self.passing, self.ring = passing, ring

    @property
    def first(self) -> str:
        return "n0 == 0 && tn == 0" + (" && pass == 0" if self.passing else "")

    def sum_of(self, name: str) -> str:
        pair = "2 * j" if self.plan.has_whole_vectors else "j / 2 * 4 + j % 2"  # an odd number of columns has no pairs
        return f"{name}_part[i / 2][{pair} + i % 2 * 2 + e]"

    def statements(self) -> list[Statement]:
        lines, elements = self.parts()
        inside_m, inside_n = self.inside
        apart = {*self.passing.tensors, *(store.tensor for store in self.exchanged)}
        past = [s for s in elements if isinstance(s, Load | Store) and s.tensor not in apart]
        asks_m = lines or any(self.m in s.kind.axes for s in past)
        asks_n = past or self.reduced
        vector = [Let("const int", "n", "n0 + own_n(j)"), *when(inside_n if asks_n else "", *self._vector(elements))]
        over_n = self._over_columns(vector)
        before = [*self._line(lines), *self._read_ahead(), *self._peeks(elements)]
        whole = when(inside_m if asks_m else "", *before, over_n)
        body = [Let("const int", "m", "m0 + own_m(i)"), *self._pieces(), *whole, *self._exchange()]
        made: list[Statement] = [loop("i", "kThreadM", body, unroll=UNROLL)]
        start: list[Statement] = []
        if isinstance(self.reduced, ReducedByTiles):
            start, made = self.reduced.start(), [*made, *self.reduced.leave()]
        if self.passing:
            made = [loop("pass", "kTileN / kPassN", self.ring.passed(made), unroll=UNROLL)]
        return [*self.of_groups(), *start, *made]

    def scalars(self) -> list[Statement]:
        """What each warp may know before it goes its way."""
        finish = self.plan.cut.reduced.finish if self.plan.cut.reduced else ()
        return self._scalars([*self.plan.cut.epilogue, *finish])

    def _over_columns(self, body: Sequence[Statement], index: str = "j", step: str = WIDTH) -> For:
        first, end = ("pass * (kPassN / 4)", "(pass + 1) * (kPassN / 4)") if self.passing else ("0", "kThreadN")
        return For(f"for (int {index} = {first}; {index} < {end}; {index} += {step})", tuple(body), UNROLL)

    # ---- results of 8 bits -------------------------------------------------------------------------------------

    @property
    def exchanged(self) -> tuple[Store, ...]:
        return self.passing.fragment.exchanged

    def _pieces(self) -> list[Statement]:
        """A lane's pairs of a line: four of them are a piece behind the exchange."""
        vecs = ((self.access.vec(store.tensor, str(VECTOR)), store.tensor) for store in self.exchanged)
        return [Do(f"{vec} {tensor}_pieces[kThreadN / {VECTOR}]") for vec, tensor in vecs]

    def _exchange(self) -> list[Statement]:
        """All lanes of a warp take part, also those whose lines are none of the result's."""
        if not self.exchanged:
            return []
        written: list[Statement] = []
        for tensor in (store.tensor for store in self.exchanged):
            address = self.access.address(tensor, self.at)
            written += self.access.if_wanted(tensor, Do(f"write<Store>({address}, {tensor}_pieces[piece / {VECTOR}])"))
        body: list[Statement] = [
            *(Do(f"whole_halves({store.tensor}_pieces[piece / {VECTOR}].bits)") for store in self.exchanged),
            Let("const int", "n", f"n0 + 4 * piece + {VECTOR} * tn"),
            *when(both(*filter(None, self.inside)), *written),
        ]
        return [self._over_columns(body, "piece", str(VECTOR))]

    def _write(self, store: Store) -> tuple[Statement, ...]:
        if store not in self.exchanged:
            return super()._write(store)
        vec = f"{store.tensor}_vec"
        half, low = f"{store.tensor}_pieces[j / {VECTOR}].bits[j % {VECTOR} / 4]", f"{vec}.bits[0]"
        return (
            Do(f"{self.access.vec(store.tensor, WIDTH)} {vec}"),
            Do(f"pack({vec}, {store.tensor}_values)"),
            Set(half, f"j % 4 == 0 ? {low} : {half} | {low} << 16"),
        )

    # ---- what passes through stages ----------------------------------------------------------------------------

    def _read_ahead(self) -> list[Statement]:
        """A line's vectors of a pass: to the compiler a result may lie where another one is read."""
        loads = self.passing.loads
        read: list[Statement] = [
            Set(f"{ld.name}_vecs[{self._of_pass}]", f"read<{WIDTH}>(&{ld.tensor}_tiles[cell_of(i, j)])") for ld in loads
        ]
        found: list[Statement] = [
            Do(f"{self.access.vec(ld.tensor, WIDTH)} {ld.name}_vecs[kPassN / 4 / {WIDTH}]") for ld in loads
        ]
        return [*found, self._over_columns(read)] if loads else []

    @property
    def _of_pass(self) -> str:
        """A lane's vector of a line."""
        return f"j % (kPassN / 4) / {WIDTH}"

    def _read(self, load: Load) -> str:
        return f"{load.name}_vecs[{self._of_pass}]" if load in self.passing.loads else super()._read(load)

    def _put(self, store: Store) -> str:
        if store in self.passing.stores:
            return f"write(&{store.tensor}_tiles[cell_of(i, j)], {store.tensor}_vec)"
        return super()._put(store)
