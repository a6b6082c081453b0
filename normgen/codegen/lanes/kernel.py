"""One kernel of rows side by side: the phases of its text, in order."""

from __future__ import annotations

from collections.abc import Sequence

from normgen.codegen.access import policy
from normgen.codegen.chain import AT_END, chain_of, chain_setting, declare, start_of_chain, tensor_params
from normgen.codegen.config.kernel_text import KernelText
from normgen.codegen.lanes.access import LaneAccess
from normgen.codegen.lanes.looks import LaneLooks
from normgen.codegen.lanes.sums import LaneSums
from normgen.codegen.module import KernelEntry, Launch, Param, Source, Workspace
from normgen.codegen.printer import Printer
from normgen.codegen.reductions import State
from normgen.codegen.statements import (
    Comment,
    Do,
    For,
    Gap,
    If,
    Let,
    Set,
    Statement,
    constant,
    loop,
    pruned,
    setting,
    type_setting,
)
from normgen.codegen.walk import UNROLL, each_element
from normgen.program.ir import Load, Map
from normgen.schedule.lanes.plan import LanePlan, held_bytes, sums_bytes
from normgen.schedule.plan import is_spared
from normgen.spec.spec import Kind

SYNC = "__syncthreads()"


class LaneKernel:
    """A plan's first kernel, and the source of both: the other one adds the blocks' sums over rows."""

    def __init__(self, plan: LanePlan) -> None:
        self.plan, self.problem = plan, plan.problem
        self.chain = chain_of(plan.schedule)
        self.access = LaneAccess(plan)
        self.sums = LaneSums(self.access)
        self.looks = LaneLooks(self.access, self.sums)
        self.min_arch = plan.min_arch
        self.workspace = Workspace(block=plan.sums.block_bytes) if plan.sums else Workspace()

    @property
    def name(self) -> str:
        """For example layernorm_fwd_bf16_rows_side_by_side."""
        absent = "".join(f"_without_{name}" for name in self.problem.absent)
        return f"{self.problem.name}{absent}_rows_side_by_side"

    @property
    def params(self) -> tuple[Param, ...]:
        """Pointers in the problem's order, pitches, the rows and how many of them lie side by side, scalars."""
        rows = Param(name="rows", ctype="int", source=Source.ROWS)
        lanes = Param(name="lanes", ctype="int", source=Source.ROWS_PER_BATCH)
        scalars = (Param(name=s, ctype="float", source=Source.SCALAR, key=s) for s in self.plan.program.scalars)
        return (*tensor_params(self.problem), rows, lanes, *scalars, *self.sums.params())

    def declared(self, param: Param) -> str:
        return declare(self.problem, param)

    @property
    def launch(self) -> Launch:
        plan, s = self.plan, self.plan.schedule
        return Launch(
            threads=s.threads,
            rows_per_block=plan.rows_per_tile,
            persistent=s.persistent,
            shared_bytes=plan.shared_bytes,
            min_blocks=1 if plan.sums else 0,
            dependent=s.chained,
        )

    def kernels(self) -> list[tuple[KernelEntry, KernelText]]:
        found = [(KernelEntry(name=self.name, params=self.params, launch=self.launch), self.text())]
        second = self.sums.second_kernel(f"{self.problem.name}_finish")
        if second is not None:
            text = KernelText(
                name=second.kernel.name,
                comment=(second.comment,),
                params=second.declared,
                bounds=str(second.kernel.launch.threads),
                config={"Chain": self.chain},
                body=pruned(second.body),
            )
            found.append((second.kernel, text))
        return found

    # ---- row values --------------------------------------------------------------------------------------------

    def scalars(self) -> list[Statement]:
        """What all rows share."""
        names = self.access.names
        found: list[Statement] = []
        for statement in self.plan.program.statements:
            if not isinstance(statement, Load | Map) or statement.kind is not Kind.SCALAR:
                continue
            if isinstance(statement, Map):
                text = Printer(names).text(statement.expr)
            elif statement.name in self.plan.seeds:
                found.append(Let(f"const Vec<{self.access.ctype(statement.name)}, 1>", names[statement.name],
                                 f"read<1>({statement.name})"))  # fmt: skip
                continue
            else:
                text = self.access.read_row_value(statement.name, "0")
            found.append(Let("const float", names[statement.name], text))
        return found

    def row_values(self, stage: int) -> list[Statement]:
        """Values of each of the thread's rows that become known at `stage`: loads and pivots at 0, then maps."""
        names, printer = self.access.names, Printer(self.access.names)
        arrays: list[Statement] = []
        each: list[Statement] = []
        for statement in self.plan.program.statements:
            if not isinstance(statement, Load | Map) or not statement.kind.is_row:
                continue
            if self.plan.stages[statement.name] != stage:
                continue
            text = printer.text(statement.expr) if isinstance(statement, Map) else self.access.read_of_row(statement)
            arrays.append(Do(f"float {self.access.array(statement.name)}[kVector]"))
            each.append(Set(names[statement.name], text))
        return [*arrays, each_element(each)] if each else []

    def row_stores(self) -> list[Statement]:
        """The first part of each row stores what the row has."""
        stores: list[Statement] = []
        for store in (store for store in self.plan.program.stores if store.kind.is_row):
            value, to = self.access.names[store.value], self.access.valid_row
            write = Do(self.access.write_row_value(store.tensor, to, value, accumulate=store.accumulate))
            nullable = self.problem.tensor(store.tensor).nullable
            wanted = If(f"{store.tensor} != nullptr", (write,), alone=True) if nullable else write
            stores += self.access.if_wanted(store.tensor, wanted)
        return [Gap(), If("part == 0 && active", (each_element(stores),)), Gap()] if stores else []

    # ---- parts combine -----------------------------------------------------------------------------------------

    def combine(self, look: int, state: State) -> list[Statement]:
        """The states of a row's parts: those of one warp by shuffles, then the warps' by way of shared memory.

        Each thread reads what all groups of parts have left, in one order: all have the same bits.
        """
        plan, variable = self.plan, state.variable
        found: list[Statement] = []
        if plan.together > 1:
            other = f"{state.type}::shuffle_xor({variable}, offset, 0xffffffffu)"
            added = Set(variable, f"{state.type}::combine({variable}, {other})")
            found.append(Comment("Lanes of a warp that share rows combine."))
            found.append(For("for (int offset = kSlots; offset < 32; offset *= 2)", (each_element([added]),), UNROLL))
        if plan.groups == 1:
            return found
        number = plan.area_of(look)
        area = f"states + {number} * {plan.area}" if number else "states"
        place = "{} * kGroups * kRows + {} * kRows + slot * kVector + i"
        left = [
            Set(f"pass{look + 1}_states[{place.format(number, 'group')}]", f"{variable}.{name}")
            for number, name in enumerate(state.components)
        ]
        read = ", ".join(
            f"pass{look + 1}_states[{place.format(number, '{}')}]" for number, _ in enumerate(state.components)
        )
        first = Set(variable, f"{{{read.format(*['0'] * len(state.components))}}}")
        others = read.format(*["other"] * len(state.components))
        further = Set(variable, f"{state.type}::combine({variable}, {{{others}}})")
        leaves = [each_element(left)]
        return [
            *found,
            Let("float* const", f"pass{look + 1}_states", area),
            *([If("threadIdx.x % 32 < kSlots", tuple(leaves))] if plan.together > 1 else leaves),
            Do(SYNC, "all parts have left their states"),
            each_element([first]),
            loop("other", "kGroups", [each_element([further])], first="1", unroll="#pragma unroll 8"),
        ]

    def reductions(self) -> list[Statement]:
        found: list[Statement] = []
        for look, state in enumerate(self.access.states):
            lowest = [Comment("Starts from the lowest finite number: -inf - -inf is NaN.")]
            found += [
                Gap(),
                *(lowest if "-3.402823466e+38f" in state.identity else []),
                Do(f"{state.type} {state.variable.removesuffix('[i]')}[kVector]"),
                each_element([Set(state.variable, f"{{{', '.join(state.identity)}}}")]),
                *self.guarded(look, [*self.looks.look_at(look), *self.combine(look, state)]),
                *self.row_values(look + 1),
            ]
        return found

    def guarded(self, look: int, reduction: list[Statement]) -> list[Statement]:
        """A look's reduction, which blocks are spared whose rows all are; rows that are take their values instead.

        Each warp of a block has parts of all of its rows: so all warps decide alike, and meet at the barriers within.
        """
        group, names, printer = self.plan.looks[look], self.access.names, Printer(self.access.names)
        spared: dict[str, list[Statement]] = {}  # by the condition, which a margin of NaN does not meet
        for reduce in group:
            if guard := reduce.guard:
                values = zip(reduce.names, guard.instead, strict=True)
                known = [Set(names[name], printer.text(value)) for name, value in values]
                spared.setdefault(f"{printer.text(guard.margin)} >= 0.0f", []).extend(known)
        instead = [each_element([If(condition, tuple(known)) for condition, known in spared.items()])] if spared else []
        if not is_spared(group):
            return [*reduction, *instead]
        some = " || ".join(f"!({condition})" for condition in spared)
        needed = f"pass{look + 1}_needed"
        return [
            Do(f"bool {needed} = false"),
            each_element([Set(needed, f"{needed} || {some}")]),
            If(f"__any_sync(0xffffffffu, {needed})", tuple(reduction)),
            *instead,
        ]

    # ---- the whole ---------------------------------------------------------------------------------------------

    def constants(self) -> list[Let]:
        plan, s = self.plan, self.plan.schedule
        return [
            setting("kCols", self.problem.cols),
            setting("kThreads", s.threads),
            setting("kSlots", s.rows_per_block, "threads side by side, each with rows of its own"),
            setting("kParts", s.threads_per_row, "lines of these threads, which share the columns"),
            setting("kVector", s.vector, "rows of a thread, read by one access"),
            constant("kRows", "kSlots * kVector", "rows of a block"),
            setting("kGroups", plan.groups, "parts that meet in shared memory"),
            setting("kChunk", plan.chunk, "columns that a sum of exponentials takes about one maximum"),
            constant("kRunningSums", "1"),
            setting("kUnroll", plan.unroll, "steps that a loop does in a trip"),
            constant("kSteps", "(kCols + kParts - 1) / kParts", "columns of the first part"),
            constant("kWholeSteps", "kCols / kParts", "columns that each part has"),
            Let("constexpr bool", "kEven", "kSteps == kWholeSteps", "all parts have as many"),
            type_setting("Load", policy(s.load)),
            type_setting("Store", policy(s.store)),
            chain_setting(s),
            *self.sums.constants(),
        ]

    def thread(self) -> list[Statement]:
        """Which rows a thread has, and which part of them; where the block's shared memory lies."""
        bytes_held, bytes_sums = held_bytes(self.problem, self.plan.schedule), sums_bytes(self.problem)
        start = "dynamic_shared() + {}".format
        return [
            Let("const int", "slot", "threadIdx.x % kSlots"),
            Let("const int", "part", "threadIdx.x / kSlots"),
            Let("const int", "group", f"part / {self.plan.together}" if self.plan.together > 1 else "part"),
            Let("const long long", "own", "static_cast<long long>(part) * lanes", "a part's first column"),
            Let("const long long", "stride", "static_cast<long long>(kParts) * lanes", "from one step to the next"),
            *self.looks.slots(),
            Let("float* const", "states", f"reinterpret_cast<float*>({start(bytes_held + bytes_sums)})"),
            *self.sums.prologue(start(bytes_held)),
        ]

    def rows(self) -> list[Statement]:
        """Where the thread's rows lie in each tensor."""
        pointers: list[Statement] = []
        for tensor in self.problem.pitched_tensors:
            const = "const " if tensor.is_const else ""
            at = f"{tensor.name} + outer * {tensor.name}_pitch + lane"
            pointers.append(Let(f"{const}{tensor.dtype.ctype}*", f"{tensor.name}_row", at))
        return [
            Let("const long long", "own_row", "first_row + slot * kVector"),
            Let(
                "const bool", "active", "own_row < rows", "idle threads recompute the block's first rows, store nothing"
            ),
            Let("const int", "row", "static_cast<int>(active ? own_row : first_row)"),
            Let("const int", "outer", "row / lanes"),
            Let("const int", "lane", "row % lanes"),
            *pointers,
        ]

    def work(self) -> list[Statement]:
        """All that a block does for its rows."""
        plan = self.plan
        again = plan.loops_rows and plan.groups > 1 and plan.always % 2 == 1
        return [
            *self.rows(),
            *self.row_values(0),
            *self.looks.fetch(),
            *self.reductions(),
            *self.row_stores(),
            *(self.looks.look_at(len(plan.looks)) if plan.has_last_look else []),
            *([Do(SYNC, "nobody reads the states of these rows any more")] if again else []),
        ]

    def comment(self) -> tuple[str, ...]:
        spec, plan = self.problem.spec, self.plan
        reads = sum(any(load.kind.is_elem for load in loads) for loads in plan.look_loads)
        reads = 1 if plan.held else reads
        times = {1: "once", 2: "twice"}.get(reads, f"{reads} times")
        what = f"{spec.name} {self.problem.direction.value}: neighbouring threads own neighbouring rows, whose elements"
        address = "Element (row, col) lies at row / lanes * pitch + col * lanes + row % lanes."
        taken = (f"{written} takes the place of {read}." for written, read in self.problem.in_place)
        return (f"{what} lie `lanes` apart; each row is read {times}.", address, *taken)

    def text(self) -> KernelText:
        plan, s = self.plan, self.plan.schedule
        step = "static_cast<long long>(gridDim.x) * kRows"
        first = "static_cast<long long>(blockIdx.x) * kRows"
        work: Sequence[Statement] = (
            [For(f"for (long long first_row = {first}; first_row < rows; first_row += {step})", tuple(self.work()))]
            if plan.loops_rows
            else [Let("const long long", "first_row", first), *self.work()]
        )
        body = [
            *self.constants(),
            Gap(),
            *self.thread(),
            *start_of_chain([], []),
            *self.scalars(),
            *work,
            *self.sums.epilogue(),
            *AT_END,
        ]
        config: dict[str, int | str] = {"kThreads": s.threads, "Chain": self.chain, "kBlocksPerSm": plan.least_blocks}
        return KernelText(
            name=self.name,
            comment=self.comment(),
            params=tuple(map(self.declared, self.params)),
            bounds="Config::kThreads, Config::kBlocksPerSm",
            config=config,
            body=pruned(body),
            types=tuple(state.struct(shuffled=plan.together > 1, short=False) for state in self.access.states),
        )
