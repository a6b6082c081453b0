"""Types of a Config: in what order blocks take rows, and how values of rows are divided by the number of columns."""

from __future__ import annotations

from normgen.codegen.printer import ATOM, Printer
from normgen.codegen.statements import TypeSetting, type_setting
from normgen.knobs import Division, RowOrder
from normgen.problem.problem import Problem
from normgen.program.ir import COLS
from normgen.spec.formula import Binary, Call, Expression, Name

ORDERS = {RowOrder.ASCENDING: "FirstRowsFirst", RowOrder.DESCENDING: "LastRowsFirst"}
DIVISIONS = {Division.IEEE: "IeeeDivision", Division.REMAINDER: "RemainderDivision"}
# What their functions are: library/first_rows_first.cuh, last_rows_first.cuh, ieee_division.cuh, remainder_division.cuh
_TILE = {RowOrder.ASCENDING: "{0}", RowOrder.DESCENDING: "({1} - {0})"}
_QUOTIENT = {Division.IEEE: "({0} / {1})", Division.REMAINDER: "divide_by_remainder({0}, {1}, 1.0f / {1})"}


def order_setting(order: RowOrder) -> TypeSetting:
    return type_setting("Order", ORDERS[order], {"Order::tile": _TILE[order]})


def division_setting(problem: Problem, division: Division) -> TypeSetting:
    """Of a length that is a power of two no quotient rounds, and all are divisions."""
    division = Division.IEEE if problem.divides_exactly else division
    return type_setting("Division", DIVISIONS[division], {"Division::of": _QUOTIENT[division]})


class RowPrinter(Printer):
    """Prints values of rows; how one is divided by the number of columns is the Config's."""

    def _print(self, tree: Expression) -> tuple[str, int]:
        match tree:
            case Binary(operator="/", left=value, right=Name(name=COLS.name)):
                return self._divided(value), ATOM
            case Call(function="divide_by_remainder", args=(value, Name(name=COLS.name), _)):
                return self._divided(value), ATOM
        return super()._print(tree)

    def _divided(self, value: Expression) -> str:
        return f"Division::of({self.text(value)}, {self.names[COLS.name]})"
