"""Reductions over groups of neighbouring columns, within a look: a group is owned by neighbouring lanes of a warp.

Per vector of a thread, in the walk that needs them: its elements enter the group's value (`peek`), the lanes of the
group combine theirs (`move`), and the elements are computed with the result. No barrier takes part. A reduction of
elements that are computed with values of groups, such as a variance, waits for these: its round is a part of `move`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from normgen.codegen.access import Access
from normgen.codegen.printer import Printer
from normgen.codegen.reductions import CONSTANTS, single_step
from normgen.codegen.statements import Do, If, Let, Set, Statement, constant, setting
from normgen.codegen.walk import each_element
from normgen.program.ir import Map, Reduce, used_names, value_alone
from normgen.schedule.plan import groups_are_warps, in_pairs

_COMBINE = {"sum": "Sum", "max": "Maximum", "min": "Minimum", "absmax": "Maximum"}


@dataclass(frozen=True, kw_only=True)
class GroupWalk:
    """What a walk does for its groups: `before`, `move` and `tail` once per vector, `peek` once per element.

    kept  values of elements that entered a group's, and that are read again: computed once. A compiler computes them
          twice where asm takes part: of each element of silu_mul_to_fp8_group an exponential and a reciprocal.
    """

    before: tuple[Statement, ...] = ()
    peek: tuple[Statement, ...] = ()
    move: tuple[Statement, ...] = ()
    tail: tuple[Statement, ...] = ()
    kept: tuple[str, ...] = ()


class Groups:
    """The reductions over groups of one kernel."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.plan = access.plan

    def constants(self) -> list[Let]:
        group = self.plan.problem.spec.group
        if not group:
            return []
        stride = "groups from one vector of a thread to its next"
        return [
            setting("kGroup", group, "columns"),
            constant("kGroupVectors", "kGroup / kVector", "threads that own one"),
            constant("kGroupStride", "kThreadsPerRow / kGroupVectors", stride),
        ]

    def thread(self) -> list[Let]:
        """Which group a thread's first vector is of: unsigned quotients are shifts, and found once for all steps."""
        if not self.plan.group_stores:
            return []
        thread = "static_cast<unsigned>(row_thread)"
        return [
            Let("const int", "own_group", f"{thread} / kGroupVectors", "the group of a thread's first vector"),
            Let("const bool", "leads_group", f"{thread} % kGroupVectors == 0", "it writes what its group has"),
        ]

    def walk(
        self,
        roots: set[str],
        elements: Callable[[set[str], list[str]], list[Statement]],
        waiting: Collection[str],
        vectors: Mapping[str, str],
        *,
        is_last: bool,
    ) -> GroupWalk:
        """For the values in `roots`; the last walk stores what is stored.

        `elements` computes values of one element, given those that were kept; `waiting` are those of earlier looks, and
        `vectors` has the accesses that hold what is read.
        """
        problem, s = self.plan.problem, self.plan.schedule
        names, printer = self.access.names, Printer(self.access.names)
        before: list[Statement] = []
        passes: list[list[Statement]] = []
        known, kept = list(waiting), list[str]()
        rounds = self.plan.group_rounds(roots)

        def bits(r: Reduce) -> str | None:
            """The vector whose pairs are compared; None where that waits as floats alone, or elements are."""
            return vectors.get(value_alone(r.args[0])) if in_pairs(problem, s, r) else None

        by_element = [[r for r in found if isinstance(r, Reduce) and not bits(r)] for found in rounds]
        wanted = [{n for r in reduces for n in used_names(r)} for reduces in by_element]
        for number, statements in enumerate(rounds):
            peek = elements(wanted[number], known) if by_element[number] else []
            computed = {m.name for m in self.plan.elementwise(wanted[number], known).maps} & wanted[number]
            later = roots.union(*wanted[number + 1 :])
            for name in (m.name for m in self.plan.elementwise(later, known).maps if m.name in computed):
                known.append(name)
                kept.append(name)
                before.append(Do(f"float {name}_kept[kVector]"))
                peek.append(Set(f"{name}_kept[i]", names[name]))
            move: list[Statement] = []
            prefixed = len(by_element[number]) > 1
            for statement in statements:
                if isinstance(statement, Map):
                    move.append(Let("const float", names[statement.name], printer.text(statement.expr)))
                    continue
                name = names[statement.names[0]]
                if vector := bits(statement):
                    move.append(Do(f"float {name} = largest_magnitude({vector})"))
                else:
                    before.append(Do(f"float {name} = {Printer(CONSTANTS).text(statement.monoid.identity[0])}"))
                    peek += single_step(statement, name, names, prefix=f"{name}_" if prefixed else "")
                move.append(Set(name, self._combined(statement.monoid.name, name)))
            passes += [peek, move]
        stores = tuple(self.stores()) if is_last else ()
        if not passes:
            return GroupWalk(tail=stores)
        others = [
            [*([each_element(part)] if part else []), *after]
            for part, after in zip(passes[2::2], passes[3::2], strict=True)
        ]
        moves = (*passes[1], *(s for part in others for s in part))
        return GroupWalk(before=tuple(before), peek=tuple(passes[0]), move=moves, tail=stores, kept=tuple(kept))

    def _combined(self, monoid: str, name: str) -> str:
        """The value of a whole group, of what its lanes have."""
        problem, s = self.plan.problem, self.plan.schedule
        if s.reduce_with.is_short and monoid == "absmax" and groups_are_warps(problem, s):
            return f"largest_of_warp({name})"
        together = "false" if problem.any_cols else "kEven"
        return f"reduce_group<kGroupVectors, {_COMBINE[monoid]}, {together}>({name})"

    def stores(self) -> list[Statement]:
        """The first lane of a group writes what is one value for it."""
        group = "own_group + step * kGroupStride"
        writes = [
            Do(self.access.write_group_value(store.tensor, group, self.access.names[store.value]))
            for store in self.plan.group_stores
        ]
        who = "leads_group" + (" && active" if self.plan.rows_beside else "")
        return [If(who, tuple(writes))] if writes else []
