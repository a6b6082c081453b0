"""The looks of a kernel of rows side by side: what each reads and computes of a column of a thread's rows.

A thread has columns `part + step * kParts` in every look, so that elements that wait in registers, or in its own slots
of shared memory, need no barrier between looks.
"""

from __future__ import annotations

from collections.abc import Iterable

from normgen.codegen.lanes.access import LaneAccess
from normgen.codegen.lanes.sums import LaneSums
from normgen.codegen.printer import PRODUCT, Printer
from normgen.codegen.reductions import steps_of
from normgen.codegen.statements import Comment, Do, For, Gap, If, Let, Set, Statement, function, loop
from normgen.codegen.walk import UNROLL, each_element
from normgen.program.functions import COL, ROW
from normgen.program.ir import Load, Map, Random, Store
from normgen.schedule.lanes.plan import LanePlan


class LaneLooks:
    """The walks of one kernel."""

    def __init__(self, access: LaneAccess, sums: LaneSums) -> None:
        self.access, self.sums = access, sums
        self.plan: LanePlan = access.plan

    def slots(self) -> list[Statement]:
        """hold = shared: where the elements of each tensor wait."""
        found: list[Statement] = []
        start = "dynamic_shared()"
        for load in self.plan.held if self.plan.in_shared else ():
            ctype = self.access.ctype(load.name)
            found.append(Let(f"{ctype}* const", f"{load.name}_slots", f"reinterpret_cast<{ctype}*>({start})"))
            start = f"{load.name}_slots + kSteps * kThreads * kVector"
        return found

    def slot(self, tensor: str) -> str:
        return f"{tensor}_slots + (step * kThreads + static_cast<int>(threadIdx.x)) * kVector"

    def fetch(self) -> list[Statement]:
        """All elements are on their way before the first of them is looked at."""
        plan, access = self.plan, self.access
        if not plan.held:
            return []
        arrays: list[Statement] = []
        reads: list[Statement] = [self._at()]
        for load in plan.held:
            if plan.in_registers:
                arrays.append(Do(f"{access.vec(load.name)} {load.name}_held[kSteps]"))
                reads.append(Set(f"{load.name}_held[step]", access.read_vector(load.name)))
            else:
                reads.append(Do(f"write({self.slot(load.name)}, {access.read_vector(load.name)})"))
        return [Gap(), *arrays, *self._steps("fetch", reads)]

    def _at(self) -> Let:
        return Let("const long long", "at", "own + step * stride")

    def _chunks(self, look: int) -> list[Statement]:
        """Look `look` at kChunk columns at a time, where a reduction is relative to a reference: it moves once for all.

        Columns that are no whole chunk are left to the function of one step.
        """
        plan, access = self.plan, self.access
        loop_, names = plan.elementwise(plan.look_roots(look)), access.names
        printer = Printer(names)
        steps = steps_of(access.states[look], plan.looks[look], names, "i", by_vector=True)
        head: list[Statement] = []
        each: list[Statement] = [Let("const int", names[COL.name], "part + (first + e) * kParts")]
        for source in (s for s in plan.look_sources[look] if isinstance(s, Load)):
            if source.kind.is_col:
                each.append(Let("const float", names[source.name], access.read_column(source.name)))
                continue
            head.append(Do(f"{access.vec(source.name)} {source.name}_chunk[kChunk]"))
            read = self._vector(source, is_last=False)
            step, at = Let("const int", "step", "first + e"), self._at()
            head.append(loop("e", "kChunk", [step, at, *read, Set(f"{source.name}_chunk[e]", f"{source.name}_vec")],
                             unroll=UNROLL))  # fmt: skip
            each.append(Let("const float", names[source.name], f"element({source.name}_chunk[e], i)"))
        each += [Let("const float", names[m.name], printer.text(m.expr)) for m in loop_.maps]
        body = [
            *steps.before,
            loop("e", "kChunk", [*each, *steps.peek], unroll=UNROLL),
            *steps.move,
            loop("e", "kChunk", [*each, *steps.elem], unroll=UNROLL),
            *steps.after,
        ]
        name = f"pass{look + 1}_chunk"
        head_of = "for (int first = 0; first + kChunk <= kWholeSteps; first += kChunk)"
        return [
            function(name, "int first", [*head, each_element(body)]),
            For(head_of, (Do(f"{name}(first)"),), UNROLL if self.plan.unroll == 0 else ""),
        ]

    def _takes_chunks(self, look: int) -> bool:
        """Whether a look's reductions gain by several columns at a time."""
        sources = self.plan.look_sources[look]
        stores = bool(self.plan.early_stores) and look == 0
        are_loads = all(isinstance(source, Load) for source in sources) and not stores
        return self.plan.chunk > 1 and are_loads and any(r.monoid.vector_step for r in self.plan.looks[look])

    def _steps(self, name: str, body: list[Statement], *, first: str = "0", from_last: bool = False) -> list[Statement]:
        """A function of a step, called for all steps of a thread: the last one may have columns for some parts only."""
        unroll = UNROLL if self.plan.unroll == 0 else "#pragma unroll kUnroll"
        rest = If("!kEven && part + kWholeSteps * kParts < kCols", (Do(f"{name}(kWholeSteps)"),), alone=True)
        if from_last:
            walk = loop("step", "kWholeSteps", [Do(f"{name}(kWholeSteps - 1 - step)")], unroll=unroll)
            return [function(name, "int step", body), rest, walk]
        return [
            function(name, "int step", body),
            loop("step", "kWholeSteps", [Do(f"{name}(step)")], first=first, unroll=unroll),
            rest,
        ]

    def look_at(self, look: int) -> list[Statement]:
        """One look at all columns of the thread."""
        plan, access = self.plan, self.access
        is_last = look == len(plan.looks)
        loop_ = plan.elementwise(plan.look_roots(look))
        names, printer = access.names, Printer(access.names)
        head: list[Statement] = [Let("const int", names[COL.name], "part + step * kParts"), self._at()]
        each: list[Statement] = []
        for source in plan.look_sources[look]:
            if isinstance(source, Random):
                call = f"random_numbers<1>({names[source.seed]}, {names[ROW.name]}, {names[COL.name]}, {source.draw})"
                each.append(Let("const float", names[source.name], f"element({call}, 0)"))
            elif source.kind.is_col:
                head.append(Let("const float", names[source.name], access.read_column(source.name)))
            else:
                head += self._vector(source, is_last=is_last)
                each.append(Let("const float", names[source.name], f"element({source.name}_vec, i)"))
        for one in loop_.maps:
            let = Let("const float", names[one.name], printer.text(one.expr))
            (head if one.kind.is_col else each).append(let)
        stores = plan.late_stores if is_last else plan.early_stores if look == 0 else ()
        arrays, values, writes = self._stores(stores, printer, {m.name: m for m in loop_.maps})
        if is_last:
            each += self.sums.elements(printer)
            arrays += self.sums.head()
            writes += self.sums.tail()
            said, name = "Last pass: the outputs" if plan.looks else "One pass: the outputs", "write_at"
        else:
            steps = steps_of(access.states[look], plan.looks[look], names, "i", by_vector=False)
            values += steps.elem
            said, name = access.states[look].doc.capitalize(), f"pass{look + 1}_at"
        body = [*head, *arrays, each_element([*each, *values]), *writes]
        if not is_last and self._takes_chunks(look):
            rest = self._steps(name, body, first="kWholeSteps / kChunk * kChunk")
            return [Gap(), Comment(said), *self._chunks(look), *rest]
        # Of columns that are read again those that were read last may still be in L2.
        from_last = look % 2 == 1 and not (plan.in_shared or plan.in_registers)
        return [Gap(), Comment(said), *self._steps(name, body, from_last=from_last)]

    def _vector(self, load: Load, *, is_last: bool) -> list[Statement]:
        """An element of each row, from where it waits."""
        held = load in self.plan.held
        read = self.access.read_vector(load.name, hinted=is_last or not self.plan.looks)
        if held and self.plan.in_registers:
            read = f"{load.name}_held[step]"
        elif held:
            read = f"read<kVector>({self.slot(load.name)})"
        return [Let(f"const {self.access.vec(load.name)}", f"{load.name}_vec", read)]

    def _stores(
        self, stores: Iterable[Store], printer: Printer, maps: dict[str, Map]
    ) -> tuple[list[Statement], list[Statement], list[Statement]]:
        """What stands in front of the elements, what each of them does, and what comes behind."""
        access = self.access
        arrays: list[Statement] = []
        values: list[Statement] = []
        writes: list[Statement] = []
        for store in stores:
            to, text = store.tensor, access.names[store.value]
            arrays.append(Do(f"float {to}_values[kVector]"))
            if store.accumulate:
                before = f"{to}_before"
                arrays.append(Let(f"const {access.vec(to)}", before, access.read_vector(to, hinted=False)))
                source = maps.get(store.value)  # its terms, added one by one, would each round at the size of the sum
                added = printer.operand(source.expr, PRODUCT) if source else text
                text = f"element({before}, i) + {added}"
            values.append(Set(f"{to}_values[i]", text))
            write = Do(access.write_vector(to))
            writes += [
                Do(f"{access.vec(to)} {to}_vec"),
                Do(f"pack({to}_vec, {to}_values)"),
                *access.if_wanted(to, If("active", (write,), alone=True)),
            ]
        return arrays, values, writes
