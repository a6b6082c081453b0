"""Lowers RowProgram x Schedule to the sections of one kernel (see view.py): the looks, and what stands around them.

Row values and their reductions, rows in flight, the row loop, prologue and epilogue, constants and shared memory.
"""

from __future__ import annotations

import re
from dataclasses import replace

from normgen.codegen import prefetch
from normgen.codegen.columns import WARP, ColumnSums
from normgen.codegen.dependent import Chain
from normgen.codegen.looks import EDGE
from normgen.codegen.printer import Printer
from normgen.codegen.ring import Ring
from normgen.codegen.view import KernelView, Loop, SectionList
from normgen.problem.problem import Problem, TensorUse
from normgen.program.ir import Load, Map, RowProgram
from normgen.schedule.knobs import DependentLaunch, Hold, Params, ReduceWith
from normgen.schedule.schedule import Schedule
from normgen.spec.spec import Kind

STARTED = "a block may write to another only once that one has started"


def _used(view: KernelView) -> tuple[tuple[str, str, str], ...]:
    """The constants that the kernel names, directly or through another: nvcc warns about the rest."""
    sections = (*view.prologue, *view.body, *view.epilogue)
    text = [line for section in sections for line in section.texts()]
    text += [section.guard for section in sections if isinstance(section, Loop)]
    text += [
        view.row_loop,
        view.steps,
        *view.shared,
        *("kThreadsPerRow kVector" for s in sections if isinstance(s, Loop)),
    ]
    kept: list[tuple[str, str, str]] = []
    for constant in reversed(view.constants):
        readers = [*text, *(value for _, value, _ in kept)]
        if any(re.search(rf"\b{constant[0]}\b", line) for line in readers):
            kept.insert(0, constant)
    return tuple(kept)


class KernelBuilder(Chain):
    """Builds one kernel of a program."""

    def __init__(self, problem: Problem, program: RowProgram, schedule: Schedule, name: str) -> None:
        super().__init__(problem, program, schedule, name)
        self.columns = ColumnSums(self)
        self.ring = Ring(self)

    # ---- row values --------------------------------------------------------------------------------------------

    def row_lines(self, stage: int) -> list[str]:
        """Row values that become known at `stage`: loads and pivots at 0, then maps and stores."""
        lines = []
        printer = Printer(self.names)
        for statement in self.program.statements:
            if isinstance(statement, Load) and statement.kind is Kind.ROW and stage == 0:
                lines.append(f"const float {self.names[statement.name]} = {self.row_load(statement)};")
            narrow = isinstance(statement, Map) and statement.kind in (Kind.ROW, Kind.SCALAR)
            if narrow and isinstance(statement, Map) and self.stages[statement.name] == stage:
                lines.append(f"const float {self.names[statement.name]} = {printer.text(statement.expr)};")
        return lines

    def row_load(self, load: Load) -> str:
        if not load.first_of:
            return f"{load.name}_next" if self.prefetches or self.ring.in_loop else f"{load.name}[{self.valid_row}]"
        of_row = self.kinds[load.first_of] is Kind.ELEM
        return f"element(read_default<1>({load.first_of}{'_row' if of_row else ''}), 0)"

    def row_store_lines(self) -> list[str]:
        stores = [s for s in self.program.stores if s.kind is Kind.ROW]
        if not stores:
            return []
        lines = []
        for store in stores:
            line = f"{store.tensor}[row] = {self.names[store.value]};"
            nullable = self.problem.tensor(store.tensor).nullable
            lines.append(f"  if ({store.tensor} != nullptr) {line}" if nullable else f"  {line}")
        who = "lane == 0 && active" if self.idle_rows else "lane == 0"
        return [f"if ({who}) {{", *lines, "}"]

    def reduce_line(self, look: int) -> str:
        state = self.states[look]
        width = self.schedule.threads_per_row
        if self.cluster_loops:
            places = f"{state.variable}_slots[trip % 2], &{state.variable}_full[trip % 2], trip / 2 % 2"
            return f"{state.variable} = exchange_cluster<kWarps, kCluster>({state.variable}, {places});"
        if self.schedule.row_blocks > 1:
            return f"{state.variable} = reduce_cluster<kWarps, kCluster>({state.variable}, {state.variable}_slots);"
        if width == 1:
            return ""
        if self.schedule.reduce_with is ReduceWith.SHARED_TREE:
            call = f"reduce_tree<kThreadsPerRow>({state.variable}, {state.variable}_slots[slot])"
        elif width <= WARP:
            function = "reduce_tile" if self.schedule.reduce_with is ReduceWith.COOPERATIVE_GROUPS else "reduce_lanes"
            call = f"{function}<kThreadsPerRow>({state.variable})"
        else:
            slots = f"{state.variable}_slots[parity][slot]" if self.double_slots else f"{state.variable}_slots[slot]"
            function = "reduce_tiles" if self.schedule.reduce_with is ReduceWith.COOPERATIVE_GROUPS else "reduce_row"
            own_barrier = ", slot" if self.row_barriers else ""
            call = f"{function}<kWarpsPerRow>({state.variable}, {slots}{own_barrier})"
        return f"{state.variable} = {call};"

    @property
    def row_barriers(self) -> bool:
        """Rows side by side synchronise by a named barrier each, where rows are wide.

        On an H200 that takes 2 % off the backward pass of 4096x4096 (2 rows of 256 threads) and adds 25 % to
        8192x768 (2 rows of 64 threads): a barrier whose number the hardware learns at run time is a slow one.
        """
        return self.schedule.rows_per_block > 1 and self.schedule.threads_per_row >= 256

    @property
    def double_slots(self) -> bool:
        """With a single barrier per row, a fast warp could overwrite slots a slow warp still reads: alternate them."""
        if not self.loops_rows or len(self.groups) != 1 or self.schedule.row_blocks > 1:
            return False
        return self.schedule.threads_per_row > WARP and self.schedule.reduce_with is not ReduceWith.SHARED_TREE

    @property
    def cluster_loops(self) -> bool:
        """Whether clusters walk rows and exchange states in each."""
        return self.schedule.row_blocks > 1 and self.schedule.persistent > 0 and bool(self.states)

    @property
    def walker(self) -> str:
        """Which of the walkers of rows this block is, or belongs to: a cluster walks as one."""
        return "blockIdx.x / kCluster" if self.schedule.row_blocks > 1 else "blockIdx.x"

    @property
    def walkers(self) -> str:
        return "gridDim.x / kCluster" if self.schedule.row_blocks > 1 else "gridDim.x"

    # ---- the kernel --------------------------------------------------------------------------------------------

    @property
    def prefetches(self) -> bool:
        """The next row travels to registers while this one is computed."""
        return self.schedule.stages > 1 and self.schedule.hold is Hold.REGISTERS and not self.ring

    def body(self) -> SectionList:
        work = self.work()
        text = "\n".join(line for section in work.sections for line in section.texts())
        out = SectionList()
        pointers, values = self.pointer_lines(text), self.row_lines(0)
        places = [*self.row_index_lines("\n".join([text, *pointers, *values])), *pointers]
        if self.schedule.chained and not self.loops_rows:
            out.lines(*places)
            self.start_of_chain(out)
            places = []
        out.lines(*places, *values)
        out.sections += work.sections
        return out

    def work(self) -> SectionList:
        """Everything a row needs once its index is known."""
        out = SectionList()
        if self.schedule.hold in (Hold.REGISTERS, Hold.HYBRID) and self.held:
            out.lines(*self.declarations(self.held, "kSteps" if self.schedule.hold is Hold.REGISTERS else "kHeldSteps"))
        elif self.schedule.hold is Hold.SHARED and self.layout.edged:
            out.lines(*(f"{self.vec(h.name, EDGE)} {h.name}_edge = {{}};" for h in self.held))
        self.ring.start(out)
        if self.prefetches:
            prefetch.take_fetched(self, out)
        elif not self.ring.in_loop:
            self.load_loops(out)
        if self.schedule.params is Params.EARLY and not self.reads_params_ahead:
            self.param_loops(out)
        if self.schedule.dependent_launch is DependentLaunch.LOADS:
            out.lines("dependency_trigger();  // the next kernel may start: this one has asked for its row")
        if self.ring and self.schedule.hold is not Hold.HYBRID:
            self.ring.arrive(out)
        if self.schedule.row_blocks > 1 and self.states and not self.cluster_loops:
            out.lines(f"cluster_arrive();  // {STARTED}")
        if self.schedule.params is Params.PACKED:
            narrow = [p for p in self.early_params if self.problem.tensor(p.name).dtype.bytes < 4]
            out.loop(Loop(unroll="#pragma unroll", head=tuple(f"stay_packed({p.name}_held[step]);" for p in narrow)))
        for look, state in enumerate(self.states):
            out.lines(f"{state.type} {state.variable} = {{{', '.join(state.identity)}}};")
            self.look_at(look, out)
            reduce = [line for line in (self.reduce_line(look),) if line]
            if self.schedule.row_blocks > 1 and look == 0 and not self.cluster_loops:
                reduce.insert(0, "cluster_wait();")
            out.lines(*reduce, *self.row_lines(look + 1))
            if look == 0:
                self.ring.after_first_look(out)
        out.lines(*self.row_store_lines())
        if self.elem_stores or self.columns:
            self.look_at(len(self.groups), out)
        self.ring.after_last_look(out)
        if self.double_slots:
            out.lines("parity ^= 1;")
        if self.cluster_loops:
            out.lines("++trip;")
        return out

    def look_at(self, look: int, out: SectionList) -> None:
        """One look at the whole row; what waits in registers needs no copy to have arrived."""
        first, *others = self.look_loops(look)
        out.loop(first)
        if look == 0 and self.ring and self.schedule.hold is Hold.HYBRID:
            self.ring.arrive(out)
        for other in others:
            out.loop(other)

    # ---- rows in flight ----------------------------------------------------------------------------------------

    @property
    def fetched_rows(self) -> list[Load]:
        return [ld for ld in self.program.loads if ld.kind is Kind.ROW and not ld.first_of]

    @property
    def fetched_row(self) -> str:
        if not self.idle_rows:
            return "first_row"
        return (
            "first_row + slot < rows ? first_row + slot : own_row"
            if self.one_shift
            else "min(first_row + slot, rows - 1)"
        )

    @property
    def first_tile(self) -> str:
        return "blockIdx.x * kRowsPerBlock" if self.idle_rows else self.walker

    @property
    def tile_stride(self) -> str:
        return "gridDim.x * kRowsPerBlock" if self.idle_rows else self.walkers

    def row_index_lines(self, text: str) -> list[str]:
        """Which row this is, by the names that `text` reads."""
        lines = []
        if self.loops_rows:
            lines.append("const int row = first_row + slot;" if self.idle_rows else "const int row = first_row;")
        if self.idle_rows:
            other = "own_row" if self.one_shift else "rows - 1"
            what = "their lane's first row" if self.one_shift else "the last row"
            lines.append(f"const bool active = row < rows;  // idle rows recompute {what} and store nothing")
            if re.search(r"\bvalid_row\b", text):
                lines.append(f"const int valid_row = active ? row : {other};")
        return lines

    @property
    def valid_row(self) -> str:
        return "valid_row" if self.idle_rows else "row"

    def row_pointer(self, tensor: TensorUse, row: str) -> str:
        const = "" if tensor.is_written else "const "
        return (
            f"{const}{tensor.dtype.ctype}* {tensor.name}_row = "
            f"{tensor.name} + static_cast<long long>({row}) * {tensor.name}_pitch;"
        )

    def pointer_lines(self, text: str) -> list[str]:
        """Row starts of the elem tensors that `text` reads or writes."""
        lines = []
        for tensor in self.problem.elem_tensors:
            pivot = any(ld.first_of == tensor.name for ld in self.program.loads)
            aligned = self.layout.shifted and not self.one_shift and tensor is self.first_elem
            if re.search(rf"\b{tensor.name}_row\b", text) or pivot or aligned:
                lines.append(self.row_pointer(tensor, self.valid_row))
        if self.layout.shifted and not self.one_shift:
            lines += self.shift_lines(f"{self.first_elem.name}_row")
        return lines

    @property
    def first_elem(self) -> TensorUse:
        return next(t for t in self.problem.elem_tensors if not t.is_written)

    def shift_lines(self, row: str) -> list[str]:
        """How the row at pointer `row` is cut."""
        address = f"reinterpret_cast<unsigned long long>({row})"
        return [
            "// A row's first elements, up to its first aligned vector, and its last ones belong to a lane each.",
            f"const int shift = static_cast<int>({address} / sizeof({self.first_elem.dtype.ctype}) % kVector);",
            "const int head = (kVector - shift) % kVector;",
            f"const int vectors = ({self.cols} - head) / kVector;",
            "const int edge = lane < head ? lane : lane + vectors * kVector;",
            f"const bool has_edge = edge < {self.cols};",
        ]

    def edge_lines(self) -> list[str]:
        """The element outside of the whole vectors that this lane owns in every row."""
        if self.one_shift:
            x = self.first_elem.name
            first = f"min(static_cast<int>({self.first_tile} + slot), rows - 1)" if self.idle_rows else self.first_tile
            return [
                "// The grid's stride is a multiple of the vector: all rows of this lane shift alike.",
                f"const int own_row = {first};",
                *self.shift_lines(f"{x} + static_cast<long long>(own_row) * {x}_pitch"),
            ]
        if not self.layout.edged or self.layout.shifted:
            return []
        vectors = "vectors" if self.problem.any_cols else "kVectors"
        return [
            "// The elements behind the last whole vector belong to a lane each.",
            f"const int edge = lane + {vectors} * kVector;",
            f"const bool has_edge = edge < {self.cols};",
        ]

    def prologue(self) -> SectionList:
        out = SectionList()
        s = self.schedule
        whole_block = s.rows_per_block == 1
        lane = "threadIdx.x" if whole_block else "threadIdx.x % kThreadsPerRow"
        if s.row_blocks > 1:
            lane = "static_cast<int>(cluster_rank() * kThreads + threadIdx.x)"
        lines = [f"const int lane = {lane};"]
        uses_slot = bool(self.states) and (s.threads_per_row > WARP or s.reduce_with is ReduceWith.SHARED_TREE)
        if s.row_blocks == 1 and (not whole_block or uses_slot):
            slot = "0" if whole_block else "threadIdx.x / kThreadsPerRow"
            lines.append(f"const int slot = {slot};  // this thread's row within the block")
        if not self.loops_rows:
            start = self.walker if whole_block else "blockIdx.x * kRowsPerBlock + slot"
            lines.append(f"const int row = {start};")
        if self.problem.any_cols and self.layout.shifted:
            lines.append("const int steps = (cols / kVector + kThreadsPerRow - 1) / kThreadsPerRow;")
        elif self.problem.any_cols:
            lines.append("const int vectors = cols / kVector;")
            lines.append("const int steps = (vectors + kThreadsPerRow - 1) / kThreadsPerRow;")
        lines += self.edge_lines()
        if self.double_slots:
            lines.append("int parity = 0;")
        if self.cluster_loops:
            lines += self.exchange_lines()
        out.lines(*lines)
        out.lines(*self.ring.pointer_lines())
        if s.chained and self.loops_rows:
            self.start_of_chain(out)
        self.ring.prologue(out)
        if s.keeps_params and not self.reads_params_ahead:
            self.param_loops(out)
        if s.dependent_launch is DependentLaunch.ON:
            out.lines("dependency_trigger();  // the finishing kernel may take its place as blocks end")
        self.columns.prologue(out)
        if self.prefetches:
            out.lines(*prefetch.fetch_lines(self), f"if ({self.first_tile} < rows) fetch({self.first_tile});")
        if self.cluster_loops:
            out.lines("cluster_wait();")
        return out

    def exchange_lines(self) -> list[str]:
        """What clusters that walk rows set up before the first exchange."""
        barriers = [f"{st.variable}_full + {i}" for st in self.states for i in range(2)]
        return [
            "unsigned trip = 0;",
            "if (threadIdx.x == 0) {",
            *(f"  mbarrier_init({barrier}, 1);" for barrier in barriers),
            "  mbarrier_cluster_fence();",
            "}",
            f"cluster_arrive();  // {STARTED}",
        ]

    def epilogue(self) -> SectionList:
        out = SectionList()
        self.columns.epilogue(out)
        if self.schedule.dependent_launch is DependentLaunch.END:
            out.lines("dependency_trigger();  // the next kernel may start")
        return out

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: the held rows, then the block's column sums."""
        return self.ring.bytes + self.columns.shared_bytes

    def constants(self) -> tuple[tuple[str, str, str], ...]:
        s, problem = self.schedule, self.problem
        first = problem.dtype
        rows = [] if problem.any_cols else [("kCols", str(problem.cols), "")]
        if s.row_blocks > 1:
            rows += [("kCluster", str(s.cluster), "blocks that share a row"), ("kThreads", str(s.threads), "")]
            rows += [("kWarps", "kThreads / 32", ""), ("kThreadsPerRow", "kCluster * kThreads", "")]
        else:
            rows.append(("kThreadsPerRow", str(s.threads_per_row), ""))
        if self.columns.by_cluster:
            rows.append(("kCluster", str(s.cluster), "blocks that add their column sums"))
        if s.rows_per_block > 1:
            rows.append(("kRowsPerBlock", str(s.rows_per_block), ""))
        if (self.ring.bytes or self.columns.in_shared or self.columns.by_tile) and s.row_blocks == 1:
            rows.append(("kThreads", str(s.threads), ""))
        width = s.vector * first.bytes
        rows.append(("kVector", str(s.vector), f"elements per access of {width} bytes"))
        if s.threads_per_row > WARP and s.reduce_with is not ReduceWith.SHARED_TREE and s.row_blocks == 1:
            rows.append(("kWarpsPerRow", "kThreadsPerRow / 32", ""))
        if not problem.any_cols:
            rows.append(("kVectors", "kCols / kVector", "per row"))
            rows.append(("kSteps", "(kVectors + kThreadsPerRow - 1) / kThreadsPerRow", "vectors a thread owns"))
            if self.layout.shifted:
                rows.append(("kWholeSteps", "(kVectors - 2) / kThreadsPerRow", "a vector a thread, and one behind it"))
        return (*rows, *self.ring.constants(), *self.columns.constants())

    def shared_lines(self) -> tuple[str, ...]:
        return (*self.state_slots(), *self.ring.shared_lines())

    def state_slots(self) -> tuple[str, ...]:
        s = self.schedule
        if s.row_blocks > 1:
            twice = "[2]" if self.cluster_loops else ""
            slots = [f"__shared__ {st.type} {st.variable}_slots{twice}[kCluster * kWarps];" for st in self.states]
            full = [f"__shared__ unsigned long long {st.variable}_full[2];" for st in self.states if twice]
            return (*slots, *full)
        if s.threads_per_row == 1:
            return ()
        if s.reduce_with is ReduceWith.SHARED_TREE:
            size = f"[{s.rows_per_block}][kThreadsPerRow]"
        elif s.threads_per_row > WARP:
            size = ("[2]" if self.double_slots else "") + f"[{s.rows_per_block}][kWarpsPerRow]"
        else:
            return ()
        return tuple(f"__shared__ {st.type} {st.variable}_slots{size};" for st in self.states)

    def comment(self) -> tuple[str, ...]:
        s = self.schedule
        size = "any number of columns" if self.problem.any_cols else f"{self.problem.cols} columns"
        owner = {
            "thread_per_row": "one thread owns a row",
            "warp_per_row": f"{s.threads_per_row} lanes of a warp own a row",
            "block_per_row": f"{s.threads_per_row} threads own a row",
            "cluster_per_row": f"{s.cluster} blocks of {s.threads_per_row} threads own a row",
        }[s.strategy]
        reads = len(self.look_loads) if s.hold is Hold.RELOAD else 1
        per_block = f", {s.rows_per_block} rows a block" if s.rows_per_block > 1 else ""
        per_block += f", {s.cluster} blocks share their column sums" if self.columns.by_cluster else ""
        times = {1: "once", 2: "twice"}.get(reads, f"{reads} times")
        first = (
            f"{self.problem.spec.name} {self.problem.direction.value}, {size}: {owner}{per_block}; it is read {times}."
        )
        return (first, *self.chain_comment()) if s.chained else (first,)

    def view(self) -> KernelView:
        s = self.schedule
        bounds = str(s.threads) if s.blocks_per_sm == 0 else f"{s.threads}, {s.blocks_per_sm}"
        loop = f"for (int first_row = {self.first_tile}; first_row < rows; first_row += {self.tile_stride})"
        view = KernelView(
            name=self.name,
            comment=self.comment(),
            params=tuple(self.declare(p) for p in self.params),
            launch_bounds=bounds,
            constants=self.constants(),
            shared=self.shared_lines(),
            prologue=self.prologue().done(),
            steps="steps" if self.problem.any_cols else "kSteps",
            row_loop=loop if self.loops_rows else "",
            body=self.body().done(),
            epilogue=self.epilogue().done(),
        )
        return replace(view, constants=_used(view))
