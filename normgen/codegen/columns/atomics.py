"""Sums by atomics: every element to the workspace, or to a row in shared memory first; the last block finishes."""

from __future__ import annotations

from normgen.codegen.access import Site
from normgen.codegen.columns.sums import Finish, Gather
from normgen.codegen.module import Param, Source
from normgen.codegen.statements import Comment, Do, For, Gap, If, Let, Set, Statement, constant
from normgen.program.ir import Store
from normgen.schedule.plan import TICKET_BYTES


class Straight(Gather):
    """atomic: every row adds straight to the workspace (the plain kernel of the literature)."""

    base = "sums"

    def add(self, index: int, term: str, site: Site) -> Statement:
        column = site.at if site.at == "edge" else f"{site.at} + i"
        added = Do(f"atomicAdd({self.base} + {self.line}{self.cells.start(index)}{column}, {term})")
        return self.access.if_wanted(self.cells.names[index], added)[0]

    @property
    def line(self) -> str:
        return self.cells.line


class SharedRow(Straight):
    """shared_atomic: rows are added to a float32 row in shared memory, which the block adds to the workspace."""

    base = "column_sums"
    line = ""  # a block's rows are of one batch

    def constants(self) -> list[Let]:
        return [constant("kSums", f"{len(self.cells.names)} * kPitch", "cells of a row of sums")]

    def prologue(self) -> list[Statement]:
        zero = Set("column_sums[i]", "0.0f")
        return [
            Let("float*", "column_sums", f"reinterpret_cast<float*>({self.cells.shared})"),
            For("for (int i = threadIdx.x; i < kSums; i += kThreads)", (zero,)),
            Do("__syncthreads()"),
        ]

    def epilogue(self) -> list[Statement]:
        add = Do(f"atomicAdd(sums + {self.cells.line}cell, column_sums[cell])")
        return [
            Do("__syncthreads()"),
            For("for (int cell = threadIdx.x; cell < kSums; cell += kThreads)", (add,)),
        ]


class Ticket(Finish):
    """The last block to arrive converts the sums, and zeroes the workspace again."""

    def params(self) -> list[Param]:
        cells = self.cells
        behind = TICKET_BYTES + cells.sums.total_bytes
        found = [Param(name="ticket", ctype="unsigned*", source=Source.WORKSPACE)]
        if cells.totals:
            found.append(Param(name="totals", ctype="float*", source=Source.WORKSPACE, offset=TICKET_BYTES))
        if cells.stores:
            found.append(Param(name="sums", ctype="float*", source=Source.WORKSPACE, offset=behind))
        return found

    def hand_on(self, index: int, cell: str, value: str) -> Statement:
        return Do(f"atomicAdd(sums + {self.cells.line}{self.cells.start(index)}{cell}, {value})")

    def hand_on_total(self, index: str, value: str) -> Statement:
        return Do(f"atomicAdd(&totals[{index}], {value})")

    def _finish_cell(self, stores: list[tuple[int, Store]]) -> list[Statement]:
        """One cell's sums, of each batch in turn where there are some: written, and zeros again.

        Or the sums of one group of columns.
        """
        cells, every, batched = self.cells, list[Statement](), self.cells.batched
        over_all = [store for _, store in stores if batched and store not in batched]
        for index, store in stores:
            total, at = f"{store.tensor}_total", f"{cells.line}{cells.start(index)}"
            found = self._of_group(store, f"sums + {at}") if store.group else f"__ldcg(sums + {at}cell)"
            every.append(Set(total, found, "+=") if store in over_all else Let("const float", total, found))
            every += [] if store.group else [Set(f"sums[{at}cell]", "0.0f")]
            every += [] if store in over_all else self._write(store)
        if not batched:
            return every
        totals = [Do(f"float {store.tensor}_total = 0.0f") for store in over_all]
        written = [one for store in over_all for one in self._write(store)]
        return [*totals, For("for (int batch = 0; batch < max(batches, 1); ++batch)", tuple(every)), *written]

    def _of_group(self, store: Store, sums: str) -> str:
        apart = ", kVector, kVectors" if self.cells.vector > 1 else ""
        return f"take_group<{store.group}{apart}>({sums.removesuffix(' + ')}, group * {store.group})"

    def _write(self, store: Store) -> list[Statement]:
        written = self.cells.write(store, f"{store.tensor}_total")
        written = [If("threadIdx.x % 32 == 0", tuple(written))] if store.group else written
        return [*self.cells.access.if_wanted(store.tensor, *written)]

    def epilogue(self) -> list[Statement]:
        cells = self.cells
        columns: list[Statement] = []
        if cells.by_column:
            finish = [Let("const int", "column", cells.column_of_cell), *self._finish_cell(cells.by_column)]
            each_cell = f"for (int cell = threadIdx.x; cell < {cells.access.cols}; cell += kThreads)"
            columns.append(For(each_cell, tuple(finish)))
        if cells.by_group:
            columns.append(Comment("A warp adds the columns of a group."))
        for size in dict.fromkeys(store.group for _, store in cells.by_group):
            of_size = [(index, store) for index, store in cells.by_group if store.group == size]
            groups = f"group < {cells.access.cols} / {size}; group += kThreads / 32"
            each_group = f"for (int group = threadIdx.x / 32; {groups})"
            columns.append(For(each_group, tuple(self._finish_cell(of_size))))
        totals: list[Statement] = []
        for index, store in enumerate(cells.totals):
            totals.append(Let("const float", f"{store.tensor}_total", f"__ldcg(&totals[{index}])"))
            totals.append(Set(f"totals[{index}]", "0.0f"))
            totals.append(cells.write_total(store, f"{store.tensor}_total"))
        by_one = [If("threadIdx.x == 0", tuple(totals))] if totals else []
        return [
            Gap(),
            Comment("The last block to arrive finishes and leaves the workspace ready for the next call."),
            Do("__shared__ bool is_last"),
            Do("__threadfence()"),
            If(
                "takes_last_ticket(ticket, is_last)",
                (*columns, *by_one, If("threadIdx.x == 0", (Set("*ticket", "0"),), alone=True)),
            ),
        ]
