"""One kernel of a plan: the phases of its text, in order."""

from __future__ import annotations

import re
from dataclasses import replace

from normgen.codegen.access import Access
from normgen.codegen.chain import chain_comment, declare
from normgen.codegen.columns import Columns
from normgen.codegen.exchange import exchange_of
from normgen.codegen.looks import Looks
from normgen.codegen.module import Param, Source
from normgen.codegen.printer import Printer
from normgen.codegen.transport import transport_of
from normgen.codegen.transport.transport import holders
from normgen.codegen.view import KernelView, Loop, SectionList
from normgen.program.ir import Load, Map
from normgen.schedule.knobs import Columns as Way
from normgen.schedule.knobs import DependentLaunch, Params
from normgen.schedule.plan import Place, Plan


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


class KernelText:
    """The text of a plan's first kernel; `columns.second_kernel` is the other one, if there is one."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.plan = plan
        self.name = name
        self.access = Access(plan)
        self.states = self.access.states
        self.exchange = exchange_of(plan)
        self.transport = transport_of(self.access, reduction_frees=self.exchange.frees_slots)
        self.columns = Columns(self.access)
        self.looks = Looks(self.access, self.transport, self.columns)
        self.params = self._params()

    def _params(self) -> tuple[Param, ...]:
        """Pointers in the problem's order, pitches of elem tensors, sizes, scalars."""
        problem = self.plan.problem
        params = []
        for t in problem.tensors:
            const = "" if t.is_written else "const "
            ctype, stable = f"{const}{t.dtype.ctype}*", t.name in problem.stable_tensors
            params.append(Param(name=t.name, ctype=ctype, source=Source.TENSOR, key=t.name, stable=stable))
        for t in problem.elem_tensors:
            params.append(Param(name=f"{t.name}_pitch", ctype="long long", source=Source.PITCH, key=t.name))
        params.append(Param(name="rows", ctype="int", source=Source.ROWS))
        if problem.any_cols:
            params.append(Param(name="cols", ctype="int", source=Source.COLS))
        params += [Param(name=s, ctype="float", source=Source.SCALAR, key=s) for s in self.plan.program.scalars]
        return (*params, *self.columns.params())

    # ---- row values --------------------------------------------------------------------------------------------

    def row_lines(self, stage: int) -> list[str]:
        """Row values that become known at `stage`: loads and pivots at 0, then maps and stores."""
        lines = []
        names, printer = self.access.names, Printer(self.access.names)
        for statement in self.plan.program.statements:
            if isinstance(statement, Load) and not statement.kind.by_col and stage == 0:
                lines.append(f"const float {names[statement.name]} = {self.row_load(statement)};")
            narrow = isinstance(statement, Map) and not statement.kind.by_col
            if narrow and isinstance(statement, Map) and self.plan.stages[statement.name] == stage:
                lines.append(f"const float {names[statement.name]} = {printer.text(statement.expr)};")
        return lines

    def row_load(self, load: Load) -> str:
        if not load.first_of:
            return self.transport.row_value(load)
        of_row = self.plan.kinds[load.first_of].is_elem
        return f"element(read_default<1>({load.first_of}{'_row' if of_row else ''}), 0)"

    def row_store_lines(self) -> list[str]:
        stores = [s for s in self.plan.program.stores if not s.kind.by_col]
        if not stores:
            return []
        lines = []
        for store in stores:
            line = f"{store.tensor}[row] = {self.access.names[store.value]};"
            nullable = self.plan.problem.tensor(store.tensor).nullable
            lines.append(f"  if ({store.tensor} != nullptr) {line}" if nullable else f"  {line}")
        who = "lane == 0 && active" if self.plan.idle_rows else "lane == 0"
        return [f"if ({who}) {{", *lines, "}"]

    # ---- before, within and behind the row loop ----------------------------------------------------------------

    def prologue(self) -> SectionList:
        out = SectionList()
        plan, s = self.plan, self.plan.schedule
        out.lines(*self.thread_lines(), *self.access.edge_lines(), *self.exchange.set_up(self.states))
        out.lines(*self.transport.pointer_lines())
        if s.chained and plan.loops_rows:
            self.start_of_chain(out)
        self.transport.prologue(out)
        if s.keeps_params and not plan.reads_params_ahead:
            self.looks.param_loops(out)
        if s.dependent_launch is DependentLaunch.ON:
            out.lines("dependency_trigger();  // the finishing kernel may take its place as blocks end")
        self.columns.prologue(out)
        self.transport.start_fetching(out)
        out.lines(*self.exchange.settle())
        return out

    def thread_lines(self) -> list[str]:
        """Which lane of which row a thread is."""
        plan, s = self.plan, self.plan.schedule
        whole_block = s.rows_per_block == 1
        lane = "threadIdx.x" if whole_block else "threadIdx.x % kThreadsPerRow"
        if s.row_blocks > 1:
            lane = "static_cast<int>(cluster_rank() * kThreads + threadIdx.x)"
        lines = [f"const int lane = {lane};"]
        if s.row_blocks == 1 and (not whole_block or self.exchange.shares_slots):
            slot = "0" if whole_block else "threadIdx.x / kThreadsPerRow"
            lines.append(f"const int slot = {slot};  // this thread's row within the block")
        if not plan.loops_rows:
            start = self.access.walker if whole_block else "blockIdx.x * kRowsPerBlock + slot"
            lines.append(f"const int row = {start};")
        if plan.problem.any_cols and plan.cut.shifted:
            lines.append("const int steps = (cols / kVector + kThreadsPerRow - 1) / kThreadsPerRow;")
        elif plan.problem.any_cols:
            lines.append("const int vectors = cols / kVector;")
            lines.append("const int steps = (vectors + kThreadsPerRow - 1) / kThreadsPerRow;")
        return lines

    def start_of_chain(self, out: SectionList) -> None:
        """Wait for the kernels in front, before the first access to anything they may write or still read.

        All threads wait, so that the end of this kernel implies the end of those: whoever waits for this one may
        rely on it, even if this one let it start first.
        """
        if self.plan.schedule.dependent_launch is DependentLaunch.START:
            out.lines("dependency_trigger();  // the next kernel may take its place, and waits there")
        if self.plan.reads_params_ahead:
            self.looks.param_loops(out)
        out.lines("dependency_wait();  // nothing before it depends on the kernels in front of this one")

    def body(self) -> SectionList:
        out = SectionList()
        work = self.work()
        text = "\n".join(line for section in work.sections for line in section.texts())
        pointers, values = self.access.pointer_lines(text), self.row_lines(0)
        places = [*self.access.row_index_lines("\n".join([text, *pointers, *values])), *pointers]
        if self.plan.schedule.chained and not self.plan.loops_rows:
            out.lines(*places)
            self.start_of_chain(out)
            places = []
        out.lines(*places, *values)
        out.sections += work.sections
        return out

    def work(self) -> SectionList:
        """Everything a row needs once its index is known."""
        out = SectionList()
        plan, s = self.plan, self.plan.schedule
        out.lines(*holders(self.access))
        self.transport.start(out)
        if s.params is Params.EARLY and not plan.reads_params_ahead:
            self.looks.param_loops(out)
        if s.dependent_launch is DependentLaunch.LOADS:
            out.lines("dependency_trigger();  // the next kernel may start: this one has asked for its row")
        if not plan.is_hybrid:
            self.transport.arrive(out)
        out.lines(*(self.exchange.announce() if self.states else []))
        if plan.packs_params:
            narrow = [p for p in plan.early_params if plan.problem.tensor(p.name).dtype.bytes < 4]
            out.loop(Loop(unroll="#pragma unroll", head=tuple(f"stay_packed({p.name}_held[step]);" for p in narrow)))
        for look, state in enumerate(self.states):
            out.lines(f"{state.type} {state.variable} = {{{', '.join(state.identity)}}};")
            self.look_at(look, out)
            out.lines(*self.exchange.combine(state, is_first=look == 0), *self.row_lines(look + 1))
            if look == 0:
                self.transport.after_first_look(out)
        out.lines(*self.row_store_lines())
        if plan.elem_stores or plan.sums:
            self.look_at(len(plan.looks), out)
        self.transport.after_last_look(out)
        out.lines(*self.exchange.next_row())
        return out

    def look_at(self, look: int, out: SectionList) -> None:
        """One look at the whole row; what waits in registers needs no copy to have arrived."""
        first, *others = self.looks.look_loops(look)
        out.loop(first)
        if look == 0 and self.plan.is_hybrid:
            self.transport.arrive(out)
        for other in others:
            out.loop(other)

    def epilogue(self) -> SectionList:
        out = SectionList()
        self.columns.epilogue(out)
        if self.plan.schedule.dependent_launch is DependentLaunch.END:
            out.lines("dependency_trigger();  // the next kernel may start")
        return out

    # ---- the whole ---------------------------------------------------------------------------------------------

    def constants(self) -> tuple[tuple[str, str, str], ...]:
        plan, s, problem = self.plan, self.plan.schedule, self.plan.problem
        rows = [] if problem.any_cols else [("kCols", str(problem.cols), "")]
        if s.row_blocks > 1:
            rows += [("kCluster", str(s.cluster), "blocks that share a row"), ("kThreads", str(s.threads), "")]
            rows += [("kWarps", "kThreads / 32", ""), ("kThreadsPerRow", "kCluster * kThreads", "")]
        else:
            rows.append(("kThreadsPerRow", str(s.threads_per_row), ""))
        if plan.sums and plan.sums.way is Way.CLUSTER_PARTIALS:
            rows.append(("kCluster", str(s.cluster), "blocks that add their column sums"))
        if s.rows_per_block > 1:
            rows.append(("kRowsPerBlock", str(s.rows_per_block), ""))
        if plan.shared_bytes and s.row_blocks == 1:
            rows.append(("kThreads", str(s.threads), ""))
        width = s.vector * problem.dtype.bytes
        rows.append(("kVector", str(s.vector), f"elements per access of {width} bytes"))
        rows += self.exchange.constants()
        if not problem.any_cols:
            rows.append(("kVectors", "kCols / kVector", "per row"))
            rows.append(("kSteps", "(kVectors + kThreadsPerRow - 1) / kThreadsPerRow", "vectors a thread owns"))
            if plan.cut.shifted:
                rows.append(("kWholeSteps", "(kVectors - 2) / kThreadsPerRow", "a vector a thread, and one behind it"))
        return (*rows, *self.transport.constants(), *self.columns.constants())

    def comment(self) -> tuple[str, ...]:
        plan, s = self.plan, self.plan.schedule
        size = "any number of columns" if plan.problem.any_cols else f"{plan.problem.cols} columns"
        owner = {
            "thread_per_row": "one thread owns a row",
            "warp_per_row": f"{s.threads_per_row} lanes of a warp own a row",
            "block_per_row": f"{s.threads_per_row} threads own a row",
            "cluster_per_row": f"{s.cluster} blocks of {s.threads_per_row} threads own a row",
        }[s.strategy]
        reads = len(plan.look_loads) if plan.places == (Place.RELOAD,) else 1
        per_block = f", {s.rows_per_block} rows a block" if s.rows_per_block > 1 else ""
        if plan.sums and plan.sums.way is Way.CLUSTER_PARTIALS:
            per_block += f", {s.cluster} blocks share their column sums"
        times = {1: "once", 2: "twice"}.get(reads, f"{reads} times")
        what = f"{plan.problem.spec.name} {plan.problem.direction.value}, {size}"
        first = f"{what}: {owner}{per_block}; it is read {times}."
        return (first, chain_comment(plan)) if s.chained else (first,)

    def view(self) -> KernelView:
        plan, s = self.plan, self.plan.schedule
        bounds = str(s.threads) if s.blocks_per_sm == 0 else f"{s.threads}, {s.blocks_per_sm}"
        first, stride = self.access.first_tile, self.access.tile_stride
        loop = f"for (int first_row = {first}; first_row < rows; first_row += {stride})"
        view = KernelView(
            name=self.name,
            comment=self.comment(),
            params=tuple(declare(plan, p) for p in self.params),
            launch_bounds=bounds,
            constants=self.constants(),
            shared=(*self.exchange.slots(self.states), *self.transport.shared_lines()),
            prologue=self.prologue().done(),
            steps="steps" if plan.problem.any_cols else "kSteps",
            row_loop=loop if plan.loops_rows else "",
            body=self.body().done(),
            epilogue=self.epilogue().done(),
        )
        return replace(view, constants=_used(view))
