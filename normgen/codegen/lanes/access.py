"""Single accesses of a thread to its rows side by side: row `row + i` is slot i of its vectors."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from normgen.codegen.access import Access
from normgen.program.ir import Column, Load
from normgen.schedule.lanes.plan import LanePlan

AT = "static_cast<long long>({}) * lanes"  # of a column, elements behind the row's first one


class LaneAccess(Access):
    """The names and addresses of one kernel; what a row has of its own stands in an array of `kVector`."""

    plan: LanePlan

    def __init__(self, plan: LanePlan) -> None:
        super().__init__(plan)
        self.states = [replace(state, variable=f"{state.variable}[i]", added=()) for state in self.states]

    @cached_property
    def names(self) -> dict[str, str]:
        """As those of rows; a value of a column is read once for all rows of a thread."""
        names, kinds = dict(super().names), self.plan.kinds
        columns = {name: f"{name}_c" for name, kind in kinds.items() if kind.by_col and not kind.by_row}
        return names | columns

    def row_name(self, value: str) -> str:
        return f"{super().row_name(value)}[i]"

    def array(self, value: str) -> str:
        """The array that a row value stands in."""
        return self.names[value].removesuffix("[i]")

    @property
    def valid_row(self) -> str:
        return "(row + i)"

    def read_vector(self, tensor: str, *, hinted: bool = True) -> str:
        """An element of each of the thread's rows, in column `col`."""
        read = "read_first" if self.problem.tensor(tensor).under else "read"
        text = f"{read}<kVector{', Load' if hinted else ''}>({tensor}_row + at)"
        return self.unless_null(tensor, text, "kVector")

    def write_vector(self, tensor: str) -> str:
        return f"write<Store>({self.problem.tensor(tensor).memory}_row + at, {tensor}_vec)"

    def read_column(self, tensor: str) -> str:
        """A parameter's value in column `col`."""
        return self.unless_null(tensor, f"element(read<1>({tensor} + col), 0)")

    def read_of_row(self, load: Load) -> str:
        """One value of row `row + i`: its own, or that of one of its columns."""
        if not load.of:
            return self.read_row_value(load.name, self.valid_row)
        by_row = self.problem.tensor(load.of).kind.by_row
        if load.index:
            start, apart = (f"{load.of}_row + i", "lanes") if by_row else (load.of, "1")
            return self.unless_null(load.of, f"taken_apart({start}, {self.names[load.index]}, kCols, {apart})")
        column = {Column.FIRST: "0", Column.MIDDLE: "kCols / 2", Column.LAST: "kCols - 1"}[load.column]
        place = f"{load.of}_row + {AT.format(column)} + i" if by_row else f"{load.of} + {column}"
        return self.unless_null(load.of, f"element(read<1>({place}), 0)")
