"""One partial row per block, or per cluster; a second kernel adds them in a fixed order."""

from __future__ import annotations

from normgen.codegen.chain import declare
from normgen.codegen.columns.sums import Cells, Finish, SecondKernel
from normgen.codegen.module import Kernel, Launch, Param, Source
from normgen.schedule.knobs import DependentLaunch

FINISH_THREADS = 512
FINISH_IN_FLIGHT = 12  # partial rows that a thread adds in one trip of its loop
FINISH_BLOCKS = 132  # enough blocks to read partial rows with most SMs of a large GPU


def partial_row_line(cells: Cells, index: int, cell: str, value: str, walker: str) -> str:
    """A block's sum of one cell goes to its partial row."""
    row = f"static_cast<long long>({walker}) * {len(cells.names)} * kPitch"
    return f"partials[{row} + {cells.start(index)}{cell}] = {value};"


class TwoKernels(Finish):
    """partials_two_kernels, and cluster_partials behind the clusters' own sums."""

    def params(self) -> list[Param]:
        return [Param(name="partials", ctype="float*", source=Source.WORKSPACE)]

    def hand_on(self, index: int, cell: str, value: str, *, walker: str) -> str:
        return partial_row_line(self.cells, index, cell, value, walker)

    def second_kernel(self, name: str) -> SecondKernel:
        cells, plan = self.cells, self.cells.plan
        name = f"{name}_finish"
        outputs = [plan.problem.tensor(s.tensor) for s in cells.stores]
        cluster, launched = plan.schedule.cluster, plan.schedule.dependent_launch
        params = [
            *(Param(name=t.name, ctype=f"{t.dtype.ctype}*", source=Source.TENSOR, key=t.name) for t in outputs),
            Param(name="partials", ctype="const float*", source=Source.WORKSPACE),
            Param(name="blocks" if cluster > 1 else "partial_rows", ctype="int", source=Source.BLOCKS),
        ]
        pitch = cells.sums.pitch
        columns = next((c for c in (32, 16) if pitch // c * len(outputs) >= FINISH_BLOCKS), 8)
        dependent = launched is not DependentLaunch.OFF
        launch = Launch(threads=FINISH_THREADS, blocks=pitch // columns * len(outputs), dependent=dependent)
        view: dict[str, object] = {
            "name": name,
            "params": params,
            "cols": plan.problem.cols,
            "pitch": pitch,
            "vector": plan.cut.vector,
            "vectors": plan.cut.vectors,
            "threads": FINISH_THREADS,
            "in_flight": FINISH_IN_FLIGHT,
            "dependent": dependent,
            "cluster": cluster,
            "triggers": launched is DependentLaunch.START,
            "declared": [declare(plan, param) for param in params],
            "columns": columns,
            "column": cells.column_of_cell,
            "outputs": [{"name": s.tensor, "lines": cells.write_lines(s, "total")} for s in cells.stores],
        }
        return SecondKernel(kernel=Kernel(name=name, params=tuple(params), launch=launch), view=view)
