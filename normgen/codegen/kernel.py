"""One kernel of a plan: the phases of its text, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from normgen.codegen.access import EDGE, Access, policy
from normgen.codegen.chain import (
    AT_END,
    AT_LOADS,
    chain_comment,
    chain_of,
    chain_setting,
    declare,
    params_setting,
    start_of_chain,
    tensor_params,
)
from normgen.codegen.columns import ColumnSums
from normgen.codegen.config.kernel_text import KernelText
from normgen.codegen.config.rows import RowPrinter, division_setting, order_setting
from normgen.codegen.exchange import exchange_of
from normgen.codegen.exchange.team import team_constants
from normgen.codegen.looks import Looks
from normgen.codegen.module import KernelEntry, Launch, Param, Source, Workspace
from normgen.codegen.printer import Printer
from normgen.codegen.statements import (
    ConfigSetting,
    Do,
    For,
    Gap,
    If,
    Let,
    Set,
    Statement,
    constant,
    pruned,
    setting,
    type_setting,
)
from normgen.codegen.transport import transport_of
from normgen.codegen.transport.transport import holders
from normgen.codegen.walk import Walk
from normgen.program.ir import Column, Load, Map
from normgen.schedule.plan import Plan, Waiting, is_spared
from normgen.schedule.schedule import RUNNING_SUMS
from normgen.spec.spec import Kind


class MainKernel:
    """A plan's first kernel, and the source of both: `columns.second_kernel` is the other one, if there is one."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.problem = plan.problem
        self.chain = chain_of(plan.schedule)
        self.access = Access(plan)
        self.states = self.access.states
        self.exchange = exchange_of(plan)
        self.transport = transport_of(self.access, reduction_frees=self.exchange.frees_slots)
        self.columns = ColumnSums(self.access)
        self.looks = Looks(self.access, self.transport, self.columns)
        self.params = self._params()

    def _params(self) -> tuple[Param, ...]:
        """Pointers in the problem's order, pitches of tensors of rows and batches, sizes, scalars."""
        problem = self.plan.problem
        params = tensor_params(problem)
        params.append(Param(name="rows", ctype="int", source=Source.ROWS))
        if problem.any_cols:
            params.append(Param(name="cols", ctype="int", source=Source.COLS))
        heads = problem.rows_per_batch and problem.spec.has_heads
        if self.plan.walks_batches and not heads:
            params.append(Param(name="rows_per_batch", ctype="int", source=Source.ROWS_PER_BATCH))
        if problem.sums_batches or heads:
            params.append(Param(name="batches", ctype="int", source=Source.BATCHES))
        if problem.rows_per_batch and not self.plan.walks_batches:
            key = self.access.divisor
            params.append(Param(name=f"{key}_inverse", ctype="unsigned long long", source=Source.INVERSE, key=key))
        params += [Param(name=s, ctype="float", source=Source.SCALAR, key=s) for s in self.plan.program.scalars]
        return (*params, *self.behind_exchange(self.columns.params()), *self.exchange.params())

    def behind_exchange(self, params: Iterable[Param]) -> list[Param]:
        """Parameters of the sums over rows: their part of the workspace lies behind the counters of the exchange."""
        counters = self.plan.meeting.fixed_bytes if self.plan.meeting else 0
        return [replace(p, offset=p.offset + counters) if p.source is Source.WORKSPACE else p for p in params]

    @property
    def name(self) -> str:
        """For example layernorm_fwd_bf16_without_bias_team_per_row; absent tensors are named."""
        cols = "_any_cols" if self.problem.any_cols else ""
        absent = "".join(f"_without_{name}" for name in self.problem.absent)
        strategy = "team_per_row" if self.plan.has_team else self.plan.schedule.strategy
        return f"{self.problem.name}{cols}{absent}_{strategy}"

    @property
    def launch(self) -> Launch:
        plan, s = self.plan, self.plan.schedule
        return Launch(
            blocks=plan.blocks,
            threads=s.threads,
            rows_per_block=s.rows_per_block,
            cluster=s.cluster,
            parts=s.parts,
            persistent=s.persistent,
            shared_bytes=plan.shared_bytes,
            period=plan.period,
            min_blocks=1 if plan.sums else 0,
            by_batch=plan.walks_batches,
            dependent=s.chained,
            cooperates=plan.meeting is not None,
        )

    @property
    def min_arch(self) -> int:
        return self.plan.min_arch

    @property
    def workspace(self) -> Workspace:
        sums, meeting = self.plan.sums, self.plan.meeting
        found = Workspace()
        if sums is not None:
            found = Workspace(
                fixed=sums.fixed_bytes, column=sums.column_bytes, block=sums.block_bytes, batch=sums.batch_bytes
            )
        if meeting is None:
            return found
        fixed, block = found.fixed + meeting.fixed_bytes, found.block + meeting.block_bytes
        return replace(found, fixed=fixed, block=block)

    def kernels(self) -> list[tuple[KernelEntry, KernelText]]:
        """This one, and the one that finishes its sums over rows."""
        found = [(KernelEntry(name=self.name, params=self.params, launch=self.launch), self.text())]
        second = self.columns.second_kernel(f"{self.problem.name}_finish")
        if second is not None:
            text = KernelText(
                name=second.kernel.name,
                comment=(second.comment,),
                params=second.declared,
                bounds=str(second.kernel.launch.threads),
                config={"Chain": self.chain},  # the parameters' types ask for it
                body=pruned(second.body),
            )
            params = tuple(self.behind_exchange(second.kernel.params))
            found.append((replace(second.kernel, params=params), text))
        return found

    def declared(self, param: Param) -> str:
        return declare(self.problem, param)

    # ---- row values --------------------------------------------------------------------------------------------

    def row_values(self, stage: int) -> list[Statement]:
        """Row values that become known at `stage`: loads and pivots at 0, then maps."""
        found: list[Statement] = []
        names, printer = self.access.names, RowPrinter(self.access.names)
        totals = {store.value for store, _ in self.plan.program.total_terms}
        for statement in self.plan.program.statements:
            if not isinstance(statement, Load | Map) or statement.kind.within_row or statement.name in totals:
                continue
            if isinstance(statement, Load) and statement.name in self.plan.seeds:
                bits = f"const {self.access.vec(statement.name, EDGE)}"
                found += [Let(bits, names[statement.name], f"read<1>({statement.name})")] if stage == 0 else []
            elif isinstance(statement, Load) and stage == 0:
                found.append(Let("const float", names[statement.name], self.row_load(statement)))
            if isinstance(statement, Map) and self.plan.stages[statement.name] == stage:
                found.append(Let("const float", names[statement.name], printer.text(statement.expr)))
        return found

    def row_load(self, load: Load) -> str:
        if load.kind is Kind.SCALAR:
            return self.access.read_row_value(load.name, "0")
        if not load.of:
            return self.transport.row_value(load)
        start = self.access.start(load.of)
        cols = self.access.cols
        if load.index:
            return self.access.unless_null(load.of, f"taken({start}, {self.access.names[load.index]}, {cols})")
        column = {Column.FIRST: "", Column.MIDDLE: f"{cols} / 2", Column.LAST: f"{cols} - 1"}[load.column]
        column = f"({column}) / {load.group}" if load.group and column else column
        return self.access.unless_null(load.of, f"element(read<1>({f'{start} + {column}' if column else start}), 0)")

    def row_stores(self) -> list[Statement]:
        stores: list[Statement] = []
        for store in self.plan.program.stores:
            if not store.kind.is_row:
                continue
            value = self.access.names[store.value]
            write = Do(self.access.write_row_value(store.tensor, "row", value, accumulate=store.accumulate))
            nullable = self.plan.problem.tensor(store.tensor).nullable
            wanted = (If(f"{store.tensor} != nullptr", (write,), alone=True),) if nullable else (write,)
            stores += self.access.if_wanted(store.tensor, *wanted)
        who = "row_thread == 0 && active" if self.plan.rows_beside else "row_thread == 0"
        return [Gap(), If(who, tuple(stores)), Gap()] if stores else []

    # ---- before, within and behind the row loop ----------------------------------------------------------------

    def prologue(self) -> list[Statement]:
        plan, s = self.plan, self.plan.schedule
        waits = self.start_of_chain() if plan.loops_rows else []
        is_kept = s.keeps_params or (plan.config_params and plan.loops_rows)
        params = self.looks.early_params() if is_kept and not plan.reads_params_ahead else []
        return [
            *self.thread(),
            *self.access.batch(),
            *self.access.last_start(),
            *self.access.edge(),
            *self.exchange.set_up(self.states),
            *self.transport.pointers(),
            *waits,
            *self.transport.prologue(),
            *params,
            *self.columns.prologue(),
            *self.transport.start_fetching(),
            *self.exchange.settle(),
        ]

    def thread(self) -> list[Statement]:
        """Which of a row's threads this one is, and of which row."""
        plan, s = self.plan, self.plan.schedule
        row_thread = "Team::row_thread()"
        if not plan.has_team and s.cluster > 1:
            row_thread = "static_cast<int>(cluster_rank() * kThreads + threadIdx.x)"
        if s.parts > 1:
            row_thread = "static_cast<int>(blockIdx.x % kParts * kThreads + threadIdx.x)"
        found: list[Statement] = [Let("const int", "row_thread", row_thread)]
        if not plan.cut.shifted:
            found.append(Let("const int", "first_col", "row_thread * kVector", "of this thread's first vector"))
        found += self.looks.groups.thread()
        if plan.rows_beside:
            found.append(Let("const int", "block_row", "Team::block_row()", "this thread's row within the block"))
        if not plan.loops_rows:
            found.append(Let("const int", "row", self.access.only_row))
        if plan.problem.any_cols:
            vectors = "cols / kVector" if plan.cut.shifted else "vectors"
            found += [] if plan.cut.shifted else [Let("const int", "vectors", "cols / kVector")]
            found.append(Let("const int", "steps", f"({vectors} + kThreadsPerRow - 1) / kThreadsPerRow"))
        return found

    def start_of_chain(self) -> list[Statement]:
        plan = self.plan
        return start_of_chain(
            self.looks.early_params() if plan.reads_params_ahead else [],
            [Do(f"Params::to_l2({p.name}, kCols)") for p in plan.asked_params],
        )

    def row(self) -> list[Statement]:
        """All that a block does for a row, or a tile of rows."""
        waits = [] if self.plan.loops_rows else self.start_of_chain()
        return [
            *self.access.row_index(),
            *self.access.row_starts(),
            *waits,
            *self.transport.ask(),
            *self.row_values(0),
            *self.work(),
        ]

    def work(self) -> list[Statement]:
        """Everything a row needs once its index is known."""
        plan, s = self.plan, self.plan.schedule
        is_early = s.params.read_early or (plan.config_params and not plan.loops_rows)
        early = self.looks.early_params() if is_early and not plan.reads_params_ahead else []
        return [
            Gap(),
            *holders(self.access),
            *self.looks.kept_values(),
            *(self.exchange.announce() if self.states else []),
            *self.transport.start(),
            *early,
            *([] if plan.loops_rows or Waiting.RELOAD in plan.places else [AT_LOADS]),
            *([] if plan.is_hybrid else self.transport.arrive()),
            *self.pack_params(),
            *self.reductions(),
            *self.row_stores(),  # not last: 5 % of a short call (H200, 1x4096)
            *self.columns.row(),
            *(self.look_at(len(plan.looks)) if plan.has_last_look else []),
            *self.columns.after_last_look(),
            *self.transport.after_last_look(),
            *self.exchange.next_row(),
        ]

    def pack_params(self) -> list[Statement]:
        """Kept parameters stay as they are stored."""
        if not (self.plan.packs_params or (self.plan.config_params and self.plan.loops_rows)):
            return []
        params = self.plan.config_params or self.plan.early_params
        narrow = [p for p in params if self.plan.problem.tensor(p.name).dtype.bytes < 4]
        stay = [Do(f"stay_packed({p.name}_held[step])") for p in narrow]
        staying = Walk(head=stay, always=True).statements(self.access)
        return [If("kPackedParams", tuple(staying)), Gap()] if staying and self.plan.config_params else staying

    def reductions(self) -> list[Statement]:
        """Look by look: the threads' states, the row's, and the row values that follow."""
        found: list[Statement] = []
        for look, state in enumerate(self.states):
            is_spared_some = is_spared(self.plan.looks[look])
            end = state.end(declared=is_spared_some)
            reduction = [*self.look_at(look), *end, *self.exchange.combine(state, is_first=look == 0)]
            found += [
                Gap(),
                *state.start(declares=is_spared_some),
                *self.guarded(look, reduction),
                *self.row_values(look + 1),
                *(self.transport.after_first_look() if look == 0 else []),
            ]
        return found

    def guarded(self, look: int, reduction: list[Statement]) -> list[Statement]:
        """A look's reduction, which rows are spared where all of it is guarded; theirs are the values instead.

        All threads of a row have the same states, bit for bit: in each step of a tree two of them add the same two
        numbers. So they take the same branch, and meet at the barriers within.
        """
        group, names, printer = self.plan.looks[look], self.access.names, Printer(self.access.names)
        spared: dict[str, list[Set]] = {}  # by the condition, which a margin of NaN does not meet
        for reduce in group:
            if guard := reduce.guard:
                values = zip(reduce.names, guard.instead, strict=True)
                known = [Set(names[name], printer.text(value)) for name, value in values]
                spared.setdefault(f"{printer.text(guard.margin)} >= 0.0f", []).extend(known)
        instead = [If(condition, tuple(known)) for condition, known in spared.items()]
        if not is_spared(group):
            return [*reduction, *instead]
        needed = self.exchange.by_any(" || ".join(f"!({condition})" for condition in spared))
        return [If(needed, tuple(reduction)), *instead]

    def look_at(self, look: int) -> list[Statement]:
        """One look at the whole row; what waits in registers needs no copy to have arrived."""
        first, *others = [walk.statements(self.access) for walk in self.looks.walks(look)]
        arrival = self.transport.arrive() if look == 0 and self.plan.is_hybrid else []
        return [*first, *arrival, *(statement for other in others for statement in other)]

    def epilogue(self) -> list[Statement]:
        return [Gap(), *self.exchange.leave(), *self.columns.epilogue(), *AT_END]

    # ---- the whole ---------------------------------------------------------------------------------------------

    def constants(self) -> list[Let]:
        plan, s, problem = self.plan, self.plan.schedule, self.plan.problem
        found: list[Let] = [] if problem.any_cols else [setting("kCols", problem.cols)]
        found.append(setting("kThreads", s.threads))
        if plan.has_team:
            cluster = [setting("kCluster", s.cluster, "blocks that share a row")] if s.cluster > 1 else []
            found += [*team_constants(plan), *cluster]
        elif s.cluster > 1:
            found.append(setting("kCluster", s.cluster, "blocks that share a row"))
            found += [constant("kWarps", "kThreads / 32"), constant("kThreadsPerRow", "kCluster * kThreads")]
        elif s.parts > 1:
            found.append(setting("kParts", s.parts, "blocks that share a row"))
            found.append(constant("kThreadsPerRow", "kParts * kThreads"))
        found.append(setting("kVector", s.vector, "elements per access"))
        if plan.cut.has_unit:
            found.append(setting("kUnit", plan.cut.unit, "elements: a row's first vector starts at a multiple of them"))
        stride = "columns from one vector of a thread to its next"
        found.append(constant("kStride", "kThreadsPerRow * kVector", stride))
        sums = f"kVector < {RUNNING_SUMS} ? kVector : {RUNNING_SUMS}"
        found.append(constant("kRunningSums", sums, "running sums that a vector adds to"))
        found.append(type_setting("Load", policy(s.load)))
        found.append(type_setting("Store", policy(s.store)))
        found.append(chain_setting(s))
        found.append(params_setting(s.params))
        found += [order_setting(s.row_order), division_setting(problem, s.division)]
        found.append(setting("kUnroll", plan.unroll, "steps that a loop does in a trip"))
        early = "column parameters wait in registers, or are read where they are used"
        is_early = int(s.params.read_early or s.keeps_params)
        found.append(ConfigSetting("constexpr bool", "kEarlyParams", "Config::kEarlyParams", early, is_early))
        packed = "column parameters stay as they are stored while they wait in registers"
        is_packed = int(plan.packs_params)
        found.append(ConfigSetting("constexpr bool", "kPackedParams", "Config::kPackedParams", packed, is_packed))
        # Off the 16-byte grid a window may start within the parameter's first word; a batch's row may lie off it too.
        first = 0 if problem.align % 16 == 0 and not problem.rows_per_batch else 1
        found.append(setting("kFirstInside", first, "first step whose windows of parameters begin within these"))
        found += self.exchange.constants()
        if not problem.any_cols:
            found.append(constant("kVectors", "kCols / kVector", "vectors of a row"))
            steps = "(kVectors + kThreadsPerRow - 1) / kThreadsPerRow"
            found.append(constant("kSteps", steps, "vectors a thread owns"))
            found.append(
                Let("constexpr bool", "kEven", "kVectors % kThreadsPerRow == 0", "all threads own kSteps of them")
            )
            full = "steps in which each thread has a vector"
            found.append(constant("kFullSteps", "kVectors / kThreadsPerRow", full))
            whole = (
                "steps in which each thread has a vector, and the row one more behind it, however the row is aligned"
            )
            least = "(kCols - kUnit + 1) / kVector - 1" if plan.cut.has_unit else "kVectors - 2"
            found.append(constant("kWholeSteps", f"({least}) / kThreadsPerRow", whole))
        return [*found, *self.looks.groups.constants(), *self.transport.constants(), *self.columns.constants()]

    def comment(self) -> tuple[str, ...]:
        """What the kernel does, whatever its Config."""
        plan, s = self.plan, self.plan.schedule
        owner = "the blocks of a cluster own a row" if s.parts == 1 else "a block owns a part of a row"
        owner = "blocks of the grid, all of them resident, own a row" if plan.meeting else owner
        owner = "a team of threads owns a row" if plan.has_team else owner
        reads = sum(any(load.kind.is_elem for load in loads) for loads in plan.look_loads)
        reads = reads if plan.places == (Waiting.RELOAD,) else 1
        times = {1: "once", 2: "twice"}.get(reads, f"{reads} times")
        times = f"up to {times}" if reads > 1 and any(map(is_spared, plan.looks)) else times
        size = ", any number of columns" if plan.problem.any_cols else ""
        what = f"{plan.problem.spec.name} {plan.problem.direction.value}{size}"
        first = f"{what}: {owner}; each row is read {times}."
        taken = (f"{written} takes the place of {read}." for written, read in plan.problem.in_place)
        laid = (f"{name} is {layout.replace('_', '-')}." for name, layout in plan.problem.layout)
        last = "The last rows come first: of an input larger than L2 it still holds those."
        return (first, *taken, *laid, *([last] if plan.descends and plan.loops_rows else []), *chain_comment(plan))

    def text(self) -> KernelText:
        plan, s = self.plan, self.plan.schedule
        row = self.row()
        body = [
            *self.constants(),
            *self.exchange.slots(self.states),
            *self.transport.shared(),
            Gap(),
            *self.prologue(),
            Gap(),
            *([For(self.access.walk, tuple(row))] if plan.loops_rows else row),
            *self.epilogue(),
        ]
        config: dict[str, int | str] = {"kThreads": s.threads, "Chain": self.chain, "kBlocksPerSm": plan.least_blocks}
        return KernelText(
            name=self.name,
            comment=self.comment(),
            params=tuple(map(self.declared, self.params)),
            bounds="Config::kThreads, Config::kBlocksPerSm",
            config=config,
            body=pruned(body),
            types=tuple(
                state.struct(shuffled=self.exchange.shuffles, short=s.reduce_with.is_short) for state in self.states
            ),
        )
