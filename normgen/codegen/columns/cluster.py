"""The blocks of a cluster add their sums through distributed shared memory: one partial row per cluster.

On an H200 cluster_partials takes 1.02 to 1.07 times as long as partials_two_kernels with clusters of 2 and up to 1.11
with 8 (layernorm 4096x4096, 8192x768 and 4096x1024, rmsnorm 4096x4096, all bf16).
"""

from __future__ import annotations

from normgen.codegen.columns.registers import Registers
from normgen.codegen.prelude import environment
from normgen.codegen.view import SectionList


class ClusterRegisters(Registers):
    """cluster_partials: of rows that each block has walked alone."""

    @property
    def _width(self) -> int:
        """Columns that a thread adds over a cluster at a time: 16 bytes where rows of sums are whole vectors."""
        return 4 if self.plan.problem.cols % 4 == 0 else 1

    def constants(self) -> list[tuple[str, str, str]]:
        width = self._width
        share = f"(kCols + {width} * kCluster - 1) / ({width} * kCluster) * {width}"
        return [("kStretch", share, "columns that a block of the cluster adds")]

    def combine(self, out: SectionList) -> None:
        """The sums of the row groups wait for those of the cluster."""
        if self.sums.groups > 1:
            self.add_groups(out)
        starts = [self.cells.start(index) for index in range(len(self.cells.names))]
        template = environment().get_template("cluster_partials.cu.j2")
        out.lines(*template.render(width=self._width, starts=starts).splitlines())

    def total_lines(self, index: int, name: str, cells: list[str]) -> list[str]:
        return [f"  {cells[0]} = {' + '.join(cells)};"]
