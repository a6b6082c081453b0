"""What the ways to sum over rows share: names, cells, and how one column's sum, or a total, is written.

A thread meets the same columns in every row of its block, so that it adds into registers of its own while the
block walks its rows; the block then adds its row groups and hands one float32 sum per column on. Sums are stored
element-major (cell = i * kVectors + vector): neighbouring lanes own neighbouring vectors, so that their accesses
are coalesced and meet no bank twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from normgen.codegen.access import Access, Site
from normgen.codegen.module import KernelEntry, Param
from normgen.codegen.statements import Do, If, Let, Statement
from normgen.codegen.transport.transport import Slots
from normgen.program.ir import Store
from normgen.schedule.plan import Sums

PITCH = "(kCols + 31) / 32 * 32"  # as schedule/plan.py's sums_pitch


class Cells:
    """Where the sums of a kernel's column outputs lie, and which totals it has.

    Of an output with a value for each group of columns they are those of columns, too, until somebody adds the blocks.
    """

    def __init__(self, access: Access, sums: Sums) -> None:
        self.access = access
        self.plan = access.plan
        self.sums = sums
        self.stores = sums.stores
        self.names = [store.tensor for store in sums.stores]
        self.totals = sums.totals
        self.shared = Slots(access).behind  # where a block's sums lie in shared memory

    def start(self, index: int) -> str:
        """Offset of the sums of column output `index`, ready to be added to a column."""
        pitch = "cols" if self.plan.problem.any_cols else "kPitch"
        return "" if index == 0 else f"{pitch} + " if index == 1 else f"{index} * {pitch} + "

    @property
    def line(self) -> str:
        """Offset of the sums of batch `batch` in the workspace, ready to be added to."""
        return f"{self.of_lines('batch')} + " if self.sums.by_batch else ""

    def of_lines(self, lines: str) -> str:
        """The cells that so many batches have."""
        pitch = "cols" if self.plan.problem.any_cols else "kPitch"
        return f"static_cast<long long>({lines}) * {len(self.stores)} * {pitch}"

    @property
    def batched(self) -> list[Store]:
        """The stores that have a sum for each batch."""
        return [store for store in self.stores if store.kind.by_batch]

    @property
    def vector(self) -> int:
        """Columns of a vector whose sums lie kCols / vector cells apart; 1: each column's sum lies in its own cell."""
        apart = self.sums.in_registers and not self.plan.cut.shifted
        return self.plan.cut.vector if apart else 1

    @property
    def column_of_cell(self) -> str:
        return self.column("kVector", "kVectors") if self.vector > 1 else "cell"

    def column(self, vector: str, vectors: str) -> str:
        """The column of a cell by the names of two constants: columns of a vector, and whole vectors."""
        column = f"cell % {vectors} * {vector} + cell / {vectors}"
        edged = self.plan.cut.edged and not self.plan.cut.shifted
        return f"cell < {vectors} * {vector} ? {column} : cell" if edged else column

    @property
    def by_group(self) -> list[tuple[int, Store]]:
        """The stores, with their numbers, that have a sum for each group of columns."""
        return [(index, store) for index, store in enumerate(self.stores) if store.group]

    @property
    def by_column(self) -> list[tuple[int, Store]]:
        """Those that have one for each column."""
        return [(index, store) for index, store in enumerate(self.stores) if not store.group]

    def write(self, store: Store, value: str) -> list[Statement]:
        """Round one total to its stored dtype and write (or add) it: that of batch `batch`, if it has any.

        It is that of column `column`, or of group `group`.
        """
        to, at = store.tensor, "group" if store.group else "column"
        if store.kind.by_batch:
            to = f"{to} + batch * {to}_pitch"
        text = f"element(read<1>({to} + {at}), 0) + {value}" if store.accumulate else value
        written = Do(f"write_element({to}, {at}, {text})")
        return [If("batch < batches", (written,), alone=True)] if store.kind.by_batch else [written]

    def write_total(self, store: Store, value: str) -> Statement:
        """Round a total to its stored dtype and write (or add) it."""
        return Do(self.access.write_row_value(store.tensor, "0", value, accumulate=store.accumulate))

    def write_totals(self, index: str, value: str) -> list[Statement]:
        """As `write_total`, of the total with that number."""
        return [If(f"{index} == {i}", (self.write_total(s, value),)) for i, s in enumerate(self.totals)]


@dataclass(frozen=True, kw_only=True)
class SecondKernel:
    """The kernel that finishes a call, and what it does."""

    kernel: KernelEntry
    comment: str
    declared: tuple[str, ...]  # parameters
    body: list[Statement]


class Finish:
    """Who adds the sums of all blocks, and what a block hands on. A technique overrides what it does."""

    def __init__(self, cells: Cells) -> None:
        self.cells = cells

    def params(self) -> list[Param]:
        """Its part of the workspace."""
        raise NotImplementedError

    def constants(self) -> list[Let]:
        return []

    def target(self, walker: str) -> list[Statement]:
        """What `hand_on` writes to; `walker` is the number of the block's partial row."""
        return []

    def hand_on(self, index: int, cell: str, value: str) -> Statement:
        """Give a block's sum of one cell away."""
        raise NotImplementedError

    def target_of_totals(self) -> list[Statement]:
        """What `hand_on_total` writes to."""
        return []

    def hand_on_total(self, index: str, value: str) -> Statement:
        """Give a block's sum for one total away."""
        raise NotImplementedError

    def epilogue(self) -> list[Statement]:
        """After the row loop."""
        return []

    def second_kernel(self, name: str) -> SecondKernel | None:
        """The kernel of that name that finishes the call."""
        return None


class Gather:
    """Where a block adds the terms of its rows. A technique overrides what it does."""

    def __init__(self, cells: Cells, finish: Finish) -> None:
        self.cells = cells
        self.access = cells.access
        self.plan = cells.plan
        self.sums = cells.sums
        self.finish = finish

    def constants(self) -> list[Let]:
        return []

    def prologue(self) -> list[Statement]:
        """Before the row loop."""
        return []

    def add(self, index: int, term: str, site: Site) -> Statement:
        """What one element adds to the sum of column output `index`."""
        raise NotImplementedError

    def epilogue(self) -> list[Statement]:
        """After the row loop."""
        return []
