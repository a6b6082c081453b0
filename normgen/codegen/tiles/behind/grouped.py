"""Reductions over groups of a tile's columns as text: what stands in front of the epilogue's last look at elements.

A thread reduces the columns of a group that it owns in a register, lanes that share a line combine theirs by shuffles,
and warps that share it, where there are several, through shared memory in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from normgen.codegen.printer import Printer
from normgen.codegen.reductions import single_combine, single_identity, single_step
from normgen.codegen.statements import Do, For, If, Let, Set, Statement, constant, loop, setting, when
from normgen.codegen.tiles.access import TileAccess, both
from normgen.program.ir import Load, Map, Reduce, Store
from normgen.schedule.tiles.grouped import Grouped, Round, Step

UNROLL = "#pragma unroll"
COMBINE = {"sum": "Sum", "max": "Maximum", "min": "Minimum", "absmax": "Maximum"}
Body = tuple[list[Statement], list[Statement], list[Statement]]


class GroupedText:
    """The rounds of one epilogue, which says how elements and lines are computed."""

    def __init__(self, access: TileAccess, grouped: Grouped) -> None:
        self.access, self.plan, self.grouped = access, access.plan, grouped
        self.m, self.n = self.plan.cut.m, self.plan.cut.n
        self.inside_m, self.inside_n = (access.inside({a: x}) for a, x in ((self.m, "m"), (self.n, "n")))

    @property
    def names(self) -> dict[str, str]:
        """What elements read behind the rounds."""
        own = {name: f"{name}_own[i][j / kOwnN]" for name in self.grouped.values}
        return own | {name: f"{name}_kept[i][j + e]" for name in self.grouped.kept}

    def constants(self) -> list[Let]:
        said = "of these, what a thread owns"
        return [
            setting("kGroupN", self.grouped.size, "columns of a group"),
            constant("kOwnN", "kGroupN < kApartN ? kPieceN : kGroupN / (kTileN / kThreadN)", said),
            constant("kGroups", "kThreadN / kOwnN", "of which a thread has a part"),
            setting("kSharers", self.plan.threads_of_group, "threads that share a group of a line"),
        ]

    def statements(
        self,
        names: Mapping[str, str],
        elements: Callable[[Iterable[Step], Mapping[str, str]], Body],
        lines: Callable[[Iterable[Step]], list[Statement]],
        width: str,
    ) -> list[Statement]:
        """All rounds.

        names     of the epilogue's values
        elements  what computes a vector's elements: before, of each, behind
        lines     what computes values of a line
        width     elements of a vector
        """
        found = [*self._places()]
        for one in self.grouped.rounds:
            found += self._declared(one)
            body = [
                Let("const int", "m", "m0 + own_m(i)"),
                *self._start(one),
                *self._enter(one, names, elements, lines, width),
                self._over_groups(self._combine(one)),
            ]
            finish = self._finish(one, names, lines)
            if self.plan.groups_meet:
                found.append(self._over_lines([*body, self._leave(one)]))
                found.append(Do("__syncthreads()"))
                body = [Let("const int", "m", "m0 + own_m(i)"), self._over_groups(self._meet(one))]
            found.append(self._over_lines([*body, *finish]))
        return found

    # ---- of a round ----------------------------------------------------------------------------------------------

    def _declared(self, one: Round) -> list[Statement]:
        held = {*self.grouped.held, *(r.names[0] for r in one.reduces)}
        own = [Do(f"float {name}_own[kThreadM][kGroups]") for name in one.values if name in held]
        return [*own, *(Do(f"float {name}_kept[kThreadM][kThreadN]") for name in one.kept)]

    def _start(self, one: Round) -> list[Statement]:
        return [self._over_groups([Set(f"{r.names[0]}_own[i][g]", single_identity(r)) for r in one.reduces])]

    def _enter(
        self,
        one: Round,
        names: Mapping[str, str],
        elements: Callable[[Iterable[Step], Mapping[str, str]], Body],
        lines: Callable[[Iterable[Step]], list[Statement]],
        width: str,
    ) -> list[Statement]:
        """A line's elements enter the values of its groups."""
        names = {**names, **{name: f"{name}_e" for name in one.kept}}
        before, of_each, _ = elements([s for s in one.steps if self.n in s.kind.axes], names)
        for reduce in one.reduces:
            own, prefix = f"{reduce.names[0]}_own[i][j / kOwnN]", f"{reduce.names[0]}_"
            of_each += single_step(reduce, own, names, prefix=prefix if len(one.reduces) > 1 else "")
        of_each += [Set(f"{name}_kept[i][j + e]", f"{name}_e") for name in one.kept]
        reads_n = any(isinstance(s, Load) and self.n in s.kind.axes for s in one.steps)
        reads_m = any(isinstance(s, Load) and self.m in s.kind.axes for s in one.steps)
        vector = [*before, loop("e", width, of_each, unroll=UNROLL)]
        body = (Let("const int", "n", "n0 + own_n(j)"), *when(self.inside_n if reads_n else "", *vector))
        over_n = For(f"for (int j = 0; j < kThreadN; j += {width})", body, UNROLL)
        return [*when(self.inside_m if reads_m else "", *lines(self._of_lines(one.steps)), over_n)]

    def _combine(self, one: Round) -> list[Statement]:
        """Lanes of a warp that share a line of a group have its value, or their warp's part of it."""
        lanes, apart = self.plan.lanes_of_group, self.plan.fragment.lanes_apart
        count = "kLanesN" if self.plan.groups_meet else "kSharers"
        if lanes == 1:
            return []
        return [
            Set(own := f"{r.names[0]}_own[i][g]", f"combine_lanes<{count}, {apart}, {COMBINE[r.monoid.name]}>({own})")
            for r in one.reduces
        ]

    def _finish(
        self, one: Round, names: Mapping[str, str], lines: Callable[[Iterable[Step]], list[Statement]]
    ) -> list[Statement]:
        """What is made of the values of a line's groups; a thread stores those whose first column it owns."""
        own = {name: f"{name}_own[i][g]" for name in self.grouped.values}
        texts = {**names, **own, **{s.name: f"{s.name}_g" for s in one.finish if isinstance(s, Map)}}
        made: list[Statement] = []
        stored: list[Statement] = []
        for step in one.finish:
            if isinstance(step, Store):
                stored += self._store(step, texts[step.value])
                continue
            made.append(Let("const float", texts[step.name], Printer(texts).text(step.expr)))
            if step.name in self.grouped.held:
                made.append(Set(own[step.name], texts[step.name]))
        n = Let("const int", "n", "n0 + own_n(g * kOwnN)")
        first = "tn % kSharers == 0" if self.plan.threads_of_group > 1 else ""
        stored = [n, *when(both(*filter(None, (first, self.inside_m, self.inside_n))), *stored)] if stored else []
        of_lines = lines(self._of_lines(one.lines))
        return [*when(self.inside_m if of_lines else "", *of_lines, self._over_groups([*made, *stored]))]

    def _store(self, store: Store, value: str) -> list[Statement]:
        use = self.access.problem.tensor(store.tensor)
        groups = f"{self.access.size(self.n)} / kGroupN"
        write = self.access.write_group(store.tensor, "n / kGroupN", value, row="m", groups=groups)
        return [*self.access.if_wanted(store.tensor, self.access.row_pointer(use, "m"), Do(write))]

    def _of_lines(self, steps: Iterable[Step]) -> list[Step]:
        return [s for s in steps if s.kind.axes == (self.m,)]

    # ---- warps that share groups ---------------------------------------------------------------------------------

    def _places(self) -> list[Statement]:
        """Where warps leave their parts, which takes the place of the slots."""
        if not self.plan.groups_meet:
            return []
        free = [Do("__syncthreads()", "nobody reads the slots any more")] if self.plan.reads_last else []
        found: list[Statement] = [*free, constant("kMeeting", "kSharers / kLanesN", "warps that share a group")]
        found.append(Let("const int", "warp_n", "tn / kLanesN"))
        start = "reinterpret_cast<float*>(dynamic_shared())"
        for reduce in self.grouped.reduces:
            found.append(Let("float* const", f"{reduce.names[0]}_left", start))
            start = f"{reduce.names[0]}_left + kWarpsN * kGroups * kTileM"
        return found

    def _leave(self, one: Round) -> Statement:
        left = [Set(self._left(r, "warp_n"), f"{r.names[0]}_own[i][g]") for r in one.reduces]
        return If("tn % kLanesN == 0", (self._over_groups(left),))

    def _meet(self, one: Round) -> list[Statement]:
        found: list[Statement] = [Let("const int", "first", "warp_n / kMeeting * kMeeting")]
        for reduce in one.reduces:
            own = f"{reduce.names[0]}_own[i][g]"
            combined = single_combine(reduce, own, self._left(reduce, "(first + other)"))
            over = For("for (int other = 1; other < kMeeting; ++other)", tuple(combined), UNROLL)
            found += [Set(own, self._left(reduce, "first")), over]
        return found

    def _left(self, reduce: Reduce, warp: str) -> str:
        return f"{reduce.names[0]}_left[({warp} * kGroups + g) * kTileM + own_m(i)]"

    def _over_groups(self, body: Sequence[Statement]) -> For:
        return loop("g", "kGroups", body, unroll=UNROLL)

    def _over_lines(self, body: Sequence[Statement]) -> For:
        return loop("i", "kThreadM", body, unroll=UNROLL)
