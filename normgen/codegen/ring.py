"""Where rows wait in shared memory, and how asynchronous copies bring them there.

    held rows      every thread has slots of its own, a vector each, so that no look needs a barrier
    cp_async       a thread copies its own vectors to its own slots; waiting for its copies is all it needs
    bulk           one thread a row asks the copy engine for the row; an mbarrier counts the bytes that arrive

A persistent grid keeps a ring of `stages` row tiles: while one is computed, the next are on their way. A slot is
filled again once its readers are done: with rows in registers after they have been read from it, with rows in
shared memory after the last look. Reading is generic, a bulk copy writes by the async proxy: a barrier orders earlier
reads before it, and no proxy fence is needed, because the threads never write to the slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from normgen.codegen.looks import EDGE
from normgen.codegen.prelude import POLICIES
from normgen.codegen.view import Loop, SectionList
from normgen.program.ir import Load
from normgen.schedule.knobs import Copy, Hold

if TYPE_CHECKING:
    from normgen.codegen.builder import KernelBuilder

WARP = 32


class Ring:
    """The slots of one kernel: their addresses, the copies into them, and when they are filled again."""

    def __init__(self, builder: KernelBuilder) -> None:
        self.b = builder
        self.s = builder.schedule
        self.bulk = self.s.copy is Copy.BULK
        self.bulk_load = f"bulk_load_{self.s.load}" if self.s.load in POLICIES else "bulk_load"
        self.side_by_side = self.s.rows_per_block > 1

    def __bool__(self) -> bool:
        """Whether rows come by asynchronous copies."""
        return self.s.copy is not Copy.DIRECT

    @property
    def in_loop(self) -> bool:
        """Whether copies of later rows are under way while a row is computed."""
        return bool(self) and self.s.persistent > 0

    @property
    def staged(self) -> bool:
        return bool(self) and self.s.stages > 1

    # ---- addresses ---------------------------------------------------------------------------------------------

    @property
    def bytes(self) -> int:
        """Dynamic shared memory of the held rows."""
        if self.s.hold not in (Hold.SHARED, Hold.HYBRID) and not self:
            return 0
        per_vector = sum(self.b.problem.tensor(ld.name).dtype.bytes for ld in self.b.held) * self.b.layout.vector
        steps = self.b.layout.steps - (self.b.held_steps if self.s.hold is Hold.HYBRID else 0)
        return steps * self.s.threads * per_vector * (self.s.stages if self else 1)

    @property
    def steps(self) -> str:
        """Slots of a thread in one row tile."""
        return "kSlotSteps" if self.s.hold is Hold.HYBRID else "kSteps"

    @property
    def _step(self) -> str:
        return "(step - kHeldSteps)" if self.s.hold is Hold.HYBRID else "step"

    def slot(self, tensor: str) -> str:
        """Address of this thread's slot of `step`."""
        if self.bulk and self.side_by_side:
            row = "(stage * kRowsPerBlock + slot)" if self.staged else "slot"
            return f"{tensor}_shared + (({row} * {self.steps} + {self._step}) * kThreadsPerRow + lane) * kVector"
        step = f"(stage * kSteps + {self._step})" if self.staged else self._step
        return f"{tensor}_shared + ({step} * kThreads + threadIdx.x) * kVector"

    def pointer_lines(self) -> list[str]:
        if not self.bytes:
            return []
        lines, offset = [], "0"
        stages = "kStages * " if self.staged else ""
        for load in self.b.held:
            ctype = self.b.ctype(load.name)
            lines.append(f"{ctype}* {load.name}_shared = reinterpret_cast<{ctype}*>(dynamic_shared() + {offset});")
            offset += f" + {stages}{self.steps} * kThreads * kVector * static_cast<int>(sizeof({ctype}))"
        return lines

    def constants(self) -> list[tuple[str, str, str]]:
        rows = []
        if self.staged:
            rows.append(("kStages", str(self.s.stages), "row tiles in shared memory"))
        if self.s.hold is Hold.HYBRID:
            rows.append(("kHeldSteps", str(self.b.held_steps), "of them in registers"))
            rows.append(("kSlotSteps", "kSteps - kHeldSteps", "and in shared memory"))
        if self.bulk:
            held = " - kHeldSteps * kThreadsPerRow * kVector" if self.s.hold is Hold.HYBRID else ""
            rows.append(("kCopiedCols", f"kCols{held}", "of a row that the copy engine brings"))
        return rows

    def shared_lines(self) -> tuple[str, ...]:
        if not self.bulk:
            return ()
        size = ("[kStages]" if self.staged else "") + ("[kRowsPerBlock]" if self.side_by_side else "")
        return (f"__shared__ unsigned long long arrived{size};",)

    # ---- copies ------------------------------------------------------------------------------------------------

    @property
    def _barrier(self) -> str:
        return "&arrived" + ("[stage]" if self.staged else "") + ("[slot]" if self.side_by_side else "")

    @property
    def _elected(self) -> str:
        return "lane == 0" if self.side_by_side else "threadIdx.x == 0"

    def _own_copies(self) -> list[str]:
        """cp_async: the copies of one step."""
        at = self.b.vector_site.at
        lines = [f"copy_async<kVector>({self.slot(ld.name)}, {ld.name}_row + {at});" for ld in self.b.held]
        return [*self.b.column_line(lines), *lines]

    def _row_copies(self) -> list[str]:
        """bulk: what the elected thread of a row does."""
        ctypes = [self.b.ctype(load.name) for load in self.b.held]
        size = " + ".join(f"sizeof({ctype})" for ctype in ctypes)
        size = f"({size})" if len(ctypes) > 1 else size
        if self.s.row_blocks > 1:
            return self._part_copies(size)
        lines = [f"mbarrier_expect_bytes({self._barrier}, kCopiedCols * {size});"]
        row = "stage * kRowsPerBlock + slot" if self.staged else "slot"
        row = row if self.side_by_side else "stage" if self.staged else ""
        row = f" + ({row}) * {self.steps} * kThreadsPerRow * kVector" if row else ""
        start = " + kCols - kCopiedCols" if self.s.hold is Hold.HYBRID else ""
        for load, ctype in zip(self.b.held, ctypes, strict=True):
            to, source = f"{load.name}_shared{row}", f"{load.name}_row{start}"
            lines.append(f"{self.bulk_load}({to}, {source}, kCopiedCols * sizeof({ctype}), {self._barrier});")
        return lines

    def _part_copies(self, size: str) -> list[str]:
        """A block of a cluster owns a stretch of the row in every step."""
        first_step = "kHeldSteps" if self.s.hold is Hold.HYBRID else "0"
        stretch = [
            f"for (int step = {first_step}; step < kSteps; ++step) {{",
            "  const int first = (step * kCluster + static_cast<int>(cluster_rank())) * kThreads;",
        ]
        lines = [
            "int own_vectors = 0;",
            *stretch,
            "  if (first < kVectors) own_vectors += min(kThreads, kVectors - first);",
            "}",
            f"mbarrier_expect_bytes({self._barrier}, own_vectors * kVector * {size});",
            *stretch,
            "  if (first >= kVectors) break;",
            "  const int count = min(kThreads, kVectors - first) * kVector;",
        ]
        slots = f"(stage * kSteps + {self._step})" if self.staged else self._step
        for load in self.b.held:
            to = f"{load.name}_shared + {slots} * kThreads * kVector"
            source = f"{load.name}_row + first * kVector"
            count = f"count * sizeof({self.b.ctype(load.name)})"
            lines.append(f"  {self.bulk_load}({to}, {source}, {count}, {self._barrier});")
        return [*lines, "}"]

    # ---- before the row loop -----------------------------------------------------------------------------------

    def prologue(self, out: SectionList) -> None:
        """Barriers, and the first row tiles on their way."""
        if not self.in_loop:
            return
        if self.bulk:
            stages = "for (int stage = 0; stage < kStages; ++stage) " if self.staged else ""
            out.lines(
                f"if ({self._elected}) {{",
                f"  {stages}mbarrier_init({self._barrier}, 1);",
                "  mbarrier_fence();",
                "}",
                "__syncthreads();  // others wait only for a barrier that is set up",
            )
        out.lines(*self._fetch_lines(), *self._row_value_lines(), *self._first_fetches())

    def _fetch_lines(self) -> list[str]:
        parameters = "int first_row, int stage" if self.staged else "int first_row"
        who = (
            "// One thread a row asks for it; the slot's barrier counts down the bytes that arrive."
            if self.bulk
            else "// Each thread copies its own vectors to its own slots, so that no barrier is needed to read them."
        )
        lines = [who, f"const auto fetch = [&]({parameters}) {{", f"  const int fetched_row = {self.b.fetched_row};"]
        for load in self.b.held:
            lines.append(f"  {self.b.row_pointer(self.b.problem.tensor(load.name), 'fetched_row')}")
        if self.bulk:
            return [*lines, *("  " + line for line in self._row_copies()), "};"]
        body = self._own_copies()
        if self.b.guard:
            body = [f"if ({self.b.guard}) {{", *("  " + line for line in body), "}"]
        return [
            *lines,
            "  #pragma unroll",
            "  for (int step = 0; step < kSteps; ++step) {",
            "    const int vector = lane + step * kThreadsPerRow;",
            *("    " + line for line in body),
            "  }",
            "};",
        ]

    def _row_value_lines(self) -> list[str]:
        """What a thread needs of the next row beside its vectors waits in registers."""
        if not self._fetches_values:
            return []
        edges = [ld for ld in self.b.held if self.b.layout.edged]
        lines = [f"float {r.name}_next;" for r in self.b.fetched_rows]
        lines += [f"{self.b.vec(ld.name, EDGE)} {ld.name}_edge_next = {{}};" for ld in edges]
        lines += ["const auto fetch_values = [&](int first_row) {", f"  const int fetched_row = {self.b.fetched_row};"]
        lines += [f"  {r.name}_next = {r.name}[fetched_row];" for r in self.b.fetched_rows]
        if edges:
            lines += [f"  {self.b.row_pointer(self.b.problem.tensor(ld.name), 'fetched_row')}" for ld in edges]
            reads = self.b.edge_reads("{}_edge_next")
            lines += ["  if (has_edge) {", *("    " + line for line in reads), "  }"]
        return [*lines, "};"]

    @property
    def _fetches_values(self) -> bool:
        return self.b.layout.edged or bool(self.b.fetched_rows)

    def _first_fetches(self) -> list[str]:
        first, stride = self.b.first_tile, self.b.tile_stride
        elected = f"{self._elected} && " if self.bulk else ""
        commit = [] if self.bulk else ["cp_async_commit();"]
        values = [f"if ({first} < rows) fetch_values({first});"] if self._fetches_values else []
        counters = ["int stage = 0;"] if self.staged else []
        counters += ["unsigned phase = 0;"] if self.bulk else []
        if not self.staged:
            return [f"if ({elected}{first} < rows) fetch({first});", *commit, *values, *counters]
        return [
            "#pragma unroll 1",
            "for (int stage = 0; stage < kStages; ++stage) {",
            f"  const int first_row = {first} + stage * {stride};",
            f"  if ({elected}first_row < rows) fetch(first_row, stage);",
            *("  " + line for line in commit),
            "}",
            *values,
            *counters,
        ]

    # ---- within a row ------------------------------------------------------------------------------------------

    def start(self, out: SectionList) -> None:
        """Ask for what no copy is under way for: with one row tile a block, for all of it."""
        if not self:
            return
        if self.in_loop:
            self._next_values(out)
            return
        if not self.bulk:
            span = self.b.spans[-1]
            out.loop(
                Loop(
                    comment="Each thread copies its own vectors to its own slots of shared memory.",
                    unroll=span.unroll,
                    guard=self.b.guard,
                    head=tuple(self._own_copies()),
                    first=span.first,
                    edge=self.b.edge_reads("{}_edge"),
                )
            )
            out.lines("cp_async_commit();")
            return
        out.lines(
            "// One thread a row asks for it; the barrier counts down the bytes that arrive.",
            f"if ({self._elected}) {{",
            f"  mbarrier_init({self._barrier}, 1);",
            "  mbarrier_fence();",
            *("  " + line for line in self._row_copies()),
            "}",
            "__syncthreads();  // others wait only for a barrier that is set up",
        )

    def _next_values(self, out: SectionList) -> None:
        """The next row's values are asked for as soon as this row's have been taken."""
        if not self._fetches_values:
            return
        following = f"first_row + {self.b.tile_stride}"
        edges = [f"{ld.name}_edge = {ld.name}_edge_next;" for ld in self.b.held if self.b.layout.edged]
        out.lines(*edges, f"if ({following} < rows) fetch_values({following});")

    def arrive(self, out: SectionList) -> None:
        """Wait for this row; rows that are held in registers leave their slots."""
        if self.bulk:
            out.lines(f"mbarrier_wait({self._barrier}, {'phase' if self.in_loop else '0'});")
        else:
            out.lines(f"cp_async_wait<{'kStages - 1' if self.staged else '0'}>();")
        if self.s.hold is not Hold.REGISTERS:
            return
        reads = tuple(f"{ld.name}_held[step] = {self._read(ld)};" for ld in self.b.held)
        out.loop(Loop(unroll="#pragma unroll", guard=self.b.guard, head=reads))
        if not self.bulk:
            out.lines(*self._refill())
        elif not self._reduction_frees:
            out.lines(*self._release(), *self._refill())

    def _read(self, load: Load) -> str:
        return f"read_default<kVector>({self.slot(load.name)})"

    @property
    def _reduction_frees(self) -> bool:
        """Whether the barrier of the first row reduction proves that all threads have emptied the slots."""
        return (self.s.threads_per_row > WARP or self.s.row_blocks > 1) and bool(self.b.states)

    def after_first_look(self, out: SectionList) -> None:
        if self.in_loop and self.bulk and self.s.hold is Hold.REGISTERS and self._reduction_frees:
            out.lines("// Every thread of the row has passed a barrier since it read its slots.", *self._refill())

    def after_last_look(self, out: SectionList) -> None:
        if not self.in_loop:
            return
        if self.s.hold is Hold.SHARED:
            out.lines(*(self._release() if self.bulk else []), *self._refill())
        if self.bulk and self.staged:
            out.lines("if (++stage == kStages) { stage = 0; phase ^= 1; }")
        elif self.bulk:
            out.lines("phase ^= 1;")
        elif self.staged:
            out.lines("stage = (stage + 1) % kStages;")

    def _release(self) -> list[str]:
        """The barrier between the last read of a slot and the copy that fills it again."""
        why = "  // the slots are empty"
        if self.s.threads_per_row == 1:
            return []
        if self.s.threads_per_row <= WARP:
            return ["__syncwarp();" + why]
        if self.b.row_barriers:
            return ["named_barrier(1 + slot, kThreadsPerRow);" + why]
        return ["__syncthreads();" + why]

    def _refill(self) -> list[str]:
        ahead = f"first_row + {'kStages * ' if self.staged else ''}{self.b.tile_stride}"
        stage = ", stage" if self.staged else ""
        elected = f"{self._elected} && " if self.bulk else ""
        commit = [] if self.bulk else ["cp_async_commit();"]
        return [f"if ({elected}{ahead} < rows) fetch({ahead}{stage});", *commit]
