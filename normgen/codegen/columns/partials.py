"""One partial row per block, or per row of blocks; a second kernel adds them in a fixed order."""

from __future__ import annotations

from normgen.codegen.chain import chain_setting, declare
from normgen.codegen.columns.sums import PITCH, Finish, SecondKernel
from normgen.codegen.columns.totals import total_constants
from normgen.codegen.module import KernelEntry, Launch, Param, Source
from normgen.codegen.statements import Do, For, Gap, If, Let, Set, Statement, constant, setting
from normgen.knobs import DependentLaunch

FINISH_THREADS, FEW_ROWS_THREADS = 512, 256
FINISH_IN_FLIGHT = 12  # partial rows that a thread adds in one trip of its loop (library/partial_rows.cuh)
FINISH_BLOCKS = 132  # enough blocks to read partial rows with most SMs of a large GPU


class PartialRows(Finish):
    """Every block, or all blocks that share a row together, leave one row of sums."""

    def target(self, walker: str) -> list[Statement]:
        row = f"partials + static_cast<long long>({walker}) * kTensors * kPitch"
        return [Let("float*", "partial_row", row)]

    def hand_on(self, index: int, cell: str, value: str) -> Statement:
        return Set(f"partial_row[{self.cells.start(index)}{cell}]", value)

    def target_of_totals(self) -> list[Statement]:
        return [Let("float*", "partial_totals", f"{self.totals('gridDim.x')} + blockIdx.x * kTotalPitch")]

    def totals(self, blocks: str) -> str:
        """Where the rows of totals lie, one per block: behind all partial rows."""
        if not self.cells.stores:
            return "partials"
        s = self.cells.plan.schedule
        together = "kParts" if s.parts > 1 and blocks == "gridDim.x" else "kCluster"
        rows = f"{blocks} / {together}" if s.cluster * s.parts > 1 else blocks
        return f"partials + static_cast<long long>({rows}) * kTensors * kPitch"

    def hand_on_total(self, index: str, value: str) -> Statement:
        return Set(f"partial_totals[{index}]", value)


class TwoKernels(PartialRows):
    """partials_two_kernels: the second kernel."""

    def params(self) -> list[Param]:
        return [Param(name="partials", ctype="float*", source=Source.WORKSPACE)]

    def second_kernel(self, name: str) -> SecondKernel | None:
        cells, plan = self.cells, self.cells.plan
        columns = [plan.problem.tensor(s.tensor) for s in cells.stores]
        outputs = [*columns, *(plan.problem.tensor(s.tensor) for s in cells.totals)]
        launched = plan.schedule.dependent_launch
        params = [
            *(Param(name=t.name, ctype=f"{t.dtype.ctype}*", source=Source.TENSOR, key=t.name) for t in outputs),
            Param(name="partials", ctype="const float*", source=Source.WORKSPACE),
            Param(name="blocks", ctype="int", source=Source.BLOCKS),
        ]
        for tensor in (plan.problem.tensor(store.tensor) for store in cells.batched):
            params.append(Param(name=f"{tensor.name}_pitch", ctype="long long", source=Source.PITCH, key=tensor.name))
        params += [Param(name="batches", ctype="int", source=Source.BATCHES)] if cells.sums.by_batch else []
        pitch = cells.sums.pitch
        threads = cells_each = FEW_ROWS_THREADS
        if not self._few_rows:
            threads = FINISH_THREADS
            cells_each = next((c for c in (32, 16) if pitch // c * len(columns) >= FINISH_BLOCKS), 8)
        blocks = -(-pitch // cells_each) * len(columns) + -(-len(cells.totals) // cells_each)
        launch = Launch(
            threads=threads,
            blocks=blocks,
            dependent=launched is not DependentLaunch.OFF,
            by_batch=cells.sums.by_batch,
        )
        body: list[Statement] = [
            *self._second_constants(threads, cells_each, blocks),
            *([] if self._few_rows else [Do("__shared__ float warp_sums[kThreads / 32][kCells]")]),
            Gap(),
            Let("const int", "partial_rows", "blocks / kCluster"),
            *(self._own_batch() if cells.sums.by_batch else []),
            *(self._own_cell() if columns else []),
            Gap(),
            Do("Chain::at_start()"),
            Do("Chain::wait_for_partner()"),
            Gap(),
            *(self._finish_totals() if cells.totals else []),
            *(self._finish_columns() if columns else []),
        ]
        return SecondKernel(
            kernel=KernelEntry(name=name, params=tuple(params), launch=launch),
            comment="Adds the partial rows that a kernel's blocks left, cell by cell and always in the same order.",
            declared=tuple(declare(plan.problem, param) for param in params),
            body=body,
        )

    @property
    def _few_rows(self) -> bool:
        """Whether blocks share rows, so that few of them leave a partial row, of many columns: a thread adds a cell."""
        cells = self.cells
        return cells.plan.schedule.parts > 1 and not (cells.by_group or cells.totals or cells.sums.by_batch)

    def _second_constants(self, threads: int, cells_each: int, blocks: int) -> list[Statement]:
        cells, plan, s = self.cells, self.cells.plan, self.cells.plan.schedule
        column_blocks = constant("kColumnBlocks", "kPitch / kCells * kTensors", "blocks that add sums of columns")
        return [
            setting("kCols", plan.problem.cols),
            constant("kPitch", PITCH, "columns of a row of float32 sums, padded"),
            setting("kSumVector", cells.vector, "columns whose sums lie kSumVectors cells apart"),
            constant("kSumVectors", "kCols / kSumVector"),
            setting("kCluster", s.cluster * s.parts, "blocks that fill a partial row together"),
            constant("kThreads", str(threads)),
            constant("kTensors", str(len(cells.stores)), "tensors that are summed over rows"),
            setting("kCells", cells_each, "sums that a block adds"),
            *total_constants(cells),
            *([column_blocks] if cells.totals else []),
            *([setting("kBatchBlocks", blocks, "blocks that add the sums of a batch")] if cells.sums.by_batch else []),
            chain_setting(plan.schedule),
        ]

    @property
    def _block(self) -> str:
        return "block" if self.cells.sums.by_batch else "blockIdx.x"

    def _own_batch(self) -> list[Statement]:
        """The batch whose sums a block adds; those over all rows are added by the blocks of the first one."""
        return [
            Let("const int", "batch", "blockIdx.x / kBatchBlocks"),
            Let("const int", "block", "blockIdx.x % kBatchBlocks"),
            Let("const int", "batch_rows", "partial_rows / max(batches, 1)", "partial rows of a batch"),
        ]

    def _own_cell(self) -> list[Statement]:
        several = len(self.cells.stores) > 1
        tensor = [Let("const int", "tensor", f"{self._block} % kTensors")] if several else []
        cell = Let("const int", "cell", f"{self._of_tensor} * kCells + threadIdx.x % kCells")
        return [*tensor, *([cell] if self.cells.by_column else [])]

    @property
    def _of_tensor(self) -> str:
        """The number of a block among those of its tensor."""
        return f"{self._block}{' / kTensors' if len(self.cells.stores) > 1 else ''}"

    def _finish_columns(self) -> list[Statement]:
        cells = self.cells
        several = len(cells.stores) > 1
        tensor, sizes = "tensor" if several else "0", "kThreads, kCells, kTensors, kPitch"
        writes: list[Statement] = []
        for index, store in cells.by_column:
            write = tuple(cells.write(store, "total"))
            writes += [If(f"tensor == {index}", write)] if several else write
        first, rows = "partials", "partial_rows"
        found: list[Statement] = []
        if cells.sums.by_batch:
            first, rows = f"partials + {cells.of_lines('batch * batch_rows')}", "batch_rows"
            over_all = [f"{tensor} == {i}" for i, store in enumerate(cells.stores) if store not in cells.batched]
            if over_all:
                found.append(Let("const bool", "over_all", " || ".join(over_all), "a sum over the rows of all batches"))
                found.append(If("over_all && batch > 0", (Do("return"),), alone=True))
                rows = "over_all ? partial_rows : batch_rows"
        found += self._finish_groups(first, tensor)
        if not cells.by_column:
            return found
        if self._few_rows:
            whole = f"total_of_partial_rows<kTensors, kPitch>({first}, {rows}, {tensor}, cell)"
            return [*found, If("cell < kCols", (Let("const float", "total", whole), self._column_of_cell, *writes))]
        whole = "total_of_warps<kThreads / 32>(warp_sums, threadIdx.x)"
        return [
            *found,
            Do(f"add_partial_rows<{sizes}>({first}, {rows}, {tensor}, cell, warp_sums)"),
            self._column_of_cell,
            If("threadIdx.x < kCells && cell < kCols", (Let("const float", "total", whole), *writes)),
        ]

    @property
    def _column_of_cell(self) -> Statement:
        return Let("const int", "column", f"kSumVector == 1 ? cell : {self.cells.column('kSumVector', 'kSumVectors')}")

    def _finish_groups(self, first: str, tensor: str) -> list[Statement]:
        """The blocks of a tensor take turns at its groups, and add the columns of one in all partial rows."""
        cells, found = self.cells, list[Statement]()
        for size in dict.fromkeys(store.group for _, store in cells.by_group):
            of_size = [(index, store) for index, store in cells.by_group if store.group == size]
            sizes = f"kThreads, kCells, kTensors, kPitch, {size}, kSumVector, kSumVectors"
            over = {"batch_rows" if store in cells.batched else "partial_rows" for _, store in of_size}
            rows = over.pop() if len(over) == 1 else "over_all ? partial_rows : batch_rows"
            added: list[Statement] = [
                Do(f"add_partial_group<{sizes}>({first}, {rows}, {tensor}, group * {size}, warp_sums)"),
                Let("const float", "total", "total_of_warps<kThreads / 32>(warp_sums, 0)"),
            ]
            for index, store in of_size:
                who = f"threadIdx.x == 0 && tensor == {index}" if len(of_size) > 1 else "threadIdx.x == 0"
                added.append(If(who, tuple(cells.write(store, "total"))))
            each = f"group < kCols / {size}; group += kPitch / kCells"
            every = For(f"for (int group = {self._of_tensor}; {each})", (*added, Do("__syncthreads()")))
            if len(of_size) == len(cells.stores):
                return [every]
            of_these = " || ".join(f"tensor == {index}" for index, _ in of_size)
            found.append(If(of_these, (every, Do("return"))))
        return found

    def _finish_totals(self) -> list[Statement]:
        """The blocks behind those of the columns add the totals' rows, which lie behind the partial rows."""
        cells = self.cells
        block = f"({self._block} - kColumnBlocks)" if cells.stores else "blockIdx.x"
        found: list[Statement] = [
            Let("const int", "index", f"{block} * kCells + threadIdx.x % kCells"),
            Let("const float*", "partial_totals", self.totals("blocks")),
            Do("add_partial_rows<kThreads, kCells, 1, kTotalPitch>(partial_totals, blocks, 0, index, warp_sums)"),
            Let("const float", "total", "total_of_warps<kThreads / 32>(warp_sums, threadIdx.x % kCells)"),
            If("threadIdx.x < kCells", tuple(cells.write_totals("index", "total"))),
        ]
        if cells.sums.by_batch:
            found.insert(0, If("batch > 0", (Do("return"),), alone=True))
        return [If(f"{self._block} >= kColumnBlocks", (*found, Do("return")))] if cells.stores else found
