"""Sums by atomics: every element to the workspace, or to a row in shared memory first; the last block finishes."""

from __future__ import annotations

from normgen.codegen.access import Site
from normgen.codegen.columns.sums import Finish, Gather
from normgen.codegen.module import Param, Source
from normgen.codegen.statements import Comment, Do, For, Gap, If, Let, Statement, constant
from normgen.schedule.plan import TICKET_BYTES


class Straight(Gather):
    """atomic: every row adds straight to the workspace (the plain kernel of the literature)."""

    base = "sums"

    def add(self, index: int, term: str, site: Site) -> Statement:
        column = site.at if site.at == "edge" else f"{site.at} + i"
        added = Do(f"atomicAdd({self.base} + {self.cells.start(index)}{column}, {term})")
        return self.access.if_wanted(self.cells.names[index], added)[0]


class SharedRow(Straight):
    """shared_atomic: rows are added to a float32 row in shared memory, which the block adds to the workspace."""

    base = "column_sums"

    def constants(self) -> list[Let]:
        return [constant("kSums", f"{len(self.cells.names)} * kPitch", "cells of a row of sums")]

    def prologue(self) -> list[Statement]:
        zero = Do("column_sums[i] = 0.0f")
        return [
            Let("float* column_sums", f"reinterpret_cast<float*>({self.cells.shared})"),
            For("for (int i = threadIdx.x; i < kSums; i += kThreads)", (zero,)),
            Do("__syncthreads()"),
        ]

    def epilogue(self) -> list[Statement]:
        add = Do("atomicAdd(sums + cell, column_sums[cell])")
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
        return Do(f"atomicAdd(sums + {self.cells.start(index)}{cell}, {value})")

    def hand_on_total(self, index: str, value: str) -> Statement:
        return Do(f"atomicAdd(&totals[{index}], {value})")

    def epilogue(self) -> list[Statement]:
        cells = self.cells
        finish: list[Statement] = [Let("const int column", cells.column_of_cell)]
        for index, store in enumerate(cells.stores):
            name, at = cells.names[index], f"{cells.start(index)}cell"
            finish.append(Let(f"const float {name}_total", f"__ldcg(sums + {at})"))
            finish.append(Do(f"sums[{at}] = 0.0f"))
            finish += cells.access.if_wanted(store.tensor, *cells.write(store, f"{name}_total"))
        each_cell = f"for (int cell = threadIdx.x; cell < {cells.access.cols}; cell += kThreads)"
        columns = [For(each_cell, tuple(finish))] if cells.stores else []
        totals: list[Statement] = []
        for index, store in enumerate(cells.totals):
            totals.append(Let(f"const float {store.tensor}_total", f"__ldcg(&totals[{index}])"))
            totals.append(Do(f"totals[{index}] = 0.0f"))
            totals.append(cells.write_total(store, f"{store.tensor}_total"))
        by_one = [If("threadIdx.x == 0", tuple(totals))] if totals else []
        return [
            Gap(),
            Comment("The last block to arrive finishes and leaves the workspace ready for the next call."),
            Do("__shared__ bool is_last"),
            Do("__threadfence()"),
            If(
                "takes_last_ticket(ticket, is_last)",
                (*columns, *by_one, If("threadIdx.x == 0", (Do("*ticket = 0"),), alone=True)),
            ),
        ]
