"""The blocks of a cluster add their sums through distributed shared memory: one partial row per cluster.

On an H200 cluster_partials takes 1.02 to 1.07 times as long as partials_two_kernels with clusters of 2 and up to 1.11
with 8 (layernorm 4096x4096, 8192x768 and 4096x1024, rmsnorm 4096x4096, all bf16).
"""

from __future__ import annotations

from normgen.codegen.columns.registers import Registers
from normgen.codegen.statements import Do, Gap, Let, Set, Statement, constant


class ClusterRegisters(Registers):
    """cluster_partials: of rows that each block has walked alone."""

    def constants(self) -> list[Let]:
        # 16 bytes at a time where rows of sums are whole vectors
        width = constant("kSumWidth", "kCols % 4 == 0 ? 4 : 1", "columns a thread adds at a time")
        return [*super().constants(), width]

    def combine(self) -> list[Statement]:
        """The sums of the row groups wait for those of the cluster."""
        sizes = "kThreads, kCluster, kTensors, kCols, kPitch, kSumWidth"
        return [
            *(self.add_groups() if self.sums.groups > 1 else []),
            Gap(),
            *self.finish.target("blockIdx.x / kCluster"),
            Do(f"add_over_cluster<{sizes}>(&group_sums[0][0][0], partial_row)"),
        ]

    def total(self, index: int, name: str) -> list[Statement]:
        return [*self.added(index, f"{name}_total"), Set(f"group_sums[0][{index}][cell]", f"{name}_total")]
