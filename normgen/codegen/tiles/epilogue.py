"""What a thread makes of its sums: maps, on registers, and stores."""

from __future__ import annotations

from collections.abc import Iterable

from normgen.codegen.printer import Printer
from normgen.codegen.statements import Do, For, If, Let, Set, Statement, loop, when
from normgen.codegen.tiles.access import TileAccess, read_one, write_one
from normgen.codegen.tiles.reduced import ReducedText
from normgen.codegen.tiles.side import UNROLL
from normgen.program.ir import Load, Map, Reduce, Store, value_kinds

WIDTH = "kWidth"  # elements of a vector of the result


class Epilogue:
    """Rows of a thread's tile one after another, in each the vectors that it owns there."""

    def __init__(self, access: TileAccess, reduced: ReducedText | None) -> None:
        self.access, self.plan, self.reduced = access, access.plan, reduced
        cut = self.plan.cut
        self.m, self.n = cut.m, cut.n
        self.at = {cut.m: "m", cut.n: "n"}
        kinds = value_kinds(self.plan.program)
        self.axes = {name: {*kind.axes} for name, kind in kinds.items()}
        texts = {r.names[0]: self.sum_of(r.names[0]) for r in cut.sums}
        texts |= {r.names[0]: f"{r.names[0]}_all[i]" for r in cut.left.riding}
        texts |= {r.names[0]: f"{r.names[0]}_all[j + e]" for r in cut.right.riding}
        place = "all[i]" if self.plan.is_online else "found[own_m(i)]"
        texts |= {r.names[0]: f"{r.names[0]}_{place}" for look in cut.ahead for r in look.riding}
        for step in cut.epilogue:
            if isinstance(step, Load | Map):
                texts.setdefault(step.name, f"{step.name}_{self._place(step.name)}")
        order = sorted(texts, key=lambda name: (-len(self.axes[name]), self.n in self.axes[name]))
        self.names = {name: texts[name] for name in order} | access.numbers({self.m: "m", self.n: "(n + e)"})

    def _place(self, name: str) -> str:
        """How a value's variable ends: e of an element, m of one for a whole line."""
        return "e" if self.n in self.axes[name] else "m" if self.axes[name] else "value"

    @property
    def first(self) -> str:
        """Who stores values of a line, which others have, too."""
        return "n0 == 0 && tn == 0"

    def sum_of(self, name: str) -> str:
        """A thread's sum of the element that is at hand."""
        return f"{name}_sum[i][j + e]"

    def parts(self) -> tuple[list[Load | Map | Store | Reduce], list[Load | Map | Store | Reduce]]:
        """What is computed for a line, and for each element."""
        epilogue = self.plan.cut.epilogue
        lines = [s for s in epilogue if self.n not in self._axes_of(s) and self._axes_of(s)]
        return lines, [s for s in epilogue if self.n in self._axes_of(s)]

    @property
    def inside(self) -> tuple[str, str]:
        """Whether the line, and the column, that are at hand lie within the result."""
        inside_m, inside_n = (self.access.inside({axis: index}) for axis, index in self.at.items())
        return inside_m, inside_n

    def statements(self) -> list[Statement]:
        epilogue = self.plan.cut.epilogue
        lines, elements = self.parts()
        inside_m, inside_n = self.inside
        vectors = (Let("const int", "n", "n0 + own_n(j)"), *when(inside_n, *self._vector(elements)))
        over_n = For(f"for (int j = 0; j < kThreadN; j += {WIDTH})", vectors, UNROLL)
        start, end = (self.reduced.start_row(), self.reduced.end_row()) if self.reduced else ([], [])
        body = (Let("const int", "m", "m0 + own_m(i)"), *when(inside_m, *self._line(lines), *start, over_n, *end))
        before = self.reduced.start() if self.reduced else []
        finish = self.plan.cut.reduced.finish if self.plan.cut.reduced else ()
        return [*self._scalars([*epilogue, *finish]), *before, loop("i", "kThreadM", body, unroll=UNROLL)]

    def _axes_of(self, step: Load | Map | Store | Reduce) -> set[str]:
        """Along which it is computed: reduced is each element."""
        if isinstance(step, Reduce):
            return {self.m, self.n}
        return self.axes[step.value if isinstance(step, Store) else step.name]

    def _scalars(self, steps: Iterable[Load | Map | Store | Reduce]) -> list[Statement]:
        """Values of no axis: known before all others."""
        return [
            Let("const float", f"{s.name}_value", Printer(self.names).text(s.expr))
            for s in dict.fromkeys(steps)
            if isinstance(s, Map) and not self.axes[s.name]
        ]

    def _line(self, steps: Iterable[Load | Map | Store | Reduce]) -> list[Statement]:
        """Values of a line of the tile; those that are stored, by the block and the thread that come first in it."""
        found: list[Statement] = []
        for step in steps:
            if isinstance(step, Store):
                write = write_one(self.access, step, self.at, self.names[step.value])
                found += when(self.first, *write)
                continue
            assert not isinstance(step, Reduce), "an element is reduced"
            value = (
                read_one(self.access, step.tensor, self.at)
                if isinstance(step, Load)
                else Printer(self.names).text(step.expr)
            )
            found.append(Let("const float", f"{step.name}_m", value))
        return found

    def _vector(self, steps: Iterable[Load | Map | Store | Reduce]) -> list[Statement]:
        """A vector of the result: loads, then maps and reductions element by element, then stores."""
        before: list[Statement] = []
        elements: list[Statement] = []
        after: list[Statement] = []
        for step in steps:
            match step:
                case Load(name=name):
                    vec = self.access.vec(step.tensor, WIDTH)
                    before.append(Let(f"const {vec}", f"{name}_vec", self._read(step)))
                    elements.append(Let("const float", f"{name}_e", f"element({name}_vec, e)"))
                case Map(name=name, expr=expr):
                    elements.append(Let("const float", f"{name}_e", Printer(self.names).text(expr)))
                case Reduce():
                    assert self.reduced is not None
                    elements += self.reduced.add(step, self.names)
                case Store(tensor=tensor, value=value):
                    before.append(Do(f"float {tensor}_values[{WIDTH}]"))
                    elements.append(Set(f"{tensor}_values[e]", self.names[value]))
                    after += self._write(step)
        return [*before, loop("e", WIDTH, elements, unroll=UNROLL), *after]

    def _read(self, load: Load) -> str:
        """A vector of what an epilogue reads."""
        return self.access.read(load.tensor, self.at, WIDTH)

    def _put(self, store: Store) -> str:
        """A vector goes where it belongs."""
        return f"write<Store>({self.access.address(store.tensor, self.at)}, {store.tensor}_vec)"

    def _write(self, store: Store) -> tuple[Statement, ...]:
        tensor = store.tensor
        added: tuple[Statement, ...] = ()
        if store.accumulate:
            old = Let(
                f"const {self.access.vec(tensor, WIDTH)}", f"{tensor}_old", self.access.read(tensor, self.at, WIDTH)
            )
            add = Set(f"{tensor}_values[e]", f"element({tensor}_old, e)", "+=")
            added = (old, loop("e", WIDTH, [add], unroll=UNROLL))
        write = (
            *added,
            Do(f"{self.access.vec(tensor, WIDTH)} {tensor}_vec"),
            Do(f"pack({tensor}_vec, {tensor}_values)"),
            Do(self._put(store)),
        )
        if self.m not in self.axes[store.value]:
            write = (If("m0 == 0 && tm == 0 && i == 0", write),)
        return self.access.if_wanted(tensor, *write)
