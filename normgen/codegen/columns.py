"""Column reductions (dweight, dbias): sums over all rows, taken in the same pass over the data as dx.

A thread meets the same columns in every row of its block, so that it adds into registers of its own while the
block walks its rows; the block then adds its row groups and hands one float32 sum per column on:

    register_atomic       atomicAdd into the workspace; the last block converts, and zeroes the workspace again
    partials_two_kernels  one partial row per block; a second kernel adds them in a fixed order
    partials_last_block   one partial row per block; the last block to arrive adds them in a fixed order
    shared_atomic         as register_atomic, but rows are added to a float32 row in shared memory by atomics
    atomic                every row adds straight to the workspace (the plain kernel of the literature)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from normgen.codegen.module import Kernel, Launch, Param, Source
from normgen.codegen.view import Loop, SectionList
from normgen.program.ir import Reduce, Store
from normgen.spec import Kind

if TYPE_CHECKING:
    from normgen.codegen.builder import KernelBuilder

DETERMINISTIC = ("partials_two_kernels", "partials_last_block")
FINISH_LANES = 32  # threads of the finishing kernel that share a column
FINISH_COLUMNS = 32  # columns of one finishing block: a warp reads 128 bytes
TICKET_BYTES = 128  # the arrival counter has a line of its own


class ColumnSums:
    """The column reductions of one kernel: declarations, element lines, epilogue, finishing kernel, workspace."""

    def __init__(self, builder: KernelBuilder) -> None:
        self.b = builder
        self.reduces: tuple[Reduce, ...] = builder.program.col_reduces
        self.how = builder.schedule.columns
        self.pitch = -(-builder.layout.vectors * builder.layout.vector // FINISH_COLUMNS) * FINISH_COLUMNS

    def __bool__(self) -> bool:
        return bool(self.reduces)

    @property
    def names(self) -> list[str]:
        return [r.names[0] for r in self.reduces]

    @property
    def stores(self) -> list[Store]:
        by_value = {s.value: s for s in self.b.program.stores if s.kind is Kind.COL}
        return [by_value[name] for name in self.names]

    @property
    def in_registers(self) -> bool:
        return self.how in ("register_atomic", *DETERMINISTIC)

    @property
    def in_shared(self) -> bool:
        """Whether the block adds up in shared memory at all."""
        side_by_side = self.in_registers and self.b.schedule.rows_per_block > 1
        return bool(self) and (self.how == "shared_atomic" or side_by_side)

    @property
    def by_ticket(self) -> bool:
        """Whether the last block to arrive finishes."""
        return self.how != "partials_two_kernels"

    @property
    def shared_bytes(self) -> int:
        return len(self.reduces) * self.pitch * 4 if self.in_shared else 0

    @property
    def fixed_bytes(self) -> int:
        if not self:
            return 0
        sums = 0 if self.how in DETERMINISTIC else len(self.reduces) * self.pitch * 4
        return sums + (TICKET_BYTES if self.by_ticket else 0)

    @property
    def column_bytes(self) -> int:
        """What of the fixed bytes each column costs when cols is a run-time value."""
        return len(self.reduces) * 4 if self.b.problem.any_cols else 0

    @property
    def block_bytes(self) -> int:
        return len(self.reduces) * self.pitch * 4 if self and self.how in DETERMINISTIC else 0

    def params(self) -> list[Param]:
        if not self:
            return []
        if self.how == "partials_two_kernels":
            return [Param(name="partials", ctype="float*", source=Source.WORKSPACE)]
        pointers = [Param(name="ticket", ctype="unsigned*", source=Source.WORKSPACE)]
        name = "partials" if self.how in DETERMINISTIC else "sums"
        return [*pointers, Param(name=name, ctype="float*", source=Source.WORKSPACE, offset=TICKET_BYTES)]

    def constants(self) -> list[tuple[str, str, str]]:
        if not self or self.b.problem.any_cols:
            return []
        return [("kPitch", str(self.pitch), "columns of a row of float32 sums, padded")]

    def start(self, index: int) -> str:
        """Offset of the sums of reduction `index`, ready to be added to a column."""
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
            )
        if self.in_shared:
            offset = self.b.held_shared_bytes
            out.lines(f"float* column_sums = reinterpret_cast<float*>(dynamic_shared() + {offset});")
        if self.how == "shared_atomic":
            count = f"{len(self.names)} * kPitch"
            out.lines(
                f"for (int i = threadIdx.x; i < {count}; i += kThreads) column_sums[i] = 0.0f;",
                "__syncthreads();",
            )

    def elem_lines(self, printed: dict[str, str]) -> list[str]:
        """What one element adds; `printed` maps a column reduction to the text of its argument."""
        lines = []
        for index, name in enumerate(self.names):
            text = printed[name]
            if self.in_registers:
                line = f"{name}_sum[step][i] += {text};"
            else:
                base = "column_sums" if self.how == "shared_atomic" else "sums"
                column = "column + i" if self.b.layout.partial else "vector * kVector + i"
                line = f"atomicAdd({base} + {self.start(index)}{column}, {text});"
            lines.append(f"if (active) {line}" if self.b.idle_rows else line)
        return lines

    # ---- after the row loop ------------------------------------------------------------------------------------

    def epilogue(self, out: SectionList) -> None:
        if not self:
            return
        if self.in_registers and self.in_shared:
            self._combine_slots(out)
        elif self.how == "shared_atomic":
            out.lines("__syncthreads();")
        if self.in_shared:
            self._from_shared(out)
        elif self.in_registers:
            self._from_registers(out)
        if self.by_ticket:
            self._finish_by_last(out)

    def _combine_slots(self, out: SectionList) -> None:
        out.lines(
            "// The rows side by side in this block add up in shared memory, one after another: a fixed order.",
            "for (int turn = 0; turn < kRowsPerBlock; ++turn) {",
            "  if (turn == slot) {",
            *("    " + line for line in self._slot_lines()),
            "  }",
            "  __syncthreads();",
            "}",
        )

    def _slot_lines(self) -> list[str]:
        lines = ["#pragma unroll", "for (int step = 0; step < kSteps; ++step) {"]
        lines.append("  const int vector = lane + step * kThreadsPerRow;")
        body = ["#pragma unroll", "for (int i = 0; i < kVector; ++i) {"]
        for index, name in enumerate(self.names):
            cell = f"column_sums[{self.start(index)}vector * kVector + i]"
            body.append(f"  {cell} = turn == 0 ? {name}_sum[step][i] : {cell} + {name}_sum[step][i];")
        body.append("}")
        if self.b.layout.ragged:
            body = ["if (vector < kVectors) {", *("  " + line for line in body), "}"]
        return [*lines, *("  " + line for line in body), "}"]

    def _target(self, index: int) -> str:
        """Start of the float32 row that block sums of reduction `index` go to."""
        if self.how in DETERMINISTIC:
            return f"partials + (static_cast<long long>(blockIdx.x) * {len(self.names)} + {index}) * kPitch"
        return f"sums + {self.start(index)}".removesuffix(" + ")

    def _from_shared(self, out: SectionList) -> None:
        columns = "kVectors * kVector"
        lines = [f"for (int column = threadIdx.x; column < {columns}; column += kThreads) {{"]
        for index in range(len(self.names)):
            value = f"column_sums[{self.start(index)}column]"
            if self.how in DETERMINISTIC:
                lines.append(f"  ({self._target(index)})[column] = {value};")
            else:
                lines.append(f"  atomicAdd({self._target(index)} + column, {value});")
        out.lines(*lines, "}")

    def _from_registers(self, out: SectionList) -> None:
        head: list[str] = []
        elem: list[str] = []
        for index, name in enumerate(self.names):
            if self.how in DETERMINISTIC:
                head.append(f"Vec<float, kVector> {name}_vec;")
                head.append(f"pack({name}_vec, {name}_sum[step]);")
                head.append(f"write_default({self._target(index)} + vector * kVector, {name}_vec);")
            else:
                elem.append(f"atomicAdd({self._target(index)} + vector * kVector + i, {name}_sum[step][i]);")
        guard = "vector < kVectors" if self.b.layout.ragged else ""
        out.loop(
            Loop(
                comment="One sum per column leaves the block.",
                unroll="#pragma unroll",
                guard=guard,
                head=tuple(head),
                elem=tuple(elem),
            )
        )

    def _finish_by_last(self, out: SectionList) -> None:
        b = self.b
        lines = [
            "// The last block to arrive finishes and leaves the workspace ready for the next call.",
            "__threadfence();",
            "__shared__ bool is_last;",
            "__syncthreads();",
            "if (threadIdx.x == 0) is_last = atomicAdd(ticket, 1u) + 1 == gridDim.x;",
            "__syncthreads();",
            "if (is_last) {",
            "  __threadfence();",
            f"  for (int column = threadIdx.x; column < {b.cols}; column += {b.schedule.threads}) {{",
        ]
        for index, store in enumerate(self.stores):
            name = self.names[index]
            if self.how in DETERMINISTIC:
                lines += [
                    f"    float {name}_total = 0.0f;",
                    "    for (int block = 0; block < gridDim.x; ++block) {",
                    f"      {name}_total += load_cache_global("
                    f"partials + (static_cast<long long>(block) * {len(self.names)} + {index}) * kPitch + column);",
                    "    }",
                    *("    " + line for line in self.write_lines(store, f"{name}_total")),
                ]
            else:
                cell = f"({self._target(index)})[column]" if index else "sums[column]"
                lines.append(f"    const float {name}_total = load_cache_global({self._target(index)} + column);")
                lines.append(f"    {cell} = 0.0f;")
                lines += ["    " + line for line in self.write_lines(store, f"{name}_total")]
        lines += ["  }", "  if (threadIdx.x == 0) *ticket = 0;", "}"]
        out.lines(*lines)

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
        if not self or self.how != "partials_two_kernels":
            return None
        name = f"{self.b.name}_finish"
        outputs = [self.b.problem.tensor(s.tensor) for s in self.stores]
        params = [
            *(Param(name=t.name, ctype=f"{t.dtype.ctype}*", source=Source.TENSOR, key=t.name) for t in outputs),
            Param(name="partials", ctype="const float*", source=Source.WORKSPACE),
            Param(name="partial_rows", ctype="int", source=Source.BLOCKS),
        ]
        cols = self.b.problem.cols
        launch = Launch(threads=FINISH_COLUMNS * FINISH_LANES, blocks=-(-cols // FINISH_COLUMNS) * len(outputs))
        view: dict[str, object] = {
            "name": name,
            "params": params,
            "cols": cols,
            "pitch": self.pitch,
            "lanes": FINISH_LANES,
            "columns": FINISH_COLUMNS,
            "outputs": [{"name": s.tensor, "lines": self.write_lines(s, "total")} for s in self.stores],
        }
        return Kernel(name=name, params=tuple(params), launch=launch), view
