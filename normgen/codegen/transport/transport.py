"""How rows reach the threads: what every technique offers, and the slots of shared memory that several use."""

from __future__ import annotations

from normgen.codegen.access import EDGE, Access
from normgen.codegen.view import SectionList
from normgen.program.ir import Load
from normgen.schedule.plan import Place


class Transport:
    """One way for a row to reach its threads. A technique overrides what it does; the rest is nothing.

    A kernel calls in this order: `constants`, `shared_lines`, `pointer_lines`, `prologue`; then for each row `start`,
    `arrive` (a hybrid row's rest within its first look), `after_first_look`, `after_last_look`.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self.plan = access.plan
        self.slots = Slots(access)

    def constants(self) -> list[tuple[str, str, str]]:
        return self.slots.constants()

    def shared_lines(self) -> tuple[str, ...]:
        return ()

    def pointer_lines(self) -> list[str]:
        return self.slots.pointer_lines()

    def prologue(self, out: SectionList) -> None:
        """Before the row loop."""

    def start_fetching(self, out: SectionList) -> None:
        """Before the row loop, after everything that other parts set up: the first row to registers."""

    def start(self, out: SectionList) -> None:
        """The row is asked for, or read."""

    def arrive(self, out: SectionList) -> None:
        """The row, or the part of it that waits in shared memory, is there."""

    def after_first_look(self, out: SectionList) -> None:
        pass

    def after_last_look(self, out: SectionList) -> None:
        pass

    def row_value(self, load: Load) -> str:
        """The text of a value of the row that is read with it."""
        return f"{load.name}[{self.access.valid_row}]"

    def slot(self, tensor: str) -> str:
        """Address of this thread's slot of `step`."""
        return self.slots.of(tensor)


class Slots:
    """The places of a thread's vectors in shared memory: every thread has its own, so that no look needs a barrier."""

    def __init__(self, access: Access, *, by_row: bool = False) -> None:
        self.access = access
        self.plan = access.plan
        self.by_row = by_row  # rows side by side lie one after another, not thread by thread

    @property
    def steps(self) -> str:
        """Slots of a thread in one row tile."""
        return "kSlotSteps" if self.plan.is_hybrid else "kSteps"

    @property
    def step(self) -> str:
        return "(step - kHeldSteps)" if self.plan.is_hybrid else "step"

    def of(self, tensor: str) -> str:
        staged = self.plan.is_staged
        if self.by_row:
            row = "(stage * kRowsPerBlock + slot)" if staged else "slot"
            return f"{tensor}_shared + (({row} * {self.steps} + {self.step}) * kThreadsPerRow + lane) * kVector"
        step = f"(stage * kSteps + {self.step})" if staged else self.step
        return f"{tensor}_shared + ({step} * kThreads + threadIdx.x) * kVector"

    def pointer_lines(self) -> list[str]:
        if not self.plan.slot_bytes:
            return []
        lines, offset = [], "0"
        stages = "kStages * " if self.plan.is_staged else ""
        for load in self.plan.held:
            ctype = self.access.ctype(load.name)
            lines.append(f"{ctype}* {load.name}_shared = reinterpret_cast<{ctype}*>(dynamic_shared() + {offset});")
            offset += f" + {stages}{self.steps} * kThreads * kVector * static_cast<int>(sizeof({ctype}))"
        return lines

    def constants(self) -> list[tuple[str, str, str]]:
        rows = []
        if self.plan.is_staged:
            rows.append(("kStages", str(self.plan.schedule.stages), "row tiles in shared memory"))
        if self.plan.is_hybrid:
            rows.append(("kHeldSteps", str(self.plan.held_steps), "of them in registers"))
            rows.append(("kSlotSteps", "kSteps - kHeldSteps", "and in shared memory"))
        return rows

    def reads(self) -> tuple[str, ...]:
        """A thread's vectors from its slots to its registers."""
        return tuple(f"{ld.name}_held[step] = read_default<kVector>({self.of(ld.name)});" for ld in self.plan.held)


def holders(access: Access) -> list[str]:
    """Where a row waits within a thread."""
    plan = access.plan
    if Place.REGISTERS in plan.places and plan.held:
        return access.declarations(plan.held, "kHeldSteps" if plan.is_hybrid else "kSteps")
    if Place.SHARED in plan.places and plan.cut.edged:
        return [f"{access.vec(h.name, EDGE)} {h.name}_edge = {{}};" for h in plan.held]
    return []


def guarded(access: Access, body: list[str]) -> list[str]:
    """The body of a loop over a thread's vectors, behind the guard if there is one."""
    return [f"if ({access.guard}) {{", *("  " + line for line in body), "}"] if access.guard else body


def fetched_pointers(access: Access, loads: tuple[Load, ...]) -> list[str]:
    """Within a function that fetches a row: its index and the starts of its tensors."""
    problem = access.plan.problem
    return [f"  {access.row_pointer(problem.tensor(load.name), 'fetched_row')}" for load in loads]
