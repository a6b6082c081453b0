"""Sums in registers: a thread adds its columns of all rows of its block, and the block adds its row groups."""

from __future__ import annotations

from normgen.codegen.access import Site
from normgen.codegen.columns.sums import Gather
from normgen.codegen.statements import Comment, Do, For, Gap, If, Let, Set, Statement, constant, loop, setting, when
from normgen.codegen.walk import UNROLL, Walk


class Registers(Gather):
    """register_atomic, partials_two_kernels, partials_last_tile."""

    def constants(self) -> list[Let]:
        return [
            constant("kTensors", str(len(self.cells.names)), "tensors that are summed over rows"),
            setting("kGroups", self.sums.groups, "row groups of a block that keep sums of their own"),
        ]

    def prologue(self) -> list[Statement]:
        names = self.cells.names
        groups = "float (*{})[kTensors][kPitch]"
        return [
            Comment("This thread's sums over its rows, one for each of its columns."),
            *(Do(f"float {name}_sum[kSteps][kVector] = {{}}") for name in names),
            *(Do(f"float {name}_edge_sum = 0.0f") for name in names if self.plan.cut.edged),
            Let(groups, "group_sums", f"reinterpret_cast<float (*)[kTensors][kPitch]>({self.cells.shared})"),
        ]

    def add(self, index: int, term: str, site: Site) -> Statement:
        name = self.cells.names[index]
        return Do(f"{name}_edge_sum += {term}" if site.at == "edge" else f"{name}_sum[step][i] += {term}")

    def epilogue(self) -> list[Statement]:
        if self.sums.in_shared:
            return [*self._leave(), *self.finish.target("blockIdx.x"), *self._add_groups()]
        walk = Walk(
            comment="The block hands one sum per column on.",
            elem=self._hand_on("{}_sum[step][i]", "i * kVectors + vector"),
            edge=self._hand_on("{}_edge_sum", "edge") if self.plan.cut.edged else (),
        )
        return [*self.finish.target(self.access.walker), *walk.statements(self.access)]

    def _hand_on(self, sum_: str, cell: str) -> list[Statement]:
        return [self.finish.hand_on(i, cell, sum_.format(name)) for i, name in enumerate(self.cells.names)]

    def _leave(self) -> list[Statement]:
        """Registers -> shared memory, one row of sums per group."""
        s, shifted = self.plan.schedule, self.plan.cut.shifted
        shares_warp = self.plan.rows_beside and not shifted
        group = "block_row" if s.rows_per_block > 1 else "0"
        group = "kThreadsPerRow < 32 ? static_cast<int>(threadIdx.x / 32) : block_row" if shares_warp else group
        cell = "column + i" if shifted else "i * kVectors + vector"
        row = f"group_sums[{'sums_row' if shares_warp else group}]"
        rows: list[Statement] = self._add_rows_of_warp() if shares_warp else []
        rows += [Let("const int", "sums_row", group)] if shares_warp else []
        names = list(enumerate(self.cells.names))
        first_rows = "(kThreadsPerRow >= 32 || threadIdx.x % 32 < kThreadsPerRow)" if shares_warp else ""
        edge = [Set(f"{row}[{index}][edge]", f"{name}_edge_sum") for index, name in names]
        walk = Walk(
            comment="Each row group of the block leaves its sums in shared memory.",
            also=first_rows,
            elem=[Set(f"{row}[{index}][{cell}]", f"{name}_sum[step][i]") for index, name in names],
            edge=when(first_rows, *edge) if self.plan.cut.edged else (),
        )
        return [*rows, *walk.statements(self.access)]

    def _add_groups(self) -> list[Statement]:
        """What the row groups left side by side -> one sum per cell, which leaves the block."""
        cells = [found for index, name in enumerate(self.cells.names) for found in self._total(index, name)]
        return [
            Do("__syncthreads()"),
            Comment("The sums of the row groups are added in a fixed order."),
            For("for (int cell = threadIdx.x; cell < kCols; cell += kThreads)", tuple(cells)),
        ]

    def _total(self, index: int, name: str) -> list[Statement]:
        """One cell's sums of all row groups become one."""
        total = f"{name}_total"
        further = Set(total, f"group_sums[group][{index}][cell]", "+=")
        return [
            Do(f"float {total} = group_sums[0][{index}][cell]"),
            loop("group", "kGroups", [further], first="1", unroll=UNROLL),
            self.finish.hand_on(index, "cell", total),
        ]

    def _add_rows_of_warp(self) -> list[Statement]:
        """The sums of rows that share a warp."""

        def added(sums: list[str]) -> Statement:
            body = tuple(Set(sum_, f"__shfl_xor_sync(0xffffffffu, {sum_}, offset)", "+=") for sum_ in sums)
            return For("for (int offset = kThreadsPerRow; offset < 32; offset *= 2)", body, UNROLL)

        vectors = loop("i", "kVector", [added([f"{name}_sum[step][i]" for name in self.cells.names])], unroll=UNROLL)
        edges = [added([f"{name}_edge_sum" for name in self.cells.names])] if self.plan.cut.edged else []
        return [
            Gap(),
            Comment("Lanes that own the same columns of several rows add their sums."),
            If("kThreadsPerRow < 32", (loop("step", "kSteps", [vectors], unroll=UNROLL), *edges)),
        ]
