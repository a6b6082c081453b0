"""Reductions over groups of neighbouring columns, within a look: a group is owned by neighbouring lanes of a warp.

Per vector of a thread, in the walk that needs them: its elements enter the group's value (`peek`), the lanes of the
group combine theirs (`move`), and the elements are computed with the result. No barrier takes part. A reduction of
elements that are computed with values of groups, such as a variance, waits for these: its round is a part of `move`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from normgen.codegen.access import Access
from normgen.codegen.printer import Printer
from normgen.codegen.reductions import CONSTANTS, single_step
from normgen.codegen.statements import Do, If, Let, Statement, constant, setting
from normgen.codegen.walk import each_element
from normgen.program.ir import Map, Reduce, used_names

_COMBINE = {"sum": "Sum", "max": "Maximum", "min": "Minimum", "absmax": "Maximum"}


@dataclass(frozen=True, kw_only=True)
class GroupWalk:
    """What a walk does for its groups: `before` and `move` once per vector, `peek` once per element between them."""

    before: tuple[Statement, ...] = ()
    peek: tuple[Statement, ...] = ()
    move: tuple[Statement, ...] = ()


class Groups:
    """The reductions over groups of one kernel."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.plan = access.plan

    def constants(self) -> list[Let]:
        group = self.plan.problem.spec.group
        if not group:
            return []
        return [
            setting("kGroup", group, "columns"),
            constant("kGroupVectors", "kGroup / kVector", "lanes that own one"),
        ]

    def walk(self, roots: set[str], elements: Callable[[set[str]], list[Statement]], *, is_last: bool) -> GroupWalk:
        """For the values in `roots`; `elements` computes values of one element. The last walk stores what is stored."""
        names, printer = self.access.names, Printer(self.access.names)
        before: list[Statement] = []
        passes: list[list[Statement]] = []
        for statements in self.plan.group_rounds(roots):
            peek = elements({n for r in statements if isinstance(r, Reduce) for n in used_names(r)})
            move: list[Statement] = []
            for statement in statements:
                if isinstance(statement, Map):
                    move.append(Let(f"const float {names[statement.name]}", printer.text(statement.expr)))
                    continue
                name = names[statement.names[0]]
                before.append(Do(f"float {name} = {Printer(CONSTANTS).text(statement.monoid.identity[0])}"))
                peek += single_step(statement, name, names)
                combine = _COMBINE[statement.monoid.name]
                move.append(Do(f"{name} = reduce_group<kGroupVectors, {combine}>({name})"))
            passes += [peek, move]
        if not passes:
            return GroupWalk(move=tuple(self.stores()) if is_last else ())
        later = [[each_element(part), *after] for part, after in zip(passes[2::2], passes[3::2], strict=True)]
        ends = self.stores() if is_last else []
        return GroupWalk(
            before=tuple(before), peek=tuple(passes[0]), move=(*passes[1], *(s for part in later for s in part), *ends)
        )

    def stores(self) -> list[Statement]:
        """The first lane of a group writes what is one value for it."""
        writes = [
            Do(self.access.write_group_value(store.tensor, "vector / kGroupVectors", self.access.names[store.value]))
            for store in self.plan.group_stores
        ]
        who = "vector % kGroupVectors == 0" + (" && active" if self.plan.rows_beside else "")
        return [If(who, tuple(writes))] if writes else []
