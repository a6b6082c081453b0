"""One side of the products: how a block's threads bring a tile of it to shared memory, and what they reduce meanwhile.

The threads share a tile's vectors, which lie along the axis along which the side lies in memory. A slot holds the tile
of one factor as floats, in lines as the side's memory has them: a vector stays one, on its way in and out. A line for
each k holds neighbouring threads' pieces side by side. Of lines along k a thread reads pieces of its own; those of
neighbouring threads lie in neighbouring lines, and so in other banks. What lies beyond an edge is 0 in a slot: it adds
nothing to any product's sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from normgen.codegen.printer import Printer
from normgen.codegen.reductions import single_combine, single_identity, single_step
from normgen.codegen.statements import Do, For, Let, Set, Statement, constant, loop, when
from normgen.codegen.tiles.access import TileAccess, both
from normgen.program.ir import Load, Reduce, value_alone
from normgen.program.monoid import SUM
from normgen.schedule.tiles.cut import Side, is_neutral, vanishes
from normgen.schedule.tiles.fragment import TensorCores
from normgen.spec.formula import Expression

UNROLL = "#pragma unroll"


class SideText:
    """The statements of one side."""

    def __init__(self, access: TileAccess, side: Side, word: str) -> None:
        self.access, self.side, self.plan = access, side, access.plan
        self.axis, self.k = side.axis, access.plan.cut.k
        self.letter = access.letter(side.axis)
        self.index = self.letter.lower()
        self.along = side.along
        numbers = iter([word, *(f"{word}{i}" for i in range(2, 99))])
        self.slots = {slot: value_alone(slot) or next(numbers) for slot in side.slots}
        self.moves: Callable[[dict[str, str], str], list[Statement]] | None = None  # a maximum, with each vector

    @property
    def lies_deep(self) -> bool:
        """Whether lines, in memory and in a slot, lie along k."""
        return self.along == self.k

    @property
    def held_as(self) -> str:
        """The type of what a slot holds."""
        return "float"

    @property
    def line_length(self) -> str:
        """From line to line of a slot."""
        return f"kPitch{self.letter}"

    @property
    def copies(self) -> bool:
        """Whether its tiles reach shared memory past the registers."""
        return self.plan.copies(self.side)

    @property
    def way(self) -> str:
        """How its tiles reach shared memory."""
        return "by cp.async" if self.copies else "by way of registers"

    @property
    def scales(self) -> bool:
        """Whether a thread makes factors of what it has copied."""
        return self.plan.scales(self.side)

    @property
    def fetched(self) -> list[Load]:
        """The loads of which a thread's vectors wait in registers: those of a side that is not copied, and gains."""
        return list(self.plan.gains(self.side)) if self.scales else [] if self.copies else self.loads

    # ---- constants and places ----------------------------------------------------------------------------------

    def constants(self) -> list[Let]:
        x, i = self.letter, self.index
        line = "K" if self.lies_deep else x
        return [
            constant(f"kPitch{x}", f"kTile{line} + kPad", f"floats from line to line of a slot of the side along {i}"),
            constant(f"kLine{x}", f"kTile{line} / kVector", "vectors of a line of its tile, as it lies in memory"),
            constant(f"kVectors{x}", f"kTile{x} * kTileK / kVector", "vectors of its tile"),
            constant(f"kSteps{x}", f"(kVectors{x} + kThreads - 1) / kThreads", "of these, what a thread moves"),
        ]

    def place(self) -> list[Statement]:
        """Where in its tile a thread's vector of a step starts."""
        x, i = self.letter, self.index
        line, column = (i, "k") if self.lies_deep else ("k", i)
        if self.is_even:
            return [
                Let("const int", line, f"threadIdx.x / kLine{x} + step * (kThreads / kLine{x})"),
                Let("const int", column, f"threadIdx.x % kLine{x} * kVector"),
            ]
        return [
            Let("const int", "vector", "threadIdx.x + step * kThreads"),
            Let("const int", line, f"vector / kLine{x}"),
            Let("const int", column, f"vector % kLine{x} * kVector"),
        ]

    @property
    def is_even(self) -> bool:
        return self.plan.is_even(self.side)

    def of_vectors(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """What is done where a step has a vector."""
        x = self.letter
        return tuple(body) if self.is_even else when(f"kVectors{x} % kThreads == 0 || vector < kVectors{x}", *body)

    @property
    def at(self) -> dict[str, str]:
        """The place of a vector in the tensors."""
        return {self.axis: f"{self.index}0 + {self.index}", self.k: "k0 + k"}

    def steps(self, body: Sequence[Statement]) -> Statement:
        return loop("step", f"kSteps{self.letter}", [*self.place(), *body], unroll=UNROLL)

    def line(self, line: str) -> str:
        """The number of a line of a slot among the lines of all stages."""
        if self.plan.schedule.stages == 1:
            return line if line.isidentifier() else f"({line})"
        return f"(stage * kTile{self.letter if self.lies_deep else 'K'} + {line})"

    def cell(self, slot: str, element: str = "") -> str:
        """The cell of a slot for the first element of a vector, or for element `i`."""
        line, column = (self.index, "k") if self.lies_deep else ("k", self.index)
        if self.lies_deep and self.plan.piece(self.axis) > 1:
            x = self.letter
            line = f"{line} % kPiece{x} * (kTile{x} / kPiece{x}) + {line} / kPiece{x}"
        further = f" + {element}" if element else ""
        return f"{slot}_tiles[{self.line(line)} * kPitch{self.letter} + {column}{further}]"

    # ---- values ------------------------------------------------------------------------------------------------

    def is_wide(self, load: Load) -> bool:
        """Whether the elements of a vector have a value each."""
        return self.along in self.plan.tensor(load).axes

    def width(self, load: Load) -> str:
        return "kVector" if self.is_wide(load) else "1"

    @property
    def loads(self) -> list[Load]:
        return [load for load in self.side.loads if load.kind.axes]

    @property
    def known(self) -> list[str]:
        """What is known of the rows before."""
        return sorted(self.side.known)

    def found(self, place: str) -> dict[str, str]:
        """What a look ahead has found of the rows, of one in this place of the tile."""
        return {name: f"{name}_found[{place}]" for name in self.known}

    @property
    def numbers(self) -> dict[str, str]:
        """The place in the tensors of element i of a step's vector, as far as it is read."""
        k = "(k0 + k + i)" if self.lies_deep else "(k0 + k)"
        return {
            axis: text
            for axis, text in ((self.axis, f"({self.index}0 + {self.own_line})"), (self.k, k))
            if axis in self.side.numbered
        }

    def values(
        self, texts: Mapping[str, str], known: Mapping[str, str] | None = None, at: Mapping[str, str] | None = None
    ) -> tuple[list[Statement], dict[str, str]]:
        """An element's values, of loads that `texts` reads: (what declares them, their names).

        known  names of what is known of its row
        at     its place in the tensors, if it is not element i of a step's vector
        """
        found: list[Statement] = [Let("const float", f"{name}_i", text) for name, text in texts.items()]
        names = {name: f"{name}_i" for name in texts} | self.access.numbers(at or self.numbers) | dict(known or {})
        for step in self.side.maps:
            found.append(Let("const float", f"{step.name}_i", Printer(names).text(step.expr)))
            names[step.name] = f"{step.name}_i"
        return found, names

    def factor(self, slot: Expression, names: Mapping[str, str], inside: str) -> str:
        text = Printer(names).text(slot)
        zero = vanishes(slot, self.side, self.k) or not inside
        return text if zero else f"{inside} ? {text} : 0.0f"

    def ride(self, names: Mapping[str, str], inside: str, index: str) -> list[Statement]:
        """An element enters the reductions that ride along, unless it lies beyond an edge where it would count."""
        found: list[Statement] = []
        for reduce in self.side.riding:
            if reduce in self.sums_of_slots and index == self.own_index and self.plan.in_shared and not self.copies:
                found.append(Set(f"{reduce.names[0]}_own{index}", f"{self.slots[reduce.args[0]]}_i", "+="))
                continue
            steps = single_step(reduce, f"{reduce.names[0]}_own{index}", names, prefix=f"{reduce.names[0]}_")
            found += steps if is_neutral(reduce, self.side, self.k) or not inside else when(inside, *steps)
        return found

    # ---- through registers -------------------------------------------------------------------------------------

    @property
    def asks_inside(self) -> bool:
        """Whether it matters, behind the loads, that a vector lies within the tensors."""
        if self.moves is not None:
            return True
        factors = all(vanishes(slot, self.side, self.k) for slot in self.side.slots)
        return not (factors and all(is_neutral(reduce, self.side, self.k) for reduce in self.side.riding))

    def own(self, load: Load, what: str) -> str:
        """The name of a thread's array for a load; each side has its own of what both read, as a gain along k."""
        left, right = ({ld.name for ld in side.loads} for side in self.plan.cut.sides)
        return f"{load.name}_{what}" + (f"_{self.index}" if load.name in left & right else "")

    def held(self, load: Load) -> str:
        """Where a thread's vector of a step waits; of what all steps share, the one vector."""
        return self.own(load, "held") + ("" if self.plan.is_same(self.side, load) else "[step]")

    # ---- where the next tile lies ------------------------------------------------------------------------------

    @property
    def walked(self) -> list[Load]:
        """The loads that a thread walks along with a pointer: matrices that are there, where all steps are alike."""
        tensors = [(load, self.plan.tensor(load)) for load in self.loads]
        there = [ld for ld, t in tensors if len(t.axes) == 2 and t.null_as is None and not t.witness]
        return there if self.is_even else []

    def pointers(self) -> list[Statement]:
        """Where a thread's first vector of the first tile lies."""
        x, found = self.letter, list[Statement]()
        line, column = f"threadIdx.x / kLine{x}", f"threadIdx.x % kLine{x} * kVector"
        m, k = (line, column) if self.lies_deep else (column, line)
        begin = self.access.begin(self.k)
        first = {self.axis: f"{self.index}0 + {m}", self.k: k if begin == "0" else f"{begin} + {k}"}
        for load in self.walked:
            pointer = f"const {self.access.ctype(load.tensor)}*"
            found.append(Let(pointer, self.own(load, "next"), self.access.address(load.tensor, first)))
        return found

    def here(self, load: Load) -> str:
        """The pointer to a vector of the tile that is read, or nothing."""
        if load not in self.walked:
            return ""
        use, lines = self.plan.tensor(load), f"step * (kThreads / kLine{self.letter})"
        is_across = use.axes[-1] == (self.axis if self.lies_deep else self.k)
        return f"{self.own(load, 'next')} + {lines}" + ("" if is_across else f" * {use.memory}_pitch")

    def go_on(self) -> list[Statement]:
        """The pointers move to the next tile."""
        found: list[Statement] = []
        for load in self.walked:
            use = self.plan.tensor(load)
            by = "kTileK" if use.axes[-1] == self.k else f"kTileK * {use.memory}_pitch"
            found.append(Set(self.own(load, "next"), by, "+="))
        return found

    def declarations(self) -> list[Statement]:
        """Where a thread's vectors wait on their way."""
        steps = f"[kSteps{self.letter}]"
        found: list[Statement] = [
            Do(f"{self.access.vec(load.tensor, self.width(load))} {self.held(load).replace('[step]', steps)}")
            for load in self.fetched
        ]
        return [*found, *([Do(f"bool inside_{self.index}{steps}")] if self.asks_inside and not self.copies else [])]

    def fetch(self) -> list[Statement]:
        vector = [] if self.is_even else [f"kVectors{self.letter} % kThreads == 0 || vector < kVectors{self.letter}"]
        at = {self.k: self.at[self.k]} if self.scales else self.at
        inside = both(*vector, *(self.access.inside({axis: index}) for axis, index in at.items()))
        body: list[Statement] = [Let("const bool", "inside", inside)]
        alone: list[Statement] = []
        for load in self.fetched:
            if self.plan.is_same(self.side, load):
                k = f"k0 + threadIdx.x % kLine{self.letter} * kVector"
                alone.append(self._fetched(load, {self.k: k}, self.access.inside({self.k: k})))
            else:
                body.append(self._fetched(load, self.at, "inside"))
        kept = [Set(f"inside_{self.index}[step]", "inside")] if self.asks_inside and not self.copies else []
        moved = [] if self.copies else self.go_on()
        return [*alone, *([self.steps([*body, *kept])] if body[1:] or kept else []), *moved]

    def _fetched(self, load: Load, at: Mapping[str, str], inside: str) -> Statement:
        width = self.width(load)
        read = self.access.read(load.tensor, at, width, hint=", Load", pointer=self.here(load))
        read = f"({read})" if " ? " in read else read
        inside = f"({inside})" if "||" in inside else inside
        beyond = f"filled<{self.access.ctype(load.tensor)}, {width}>(0.0f)"
        return Set(self.held(load), f"{inside} ? {read} : {beyond}")

    def deposit(self) -> Statement:
        """What waits in registers becomes factors in a slot."""
        texts = {ld.name: f"element({self.held(ld)}, {'i' if self.is_wide(ld) else '0'})" for ld in self.loads}
        inside, moves = f"inside_{self.index}[step]", self.moves
        top = {name: f"{name}_own[step]" for name in self.known}
        values, names = self.values(texts, top if moves else self.found(self.own_line))
        shared = {slot: name for slot, name in self.slots.items() if slot in self.summed_slots}
        elements = [*values, *(Let("const float", f"{n}_i", self.factor(e, names, inside)) for e, n in shared.items())]
        elements += self.ride(names, inside, self.own_index)
        behind: list[Statement] = []
        for slot, name in self.slots.items():
            factor = f"{name}_i" if slot in shared else self.factor(slot, names, inside)
            elements.append(Set(f"{name}_values[i]", factor))
            behind += self.put(name)
        arrays = [Do(f"float {name}_values[kVector]") for name in self.slots.values()]
        moved = moves(texts, inside) if moves else []
        body = (*arrays, *moved, loop("i", "kVector", elements, unroll=UNROLL), *behind)
        return self.steps(self.of_vectors(body))

    def put(self, name: str) -> list[Statement]:
        """A vector of factors goes to its slot."""
        return [Do(f"write_floats(&{self.cell(name)}, {name}_values)")]

    # ---- past the registers ------------------------------------------------------------------------------------

    def copy(self) -> list[Statement]:
        """The vectors set out for a slot; what lies beyond an edge arrives as zeros."""
        loads = {load.name: load for load in self.loads}
        sent: list[Statement] = [Let("const bool", "inside", self.access.inside(self.at))]
        for slot, name in self.slots.items():
            load = self.loads[0] if self.scales else loads[value_alone(slot)]
            source = self.here(load) or self.access.address(load.tensor, self.at)
            sent.append(Do(f"copy_async_if<kVector>(inside, &{self.cell(name)}, {source})"))
        return [self.steps(self.of_vectors(sent)), *self.go_on()]

    def ride_behind(self) -> list[Statement]:
        """A thread reduces what it has copied itself, when that has arrived."""
        if not self.side.riding or self.scales:
            return []
        texts = {value_alone(slot): self.copied(name) for slot, name in self.slots.items()}
        values, names = self.values(texts, self.found(self.own_line))
        inside = self.access.inside({self.k: "k0 + k"})
        body = [*values, *self.ride(names, inside, self.own_index)]
        return [self.steps(self.of_vectors([*self.taken(), loop("i", "kVector", body, unroll=UNROLL)]))]

    def taken(self) -> list[Statement]:
        """What a thread has copied, where it is no number yet."""
        return []

    def copied(self, name: str) -> str:
        """Element i of the vector that a thread has copied."""
        return self.cell(name, "i")

    def scale(self) -> Statement:
        """A thread makes factors of what it has copied itself, where that lies, and reduces it meanwhile."""
        [name] = self.slots.values()
        [slot] = self.slots
        matrix, *others = self.loads
        texts = {matrix.name: f"{name}_values[i]"}
        texts |= {ld.name: f"element({self.held(ld)}, {'i' if self.is_wide(ld) else '0'})" for ld in others}
        values, names = self.values(texts, self.found(self.own_line))
        elements = [*values, *self.ride(names, "inside", self.own_index)]
        elements.append(Set(f"{name}_values[i]", self.factor(slot, names, "inside")))
        body: list[Statement] = [
            *([Let("const bool", "inside", self.access.inside(self.at))] if self.asks_inside else []),
            Do(f"float {name}_values[kVector]"),
            Do(f"read_pieces<kVector, kVector>(&{self.cell(name)}, {name}_values)"),
            loop("i", "kVector", elements, unroll=UNROLL),
            Do(f"write_floats(&{self.cell(name)}, {name}_values)"),
        ]
        return self.steps(self.of_vectors(body))

    # ---- reductions that ride along ----------------------------------------------------------------------------

    @property
    def sums_of_slots(self) -> list[Reduce]:
        """Sums that ride along of what is computed for a slot, where it is 0 beyond the edges."""
        return [
            r
            for r in self.side.riding
            if r.monoid.name == SUM.name and not value_alone(r.args[0]) and r.args[0] in self.slots
        ]

    @property
    def summed_slots(self) -> set[Expression]:
        return {reduce.args[0] for reduce in self.sums_of_slots}

    @property
    def own_line(self) -> str:
        """The place in the tile of an element of a step's vector, along the side's axis."""
        return self.index if self.lies_deep else f"{self.index} + i"

    @property
    def own_index(self) -> str:
        """Of a thread's results: a step's vector lies in one line of the side's axis, or in as many as it is long."""
        return "[step]" if self.lies_deep else "[step][i]"

    @property
    def lines(self) -> str:
        """The threads that reduce parts of one element of the side's axis."""
        return "kTileK / kVector" if self.lies_deep else "kTileK"

    def start_totals(self) -> list[Statement]:
        """A thread's elements of the reductions, of nothing so far."""
        found: list[Statement] = []
        for reduce in self.side.riding:
            name, bound = f"{reduce.names[0]}_all", f"kThread{self.letter}"
            start = Set(f"{name}[i]", single_identity(reduce))
            found += [Do(f"float {name}[{bound}]"), loop("i", bound, [start], unroll=UNROLL)]
        return found

    def start_riding(self) -> list[Statement]:
        found: list[Statement] = []
        for reduce in self.side.riding:
            name, identity = f"{reduce.names[0]}_own", single_identity(reduce)
            size = f"[kSteps{self.letter}]" + ("" if self.lies_deep else "[kVector]")
            found.append(Do(f"float {name}{size}"))
            start: Statement = Set(f"{name}{self.own_index}", identity)
            start = start if self.lies_deep else loop("i", "kVector", [start], unroll=UNROLL)
            found.append(loop("step", f"kSteps{self.letter}", [start], unroll=UNROLL))
        return found

    def leave(self) -> list[Statement]:
        """What a thread has reduced goes where the slots were: a line for each thread that had a part of an element."""
        found: list[Statement] = []
        for reduce in self.side.riding:
            name, x = reduce.names[0], self.letter
            if self.lies_deep:
                put: Statement = Set(f"{name}_left[k / kVector * kTile{x} + {self.index}]", f"{name}_own[step]")
            else:
                cell = f"{name}_left[k * kTile{x} + {self.index} + i]"
                put = loop("i", "kVector", [Set(cell, f"{name}_own[step][i]")], unroll=UNROLL)
            found.append(self.steps(self.of_vectors([put])))
        return found

    def gather(self) -> list[Statement]:
        """A thread's elements of what all have reduced."""
        found = self.start_totals()
        for reduce in self.side.riding:
            name, x = reduce.names[0], self.letter
            left = f"{name}_left[line * kTile{x} + own_{self.index}(i)]"
            lines = loop("line", self.lines, single_combine(reduce, f"{name}_all[i]", left), unroll=UNROLL)
            found.append(loop("i", f"kThread{x}", [lines], unroll=UNROLL))
        return found

    # ---- from memory to the products ---------------------------------------------------------------------------

    def reload(self) -> list[Statement]:
        """A thread's own factors at k, straight from memory."""
        at = {self.axis: self.index, self.k: "k"}
        read = {ld.name: self.access.read(ld.tensor, at, "1", hint=", Load") for ld in self.loads}
        texts = {name: f"inside ? element({text}, 0) : 0.0f" for name, text in read.items()}
        values, names = self.values(texts, self.found(f"own_{self.index}(i)"), at)
        x = self.letter
        body: list[Statement] = [
            Let("const int", self.index, f"{self.index}0 + own_{self.index}(i)"),
            Let("const bool", "inside", self.access.inside({self.axis: self.index})),
            *values,
        ]
        for reduce in self.side.riding:
            body += single_step(reduce, f"{reduce.names[0]}_all[i]", names, prefix=f"{reduce.names[0]}_")
        body += [Set(f"{name}_part[i]", self.factor(slot, names, "")) for slot, name in self.slots.items()]
        return [*self.parts(), loop("i", f"kThread{x}", body, unroll=UNROLL)]

    def parts(self, depth: str = "") -> list[Statement]:
        """A thread's factors at one k, or at several."""
        return [Do(f"float {name}_part[kThread{self.letter}]{depth}") for name in self.slots.values()]

    def read_parts(self) -> list[Statement]:
        """A thread's factors from the slots: those of a line along k are read for a piece of it."""
        x, own = self.letter, f"t{self.index}"
        if self.lies_deep:
            return [*self.parts("[kPieceK]"), loop("i", f"kThread{x}", self.read_line("i", "_part[i]"), unroll=UNROLL)]
        found = self.parts()
        for name in self.slots.values():
            start = f"{name}_tiles + {self.line(self.at_k)} * kPitch{x} + {own} * kPiece{x}"
            found.append(Do(f"read_pieces<kPiece{x}, kApart{x}>({start}, {name}_part)"))
        return found

    def read_line(self, number: str, part: str) -> list[Statement]:
        """A piece along k of the thread's line of that number."""
        x = self.letter
        line = self.line(f"line_{self.index}({number})")
        return [
            Do(f"read_pieces<kPieceK, kPieceK>({name}_tiles + {line} * kPitch{x} + k, {name}{part})")
            for name in self.slots.values()
        ]

    @property
    def at_k(self) -> str:
        """The k that is multiplied: of a piece where a side lies along k."""
        return "k + e" if self.plan.reads_pieces_of_k else "k"


class MatrixSide(SideText):
    """A side whose slots hold factors for the matrix instructions, of 16 bits, or rounded to TF32."""

    @property
    def cores(self) -> TensorCores:
        assert isinstance(self.plan.fragment, TensorCores)
        return self.plan.fragment

    @property
    def held_as(self) -> str:
        return self.plan.fragment.dtype.ctype

    @property
    def line_length(self) -> str:
        return f"kTile{'K' if self.lies_deep else self.letter}"

    def constants(self) -> list[Let]:
        return [one for one in super().constants() if not one.name.startswith("kPitch")]

    def place_in(self, slot: str, own: str, k: str) -> str:
        """The cell of a slot for a place along the side's axis and along k."""
        line, place = (own, k) if self.lies_deep else (k, own)
        swizzled = "swizzled" if self.cores.held_bytes == 2 else "swizzled_words"
        return f"{slot}_tiles[{swizzled}<{self.line_length}>({self.line(line).strip('()')}, {place})]"

    def cell(self, slot: str, element: str = "") -> str:
        further = f" + {element}" if element else ""
        own, k = (self.index, f"k{further}") if self.lies_deep else (f"{self.index}{further}", "k")
        return self.place_in(slot, own, k)

    def put(self, name: str) -> list[Statement]:
        vec, write = f"Vec<{self.held_as}, kVector> {name}_vec", f"write(&{self.cell(name)}, {name}_vec)"
        return [Do(vec), Do(f"pack({name}_vec, {name}_values)"), Do(write)]

    def taken(self) -> list[Statement]:
        vec = f"const Vec<{self.held_as}, kVector>"
        return [Let(vec, f"{name}_vec", f"read<kVector>(&{self.cell(name)})") for name in self.slots.values()]

    def copied(self, name: str) -> str:
        return f"element({name}_vec, i)"

    def parts(self, depth: str = "[2]") -> list[Statement]:
        """A lane's factors of a step along k and of the next one, two a register."""
        size = "2 * kThreadM" if self.side is self.plan.cut.left else "kThreadN"
        return [Do(f"unsigned {name}_part{depth}[{size}]") for name in self.slots.values()]

    def read_parts(self) -> list[Statement]:
        """Four matrices a read: of the left side two along m, of the right one two along n, each by two along k."""
        x, i = self.letter, self.index
        is_left = self.side is self.plan.cut.left
        index, each, piece, part = ("i", "2", "i", "2 * i") if is_left else ("j", "4", "j / 2", "j")
        columns = "false" if self.lies_deep else "true"
        reads: list[Statement] = []
        for name in self.slots.values():
            cell = self.place_in(name, f"at_{i} + {piece} * kApart{x}", f"{self.cores.deep} * step + k_{i}")
            reads.append(Do(f"read_matrices<{columns}>(&{cell}, &{name}_part[step % 2][{part}])"))
        return [For(f"for (int {index} = 0; {index} < kThread{x}; {index} += {each})", tuple(reads), UNROLL)]
