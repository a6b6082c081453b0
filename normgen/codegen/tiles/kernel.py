"""One kernel of a contraction: the phases of its text, in order."""

from __future__ import annotations

from collections.abc import Sequence

from normgen.codegen.access import policy
from normgen.codegen.chain import AT_END, AT_LOADS, chain_of, chain_setting, declare, start_of_chain, tensor_params
from normgen.codegen.config.kernel_text import KernelText
from normgen.codegen.module import KernelEntry, Launch, Param, Source, Workspace
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
    function,
    loop,
    pruned,
    setting,
    type_setting,
)
from normgen.codegen.tiles.access import SOURCES, TileAccess
from normgen.codegen.tiles.behind.grouped import GroupedText
from normgen.codegen.tiles.epilogue import Epilogue
from normgen.codegen.tiles.fragment import MmaText, SimtText
from normgen.codegen.tiles.looks import LooksAhead, moving_of
from normgen.codegen.tiles.parts import PartsText
from normgen.codegen.tiles.reduced import ReducedByTiles, ReducedText
from normgen.codegen.tiles.ring import Ring
from normgen.codegen.tiles.side import UNROLL, SideText
from normgen.codegen.tiles.staged import StagedEpilogue
from normgen.codegen.tiles.streamed import MadeSide, MadeText, StreamedText
from normgen.codegen.tiles.wgmma import WgmmaText
from normgen.schedule.tiles.fragment import Made, Mma, Simt, Streamed
from normgen.schedule.tiles.plan import TilePlan
from normgen.schedule.tiles.wgmma import Wgmma

SYNC = "__syncthreads()"
TEXTS: dict[type[Simt], type[SimtText]] = {
    Simt: SimtText,
    Mma: MmaText,
    Made: MadeText,
    Streamed: StreamedText,
    Wgmma: WgmmaText,
}
NEXT_STAGE = Set("stage", "stage + 1 < kStages ? stage + 1 : 0")


class TileKernel:
    """A plan's kernel, and the source of it."""

    def __init__(self, plan: TilePlan) -> None:
        self.plan, self.problem = plan, plan.problem
        self.chain = chain_of(plan.schedule)
        self.access = TileAccess(plan)
        cut = plan.cut
        text = TEXTS[type(plan.fragment)]
        self.sides = (text.left(self.access, cut.left, "left"), text.side(self.access, cut.right, "right"))
        self.fragment = text(self.access, self.sides)
        self.looks, self.moving = LooksAhead(self.access), moving_of(self.sides[0]) if plan.is_online else None
        self.sides[0].moves = self.moving.move if self.moving else None
        self.stages = plan.schedule.stages
        self.parts = PartsText(self.access)
        reduced = ReducedByTiles if plan.fragment.resident else ReducedText
        self.reduced = reduced(self.access, cut.reduced) if cut.reduced else None
        self.min_arch = plan.min_arch
        fixed = plan.fragment.ticket_bytes
        self.workspace = Workspace(fixed=fixed, block=plan.block_bytes) if self.reduced else Workspace()

    @property
    def name(self) -> str:
        """For example linear_fwd_bf16_block_per_tile."""
        cols = "_any_cols" if self.problem.any_cols else ""
        absent = "".join(f"_without_{name}" for name in self.problem.absent)
        return f"{self.problem.name}{cols}{absent}_{self.plan.schedule.strategy}"

    @property
    def params(self) -> tuple[Param, ...]:
        """Pointers in the problem's order, pitches, sizes that the text does not know, scalars."""
        sizes = [SOURCES[axis] for axis in ("rows", "cols", "inner") if not self.plan.is_fixed(axis)]
        scalars = (Param(name=s, ctype="float", source=Source.SCALAR, key=s) for s in self.plan.program.scalars)
        sizes += [Source.ROWS_PER_BATCH] if self.plan.in_batches else []
        counted = (Param(name=z.value, ctype="int", source=z) for z in sizes)
        left = self.reduced.params() if self.reduced else ()
        return (*tensor_params(self.problem), *counted, *scalars, *left, *self.fragment.params())

    def declared(self, param: Param) -> str:
        if param.source is Source.TENSOR_MAP:
            return f"{param.ctype} {param.name}"
        return declare(self.problem, param)

    @property
    def launch(self) -> Launch:
        cut, s = self.plan.cut, self.plan.schedule
        tiles: tuple[tuple[Source, int], ...] = ((SOURCES[cut.m], s.tile_m), (SOURCES[cut.n], s.tile_n))
        if self.plan.in_batches:  # no tile has rows of two
            lines = Source.ROWS_PER_BATCH if cut.m == "rows" else SOURCES[cut.m]
            tiles = ((Source.BATCHES, 1), (lines, s.tile_m), (SOURCES[cut.n], s.tile_n))
        return Launch(
            threads=self.plan.threads,
            cluster=s.cluster,
            tiles=tiles,
            persistent=self.plan.fragment.resident if self.plan.parts == 1 else 0,
            shared_bytes=self.plan.shared_bytes,
            dependent=s.chained,
        )

    def kernels(self) -> list[tuple[KernelEntry, KernelText]]:
        return [(KernelEntry(name=self.name, params=self.params, launch=self.launch), self.text())]

    # ---- the tile ----------------------------------------------------------------------------------------------

    def constants(self) -> list[Let]:
        plan, s = self.plan, self.plan.schedule
        found: list[Let] = [setting(self.access.size(a), plan.size(a)) for a in ("cols", "inner") if plan.is_fixed(a)]
        found.append(setting("kThreads", self.plan.threads))
        for x, axis, own in (("M", plan.cut.m, s.thread_m), ("N", plan.cut.n, s.thread_n)):
            found.append(setting(f"kTile{x}", plan.tile(axis), f"of {axis}, what a block owns"))
            found.append(setting(f"kThread{x}", own, f"of {axis}, what a thread owns"))
            found.append(setting(f"kPiece{x}", plan.piece(axis), "of these side by side"))
            found.append(constant(f"kApart{x}", f"kTile{x} / kThread{x} * kPiece{x}", "from one piece to the next"))
        found.append(setting("kTileK", s.tile_k, f"of {plan.cut.k}, what a block reads at a time"))
        found += [*self.fragment.depth(), *self.parts.constants()]
        found.append(setting("kVector", s.vector, "elements per access"))
        width = "kVector < kPieceN ? kVector : kPieceN" if plan.has_whole_vectors else "1"
        found.append(constant("kWidth", width, "elements per access to the result"))
        found += GroupedText(self.access, plan.cut.grouped).constants() if plan.cut.grouped else []
        if plan.fragment.group > 1:
            found.append(
                constant("kGroup", str(plan.fragment.group), f"tiles of {plan.cut.m}, of a column one after another")
            )
        found.append(setting("kStages", s.stages, "tiles of each side that wait in shared memory"))
        if plan.cut.ahead or (plan.parts > 1 and not plan.hands_in_slots):
            behind = "what is known of rows" if plan.cut.ahead else "what other blocks hand on"
            found.append(setting("kSlots", plan.slots_floats, f"floats of tiles, in front of {behind}"))
        found += [*self.fragment.between(), *(one for side in self.sides for one in side.constants())]
        for axis in (a for a in (plan.cut.m, plan.cut.n, plan.cut.k) if plan.is_fixed(a)):
            x = self.access.letter(axis)
            found.append(Let("constexpr bool", f"kWhole{x}", f"{self.access.size(axis)} % kTile{x} == 0"))
        found += [type_setting("Load", policy(s.load)), type_setting("Store", policy(s.store))]
        return [*found, chain_setting(s)]

    def thread(self) -> list[Statement]:
        """Which tile a block owns, and which part of it a thread."""
        own_m, own_n = (self.fragment.own(letter) for letter in "MN")
        return [
            *self.fragment.place(),
            *self.fragment.lanes(),
            Comment(self.fragment.places),
            Let("const auto", "own_m", own_m),
            Let("const auto", "own_n", own_n),
            *self.fragment.lines(),
            *self.parts.begin(),
            Gap(),
        ]

    def shared(self) -> list[Statement]:
        return self.slots()[0]

    def slots(self) -> tuple[list[Statement], str]:
        """Where the slots lie: all stages of one factor, then those of the next; and what is behind them."""
        if isinstance(self.fragment, WgmmaText):
            return self.fragment.slots()
        found: list[Statement] = []
        start = f"reinterpret_cast<{self.sides[0].held_as}*>(dynamic_shared())"
        for side in self.in_slots:
            for name in side.slots.values():
                found.append(Let(f"{side.held_as}* const", f"{name}_tiles", start))
                start = f"{name}_tiles + kStages * kTile{side.letter if side.lies_deep else 'K'} * {side.line_length}"
        return found, start

    def sums(self) -> list[Statement]:
        found: list[Statement] = [Do(f"float {r.names[0]}_sum[kThreadM][kThreadN] = {{}}") for r in self.plan.cut.sums]
        for side in self.sides:
            found += side.start_riding() if self.plan.in_shared else side.start_totals()
        return found

    # ---- what the left side waits for --------------------------------------------------------------------------

    def known_of_rows(self) -> list[Statement]:
        return self.moving.shared() if self.moving else self.looks.shared()

    def ahead(self) -> list[Statement]:
        return [*self.moving.stop(), *self.moving.start()] if self.moving else self.looks.statements()

    # ---- the loop over k ---------------------------------------------------------------------------------------

    def functions(self) -> list[Statement]:
        """The phases of a tile of k."""
        stage = "int stage" if self.stages > 1 else ""
        rescale = self.moving.rescale() if self.moving else []
        multiply = self.fragment.multiply(stage, rescale)
        pointers = [statement for side in self.sides for statement in side.pointers()]
        found: list[Statement] = [s for side in self.sides for s in side.declarations()] + pointers
        if self.copied:
            place = f"{stage}, int k0" if stage else "int k0"
            found += [Gap(), function("copy", place, [s for side in self.copied for s in side.copy()])]
        if self.fetching:
            found += [Gap(), function("fetch", "int k0", [s for side in self.fetching for s in side.fetch()])]
        place = ", ".join(filter(None, (stage, "int k0" if self.numbers_k else "")))
        if self.held:
            found += [Gap(), function("deposit", place, [side.deposit() for side in self.held])]
        if self.scaled:
            place = f"{stage}, int k0" if stage else "int k0"
            found += [Gap(), function("complete", place, [side.scale() for side in self.scaled])]
        for side in self.made:
            found += [Gap(), function("fetch", "int i, int k0", side.fetch())]
            found += [Gap(), function("make", "int k0", side.make())]
        return [*found, Gap(), *multiply, Gap()]

    @property
    def copied(self) -> list[SideText]:
        """The sides whose tiles cp.async brings."""
        return [side for side in self.sides if side.copies]

    @property
    def held(self) -> list[SideText]:
        """The sides whose tiles pass through registers."""
        return [side for side in self.in_slots if not side.copies]

    @property
    def in_slots(self) -> list[SideText]:
        """The sides whose tiles wait in shared memory."""
        return [side for side in self.sides if not isinstance(side, MadeSide)]

    @property
    def made(self) -> list[MadeSide]:
        """The side whose factors lanes make where they multiply them."""
        return [side for side in self.sides if isinstance(side, MadeSide)]

    @property
    def scaled(self) -> list[SideText]:
        """Of those that cp.async brings, the sides whose factors are made where they lie."""
        return [side for side in self.sides if side.scales]

    @property
    def fetching(self) -> list[SideText]:
        """The sides of which something waits in registers."""
        return [side for side in self.sides if side.fetched]

    @property
    def numbers_k(self) -> bool:
        """Whether a side's elements know their number along k."""
        return any(self.plan.cut.k in side.numbered for side in (*self.plan.cut.sides, *self.plan.cut.ahead))

    def deposit(self, stage: str, k0: str) -> str:
        stage = stage if self.stages > 1 else ""
        return f"deposit({', '.join(filter(None, (stage, k0 if self.numbers_k else '')))})"

    def over_k(self, body: Sequence[Statement]) -> For:
        k = self.plan.cut.k
        return For(f"for (int k0 = {self.access.begin(k)}; k0 < {self.access.stop(k)}; k0 += kTileK)", tuple(body))

    def through_registers(self) -> list[Statement]:
        """The next tile is on its way in registers while this one is multiplied."""
        begin, end = (bound(self.plan.cut.k) for bound in (self.access.begin, self.access.stop))
        more = f"{end} - k0 > kTileK"
        ahead = If(more, (Do("fetch(k0 + kTileK)"),), alone=True)
        if self.stages == 1:
            free = Do(SYNC, "nobody reads the slots any more")
            body: list[Statement] = [free, Do(self.deposit("", "k0")), Do(SYNC), ahead, Do("multiply()")]
            return [Do(f"fetch({begin})"), self.over_k(body)]
        body = [
            Do(SYNC, "the slots of this stage are filled, and nobody reads those of the next one"),
            ahead,
            Do("multiply(stage)"),
            NEXT_STAGE,
            If(more, (Do(self.deposit("stage", "k0 + kTileK")),), alone=True),
        ]
        return [Do(f"fetch({begin})"), Do(self.deposit("0", begin)), Do("int stage = 0"), self.over_k(body)]

    def past_registers(self) -> list[Statement]:
        """kStages - 1 tiles are on their way while one is multiplied; of a side in registers the next one."""
        begin, end = (bound(self.plan.cut.k) for bound in (self.access.begin, self.access.stop))
        ride = [statement for side in self.copied for statement in side.ride_behind()]
        more = f"{end} - k0 > kTileK"
        ahead: list[Statement] = [If(more, (Do("fetch(k0 + kTileK)"),), alone=True)] if self.fetching else []
        fetched: list[Statement] = [Do(f"fetch({begin})")] if self.fetching else []
        scaled = [Do("complete(stage, k0)" if self.stages > 1 else "complete(k0)")] if self.scaled else []
        made = [Do("make(k0)") for _ in self.made]
        fetched += [side.first(begin) for side in self.made]
        if self.stages == 1:
            free = Do(SYNC, "nobody reads the slots any more")
            sent: list[Statement] = [Do("copy(k0)"), Do("cp_async_commit()")]
            sent += [Do(self.deposit("", "k0"))] if self.held else []
            arrived: list[Statement] = [*sent, Do("cp_async_wait<0>()"), *scaled, Do(SYNC)]
            return [*fetched, self.over_k([free, *arrived, *ahead, *ride, Do("multiply()")])]
        start = f"{begin} + " if begin != "0" else ""
        first: list[Statement] = [
            If(f"{start}ahead * kTileK < {end}", (Do(f"copy(ahead, {start}ahead * kTileK)"),), alone=True),
            Do("cp_async_commit()"),
        ]
        after = "(kStages - 1) * kTileK"
        further = f"copy(stage > 0 ? stage - 1 : kStages - 1, k0 + {after})"
        send: list[Statement] = [
            If(f"{end} - k0 > {after}", (Do(further),), alone=True),
            Do("cp_async_commit()", "of nothing, too: groups are counted"),
        ]
        if self.plan.runs_ahead:
            return [loop("ahead", "kStages - 1", first), *self.steps_ahead(more, [*send, *ride])]
        body = [
            *made,
            Do("cp_async_wait<kStages - 2>()"),
            *scaled,
            Do(SYNC, "this stage has arrived, and nobody reads the one before it"),
            *send,
            *ahead,
            *ride,
            Do("multiply(stage)"),
            NEXT_STAGE,
        ]
        if self.held:
            body.append(If(more, (Do(self.deposit("stage", "k0 + kTileK")),), alone=True))
        filled = [Do(self.deposit("0", begin))] if self.held else []
        return [*fetched, loop("ahead", "kStages - 1", first), *filled, Do("int stage = 0"), self.over_k(body)]

    def steps_ahead(self, more: str, start: list[Statement]) -> list[Statement]:
        """The factors of a step along k are read while those of the step before are multiplied, from tile to tile.

        more   whether there is a tile behind this one
        start  what a tile begins with
        """
        wait = Do("cp_async_wait<kStages - 2>()")
        within: list[Statement] = [Do("read_parts(stage, step + 1)"), Do("add_products(step)")]
        body: list[Statement] = [
            *start,
            loop("step", "kSteps - 1", within, unroll=UNROLL),
            wait,
            Do(SYNC, "the next stage has arrived, and nobody reads this one any more"),
            NEXT_STAGE,
            If(more, (Do("read_parts(stage, 0)"),), alone=True),
            Do("add_products(kSteps - 1)"),
        ]
        first: list[Statement] = [wait, Do(SYNC, "the first stage has arrived")]
        k = self.plan.cut.k
        read: Statement = Do("read_parts(stage, 0)")
        if not self.plan.is_fixed(k):  # it may be of length 0
            read = If(f"{self.access.begin(k)} < {self.access.end(k)}", (read,), alone=True)
        return [*first, Do("int stage = 0"), read, self.over_k(body)]

    def riding(self) -> list[Statement]:
        """What all threads have reduced meanwhile, through the slots, which are free."""
        start, found = "reinterpret_cast<float*>(dynamic_shared())", []
        for side in self.in_slots:
            for reduce in side.side.riding:
                name = f"{reduce.names[0]}_left"
                found.append(Let("float* const", name, start))
                start = f"{name} + {side.lines} * kTile{side.letter}"
        if not any(side.side.riding for side in self.sides):
            return []
        left = [statement for side in self.sides for statement in side.leave()]
        gathered = [statement for side in self.sides for statement in side.gather()]
        if self.moving:
            left, gathered = [*left, *self.moving.keep()], [*gathered, *self.moving.show()]
        free = [] if self.plan.runs_ahead else [Do(SYNC, "nobody reads the slots any more")]
        return [Gap(), *found, *(free if left else []), *left, *([Do(SYNC)] if left else []), *gathered]

    # ---- the whole ---------------------------------------------------------------------------------------------

    def of_one_tile(self, scalars: list[Statement]) -> list[Statement]:
        """What a block does that has one."""
        return [
            *self.known_of_rows(),
            Gap(),
            *self.thread(),
            *start_of_chain([], self.fragment.asked()),
            *scalars,
            *self.ahead(),
            *self.sums(),
            Gap(),
            *self.work(),
            *self.parts.meet(),
            Gap(),
            AT_LOADS,
            *Epilogue(self.access, self.reduced).statements(),
            *(self.reduced.statements() if self.reduced else []),
        ]

    def of_tiles(self, fragment: WgmmaText, scalars: list[Statement]) -> list[Statement]:
        """What a block does that goes from one to the next."""
        ring = Ring(self.slots()[1], self.access.begin(self.plan.cut.k), hands_on=fragment.passing.hands_on)
        epilogue = StagedEpilogue(self.access, fragment.passing, ring, self.reduced)
        behind = [*self.parts.meet(), *epilogue.statements()]
        work = fragment.work(ring, self.over_k, behind, self.reduced)
        known = [*scalars, *epilogue.scalars()]
        return [Gap(), *self.thread(), *ring.set_up(), *start_of_chain([], []), *known, *work, AT_LOADS]

    def work(self) -> list[Statement]:
        if not self.plan.in_shared:
            return self.fragment.from_memory()
        run = self.past_registers() if self.copied else self.through_registers()
        return [*self.functions(), *run, *self.riding()]

    def comment(self) -> tuple[str, ...]:
        plan, cut = self.plan, self.plan.cut
        size = ", any sizes" if self.problem.any_cols else ""
        what = f"{self.problem.spec.name} {self.problem.direction.value}{size}"
        tile = f"a block owns a tile of {cut.m} (m) and {cut.n} (n), of which a thread keeps its part in registers"
        way = "Each thread reads what it multiplies."
        if plan.in_shared:
            left, right = (side.way for side in self.sides)
            by = left if left == right else f"those of {cut.m} {left}, of {cut.n} {right}"
            way = f"Tiles of both sides pass through shared memory, {by}."
        if plan.is_made(cut.left):
            way = f"Lanes make the factors of {cut.m} of what they read; tiles of {cut.n} pass through shared memory."
        last = ["The last block combines what all leave of the result's reductions."] if self.reduced else []
        by_warps = self.fragment.said
        waits = ["Warps look at the rows of a tile first, for what its elements wait for."] if cut.ahead else []
        if self.moving:
            waits = [
                f"When a tile moves {self.moving.top}, so does all that is summed of exponentials about the old one."
            ]
        taken = (f"{written} takes the place of {read}." for written, read in self.problem.in_place)
        return (f"{what}: {tile}; the products are summed over {cut.k} (k).", way, *by_warps, *waits, *last, *taken)

    def text(self) -> KernelText:
        plan, s = self.plan, self.plan.schedule
        fragment = self.fragment
        scalars: list[Statement] = [
            Let("const float", name, f"element({self.access.read(load.tensor, {}, '1')}, 0)")
            for load in plan.program.loads
            if (name := self.access.scalars.get(load.name))
        ]
        body = [
            *self.constants(),
            *(self.shared() if plan.in_shared else []),
            *(self.of_tiles(fragment, scalars) if isinstance(fragment, WgmmaText) else self.of_one_tile(scalars)),
            *AT_END,
        ]
        resident = plan.fragment.resident or s.blocks_per_sm
        config: dict[str, int | str] = {"kThreads": plan.threads, "Chain": self.chain, "kBlocksPerSm": resident}
        return KernelText(
            name=self.name,
            comment=self.comment(),
            params=tuple(map(self.declared, self.params)),
            bounds="Config::kThreads, Config::kBlocksPerSm",
            config=config,
            body=pruned(body),
        )
