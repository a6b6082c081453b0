"""Column reductions (dweight, dbias): sums over all rows, taken in the same pass over the data as dx.

A thread meets the same columns in every row of its block, so that it adds into registers of its own while the
block walks its rows; the block then adds its row groups and hands one float32 sum per column on. Sums are stored
element-major (cell = i * kVectors + vector): neighbouring lanes own neighbouring vectors, so that their accesses
are coalesced and meet no bank twice.

    register_atomic       atomicAdd into the workspace; the last block converts, and zeroes the workspace again
    partials_two_kernels  one partial row per block; a second kernel adds them in a fixed order
    cluster_partials      as partials_two_kernels, but the blocks of a cluster add their sums through distributed
                          shared memory first: one partial row per cluster, of rows that each block has walked alone
    partials_last_tile    one partial row per block; the last block at a tile of columns adds it, in a fixed order
    shared_atomic         as register_atomic, but rows are added to a float32 row in shared memory by atomics
    atomic                every row adds straight to the workspace (the plain kernel of the literature)

On an H200, over partials_two_kernels with an early start (layernorm 4096x4096, 8192x768 and 4096x1024, rmsnorm
4096x4096, all bf16): cluster_partials takes 1.02 to 1.07 times as long with clusters of 2 and up to 1.11 with 8,
partials_last_tile 1.5 to 1.8 times, because all blocks arrive within a microsecond and the last one adds nearly all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from normgen.codegen.module import Kernel, Launch, Param, Source
from normgen.codegen.prelude import environment
from normgen.codegen.view import Loop, SectionList
from normgen.program.ir import Store
from normgen.schedule.knobs import DependentLaunch
from normgen.schedule.legality import last_tile_sums, last_tiles, sums_pitch, sums_shared_bytes

if TYPE_CHECKING:
    from normgen.codegen.builder import KernelBuilder
    from normgen.codegen.looks import Site
    from normgen.codegen.printer import Printer

WARP = 32

FINISH_THREADS = 512
FINISH_BLOCKS = 132  # enough blocks to read partial rows with most SMs of a large GPU
TICKET_BYTES = 128  # an arrival counter has a line of its own


class ColumnSums:
    """The column reductions of one kernel: declarations, element lines, epilogue, finishing kernel, workspace."""

    def __init__(self, builder: KernelBuilder) -> None:
        self.b = builder
        self.stores = [store for store, _ in builder.program.col_terms]
        self.terms = [term for _, term in builder.program.col_terms]
        self.how = builder.schedule.columns
        self.pitch = sums_pitch(builder.problem)

    def __bool__(self) -> bool:
        return bool(self.stores)

    @property
    def names(self) -> list[str]:
        return [store.tensor for store in self.stores]

    @property
    def in_registers(self) -> bool:
        return self.how == "register_atomic" or self.in_partials

    @property
    def in_partials(self) -> bool:
        """Whether blocks hand on rows of partial sums, which are added in a fixed order."""
        return self.how.is_deterministic

    @property
    def in_shared(self) -> bool:
        """Whether the block adds up in shared memory at all."""
        regroups = self.in_registers and (self.b.schedule.rows_per_block > 1 or self.shifted or self.by_cluster)
        return bool(self) and (self.how == "shared_atomic" or regroups)

    @property
    def shifted(self) -> bool:
        """Whether threads own other columns in the next block, or in the next row group: cells are columns."""
        return self.b.layout.shifted

    @property
    def by_tile(self) -> bool:
        """Whether the last block to arrive at a tile of columns finishes it."""
        return bool(self) and self.how == "partials_last_tile"

    @property
    def by_cluster(self) -> bool:
        """Whether the blocks of a cluster add their sums, of different rows."""
        return bool(self) and self.how == "cluster_partials"

    @property
    def stretch_width(self) -> int:
        """Columns that a thread adds over a cluster at a time: 16 bytes where rows of sums are whole vectors."""
        return 4 if self.b.problem.cols % 4 == 0 else 1

    @property
    def by_ticket(self) -> bool:
        """Whether the last block to arrive finishes."""
        return not self.in_partials

    @property
    def groups(self) -> int:
        """Row groups of a block that keep sums of their own; rows within one warp are added by shuffles."""
        s = self.b.schedule
        if not self.in_registers:
            return 1
        return s.rows_per_block if self.shifted else max(1, s.threads // max(WARP, s.threads_per_row))

    @property
    def shared_bytes(self) -> int:
        return sums_shared_bytes(self.b.problem, self.b.schedule) if self else 0

    @property
    def fixed_bytes(self) -> int:
        if not self:
            return 0
        if self.in_partials:
            return last_tiles(self.b.problem) * TICKET_BYTES if self.by_tile else 0
        return len(self.stores) * self.pitch * 4 + TICKET_BYTES

    @property
    def column_bytes(self) -> int:
        """What of the fixed bytes each column costs when cols is a run-time value."""
        return len(self.stores) * 4 if self.b.problem.any_cols else 0

    @property
    def block_bytes(self) -> int:
        """A block's part of its partial row; the blocks of a cluster fill one together."""
        row = len(self.stores) * self.pitch * 4 if self and self.in_partials else 0
        return row // self.b.schedule.cluster

    def params(self) -> list[Param]:
        if not self:
            return []
        if self.how.has_two_kernels:
            return [Param(name="partials", ctype="float*", source=Source.WORKSPACE)]
        tickets, sums = ("tickets", "partials") if self.by_tile else ("ticket", "sums")
        behind = self.fixed_bytes if self.by_tile else TICKET_BYTES
        return [
            Param(name=tickets, ctype="unsigned*", source=Source.WORKSPACE),
            Param(name=sums, ctype="float*", source=Source.WORKSPACE, offset=behind),
        ]

    def constants(self) -> list[tuple[str, str, str]]:
        if not self or self.b.problem.any_cols:
            return []
        pitch = ("kPitch", str(self.pitch), "columns of a row of float32 sums, padded")
        if self.by_cluster:
            width = self.stretch_width
            share = f"(kCols + {width} * kCluster - 1) / ({width} * kCluster) * {width}"
            return [pitch, ("kStretch", share, "columns that a block of the cluster adds")]
        if not self.by_tile:
            return [pitch]
        tile = last_tile_sums(self.b.problem)
        return [
            pitch,
            ("kRowSums", f"{len(self.stores)} * kPitch", "cells of a partial row"),
            ("kTileSums", str(tile), "of them in a tile"),
            ("kTiles", str(last_tiles(self.b.problem)), ""),
        ]

    def start(self, index: int) -> str:
        """Offset of the sums of column output `index`, ready to be added to a column."""
        pitch = "cols" if self.b.problem.any_cols else "kPitch"
        return "" if index == 0 else f"{pitch} + " if index == 1 else f"{index} * {pitch} + "

    # ---- in the row loop ---------------------------------------------------------------------------------------

    def prologue(self, out: SectionList) -> None:
        if not self:
            return
        if self.in_registers:
            out.lines(
                "// Sums over the rows of this thread, column by column.",
                *(f"float {name}_sum[kSteps][kVector] = {{}};" for name in self.names),
                *(f"float {name}_edge_sum = 0.0f;" for name in self.names if self.b.layout.edged),
            )
        if self.in_shared or self.by_tile:
            offset = self.b.ring.bytes
            out.lines(f"float* column_sums = reinterpret_cast<float*>(dynamic_shared() + {offset});")
        if self.how == "shared_atomic":
            count = f"{len(self.names)} * kPitch"
            out.lines(
                f"for (int i = threadIdx.x; i < {count}; i += kThreads) column_sums[i] = 0.0f;",
                "__syncthreads();",
            )

    def elem_lines(self, printer: Printer, site: Site) -> list[str]:
        """What one element adds at a site; a sum that is 0 stays as it starts."""
        lines = []
        for index, (name, term) in enumerate(zip(self.names, self.terms, strict=True)):
            if term == 0:
                continue
            text = printer.text(term)
            if self.in_registers:
                sum_ = f"{name}_edge_sum" if site.at == "edge" else f"{name}_sum[step][i]"
                line = f"{sum_} += {text};"
            else:
                base = "column_sums" if self.how == "shared_atomic" else "sums"
                column = site.at if site.at == "edge" else f"{site.at} + i"
                line = f"atomicAdd({base} + {self.start(index)}{column}, {text});"
            lines.append(f"if (active) {line}" if self.b.idle_rows else line)
        return lines

    # ---- after the row loop ------------------------------------------------------------------------------------

    def epilogue(self, out: SectionList) -> None:
        if not self:
            return
        if self.in_registers and self.in_shared:
            self._leave_registers(out)
        elif self.in_registers:
            self._from_registers(out)
        elif self.in_shared:
            self._from_shared(out)
        if self.by_ticket:
            self._finish_by_last(out)
        elif self.by_tile:
            self._finish_by_tile(out)

    def _leave_registers(self, out: SectionList) -> None:
        """Registers -> shared memory, one row of sums per group -> one sum per cell leaves the block."""
        s = self.b.schedule
        shares_warp = s.threads_per_row < WARP and not self.shifted
        if shares_warp:
            self._add_rows_of_warp(out)
        group = "threadIdx.x / 32" if shares_warp else "slot" if s.rows_per_block > 1 else "0"
        cell = "column + i" if self.shifted else "i * kVectors + vector"
        elem = tuple(
            f"column_sums[{group} * {len(self.names)} * kPitch + {self.start(index)}{cell}] = {name}_sum[step][i];"
            for index, name in enumerate(self.names)
        )
        first_rows = "threadIdx.x % 32 < kThreadsPerRow" if shares_warp else ""
        edge = tuple(
            f"{f'if ({first_rows}) ' if first_rows else ''}column_sums[{group} * {len(self.names)} * kPitch + "
            f"{self.start(index)}edge] = {name}_edge_sum;"
            for index, name in enumerate(self.names)
        )
        out.loop(
            Loop(
                comment="The row groups of this block leave their sums side by side ...",
                unroll="#pragma unroll",
                guard=" && ".join(g for g in (self._guard, first_rows) if g),
                head=self.b.column_line(elem),
                elem=elem,
                edge=edge if self.b.layout.edged else (),
            )
        )
        if self.groups > 1 or not self.by_cluster:
            self._add_groups(out)
        if self.by_cluster:
            self._add_blocks(out)

    def _add_groups(self, out: SectionList) -> None:
        """The sums of all row groups -> one sum per cell, which leaves the block, or waits for those of the cluster."""
        lines = [
            "__syncthreads();",
            "// ... and are added in a fixed order.",
            "for (int cell = threadIdx.x; cell < kCols; cell += kThreads) {",
        ]
        count = len(self.names)
        for index, name in enumerate(self.names):
            cells = [f"column_sums[{self.start(group * count + index)}cell]" for group in range(self.groups)]
            if self.by_cluster:
                lines.append(f"  {cells[0]} = {' + '.join(cells)};")
                continue
            lines.append(f"  const float {name}_total = {' + '.join(cells)};")
            if self.in_partials:
                row = f"static_cast<long long>(blockIdx.x) * {count} * kPitch"
                lines.append(f"  partials[{row} + {self.start(index)}cell] = {name}_total;")
            else:
                lines.append(f"  atomicAdd(sums + {self.start(index)}cell, {name}_total);")
        out.lines(*lines, "}")

    def _add_blocks(self, out: SectionList) -> None:
        """The sums of all blocks of the cluster -> its partial row."""
        starts = [self.start(index) for index in range(len(self.names))]
        template = environment().get_template("cluster_partials.cu.j2")
        out.lines(*template.render(width=self.stretch_width, starts=starts).splitlines())

    @property
    def _guard(self) -> str:
        return self.b.guard

    def _add_rows_of_warp(self, out: SectionList) -> None:
        sums = [f"{name}_sum[step][i]" for name in self.names]
        out.lines(
            "// Rows that share a warp.",
            "#pragma unroll",
            "for (int step = 0; step < kSteps; ++step) {",
            "  #pragma unroll",
            "  for (int i = 0; i < kVector; ++i) {",
            "    #pragma unroll",
            "    for (int offset = kThreadsPerRow; offset < 32; offset *= 2) {",
            *(f"      {sum_} += __shfl_xor_sync(0xffffffffu, {sum_}, offset);" for sum_ in sums),
            "    }",
            "  }",
            "}",
        )
        if self.b.layout.edged:
            edges = [f"{name}_edge_sum" for name in self.names]
            out.lines(
                "#pragma unroll",
                "for (int offset = kThreadsPerRow; offset < 32; offset *= 2) {",
                *(f"  {sum_} += __shfl_xor_sync(0xffffffffu, {sum_}, offset);" for sum_ in edges),
                "}",
            )

    def _from_shared(self, out: SectionList) -> None:
        """shared_atomic: the block's row of sums, in column order."""
        out.lines(
            "__syncthreads();",
            f"for (int cell = threadIdx.x; cell < {len(self.names)} * kPitch; cell += kThreads) {{",
            "  atomicAdd(sums + cell, column_sums[cell]);",
            "}",
        )

    def _from_registers(self, out: SectionList) -> None:
        out.loop(
            Loop(
                comment="One sum per column leaves the block.",
                unroll="#pragma unroll",
                guard=self._guard,
                elem=self._leaving("{}_sum[step][i]", "i * kVectors + vector"),
                edge=self._leaving("{}_edge_sum", "edge") if self.b.layout.edged else (),
            )
        )

    def _leaving(self, sum_: str, cell: str) -> tuple[str, ...]:
        """Lines that hand one cell's sums of this block on."""
        lines = []
        for index, name in enumerate(self.names):
            value = sum_.format(name)
            if self.in_partials:
                row = f"static_cast<long long>({self.b.walker}) * {len(self.names)} * kPitch"
                lines.append(f"partials[{row} + {self.start(index)}{cell}] = {value};")
            else:
                lines.append(f"atomicAdd(sums + {self.start(index)}{cell}, {value});")
        return tuple(lines)

    @property
    def element_major(self) -> bool:
        return self.in_registers and self.b.layout.vector > 1 and not self.shifted

    def _column_of_cell(self) -> str:
        if not self.element_major:
            return "cell"
        column = "cell % kVectors * kVector + cell / kVectors"
        return f"cell < kVectors * kVector ? {column} : cell" if self.b.layout.edged else column

    @property
    def cells(self) -> str:
        """Cells of one reduction that hold a sum, one a column."""
        return "cols" if self.b.problem.any_cols else "kCols"

    def _finish_by_last(self, out: SectionList) -> None:
        lines = [
            "// The last block to arrive finishes and leaves the workspace ready for the next call.",
            "__threadfence();",
            "__shared__ bool is_last;",
            "__syncthreads();",
            "if (threadIdx.x == 0) is_last = atomicAdd(ticket, 1u) + 1 == gridDim.x;",
            "__syncthreads();",
            "if (is_last) {",
            "  __threadfence();",
            f"  for (int cell = threadIdx.x; cell < {self.cells}; cell += {self.b.schedule.threads}) {{",
        ]
        lines.append(f"    const int column = {self._column_of_cell()};")
        for index, store in enumerate(self.stores):
            name = self.names[index]
            lines.append(f"    const float {name}_total = load_cache_global(sums + {self.start(index)}cell);")
            lines.append(f"    sums[{self.start(index)}cell] = 0.0f;")
            lines += ["    " + line for line in self.write_lines(store, f"{name}_total")]
        lines += ["  }", "  if (threadIdx.x == 0) *ticket = 0;", "}"]
        out.lines(*lines)

    def _finish_by_tile(self, out: SectionList) -> None:
        text = (
            environment()
            .get_template("last_tile.cu.j2")
            .render(
                ticket_words=TICKET_BYTES // 4,
                partial_rows=f"static_cast<int>({self.b.walkers})",
                column=self._column_of_cell(),
                cells=self.cells,
                outputs=[self.write_lines(store, "total") for store in self.stores],
            )
        )
        out.lines(*text.splitlines())

    def write_lines(self, store: Store, value: str) -> list[str]:
        """Round one column's total to its stored dtype and write (or add) it."""
        tensor = store.tensor
        ctype = self.b.ctype(tensor)
        text = value
        if store.accumulate:
            text = f"element(read_default<1>({tensor} + column), 0) + {value}"
        return [
            f"Vec<{ctype}, 1> {tensor}_vec = {{}};",
            f"const float {tensor}_value[1] = {{{text}}};",
            f"pack({tensor}_vec, {tensor}_value);",
            f"write_default({tensor} + column, {tensor}_vec);",
        ]

    # ---- the second kernel -------------------------------------------------------------------------------------

    def finish_kernel(self) -> tuple[Kernel, dict[str, object]] | None:
        """The kernel that adds partial rows, and what its template prints."""
        if not self or not self.how.has_two_kernels:
            return None
        name = f"{self.b.name}_finish"
        outputs = [self.b.problem.tensor(s.tensor) for s in self.stores]
        cluster = self.b.schedule.cluster
        params = [
            *(Param(name=t.name, ctype=f"{t.dtype.ctype}*", source=Source.TENSOR, key=t.name) for t in outputs),
            Param(name="partials", ctype="const float*", source=Source.WORKSPACE),
            Param(name="blocks" if cluster > 1 else "partial_rows", ctype="int", source=Source.BLOCKS),
        ]
        layout = self.b.layout
        columns = next((c for c in (32, 16) if self.pitch // c * len(outputs) >= FINISH_BLOCKS), 8)
        dependent = self.b.schedule.dependent_launch is not DependentLaunch.OFF
        launch = Launch(threads=FINISH_THREADS, blocks=self.pitch // columns * len(outputs), dependent=dependent)
        view: dict[str, object] = {
            "name": name,
            "params": params,
            "cols": self.b.problem.cols,
            "pitch": self.pitch,
            "vector": layout.vector,
            "vectors": layout.vectors,
            "threads": FINISH_THREADS,
            "dependent": dependent,
            "cluster": cluster,
            "triggers": self.b.schedule.dependent_launch is DependentLaunch.START,
            "declared": [self.b.declare(param) for param in params],
            "columns": columns,
            "column": self._column_of_cell(),
            "outputs": [{"name": s.tensor, "lines": self.write_lines(s, "total")} for s in self.stores],
        }
        return Kernel(name=name, params=tuple(params), launch=launch), view
