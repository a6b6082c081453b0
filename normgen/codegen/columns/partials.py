"""One partial row per block, or per cluster; a second kernel adds them in a fixed order."""

from __future__ import annotations

from normgen.codegen.chain import chain_setting, declare
from normgen.codegen.columns.sums import PITCH, Finish, SecondKernel
from normgen.codegen.module import Kernel, Launch, Param, Source
from normgen.codegen.statements import Do, Gap, If, Let, Statement, constant, setting
from normgen.schedule.knobs import DependentLaunch

FINISH_THREADS = 512
FINISH_IN_FLIGHT = 12  # partial rows that a thread adds in one trip of its loop (library/partial_rows.cuh)
FINISH_BLOCKS = 132  # enough blocks to read partial rows with most SMs of a large GPU


class PartialRows(Finish):
    """Every block (or cluster) leaves one row of sums."""

    def target(self, walker: str) -> list[Statement]:
        row = f"partials + static_cast<long long>({walker}) * kTensors * kPitch"
        return [Let("float* partial_row", row)]

    def hand_on(self, index: int, cell: str, value: str) -> Statement:
        return Do(f"partial_row[{self.cells.start(index)}{cell}] = {value}")


class TwoKernels(PartialRows):
    """partials_two_kernels, and cluster_partials behind the clusters' own sums."""

    def params(self) -> list[Param]:
        return [Param(name="partials", ctype="float*", source=Source.WORKSPACE)]

    def second_kernel(self, name: str) -> SecondKernel | None:
        cells, plan = self.cells, self.cells.plan
        outputs = [plan.problem.tensor(s.tensor) for s in cells.stores]
        cluster, launched = plan.schedule.cluster, plan.schedule.dependent_launch
        params = [
            *(Param(name=t.name, ctype=f"{t.dtype.ctype}*", source=Source.TENSOR, key=t.name) for t in outputs),
            Param(name="partials", ctype="const float*", source=Source.WORKSPACE),
            Param(name="blocks" if cluster > 1 else "partial_rows", ctype="int", source=Source.BLOCKS),
        ]
        pitch = cells.sums.pitch
        columns = next((c for c in (32, 16) if pitch // c * len(outputs) >= FINISH_BLOCKS), 8)
        blocks = pitch // columns * len(outputs)
        launch = Launch(threads=FINISH_THREADS, blocks=blocks, dependent=launched is not DependentLaunch.OFF)
        constants = [
            setting("kCols", plan.problem.cols),
            constant("kPitch", PITCH, "columns of a row of float32 sums, padded"),
            setting("kVector", plan.cut.vector),
            constant("kVectors", "kCols / kVector"),
            setting("kCluster", cluster, "blocks that fill a partial row together"),
            constant("kThreads", str(FINISH_THREADS)),
            constant("kTensors", str(len(outputs)), "tensors that are summed over rows"),
            setting("kCells", columns, "sums that a block adds"),
            chain_setting(plan),
        ]
        several = len(outputs) > 1
        tensor, sizes = "tensor" if several else "0", "kThreads, kCells, kTensors, kPitch"
        writes: list[Statement] = [Let("const float total", "total_of_warps(warp_sums, threadIdx.x)")]
        for index, store in enumerate(cells.stores):
            write = tuple(cells.write(store, "total"))
            writes += [If(f"tensor == {index}", write)] if several else write
        body: list[Statement] = [
            *constants,
            Do("__shared__ float warp_sums[kThreads / 32][kCells]"),
            Gap(),
        ]
        if cluster > 1:
            body.append(Let("const int partial_rows", "blocks / kCluster"))
        body += [
            *([Let("const int tensor", "blockIdx.x % kTensors")] if several else []),
            Let("const int cell", f"blockIdx.x{' / kTensors' if several else ''} * kCells + threadIdx.x % kCells"),
            Gap(),
            Do("Chain::at_start()"),
            Do("Chain::wait_for_partner()"),
            Gap(),
            Do(f"add_partial_rows<{sizes}>(partials, partial_rows, {tensor}, cell, warp_sums)"),
            Let("const int column", cells.column_of_cell),
            If("threadIdx.x < kCells && cell < kCols", tuple(writes)),
        ]
        return SecondKernel(
            kernel=Kernel(name=name, params=tuple(params), launch=launch),
            comment="Adds the partial rows that a kernel's blocks left, cell by cell and always in the same order.",
            declared=tuple(declare(plan, param) for param in params),
            body=body,
        )
