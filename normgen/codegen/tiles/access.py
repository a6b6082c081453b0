"""Single accesses of a contraction's kernel: how long its axes are, where an element of a tensor lies."""

from __future__ import annotations

from collections.abc import Mapping

from normgen.codegen.access import Tensors, operand
from normgen.codegen.module import Source
from normgen.codegen.reductions import CONSTANTS
from normgen.codegen.statements import Do, If, Statement
from normgen.program.functions import COL, ROW, TERM
from normgen.program.ir import COLS, INNER, Store
from normgen.schedule.tiles.plan import TilePlan

FIXED = {"cols": "kCols", "inner": "kInner"}  # constants of sizes that are known when the text is compiled


class TileAccess(Tensors):
    """The names and addresses of one kernel. An element's place is said as axis -> the text of its index."""

    def __init__(self, plan: TilePlan) -> None:
        super().__init__(plan.problem)
        self.plan = plan

    def letter(self, axis: str) -> str:
        """M, N or K: how constants of an axis end."""
        cut = self.plan.cut
        return {cut.m: "M", cut.n: "N", cut.k: "K"}[axis]

    def size(self, axis: str) -> str:
        return FIXED[axis] if self.plan.is_fixed(axis) else axis

    def begin(self, axis: str) -> str:
        """Where a block's part of an axis starts: rows begin with those of its batch."""
        if axis == self.plan.cut.k and self.plan.parts > 1:
            return "k_begin"
        return "rows_begin" if axis == "rows" and self.plan.in_batches else "0"

    def end(self, axis: str) -> str:
        """Where it ends."""
        if axis == self.plan.cut.k and self.plan.parts > 1:
            return "k_end"
        return "rows_end" if axis == "rows" and self.plan.in_batches else self.size(axis)

    def stop(self, axis: str) -> str:
        """Where the tiles end that are read, of the axis that is summed."""
        return "k_stop" if self.plan.last is not None else self.end(axis)

    def inside(self, at: Mapping[str, str]) -> str:
        """Whether a place lies within the axes; of an axis of whole tiles the compiler knows it."""
        tests = []
        for axis, index in at.items():
            test = f"{index} < {self.end(axis)}"
            tests.append(f"kWhole{self.letter(axis)} || {test}" if self.plan.is_fixed(axis) else test)
        return both(*tests)

    def address(self, tensor: str, at: Mapping[str, str]) -> str:
        """A pointer to the element at a place; what the tensor does not vary along is not asked for."""
        use = self.problem.tensor(tensor)
        if len(use.axes) < 2:
            return f"{use.memory} + {at[use.axes[0]]}" if use.axes else use.memory
        line, element = (at[axis] for axis in use.axes[-2:])
        line = operand(line)
        element = element if use.dtype.packed == 1 else f"{element} / {use.dtype.packed}"
        if use.kind.by_batch:
            line = f"(static_cast<long long>(batch) * {self.size(use.axes[1])} + {line})"
        return f"{use.memory} + {line} * {use.memory}_pitch + {element}"

    def read(self, tensor: str, at: Mapping[str, str], width: str, *, hint: str = "", pointer: str = "") -> str:
        """A vector from that place on, to which a pointer may be known."""
        under = "read_first" if self.problem.tensor(tensor).under else "read"
        return self.unless_null(tensor, f"{under}<{width}{hint}>({pointer or self.address(tensor, at)})", width)

    def vec(self, tensor: str, width: str) -> str:
        return f"Vec<{self.ctype(tensor)}, {width}>"

    def numbers(self, at: Mapping[str, str]) -> dict[str, str]:
        """The names of what every expression may read beside values: sizes, and the indices of a place."""
        sizes = {COLS.name: self.size("cols"), INNER.name: self.size("inner")}
        numbered = ((ROW.name, "rows"), (COL.name, "cols"), (TERM.name, "inner"))
        indices = {name: at[axis] for name, axis in numbered if axis in at}
        return CONSTANTS | {name: name for name in self.plan.program.scalars} | self.scalars | sizes | indices

    @property
    def scalars(self) -> dict[str, str]:
        """Numbers that a tensor holds one of."""
        return {load.name: f"{load.name}_value" for load in self.plan.program.loads if not load.kind.axes}


def read_one(access: TileAccess, tensor: str, at: Mapping[str, str]) -> str:
    """The element at a place as a number."""
    return f"element({access.read(tensor, at, '1')}, 0)"


def write_one(access: TileAccess, store: Store, at: Mapping[str, str], value: str) -> tuple[Statement, ...]:
    """The element at a place is written, or added to."""
    value = f"{read_one(access, store.tensor, at)} + {value}" if store.accumulate else value
    write: Statement = Do(f"write_row_value({access.address(store.tensor, at)}, {value})")
    if access.problem.tensor(store.tensor).nullable:
        write = If(f"{store.tensor} != nullptr", (write,), alone=True)
    return access.if_wanted(store.tensor, write)


def both(*tests: str) -> str:
    """All of the conditions, of which some are made of two."""
    return " && ".join(f"({test})" if "||" in test and len(tests) > 1 else test for test in tests)


SOURCES = {"rows": Source.ROWS, "cols": Source.COLS, "inner": Source.INNER}
